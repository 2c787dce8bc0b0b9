//! Parses manifests into Pods and definitions: YAML or JSON, one or several documents, `List`s. Objects are checked
//! against the schema, and defaulted and validated as in a cluster, with its messages.
//!
//! ```text
//! bytes ─ yaml | json ─► objects ─ walk ─► known fields ─ verdict ─► acted on
//!       ─ defaults ─► as `get -o yaml` shows it ─ validate ─► right ─ convert ─► spec::Pod
//! ```
//!
//! A file is accepted as a whole or not at all: one invalid object rejects all objects of the file. This module reads
//! no file, no clock and no network. Manifests are untrusted input: their size is limited, and each error names the
//! file, the document, the line or the field, and a valid alternative.
//! Read next: [`nodlet_core::node`], which gets the parsed pods.

mod cdi;
pub mod class;
pub(crate) mod config;
mod config_data;
mod convert;
mod defaults;
pub(crate) mod definition;
mod device_file;
mod documents;
mod emit;
mod find;
mod identity;
mod locate;
pub mod persistent;
pub(crate) mod preset;
pub mod priority;
pub mod runtime_class;
mod unsupported;
pub mod update;
pub(crate) mod validate;
mod yaml;

use std::rc::Rc;

use serde_json::{Value, json};

use crate::kind::Kind;
use crate::kinds;
use crate::object::field::{self, Errors};
use crate::object::value::list;
use crate::object::{rules, walk};
use crate::schema;
use nodlet_core::spec::Pod;

pub use crate::object::error::{ManifestCause, ManifestError, SIZE_LIMIT};
pub use crate::object::field::{FieldError, FieldErrorKind, go_quoted};
pub use crate::object::json::{self, VALUES};
pub use crate::object::walk::Validation;
pub use cdi::{CDI_ANNOTATION, CdiEdits, CdiMount, CdiNode, cdi_edits, cdi_names};
pub use config_data::ConfigData;
pub use definition::Definition;
use definition::Read;
pub use device_file::{DeviceDefinition, DeviceSource, parse_device_file};
use documents::{duplicates, read, with_place};
pub use emit::to_yaml;
pub use preset::{Applied, inject};
pub use priority::{Classes, Priority};

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

/// Whether a Node may have this name. The name also appears in files of the node's pods.
pub fn is_node_name(name: &str) -> bool {
    rules::dns_subdomain(name).is_empty()
}

/// Returns the name of the Node for a machine's host name: in lower case, and with `-` for characters that are valid
/// in host names of Linux and invalid in names of Nodes, such as `_`. `None` if no valid name is left.
pub fn node_name_of(host_name: &str) -> Option<String> {
    let allowed =
        |of: char| if of.is_ascii_alphanumeric() || of == '.' { of.to_ascii_lowercase() } else { '-' };
    let name: String = host_name.trim().chars().map(allowed).collect();
    let labels: Vec<&str> = name.split('.').map(|label| label.trim_matches('-')).collect();
    let labels: Vec<&str> = labels.into_iter().filter(|label| !label.is_empty()).collect();
    Some(labels.join(".")).filter(|name| is_node_name(name))
}

/// Validates the key and the value of a label.
///
/// # Errors
/// The key or the value is invalid, for the reason in the message.
pub fn check_label(key: &str, value: &str) -> Result<(), String> {
    let wrong = |what: &str, errors: Vec<String>| {
        errors.first().map_or(Ok(()), |error| Err(format!("labels; {what:?} is invalid: {error}")))
    };
    wrong(key, rules::qualified_name(key))?;
    wrong(value, rules::label_value(value))
}

/// The objects of a file.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The Pods of the file.
    pub pods: Vec<Manifest>,
    /// All other objects of the file.
    pub definitions: Vec<Definition>,
}

/// Reads only the Pods of a file; see [`contents`].
pub fn parse(
    name: &str,
    bytes: &[u8],
    validation: Validation,
    node: &str,
) -> Result<Vec<Manifest>, ManifestError> {
    contents(name, bytes, validation, node).map(|contents| contents.pods)
}

/// Reads all objects of a file. `name` is the name of the file, for messages and UIDs; `node` is the name of this
/// node.
pub fn contents(
    name: &str,
    bytes: &[u8],
    validation: Validation,
    node: &str,
) -> Result<Contents, ManifestError> {
    let (text, documents) = read(name, bytes)?;
    let mut contents = Contents::default();
    let manifests = &mut contents.pods;
    let definitions = &mut contents.definitions;
    for mut document in documents {
        let value = document.value.take();
        let place = |error: ManifestError, at: &str| with_place(error, &text, &document, at);
        let objects = find::objects(value);
        let mut repeated =
            duplicates(&document.duplicates, validation, &objects).map_err(|error| place(error, ""))?;
        for found in objects.map_err(|message| place(ManifestError::of_kind(message), ""))? {
            if found.kind != Kind::Pod {
                let mut definition = definition(found.object, found.kind, validation, node, Some(name))
                    .map_err(|error| place(error, &found.at))?;
                definition.warnings.splice(0..0, repeated.drain(..));
                if definitions.iter().any(|other| other.key() == definition.key()) {
                    let name = match &*definition.namespace {
                        "" => definition.name.to_string(),
                        namespace => format!("{namespace}/{}", definition.name),
                    };
                    let error = ManifestError::new(ManifestCause::Repeated { name });
                    return Err(place(ManifestError { kind: found.kind, ..error }, &found.at));
                }
                definitions.push(definition);
                continue;
            }
            let mut manifest = read_pod(found.object, validation, node, Origin::File(name))
                .map_err(|error| place(error, &found.at))?;
            manifest.warnings.splice(0..0, repeated.drain(..));
            let same = |other: &Manifest| {
                (&other.pod.namespace, &other.pod.name) == (&manifest.pod.namespace, &manifest.pod.name)
            };
            if manifests.iter().any(same) {
                let name = format!("{}/{}", manifest.pod.namespace, manifest.pod.name);
                return Err(place(ManifestError::new(ManifestCause::Repeated { name }), &found.at));
            }
            manifests.push(manifest);
        }
    }
    if manifests.is_empty() && definitions.is_empty() {
        return Err(text.empty());
    }
    Ok(contents)
}

/// An object of a file without defaults and validation, for clients that send it to an agent.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object, of which only `apiVersion` and `kind` have been checked.
    pub object: Value,
    /// The number of the document in a file with several, from 1.
    pub document: Option<usize>,
    /// Warnings about duplicate fields of the document, which are no longer visible in the object.
    pub warnings: Vec<String>,
}

/// Reads the objects of a file without validation, which is for the agent that will run them. Only duplicate fields
/// are reported here, because they are no longer visible in the object. Errors of documents without an object for an
/// agent are returned beside the objects.
///
/// # Errors
/// The file cannot be parsed into documents, or has none.
pub fn written(
    name: &str,
    bytes: &[u8],
    validation: Validation,
) -> Result<(Vec<Written>, Vec<ManifestError>), ManifestError> {
    let (text, documents) = read(name, bytes)?;
    let (mut objects, mut refused) = (Vec::new(), Vec::new());
    for mut document in documents {
        let value = document.value.take();
        let of_document = find::objects(value);
        let found = duplicates(&document.duplicates, validation, &of_document)
            .and_then(|repeated| Ok((repeated, of_document.map_err(ManifestError::of_kind)?)));
        let number = text.several.then_some(document.number);
        match found {
            Ok((mut repeated, found)) => objects.extend(found.into_iter().map(|found| Written {
                object: found.object,
                document: number,
                warnings: std::mem::take(&mut repeated),
            })),
            Err(error) => refused.push(with_place(error, &text, &document, "")),
        }
    }
    if objects.is_empty() && refused.is_empty() {
        return Err(text.empty());
    }
    Ok((objects, refused))
}

/// Reads a new Pod from the API. The caller has set `metadata.uid`.
pub fn admit(object: Value, validation: Validation, node: &str) -> Result<Manifest, ManifestError> {
    read_pod(single_pod(object)?, validation, node, Origin::Api)
}

/// Reads an object from the API that is not a Pod. The caller has set `metadata.uid`.
pub fn admit_definition(
    object: Value,
    kind: Kind,
    validation: Validation,
    node: &str,
) -> Result<Definition, ManifestError> {
    definition(single_of_kind(object, kind)?, kind, validation, node, None)
}

fn definition(
    object: Value,
    kind: Kind,
    validation: Validation,
    node: &str,
    file: Option<&str>,
) -> Result<Definition, ManifestError> {
    let read = match kinds::strategy(kind).reader.as_ref().map(|reader| &reader.read) {
        Some(Read::Rules(rules)) => definition::read(kind, object, *rules, (validation, node, file)),
        Some(Read::Own(read)) => read(object, validation, node, file),
        None => {
            let name = kind.as_str();
            return Err(ManifestError::of_kind(format!("a {name} cannot be handled as a definition")));
        }
    };
    read.map_err(|error| ManifestError { kind, ..error })
}

/// Checks an update of a definition by a client: the existing object and the new one.
///
/// # Errors
/// The rules of the kind do not allow the change.
pub fn check_definition_update(kind: Kind, old: &Value, new: &Value) -> Result<(), ManifestError> {
    kinds::strategy(kind).reader.as_ref().map_or(Ok(()), |reader| (reader.check_update)(old, new))
}

fn single_pod(object: Value) -> Result<Value, ManifestError> {
    single_of_kind(object, Kind::Pod)
}

fn single_of_kind(object: Value, kind: Kind) -> Result<Value, ManifestError> {
    let found = single(object)?;
    if found.kind == kind {
        return Ok(found.object);
    }
    let (given, kind) = (found.kind.as_str(), kind.as_str());
    Err(ManifestError::of_kind(format!("a {given} cannot be handled as a {kind}")))
}

fn single(object: Value) -> Result<find::Found, ManifestError> {
    let found = find::objects(object).map_err(ManifestError::of_kind)?;
    let [found] = <[find::Found; 1]>::try_from(found)
        .map_err(|_| ManifestError::of_kind("one object is created at a time, not a List".to_owned()))?;
    Ok(found)
}

/// Reads an update of an admitted Pod, as sent by a client.
///
/// # Errors
/// The Pod is invalid. [`update::compare`] checks whether the update is allowed.
pub fn admit_update(object: Value, validation: Validation, node: &str) -> Result<Manifest, ManifestError> {
    read_pod(single_pod(object)?, validation, node, Origin::Before)
}

/// Reads an admitted Pod again, with the ephemeral containers that were added since.
pub fn admit_again(object: Value, node: &str) -> Result<Manifest, ManifestError> {
    read_pod(single_pod(object)?, Validation::Ignore, node, Origin::Before)
}

/// Reads an admitted Pod with the ephemeral containers `wanted`. Existing ephemeral containers can be neither removed
/// nor changed, and keep their order.
pub fn admit_ephemeral(
    mut object: Value,
    mut wanted: Vec<Value>,
    validation: Validation,
    node: &str,
) -> Result<Manifest, ManifestError> {
    let Some(spec) = object["spec"].as_object_mut() else {
        return Err(ManifestError::of_kind("a Pod has a spec".to_owned()));
    };
    let old = match spec.remove("ephemeralContainers") {
        Some(Value::Array(old)) => old,
        Some(_) | None => Vec::new(),
    };
    let place = |new: &Value| old.iter().position(|old| old["name"] == new["name"]).unwrap_or(old.len());
    wanted.sort_by_key(place);
    spec.insert("ephemeralContainers".to_owned(), wanted.into());
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let manifest = read_pod(object, validation, node, Origin::Before)?;
    let mut errors = Errors::default();
    validate::only_added(&old, list(&manifest.object["spec"], "ephemeralContainers"), &mut errors);
    if errors.is_empty() {
        return Ok(manifest);
    }
    let (errors, more) = errors.into_parts();
    Err(ManifestError::new(ManifestCause::Invalid { name, errors, more }))
}

/// The origin of an object.
#[derive(Clone, Copy, Debug)]
enum Origin<'a> {
    /// A file with this name.
    File(&'a str),
    /// A client that creates a pod.
    Api,
    /// An existing pod of this node.
    Before,
}

/// Reads one object whose `kind` is `Pod`.
fn read_pod(
    mut object: Value,
    validation: Validation,
    node: &str,
    from: Origin<'_>,
) -> Result<Manifest, ManifestError> {
    let file = match from {
        Origin::File(name) => Some(name),
        Origin::Api | Origin::Before => None,
    };
    let written_name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let invalid = |errors: Errors| {
        let (errors, more) = errors.into_parts();
        ManifestError::new(ManifestCause::Invalid { name: written_name.clone(), errors, more })
    };

    let findings = match schema::find("Pod") {
        Some(pod) => walk::check(&mut object, pod),
        None => walk::Findings::default(),
    };
    let mut warnings = match validation {
        Validation::Strict if !findings.unknown.is_empty() => {
            let messages = findings.unknown.texts(ToString::to_string);
            let paths = findings.unknown.into_parts().0.into_iter().map(|unknown| unknown.path).collect();
            return Err(ManifestError::new(ManifestCause::Strict { messages, paths }));
        }
        Validation::Warn => findings.unknown.texts(ToString::to_string),
        Validation::Strict | Validation::Ignore => Vec::new(),
    };
    if !findings.errors.is_empty() {
        return Err(invalid(findings.errors));
    }

    set_server_fields(&mut object, node, file);
    let unsupported = unsupported::check(&object);
    warnings.extend(unsupported.warnings.texts(String::clone));
    defaults::apply(&mut object);
    let mut errors = validate::pod(&object);
    match from {
        Origin::File(_) | Origin::Api => validate::no_ephemeral(&object, &mut errors),
        Origin::Before => {}
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

/// Removes the warnings that apply to the object `before` the update as well: a client that changes a pod
/// sends it back with all defaults, of which some have no effect.
pub fn new_warnings(mut warnings: Vec<String>, before: &Value) -> Vec<String> {
    if !warnings.is_empty() {
        let known = unsupported::check(before).warnings.texts(String::clone);
        warnings.retain(|warning| !known.contains(warning));
    }
    warnings
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
fn set_server_fields(object: &mut Value, node: &str, file: Option<&str>) {
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
    let asked = object["spec"]["nodeName"].as_str().unwrap_or_default();
    if !asked.is_empty() && asked != node {
        let path = field::Path::root("spec");
        let detail = format!("this node is {}: leave the field out", field::quoted(node));
        errors.push(FieldError::invalid(&path.child("nodeName"), asked, detail));
    }
    if object["metadata"]["uid"].as_str().is_none_or(str::is_empty) {
        let path = field::Path::root("metadata");
        errors.push(FieldError::required(&path.child("uid"), ""));
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod fuzz_tests;
