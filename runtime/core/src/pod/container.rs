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
//! `Recording` only of what runs once, with `restartPolicy: Never` and of ephemeral containers:
//! that a run begins is durable before it does. A start that failed at its last step counts as a run that
//! ended with 128.

use std::borrow::Cow;
use std::rc::Rc;

use crate::facts::{Attempt, Exit, Health, MissingImage, StartFailure, StartFailureReason, StartedContainer};
use crate::spec::{ContainerIndex, OwnRestart, ProbeKind, RestartPolicy, Role};
use crate::time::{Instant, Moment};

use super::backoff::{CrashBackoff, Retry};
use super::hook::Hooks;
use super::probe::Probes;
use super::update::NewImage;

/// Where the present or next run of a container is.
#[derive(Clone, Debug)]
pub(crate) enum Run {
    /// Nothing was started in this boot.
    Waiting,
    /// The record that a run begins is being written.
    Recording,
    /// `Start` is in flight.
    Starting {
        /// Images were added meanwhile: if one was missing, it is worth asking again.
        images_changed: bool,
    },
    /// The start failed before there was a process.
    StartFailed {
        /// When it is tried again.
        retry: StartRetry,
    },
    /// Its process was executed.
    Running,
    /// It was asked to end.
    Terminating {
        /// When it is killed.
        deadline: Instant,
        /// The signal could not be sent; when to send it again.
        again: Option<Retry>,
    },
    /// It was killed and is not gone yet.
    Killing {
        /// When to kill again what does not go.
        again: Retry,
    },
    /// Its cgroup is empty.
    Exited,
}

/// When a failed start is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartRetry {
    /// At this time.
    At(Instant),
    /// When images are added; from this time on the status says `ImagePullBackOff`.
    /// There is no registry to ask again, so no timer would find anything new.
    WhenImagesChange {
        /// `None` once it says so, or where there is nothing to say.
        back_off_at: Option<Instant>,
    },
}

/// `state.waiting`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitingReason {
    pub(crate) reason: Cow<'static, str>,
    pub(crate) message: Box<str>,
}

/// A run that is over: `state.terminated`.
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

/// Which image a container last ran, and as what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: Rc<str>,
    pub(crate) image: Rc<str>,
    pub(crate) image_id: Rc<str>,
}

/// `state` of a container status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    /// There was no run, and nothing is in the way of the first.
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

/// Reason of a run that the kernel killed for want of memory.
const OOM_KILLED: &str = "OOMKilled";
/// Reason of a run whose process could not be executed: it has no id.
pub(crate) const START_ERROR: &str = "StartError";
/// Why a run that nobody saw end is over.
pub(crate) const LOST_WHILE_RUNNING: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
/// The same, of a pod that is over.
pub(crate) const LOST_AT_THE_END: &str = "The container could not be located when the pod was terminated";
/// Reason of both.
pub(crate) const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// One container of a pod.
#[derive(Clone, Debug)]
pub(crate) struct ContainerState {
    pub(crate) role: Role,
    pub(crate) run: Run,
    /// Its own policy and rules.
    pub(crate) own: Option<Rc<OwnRestart>>,
    /// Of the run that `run` speaks of.
    pub(crate) number: u32,
    /// The newest run that started in this boot.
    pub(crate) started: Option<Box<StartedContainer>>,
    /// The newest run of before this boot.
    pub(crate) recorded: Option<Box<Identity>>,
    /// The newest run that is over.
    pub(crate) ended: Option<Box<Ended>>,
    /// The one before it.
    pub(crate) previous: Option<Box<Ended>>,
    /// What it waits for, where that has a name.
    pub(crate) waiting: Option<WaitingReason>,
    pub(crate) backoff: CrashBackoff,
    pub(crate) probes: Probes,
    pub(crate) hooks: Hooks,
    /// This probe has failed: the run is to be killed, and restarted whatever it ends with.
    pub(crate) failed_probe: Option<ProbeKind>,
    /// What lower-numbered runs left is removed.
    pub(crate) discarded: u32,
    /// A run of it has begun in the present sandbox.
    pub(crate) ran_here: bool,
    /// All containers begin again: its newest run is to end, and counts for nothing.
    pub(crate) superseded: bool,
    /// Its image is another by now: its run is to end, and another follows whatever it ends with.
    pub(crate) redefined: bool,
    /// How far the search for the image is that the spec names while its run has another.
    pub(crate) new_image: NewImage,
    /// What is known of that image, if it was missing when it was looked for last.
    pub(crate) missing_image: Option<Box<MissingImage>>,
    /// It was told that the present run is stopped; it may yet wait for its turn.
    pub(crate) stop_told: bool,
    /// When the one run of an ephemeral container was decided on.
    pub(crate) decided: Option<Moment>,
}

impl ContainerState {
    /// One that never ran.
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
            backoff: CrashBackoff::default(),
            probes: Probes::default(),
            hooks: Hooks::default(),
            failed_probe: None,
            discarded: 0,
            ran_here: false,
            superseded: false,
            redefined: false,
            new_image: NewImage::Unknown,
            missing_image: None,
            stop_told: false,
            decided: None,
        }
    }

    /// A process of it may exist.
    pub(crate) fn is_alive(&self) -> bool {
        match self.run {
            Run::Starting { .. } | Run::Running | Run::Terminating { .. } | Run::Killing { .. } => true,
            Run::Waiting | Run::Recording | Run::StartFailed { .. } | Run::Exited => false,
        }
    }

    /// Its process was executed and its end was not seen.
    pub(crate) fn is_running(&self) -> bool {
        match self.run {
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => true,
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } | Run::Exited => {
                false
            }
        }
    }

    /// A start is under way: those of later containers wait for it.
    pub(crate) fn is_starting(&self) -> bool {
        match self.run {
            Run::Recording | Run::Starting { .. } => true,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => {
                self.hooks.is_starting()
            }
            Run::Waiting | Run::StartFailed { .. } => false,
        }
    }

    /// Its process was executed, and it counts as started.
    fn has_begun(&self) -> bool {
        self.is_running() && !self.hooks.is_starting()
    }

    /// It is over and stays so.
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

    /// Whether its newest run, which ended, is followed by another.
    pub(crate) fn restarts(&self, policy: RestartPolicy) -> bool {
        if self.superseded || self.redefined {
            return true;
        }
        let rule = self.rule();
        match (self.role, self.own_policy(policy)) {
            (Role::Sidecar, _) | (Role::Regular, RestartPolicy::Always) => true,
            // What it did in an earlier sandbox does not count in this one.
            (Role::Init, _) if !self.ran_here => true,
            (Role::Init, _) if rule.is_some() => self.init_failed(),
            (Role::Init, RestartPolicy::Always | RestartPolicy::OnFailure) => self.init_failed(),
            (Role::Regular, _) if rule.is_some() => true,
            // A pod that restarts gets a new sandbox, and in that all begin that need not succeed first.
            (Role::Regular, RestartPolicy::Never) if self.own.is_some() && !self.ran_here => true,
            (Role::Regular, RestartPolicy::OnFailure) => {
                self.failed_probe.is_some() || self.ended.as_ref().is_none_or(|ended| ended.code != 0)
            }
            (Role::Init | Role::Regular, RestartPolicy::Never) | (Role::Ephemeral, _) => false,
        }
    }

    /// It is an init container that has failed, and the pod with it.
    pub(crate) fn failed_for_good(&self, policy: RestartPolicy) -> bool {
        self.role == Role::Init && self.is_done(policy) && self.init_failed()
    }

    /// It is an init container whose newest run has done its work.
    pub(crate) fn has_initialised(&self) -> bool {
        match self.run {
            Run::Exited => self.role == Role::Init && !self.init_failed(),
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
        }
    }

    /// A run of it is followed by no other, so it must be on flash before it begins.
    pub(crate) fn runs_once(&self, policy: RestartPolicy) -> bool {
        policy == RestartPolicy::Never || self.role == Role::Ephemeral
    }

    /// An init container that was short of memory has failed, whatever it ended with.
    fn init_failed(&self) -> bool {
        self.ended.as_ref().is_none_or(|ended| ended.code != 0 || &*ended.reason == OOM_KILLED)
    }

    /// The run that `run` speaks of.
    pub(crate) fn attempt(&self, container: ContainerIndex) -> Attempt {
        Attempt { container, number: self.number }
    }

    /// Runs that have begun, as the record counts them.
    pub(crate) fn begun(&self) -> u32 {
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

    /// `restartCount`: number of the newest run that there was, or of the next where all begin again.
    pub(crate) fn restart_count(&self) -> u32 {
        let of_ended =
            || self.ended.as_ref().map_or(0, |ended| ended.number + u32::from(self.was_to_begin_again()));
        match self.run {
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => of_ended(),
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } if !self.has_begun() => of_ended(),
            // Also once the sandbox is lost in which all were to begin again.
            Run::Exited if self.superseded && !self.ran_here || self.was_to_begin_again() => self.number + 1,
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

    /// Which image it last ran.
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

    /// The next run begins, with a number of its own if the one before was used.
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
        self.stop_told = false;
    }

    /// Its process was executed. What it waited for is told until it counts as started.
    pub(crate) fn has_started(&mut self, started: Box<StartedContainer>, probes: Probes, hooks: Hooks) {
        self.run = Run::Running;
        self.ran_here = true;
        if !hooks.is_starting() {
            self.waiting = None;
        }
        self.probes = probes;
        self.hooks = hooks;
        self.started = Some(started);
    }

    /// Its run is over.
    pub(crate) fn has_ended(&mut self, ended: Ended) {
        self.run = Run::Exited;
        self.ran_here = true;
        self.waiting = None;
        self.probes.over();
        self.previous = self.ended.take();
        self.ended = Some(Box::new(ended));
    }

    /// The present run, as its `Exit` tells it.
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

    /// The present run, of which nobody saw the end.
    pub(crate) fn ended_unseen(&self, now: Instant) -> Ended {
        let started_at = match (self.is_running(), &self.started) {
            (true, Some(started)) => started.at,
            // Whether it began at all, nobody knows.
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

    /// The present run, of which the process could not be executed.
    pub(crate) fn ended_unstarted(&self, now: Instant, failure: &StartFailure) -> Ended {
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

/// The word for a failed start in `state.waiting.reason`.
pub(crate) fn reason_word(reason: StartFailureReason) -> &'static str {
    match reason {
        StartFailureReason::InvalidImageName => "InvalidImageName",
        StartFailureReason::ErrImageNeverPull => "ErrImageNeverPull",
        StartFailureReason::ErrImagePull => "ErrImagePull",
        StartFailureReason::ImageInspectError => "ImageInspectError",
        StartFailureReason::CreateContainerConfigError => "CreateContainerConfigError",
        StartFailureReason::CreateContainerError => "CreateContainerError",
        StartFailureReason::RunContainerError => "RunContainerError",
    }
}
