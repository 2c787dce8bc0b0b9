//! The types of the conditions that the node decides on.

use serde::{Deserialize, Serialize};

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
pub const IMAGE_UPDATE_PENDING: &str = "PodImageUpdatePending";

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
