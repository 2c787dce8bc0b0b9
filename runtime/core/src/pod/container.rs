//! One container of a pod, over all its runs.
//!
//! ```text
//!              StartFailed ◄───┐ there is no process: the number is used again
//!                   │ retry    │
//!  Waiting ──► (Recording) ──► Starting ──► Running ──► Terminating ──► Killing
//!                              ▲  │            │             │             │
//!                 restart when │  ▼            ▼             ▼             ▼
//!                 back-off lets└─────────────── Exited ◄────────────────────
//! ```
//!
//! `Recording` occurs only for a container that runs once, with `restartPolicy: Never` or as an ephemeral
//! container: the record of the start is durable before the run starts. A start that failed at its last step
//! counts as a run that ended with 128.

use std::borrow::Cow;
use std::rc::Rc;

use crate::facts::{Attempt, Exit, Health, MissingImage, StartFailure, StartFailureReason, StartedContainer};
use crate::spec::{ContainerIndex, OwnRestart, ProbeKind, Role};
use crate::time::{Instant, Moment};

use super::SYNC_RETRY;
use super::backoff::{CrashBackoff, Pulls, Retry};
use super::hooks::Hooks;
use super::new_image::NewImage;
use super::probes::Probes;

/// Reason of a container that ended, or waits, because all containers restart.
pub(super) const RESTARTING_REASON: &str = "RestartingAllContainers";

/// The state of the present or next run of a container.
#[derive(Clone, Debug)]
pub(crate) enum Run {
    /// No run was started in this boot.
    Waiting,
    /// The record of the start is being written.
    Recording,
    /// `Start` is in flight.
    Starting {
        /// Whether images or objects were added meanwhile: if one was missing, a new try is worthwhile.
        inputs_changed: bool,
    },
    /// The start failed before there was a process.
    StartFailed {
        /// When the start is retried.
        retry: StartRetry,
    },
    /// The container's process was executed.
    Running,
    /// The run was asked to end.
    Terminating {
        /// When the run is killed.
        deadline: Instant,
        /// When to send the signal again, if it could not be sent.
        again: Option<Retry>,
    },
    /// The run was killed and has not ended yet.
    Killing {
        /// When to kill the run again if it has not ended.
        again: Retry,
    },
    /// The run has ended, and its cgroup is empty.
    Exited,
}

/// When a failed start is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartRetry {
    /// At this time.
    At(Instant),
    /// When images are added. There is no registry to ask again, so a timer would find nothing new.
    WhenImagesChange {
        /// The time from which the status says `ImagePullBackOff`; `None` once it does, or if it never will.
        back_off_at: Option<Instant>,
        /// When to ask the registry again, if there is one.
        pull_at: Option<Instant>,
    },
    /// When the image was pulled.
    Pull {
        /// Whether `PullImage` is in flight.
        is_in_flight: bool,
    },
    /// When an object changes that the pod refers to.
    WhenObjectsChange,
}

/// `state.waiting`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitingReason {
    pub(crate) reason: Cow<'static, str>,
    pub(crate) message: Box<str>,
}

/// A run that has ended: `state.terminated`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) number: u32,
    pub(crate) code: i32,
    pub(crate) reason: Rc<str>,
    pub(crate) message: Box<str>,
    pub(crate) started_at: Option<Moment>,
    pub(crate) finished_at: Option<Moment>,
    /// `containerID` without its scheme.
    pub(crate) id: Option<Rc<str>>,
}

/// The image and container ID of the newest run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: Rc<str>,
    pub(crate) image: Rc<str>,
    pub(crate) image_id: Rc<str>,
}

/// `state` of a container status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    /// The container has not run, and nothing prevents its first run.
    NotYet,
    Waiting {
        reason: &'a str,
        message: &'a str,
    },
    Running {
        at: Instant,
    },
    Terminated(&'a Ended),
}

/// Reason of a run that the kernel killed because memory was short.
const OOM_KILLED: &str = "OOMKilled";
/// Reason of a run whose process could not be executed, and that therefore has no ID.
pub(crate) const START_ERROR: &str = "StartError";
/// Message of a run whose end was not observed.
pub(crate) const LOST_WHILE_RUNNING: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
/// Message of a run whose end was not observed, in a finished pod.
pub(crate) const LOST_WHEN_TERMINATED: &str =
    "The container could not be located when the pod was terminated";
/// Reason of a run whose end was not observed.
pub(crate) const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// The state of one container of a pod.
#[derive(Clone, Debug)]
pub(crate) struct ContainerState {
    pub(crate) role: Role,
    pub(crate) run: Run,
    /// The container's own restart policy and rules.
    pub(crate) own: Option<Rc<OwnRestart>>,
    /// The number of the run that `run` describes.
    pub(crate) number: u32,
    /// The newest run that started in this boot.
    pub(crate) started: Option<Box<StartedContainer>>,
    /// The image and container ID of the newest run of an earlier boot.
    pub(crate) recorded: Option<Box<Identity>>,
    /// The newest run that has ended.
    pub(crate) ended: Option<Box<Ended>>,
    /// The run that ended before `ended`.
    pub(crate) previous: Option<Box<Ended>>,
    /// The reason why the container waits, if `state.waiting` names it.
    pub(crate) waiting: Option<WaitingReason>,
    /// The image of a volume for which the latest start looked in vain.
    pub(crate) awaited_volume: Option<Box<str>>,
    pub(crate) backoff: CrashBackoff,
    pub(crate) probes: Probes,
    pub(crate) hooks: Hooks,
    /// The probe that has failed: the run is to be killed, and another run follows whatever the exit code.
    pub(crate) failed_probe: Option<ProbeKind>,
    /// Runs with a lower number than this one have been discarded.
    pub(crate) discarded: u32,
    /// Whether a run of the container has started in the present sandbox.
    pub(crate) ran_in_sandbox: bool,
    /// Whether all containers restart, so that the newest run is to end and does not count.
    pub(crate) superseded: bool,
    /// Whether the image in the spec changed: the present run is to end, and another run follows whatever the
    /// exit code.
    pub(crate) redefined: bool,
    /// The state of the search for the image in the spec, while the run has another image.
    pub(crate) new_image: NewImage,
    /// The image in the spec, if it was missing at the latest check.
    pub(crate) missing_image: Option<Box<MissingImage>>,
    /// The pulls of the images for the next run.
    pub(crate) pulls: Pulls,
    /// Whether the `Killing` event of the present run was emitted; the run may still wait for its turn to
    /// end.
    pub(crate) killing_event_emitted: bool,
    /// When the one run of an ephemeral container was decided.
    pub(crate) decided: Option<Moment>,
}

impl ContainerState {
    /// A container that never ran.
    pub(crate) fn new(role: Role, own: Option<Rc<OwnRestart>>) -> Self {
        ContainerState {
            role,
            own,
            run: Run::Waiting,
            number: 0,
            started: None,
            recorded: None,
            ended: None,
            previous: None,
            waiting: None,
            awaited_volume: None,
            backoff: CrashBackoff::default(),
            probes: Probes::default(),
            hooks: Hooks::default(),
            failed_probe: None,
            discarded: 0,
            ran_in_sandbox: false,
            superseded: false,
            redefined: false,
            new_image: NewImage::Unknown,
            missing_image: None,
            pulls: Pulls::default(),
            killing_event_emitted: false,
            decided: None,
        }
    }

    /// Whether a process of the container may exist.
    pub(crate) fn is_alive(&self) -> bool {
        match self.run {
            Run::Starting { .. } | Run::Running | Run::Terminating { .. } | Run::Killing { .. } => true,
            Run::Waiting | Run::Recording | Run::StartFailed { .. } | Run::Exited => false,
        }
    }

    /// Whether the container's process was executed and its end was not observed.
    pub(crate) fn is_running(&self) -> bool {
        match self.run {
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => true,
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } | Run::Exited => {
                false
            }
        }
    }

    /// Whether a start is under way, for which the starts of later containers wait.
    pub(crate) fn is_starting(&self) -> bool {
        match self.run {
            Run::Recording | Run::Starting { .. } => true,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => {
                self.hooks.is_starting()
            }
            Run::Waiting | Run::StartFailed { .. } => false,
        }
    }

    /// Whether the container is probed: it runs, its postStart hook has finished, and it is not being killed.
    pub(super) fn is_probed(&self) -> bool {
        match self.run {
            Run::Running | Run::Terminating { .. } => !self.hooks.is_starting(),
            Run::Waiting | Run::Recording | Run::Starting { .. } => false,
            Run::StartFailed { .. } | Run::Killing { .. } | Run::Exited => false,
        }
    }

    /// Whether the container's process was executed, and the container counts as started.
    fn has_begun(&self) -> bool {
        self.is_running() && !self.hooks.is_starting()
    }

    /// Whether this is an init container whose newest run has succeeded.
    pub(crate) fn has_initialised(&self) -> bool {
        match self.run {
            Run::Exited => self.role == Role::Init && !self.init_failed(),
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
        }
    }

    /// Whether the newest run ended and does not count, because all containers were to restart.
    pub(super) fn was_to_begin_again(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| &*ended.reason == RESTARTING_REASON)
    }

    /// Whether an init container has failed. It has if memory was short, whatever its exit code.
    pub(super) fn init_failed(&self) -> bool {
        self.ended.as_ref().is_none_or(|ended| ended.code != 0 || &*ended.reason == OOM_KILLED)
    }

    /// The attempt that `run` describes.
    pub(crate) fn attempt(&self, container: ContainerIndex) -> Attempt {
        Attempt { container, number: self.number }
    }

    /// The number of runs that have started, as the record counts them.
    pub(crate) fn started_count(&self) -> u32 {
        match self.run {
            Run::Waiting | Run::StartFailed { .. } => self.number,
            Run::Recording
            | Run::Starting { .. }
            | Run::Running
            | Run::Terminating { .. }
            | Run::Killing { .. }
            | Run::Exited => self.number + 1,
        }
    }

    /// `restartCount`: the number of the newest run, or of the next one if all containers restart.
    pub(crate) fn restart_count(&self) -> u32 {
        let of_ended =
            || self.ended.as_ref().map_or(0, |ended| ended.number + u32::from(self.was_to_begin_again()));
        match self.run {
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => of_ended(),
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } if !self.has_begun() => of_ended(),
            // This also holds after the sandbox was lost in which all containers were to restart.
            Run::Exited if self.superseded && !self.ran_in_sandbox || self.was_to_begin_again() => {
                self.number + 1
            }
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => self.number,
        }
    }

    /// `started` and `ready`.
    pub(crate) fn health(&self) -> Health {
        let health = if self.has_begun() { self.probes.health() } else { Health::default() };
        let health = Health {
            pre_stopped: self.is_running() && self.hooks.pre_stopped(),
            superseded: self.superseded,
            redefined: self.redefined,
            ..health
        };
        match (self.role, self.shown().0) {
            (Role::Regular | Role::Sidecar, _) => health,
            (Role::Ephemeral, _) => Health { started: false, ready: false, ..health },
            (Role::Init, Shown::Terminated(ended)) => {
                Health { started: false, ready: ended.code == 0, ..health }
            }
            (Role::Init, Shown::NotYet | Shown::Waiting { .. } | Shown::Running { .. }) => {
                Health { ready: false, ..health }
            }
        }
    }

    /// `state` and `lastState.terminated`.
    pub(crate) fn shown(&self) -> (Shown<'_>, Option<&Ended>) {
        if let (true, Some(started)) = (self.has_begun(), &self.started) {
            return (Shown::Running { at: started.at }, self.ended.as_deref());
        }
        match (&self.waiting, &self.ended) {
            (Some(waiting), ended) => {
                (Shown::Waiting { reason: &waiting.reason, message: &waiting.message }, ended.as_deref())
            }
            (None, Some(ended)) => (Shown::Terminated(ended), self.previous.as_deref()),
            (None, None) => (Shown::NotYet, None),
        }
    }

    /// The image and container ID of the newest run.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match (&self.started, &self.recorded) {
            (Some(started), _) => Some(Identity {
                id: started.id.clone(),
                image: started.image.clone(),
                image_id: started.image_id.clone(),
            }),
            (None, Some(recorded)) => Some((**recorded).clone()),
            (None, None) => None,
        }
    }

    /// Records that an image could not be pulled, and returns when the start is retried.
    pub(crate) fn pull_failed(&mut self, now: Instant) -> StartRetry {
        let (back_off_at, pull_at) = (now + SYNC_RETRY, self.pulls.failed(now));
        StartRetry::WhenImagesChange {
            back_off_at: (back_off_at < pull_at).then_some(back_off_at),
            pull_at: Some(pull_at),
        }
    }

    /// Records that images were added: a start that waits for one is retried.
    pub(crate) fn images_changed(&mut self, now: Instant) {
        self.new_image.images_changed();
        match &mut self.run {
            Run::StartFailed { retry } => match retry {
                StartRetry::WhenImagesChange { .. } | StartRetry::Pull { is_in_flight: false } => {
                    *retry = StartRetry::At(now);
                }
                // The end of the pull is reported.
                StartRetry::Pull { is_in_flight: true } => {}
                StartRetry::At(_) | StartRetry::WhenObjectsChange => {}
            },
            Run::Starting { inputs_changed } => *inputs_changed = true,
            Run::Waiting | Run::Recording | Run::Running | Run::Terminating { .. } => {}
            Run::Killing { .. } | Run::Exited => {}
        }
    }

    /// Records that an object that the pod refers to has changed: a start that waits for one is retried.
    pub(crate) fn objects_changed(&mut self, now: Instant) {
        match &mut self.run {
            Run::StartFailed { retry } => match retry {
                StartRetry::WhenObjectsChange => *retry = StartRetry::At(now),
                StartRetry::At(_) | StartRetry::WhenImagesChange { .. } | StartRetry::Pull { .. } => {}
            },
            Run::Starting { inputs_changed } => *inputs_changed = true,
            Run::Waiting | Run::Recording | Run::Running | Run::Terminating { .. } => {}
            Run::Killing { .. } | Run::Exited => {}
        }
    }

    /// Records that the grace period of the pod ends at `grace_over`, if it does not end earlier. A start that
    /// is only being recorded does not take place, and a run that was asked to end is killed at `deadline` at
    /// the latest.
    pub(crate) fn shorten_grace(&mut self, grace_over: Instant, deadline: Instant) {
        self.hooks.stop(grace_over);
        match &mut self.run {
            // A sidecar that was asked late may have a longer deadline than the others.
            Run::Terminating { deadline: own, .. } => *own = deadline.min(*own),
            Run::Recording => self.run = Run::Waiting,
            Run::Waiting | Run::Starting { .. } | Run::StartFailed { .. } => {}
            Run::Running | Run::Killing { .. } | Run::Exited => {}
        }
    }

    /// Records that a signal or kill could not be delivered. Returns whether one was to be.
    pub(crate) fn stop_failed(&mut self, now: Instant) -> bool {
        match &mut self.run {
            Run::Terminating { again, .. } => *again = Some(Retry::first(now)),
            Run::Killing { .. } => {}
            Run::Waiting | Run::Recording | Run::Starting { .. } => return false,
            Run::StartFailed { .. } | Run::Running | Run::Exited => return false,
        }
        true
    }

    /// Records that the sandbox is lost, and every process with it.
    pub(crate) fn sandbox_lost(&mut self, now: Instant) {
        if self.is_alive() {
            let ended = self.unobserved_end(now);
            self.has_ended(ended);
        } else if let Run::Recording = self.run {
            self.run = Run::Waiting;
        }
        if self.started_count() == 0 {
            // A start in another sandbox is decided again.
            self.decided = None;
        }
        self.ran_in_sandbox = false;
        self.hooks = Hooks::default();
    }

    /// Begins the next run, with a new number if the number before was used.
    pub(crate) fn begin(&mut self, run: Run) {
        match self.run {
            Run::Exited => self.number += 1,
            Run::Waiting
            | Run::Recording
            | Run::Starting { .. }
            | Run::StartFailed { .. }
            | Run::Running
            | Run::Terminating { .. }
            | Run::Killing { .. } => {}
        }
        self.run = run;
        self.failed_probe = None;
        self.hooks = Hooks::default();
        self.superseded = false;
        self.killing_event_emitted = false;
    }

    /// Records that the container's process was executed. `waiting` stays until the container counts as
    /// started.
    pub(crate) fn has_started(&mut self, started: Box<StartedContainer>, probes: Probes, hooks: Hooks) {
        self.run = Run::Running;
        self.ran_in_sandbox = true;
        if !hooks.is_starting() {
            self.waiting = None;
        }
        self.probes = probes;
        self.hooks = hooks;
        self.started = Some(started);
    }

    /// Records that the run has ended.
    pub(crate) fn has_ended(&mut self, ended: Ended) {
        self.run = Run::Exited;
        self.ran_in_sandbox = true;
        self.waiting = None;
        self.probes.over();
        self.previous = self.ended.take();
        self.ended = Some(Box::new(ended));
    }

    /// The result of the present run, from its `Exit`.
    pub(crate) fn ended_as(&self, exit: &Exit) -> Ended {
        let reason = match (exit.unknown, exit.oom_killed, exit.code) {
            (true, ..) => STATUS_UNKNOWN,
            (false, true, _) => OOM_KILLED,
            (false, false, 0) => "Completed",
            (false, false, _) => "Error",
        };
        Ended {
            number: self.number,
            code: exit.code,
            reason: reason.into(),
            message: exit.message.clone(),
            started_at: Some(exit.started_at),
            finished_at: Some(exit.finished_at),
            id: self.run_id(),
        }
    }

    /// The result of the present run, whose end was not observed.
    pub(crate) fn unobserved_end(&self, now: Instant) -> Ended {
        let started_at = match (self.is_running(), &self.started) {
            (true, Some(started)) => started.at,
            // Whether the run started at all is unknown.
            (true, None) | (false, _) => now,
        };
        Ended {
            number: self.number,
            code: 137,
            reason: STATUS_UNKNOWN.into(),
            message: LOST_WHILE_RUNNING.into(),
            started_at: Some(Moment::ThisBoot(started_at)),
            finished_at: Some(Moment::ThisBoot(now)),
            id: self.run_id(),
        }
    }

    /// The result of the present run, whose process could not be executed.
    pub(crate) fn failed_start_end(&self, now: Instant, failure: &StartFailure) -> Ended {
        Ended {
            number: self.number,
            code: 128,
            reason: START_ERROR.into(),
            message: failure.message.clone(),
            started_at: Some(Moment::ThisBoot(now)),
            finished_at: Some(Moment::ThisBoot(now)),
            id: None,
        }
    }

    fn run_id(&self) -> Option<Rc<str>> {
        match self.is_running() {
            true => self.started.as_ref().map(|started| started.id.clone()),
            false => None,
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

/// When the newest run ended, if that was in this boot: an earlier exit delays nothing.
pub(super) fn finished_this_boot(container: &ContainerState) -> Option<Instant> {
    match container.ended.as_ref()?.finished_at? {
        Moment::ThisBoot(at) => Some(at),
        Moment::Earlier(_) => None,
    }
}
