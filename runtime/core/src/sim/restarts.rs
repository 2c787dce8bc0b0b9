//! Restarts as the world counts them: none before its back-off is over, none that the restart policy
//! forbids, and none that disappears from `restartCount`.
//!
//! The model of the back-off is weaker than the core's where they could differ by an answer that is under
//! way: it accepts a restart then.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::{WorldPod, secs};
use crate::facts::*;
use crate::spec::*;
use crate::time::Instant;

/// What is known of the runs of each container in the present sandbox, under the present agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Restarts {
    of: BTreeMap<ContainerIndex, Runs>,
    /// `restartCount` by container, as shown last.
    shown: BTreeMap<String, u64>,
    /// A shutdown was cancelled: once it has ended, the pod begins again with what is on flash of it.
    resumes: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    ended: Option<End>,
    /// The delay of the next restart, and since when.
    back_off: Option<(Duration, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Instant,
    /// It exited with zero, and had the memory that it wanted.
    is_success: bool,
}

impl Restarts {
    /// A run has ended.
    pub(super) fn ended(&mut self, now: Instant, container: ContainerIndex, is_success: bool) {
        self.of.entry(container).or_default().ended = Some(End { at: now, is_success });
    }

    /// The next run of the container begins without a back-off: it is of another image, or begins the
    /// moment its image is loaded.
    pub(super) fn forget(&mut self, container: ContainerIndex) {
        self.of.remove(&container);
    }

    /// Nothing holds back any container: all begin again, in another sandbox or under another agent.
    pub(super) fn forget_all(&mut self) {
        self.of.clear();
    }

    /// A shutdown was cancelled.
    pub(super) fn resume(&mut self) {
        self.resumes = true;
        self.shown.clear();
    }

    /// The sandbox is gone.
    pub(super) fn sandbox_gone(&mut self) {
        self.of.clear();
        if std::mem::take(&mut self.resumes) {
            self.shown.clear();
        }
    }

    /// What is on flash may know of fewer runs than were shown.
    pub(super) fn forget_shown(&mut self) {
        self.shown.clear();
    }
}

impl WorldPod {
    /// A run of the container may start now.
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
        // The core hears of some ends a little later, and forgets an entry after 600 s.
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
        if spec.role(container) == Role::Regular && policy == RestartPolicy::OnFailure {
            let is_forbidden = end.is_success && !may_be_killed && !has_rules;
            assert!(!is_forbidden, "{uid}: {container:?} restarts after success\n{log}");
        }
    }

    /// What a status shows of runs is true.
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
            // News of an end arrives within the same moment.
            let just_ended = self.ended_at.get(&index) == Some(&now);
            assert!(is_alive || just_ended, "{uid}: {name} is shown as ready, and does not run\n{log}");
        }
    }
}

/// Whether an event is a warning, by its reason (`pkg/kubelet/events/event.go`) and its message.
pub(super) fn is_warning(event: &Event) -> bool {
    match event.reason {
        "Pulled" | "Created" | "Started" | "Killing" | "SandboxChanged" | "DeadlineExceeded" => false,
        // Of an image it is a note, unless the run before goes on meanwhile, which no kubelet reports.
        "BackOff" => {
            event.message.starts_with("Back-off restarting") || event.message.contains("keeps running image")
        }
        "Failed"
        | "InspectFailed"
        | "ErrImageNeverPull"
        | "FailedKillPod"
        | "FailedPostStartHook"
        | "FailedPreStopHook"
        | "Unhealthy"
        | "ProbeWarning"
        | "Preempting"
        | "NodeShutdown"
        | "FailedCreatePodSandBox"
        | "UnexpectedAdmissionError"
        | "NodePorts" => true,
        reason if reason.starts_with("OutOf") => true,
        reason => panic!("{reason}: is it a warning?"),
    }
}
