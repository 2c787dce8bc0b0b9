//! Namespaces, as `kubectl get namespaces` and `kubectl describe namespace` print them on a server without quotas.

use serde_json::Value;

use super::describe::Tabs;
use super::describe::text::{annotations, labels, of};
use super::limit_range;
use super::strategy::{AGE, NAME, Related, Strategy, column};

pub(super) static STRATEGY: Strategy = Strategy {
    related: Related::LimitRanges,
    has_events: false,
    ..Strategy::new(&[NAME, column("Status", "/status/phase"), AGE], describe)
};

fn describe(out: &mut Tabs, namespace: &Value, ranges: &[Value]) {
    let metadata = &namespace["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
    out.line(0, &format!("Status:\t{}", of(&namespace["status"]["phase"])));
    out.line(0, "");
    limit_range::of_namespace(out, ranges);
}
