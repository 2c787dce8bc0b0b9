//! The changes of a container from the decision to end its run until it has ended.

use std::rc::Rc;

use crate::facts::{Ended, Exit, RunIdentity, StartFailure};
use crate::pod::backoff::CrashBackoff;
use crate::pod::hooks::Hooks;
use crate::spec::Role;
use crate::time::{Instant, Moment};

use super::{ContainerState, Run};

impl ContainerState {
    /// Marks the current run to be ended, because the spec changed or a user restarts the container. Earlier failures do not delay the next run.
    pub(in crate::pod) fn redefine(&mut self) {
        self.restarts.redefined = true;
        self.restarts.backoff = CrashBackoff::default();
    }

    /// Restarts the container for a user: its run is to end, and another one follows whatever the exit code. One that
    /// waits for its restart starts at once.
    pub(in crate::pod) fn restart(&mut self) {
        if matches!(self.run(), Run::Running) {
            self.redefine();
        }
        self.restarts.backoff = CrashBackoff::default();
    }

    /// Records that a shutdown interrupts the container: its current run has not finished, whatever the exit code is.
    pub(in crate::pod) fn interrupt(&mut self) {
        if self.role == Role::Regular && self.is_alive() {
            self.restarts.redefined = true;
        }
    }

    /// Records that the grace period of the pod ends at `grace_over`, if it does not end earlier. A start that
    /// is only being recorded does not take place, and a run that was asked to end is killed at `deadline` at
    /// the latest.
    pub(in crate::pod) fn shorten_grace(&mut self, grace_over: Instant, deadline: Instant) {
        self.hooks.stop(grace_over);
        self.current.shorten_grace(deadline);
    }

    /// Records that the run has ended.
    pub(crate) fn has_ended(&mut self, ended: Ended) {
        self.current.has_ended();
        self.restarts.ran_in_sandbox = true;
        self.probes.end_run();
        self.history.has_ended(ended);
    }

    /// Records that the process of the next run could not be executed, which counts as a run.
    pub(in crate::pod) fn could_not_execute(
        &mut self,
        now: Instant,
        failure: &StartFailure,
        created: Option<Box<RunIdentity>>,
    ) {
        // The run that was to follow has taken place.
        self.restarts.redefined = false;
        let id = created.as_ref().map(|created| created.id.clone());
        self.has_ended(Ended::of_failed_start(now, self.number(), failure, id));
        if let Some(created) = created {
            self.history.other = Some(created);
        }
    }

    /// The result of the current run, from its `Exit`.
    pub(in crate::pod) fn ended_as(&self, exit: &Exit) -> Ended {
        Ended::of(exit, self.number(), self.run_id())
    }

    /// The result of the current run, whose end was not observed.
    pub(super) fn unobserved_end(&self, now: Instant) -> Ended {
        let started_at = match (self.is_running(), self.started()) {
            (true, Some(started)) => started.at,
            // Whether the run started at all is unknown.
            (true, None) | (false, _) => now,
        };
        Ended {
            started_at: Some(Moment::ThisBoot(started_at)),
            finished_at: Some(Moment::ThisBoot(now)),
            ..Ended::unobserved(self.number(), self.run_id())
        }
    }

    fn run_id(&self) -> Option<Rc<str>> {
        self.started().filter(|_| self.is_running()).map(|started| started.id.clone())
    }

    /// Records that the end of the pod is decided: the container waits no longer. A container that should have started
    /// and has no exit gets an unknown one.
    pub(in crate::pod) fn pod_ended(&mut self, should_have_started: bool) {
        self.history.waiting = None;
        if should_have_started {
            self.history.add_unknown_end();
        }
    }

    /// Records that the sandbox is lost, and every process with it.
    pub(in crate::pod) fn sandbox_lost(&mut self, now: Instant) {
        if self.is_alive() {
            let ended = self.unobserved_end(now);
            self.has_ended(ended);
        } else {
            self.current.cancel_recording();
        }
        // A start in another sandbox is decided again.
        self.current.forget_decision();
        self.forget_sandbox();
    }

    /// Records that no run of the container is in the present sandbox.
    pub(in crate::pod) fn forget_sandbox(&mut self) {
        self.restarts.ran_in_sandbox = false;
        self.hooks = Hooks::default();
    }

    /// Records that all containers restart: the newest run in this sandbox does not count.
    pub(in crate::pod) fn supersede(&mut self) {
        if self.restarts_with_all() && (self.ran_in_sandbox() || self.is_alive()) {
            self.restarts.superseded = true;
        }
    }

    /// Records that the restart of all containers was cancelled.
    pub(in crate::pod) fn clear_superseded(&mut self) {
        self.restarts.superseded = false;
    }

    /// Discards the run that does not count because all containers restart.
    pub(in crate::pod) fn discard_superseded_run(&mut self) {
        self.restarts.ran_in_sandbox = false;
        if let Run::Exited = self.run() {
            self.history.supersede(self.number());
        }
    }
}
