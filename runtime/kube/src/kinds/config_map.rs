//! ConfigMaps (`v1`), as they are read, and as `kubectl get` and `kubectl describe configmap` print them. Pure.

use serde_json::Value;

use super::config_data::{MAX_SIZE, binary, check_update, size};
use super::definition::{Read, Reader};
use super::describe::Tabs;
use super::describe::text::{entries, head, of};
use super::strategy::{AGE, NAME, Strategy, of as column_of};
use crate::object::check::Field;
use crate::object::field::Errors;
use crate::object::rules;
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    reader: Some(Reader { read: Read::Rules(check), check_update }),
    ..Strategy::new(&[NAME, column_of("Data", "", count), AGE], describe)
};

fn count(map: &Value, _: &str, _: Timestamp) -> Value {
    (entries(&map["data"]).len() + entries(&map["binaryData"]).len()).into()
}

fn describe(out: &mut Tabs, map: &Value, _: &[Value]) {
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
}

/// Validates a ConfigMap (`ValidateConfigMap`).
fn check(map: &mut Value, _: &Value, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in Field::root(&map["data"], "data", errors).entries() {
        value.check_text(key, rules::config_map_key);
        if map["binaryData"].get(key).is_some() {
            value.invalid_text(key, "duplicate of key present in binaryData");
        }
        size += value.text().len();
    }
    size += binary("binaryData", map, errors);
    if size > MAX_SIZE {
        Field::root(map, "", errors).too_long(MAX_SIZE);
    }
}
