//! The data of ConfigMaps and Secrets: named values of a namespace, as both are checked, updated and described, and
//! decoded, as pods use them. Pure.
//!
//! No message may contain a value of a Secret: errors and warnings reach logs, events and clients.

use std::sync::Arc;

use serde_json::Value;

use super::definition::{self, Definition};
use super::describe::text::of;
use crate::base64;
use crate::kind::Kind;
use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::Errors;
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
pub(super) fn binary(field: &str, object: &mut Value, errors: &mut Errors) -> usize {
    let root = Field::root(&Value::Null, field, errors);
    let mut size = 0;
    for (key, value) in object.get_mut(field).and_then(Value::as_object_mut).into_iter().flatten() {
        root.key(key).check_text(key, rules::config_map_key);
        match base64::decode(value.as_str().unwrap_or_default().as_bytes()) {
            Ok(bytes) => {
                size += bytes.len();
                *value = base64::encode(&bytes).into();
            }
            Err(place) => {
                let detail = format!("illegal base64 data at input byte {place}");
                let printed = if field == "data" { REDACTED } else { "\"<contents redacted>\"" };
                root.key(key).invalid_printed(printed.to_owned(), detail);
            }
        }
    }
    size
}

/// Checks an update of a ConfigMap or Secret (`ValidateConfigMapUpdate`, `ValidateSecretUpdate`).
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
pub(super) fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    definition::immutable(old, new, "type", &mut errors);
    if old["immutable"] == true {
        for field in ["immutable", "data", "binaryData"] {
            if old[field] != new[field] {
                Field::root(&new[field], field, &mut errors).forbidden(IMMUTABLE);
            }
        }
    }
    definition::refuse_update(new, errors)
}

/// The bytes that a value in base64 stands for.
pub(super) fn size(value: &Value) -> usize {
    of(value).trim_end_matches('=').len() * 3 / 4
}

#[cfg(test)]
mod tests;
