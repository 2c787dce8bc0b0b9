//! The current run of a container, or the next one: its state, its number, and which earlier runs are discarded.
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

use crate::facts::Attempt;
use crate::pod::backoff::Retry;
use crate::spec::ContainerIndex;
use crate::time::{Instant, Moment};

/// The state of the current or next run of a container.
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
        /// When to kill the start again. It was given up, because the pod's grace period was over.
        again: Option<Retry>,
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

/// The current run of a container, or the next one.
///
/// A number is used again only if no process was executed for it, and no run is discarded before its successor has
/// begun.
#[derive(Clone, Debug)]
pub(in crate::pod) struct CurrentRun {
    state: Run,
    /// The number of the run that `state` describes.
    number: u32,
    /// Runs with a lower number than this one have been discarded.
    discarded: u32,
    /// Whether the `Killing` event of the run was emitted; the run may still wait for its turn to end.
    killing_event_emitted: bool,
    /// When the one run of an ephemeral container was decided.
    decided: Option<Moment>,
}

impl CurrentRun {
    /// The first run, which has not begun.
    pub(super) fn first() -> Self {
        CurrentRun {
            state: Run::Waiting,
            number: 0,
            discarded: 0,
            killing_event_emitted: false,
            decided: None,
        }
    }

    pub(super) fn state(&self) -> &Run {
        &self.state
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn decided(&self) -> Option<Moment> {
        self.decided
    }

    /// Whether a process of the container may exist.
    pub(super) fn is_alive(&self) -> bool {
        match self.state {
            Run::Starting { .. } | Run::Running | Run::Terminating { .. } | Run::Killing { .. } => true,
            Run::Waiting | Run::Recording | Run::StartFailed { .. } | Run::Exited => false,
        }
    }

    /// Whether the container's process was executed and its end was not observed.
    pub(super) fn is_running(&self) -> bool {
        match self.state {
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => true,
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } | Run::Exited => {
                false
            }
        }
    }

    /// The number of runs that have started, as the record counts them.
    pub(super) fn started_count(&self) -> u32 {
        match self.state {
            Run::Waiting | Run::StartFailed { .. } => self.number,
            Run::Recording
            | Run::Starting { .. }
            | Run::Running
            | Run::Terminating { .. }
            | Run::Killing { .. }
            | Run::Exited => self.number + 1,
        }
    }

    /// The number of the run that starts next: a new one if a process was executed for the number before.
    pub(super) fn next_number(&self) -> u32 {
        match self.state {
            Run::Exited => self.number + 1,
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => self.number,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => self.number,
        }
    }

    /// Decides the start of the next run, whose record has to be written first.
    pub(super) fn record(&mut self, decided: Option<Moment>) {
        self.decided = decided;
        self.begin(Run::Recording);
    }

    /// Starts the next run.
    pub(super) fn start(&mut self) {
        self.begin(Run::Starting { inputs_changed: false, again: None });
    }

    fn begin(&mut self, state: Run) {
        self.number = self.next_number();
        self.state = state;
        self.killing_event_emitted = false;
    }

    /// Starts the run whose record was written.
    pub(in crate::pod) fn start_recorded(&mut self) {
        if let Run::Recording = self.state {
            self.state = Run::Starting { inputs_changed: false, again: None };
        }
    }

    /// Cancels a start that is only being recorded.
    pub(in crate::pod) fn cancel_recording(&mut self) {
        if let Run::Recording = self.state {
            self.state = Run::Waiting;
        }
    }

    /// Records that no run has started, so that a start in another sandbox is decided again.
    pub(super) fn forget_decision(&mut self) {
        if self.started_count() == 0 {
            self.decided = None;
        }
    }

    /// Records that the start failed, and when it is retried.
    pub(super) fn start_failed(&mut self, retry: StartRetry) {
        self.state = Run::StartFailed { retry };
    }

    /// Records that the container's process was executed, if only before the kill of a start that was given up.
    pub(super) fn has_started(&mut self) {
        self.state = match self.state {
            Run::Starting { again: Some(again), .. } => Run::Killing { again },
            _ => Run::Running,
        };
    }

    /// When the start is to be killed, if one is under way in a pod whose grace period ends at `grace_end`.
    pub(in crate::pod) fn gives_up_at(&self, grace_end: Option<Instant>) -> Option<Instant> {
        match self.state {
            Run::Starting { again, .. } => again.map(|again| again.at).or(grace_end),
            Run::Waiting | Run::Recording | Run::StartFailed { .. } | Run::Running => None,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => None,
        }
    }

    /// Records that the run has ended.
    pub(super) fn has_ended(&mut self) {
        self.state = Run::Exited;
    }

    /// Records that the run was asked to end, and when it is killed.
    pub(in crate::pod) fn terminate(&mut self, deadline: Instant) {
        self.state = Run::Terminating { deadline, again: None };
    }

    /// Records that the run was killed, possibly again, or its start.
    pub(in crate::pod) fn kill(&mut self, now: Instant) {
        if let Run::Starting { again, .. } = &mut self.state {
            *again = Some(Retry::after(*again, now));
            return;
        }
        let again = match self.state {
            Run::Killing { again } => Retry::after(Some(again), now),
            _ => Retry::first(now),
        };
        self.state = Run::Killing { again };
    }

    /// Whether the `Killing` event of the run is due; it counts as emitted from now on.
    pub(in crate::pod) fn take_killing_event(&mut self) -> bool {
        !std::mem::replace(&mut self.killing_event_emitted, true)
    }

    /// Records that the run that was asked to end is killed at `deadline` at the latest. A start that is only being
    /// recorded does not take place.
    pub(super) fn shorten_grace(&mut self, deadline: Instant) {
        match &mut self.state {
            // A sidecar that was asked late may have a longer deadline than the others.
            Run::Terminating { deadline: own, .. } => *own = deadline.min(*own),
            Run::Recording => self.state = Run::Waiting,
            Run::Waiting | Run::Starting { .. } | Run::StartFailed { .. } => {}
            Run::Running | Run::Killing { .. } | Run::Exited => {}
        }
    }

    /// Records that a signal or kill could not be delivered. Returns whether one was to be.
    pub(in crate::pod) fn stop_failed(&mut self, now: Instant) -> bool {
        match &mut self.state {
            Run::Terminating { again, .. } => *again = Some(Retry::first(now)),
            Run::Killing { .. } => {}
            Run::Starting { again, .. } => return again.is_some(),
            Run::Waiting | Run::Recording => return false,
            Run::StartFailed { .. } | Run::Running | Run::Exited => return false,
        }
        true
    }

    /// Retries a failed start at once if `is_due`, and a start in flight if it finds something missing.
    pub(super) fn inputs_changed(&mut self, now: Instant, is_due: impl FnOnce(StartRetry) -> bool) {
        match &mut self.state {
            Run::StartFailed { retry } if is_due(*retry) => *retry = StartRetry::At(now),
            Run::Starting { inputs_changed, .. } => *inputs_changed = true,
            Run::StartFailed { .. } | Run::Waiting | Run::Recording | Run::Running => {}
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => {}
        }
    }

    /// Whether the start waits for a pull that is in flight.
    pub(in crate::pod) fn is_pulling(&self) -> bool {
        matches!(self.state, Run::StartFailed { retry: StartRetry::Pull { is_in_flight: true } })
    }

    /// Turns a failed pull into a back-off, if that is due. Returns whether it was.
    pub(in crate::pod) fn back_off_pull(&mut self, now: Instant) -> bool {
        let Run::StartFailed { retry: StartRetry::WhenImagesChange { back_off_at, .. } } = &mut self.state
        else {
            return false;
        };
        back_off_at.take_if(|at| *at <= now).is_some()
    }

    /// The attempt to discard next.
    pub(in crate::pod) fn next_to_discard(&self, container: ContainerIndex) -> Option<Attempt> {
        (self.discarded < self.number).then_some(Attempt { container, number: self.discarded })
    }

    /// Records that the attempt to discard next was discarded.
    pub(in crate::pod) fn discarded(&mut self) {
        self.discarded += 1;
    }

    /// Adopts the run with this number from its supervisor. The run before it may not have been discarded, if
    /// `discards` says so; those before that one have been.
    pub(super) fn adopt(&mut self, number: u32, discards: bool) {
        self.number = number;
        if discards {
            self.discarded = number.saturating_sub(1);
        }
    }

    /// The run that an earlier agent left in `state`, after `newest` has started.
    pub(super) fn restored(state: Run, number: u32, newest: u32, decided: Option<Moment>) -> Self {
        CurrentRun { state, number, discarded: newest, killing_event_emitted: false, decided }
    }
}
