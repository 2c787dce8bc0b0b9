//! ConfigMaps and Secrets (`v1`): named data of a namespace. Pure.
//!
//! No message may contain a value of a Secret: errors and warnings reach logs, events and clients.
//! Read next: `manifest/definition.rs`, which validates the metadata.

use serde_json::{Map, Value};

use super::Definition;
use super::definition::{self, Read, Reader};
use crate::kind::Kind;
use crate::object::error::{ManifestCause, ManifestError};
use crate::object::field::{Errors, FieldError, FieldErrorKind, Path};
use crate::object::rules;
use crate::object::walk::Validation;
use nodlet_wire::base64;

/// Maximum size of all values of one object in bytes (`MaxSecretSize`).
const MAX_SIZE: usize = 1024 * 1024;

/// Placeholder that Kubernetes prints for a Secret's value.
const REDACTED: &str = "\"<secret contents redacted>\"";

const IMMUTABLE: &str = "field is immutable when `immutable` is set";

/// The type of a Secret without one.
const OPAQUE: &str = "Opaque";

/// A requirement for Secrets of a type.
enum Rule {
    /// All of these keys.
    All(&'static [&'static str]),
    /// One of these keys.
    Any(&'static [&'static str]),
    /// This key, with a value that is not empty.
    Filled(&'static str),
    /// This key, with a JSON object.
    Json(&'static str),
    /// This annotation.
    Annotation(&'static str),
}

/// The rules of `ValidateSecret`, by type. Secrets of other types have none.
const RULES: [(&str, Rule); 6] = [
    ("kubernetes.io/basic-auth", Rule::Any(&["username", "password"])),
    ("kubernetes.io/dockercfg", Rule::Json(".dockercfg")),
    ("kubernetes.io/dockerconfigjson", Rule::Json(".dockerconfigjson")),
    ("kubernetes.io/service-account-token", Rule::Annotation("kubernetes.io/service-account.name")),
    ("kubernetes.io/ssh-auth", Rule::Filled("ssh-privatekey")),
    ("kubernetes.io/tls", Rule::All(&["tls.crt", "tls.key"])),
];

/// Reads ConfigMaps.
pub(crate) const READER: Reader = Reader { read: Read::Rules(config_map), check_update };

/// Reads Secrets.
pub(crate) const SECRET_READER: Reader = Reader { read: Read::Own(read_secret), check_update };

/// Reads a Secret. `file` is `None` for objects from the API.
fn read_secret(
    object: Value,
    validation: Validation,
    node: &str,
    file: Option<&str>,
) -> Result<Definition, ManifestError> {
    let read = definition::read(Kind::Secret, object, secret, (validation, node, file));
    read.map_err(|mut error| {
        if let ManifestCause::Invalid { errors, .. } = &mut error.cause {
            for error in errors.iter_mut().filter(|error| error.kind == FieldErrorKind::TypeInvalid) {
                REDACTED.clone_into(&mut error.value);
            }
        }
        error
    })
}

/// Validates a ConfigMap (`ValidateConfigMap`).
fn config_map(fields: &mut Map<String, Value>, _: &Value, errors: &mut Errors) {
    let root = Path::root("data");
    let mut size = 0;
    for (key, value) in fields.get("data").and_then(Value::as_object).into_iter().flatten() {
        check_key(&root, key, errors);
        if fields.get("binaryData").is_some_and(|binary| binary.get(key).is_some()) {
            errors.push(FieldError::invalid(&root.key(key), key, "duplicate of key present in binaryData"));
        }
        size += value.as_str().map_or(0, str::len);
    }
    size += binary("binaryData", fields, errors);
    if size > MAX_SIZE {
        errors.push(FieldError::too_long(&Path::root(""), MAX_SIZE));
    }
}

/// Converts, defaults and validates a Secret (`ValidateSecret`).
fn secret(fields: &mut Map<String, Value>, metadata: &Value, errors: &mut Errors) {
    if let Some(Value::Object(texts)) = fields.remove("stringData") {
        let data = fields.entry("data").or_insert(Map::new().into());
        for (key, text) in texts {
            data[key] = base64::encode(text.as_str().unwrap_or_default().as_bytes()).into();
        }
    }
    let kind = match fields.get("type").and_then(Value::as_str) {
        None | Some("") => OPAQUE.to_owned(),
        Some(kind) => kind.to_owned(),
    };
    let root = Path::root("data");
    if binary("data", fields, errors) > MAX_SIZE {
        errors.push(FieldError::too_long(&root, MAX_SIZE));
    }
    let value = |key: &str| fields.get("data").and_then(|data| data.get(key)?.as_str());
    let mut required = |key: &str| errors.push(FieldError::required(&root.key(key), ""));
    match RULES.iter().find(|(of, _)| *of == kind).map(|(_, rule)| rule) {
        Some(Rule::All(keys)) => keys.iter().filter(|key| value(key).is_none()).for_each(|key| required(key)),
        Some(Rule::Any(keys)) if keys.iter().all(|key| value(key).is_none()) => {
            keys.iter().for_each(|key| required(key));
        }
        Some(Rule::Filled(key)) if value(key).unwrap_or_default().is_empty() => required(key),
        Some(Rule::Json(key)) => {
            match value(key).map(|value| base64::decode(value.as_bytes()).unwrap_or_default()) {
                None => required(key),
                Some(text)
                    if crate::object::json::value(&text)
                        .is_ok_and(|value| value.is_object() || value.is_null()) => {}
                Some(_) => errors.push(FieldError::invalid_printed(
                    &root.key(key),
                    REDACTED.to_owned(),
                    "must be a JSON object",
                )),
            }
        }
        Some(Rule::Annotation(name)) if metadata["annotations"][*name].as_str().is_none_or(str::is_empty) => {
            let root = Path::root("metadata");
            errors.push(FieldError::required(&root.child("annotations").key(name), ""));
        }
        Some(Rule::Any(_) | Rule::Filled(_) | Rule::Annotation(_)) | None => {}
    }
    fields.insert("type".to_owned(), kind.into());
}

/// Checks a map of values in base64, and writes them as Go does. Returns the bytes that they stand for.
fn binary(field: &str, fields: &mut Map<String, Value>, errors: &mut Errors) -> usize {
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
fn check_key(root: &Path<'_>, key: &str, errors: &mut Errors) {
    for why in rules::config_map_key(key) {
        errors.push(FieldError::invalid(&root.key(key), key, why));
    }
}

/// Checks an update of a ConfigMap or Secret (`ValidateConfigMapUpdate`, `ValidateSecretUpdate`).
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
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

#[cfg(test)]
mod tests;
