//! The changes of a container from the decision on its start until it counts as started.

use std::borrow::Cow;

use crate::facts::{StartFailure, StartFailureReason, StartedContainer};
use crate::pod::SYNC_RETRY;
use crate::pod::backoff::CrashBackoff;
use crate::pod::hooks::Hooks;
use crate::pod::new_image::NewImage;
use crate::pod::probes::Probes;
use crate::spec::{Container, RestartPolicy, Role};
use crate::time::{Instant, Moment};

use super::{ContainerState, Run, StartRetry, WaitingReason};

impl ContainerState {
    /// Records that images were added: a start that waits for one is retried. The end of a pull is reported.
    pub(in crate::pod) fn images_changed(&mut self, now: Instant) {
        self.images.images_changed();
        self.current.inputs_changed(now, |retry| match retry {
            StartRetry::WhenImagesChange { .. } | StartRetry::Pull { is_in_flight: false } => true,
            StartRetry::Pull { is_in_flight: true } => false,
            StartRetry::At(_) | StartRetry::WhenObjectsChange => false,
        });
    }

    /// Records that an object that the pod refers to has changed: a start that waits for one is retried.
    pub(in crate::pod) fn objects_changed(&mut self, now: Instant) {
        self.current.inputs_changed(now, |retry| match retry {
            StartRetry::WhenObjectsChange => true,
            StartRetry::At(_) | StartRetry::WhenImagesChange { .. } | StartRetry::Pull { .. } => false,
        });
    }

    /// Records that the spec names another image: earlier failures and back-offs no longer apply.
    pub(in crate::pod) fn has_another_image(&mut self, now: Instant) {
        self.images.redefine();
        self.restarts.backoff = CrashBackoff::default();
        self.current.inputs_changed(now, |_| true);
    }

    /// Decides the start of a container that runs once: it has to be recorded first.
    pub(in crate::pod) fn begin_recording(&mut self, now: Instant) {
        self.begin();
        self.current.record((self.role == Role::Ephemeral).then_some(Moment::ThisBoot(now)));
    }

    /// Starts the next run.
    pub(in crate::pod) fn begin_start(&mut self, now: Instant) {
        // An exit of an earlier boot delays nothing, but counts for the back-off.
        if self.ended().is_some() && !self.is_superseded() {
            let finished = self.finished_this_boot().unwrap_or(now);
            self.restarts.backoff.advance(now, finished);
        }
        self.begin();
        self.current.start();
    }

    fn begin(&mut self) {
        self.restarts.begin();
        self.hooks = Hooks::default();
    }

    /// Records that a start failed, why the container waits, and when the start is retried.
    pub(in crate::pod) fn start_failed(
        &mut self,
        retry: StartRetry,
        failure: &StartFailure,
        waiting: WaitingReason,
    ) {
        self.retry_start(retry);
        self.images.await_volume(&failure.image);
        self.wait(waiting.reason, waiting.message);
    }

    /// Records that the start waits for a pull. The status stays as it is until the pull has failed.
    pub(in crate::pod) fn await_pull(&mut self, failure: &StartFailure) {
        self.retry_start(StartRetry::Pull { is_in_flight: false });
        self.images.await_volume(&failure.image);
    }

    /// Records when a failed start is retried.
    pub(in crate::pod) fn retry_start(&mut self, retry: StartRetry) {
        self.current.start_failed(retry);
    }

    /// Records that `PullImage` is in flight.
    pub(in crate::pod) fn begin_pull(&mut self) {
        match self.run() {
            Run::StartFailed { .. } => self.retry_start(StartRetry::Pull { is_in_flight: true }),
            _ => self.images.begin_pull(),
        }
    }

    /// Whether a pull is in flight.
    pub(in crate::pod) fn is_pulling(&self) -> bool {
        self.current.is_pulling() || *self.images.new_image() == NewImage::Pulling
    }

    /// Records that an image could not be pulled, and returns when the start is retried.
    pub(in crate::pod) fn pull_failed(&mut self, now: Instant) -> StartRetry {
        let (back_off_at, pull_at) = (now + SYNC_RETRY, self.images.pull_failed(now));
        StartRetry::WhenImagesChange {
            back_off_at: (back_off_at < pull_at).then_some(back_off_at),
            pull_at: Some(pull_at),
        }
    }

    /// Records why the container waits.
    pub(in crate::pod) fn wait(&mut self, reason: impl Into<Cow<'static, str>>, message: Box<str>) {
        self.history.wait(reason, message);
    }

    /// Records why the container waits, if it is in an active pod with this restart policy and restarts.
    pub(in crate::pod) fn wait_to_restart(
        &mut self,
        policy: Option<RestartPolicy>,
        reason: &'static str,
        message: Box<str>,
    ) {
        if policy.is_some_and(|policy| self.restarts(policy)) {
            self.wait(reason, message);
        }
    }

    /// Records that the container's process was executed. `waiting` stays until the container counts as
    /// started.
    pub(super) fn has_started(&mut self, started: Box<StartedContainer>, probes: Probes, hooks: Hooks) {
        self.current.has_started();
        self.restarts.ran_in_sandbox = true;
        if !hooks.is_starting() {
            self.history.waiting = None;
        }
        self.probes = probes;
        self.hooks = hooks;
        self.history.has_started(started);
    }

    /// Records that a start has succeeded; `stop_by` is the end of the grace period of a pod that stops. Returns
    /// whether the image was pulled for this run.
    pub(in crate::pod) fn run_began(
        &mut self,
        spec: &Container,
        started: Box<StartedContainer>,
        stop_by: Option<Instant>,
        is_interrupted: bool,
    ) -> bool {
        let mut probes = self.probes.renewed(spec, started.at);
        let mut hooks = Hooks::of(spec);
        if let Some(grace_end) = stop_by {
            // A kubelet keeps probing sidecars.
            if self.role == Role::Regular {
                probes.stop();
            }
            hooks.stop(grace_end);
        }
        self.has_started(started, probes, hooks);
        // This is the run that was to follow, unless the pod was interrupted.
        self.restarts.redefined = is_interrupted && self.role == Role::Regular;
        let is_outdated = self.is_outdated(&spec.image);
        self.images.run_began(is_outdated)
    }

    /// Records that the container counts as started, because its postStart hook has finished.
    pub(in crate::pod) fn mark_started(&mut self, now: Instant) {
        if self.is_running() {
            self.history.waiting = None;
            self.probes.not_before(now);
        }
    }
}

/// The reason of a failed start in `state.waiting.reason`.
pub(crate) fn reason_name(reason: StartFailureReason) -> &'static str {
    match reason {
        StartFailureReason::InvalidImageName => "InvalidImageName",
        StartFailureReason::ErrImageNeverPull => "ErrImageNeverPull",
        StartFailureReason::ErrImagePull | StartFailureReason::ImageToPull => "ErrImagePull",
        StartFailureReason::ImageInspectError => "ImageInspectError",
        StartFailureReason::CreateContainerConfigError | StartFailureReason::ObjectNotFound => {
            "CreateContainerConfigError"
        }
        StartFailureReason::CreateContainerError => "CreateContainerError",
        StartFailureReason::RunContainerError => "RunContainerError",
    }
}
