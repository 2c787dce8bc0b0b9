//! Parses manifests into Pods and definitions: YAML or JSON, one or several documents, `List`s. Objects are checked
//! against the schema, and defaulted and validated as in a cluster, with its messages.
//!
//! ```text
//! bytes ─ yaml | json ─► objects ─ walk ─► known fields ─ support ─► acted on
//!       ─ defaults ─► as `get -o yaml` shows it ─ validate ─► right ─ convert ─► spec::Pod
//! ```
//!
//! A file is accepted as a whole or not at all: one invalid object rejects all objects of the file. This module reads
//! no file, no clock and no network. Manifests are untrusted input: their size is limited, and each error names the
//! file, the document, the line or the field, and a valid alternative.
//! Read next: [`nodlet_core::node`], which gets the parsed pods.

mod cdi;
mod device_file;
pub(crate) mod documents;
mod emit;
mod find;
mod inject;
mod locate;
mod node_name;
pub mod priority;
mod yaml;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::kind::Kind;
use crate::kinds;
use crate::kinds::definition::{self, Read};
use crate::object::field::Errors;
use crate::object::value::list;
use crate::pod::{self, Origin};

pub use crate::kinds::applied::AppliedPreset;
pub use crate::kinds::config_data::ConfigData;
pub use crate::kinds::definition::Definition;
pub use crate::object::cdi::{CDI_ANNOTATION, cdi_names};
pub use crate::object::error::{ManifestCause, ManifestError, SIZE_LIMIT, TextError};
pub use crate::object::field::{FieldError, FieldErrorKind, go_quoted};
pub use crate::object::json::{self, VALUES};
pub use crate::object::rules::{label_value, qualified_name};
use crate::object::walk;
pub use crate::object::walk::Validation;
pub use crate::pod::{
    AllowedAnnotations, Manifest, new_warnings, open_files, remove_warnings_of_cluster, update,
};
pub use cdi::{CdiEdits, CdiMount, CdiNode, cdi_edits};
pub use device_file::{DeviceDefinition, DeviceSource, parse_device_file};
use documents::{duplicates, read, with_place};
pub use emit::to_yaml;
pub use inject::inject;
pub use node_name::{check_label, is_node_name, is_object_name, node_name_of};
pub use priority::{Classes, Priority};

/// The objects of a file.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The Pods of the file.
    pub pods: Vec<Manifest>,
    /// All other objects of the file.
    pub definitions: Vec<Definition>,
}

/// Reads the one object of a file of YAML or JSON that is not of the API, such as a kubeconfig.
///
/// # Errors
/// The text is not YAML, or not one object, with the file and the line.
pub fn object_of(file: &str, text: &str) -> Result<Value, TextError> {
    let documents =
        yaml::read(text).map_err(|error| TextError::new(format!("{file}:{}: {error}", error.line), error))?;
    match <[yaml::Document; 1]>::try_from(documents) {
        Ok([document]) if document.value.is_object() => match document.duplicates.iter().next() {
            Some((key, line)) => Err(format!("{file}:{line}: field {key:?} occurs twice").into()),
            None => Ok(document.value),
        },
        Ok(_) | Err(_) => Err(format!("{file}: is not one object").into()),
    }
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
    let mut known = BTreeSet::new();
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
                if !known.insert(definition.key()) {
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
            let mut manifest = pod::read(found.object, validation, node, Origin::File(name))
                .map_err(|error| place(error, &found.at))?;
            manifest.warnings.splice(0..0, repeated.drain(..));
            let (namespace, name) = (&manifest.pod.namespace, &manifest.pod.name);
            if !known.insert((Kind::Pod, namespace.clone(), name.clone())) {
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

/// Checks the types of the fields that a server sets, before it sets them: of `metadata`, and of the status of a Pod.
/// The fields of a Pod are all checked if it is `whole`.
///
/// # Errors
/// Fields have values of a wrong type.
pub fn check_types(object: &Value, kind: Kind, whole: bool) -> Result<(), ManifestError> {
    let fields: &[&str] = match (kind, whole) {
        (Kind::Pod, true) => &["metadata", "spec", "status"],
        (Kind::Pod, false) => &["metadata", "status"],
        (_, _) => &["metadata"],
    };
    let given = fields.iter().filter_map(|field| Some(((*field).to_owned(), object.get(*field)?.clone())));
    let mut given = Value::Object(given.collect());
    let errors = walk::check(&mut given, "Pod").errors;
    if errors.is_empty() {
        return Ok(());
    }
    Err(ManifestError { kind, ..ManifestError::invalid(object, errors) })
}

/// Reads a new Pod from the API. The caller has set `metadata.uid`.
pub fn read_new(object: Value, validation: Validation, node: &str) -> Result<Manifest, ManifestError> {
    pod::read_new(single_pod(object)?, validation, node)
}

/// Reads an object from the API that is not a Pod. The caller has set `metadata.uid`.
pub fn read_new_definition(
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

fn single(object: Value) -> Result<find::FoundObject, ManifestError> {
    let found = find::objects(object).map_err(ManifestError::of_kind)?;
    let [found] = <[find::FoundObject; 1]>::try_from(found).map_err(|_| {
        ManifestError::of_kind("a List cannot be created: send each object separately".to_owned())
    })?;
    Ok(found)
}

/// Reads an update of an admitted Pod, as sent by a client.
///
/// # Errors
/// The Pod is invalid, or changes in `existing` what may not change. [`update::compare`] checks whether the update of
/// another pod is allowed.
pub fn read_update(
    object: Value,
    validation: Validation,
    node: &str,
    existing: Option<update::Existing<'_>>,
) -> Result<Manifest, ManifestError> {
    pod::read(single_pod(object)?, validation, node, existing.map_or(Origin::Before, Origin::Update))
}

/// Reads an admitted Pod again, with the ephemeral containers that were added since.
pub fn read_again(object: Value, node: &str) -> Result<Manifest, ManifestError> {
    pod::read(single_pod(object)?, Validation::Ignore, node, Origin::Before)
}

/// Reads an admitted Pod with the ephemeral containers `wanted`. Existing ephemeral containers can be neither removed
/// nor changed, and keep their order.
pub fn read_ephemeral(
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
    let manifest = pod::read(object, validation, node, Origin::Before)?;
    let mut errors = Errors::default();
    pod::validate::only_added(&old, list(&manifest.object["spec"], "ephemeralContainers"), &mut errors);
    if errors.is_empty() { Ok(manifest) } else { Err(ManifestError::invalid(&manifest.object, errors)) }
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod fuzz_tests;
