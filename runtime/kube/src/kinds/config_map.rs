//! ConfigMaps, as `kubectl get` and `kubectl describe configmap` print them.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::describe::text::{annotations, labels, of};
use super::describe::{Tabs, events};
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use crate::manifest::config::READER;
use crate::protobuf::{METADATA, Message, Type};
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(describe),
    reader: Some(READER),
    protobuf: FIELDS,
};

const COLUMNS: &[Column] =
    &[("Name", "string", "name", 0), ("Data", "string", "", 0), ("Age", "string", "", 0)];

const FIELDS: Message = &[
    (1, "metadata", Type::One(METADATA)),
    (2, "data", Type::TextMap),
    (3, "binaryData", Type::BytesMap),
    (4, "immutable", Type::Bool),
];

fn cells(map: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        text(&map["metadata"]["name"]).into(),
        (entries(&map["data"]).len() + entries(&map["binaryData"]).len()).into(),
        age(timestamp(&map["metadata"]["creationTimestamp"]), now).into(),
    ]
}

/// With its events, if they are known.
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
