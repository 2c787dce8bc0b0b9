//! The stage of a pod's life.

use std::time::Duration;

use crate::facts::{EndRequest, ShutdownScope};
use crate::time::Instant;

use super::backoff::Retry;

/// The stage of a pod's life: the worker states of a kubelet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// The pod's containers are started and restarted.
    Active,
    /// No container starts any more; running ones are stopped.
    Stopping {
        /// The grace period: the time between the signal and the kill.
        grace: Duration,
        /// When the grace period ends: until then hooks run, and sidecars wait for the containers that end
        /// before them.
        grace_end: Instant,
    },
    /// Every process has ended for good.
    Stopped,
    /// Only files of the pod are left.
    Finished,
    /// `Forget` is in flight.
    Forgetting {
        /// The retry that is in flight, unless it is the first try.
        earlier: Option<Retry>,
    },
    /// Some files of the pod still exist.
    ForgetFailed {
        /// When to retry.
        retry: Retry,
    },
}

/// A stage is never left backwards, except by [`Stage::reopen`].
impl Stage {
    /// Begins to stop the pod with this grace period, or shortens the grace period. Returns whether that changes
    /// anything.
    pub(super) fn stop(&mut self, now: Instant, asked: Duration) -> bool {
        match self {
            Stage::Active => *self = Stage::Stopping { grace: asked, grace_end: now + asked },
            Stage::Stopping { grace, grace_end } if asked < *grace => {
                (*grace, *grace_end) = (asked, (now + asked).min(*grace_end));
            }
            Stage::Stopping { .. } | Stage::Stopped | Stage::Finished => return false,
            Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => return false,
        }
        true
    }

    /// Records that every process has ended for good.
    pub(super) fn end(&mut self) {
        *self = Stage::Stopped;
    }

    /// Opens a pod again that was decided to be finished, and of which processes turn out to run still.
    pub(super) fn reopen(&mut self) {
        *self = Stage::Active;
    }

    /// Records that only files of the pod are left.
    pub(super) fn finish(&mut self) {
        *self = Stage::Finished;
    }

    /// Records that `Forget` is in flight; `earlier` is the retry that it is.
    pub(super) fn forget(&mut self, earlier: Option<Retry>) {
        *self = Stage::Forgetting { earlier };
    }

    /// Records that files of the pod could not be removed. Returns whether they were to be.
    pub(super) fn forget_failed(&mut self, now: Instant) -> bool {
        let Stage::Forgetting { earlier } = *self else { return false };
        *self = Stage::ForgetFailed { retry: Retry::after(earlier, now) };
        true
    }

    /// Whether the pod's containers are started and restarted.
    pub(super) fn is_active(self) -> bool {
        matches!(self, Stage::Active)
    }

    /// The grace period in effect, while the pod is stopping.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn grace(self) -> Option<Duration> {
        match self {
            Stage::Stopping { grace, .. } => Some(grace),
            Stage::Active | Stage::Stopped | Stage::Finished => None,
            Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => None,
        }
    }

    /// When the grace period of a stopping pod ends.
    pub(super) fn grace_end(self) -> Option<Instant> {
        match self {
            Stage::Stopping { grace_end, .. } => Some(grace_end),
            Stage::Active | Stage::Stopped | Stage::Finished => None,
            Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => None,
        }
    }

    /// Whether every process has ended for good.
    pub(super) fn has_ended(self) -> bool {
        match self {
            Stage::Active | Stage::Stopping { .. } => false,
            Stage::Stopped | Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => true,
        }
    }
}

/// The state of the node that one pod's decisions depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeContext {
    /// Whether the sandbox may be created: every other pod of this name is gone, and so are the preempted
    /// pods.
    pub(crate) may_begin: bool,
    /// The shutdown of all pods, if one is under way.
    pub(crate) shutdown: Option<ShutdownScope>,
    /// The request to end, if it is this pod's turn.
    pub(crate) end: Option<EndRequest>,
}
