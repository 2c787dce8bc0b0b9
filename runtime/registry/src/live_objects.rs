//! The published objects: of pods, the admitted objects with their current status; of definitions, the objects of files
//! with their creation time.

use std::rc::Rc;
use std::time::Duration;

use nodlet_core::facts::IMAGE_UPDATE_PENDING;
use nodlet_core::pod::PodState;
use nodlet_core::status;
use nodlet_core::time::{Anchor, Moment};
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::Definition;
use serde_json::Value;

use super::objects::Key;
use super::{Registry, Wanted};

/// The annotation for the source of a pod. Like the other annotations of this kind, it exists only in
/// published objects: no file contains it, and clients cannot set it.
pub(super) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The annotation for the time when a pod was first seen.
pub(super) const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// The annotation for the version of a pod's file.
pub(super) const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Kind, namespace and name of a definition.
pub type DefinitionName = (Kind, Rc<str>, Rc<str>);

/// The parts of a published pod that are not in its admitted object.
#[derive(Debug)]
pub struct LiveFields {
    /// The time when the pod was first seen: `metadata.creationTimestamp` of a pod from a file.
    pub created: String,
    /// `metadata.generation`.
    pub generation: u64,
    /// `metadata.deletionTimestamp` and `deletionGracePeriodSeconds` of a pod that is being deleted.
    pub deletion: Option<(String, Duration)>,
    /// `status`.
    pub status: Value,
}

impl Registry {
    /// Adds the images that a change of the pod waits for to its status, if the change is held back.
    pub fn add_awaited_images(&self, status: &mut Value, state: &PodState, anchor: Anchor) {
        if let Some(waits) = self.held_updates.waits_of(&state.pod().uid)
            && let Some(conditions) = status["conditions"].as_array_mut()
        {
            let since = Moment::ThisBoot(waits.since);
            // Two changes wait: show the images of the one that replaces the pod.
            conditions.retain(|condition| condition["type"] != IMAGE_UPDATE_PENDING);
            conditions.push(status::image_update_pending(state, anchor, since, &waits.missing));
        }
    }

    /// Returns the published object of a pod.
    pub fn published(&self, wanted: &Wanted, seen: LiveFields) -> Option<Value> {
        let mut object: Value = serde_json::from_str(wanted.object.get()).ok()?;
        let is_from_api = self.is_from_api(wanted);
        let metadata = &mut object["metadata"];
        if metadata.get("creationTimestamp").is_none_or(Value::is_null) {
            metadata["creationTimestamp"] = seen.created.as_str().into();
        }
        metadata["generation"] = seen.generation.into();
        let annotations = &mut metadata["annotations"];
        annotations[CONFIG_SEEN] = seen.created.into();
        annotations[CONFIG_SOURCE] = if is_from_api { "api" } else { "file" }.into();
        if !is_from_api {
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

    /// Returns a published definition.
    pub(super) fn published_definition(&self, name: &DefinitionName) -> Option<Value> {
        let shown = self.objects.get(&key(name))?;
        serde_json::from_str(&shown.json).ok()
    }

    /// Returns the object to publish, with the time when it was first seen as its creation time.
    pub(super) fn with_creation(&self, definition: &Definition, now: &str) -> Value {
        let mut object = definition.object();
        let metadata = &mut object["metadata"];
        if metadata.get("creationTimestamp").is_none_or(Value::is_null) {
            let created = self
                .published_definition(&definition.key())
                .map(|mut shown| shown["metadata"]["creationTimestamp"].take());
            metadata["creationTimestamp"] = created.filter(Value::is_string).unwrap_or_else(|| now.into());
        }
        object
    }
}

/// The key of a definition in the store of objects.
pub(super) fn key(name: &DefinitionName) -> Key {
    Key::new(name.0.resource(), &name.1, &name.2)
}
