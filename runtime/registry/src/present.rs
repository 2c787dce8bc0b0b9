//! The node's view of the pod that a request is about.

use std::rc::Rc;

use serde_json::Value;

use super::live_objects::{CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE};
use super::objects::Key;
use super::{Registry, Wanted};
use nodlet_core::facts::ClientCondition;
use nodlet_core::spec::Pod;

/// The node's knowledge of the pod that an applied object replaces.
#[derive(Debug, Default)]
pub struct ReplacedPod {
    /// The published pod of this name.
    pub published: Option<Rc<Wanted>>,
    /// The newest version of the pod, if it waits for images.
    pub waiting: Option<Rc<Wanted>>,
    /// Whether the desired or waiting pod has finished.
    pub has_terminal_phase: bool,
}

/// A published pod, for requests that change it.
#[derive(Debug)]
pub struct Present {
    /// The pod.
    pub wanted: Rc<Wanted>,
    /// The published object.
    pub object: Value,
    /// Whether the pod is being deleted, so that none of its containers starts again.
    pub is_unwanted: bool,
    /// Whether the pod has finished.
    pub has_terminal_phase: bool,
    /// Another version of the pod that waits for images.
    pub waiting: Option<Rc<Wanted>>,
    /// The conditions that clients set.
    pub client_conditions: Rc<[ClientCondition]>,
}

/// Adds to an accepted `object` what the published object of the same pod has: its status, and what the server sets.
pub fn as_published(published: &Value, object: &mut Value) {
    for field in ["creationTimestamp", "generation", "resourceVersion"] {
        if let Some(value) = published["metadata"].get(field)
            && (field != "generation" || object["metadata"].get(field).is_none())
        {
            object["metadata"][field] = value.clone();
        }
    }
    for key in [CONFIG_SEEN, CONFIG_SOURCE, CONFIG_HASH] {
        if let Some(value) = published["metadata"]["annotations"].get(key) {
            object["metadata"]["annotations"][key] = value.clone();
        }
    }
    if let Some(status) = published.get("status") {
        object["status"] = status.clone();
    }
}

impl Registry {
    /// The published object of a pod, with its `resourceVersion`.
    pub fn current(&self, present: &Present) -> Value {
        let mut current = present.object.clone();
        let Pod { namespace, name, .. } = &*present.wanted.pod;
        if let Some(published) = self.objects.get(&Key::new("pods", namespace, name)) {
            current["metadata"]["resourceVersion"] = published.version.to_string().into();
        }
        current
    }
}
