//! Reports of this node to a cluster: the Node object, its status, and its Lease. Pure.

use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::container::DEVICE_DOMAIN;
use serde_json::{Map, Value, json};

use crate::difference;

/// The Node object with which the node registers. `local` is the Node of the local API.
pub fn registration(local: &Value, now: &str) -> Value {
    let mut labels = local["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    for (old, new) in
        [("beta.kubernetes.io/os", "kubernetes.io/os"), ("beta.kubernetes.io/arch", "kubernetes.io/arch")]
    {
        if let Some(value) = labels.get(new).cloned() {
            labels.insert(old.to_owned(), value);
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": local["metadata"]["name"],
            "labels": labels,
            "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
        },
        "spec": local["spec"],
        "status": status(local, now),
    })
}

/// The labels of a Node object.
pub fn labels(node: &Value) -> SortedMap<String, String> {
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// The text with which the board stores labels of its Node.
pub fn labels_text(labels: &SortedMap<String, String>) -> Vec<u8> {
    let labels: Map<String, Value> =
        labels.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    format!("{}\n", Value::Object(labels)).into_bytes()
}

/// The labels of a stored text; `None` if the text is damaged.
pub fn stored_labels(text: &[u8]) -> Option<SortedMap<String, String>> {
    let stored: Value = serde_json::from_slice(text).ok().filter(Value::is_object)?;
    Some(labels(&json!({ "metadata": { "labels": stored } })))
}

/// Fields of the Node's status that this node owns, except for conditions, addresses and images.
const OWN_FIELDS: [&str; 7] = [
    "allocatable",
    "capacity",
    "daemonEndpoints",
    "declaredFeatures",
    "features",
    "nodeInfo",
    "runtimeHandlers",
];

/// The strategic merge patch that makes the Node's status that of the board. It has all of that, since the control plane
/// changes conditions of a Node without reports. `known` is what the cluster had after the last report, from [`known`].
/// Conditions of others stay, and so do resources that other clients advertise, which are allocatable as with a kubelet.
pub fn status_patch(local: &Value, known: &Value, now: &str) -> Value {
    let mut patch = status(local, now);
    for field in OWN_FIELDS {
        let is_own = |name: &str| !matches!(field, "capacity" | "allocatable") || is_own_resource(name);
        patch[field] = difference::whole(&known[field], &patch[field], &is_own);
    }
    for (name, amount) in unsettled_resources(known) {
        patch["allocatable"][name] = amount;
    }
    // Addresses merge by type; those of another network must go.
    if let Some(addresses) = patch["addresses"].as_array_mut() {
        addresses.insert(0, json!({ "$patch": "replace" }));
    }
    let mut conditions = patch["conditions"].as_array().cloned().unwrap_or_default();
    continue_conditions(&mut conditions, &known["conditions"], now);
    let whole = |old: &Value, new: &Value| Some(difference::whole(old, new, &|_| true));
    patch["conditions"] =
        difference::conditions(&known["conditions"], &conditions, whole, is_own_trouble).unwrap_or_default();
    json!({ "status": patch })
}

/// Gives conditions whose status is that in the cluster the time of their transition in the cluster, as a kubelet does:
/// another agent, or another boot, changes no condition. A condition whose status differs changes with this report.
fn continue_conditions(conditions: &mut [Value], known: &Value, now: &str) {
    for condition in conditions {
        let before = known.as_array().into_iter().flatten().find(|known| known["type"] == condition["type"]);
        if let Some(before) = before {
            let is_same = before["status"] == condition["status"] && before["lastTransitionTime"].is_string();
            condition["lastTransitionTime"] =
                if is_same { before["lastTransitionTime"].clone() } else { now.into() };
        }
    }
}

/// Whether only the board advertises a resource of the Node: one of Kubernetes, or a device of the board. Others belong to
/// whoever patches the Node's status.
fn is_own_resource(name: &str) -> bool {
    !name.contains('/') || name.starts_with(DEVICE_DOMAIN)
}

/// The amounts that the Node lacks as allocatable, of resources that other clients advertise: the amount of its capacity,
/// and `null` for a resource that is not in the capacity any more. Other clients need to write the capacity only
/// (`nodestatus.MachineInfo`).
fn unsettled_resources(known: &Value) -> Map<String, Value> {
    let of_others = |field: &str| {
        let amounts = known[field].as_object().into_iter().flatten();
        amounts
            .filter(|(name, _)| !is_own_resource(name))
            .map(|(name, amount)| (name.clone(), amount.clone()))
    };
    let mut wanted: Map<String, Value> =
        of_others("allocatable").map(|(name, _)| (name, Value::Null)).collect();
    wanted.extend(of_others("capacity"));
    wanted.retain(|name, amount| known["allocatable"].get(name).unwrap_or(&Value::Null) != amount);
    wanted
}

/// Whether another report changes what is allocatable of resources that other clients advertise: they wrote the capacity
/// since the report before.
pub fn is_unsettled(known: &Value) -> bool {
    !unsettled_resources(known).is_empty()
}

/// Whether a condition is one that the board reports only while there is a reason for it. A node problem detector reports
/// it with `False`, too.
fn is_own_trouble(condition: &Value) -> bool {
    condition["type"] == "ReadonlyFilesystem" && condition["status"] == "True"
}

/// What [`status_patch`] needs of the Node's status in the cluster.
pub fn known(node: &mut Value) -> Value {
    let mut status = node["status"].take();
    if let Some(status) = status.as_object_mut() {
        status.retain(|field, _| OWN_FIELDS.contains(&field.as_str()) || field == "conditions");
    }
    status
}

/// The status without times that change with each report, to recognise changes.
pub fn comparable(local: &Value) -> Value {
    status(local, "")
}

fn status(local: &Value, now: &str) -> Value {
    let local = &local["status"];
    let mut status = Map::new();
    for field in [
        "capacity",
        "allocatable",
        "addresses",
        "conditions",
        "images",
        "nodeInfo",
        "daemonEndpoints",
        "declaredFeatures",
        "features",
        "runtimeHandlers",
    ] {
        status.insert(field.to_owned(), local[field].clone());
    }
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastHeartbeatTime"] = now.into();
    }
    Value::Object(status)
}

/// The path of the Lease of a node.
pub fn lease_path(node: &str) -> String {
    format!("{LEASES}/{node}")
}

/// The path of all Leases of nodes.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// A new Lease, which lapses after `seconds`. `uid` is that of the Node, with which the Lease goes.
pub fn lease(node: &str, uid: &str, seconds: u64, now: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": node,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid }],
        },
        "spec": { "holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": now },
    })
}

/// A merge patch that renews a Lease.
pub fn renewal(node: &str, seconds: u64, now: &str) -> Value {
    json!({ "spec": { "holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": now } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> Value {
        json!({
            "metadata": { "name": "board", "resourceVersion": "7", "labels": { "kubernetes.io/os": "linux", "a": "b" } },
            "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] },
            "status": {
                "capacity": { "cpu": "4" }, "allocatable": { "cpu": "3" }, "nodeInfo": { "machineID": "m" },
                "addresses": [{ "type": "Hostname", "address": "board" }],
                "images": [{ "names": ["a:1"], "sizeBytes": 7 }],
                "conditions": [{
                    "type": "DiskPressure", "status": "False", "lastHeartbeatTime": "old", "lastTransitionTime": "then",
                }, {
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "nodlet answers",
                    "lastHeartbeatTime": "old", "lastTransitionTime": "then",
                }],
            },
        })
    }

    #[test]
    fn a_node_registers_with_labels_taints_and_all_conditions() {
        let node = registration(&local(), "now");
        assert_eq!(node["metadata"]["labels"]["beta.kubernetes.io/os"], "linux");
        assert_eq!(node["metadata"].get("resourceVersion"), None);
        assert_eq!(node["spec"]["taints"][0]["key"], "k");
        let conditions = node["status"]["conditions"].as_array().expect("conditions");
        let shown: Vec<String> = conditions
            .iter()
            .map(|one| format!("{} {}", one["type"].as_str().unwrap_or_default(), one["status"]))
            .collect();
        assert_eq!(shown, ["DiskPressure \"False\"", "Ready \"True\""]);
        assert_eq!(node["status"]["images"][0]["sizeBytes"], 7);
        assert!(
            conditions
                .iter()
                .all(|one| one["lastHeartbeatTime"] == "now" && one["lastTransitionTime"] == "then")
        );
    }

    #[test]
    fn stored_labels_are_read_again_and_a_damaged_text_is_none() {
        let labels = labels(&local());
        let text = labels_text(&labels);
        assert_eq!(text, b"{\"a\":\"b\",\"kubernetes.io/os\":\"linux\"}\n");
        assert_eq!(stored_labels(&text), Some(labels));
        assert_eq!(stored_labels(b"{}"), Some(SortedMap::default()));
        // A file that was cut has lost its last byte at least; the newline alone is no loss.
        for end in 0..text.len() - 1 {
            assert_eq!(stored_labels(&text[..end]), None, "{end}");
        }
        for damaged in ["null", "[]", "\0\0\0\0", "{\"a\":\"b\"}}"] {
            assert_eq!(stored_labels(damaged.as_bytes()), None, "{damaged}");
        }
    }

    #[test]
    fn reports_differ_only_by_what_changed() {
        let (old, mut new) = (local(), local());
        new["status"]["conditions"][0]["lastHeartbeatTime"] = "later".into();
        assert_eq!(comparable(&old), comparable(&new));
        new["status"]["conditions"][0]["status"] = "True".into();
        assert_ne!(comparable(&old), comparable(&new));
        new = old.clone();
        new["status"]["images"] = json!([]);
        assert_ne!(comparable(&old), comparable(&new));
        let patch = status_patch(&old, &Value::Null, "now");
        assert_eq!(patch["status"]["addresses"][0], json!({ "$patch": "replace" }));
        assert_eq!(patch["status"]["addresses"][1]["address"], "board");
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_transition_in_the_cluster_until_its_status_changes() {
        let known = json!({ "conditions": [
            { "type": "DiskPressure", "status": "False", "lastTransitionTime": "long ago" },
            { "type": "Ready", "status": "Unknown", "lastTransitionTime": "long ago" },
        ] });
        let times = |known: &Value| {
            let patch = status_patch(&local(), known, "now");
            let conditions = patch["status"]["conditions"].as_array().expect("conditions").iter();
            conditions.map(|one| one["lastTransitionTime"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(times(&known), ["long ago", "now"], "the control plane has set Ready to Unknown");
        assert_eq!(times(&Value::Null), ["then", "then"]);
    }

    #[test]
    fn a_report_removes_what_is_gone_and_leaves_what_others_report() {
        let mut node = local();
        let first = status_patch(&local(), &Value::Null, "now");
        node["status"] = first["status"].clone();
        node["status"]["capacity"] =
            json!({ "cpu": "4", "nodlet.dev/gps": "1", "hugepages-2Mi": "2Mi", "example.com/dongle": "4" });
        node["status"]["allocatable"] =
            json!({ "cpu": "3", "nodlet.dev/gps": "1", "example.com/dongle": "4" });
        node["status"]["features"] = json!({ "supplementalGroupsPolicy": true });
        node["status"]["nodeInfo"] = json!({ "machineID": "m", "swap": { "capacity": 1 } });
        node["status"]["conditions"] = json!([
            { "type": "ReadonlyFilesystem", "status": "True", "reason": "FilesystemIsReadOnly" },
            { "type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated" },
        ]);
        let known = known(&mut node);
        assert_eq!(known.get("images"), None);
        let patch = &status_patch(&local(), &known, "now")["status"];
        assert_eq!(patch["capacity"], json!({ "cpu": "4", "nodlet.dev/gps": null, "hugepages-2Mi": null }));
        assert_eq!(patch["allocatable"], json!({ "cpu": "3", "nodlet.dev/gps": null }));
        assert_eq!(patch.get("features"), Some(&Value::Null));
        assert_eq!(patch["nodeInfo"], json!({ "machineID": "m", "swap": null }));
        let conditions = patch["conditions"].as_array().expect("conditions");
        let shown = |one: &Value| format!("{} {}", one["type"], one["$patch"]);
        let shown: Vec<String> = conditions.iter().map(shown).collect();
        assert_eq!(shown, ["\"DiskPressure\" null", "\"Ready\" null", "\"ReadonlyFilesystem\" \"delete\""]);
    }
}
