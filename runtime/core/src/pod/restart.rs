//! Rules of containers' own about restarts: who begins again after which exit, and what takes
//! place when all containers do, in the sandbox that they have.
//!
//! An exit for which the rule `RestartAllContainers` holds makes all containers end, one after
//! another and without a grace: regular containers first, then sidecars. What has run then counts
//! for nothing: init containers begin again from the first, and no back-off holds anybody. It
//! takes place a second after the exit, when a kubelet would have heard of it, so that a
//! container that ends at once does not keep the board busy with nothing else.

use std::time::Duration;

use crate::facts::{Action, Attempt, Draft, Events, Wake};
use crate::spec::{ContainerIndex, RestartAction, RestartPolicy, Role};
use crate::time::Instant;

use super::container::{ContainerState, Ended, Run, WaitingReason};
use super::termination::MIN_WINDOW;
use super::{PodState, Sandbox};

/// How soon a kubelet hears of an exit at the latest (`genericPlegRelistPeriod`).
const HEARD: Duration = Duration::from_secs(1);

/// Reason of what ended, or waits, because all containers begin again.
const RESTARTING: &str = "RestartingAllContainers";
/// What is said of it.
const REMOVED: &str = "The container is removed because RestartAllContainers in place";

impl Ended {
    /// Of a run that counts for nothing since all begin again.
    pub(super) fn of_all(number: u32) -> Ended {
        Ended {
            number,
            code: 137,
            reason: RESTARTING.into(),
            message: REMOVED.into(),
            started_at: None,
            finished_at: None,
            id: None,
        }
    }
}

impl ContainerState {
    /// The policy that holds for this container.
    pub(super) fn own_policy(&self, of_pod: RestartPolicy) -> RestartPolicy {
        self.own.as_ref().map_or(of_pod, |own| own.policy)
    }

    /// Nobody was about to end the run that has just ended. A postStart hook that failed because the run ended
    /// was heard of first: nobody has killed it yet.
    pub(super) fn ended_by_itself(&self) -> bool {
        let untouched = match self.run {
            Run::Running => self.hooks.grace_over().is_none(),
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => false,
        };
        untouched && self.failed_probe.is_none()
    }

    /// It is one of those that begin again when all do: who looks into the pod goes on with that.
    fn begins_again(&self) -> bool {
        match self.role {
            Role::Init | Role::Sidecar | Role::Regular => true,
            Role::Ephemeral => false,
        }
    }

    /// Its newest run ended, and counts for nothing since all were to begin again.
    pub(super) fn was_to_begin_again(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| &*ended.reason == RESTARTING)
    }

    /// What rules of its own say of how its newest run ended; none say anything of a kill by a probe.
    pub(super) fn rule(&self) -> Option<RestartAction> {
        let ended = self.ended.as_ref().filter(|_| self.failed_probe.is_none())?;
        self.own.as_ref()?.action(ended.code)
    }
}

impl PodState {
    /// All containers of the pod begin again: what a condition tells.
    pub(crate) fn restarts_all(&self) -> bool {
        self.restart_all.is_some()
    }

    /// A run has ended: whether all are to begin again for it.
    pub(super) fn judge_exit(&mut self, now: Instant, attempt: Attempt) {
        if !self.is_active() || self.restart_all.is_some() {
            return;
        }
        let Some(container) = self.container_of(attempt) else { return };
        if container.superseded || container.rule() != Some(RestartAction::RestartAllContainers) {
            return;
        }
        self.restart_all = Some(now + HEARD);
        for container in &mut self.containers {
            container.superseded |= container.begins_again() && (container.ran_here || container.is_alive());
        }
        self.touch();
    }

    /// Makes all end that are to begin again, one after another, and then lets them.
    pub(super) fn plan_restart_all(&mut self, now: Instant, draft: &mut Draft, events: &mut Events) {
        if self.restart_all.is_none_or(|at| now < at) || !matches!(self.sandbox, Sandbox::Ready) {
            return;
        }
        for container in &mut self.containers {
            if let (true, Run::Recording) = (container.begins_again(), &container.run) {
                container.run = Run::Waiting;
            }
        }
        // A kubelet ends what it is about first: a start, and its hook. An ephemeral container whose run is
        // being recorded starts after the restart.
        let starts = |one: &ContainerState| one.is_starting() && !matches!(one.run, Run::Recording);
        if self.containers.iter().any(starts) {
            return;
        }
        let mut all = self.pod.spec.container_indexes().zip(&mut self.containers);
        if let Some((index, container)) = all.find(|(_, one)| one.begins_again() && one.is_alive()) {
            // One that ends for a reason of its own goes on with that.
            if let (Run::Running, None) = (&container.run, container.hooks.grace_over()) {
                if !std::mem::replace(&mut container.stop_told, true) {
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
            container.ran_here = false;
            if let Run::Exited = container.run {
                container.ended = Some(Box::new(Ended::of_all(container.number)));
                container.waiting =
                    Some(WaitingReason { reason: RESTARTING.into(), message: REMOVED.into() });
            }
        }
        self.touch();
    }

    /// When all are to begin again.
    pub(super) fn wake_restart_all(&self, wake: &mut Wake) {
        if let Some(at) = self.restart_all {
            wake.note(at);
        }
    }

    /// An agent of before was about it.
    pub(super) fn resume_restart_all(&mut self, now: Instant) {
        let alive = |container: &ContainerState| container.superseded && container.is_alive();
        if self.is_active() && self.containers.iter().any(alive) {
            self.restart_all = Some(now);
        }
        // It may have died before it heard of the exit.
        for (index, number) in self.ended_last() {
            self.judge_exit(now, Attempt { container: index, number });
        }
    }

    /// Containers whose newest run has ended in this sandbox.
    fn ended_last(&self) -> Vec<(ContainerIndex, u32)> {
        let ended = |container: &ContainerState| matches!(container.run, Run::Exited) && container.ran_here;
        self.containers().filter(|(_, one)| ended(one)).map(|(index, one)| (index, one.number)).collect()
    }

    /// The sandbox is gone, and with it what was to begin again.
    pub(super) fn forget_restart_all(&mut self) {
        self.restart_all = None;
        for container in &mut self.containers {
            container.superseded = false;
        }
    }
}
