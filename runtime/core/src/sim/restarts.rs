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
    /// Whether the run exited with zero and was not short of memory.
    is_success: bool,
}

impl Restarts {
    /// Records that a run has ended.
    pub(super) fn ended(&mut self, now: Instant, container: ContainerIndex, is_success: bool) {
        self.of.entry(container).or_default().ended = Some(End { at: now, is_success });
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
    pub(super) fn resume(&mut self) {
        self.resumes = true;
        self.shown.clear();
    }

    /// Records that the sandbox is gone.
    pub(super) fn sandbox_gone(&mut self) {
        self.of.clear();
        if std::mem::take(&mut self.resumes) {
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
        let this = spec.container(container);
        let may_be_killed = this.liveness_probe.is_some()
            || this.startup_probe.is_some()
            || this.lifecycle.post_start.is_some();
        let policy = this.restart.as_ref().map_or(spec.restart_policy, |own| own.policy);
        let has_rules = this.restart.as_ref().is_some_and(|own| !own.rules.is_empty());
        if spec.role(container) == Role::Regular && !has_rules {
            match policy {
                RestartPolicy::Always => {}
                RestartPolicy::OnFailure => {
                    let is_forbidden = end.is_success && !may_be_killed;
                    assert!(!is_forbidden, "{uid}: {container:?} restarts after success\n{log}");
                }
                RestartPolicy::Never => {
                    let has_own = this.restart.is_some();
                    assert!(!has_own, "{uid}: {container:?} restarts, and its own policy is Never\n{log}");
                }
            }
        }
    }

    /// Records the result of a probe that the core now knows.
    pub(super) fn probed(&mut self, attempt: Attempt, kind: ProbeKind, result: &ProbeResult) {
        if let (Some(process), ProbeResult::Success | ProbeResult::Warning(_)) =
            (self.alive.get_mut(&attempt), result)
            && !process.succeeded.contains(&kind)
        {
            process.succeeded.push(kind);
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
            assert!(count >= before, "{uid}: restartCount of {name} falls from {before} to {count}\n{log}");
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
            // A kubelet takes the startup probe of a pod that stops for successful.
            let stops = !self.wanted || self.order.stopped().is_some();
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
