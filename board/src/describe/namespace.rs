//! A namespace, as `kubectl describe namespace` prints it where there are no quotas and limit ranges.

use serde_json::Value;

use super::text::{annotations, labels, of};
use crate::tabs::Tabs;

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
