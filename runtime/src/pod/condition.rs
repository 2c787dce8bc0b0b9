//! The conditions of a pod that change, and since when they are as they are.

use crate::time::{Instant, Moment};

/// One condition: its status and when that last flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// `status` is `True`.
    pub(crate) status: bool,
    /// `lastTransitionTime`.
    pub(crate) since: Moment,
}

/// All of them. `PodScheduled` is true from `startTime` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// `PodReadyToStartContainers`.
    pub(crate) ready_to_start_containers: Condition,
    /// `Initialized`: once it is, it stays so.
    pub(crate) initialized: Condition,
    /// `ContainersReady`, and without readiness gates `Ready` too.
    pub(crate) containers_ready: Condition,
}

impl Conditions {
    /// Of a pod that is taken now.
    pub(crate) fn new(now: Instant) -> Self {
        let not_yet = Condition { status: false, since: Moment::ThisBoot(now) };
        Conditions { ready_to_start_containers: not_yet, initialized: not_yet, containers_ready: not_yet }
    }

    /// Their present status.
    pub(crate) fn settle(
        &mut self,
        now: Instant,
        ready_to_start_containers: bool,
        initialized: bool,
        containers_ready: bool,
    ) {
        self.ready_to_start_containers.set(now, ready_to_start_containers);
        self.initialized.set(now, initialized || self.initialized.status);
        self.containers_ready.set(now, containers_ready);
    }
}

impl Condition {
    fn set(&mut self, now: Instant, status: bool) {
        if self.status != status {
            *self = Condition { status, since: Moment::ThisBoot(now) };
        }
    }
}
