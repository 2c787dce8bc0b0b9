//! Restart rules of single containers: which exits restart a container, and how all containers restart in the
//! same sandbox.
//!
//! An exit that matches a `RestartAllContainers` rule makes all containers end, one after another and without
//! a grace period: regular containers first, then sidecars. Their earlier runs no longer count: init
//! containers start again from the first, and no back-off applies. This takes place one second after the
//! exit, when a kubelet would have noticed it, so that a container that ends at once does not occupy the
//! board alone.

use std::time::Duration;

use crate::facts::{Action, Attempt, Draft, Events, Wake};
use crate::spec::{ContainerIndex, RestartAction, RestartPolicy, Role};
use crate::time::Instant;

use super::PodState;
use super::container::{ContainerState, Ended, Run, WaitingReason};
use super::termination::MIN_WINDOW;

/// The latest time after which a kubelet notices an exit (`genericPlegRelistPeriod`).
const PLEG_INTERVAL: Duration = Duration::from_secs(1);

/// Reason of a container that ended, or waits, because all containers restart.
const RESTARTING_REASON: &str = "RestartingAllContainers";
/// Message of a container that ended, or waits, because all containers restart.
const REMOVED_MESSAGE: &str = "The container is removed because RestartAllContainers in place";

impl Ended {
    /// The result of a run that does not count because all containers restart.
    pub(super) fn of_all(number: u32) -> Ended {
        Ended {
            number,
            code: 137,
            reason: RESTARTING_REASON.into(),
            message: REMOVED_MESSAGE.into(),
            started_at: None,
            finished_at: None,
            id: None,
        }
    }
}

impl ContainerState {
    /// The restart policy of this container: its own, or the pod's.
    pub(super) fn own_policy(&self, of_pod: RestartPolicy) -> RestartPolicy {
        self.own.as_ref().map_or(of_pod, |own| own.policy)
    }

    /// Whether the run that has just ended did so without being stopped. A postStart hook that failed because
    /// the run ended is reported first, before anything has killed the run.
    pub(super) fn ended_by_itself(&self) -> bool {
        let untouched = match self.run {
            Run::Running => self.hooks.grace_over().is_none(),
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => false,
        };
        untouched && self.failed_probe.is_none()
    }

    /// Whether the container restarts together with all others. An ephemeral container keeps running.
    fn begins_again(&self) -> bool {
        match self.role {
            Role::Init | Role::Sidecar | Role::Regular => true,
            Role::Ephemeral => false,
        }
    }

    /// Whether the newest run ended and does not count, because all containers were to restart.
    pub(super) fn was_to_begin_again(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| &*ended.reason == RESTARTING_REASON)
    }

    /// The action of the container's own rules for the exit of its newest run. No rule applies to a kill
    /// after a failed probe.
    pub(super) fn rule(&self) -> Option<RestartAction> {
        let ended = self.ended.as_ref().filter(|_| self.failed_probe.is_none())?;
        self.own.as_ref()?.action(ended.code)
    }
}

impl PodState {
    /// Whether all containers of the pod are restarting, which a condition shows.
    pub(crate) fn restarts_all(&self) -> bool {
        self.restart_all.is_some()
    }

    /// Judges the exit of a run: it may restart all containers.
    pub(super) fn judge_exit(&mut self, now: Instant, attempt: Attempt) {
        if !self.is_active() || self.restart_all.is_some() {
            return;
        }
        let Some(container) = self.container_of(attempt) else { return };
        if container.superseded || container.rule() != Some(RestartAction::RestartAllContainers) {
            return;
        }
        self.restart_all = Some(now + PLEG_INTERVAL);
        for container in &mut self.containers {
            container.superseded |=
                container.begins_again() && (container.ran_in_sandbox || container.is_alive());
        }
        self.touch();
    }

    /// Ends all containers that restart together, one after another, and then lets them start.
    pub(super) fn plan_restart_all(&mut self, now: Instant, draft: &mut Draft, events: &mut Events) {
        if self.restart_all.is_none_or(|at| now < at) || !self.sandbox.is_ready() {
            return;
        }
        for container in &mut self.containers {
            if let (true, Run::Recording) = (container.begins_again(), &container.run) {
                container.run = Run::Waiting;
            }
        }
        // A kubelet first finishes what it is doing: a start, with its hook. An ephemeral container whose run
        // is being recorded starts after the restart.
        let starts = |one: &ContainerState| one.is_starting() && !matches!(one.run, Run::Recording);
        if self.containers.iter().any(starts) {
            return;
        }
        let mut all = self.pod.spec.container_indexes().zip(&mut self.containers);
        if let Some((index, container)) = all.find(|(_, one)| one.begins_again() && one.is_alive()) {
            // A run that is ending for another reason continues with that.
            if let (Run::Running, None) = (&container.run, container.hooks.grace_over()) {
                if !std::mem::replace(&mut container.killing_event_emitted, true) {
                    events.note(self.index, Some(index), "Killing", "killing".into());
                }
                if draft.push(self.index, Action::Terminate(container.attempt(index))) {
                    container.run = Run::Terminating { deadline: now + MIN_WINDOW, again: None };
                    self.touch();
                }
            }
            return;
        }
        self.restart_all = None;
        for container in self.containers.iter_mut().filter(|container| container.superseded) {
            container.ran_in_sandbox = false;
            if let Run::Exited = container.run {
                container.ended = Some(Box::new(Ended::of_all(container.number)));
                container.waiting =
                    Some(WaitingReason { reason: RESTARTING_REASON.into(), message: REMOVED_MESSAGE.into() });
            }
        }
        self.touch();
    }

    /// Records when all containers are to restart.
    pub(super) fn wake_restart_all(&self, wake: &mut Wake) {
        if let Some(at) = self.restart_all {
            wake.note(at);
        }
    }

    /// Resumes a restart of all containers that a previous agent had begun.
    pub(super) fn resume_restart_all(&mut self, now: Instant) {
        let alive = |container: &ContainerState| container.superseded && container.is_alive();
        if self.is_active() && self.containers.iter().any(alive) {
            self.restart_all = Some(now);
        }
        // The previous agent may have died before the exit was reported to it.
        for (index, number) in self.ended_last() {
            self.judge_exit(now, Attempt { container: index, number });
        }
    }

    /// The containers whose newest run has ended in this sandbox, with its number.
    fn ended_last(&self) -> Vec<(ContainerIndex, u32)> {
        let ended =
            |container: &ContainerState| matches!(container.run, Run::Exited) && container.ran_in_sandbox;
        self.containers().filter(|(_, one)| ended(one)).map(|(index, one)| (index, one.number)).collect()
    }

    /// Cancels the restart of all containers, because the sandbox is gone.
    pub(super) fn forget_restart_all(&mut self) {
        self.restart_all = None;
        for container in &mut self.containers {
            container.superseded = false;
        }
    }
}
