//! The node, as `kubectl get nodes` prints it; `node/describe.rs` describes it.

use serde_json::Value;

use super::cells::{age, array, condition, none_if_empty, text, timestamp};
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use nodlet_core::time::Timestamp;

mod describe;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::Node(describe::describe),
    reader: None,
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Status", "string", "", 0),
    ("Roles", "string", "", 0),
    ("Age", "string", "", 0),
    ("Version", "string", "", 0),
    ("Internal-IP", "string", "", 1),
    ("External-IP", "string", "", 1),
    ("OS-Image", "string", "", 1),
    ("Kernel-Version", "string", "", 1),
    ("Container-Runtime", "string", "", 1),
];

fn cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let mut status = match condition(node, "Ready") {
        "True" => "Ready",
        "" | "Unknown" => "Unknown",
        _ => "NotReady",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let labels = node["metadata"]["labels"].as_object();
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(label, _)| label.strip_prefix("node-role.kubernetes.io/"))
        .filter(|role| !role.is_empty())
        .collect();
    let address = |kind: &str| {
        let found = array(&node["status"]["addresses"]).find(|address| address["type"] == kind);
        none_if_empty(found.map_or("", |address| text(&address["address"])))
    };
    let info = &node["status"]["nodeInfo"];
    let known = |field: &str| match text(&info[field]) {
        "" => Value::from("<unknown>"),
        known => known.into(),
    };
    vec![
        text(&node["metadata"]["name"]).into(),
        status.into(),
        none_if_empty(&roles.join(",")),
        age(timestamp(&node["metadata"]["creationTimestamp"]), now).into(),
        text(&info["kubeletVersion"]).into(),
        address("InternalIP"),
        address("ExternalIP"),
        known("osImage"),
        known("kernelVersion"),
        known("containerRuntimeVersion"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_has_the_cells_of_kubectl() {
        let now = Timestamp::parse("2026-01-31T12:00:00Z").expect("a time");
        let node = json!({
            "metadata": {"name": "board", "labels": {"node-role.kubernetes.io/edge": ""},
                         "creationTimestamp": "2026-01-31T11:00:00Z"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                       "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
                       "nodeInfo": {"kubeletVersion": "v1.36.3", "kernelVersion": "6.12"}},
        });
        assert_eq!(
            Value::Array(cells(&node, now)),
            json!([
                "board",
                "Ready",
                "edge",
                "60m",
                "v1.36.3",
                "10.0.0.2",
                "<none>",
                "<unknown>",
                "6.12",
                "<unknown>"
            ])
        );
    }
}
