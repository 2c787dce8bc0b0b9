//! Reads the fields of an object that the schema has checked: a missing field is the same as an empty one, as for
//! Kubernetes.

use serde_json::{Map, Value};

/// Returns a string; empty if it is missing, which is the same for Kubernetes.
pub(crate) fn text<'a>(owner: &'a Value, field: &str) -> &'a str {
    owner.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns an integer; 0 if it is missing.
pub(crate) fn number(owner: &Value, field: &str) -> i64 {
    optional_number(owner, field).unwrap_or_default()
}

/// Returns an integer, if there is one.
pub(crate) fn optional_number(owner: &Value, field: &str) -> Option<i64> {
    owner.get(field).and_then(Value::as_i64)
}

/// Returns a boolean; false if it is missing.
pub(crate) fn flag(owner: &Value, field: &str) -> bool {
    owner.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// Returns the elements of a list; none if it is missing.
pub(crate) fn list<'a>(owner: &'a Value, field: &str) -> &'a [Value] {
    owner.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the entries of an object; none if it is missing.
pub(crate) fn map(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}
