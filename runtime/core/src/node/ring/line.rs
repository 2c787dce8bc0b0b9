//! Entries of the ring as people read them: whom each is about, by the name that they
//! know, and what took place in the words of the core.

use std::fmt;

use super::{Asked, Entry, FoundPod, Known, Line, Seen};
use crate::facts::{Attempt, PodIndex};
use crate::spec::Pod;
use crate::time::Instant;

/// What people call a pod and its containers.
#[derive(Debug)]
pub(super) struct Names {
    /// `default/web`.
    pod: String,
    containers: Vec<String>,
}

/// As people read it: seconds since the boot, whom it is about, and what took place.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7}.{:03} ", self.at.0 / 1_000_000_000, millis(self.at))?;
        let pod = |index: &PodIndex| match &self.names {
            Some(names) => names.pod.clone(),
            None => format!("pod {}", index.0),
        };
        let run = |index: &PodIndex, attempt: &Attempt| {
            let name =
                self.names.as_ref().and_then(|names| names.containers.get(attempt.container.0 as usize));
            match name {
                Some(name) => format!("{}/{name}#{}", pod(index), attempt.number),
                None => format!("{}/{}#{}", pod(index), attempt.container.0, attempt.number),
            }
        };
        match &self.entry {
            Entry::Seen(index, seen) => match seen.attempt() {
                Some(attempt) => write!(f, "{} <- {seen}", run(index, &attempt)),
                None => write!(f, "{} <- {seen}", pod(index)),
            },
            Entry::Asked(index, asked) => match asked.attempt() {
                Some(attempt) => write!(f, "{} -> {asked}", run(index, &attempt)),
                None => write!(f, "{} -> {asked}", pod(index)),
            },
            Entry::Wanted(known) => write!(f, "{} <- Wanted {known}", pod(&known.index)),
            Entry::Found(found) => write!(f, "{} <- Found {found}", pod(&found.pod.index)),
            Entry::Unwanted(uid, grace) => {
                match &self.names {
                    Some(names) => write!(f, "{} <- Unwanted", names.pod)?,
                    None => write!(f, "<- Unwanted {uid}")?,
                }
                match grace {
                    Some(grace) => write!(f, ", grace {}s", grace.as_secs()),
                    None => Ok(()),
                }
            }
            Entry::Hidden(uid) => match &self.names {
                Some(names) => write!(f, "{} <- Hidden", names.pod),
                None => write!(f, "<- Hidden {uid}"),
            },
            Entry::Node(info) => write!(f, "<- Node {}", info.name),
            Entry::SourcesSeen => f.write_str("<- SourcesSeen"),
            Entry::ImagesChanged => f.write_str("<- ImagesChanged"),
            Entry::Shutdown(_) => f.write_str("<- Shutdown"),
            Entry::ShutdownCancelled => f.write_str("<- ShutdownCancelled"),
            Entry::Planned { actions, more, wake_at } => {
                match actions {
                    0 => f.write_str("planned nothing")?,
                    1 => f.write_str("planned 1 action")?,
                    actions => write!(f, "planned {actions} actions")?,
                }
                match (more, wake_at) {
                    (true, _) => f.write_str(", and more at once"),
                    (false, Some(at)) => write!(f, ", again at {}.{:03}", at.0 / 1_000_000_000, millis(*at)),
                    (false, None) => Ok(()),
                }
            }
        }
    }
}

fn millis(at: Instant) -> u64 {
    at.0 / 1_000_000 % 1000
}

impl Names {
    pub(super) fn of(pod: &Pod) -> Names {
        let containers = pod.spec.all_containers().map(|container| container.name.clone()).collect();
        Names { pod: format!("{}/{}", pod.namespace, pod.name), containers }
    }
}

/// The uid, with the phase on record.
impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})", self.uid)?;
        match &self.record {
            Some(record) => write!(f, ", on record {:?}", record.phase),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FoundPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pod.fmt(f)?;
        f.write_str(if self.sandbox.is_some() { ", its sandbox lives" } else { ", without a sandbox" })?;
        for run in &self.attempts {
            write!(f, ", container {}#{} ", run.attempt.container.0, run.attempt.number)?;
            match &run.exit {
                Some((ended, _)) => write!(f, "exited with {}", ended.code)?,
                None => f.write_str("runs")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::SandboxReady(Some(ip), _) => write!(f, "SandboxReady {ip}"),
            Seen::SandboxReady(None, _) => f.write_str("SandboxReady"),
            Seen::SandboxFailed(reason) => write!(f, "SandboxFailed: {reason:?}"),
            Seen::SandboxLost => f.write_str("SandboxLost"),
            Seen::SandboxRemoved => f.write_str("SandboxRemoved"),
            Seen::SandboxRemoveFailed => f.write_str("SandboxRemoveFailed"),
            Seen::Started(..) => f.write_str("Started"),
            Seen::StartFailed(_, reason) => write!(f, "StartFailed: {reason:?}"),
            Seen::ImageChecked(_, None) => f.write_str("ImageChecked: Success"),
            Seen::ImageChecked(_, Some(reason)) => write!(f, "ImageChecked: {reason:?}"),
            Seen::Exited(_, ended) => {
                write!(f, "Exited with {}", ended.code)?;
                f.write_str(match (ended.oom_killed, ended.unknown) {
                    (_, true) => ", which nobody saw",
                    (true, false) => ", out of memory",
                    (false, false) => "",
                })
            }
            Seen::Probed(_, kind, answer) => write!(f, "Probed {kind:?}: {answer:?}"),
            Seen::Hooked(_, kind, failed) => {
                write!(f, "Hooked {kind:?}: {}", if *failed { "Failure" } else { "Success" })
            }
            Seen::StopFailed(_) => f.write_str("StopFailed"),
            Seen::Saved(generation) => write!(f, "Saved {generation}"),
            Seen::SaveFailed => f.write_str("SaveFailed"),
            Seen::Forgotten => f.write_str("Forgotten"),
            Seen::ForgetFailed => f.write_str("ForgetFailed"),
            Seen::Given(conditions) => {
                f.write_str("Given")?;
                conditions.iter().try_for_each(|given| write!(f, " {}={}", given.kind, given.status))
            }
        }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asked::CreateSandbox => f.write_str("CreateSandbox"),
            Asked::Start(_) => f.write_str("Start"),
            Asked::CheckImage(_) => f.write_str("CheckImage"),
            Asked::Probe(_, kind) => write!(f, "Probe {kind:?}"),
            Asked::Hook(_, kind) => write!(f, "Hook {kind:?}"),
            Asked::Terminate(_) => f.write_str("Terminate"),
            Asked::Kill(_) => f.write_str("Kill"),
            Asked::Discard(_) => f.write_str("Discard"),
            Asked::RemoveSandbox => f.write_str("RemoveSandbox"),
            Asked::Save { phase, generation, .. } => write!(f, "Save {generation}: {phase:?}"),
            Asked::Forget => f.write_str("Forget"),
            Asked::Emit { reason, .. } => write!(f, "Emit {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::{Exit, Observation, PodIndex, PodObservation, ProbeResult};
    use crate::node::{Node, Ring};
    use crate::sim::{container, pod, started};
    use crate::spec::{ContainerIndex, ProbeKind, RestartPolicy};
    use crate::time::{Instant, Moment};

    #[test]
    fn a_line_says_whom_it_is_about_and_what_took_place() {
        let (mut node, mut ring) = (Node::new(), Ring::default());
        let at = |millis: u64| Instant(12_000_000_000 + millis * 1_000_000);
        let observe = |node: &mut Node, ring: &mut Ring, millis: u64, seen: Observation| {
            ring.observed(at(millis), node, &seen, None);
            node.observe(at(millis), seen);
            let plan = node.plan(at(millis));
            ring.planned(at(millis), node, &plan);
        };
        let web = std::rc::Rc::new(pod(RestartPolicy::Always).with([container("app")]));
        let run = super::Attempt { container: ContainerIndex(0), number: 0 };
        let told = [
            PodObservation::SandboxReady { ip: Some([10, 85, 0, 2].into()), at: at(20) },
            PodObservation::Started { attempt: run, container: Box::new(started(at(50), run)) },
            PodObservation::Probed {
                attempt: run,
                kind: ProbeKind::Liveness,
                result: ProbeResult::Failure("no".into()),
            },
            PodObservation::Exited {
                attempt: run,
                exit: Box::new(Exit {
                    code: 137,
                    oom_killed: true,
                    reason: None,
                    message: "".into(),
                    started_at: Moment::ThisBoot(at(50)),
                    finished_at: Moment::ThisBoot(at(800)),
                }),
            },
        ];
        observe(
            &mut node,
            &mut ring,
            0,
            Observation::Wanted { pod: web.clone(), record: None, status: None },
        );
        observe(&mut node, &mut ring, 5, Observation::SourcesSeen);
        for (millis, seen) in (0..).map(|turn| 20 + turn * 30).zip(told) {
            observe(&mut node, &mut ring, millis, Observation::Of(PodIndex(1), seen));
        }
        let grace = Some(std::time::Duration::from_secs(3));
        observe(&mut node, &mut ring, 900, Observation::Unwanted { uid: web.uid.clone(), grace });
        observe(&mut node, &mut ring, 901, Observation::Of(PodIndex(9), PodObservation::SandboxLost));
        let text = ring.to_string();
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains("planned")).collect();
        let expected = [
            "     12.000 default/web <- Wanted (u1)",
            "     12.000 default/web -> CreateSandbox",
            "     12.005 <- SourcesSeen",
            "     12.020 default/web <- SandboxReady 10.85.0.2",
            "     12.020 default/web/app#0 -> Start",
            "     12.050 default/web/app#0 <- Started",
            "     12.050 default/web -> Emit Pulled",
            "     12.050 default/web -> Emit Created",
            "     12.050 default/web -> Emit Started",
            "     12.080 default/web/app#0 <- Probed Liveness: Failure",
            "     12.110 default/web/app#0 <- Exited with 137, out of memory",
            "     12.110 default/web/app#1 -> Start",
            "     12.900 default/web <- Unwanted, grace 3s",
            "     12.900 default/web/app#0 -> Discard",
            "     12.901 pod 9 <- SandboxLost",
        ];
        assert_eq!(lines, expected, "{text}");
        assert!(text.contains("     12.000 planned 1 action\n     12.000 default/web -> "), "{text}");
        assert!(text.contains("     12.005 planned nothing\n"), "{text}");
        assert!(text.contains("planned 3 actions, again at 22.020\n"), "{text}");
    }
}
