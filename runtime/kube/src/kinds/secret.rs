//! Secrets, as `kubectl get` and `kubectl describe secret` print them: never with a value.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::config_map::{entries, head, size};
use super::describe::Tabs;
use super::describe::text::of;
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use crate::manifest::config::SECRET_READER;
use crate::protobuf::{METADATA, Message, Type};
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::Alone(describe),
    reader: Some(SECRET_READER),
    protobuf: FIELDS,
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Type", "string", "", 0),
    ("Data", "string", "", 0),
    ("Age", "string", "", 0),
];

const FIELDS: Message = &[
    (1, "metadata", Type::One(METADATA)),
    (2, "data", Type::BytesMap),
    (3, "type", Type::Text),
    (4, "stringData", Type::TextMap),
    (5, "immutable", Type::Bool),
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
