//! The types of the pod conditions that the node owns.

use serde::{Deserialize, Serialize};

/// `type` of a pod condition that the node owns.
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

/// `type` of the condition of a pod whose containers keep running because images that its spec names are not
/// on the board. The condition is shown only during that time; no kubelet has it.
pub const IMAGE_UPDATE_PENDING: &str = "PodImageUpdatePending";

/// The types of the conditions of a resize, which exist only during one.
const RESIZE_CONDITION_TYPES: [&str; 2] = ["PodResizeInProgress", "PodResizePending"];

impl ConditionType {
    /// All condition types, in the order in which a kubelet lists them.
    pub const ALL: [ConditionType; 7] = [
        ConditionType::PodReadyToStartContainers,
        ConditionType::Initialized,
        ConditionType::Ready,
        ConditionType::ContainersReady,
        ConditionType::PodScheduled,
        ConditionType::AllContainersRestarting,
        ConditionType::DisruptionTarget,
    ];

    /// The condition type as the API spells it.
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

/// Whether only the node may set a condition of this type (`PodConditionByKubelet`). Clients may set
/// `DisruptionTarget` as well.
pub fn is_node_owned(kind: &str) -> bool {
    let is_own = |own: &ConditionType| *own != ConditionType::DisruptionTarget && own.as_str() == kind;
    ConditionType::ALL.iter().any(is_own)
        || RESIZE_CONDITION_TYPES.contains(&kind)
        || kind == IMAGE_UPDATE_PENDING
}
