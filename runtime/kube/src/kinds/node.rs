//! The node, as `kubectl get nodes` prints it; `node/describe.rs` describes it.

use serde_json::Value;

use super::cells::{array, condition, none_if_empty, text};
use super::strategy::{AGE, Column, NAME, Related, Strategy, column, of};
use nodlet_core::time::Timestamp;

mod describe;

pub(super) static STRATEGY: Strategy =
    Strategy { related: Related::UnfinishedPods, ..Strategy::new(COLUMNS, describe::describe) };

const COLUMNS: &[Column] = &[
    NAME,
    of("Status", "", status),
    of("Roles", "", |node, _, _| none_if_empty(&roles(node).join(","))),
    AGE,
    column("Version", "/status/nodeInfo/kubeletVersion"),
    of("Internal-IP", "InternalIP", address).wide(),
    of("External-IP", "ExternalIP", address).wide(),
    of("OS-Image", "osImage", known).wide(),
    of("Kernel-Version", "kernelVersion", known).wide(),
    of("Container-Runtime", "containerRuntimeVersion", known).wide(),
];

fn status(node: &Value, _: &str, _: Timestamp) -> Value {
    let status = match condition(node, "Ready") {
        "True" => "Ready",
        "" | "Unknown" => "Unknown",
        _ => "NotReady",
    };
    let cordon = if node["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
    format!("{status}{cordon}").into()
}

/// The roles that the labels of a node name.
fn roles(node: &Value) -> Vec<&str> {
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let roles = labels.filter_map(|(label, _)| label.strip_prefix("node-role.kubernetes.io/"));
    let mut roles: Vec<&str> = roles.filter(|role| !role.is_empty()).collect();
    roles.sort_unstable();
    roles
}

fn address(node: &Value, kind: &str, _: Timestamp) -> Value {
    let found = array(&node["status"]["addresses"]).find(|address| address["type"] == kind);
    none_if_empty(found.map_or("", |address| text(&address["address"])))
}

fn known(node: &Value, field: &str, _: Timestamp) -> Value {
    match text(&node["status"]["nodeInfo"][field]) {
        "" => "<unknown>".into(),
        known => known.into(),
    }
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
            Value::Array(STRATEGY.cells(&node, now)),
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
