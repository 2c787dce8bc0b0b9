//! Namespaces, as `kubectl get namespaces` and `kubectl describe namespace` print them on a server without quotas.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::describe::Tabs;
use super::describe::text::{annotations, labels, of};
use super::generic;
use super::limit_range;
use super::strategy::{Column, Describe, Strategy};
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::Namespace(describe),
    reader: None,
};

const COLUMNS: &[Column] =
    &[("Name", "string", "name", 0), ("Status", "string", "", 0), ("Age", "string", "", 0)];

fn cells(namespace: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        text(&namespace["metadata"]["name"]).into(),
        text(&namespace["status"]["phase"]).into(),
        age(timestamp(&namespace["metadata"]["creationTimestamp"]), now).into(),
    ]
}

/// Describes a Namespace with its LimitRanges.
fn describe(namespace: &Value, ranges: &[Value]) -> String {
    let mut tabs = Tabs::default();
    let out = &mut tabs;
    let metadata = &namespace["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
    out.line(0, &format!("Status:\t{}", of(&namespace["status"]["phase"])));
    out.line(0, "");
    limit_range::of_namespace(out, ranges);
    tabs.finish()
}
