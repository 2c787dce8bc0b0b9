//! The additions of admission to a Pod from other objects. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An addition of admission to a Pod: a copy of a preset, or, with an empty name, the defaults of its RuntimeClass and of
/// LimitRanges. It is stored with the Pod, and never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedPreset {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.resourceVersion` at that time.
    pub version: String,
    /// `spec` without its selector.
    pub spec: Value,
}
