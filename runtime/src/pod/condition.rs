//! The conditions of a pod that its node decides on, and since when each is as it is.
//!
//! Those of others, which readiness gates ask for, are kept as they came ([`GivenCondition`]).

use serde::{Deserialize, Serialize};

use crate::node::GivenCondition;
use crate::time::{Instant, Moment};

/// `type` of a condition that the node decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the type of that name")]
pub enum ConditionType {
    PodReadyToStartContainers,
    Initialized,
    Ready,
    ContainersReady,
    PodScheduled,
    AllContainersRestarting,
    DisruptionTarget,
}

/// `type` of the condition of a pod of which containers run on because the images that the spec names
/// are not on the board. It is shown only while that is so; no kubelet has it.
pub(crate) const IMAGE_UPDATE_PENDING: &str = "PodImageUpdatePending";

/// What a kubelet owns besides, though nothing here makes it.
const NEVER_HERE: [&str; 2] = ["PodResizeInProgress", "PodResizePending"];

impl ConditionType {
    /// All of them, in the order in which a kubelet lists them.
    pub const ALL: [ConditionType; 7] = [
        ConditionType::PodReadyToStartContainers,
        ConditionType::Initialized,
        ConditionType::Ready,
        ConditionType::ContainersReady,
        ConditionType::PodScheduled,
        ConditionType::AllContainersRestarting,
        ConditionType::DisruptionTarget,
    ];

    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionType::PodReadyToStartContainers => "PodReadyToStartContainers",
            ConditionType::Initialized => "Initialized",
            ConditionType::Ready => "Ready",
            ConditionType::ContainersReady => "ContainersReady",
            ConditionType::PodScheduled => "PodScheduled",
            ConditionType::AllContainersRestarting => "AllContainersRestarting",
            ConditionType::DisruptionTarget => "DisruptionTarget",
        }
    }
}

/// Whether nobody but the node may say that a condition of this type is there
/// (`PodConditionByKubelet`). A `DisruptionTarget` others may give as well.
pub fn is_the_nodes(kind: &str) -> bool {
    let is_own = |own: &ConditionType| *own != ConditionType::DisruptionTarget && own.as_str() == kind;
    ConditionType::ALL.iter().any(is_own) || NEVER_HERE.contains(&kind) || kind == IMAGE_UPDATE_PENDING
}

/// One condition: its status and when that last flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// `status` is `True`.
    pub(crate) status: bool,
    /// `lastTransitionTime`.
    pub(crate) since: Moment,
}

/// One condition of each type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConditionSet([Condition; ConditionType::ALL.len()]);

impl ConditionSet {
    /// Of a pod that is taken now: nothing is true of it yet.
    pub(crate) fn new(now: Instant) -> Self {
        ConditionSet([Condition { status: false, since: Moment::ThisBoot(now) }; ConditionType::ALL.len()])
    }

    /// The condition of this type.
    pub(crate) fn get(&self, kind: ConditionType) -> Condition {
        self.0[kind as usize]
    }

    /// Its status from now on; when it is another, that is a transition.
    pub(crate) fn settle(&mut self, now: Instant, kind: ConditionType, status: bool) {
        let condition = &mut self.0[kind as usize];
        if condition.status != status {
            *condition = Condition { status, since: Moment::ThisBoot(now) };
        }
    }

    /// What is known of it from before.
    pub(crate) fn restore(&mut self, kind: ConditionType, condition: Condition) {
        self.0[kind as usize] = condition;
    }
}

/// What keeps a pod whose containers are ready from being so, in a kubelet's words; empty if nothing does.
pub(crate) fn closed_readiness_gates(gates: &[String], given: &[GivenCondition]) -> String {
    let closed = gates.iter().filter_map(|gate| match given.iter().find(|given| given.kind == *gate) {
        None => Some(format!("corresponding condition of pod readiness gate {gate:?} does not exist.")),
        Some(given) if given.is_true() => None,
        Some(given) => {
            Some(format!("the status of pod readiness gate {gate:?} is not \"True\", but {}", given.status))
        }
    });
    closed.collect::<Vec<_>>().join(", ")
}
