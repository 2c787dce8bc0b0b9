//! The stage of a pod's life, and its verdict.

use std::time::Duration;

use crate::facts::{EndRequest, PodPhase, ShutdownScope};
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

/// The terminal phase that was decided, with its reason and message.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) phase: PodPhase,
    pub(crate) reason: Option<Box<str>>,
    pub(crate) message: Option<Box<str>>,
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
