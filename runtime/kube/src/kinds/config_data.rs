//! The data of ConfigMaps and Secrets: named values of a namespace, as both are checked, updated and described, and
//! decoded, as pods use them. Pure.
//!
//! No message may contain a value of a Secret: errors and warnings reach logs, events and clients.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::definition::{self, Definition};
use super::describe::Tabs;
use super::describe::text::{annotations, labels, of};
use crate::base64;
use crate::kind::Kind;
use crate::object::error::ManifestError;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use nodlet_core::sorted::SortedMap;

/// Maximum size of all values of one object in bytes (`MaxSecretSize`).
pub(super) const MAX_SIZE: usize = 1024 * 1024;

/// Placeholder that Kubernetes prints for a Secret's value.
pub(super) const REDACTED: &str = "\"<secret contents redacted>\"";

const IMMUTABLE: &str = "field is immutable when `immutable` is set";

/// The decoded data of a ConfigMap or Secret.
#[derive(Default)]
pub struct ConfigData {
    /// `data`.
    pub data: SortedMap<String, Arc<[u8]>>,
    /// `binaryData` of a ConfigMap.
    pub binary_data: SortedMap<String, Arc<[u8]>>,
}

impl std::fmt::Debug for ConfigData {
    /// Prints no value: it may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<&String> = self.data.keys().collect();
        f.debug_struct("ConfigData").field("keys", &keys).finish_non_exhaustive()
    }
}

impl ConfigData {
    /// Decodes the data of `definition`.
    pub fn of(definition: &Definition) -> ConfigData {
        let object = definition.object();
        let values = |field: &str, is_encoded: bool| {
            let map = object[field].as_object().into_iter().flatten();
            map.map(|(key, value)| {
                let text = value.as_str().unwrap_or_default();
                let value = if is_encoded {
                    base64::decode(text.as_bytes()).unwrap_or_default()
                } else {
                    text.into()
                };
                (key.clone(), Arc::from(value))
            })
            .collect()
        };
        ConfigData {
            data: values("data", definition.kind == Kind::Secret),
            binary_data: values("binaryData", true),
        }
    }
}

/// Checks a map of values in base64, and writes them as Go does. Returns the bytes that they stand for.
pub(super) fn binary(field: &str, fields: &mut Map<String, Value>, errors: &mut Errors) -> usize {
    let root = Path::root(field);
    let mut size = 0;
    for (key, value) in fields.get_mut(field).and_then(Value::as_object_mut).into_iter().flatten() {
        check_key(&root, key, errors);
        match base64::decode(value.as_str().unwrap_or_default().as_bytes()) {
            Ok(bytes) => {
                size += bytes.len();
                *value = base64::encode(&bytes).into();
            }
            Err(place) => {
                let detail = format!("illegal base64 data at input byte {place}");
                let printed = if field == "data" { REDACTED } else { "\"<contents redacted>\"" };
                errors.push(FieldError::invalid_printed(&root.key(key), printed.to_owned(), detail));
            }
        }
    }
    size
}

/// Validates a key (`IsConfigMapKey`).
pub(super) fn check_key(root: &Path<'_>, key: &str, errors: &mut Errors) {
    for why in rules::config_map_key(key) {
        errors.push(FieldError::invalid(&root.key(key), key, why));
    }
}

/// Checks an update of a ConfigMap or Secret (`ValidateConfigMapUpdate`, `ValidateSecretUpdate`).
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
pub(super) fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    if old["type"] != new["type"] {
        let kind = new["type"].as_str().unwrap_or_default();
        errors.push(FieldError::invalid(&Path::root("type"), kind, "field is immutable"));
    }
    if old["immutable"] == true {
        for field in ["immutable", "data", "binaryData"] {
            if old[field] != new[field] {
                errors.push(FieldError::forbidden(&Path::root(field), IMMUTABLE));
            }
        }
    }
    definition::refuse_update(new, errors)
}

/// The lines that the descriptions of ConfigMaps and Secrets begin with.
pub(super) fn head(out: &mut Tabs, object: &Value) {
    let metadata = &object["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    out.line(0, &format!("Namespace:\t{}", of(&metadata["namespace"])));
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
}

/// The entries of a map, by their keys; none where there is none.
pub(super) fn entries(map: &Value) -> Vec<(&String, &Value)> {
    let mut entries: Vec<(&String, &Value)> = map.as_object().into_iter().flatten().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

/// The bytes that a value in base64 stands for.
pub(super) fn size(value: &Value) -> usize {
    of(value).trim_end_matches('=').len() * 3 / 4
}

#[cfg(test)]
mod tests;
