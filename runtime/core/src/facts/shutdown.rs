//! Requests to end all pods, or one pod with all others.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::pod::CRITICAL;

/// That all pods are to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shutdown {
    /// Who is to end with them.
    pub whole: Whole,
    /// By priority, lowest first; empty for no limits.
    pub groups: Vec<ShutdownGroup>,
}

/// What ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whole {
    /// This agent, and nothing of it is to be left (`nodlet down`).
    Agent,
    /// The machine: its pods are shown as ended by that, and run again after it.
    Machine,
}

/// Pods from a priority on, up to that of the next group (`shutdownGracePeriodByPodPriority`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownGroup {
    /// Pods below the lowest belong to that.
    pub priority: i32,
    /// No pod of it has more, and the next group waits no longer.
    pub grace: Duration,
}

impl ShutdownGroup {
    /// What a kubelet makes of `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`, which
    /// is a part of it.
    pub fn of(total: Duration, critical: Duration) -> Vec<ShutdownGroup> {
        let usual = ShutdownGroup { priority: 0, grace: total.saturating_sub(critical) };
        vec![usual, ShutdownGroup { priority: CRITICAL, grace: critical }]
    }
}

/// That a pod is to end now, with all others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) whole: Whole,
    /// Instead of its own.
    pub(crate) grace: Option<Duration>,
}
