//! Secrets (`v1`), as they are read, and as `kubectl get` and `kubectl describe secret` print them: never with a value.
//! Pure.
//!
//! No message may contain a value of a Secret: errors and warnings reach logs, events and clients.

use serde_json::{Map, Value};

use super::cells::{age, text, timestamp};
use super::config_data::{MAX_SIZE, REDACTED, binary, check_update, entries, head, size};
use super::definition::{self, Definition, Read, Reader};
use super::describe::Tabs;
use super::describe::text::of;
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use crate::base64;
use crate::kind::Kind;
use crate::object::error::{ManifestCause, ManifestError};
use crate::object::field::{Errors, FieldError, FieldErrorKind, Path};
use crate::object::json;
use crate::object::walk::Validation;
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::Alone(describe),
    reader: Some(Reader { read: Read::Own(read), check_update }),
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Type", "string", "", 0),
    ("Data", "string", "", 0),
    ("Age", "string", "", 0),
];

fn cells(secret: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        text(&secret["metadata"]["name"]).into(),
        text(&secret["type"]).into(),
        entries(&secret["data"]).len().into(),
        age(timestamp(&secret["metadata"]["creationTimestamp"]), now).into(),
    ]
}

/// kubectl also prints the token of a service account; here no value is printed.
fn describe(secret: &Value) -> String {
    let mut tabs = Tabs::default();
    let out = &mut tabs;
    head(out, secret);
    out.line(0, &format!("\nType:\t{}\n\nData\n====", of(&secret["type"])));
    for (key, value) in entries(&secret["data"]) {
        out.line(0, &format!("{key}:\t{} bytes", size(value)));
    }
    tabs.finish()
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
fn rules(fields: &mut Map<String, Value>, metadata: &Value, errors: &mut Errors) {
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
                    if json::value(&text).is_ok_and(|(value, _)| value.is_object() || value.is_null()) => {}
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
