//! The newest runs of a container that started and ended, and why it waits: `state` and `lastState` of its status.

use std::borrow::Cow;
use std::rc::Rc;

use crate::facts::{Ended, Exit, RecordedExit, RunIdentity, StartFailure, StartedContainer};
use crate::time::{Instant, Moment};

/// Reason of a container that ended, or waits, because all containers restart.
const RESTARTING_REASON: &str = "RestartingAllContainers";
/// Message of a container that ended, or waits, because all containers restart.
const REMOVED_MESSAGE: &str = "The container is removed because RestartAllContainers in place";
/// Reason of a run that the kernel killed because memory was short.
const OOM_KILLED: &str = "OOMKilled";
/// Reason of a run whose process could not be executed.
const START_ERROR: &str = "StartError";
/// Message of a run whose end was not observed.
const LOST_WHILE_RUNNING: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
/// Message of a run whose end was not observed, in a finished pod.
const LOST_WHEN_TERMINATED: &str = "The container could not be located when the pod was terminated";
/// Reason of a run whose end was not observed.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// `state.waiting`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitingReason {
    pub(crate) reason: Cow<'static, str>,
    pub(crate) message: Box<str>,
}

impl Ended {
    /// The result of a run, from its `Exit`.
    pub(super) fn of(exit: &Exit, number: u32, id: Option<Rc<str>>) -> Ended {
        let reason = match (exit.unknown, exit.oom_killed, exit.code) {
            (true, ..) => STATUS_UNKNOWN,
            (false, true, _) => OOM_KILLED,
            (false, false, 0) => "Completed",
            (false, false, _) => "Error",
        };
        Ended {
            number,
            code: exit.code,
            reason: reason.into(),
            message: exit.message.clone(),
            started_at: Some(exit.started_at),
            finished_at: Some(exit.finished_at),
            id,
        }
    }

    /// The result of a run whose process could not be executed.
    pub(super) fn of_failed_start(
        now: Instant,
        number: u32,
        failure: &StartFailure,
        id: Option<Rc<str>>,
    ) -> Ended {
        let at = Some(Moment::ThisBoot(now));
        let (reason, message) = (START_ERROR.into(), failure.message.clone());
        Ended { number, code: 128, reason, message, started_at: at, finished_at: at, id }
    }

    /// The result of a run that was killed, and of whose end no time is known.
    fn killed(number: u32, reason: &str, message: &str, id: Option<Rc<str>>) -> Ended {
        let (reason, message) = (reason.into(), message.into());
        Ended { number, code: 137, reason, message, started_at: None, finished_at: None, id }
    }

    /// The result of a run whose end was not observed.
    pub(super) fn unobserved(number: u32, id: Option<Rc<str>>) -> Ended {
        Ended::killed(number, STATUS_UNKNOWN, LOST_WHILE_RUNNING, id)
    }

    /// The result of a run that does not count because all containers restart.
    pub(in crate::pod) fn superseded(number: u32) -> Ended {
        Ended::killed(number, RESTARTING_REASON, REMOVED_MESSAGE, None)
    }

    /// Whether the run does not count, because all containers were to restart.
    pub(super) fn is_superseded(&self) -> bool {
        &*self.reason == RESTARTING_REASON
    }

    /// Whether the process could not be executed.
    pub(super) fn failed_to_start(&self) -> bool {
        &*self.reason == START_ERROR
    }

    /// Whether this is a failure of an init container. It is if memory was short, whatever the exit code.
    pub(super) fn failed_init(&self) -> bool {
        self.code != 0 || &*self.reason == OOM_KILLED
    }
}

impl From<&RecordedExit> for Ended {
    fn from(exit: &RecordedExit) -> Ended {
        Ended {
            number: exit.number,
            code: exit.code,
            reason: exit.reason.as_str().into(),
            message: exit.message.as_str().into(),
            started_at: Some(exit.started_at),
            finished_at: Some(exit.finished_at),
            id: exit.id.as_deref().filter(|id| !id.is_empty()).map(Rc::from),
        }
    }
}

/// The newest runs of a container that started and ended, and why it waits.
#[derive(Clone, Debug, Default)]
pub(super) struct RunHistory {
    /// The newest run that started in this boot.
    pub(super) started: Option<Box<StartedContainer>>,
    /// The newest run, if that is not `started`: its process could not be executed, or it is of an earlier boot.
    pub(super) other: Option<Box<RunIdentity>>,
    /// The newest run that has ended.
    ended: Option<Box<Ended>>,
    /// The run that ended before `ended`.
    previous: Option<Box<Ended>>,
    /// The reason why the container waits, if `state.waiting` names it.
    pub(super) waiting: Option<WaitingReason>,
}

impl RunHistory {
    pub(super) fn started(&self) -> Option<&StartedContainer> {
        self.started.as_deref()
    }

    /// The newest run, if that is not `started`.
    pub(super) fn other(&self) -> Option<&RunIdentity> {
        self.other.as_deref()
    }

    pub(super) fn ended(&self) -> Option<&Ended> {
        self.ended.as_deref()
    }

    pub(super) fn previous(&self) -> Option<&Ended> {
        self.previous.as_deref()
    }

    pub(super) fn waiting(&self) -> Option<&WaitingReason> {
        self.waiting.as_ref()
    }

    /// The image, the container ID and the process of the newest run.
    pub(super) fn identity(&self) -> Option<RunIdentity> {
        self.other.as_deref().cloned().or_else(|| self.executed())
    }

    /// The same of the newest run whose process was executed in this boot, or else of the newest run.
    pub(super) fn executed(&self) -> Option<RunIdentity> {
        match &self.started {
            Some(started) => Some(RunIdentity {
                id: started.id.clone(),
                image: started.image.clone(),
                image_id: started.image_id.clone(),
                process: Some(started.process()),
            }),
            None => self.other.as_deref().cloned(),
        }
    }

    /// The image that the spec named for the newest run; the image that ran if an earlier boot started it.
    pub(super) fn spec_image(&self) -> Option<&Rc<str>> {
        match (&self.started, &self.other) {
            (Some(started), _) => Some(&started.spec_image),
            (None, Some(other)) => Some(&other.image),
            (None, None) => None,
        }
    }

    /// Records why the container waits.
    pub(super) fn wait(&mut self, reason: impl Into<Cow<'static, str>>, message: Box<str>) {
        self.waiting = Some(WaitingReason { reason: reason.into(), message });
    }

    /// Records that a run has started.
    pub(super) fn has_started(&mut self, started: Box<StartedContainer>) {
        self.started = Some(started);
        self.other = None;
    }

    /// Records that a run has ended.
    pub(super) fn has_ended(&mut self, ended: Ended) {
        self.waiting = None;
        self.previous = self.ended.take();
        self.ended = Some(Box::new(ended));
    }

    /// Records that the newest run, which has ended, does not count because all containers restart.
    pub(super) fn supersede(&mut self, number: u32) {
        self.ended = Some(Box::new(Ended::superseded(number)));
        self.wait(RESTARTING_REASON, REMOVED_MESSAGE.into());
    }

    /// Discards the end of the run with this number or a later one: its supervisor knows how it ended.
    pub(super) fn forget_end_since(&mut self, number: u32) {
        if self.ended.as_ref().is_some_and(|ended| ended.number >= number) {
            self.ended = self.previous.take();
        }
    }

    /// Adds an unknown end to a container that has none, but should have started in its finished pod.
    pub(super) fn add_unknown_end(&mut self) {
        self.ended
            .get_or_insert_with(|| Box::new(Ended::killed(0, STATUS_UNKNOWN, LOST_WHEN_TERMINATED, None)));
    }

    /// Restores the two newest ends.
    pub(super) fn restore_ends(&mut self, ended: Option<Ended>, previous: Option<Ended>) {
        (self.ended, self.previous) = (ended.map(Box::new), previous.map(Box::new));
    }
}
