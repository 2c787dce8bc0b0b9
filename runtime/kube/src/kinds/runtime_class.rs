//! RuntimeClasses, as `kubectl get runtimeclasses` prints them.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use crate::manifest::runtime_class::READER;
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(generic::describe),
    reader: Some(READER),
    protobuf: &[],
};

const COLUMNS: &[Column] =
    &[("Name", "string", "name", 0), ("Handler", "string", "", 0), ("Age", "string", "", 0)];

fn cells(class: &Value, now: Timestamp) -> Vec<Value> {
    let metadata = &class["metadata"];
    let age = age(timestamp(&metadata["creationTimestamp"]), now);
    vec![text(&metadata["name"]).into(), text(&class["handler"]).into(), age.into()]
}
