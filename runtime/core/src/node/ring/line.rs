//! The entries of the ring in a form for people: the name of the pod, and the observation or action.

use std::fmt;

use super::{Entry, Line, Omitted, ReportedPod};
use crate::facts::{Action, Attempt, Observation, PodIndex, PodObservation, ProbeResult, Record};
use crate::spec::{self, Pod};
use crate::time::Instant;

/// The names of a pod and its containers.
#[derive(Debug)]
pub(super) struct Names {
    /// `default/web`.
    pod: String,
    containers: Vec<String>,
}

/// The entry for people: the seconds since the boot, the name of the pod, and the observation or action.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7}.{:03} ", self.at.0 / 1_000_000_000, millis(self.at))?;
        match &self.entry {
            Entry::Observed(seen) => self.write_observed(f, seen),
            Entry::Action(index, action) => match action.attempt() {
                Some(attempt) => write!(f, "{} -> {}", self.run(*index, attempt), Shown(action)),
                None => write!(f, "{} -> {}", self.pod(*index), Shown(action)),
            },
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

impl Line {
    fn pod(&self, index: PodIndex) -> String {
        match &self.names {
            Some(names) => names.pod.clone(),
            None => format!("pod {}", index.0),
        }
    }

    fn run(&self, index: PodIndex, attempt: Attempt) -> String {
        let names = self.names.as_ref();
        match names.and_then(|names| names.containers.get(usize::from(attempt.container.0))) {
            Some(name) => format!("{}/{name}#{}", self.pod(index), attempt.number),
            None => format!("{}/{}#{}", self.pod(index), attempt.container.0, attempt.number),
        }
    }

    fn write_observed(
        &self,
        f: &mut fmt::Formatter<'_>,
        seen: &Observation<Box<ReportedPod>, Omitted>,
    ) -> fmt::Result {
        match seen {
            Observation::Of(index, seen) => match seen.attempt() {
                Some(attempt) => write!(f, "{} <- {}", self.run(*index, attempt), ObservationText(seen)),
                None => write!(f, "{} <- {}", self.pod(*index), ObservationText(seen)),
            },
            Observation::Wanted { pod, record, .. } => {
                write!(f, "{} <- Wanted {}", self.pod(pod.index), Uid(&pod.uid, record))
            }
            Observation::Found(found) => {
                write!(f, "{} <- Found {}", self.pod(found.pod.index), Uid(&found.pod.uid, &found.record))?;
                f.write_str(match found.sandbox {
                    Some(_) => ", its sandbox lives",
                    None => ", without a sandbox",
                })?;
                for run in &found.attempts {
                    write!(f, ", container {}#{} ", run.attempt.container.0, run.attempt.number)?;
                    match &run.exit {
                        Some(exit) => write!(f, "exited with {}", exit.code)?,
                        None => f.write_str("runs")?,
                    }
                }
                Ok(())
            }
            Observation::Unwanted { uid, grace } => {
                match &self.names {
                    Some(names) => write!(f, "{} <- Unwanted", names.pod)?,
                    None => write!(f, "<- Unwanted {uid}")?,
                }
                match grace {
                    Some(grace) => write!(f, ", grace {}s", grace.as_secs()),
                    None => Ok(()),
                }
            }
            Observation::Hidden { uid } => match &self.names {
                Some(names) => write!(f, "{} <- Hidden", names.pod),
                None => write!(f, "<- Hidden {uid}"),
            },
            Observation::Restart { uid, container } => {
                match &self.names {
                    Some(names) => write!(f, "{} <- Restart", names.pod)?,
                    None => write!(f, "<- Restart {uid}")?,
                }
                match container {
                    Some(container) => write!(f, ", container {container}"),
                    None => Ok(()),
                }
            }
            Observation::Node(info) => write!(f, "<- Node {}", info.name),
            Observation::SourcesSeen => f.write_str("<- SourcesSeen"),
            Observation::ImagesChanged => f.write_str("<- ImagesChanged"),
            Observation::Shutdown(_) => f.write_str("<- Shutdown"),
            Observation::ShutdownCancelled => f.write_str("<- ShutdownCancelled"),
            Observation::Starved(starved) => write!(f, "<- Starved of {}", starved.resource.name()),
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

/// The UID, with the phase on record.
struct Uid<'a>(&'a spec::Uid, &'a Option<Box<Record>>);

impl fmt::Display for Uid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})", self.0)?;
        match self.1 {
            Some(record) => write!(f, ", on record {:?}", record.phase),
            None => Ok(()),
        }
    }
}

/// An observation, without the run that it is about.
struct ObservationText<'a>(&'a PodObservation<Omitted>);

impl fmt::Display for ObservationText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PodObservation::SandboxReady { ip: Some(ip), .. } => write!(f, "SandboxReady {ip}"),
            PodObservation::SandboxReady { ip: None, .. } => f.write_str("SandboxReady"),
            PodObservation::SandboxFailed { reason, remains, .. } => {
                write!(f, "SandboxFailed: {reason:?}")?;
                f.write_str(if *remains { ", with remains" } else { "" })
            }
            PodObservation::ObjectsChanged => f.write_str("ObjectsChanged"),
            PodObservation::VolumesUpdated => f.write_str("VolumesUpdated"),
            PodObservation::VolumesUpdateFailed { reason, .. } => {
                write!(f, "VolumesUpdateFailed: {reason:?}")
            }
            PodObservation::Resized { generation, failure } => {
                write!(f, "Resized {generation}: {}", if failure.is_some() { "Failure" } else { "Success" })
            }
            PodObservation::StorageMeasured(usage) => {
                let all = usage.containers.iter().chain(&usage.volumes).copied().fold(0, u64::saturating_add);
                write!(f, "StorageMeasured {all}")
            }
            PodObservation::SandboxLost { processes } => {
                f.write_str(if *processes { "SandboxLost, with processes" } else { "SandboxLost" })
            }
            PodObservation::SandboxRemoved => f.write_str("SandboxRemoved"),
            PodObservation::SandboxRemoveFailed { .. } => f.write_str("SandboxRemoveFailed"),
            PodObservation::VolumesRemoved => f.write_str("VolumesRemoved"),
            PodObservation::VolumesRemoveFailed { .. } => f.write_str("VolumesRemoveFailed"),
            PodObservation::Started { .. } => f.write_str("Started"),
            PodObservation::StartFailed { failure, .. } => write!(f, "StartFailed: {:?}", failure.reason),
            PodObservation::ImageChecked { failure: None, .. } => f.write_str("ImageChecked: Success"),
            PodObservation::ImageChecked { failure: Some(failure), .. } => {
                write!(f, "ImageChecked: {:?}", failure.reason)
            }
            PodObservation::ImagePulled { result: Ok(_), .. } => f.write_str("ImagePulled: Success"),
            PodObservation::ImagePulled { result: Err(_), .. } => f.write_str("ImagePulled: Failure"),
            PodObservation::Exited { exit, .. } => {
                write!(f, "Exited with {}", exit.code)?;
                f.write_str(match (exit.oom_killed, exit.unknown) {
                    (_, true) => ", exit code unknown",
                    (true, false) => ", out of memory",
                    (false, false) => "",
                })
            }
            PodObservation::Probed { kind, result, .. } => {
                let result = match result {
                    ProbeResult::Success => "Success",
                    ProbeResult::Warning(_) => "Warning",
                    ProbeResult::Failure(_) => "Failure",
                    ProbeResult::Error(_) => "Error",
                };
                write!(f, "Probed {kind:?}: {result}")
            }
            PodObservation::Hooked { kind, failure, .. } => {
                write!(f, "Hooked {kind:?}: {}", if failure.is_some() { "Failure" } else { "Success" })
            }
            PodObservation::StopFailed { .. } => f.write_str("StopFailed"),
            PodObservation::Saved { generation } => write!(f, "Saved {generation}"),
            PodObservation::SaveFailed { .. } => f.write_str("SaveFailed"),
            PodObservation::Forgotten => f.write_str("Forgotten"),
            PodObservation::Fence(fence) => write!(f, "Fence: {fence:?}"),
            PodObservation::ForgetFailed { .. } => f.write_str("ForgetFailed"),
            PodObservation::ClientConditions { conditions } => {
                f.write_str("ClientConditions")?;
                conditions.iter().try_for_each(|one| write!(f, " {}={}", one.kind, one.status))
            }
        }
    }
}

/// An action, without the run that it is about.
struct Shown<'a>(&'a super::RecordedAction);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Action::CreateSandbox => f.write_str("CreateSandbox"),
            Action::UpdateVolumes => f.write_str("UpdateVolumes"),
            Action::MeasureStorage(scope) => write!(f, "MeasureStorage {scope:?}"),
            Action::Resize { generation } => write!(f, "Resize {generation}"),
            Action::Start { .. } => f.write_str("Start"),
            Action::CheckImage(_) => f.write_str("CheckImage"),
            Action::PullImage { .. } => f.write_str("PullImage"),
            Action::Probe(_, kind) => write!(f, "Probe {kind:?}"),
            Action::Hook(_, kind) => write!(f, "Hook {kind:?}"),
            Action::Terminate(_) => f.write_str("Terminate"),
            Action::Kill(_) => f.write_str("Kill"),
            Action::Discard(_) => f.write_str("Discard"),
            Action::RemoveSandbox => f.write_str("RemoveSandbox"),
            Action::RemoveVolumes { logs: false } => f.write_str("RemoveVolumes"),
            Action::RemoveVolumes { logs: true } => f.write_str("RemoveVolumes and logs"),
            Action::Save { record, generation } => write!(f, "Save {generation}: {:?}", record.phase),
            Action::Forget => f.write_str("Forget"),
            Action::Emit(event) => write!(f, "Emit {}", event.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::{Attempt, Exit, Observation, PodIndex, PodObservation, ProbeResult};
    use crate::node::{Node, Ring};
    use crate::sim::{container, pod, started};
    use crate::spec::{ContainerIndex, ProbeKind, RestartPolicy};
    use crate::time::{Instant, Moment};

    #[test]
    fn each_line_of_the_ring_names_its_object_and_the_event() {
        let (mut node, mut ring) = (Node::new(), Ring::default());
        let at = |millis: u64| Instant(12_000_000_000 + millis * 1_000_000);
        let observe = |node: &mut Node, ring: &mut Ring, millis: u64, seen: Observation| {
            ring.observed(at(millis), node, &seen, None);
            node.observe(at(millis), seen);
            let plan = node.plan(at(millis));
            ring.planned(at(millis), node, &plan);
        };
        let web = std::rc::Rc::new(pod(RestartPolicy::Always).with([container("app")]));
        let run = Attempt { container: ContainerIndex(0), number: 0 };
        let observations = [
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
                    unknown: false,
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
        for (millis, seen) in (0..).map(|turn| 20 + turn * 30).zip(observations) {
            observe(&mut node, &mut ring, millis, Observation::Of(PodIndex(1), seen));
        }
        let grace = Some(std::time::Duration::from_secs(3));
        observe(&mut node, &mut ring, 900, Observation::Unwanted { uid: web.uid.clone(), grace });
        observe(
            &mut node,
            &mut ring,
            901,
            Observation::Of(PodIndex(9), PodObservation::SandboxLost { processes: false }),
        );
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
            "     12.110 default/web -> Emit OOMKilled",
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
