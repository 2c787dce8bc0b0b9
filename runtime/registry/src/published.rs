//! The objects of pods as people see them: as they were admitted, with what is seen of them today.

use std::time::Duration;

use serde_json::Value;

use super::{Registry, Wanted};

/// The annotation that says where a kubelet has a pod from. Like the others of its kind it is said of
/// what is published alone: it is in no file of ours, and nobody else can say it.
pub(super) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The annotation that says when a pod was first seen.
pub(super) const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// The annotation that has the version of a pod's file.
pub(super) const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// What is seen of a pod besides what it was admitted as.
#[derive(Debug)]
pub struct Seen {
    /// When it was first seen: `metadata.creationTimestamp` of a pod from a file.
    pub created: String,
    /// `metadata.generation`.
    pub generation: u64,
    /// `metadata.deletionTimestamp` and `deletionGracePeriodSeconds` of a pod that is being deleted.
    pub deletion: Option<(String, Duration)>,
    /// `status`.
    pub status: Value,
}

impl Registry {
    /// The object that people see of a pod.
    pub fn published(&self, wanted: &Wanted, seen: Seen) -> Option<Value> {
        let mut object: Value = serde_json::from_str(wanted.object.get()).ok()?;
        let is_applied = self.is_applied(wanted);
        let metadata = &mut object["metadata"];
        if metadata.get("creationTimestamp").is_none_or(Value::is_null) {
            metadata["creationTimestamp"] = seen.created.as_str().into();
        }
        metadata["generation"] = seen.generation.into();
        let annotations = &mut metadata["annotations"];
        annotations[CONFIG_SEEN] = seen.created.into();
        annotations[CONFIG_SOURCE] = if is_applied { "api" } else { "file" }.into();
        if !is_applied {
            annotations[CONFIG_HASH] = (*wanted.pod.uid.0).into();
        }
        if let Some((at, grace)) = seen.deletion {
            metadata["deletionTimestamp"] = at.into();
            metadata["deletionGracePeriodSeconds"] = grace.as_secs().into();
        }
        if !wanted.pod.is_gated() {
            object["spec"]["nodeName"] = self.node.as_str().into();
        }
        object["status"] = seen.status;
        Some(object)
    }
}
