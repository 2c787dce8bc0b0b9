//! The restart of all containers in the same sandbox. Which containers restart one by one: `container/restarts.rs`.
//!
//! An exit that matches a `RestartAllContainers` rule makes all containers end, one after another and without
//! a grace period: regular containers first, then sidecars. Their earlier runs no longer count: init
//! containers start again from the first, and no back-off applies. This takes place one second after the
//! exit, when a kubelet would have noticed it, so that a container that ends at once does not occupy the
//! board alone.

use std::time::Duration;

use crate::facts::{Action, Attempt, Draft, Events, PodIndex, Wake};
use crate::spec::ContainerIndex;
use crate::time::Instant;

use super::MIN_WINDOW;
use super::container::{ContainerState, Run};
use super::containers::Containers;

/// The latest time after which a kubelet notices an exit (`genericPlegRelistPeriod`).
const PLEG_INTERVAL: Duration = Duration::from_secs(1);

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
            container.supersede();
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
            if container.restarts_with_all() {
                container.current.cancel_recording();
            }
        }
        // A kubelet first finishes what it is doing: a start, with its hook. An ephemeral container whose run
        // is being recorded starts after the restart.
        let starts = |one: &ContainerState| one.is_starting() && !matches!(one.run(), Run::Recording);
        if containers.iter().any(starts) {
            return false;
        }
        let is_next =
            |(_, one): &(ContainerIndex, &mut ContainerState)| one.restarts_with_all() && one.is_alive();
        if let Some((index, container)) = containers.indexed_mut().find(is_next) {
            // A run that is ending for another reason continues with that.
            if let (Run::Running, None) = (container.run(), container.hooks.grace_over()) {
                if container.current.take_killing_event() {
                    events.note(pod, Some(index), "Killing", "killing".into());
                }
                if draft.push(pod, Action::Terminate(container.attempt(index))) {
                    container.current.terminate(now + MIN_WINDOW);
                    return true;
                }
            }
            return false;
        }
        self.at = None;
        for container in containers.iter_mut().filter(|container| container.is_superseded()) {
            container.discard_superseded_run();
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
        if containers.iter().any(|container| container.is_superseded() && container.is_alive()) {
            self.at = Some(now);
        }
        // The previous agent may have died before the exit was reported to it.
        let ended =
            |container: &ContainerState| matches!(container.run(), Run::Exited) && container.ran_in_sandbox();
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
            container.clear_superseded();
        }
    }
}
