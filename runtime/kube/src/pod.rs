//! Reads Pods: checked against the schema, defaulted, validated, and converted for the core. Pure.
//!
//! Read next: [`nodlet_core::node`], which gets the parsed pods.

mod allowed_annotations;
pub(crate) mod board_annotations;
pub(crate) mod claim;
pub(crate) mod convert;
pub(crate) mod defaults;
mod identity;
mod runtime_annotations;
mod ulimit;
mod unsupported;
pub mod update;
pub(crate) mod validate;
mod warnings;

use std::rc::Rc;

use serde_json::{Value, json};

use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::{self, Errors};
use crate::object::walk::{self, Findings, Validation};
use crate::schema;
pub use allowed_annotations::AllowedAnnotations;
use nodlet_core::spec::Pod;
pub use ulimit::open_files;
use update::Existing;

/// A valid Pod.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The typed pod, for the core.
    pub pod: Rc<Pod>,
    /// The whole object with defaults applied, namespace and uid included, without status.
    pub object: Value,
    /// Warnings for people about fields without effect.
    pub warnings: Vec<String>,
}

/// The origin of an object.
#[derive(Debug)]
pub(crate) enum Origin<'a> {
    /// A file with this name.
    File(&'a str),
    /// A client that creates a pod.
    Api,
    /// An existing pod of this node.
    Before,
    /// A client that changes an existing pod of this node.
    Update(Existing<'a>),
}

/// Reads one object whose `kind` is `Pod`.
pub(crate) fn read(
    mut object: Value,
    validation: Validation,
    node: &str,
    from: Origin<'_>,
) -> Result<Manifest, ManifestError> {
    let file = match from {
        Origin::File(name) => Some(name),
        Origin::Api | Origin::Before | Origin::Update(_) => None,
    };
    let written_name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let invalid = |errors| ManifestError::invalid_name(&written_name, errors);

    let Findings { unknown, errors } = walk::check(&mut object, "Pod");
    let mut warnings = walk::warnings(unknown, validation)?;
    if !errors.is_empty() {
        return Err(invalid(errors));
    }

    set_server_fields(&mut object, node, file);
    let unsupported = unsupported::check(&object);
    warnings.extend(unsupported.warnings.texts(String::clone));
    defaults::apply(&mut object);
    let mut errors = validate::pod(&object);
    match from {
        Origin::File(_) => validate::of_new(&object, &mut errors),
        Origin::Api => {
            validate::mirror(&object, &mut errors);
            validate::of_new(&object, &mut errors);
        }
        Origin::Before => {}
        Origin::Update(existing) => errors = existing.check(&object, errors),
    }
    check_node(&object, node, &mut errors);
    let (rejected, more) = unsupported.rejected.into_parts();
    for error in rejected {
        // A value that is wrong in itself needs no second reason.
        if !errors.iter().any(|known| known.path.starts_with(&error.path)) {
            errors.push(error);
        }
    }
    errors.add_more(more);
    if !errors.is_empty() {
        return Err(invalid(errors));
    }
    let pod = convert::pod(&object);
    // A pod with scheduling gates is on no node yet.
    if let (false, Some(spec)) = (pod.is_gated(), object["spec"].as_object_mut()) {
        spec.insert("nodeName".to_owned(), json!(node));
    }
    Ok(Manifest { pod: Rc::new(pod), object, warnings })
}

/// Reads a new Pod of a client, with Kubernetes' warnings.
pub(crate) fn read_new(object: Value, validation: Validation, node: &str) -> Result<Manifest, ManifestError> {
    let mut manifest = read(object, validation, node, Origin::Api)?;
    manifest.warnings.extend(warnings::of_new(&manifest.object).texts(String::clone));
    Ok(manifest)
}

/// Removes the warnings that apply to the object `before` the update as well: a client that changes a pod
/// sends it back with all defaults, of which some have no effect.
pub fn new_warnings(mut warnings: Vec<String>, before: &Value) -> Vec<String> {
    if !warnings.is_empty() {
        let known = unsupported::check(before).warnings.texts(String::clone);
        warnings.retain(|warning| !known.contains(warning));
    }
    warnings
}

/// Removes the warnings about fields on which the control plane acts, from those about a pod of a cluster.
pub fn remove_warnings_of_cluster(warnings: &mut Vec<String>) {
    warnings.retain(|warning| !schema::OF_CLUSTER.iter().any(|why| warning.ends_with(why)));
}

/// Metadata fields that only a server sets. Clients send them back, and files must not have them.
const SERVER_FIELDS: [&str; 7] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
];

/// Sets the fields that the server sets (UID, namespace, generated name), and removes the status. From a file
/// it also removes all fields of [`SERVER_FIELDS`], which the output of `get -o yaml` contains.
pub(crate) fn set_server_fields(object: &mut Value, node: &str, file: Option<&str>) {
    let Some(map) = object.as_object_mut() else { return };
    map.remove("status");
    map.entry("spec").or_insert_with(|| json!({}));
    let mut generation = None;
    if let Value::Object(meta) = map.entry("metadata").or_insert_with(|| json!({}))
        && file.is_some()
    {
        let is_set = |field: &str| meta.get(field).is_some_and(|value| value != "");
        // Of a pod that has its identity of its own, as those that the agent itself writes down,
        // it counts the changes in place.
        generation = meta.get("generation").filter(|_| is_set("uid")).cloned();
        meta.retain(|field, _| !SERVER_FIELDS.contains(&field.as_str()));
    }
    let uid = file.map(|file| identity::uid(object, node, file));
    let Some(meta) = object["metadata"].as_object_mut() else { return };
    if let Some(generation) = generation {
        meta.insert("generation".to_owned(), generation);
    }
    let is_set =
        |meta: &serde_json::Map<String, Value>, field: &str| meta.get(field).is_some_and(|value| value != "");
    if !is_set(meta, "namespace") {
        meta.insert("namespace".to_owned(), json!("default"));
    }
    if let Some(uid) = uid
        && !is_set(meta, "uid")
    {
        meta.insert("uid".to_owned(), json!(uid));
    }
    // A name that is generated again for each file would be another pod each time.
    let text = |field: &str| meta.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let (None, None, Some(prefix), Some(uid)) = (file, text("name"), text("generateName"), text("uid")) {
        let prefix: String = prefix.chars().take(58).collect();
        let name = format!("{prefix}{}", identity::suffix(uid));
        meta.insert("name".to_owned(), json!(name));
    }
}

/// Rejects a pod that names another node, and an object from the API without a UID.
fn check_node(object: &Value, node: &str, errors: &mut Errors) {
    let spec = Field::root(&object["spec"], "spec", errors);
    let name = spec.child("nodeName");
    if !name.text().is_empty() && name.text() != node {
        name.invalid(format!("this node is {}: leave the field out", field::quoted(node)));
    }
    Field::root(&object["metadata"], "metadata", errors).child("uid").require();
}

#[cfg(test)]
mod tests;
