//! Invariants of restarts: no restart before its back-off ends, none that the restart policy forbids, and
//! none that disappears from `restartCount`.
//!
//! If an answer is under way, the model of the back-off may differ from the core's; then the model accepts a
//! restart.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::{WorldPod, secs};
use crate::facts::*;
use crate::spec::*;
use crate::time::Instant;

/// The runs of each container in the present sandbox, under the present agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Restarts {
    of: BTreeMap<ContainerIndex, Runs>,
    /// The latest shown `restartCount` of each container.
    shown: BTreeMap<String, u64>,
    /// Whether a shutdown was cancelled, so that the pod restarts with its record on flash after it has
    /// ended.
    resumes: bool,
    /// Whether the pod has ended and restarts with its record, which may wait for a record that is being written.
    has_ended: bool,
    /// Whether all containers were to restart once.
    has_restarted_all: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    ended: Option<End>,
    /// The delay of the next restart, and when it was set.
    back_off: Option<(Duration, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Instant,
    exit: RunExit,
}

/// How a run ended, as far as the decision on its restart depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunExit {
    pub(super) code: i32,
    pub(super) oom_killed: bool,
    /// Whether a failure of its liveness or startup probe was reported, for which the run may have been killed.
    pub(super) probe_failed: bool,
}

impl RunExit {
    /// Whether another run may follow that of a container with this role.
    fn may_restart(self, spec: &PodSpec, role: Role, own: Option<&OwnRestart>) -> bool {
        let policy = own.map_or(spec.restart_policy, |own| own.policy);
        // The first rule that matches decides, unless a probe failed.
        let applies = |rule: &&RestartRule| rule.within == rule.codes.contains(&self.code);
        let is_ruled = own.is_some_and(|own| own.rules.iter().any(|rule| applies(&rule)));
        let has_failed = self.code != 0 || self.oom_killed;
        match (role, policy) {
            (Role::Sidecar, _) | (Role::Regular, RestartPolicy::Always) => true,
            (Role::Regular, RestartPolicy::OnFailure) => is_ruled || self.code != 0 || self.probe_failed,
            (Role::Regular, RestartPolicy::Never) => is_ruled,
            (Role::Init, RestartPolicy::Always | RestartPolicy::OnFailure) => has_failed,
            (Role::Init, RestartPolicy::Never) => is_ruled && has_failed,
            (Role::Ephemeral, _) => false,
        }
    }
}

impl Restarts {
    /// Records that a run has ended.
    pub(super) fn ended(&mut self, now: Instant, container: ContainerIndex, exit: RunExit) {
        self.of.entry(container).or_default().ended = Some(End { at: now, exit });
    }

    /// Records an exit after which all containers restart, whatever their policies are.
    pub(super) fn restart_all(&mut self) {
        self.has_restarted_all = true;
        self.forget_all();
    }

    /// Whether all containers of the pod were to restart once, so that containers that run once run again.
    pub(super) fn has_restarted_all(&self) -> bool {
        self.has_restarted_all
    }

    /// Forgets the runs of a container whose next run starts without a back-off: its image changed, or was
    /// loaded.
    pub(super) fn forget(&mut self, container: ContainerIndex) {
        self.of.remove(&container);
    }

    /// Forgets all runs, so that no back-off applies: all containers restart, in another sandbox or under
    /// another agent.
    pub(super) fn forget_all(&mut self) {
        self.of.clear();
    }

    /// Records that a shutdown was cancelled.
    pub(super) fn resume(&mut self, has_sandbox: bool) {
        self.resumes = has_sandbox;
        self.has_ended = !has_sandbox;
        self.shown.clear();
    }

    /// Records that the sandbox is gone.
    pub(super) fn sandbox_gone(&mut self) {
        self.of.clear();
        self.has_ended |= std::mem::take(&mut self.resumes);
    }

    /// Records that there is another sandbox.
    pub(super) fn sandbox_made(&mut self) {
        if std::mem::take(&mut self.has_ended) {
            self.shown.clear();
        }
    }

    /// Forgets the shown counts: the record on flash may have fewer runs.
    pub(super) fn forget_shown(&mut self) {
        self.shown.clear();
    }
}

impl WorldPod {
    /// Checks that a run of the container may start now.
    pub(super) fn check_restart(&mut self, now: Instant, container: ContainerIndex, log: &str) {
        if self.order.is_restarting_all() {
            self.restarts.forget_all();
        }
        if self.outdated.contains(&container) {
            return self.restarts.forget(container);
        }
        let (uid, spec) = (&self.pod.uid, &self.pod.spec);
        let runs = self.restarts.of.entry(container).or_default();
        let Some(end) = runs.ended else { return };
        // Some ends are reported to the core a little later, and it forgets a back-off after 600 s.
        let live = runs.back_off.filter(|(_, since)| end.at.since(*since) < secs(590));
        if let Some((delay, _)) = live {
            assert!(
                now >= end.at + delay,
                "{uid}: {container:?} starts within its back-off of {delay:?}\n{log}"
            );
        }
        runs.back_off = Some((live.map_or(secs(10), |(delay, _)| (delay * 2).min(secs(300))), now));
        let may_restart =
            end.exit.may_restart(spec, spec.role(container), spec.container(container).restart.as_deref());
        assert!(may_restart, "{uid}: {container:?} restarts after {:?}\n{log}", end.exit);
    }

    /// Records the result of a probe that the core now knows.
    pub(super) fn probed(&mut self, attempt: Attempt, kind: ProbeKind, result: &ProbeResult) {
        let Some(process) = self.alive.get_mut(&attempt) else { return };
        match result {
            ProbeResult::Success | ProbeResult::Warning(_) => {
                if !process.succeeded.contains(&kind) {
                    process.succeeded.push(kind);
                }
            }
            ProbeResult::Failure(_) => process.probe_failed |= kind != ProbeKind::Readiness,
            ProbeResult::Error(_) => {}
        }
    }

    /// Checks that the shown state of the runs is true.
    pub(super) fn check_shown_runs(&mut self, now: Instant, status: &Value, log: &str) {
        let (uid, spec) = (&self.pod.uid, &self.pod.spec);
        let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
        for one in lists.iter().filter_map(|list| status[*list].as_array()).flatten() {
            let name = one["name"].as_str().unwrap_or_default();
            let count = one["restartCount"].as_u64().unwrap_or_default();
            let before = self.restarts.shown.insert(name.to_owned(), count).unwrap_or_default();
            let may_fall = self.restarts.has_ended;
            assert!(
                count >= before || may_fall,
                "{uid}: restartCount of {name} falls from {before} to {count}\n{log}"
            );
            let Some(index) = spec.container_indexes().find(|index| spec.container(*index).name == name)
            else {
                continue;
            };
            if one["ready"] != true || spec.role(index) == Role::Init {
                continue;
            }
            let is_alive = self
                .alive
                .iter()
                .any(|(attempt, process)| attempt.container == index && process.started.is_some());
            // The end of a run is reported within the same moment.
            let just_ended = self.ended_at.get(&index) == Some(&now);
            assert!(is_alive || just_ended, "{uid}: {name} is shown as ready, and does not run\n{log}");
            let this = spec.container(index);
            let probes =
                [(ProbeKind::Startup, &this.startup_probe), (ProbeKind::Readiness, &this.readiness_probe)];
            // In a pod that stops, the startup probe of a regular container counts as successful.
            let stops = (!self.wanted || self.order.stopped().is_some()) && spec.role(index) == Role::Regular;
            let counts = |kind: ProbeKind| !(stops && kind == ProbeKind::Startup);
            for (kind, _) in probes.iter().filter(|(kind, probe)| probe.is_some() && counts(*kind)) {
                let has_succeeded = self
                    .alive
                    .iter()
                    .any(|(attempt, process)| attempt.container == index && process.succeeded.contains(kind));
                assert!(
                    has_succeeded || just_ended,
                    "{uid}: {name} is shown as ready, and its probe {kind:?} has not succeeded in this run\n{log}"
                );
            }
        }
    }
}

/// Whether an event is a warning, by its reason (`pkg/kubelet/events/event.go`) and its message.
pub(super) fn is_warning(event: &Event) -> bool {
    match &*event.reason {
        "Pulling" | "Pulled" | "Created" | "Started" | "Killing" | "SandboxChanged" | "DeadlineExceeded" => {
            false
        }
        "ResizeStarted" | "ResizeCompleted" => false,
        "ResizeDeferred" | "ResizeInfeasible" | "ResizeError" | "Evicted" => true,
        // A back-off of an image pull is a `Normal` event, unless the previous run continues, which no
        // kubelet reports.
        "BackOff" => {
            event.message.starts_with("Back-off restarting") || event.message.contains("keeps running image")
        }
        "Failed"
        | "InspectFailed"
        | "ErrImageNeverPull"
        | "FailedKillPod"
        | "FailedPostStartHook"
        | "FailedMount"
        | "FailedPreStopHook"
        | "Unhealthy"
        | "ProbeWarning"
        | "Preempting"
        | "NodeLost"
        | "NodeShutdown"
        | "OOMKilled"
        | "FailedCreatePodSandBox"
        | "UnexpectedAdmissionError"
        | "NodeAffinity"
        | "NodePorts"
        | "PodOSNotSupported"
        | "PodOSSelectorNodeLabelDoesNotMatch"
        | "SysctlForbidden"
        | "TaintToleration" => true,
        reason if reason.starts_with("OutOf") => true,
        reason => panic!("{reason}: is it a warning?"),
    }
}
