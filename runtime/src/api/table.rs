//! `meta.k8s.io/v1` Table: the server defines how a list is printed, so that every client prints the same.
//! `kinds/` has the columns and cells of each kind.

use serde_json::{Map, Value, json};

use nodlet_core::time::Timestamp;
use nodlet_kube::kinds::{self, Column, Row, Strategy};

/// The part of the object in each row (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Include {
    None,
    #[default]
    Metadata,
    Object,
}

/// Returns the table of `objects`, all of one kind, with the metadata of a list, as JSON. Only one parsed object is in memory at a time,
/// because a parsed object takes ten times the memory of its text.
pub(super) fn table(
    row: &Row,
    objects: &mut dyn Iterator<Item = Value>,
    metadata: Value,
    include: Include,
    now: Timestamp,
) -> String {
    let strategy = kinds::strategy(row.kind);
    let columns: Vec<Value> = strategy
        .columns
        .iter()
        .map(|Column { name, kind, format, priority, .. }| {
            json!({"name": name, "type": kind, "format": format, "description": "", "priority": priority})
        })
        .collect();
    let table = json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns,
    });
    let rows: Vec<String> =
        objects.map(|object| row_of(strategy, object, include, now).to_string()).collect();
    let table = table.to_string();
    // Fields are sorted by name, so that `rows` is the last one.
    let head = table.strip_suffix('}').unwrap_or_default();
    format!("{head},\"rows\":[{}]}}", rows.join(","))
}

fn row_of(strategy: &Strategy, object: Value, include: Include, now: Timestamp) -> Value {
    let mut shown = Map::new();
    let conditions = (strategy.row_conditions)(&object);
    if !conditions.is_null() {
        shown.insert("conditions".into(), conditions);
    }
    shown.insert("cells".into(), Value::Array(strategy.cells(&object, now)));
    match include {
        Include::None => {}
        Include::Metadata => {
            shown.insert("object".into(), metadata_of(object));
        }
        Include::Object => {
            shown.insert("object".into(), object);
        }
    }
    Value::Object(shown)
}

/// The `PartialObjectMetadata` of an object.
pub(super) fn metadata_of(mut object: Value) -> Value {
    let metadata = object["metadata"].take();
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodlet_kube::kinds::Kind;

    #[test]
    fn a_table_row_includes_the_requested_form_of_its_object() {
        let object = json!({"metadata": {"name": "web"}, "spec": {"x": 1}});
        let row = |include| {
            let objects = &mut std::iter::once(object.clone());
            let table = table(Kind::Pod.row(), objects, json!({}), include, Timestamp(0));
            serde_json::from_str::<Value>(&table).expect("JSON")["rows"][0].take()
        };
        assert!(row(Include::None).get("object").is_none());
        assert_eq!(
            row(Include::Metadata)["object"],
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "web"}})
        );
        assert_eq!(row(Include::Object)["object"], object);
    }
}
