//! Secrets (`v1`), as they are read, and as `kubectl get` and `kubectl describe secret` print them: never with a value.
//! Pure.
//!
//! No message may contain a value of a Secret: errors and warnings reach logs, events and clients.

use serde_json::Value;

use super::config_data::{MAX_SIZE, REDACTED, binary, check_update, size};
use super::definition::{self, Definition, Read, Reader};
use super::describe::Tabs;
use super::describe::text::{entries, head, of};
use super::strategy::{AGE, Column, NAME, Strategy, column, of as column_of};
use crate::base64;
use crate::kind::Kind;
use crate::object::check::Field;
use crate::object::error::{ManifestCause, ManifestError};
use crate::object::field::{Errors, FieldErrorKind};
use crate::object::json;
use crate::object::walk::Validation;

pub(super) static STRATEGY: Strategy = Strategy {
    has_events: false,
    reader: Some(Reader { read: Read::Own(read), check_update }),
    ..Strategy::new(COLUMNS, describe)
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Type", "/type"),
    column_of("Data", "", |secret, _, _| entries(&secret["data"]).len().into()),
    AGE,
];

/// kubectl also prints the token of a service account; here no value is printed.
fn describe(out: &mut Tabs, secret: &Value, _: &[Value]) {
    head(out, secret);
    out.line(0, &format!("\nType:\t{}\n\nData\n====", of(&secret["type"])));
    for (key, value) in entries(&secret["data"]) {
        out.line(0, &format!("{key}:\t{} bytes", size(value)));
    }
}

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

/// Reads a Secret. `file` is `None` for objects from the API.
fn read(
    object: Value,
    validation: Validation,
    node: &str,
    file: Option<&str>,
) -> Result<Definition, ManifestError> {
    let read = definition::read(Kind::Secret, object, rules, (validation, node, file));
    read.map_err(|mut error| {
        if let ManifestCause::Invalid { errors, .. } = &mut error.cause {
            for error in errors.iter_mut().filter(|error| error.kind == FieldErrorKind::TypeInvalid) {
                REDACTED.clone_into(&mut error.value);
            }
        }
        error
    })
}

/// Converts, defaults and validates a Secret (`ValidateSecret`).
fn rules(secret: &mut Value, metadata: &Value, errors: &mut Errors) {
    if let Some(Value::Object(texts)) = secret.as_object_mut().and_then(|secret| secret.remove("stringData"))
    {
        for (key, text) in texts {
            secret["data"][key] = base64::encode(text.as_str().unwrap_or_default().as_bytes()).into();
        }
    }
    if of(&secret["type"]).is_empty() {
        secret["type"] = OPAQUE.into();
    }
    let size = binary("data", secret, errors);
    let data = Field::root(&secret["data"], "data", errors);
    if size > MAX_SIZE {
        data.too_long(MAX_SIZE);
    }
    let value = |key: &str| secret["data"].get(key)?.as_str();
    let required = |key: &str| data.key(key).required("");
    match RULES.iter().find(|(of, _)| secret["type"] == *of).map(|(_, rule)| rule) {
        Some(Rule::All(keys)) => keys.iter().filter(|key| value(key).is_none()).for_each(|key| required(key)),
        Some(Rule::Any(keys)) if keys.iter().all(|key| value(key).is_none()) => {
            keys.iter().for_each(|key| required(key));
        }
        Some(Rule::Filled(key)) => data.key(key).require(),
        Some(Rule::Json(key)) => {
            let text = value(key).map(|value| base64::decode(value.as_bytes()).unwrap_or_default());
            let is_object = |(value, _): (Value, _)| value.is_object() || value.is_null();
            match text.map(|text| json::value(&text).is_ok_and(is_object)) {
                None => required(key),
                Some(true) => {}
                Some(false) => data.key(key).invalid_printed(REDACTED.to_owned(), "must be a JSON object"),
            }
        }
        Some(Rule::Annotation(name)) => {
            let metadata = Field::root(metadata, "metadata", errors);
            metadata.child("annotations").key(name).require();
        }
        Some(Rule::Any(_)) | None => {}
    }
}
