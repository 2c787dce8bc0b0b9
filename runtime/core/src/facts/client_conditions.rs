//! Pod conditions that clients set in a pod's status, and that the node only stores.

use serde::{Deserialize, Serialize};

/// Upper bound of the client-set conditions that are stored of one pod.
pub const MAX_CLIENT_CONDITIONS: usize = 32;

/// Upper bound of the bytes of all client-set conditions of one pod.
pub const MAX_CLIENT_CONDITION_BYTES: usize = 16 * 1024;

/// A pod condition that is not owned by the node, as a client set it through the `status` subresource. Its
/// times are text, because no decision depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCondition {
    /// `type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// `reason`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// `message`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// `lastProbeTime`.
    #[serde(default)]
    pub last_probe_time: Option<String>,
    /// `lastTransitionTime`.
    #[serde(default)]
    pub last_transition_time: Option<String>,
    /// `observedGeneration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl ClientCondition {
    /// Whether `status` is `True`.
    pub(crate) fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// The total bytes of the condition's texts.
    pub fn bytes(&self) -> usize {
        let times = [&self.last_probe_time, &self.last_transition_time];
        let times = times.into_iter().flatten().map(String::len).sum::<usize>();
        self.kind.len() + self.status.len() + self.reason.len() + self.message.len() + times
    }
}
