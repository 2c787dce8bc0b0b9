//! Which containers restart after their runs have ended, and how all containers restart in the same sandbox.
//!
//! An exit that matches a `RestartAllContainers` rule makes all containers end, one after another and without
//! a grace period: regular containers first, then sidecars. Their earlier runs no longer count: init
//! containers start again from the first, and no back-off applies. This takes place one second after the
//! exit, when a kubelet would have noticed it, so that a container that ends at once does not occupy the
//! board alone.

use std::time::Duration;

use crate::facts::{Action, Attempt, Draft, Events, PodIndex, Wake};
use crate::spec::{ContainerIndex, RestartAction, RestartPolicy, Role};
use crate::time::Instant;

use super::MIN_WINDOW;
use super::container::{ContainerState, Ended, RESTARTING_REASON, Run, WaitingReason};
use super::containers::Containers;

/// The latest time after which a kubelet notices an exit (`genericPlegRelistPeriod`).
const PLEG_INTERVAL: Duration = Duration::from_secs(1);
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

impl Containers {
    /// Whether every regular container is done for good, or an init container has failed for good.
    pub(super) fn are_done(&self, policy: RestartPolicy) -> bool {
        let mut regular = self.iter().filter(|container| container.role == Role::Regular);
        regular.all(|container| container.is_done(policy))
            || self.iter().any(|container| container.failed_for_good(policy))
    }
}

impl ContainerState {
    /// The restart policy of this container: its own, or the pod's.
    pub(super) fn own_policy(&self, of_pod: RestartPolicy) -> RestartPolicy {
        self.own.as_ref().map_or(of_pod, |own| own.policy)
    }

    /// Whether the newest run has ended and no other follows.
    pub(crate) fn is_done(&self, policy: RestartPolicy) -> bool {
        match self.run {
            Run::Exited => !self.restarts(policy),
            Run::Waiting
            | Run::Recording
            | Run::Starting { .. }
            | Run::StartFailed { .. }
            | Run::Running
            | Run::Terminating { .. }
            | Run::Killing { .. } => false,
        }
    }

    /// Whether the newest run, which has ended, is followed by another.
    pub(crate) fn restarts(&self, policy: RestartPolicy) -> bool {
        if self.superseded || self.redefined {
            return true;
        }
        let rule = self.rule();
        match (self.role, self.own_policy(policy)) {
            (Role::Sidecar, _) | (Role::Regular, RestartPolicy::Always) => true,
            // The result of an init container in an earlier sandbox does not count.
            (Role::Init, _) if !self.ran_in_sandbox => true,
            (Role::Init, _) if rule.is_some() => self.init_failed(),
            (Role::Init, RestartPolicy::Always | RestartPolicy::OnFailure) => self.init_failed(),
            (Role::Regular, _) if rule.is_some() => true,
            // A pod that restarts gets a new sandbox, in which every container starts that need not succeed
            // first.
            (Role::Regular, RestartPolicy::Never) if self.own.is_some() && !self.ran_in_sandbox => true,
            (Role::Regular, RestartPolicy::OnFailure) => {
                self.failed_probe.is_some() || self.ended.as_ref().is_none_or(|ended| ended.code != 0)
            }
            (Role::Init | Role::Regular, RestartPolicy::Never) | (Role::Ephemeral, _) => false,
        }
    }

    /// Whether this is an init container that has failed for good, and the pod with it.
    pub(crate) fn failed_for_good(&self, policy: RestartPolicy) -> bool {
        self.role == Role::Init && self.is_done(policy) && self.init_failed()
    }

    /// Whether the container runs only once, so that the start must be on flash before it takes place.
    pub(crate) fn runs_once(&self, policy: RestartPolicy) -> bool {
        policy == RestartPolicy::Never || self.role == Role::Ephemeral
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

    /// Whether the exit of the newest run is to restart all containers.
    fn asks_to_restart_all(&self) -> bool {
        !self.superseded && self.rule() == Some(RestartAction::RestartAllContainers)
    }

    /// The action of the container's own rules for the exit of its newest run. No rule applies to a kill
    /// after a failed probe.
    fn rule(&self) -> Option<RestartAction> {
        let ended = self.ended.as_ref().filter(|_| self.failed_probe.is_none())?;
        self.own.as_ref()?.action(ended.code)
    }
}

/// The restart of all containers of a pod in the same sandbox.
#[derive(Debug, Default)]
pub(super) struct RestartAll {
    /// The time from which all containers restart, if they do.
    at: Option<Instant>,
}

impl RestartAll {
    /// Whether all containers are restarting, which a condition shows.
    pub(super) fn is_under_way(&self) -> bool {
        self.at.is_some()
    }

    /// Judges the exit of a run of an active pod. Returns whether it restarts all containers.
    pub(super) fn judge_exit(&mut self, now: Instant, attempt: Attempt, containers: &mut Containers) -> bool {
        let begins = !self.is_under_way()
            && containers.of_attempt(attempt).is_some_and(|container| container.asks_to_restart_all());
        if begins {
            self.begin(now, containers);
        }
        begins
    }

    fn begin(&mut self, now: Instant, containers: &mut Containers) {
        self.at = Some(now + PLEG_INTERVAL);
        for container in containers {
            container.superseded |=
                container.begins_again() && (container.ran_in_sandbox || container.is_alive());
        }
    }

    /// Ends all containers that restart together, one after another, and then lets them start. Returns
    /// whether the pod has changed.
    pub(super) fn plan(
        &mut self,
        now: Instant,
        pod: PodIndex,
        containers: &mut Containers,
        draft: &mut Draft,
        events: &mut Events,
    ) -> bool {
        if self.at.is_none_or(|at| now < at) {
            return false;
        }
        for container in containers.iter_mut() {
            if let (true, Run::Recording) = (container.begins_again(), &container.run) {
                container.run = Run::Waiting;
            }
        }
        // A kubelet first finishes what it is doing: a start, with its hook. An ephemeral container whose run
        // is being recorded starts after the restart.
        let starts = |one: &ContainerState| one.is_starting() && !matches!(one.run, Run::Recording);
        if containers.iter().any(starts) {
            return false;
        }
        let is_next = |(_, one): &(ContainerIndex, &mut ContainerState)| one.begins_again() && one.is_alive();
        if let Some((index, container)) = containers.indexed_mut().find(is_next) {
            // A run that is ending for another reason continues with that.
            if let (Run::Running, None) = (&container.run, container.hooks.grace_over()) {
                if !std::mem::replace(&mut container.killing_event_emitted, true) {
                    events.note(pod, Some(index), "Killing", "killing".into());
                }
                if draft.push(pod, Action::Terminate(container.attempt(index))) {
                    container.run = Run::Terminating { deadline: now + MIN_WINDOW, again: None };
                    return true;
                }
            }
            return false;
        }
        self.at = None;
        for container in containers.iter_mut().filter(|container| container.superseded) {
            container.ran_in_sandbox = false;
            if let Run::Exited = container.run {
                container.ended = Some(Box::new(Ended::of_all(container.number)));
                container.waiting =
                    Some(WaitingReason { reason: RESTARTING_REASON.into(), message: REMOVED_MESSAGE.into() });
            }
        }
        true
    }

    /// Records when all containers are to restart.
    pub(super) fn wake(&self, wake: &mut Wake) {
        if let Some(at) = self.at {
            wake.note(at);
        }
    }

    /// Restores whether all containers are restarting, as a previous agent left it.
    pub(super) fn restore(&mut self, is_under_way: bool, now: Instant) {
        self.at = is_under_way.then_some(now);
    }

    /// Resumes the restart in an active pod that was found without a handover, as far as the runs show it.
    pub(super) fn resume(&mut self, now: Instant, containers: &mut Containers) {
        if containers.iter().any(|container| container.superseded && container.is_alive()) {
            self.at = Some(now);
        }
        // The previous agent may have died before the exit was reported to it.
        let ended =
            |container: &ContainerState| matches!(container.run, Run::Exited) && container.ran_in_sandbox;
        if !self.is_under_way() && containers.iter().any(|one| ended(one) && one.asks_to_restart_all()) {
            self.begin(now, containers);
        }
    }

    /// Cancels the restart, because the pod is being stopped.
    pub(super) fn cancel(&mut self) {
        self.at = None;
    }

    /// Cancels the restart, because the sandbox in which it was to take place is gone.
    pub(super) fn forget(&mut self, containers: &mut Containers) {
        self.cancel();
        for container in containers {
            container.superseded = false;
        }
    }
}
