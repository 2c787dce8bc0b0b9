//! The states of a pod that are not those of one container.

use std::time::Duration;

use crate::facts::{End, PodPhase, Whole};
use crate::time::Instant;

use super::backoff::Retry;

/// What the containers of a pod share.
///
/// ```text
///  Absent ──► Creating ──► Ready ──► Removing ──► Absent
///    ▲           │           │         ▲    │
///    │ retry     ▼           ▼         │    ▼ retry
///    └──────── Failed      Lost ───────┴─ RemoveFailed
/// ```
#[derive(Clone, Debug)]
pub(crate) enum Sandbox {
    /// There is none, nor anything of it.
    Absent,
    /// `CreateSandbox` is in flight.
    Creating,
    /// It could not be made, and nothing of it is left.
    Failed {
        /// When to try again.
        retry_at: Instant,
    },
    /// Containers can run in it.
    Ready,
    /// Its supervisor died, and every process with it; the rest of it is still there.
    Lost,
    /// `RemoveSandbox` is in flight.
    Removing {
        /// The retry that this is.
        earlier: Option<Retry>,
    },
    /// Part of it is still there.
    RemoveFailed {
        /// When to try again.
        retry: Retry,
    },
}

/// Whether any source wants the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It was found; not every source has been heard.
    Unknown,
    /// One does.
    Wanted,
    /// None does.
    Unwanted,
}

/// Where the pod is in its life: the worker states of a kubelet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// Its containers are started and restarted.
    Active,
    /// Nothing starts any more; what runs is made to end.
    Stopping {
        /// Seconds between asking and killing.
        grace: Duration,
        /// When it is over: until then hooks run, and sidecars wait for what ends before them.
        patience: Instant,
    },
    /// Every process is gone for good.
    Stopped,
    /// Nothing of it is left but what is on disk.
    Finished,
    /// `Forget` is in flight.
    Forgetting {
        /// The retry that this is.
        earlier: Option<Retry>,
    },
    /// Something is still on disk.
    ForgetFailed {
        /// When to try again.
        retry: Retry,
    },
}

/// The terminal phase that was decided, and why.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) phase: PodPhase,
    pub(crate) reason: Option<Box<str>>,
    pub(crate) message: Option<Box<str>>,
}

/// What the whole node adds to one pod's decisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    /// Every other pod of this name is gone, and so is who had to make room for it.
    pub(crate) may_begin: bool,
    /// Everything is being taken down.
    pub(crate) shutdown: Option<Whole>,
    /// It is this pod's turn.
    pub(crate) end: Option<End>,
}
