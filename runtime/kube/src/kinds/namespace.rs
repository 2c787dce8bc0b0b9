//! Namespaces, as `kubectl get namespaces` prints them, and `kubectl describe namespace` where there are no quotas and
//! limit ranges.

use serde_json::Value;

use super::Column;
use super::cells::{age, text, timestamp};
use super::describe::Tabs;
use super::describe::text::{annotations, labels, of};
use nodlet_core::time::Timestamp;

pub(super) const COLUMNS: &[Column] =
    &[("Name", "string", "name", 0), ("Status", "string", "", 0), ("Age", "string", "", 0)];

pub(super) fn cells(namespace: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        text(&namespace["metadata"]["name"]).into(),
        text(&namespace["status"]["phase"]).into(),
        age(timestamp(&namespace["metadata"]["creationTimestamp"]), now).into(),
    ]
}

pub(super) fn describe(namespace: &Value) -> String {
    let mut tabs = Tabs::default();
    let out = &mut tabs;
    let metadata = &namespace["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
    out.line(0, &format!("Status:\t{}", of(&namespace["status"]["phase"])));
    tabs.finish()
}
