//! What a Pod got at admission from another object. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A copy of a preset as it was applied to a Pod. The copy is stored with the Pod, and never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.resourceVersion` at that time.
    pub version: String,
    /// `spec` without its selector.
    pub spec: Value,
}
