//! The node, as `kubectl describe node` prints it.

use serde_json::Value;

use super::roles;
use crate::kinds::describe::Tabs;
use crate::kinds::describe::text::{annotations, date, entries, labels, list, of, quantity, several, since};
use crate::pod::validate::of_containers;
use nodlet_core::spec::Quantity;

/// Describes a node with its unfinished pods.
pub(super) fn describe(out: &mut Tabs, node: &Value, pods: &[Value]) {
    let (metadata, spec, status) = (&node["metadata"], &node["spec"], &node["status"]);
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    let roles = roles(node).join(",");
    out.line(0, &format!("Roles:\t{}", if roles.is_empty() { "<none>" } else { &roles }));
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
    out.line(0, &format!("CreationTimestamp:\t{}", date(&metadata["creationTimestamp"])));
    let taints = list(&spec["taints"]).iter().map(|taint| {
        let value = taint["value"].as_str().map_or_else(String::new, |value| format!("={value}"));
        format!("{}{value}:{}", of(&taint["key"]), of(&taint["effect"]))
    });
    several(out, "Taints", taints);
    out.line(0, &format!("Unschedulable:\t{}", spec["unschedulable"] == true));
    out.line(0, "Lease:");
    out.line(1, &format!("HolderIdentity:\t{}", of(&metadata["name"])));
    // Nothing is leased: an agent that answers is the proof that it is there.
    out.line(1, "AcquireTime:\t<unset>");
    out.line(1, "RenewTime:\t<unset>");
    conditions(out, &status["conditions"]);
    out.line(0, "Addresses:");
    for address in list(&status["addresses"]) {
        out.line(1, &format!("{}:\t{}", of(&address["type"]), of(&address["address"])));
    }
    for (title, amounts) in [("Capacity:", &status["capacity"]), ("Allocatable:", &status["allocatable"])] {
        out.line(0, title);
        for (name, amount) in entries(amounts) {
            out.line(1, &format!("{name}:\t{}", quantity(amount)));
        }
    }
    let info = &status["nodeInfo"];
    out.line(0, "System Info:");
    for (title, field) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
    ] {
        out.line(1, &format!("{title}:\t{}", of(&info[field])));
    }
    pods_of(out, pods, &status["allocatable"]);
}

fn conditions(out: &mut Tabs, conditions: &Value) {
    out.line(0, "Conditions:");
    out.line(1, "Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage");
    out.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
    for condition in list(conditions) {
        let (heartbeat, transition) =
            (date(&condition["lastHeartbeatTime"]), date(&condition["lastTransitionTime"]));
        let of = |field: &str| of(&condition[field]);
        let (kind, status, reason, message) = (of("type"), of("status"), of("reason"), of("message"));
        out.line(1, &format!("{kind} \t{status} \t{heartbeat} \t{transition} \t{reason} \t{message}"));
    }
}

/// `requests` or `limits` of a resource of a whole pod: its own, or else what its containers take together; and
/// its overhead, which counts as a limit only besides another one.
fn effective(pod: &Value, list_of: &str, resource: &str) -> Quantity {
    let own = &pod["spec"]["resources"][list_of][resource];
    let amount = match own {
        Value::Null => of_containers(&pod["spec"], list_of, resource).unwrap_or(Quantity::from_milli(0)),
        own => quantity(own),
    };
    let is_unlimited = list_of == "limits" && amount.is_zero();
    if is_unlimited { amount } else { amount.plus(&quantity(&pod["spec"]["overhead"][resource])) }
}

/// Describes the requests and limits of each pod, and their sums.
fn pods_of(out: &mut Tabs, pods: &[Value], allocatable: &Value) {
    const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
    const LISTS: [&str; 2] = ["requests", "limits"];
    let share = |resource: &str, amount: &Quantity| {
        let of = |amount: &Quantity| match resource {
            "cpu" => amount.milli_value() as f64,
            _ => amount.value() as f64,
        };
        let all = of(&quantity(&allocatable[resource]));
        let percent = if all == 0.0 { 0.0 } else { of(amount) / all * 100.0 };
        format!("{amount} ({}%)", percent as i64)
    };
    out.line(0, &format!("Non-terminated Pods:\t({} in total)", pods.len()));
    out.line(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge");
    out.line(1, "---------\t----\t\t------------\t----------\t---------------\t-------------\t---");
    let mut sums = RESOURCES.map(|_| LISTS.map(|_| Quantity::from_milli(0)));
    for pod in pods {
        let metadata = &pod["metadata"];
        let mut line = format!("{}\t{}\t", of(&metadata["namespace"]), of(&metadata["name"]));
        for (sums, resource) in sums.iter_mut().zip(RESOURCES) {
            for (sum, list_of) in sums.iter_mut().zip(LISTS) {
                let amount = effective(pod, list_of, resource);
                if resource != "ephemeral-storage" {
                    line.push_str(&format!("\t{}", share(resource, &amount)));
                }
                *sum = sum.plus(&amount);
            }
        }
        out.line(1, &format!("{line}\t{}", since(&metadata["creationTimestamp"])));
    }
    out.line(0, "Allocated resources:");
    out.line(1, "(Total limits may be over 100 percent, i.e., overcommitted.)");
    out.line(1, "Resource\tRequests\tLimits");
    out.line(1, "--------\t--------\t------");
    for (resource, [requests, limits]) in RESOURCES.into_iter().zip(&sums) {
        out.line(1, &format!("{resource}\t{}\t{}", share(resource, requests), share(resource, limits)));
    }
}
