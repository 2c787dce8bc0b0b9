//! Requests to end all pods, and the request to one pod that follows from them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::pod::CRITICAL;

/// A request to end all pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shutdown {
    /// Whether the agent or the machine ends together with the pods.
    #[serde(rename = "whole")]
    pub scope: ShutdownScope,
    /// The groups by priority, lowest first; empty for no limits.
    pub groups: Vec<ShutdownGroup>,
}

/// The scope of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShutdownScope {
    /// This agent, which is to leave only records behind (`nodlet down`): its pods run again under the next agent.
    Agent,
    /// The machine: its pods are shown as ended by the shutdown, and run again after the reboot.
    Machine,
}

/// The pods from one priority up to that of the next group (`shutdownGracePeriodByPodPriority`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownGroup {
    /// The lowest priority of the group. Pods below the lowest group belong to that group.
    pub priority: i32,
    /// The longest grace period of a pod in the group, after which the next group's turn comes.
    pub grace: Duration,
}

impl ShutdownGroup {
    /// The groups that a kubelet makes of `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`; the
    /// latter is part of the former.
    pub fn of(total: Duration, critical: Duration) -> Vec<ShutdownGroup> {
        let usual = ShutdownGroup { priority: 0, grace: total.saturating_sub(critical) };
        vec![usual, ShutdownGroup { priority: CRITICAL, grace: critical }]
    }
}

/// Why a pod is requested to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndCause {
    /// All pods are to end.
    Shutdown(ShutdownScope),
    /// The node could not renew its Lease.
    Fence,
}

/// A request to one pod to end now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndRequest {
    pub(crate) cause: EndCause,
    /// A grace period in place of the pod's own.
    pub(crate) grace: Option<Duration>,
}
