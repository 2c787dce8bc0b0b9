//! PriorityClasses, as `kubectl get` and `kubectl describe priorityclass` print them.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::describe::text::of;
use super::describe::{Tabs, events};
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use crate::manifest::class::READER;
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(describe),
    reader: Some(READER),
    protobuf: &[],
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Value", "integer", "", 0),
    ("Global-Default", "boolean", "", 0),
    ("Age", "string", "", 0),
    ("PreemptionPolicy", "string", "", 0),
];

fn cells(class: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        text(&class["metadata"]["name"]).into(),
        class["value"].clone(),
        (class["globalDefault"] == true).into(),
        age(timestamp(&class["metadata"]["creationTimestamp"]), now).into(),
        text(&class["preemptionPolicy"]).into(),
    ]
}

/// Describes the class with its events, if they are requested.
fn describe(class: &Value, events: Option<Vec<Value>>) -> String {
    let mut tabs = Tabs::default();
    let out = &mut tabs;
    let metadata = &class["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    out.line(0, &format!("Value:\t{}", class["value"].as_i64().unwrap_or_default()));
    out.line(0, &format!("GlobalDefault:\t{}", class["globalDefault"] == true));
    out.line(0, &format!("PreemptionPolicy:\t{}", of(&class["preemptionPolicy"])));
    out.line(0, &format!("Description:\t{}", of(&class["description"])));
    let annotations = metadata["annotations"].as_object().into_iter().flatten();
    let mut annotations: Vec<String> =
        annotations.map(|(key, value)| format!("{key}={}", of(value))).collect();
    annotations.sort();
    let annotations = if annotations.is_empty() { "<none>".to_owned() } else { annotations.join(",") };
    out.line(0, &format!("Annotations:\t{annotations}"));
    if let Some(events) = events {
        events::describe(out, events);
    }
    tabs.finish()
}
