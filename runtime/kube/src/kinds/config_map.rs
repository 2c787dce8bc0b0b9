//! ConfigMaps (`v1`), as they are read, and as `kubectl get` and `kubectl describe configmap` print them. Pure.

use serde_json::{Map, Value};

use super::cells::{age, text, timestamp};
use super::config_data::{MAX_SIZE, binary, check_key, check_update, entries, head, size};
use super::definition::{Read, Reader};
use super::describe::text::of;
use super::describe::{Tabs, events};
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use crate::object::field::{Errors, FieldError, Path};
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(describe),
    reader: Some(Reader { read: Read::Rules(rules), check_update }),
};

const COLUMNS: &[Column] =
    &[("Name", "string", "name", 0), ("Data", "string", "", 0), ("Age", "string", "", 0)];

fn cells(map: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        text(&map["metadata"]["name"]).into(),
        (entries(&map["data"]).len() + entries(&map["binaryData"]).len()).into(),
        age(timestamp(&map["metadata"]["creationTimestamp"]), now).into(),
    ]
}

/// Describes a ConfigMap, with its events if they are requested.
fn describe(map: &Value, events: Option<Vec<Value>>) -> String {
    let mut tabs = Tabs::default();
    let out = &mut tabs;
    head(out, map);
    out.line(0, "\nData\n====");
    for (key, value) in entries(&map["data"]) {
        out.line(0, &format!("{key}:\n----\n{}\n", of(value)));
    }
    out.line(0, "\nBinaryData\n====");
    for (key, value) in entries(&map["binaryData"]) {
        out.line(0, &format!("{key}: {} bytes", size(value)));
    }
    out.line(0, "");
    if let Some(events) = events {
        events::describe(out, events);
    }
    tabs.finish()
}

/// Validates a ConfigMap (`ValidateConfigMap`).
fn rules(fields: &mut Map<String, Value>, _: &Value, errors: &mut Errors) {
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
