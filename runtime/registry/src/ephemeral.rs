//! Ephemeral containers, which only the API adds to existing pods. No source contains them, so that the
//! engine stores them in a file beside the pod's record. They are removed with the pod.

use std::rc::Rc;

use serde_json::Value;

use super::present::Present;
use super::request::refused;
use super::{Applied, Change, FieldValidation, Registry, Status, Wanted, preconditions};
use nodlet_core::spec::Pod;
use nodlet_kube::manifest;

/// The maximum size of the ephemeral containers of all pods together, as JSON in bytes: some hundreds of
/// containers, which stay until their pods are removed.
const MAX_EPHEMERAL_BYTES: usize = 512 * 1024;

impl Registry {
    /// The admitted pod of the successor of `gone`, which has the same UID: `new` is that of the core. A pod that resumes
    /// is the same pod again.
    pub fn successor_of(&self, gone: &Rc<Wanted>, new: Option<&Pod>, resumes: bool) -> Rc<Wanted> {
        if resumes {
            return gone.clone();
        }
        let name = new.map(|pod| (pod.namespace.clone(), pod.name.clone()));
        let desired = name.and_then(|name| self.desired(&name));
        without(desired.filter(|desired| desired.pod.uid == gone.pod.uid).unwrap_or(gone))
    }

    /// Decides on a change of the ephemeral containers of a pod. Returns the pod with them. `all` are the
    /// pods of the node.
    ///
    /// # Errors
    /// The pod does not meet the preconditions, or the containers are invalid.
    pub fn change_ephemeral(
        &self,
        name: &str,
        change: Change,
        validation: FieldValidation,
        present: &Present,
        all: &[Rc<Wanted>],
    ) -> Result<(Rc<Wanted>, Applied), Status> {
        let old = &present.wanted;
        if present.is_unwanted {
            let why = "the pod is being deleted: no container starts in it any more";
            return Err(Status::conflict("pods", name, why));
        }
        let current = self.current(present);
        let new = change.apply(&current)?;
        preconditions::check(&current, &new, ("pods", name))?;
        let list = match &new["spec"]["ephemeralContainers"] {
            Value::Null => Vec::new(),
            Value::Array(list) => list.clone(),
            _ => return Err(Status::bad_request("spec.ephemeralContainers: must be a list")),
        };
        let before: Value = serde_json::from_str(old.object.get()).map_err(Status::internal)?;
        let mut object = before.clone();
        // Each added container is a change of the spec.
        let added = list.len().saturating_sub(old.pod.spec.ephemeral_containers.len());
        object["metadata"]["generation"] = (old.pod.generation + added as u64).into();
        object["spec"]["nodeName"] = self.node.as_str().into();
        let mut manifest = manifest::read_ephemeral(object, list, validation, &self.node)
            .map_err(|error| refused(&error))?;
        manifest.warnings = manifest::new_warnings(manifest.warnings, &before);
        let wanted = old.changed(manifest);
        let used: usize = all.iter().map(|pod| bytes_of(pod)).sum();
        if (used + bytes_of(&wanted)).saturating_sub(bytes_of(old)) > MAX_EPHEMERAL_BYTES {
            let why = "the ephemeral containers of all pods together would have more than 512 KiB: delete a \
                       pod that has some";
            return Err(Status::forbidden(format!("pods \"{name}\" is forbidden: {why}")));
        }
        let same = wanted.pod.spec.ephemeral_containers.len() == old.pod.spec.ephemeral_containers.len();
        Ok((Rc::new(wanted), if same { Applied::Unchanged } else { Applied::Configured }))
    }
}

/// Returns the pod as in its source, without ephemeral containers.
pub fn without(wanted: &Rc<Wanted>) -> Rc<Wanted> {
    if wanted.pod.spec.ephemeral_containers.is_empty() {
        return wanted.clone();
    }
    let mut object = serde_json::from_str(wanted.object.get()).unwrap_or(Value::Null);
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("ephemeralContainers");
    }
    let pod = Rc::new((*wanted.pod).clone().without_ephemeral());
    object["metadata"]["generation"] = pod.generation.into();
    Rc::new(wanted.changed(manifest::Manifest { pod, object, warnings: Vec::new() }))
}

/// Returns `spec.ephemeralContainers` as admitted.
pub fn list_of(wanted: &Wanted) -> Value {
    let mut object: Value = serde_json::from_str(wanted.object.get()).unwrap_or(Value::Null);
    object["spec"]["ephemeralContainers"].take()
}

/// Adds ephemeral containers to the object of a pod without any.
pub(super) fn put_list(mut object: Value, list: Value) -> Value {
    let generation = object["metadata"]["generation"].as_u64().unwrap_or(1);
    let added = list.as_array().map_or(0, Vec::len);
    object["metadata"]["generation"] = (generation + added as u64).into();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("ephemeralContainers".to_owned(), list);
    }
    object
}

/// Returns the published object of a pod with the ephemeral containers of `wanted`.
pub fn with_list(mut published: Value, wanted: &Wanted) -> Value {
    if !wanted.pod.spec.ephemeral_containers.is_empty() {
        published["spec"]["ephemeralContainers"] = list_of(wanted);
    }
    published
}

/// The approximate size of the ephemeral containers of a pod in bytes.
fn bytes_of(wanted: &Wanted) -> usize {
    if wanted.pod.spec.ephemeral_containers.is_empty() { 0 } else { list_of(wanted).to_string().len() }
}
