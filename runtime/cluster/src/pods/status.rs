//! The status of a pod of the cluster, as this board reports it. Pure.

use nodlet_core::facts::is_node_owned;
use nodlet_core::pod::REJECTED;
use serde_json::{Map, Value, json};

use super::has_terminal_phase;
use crate::rejections::PENDING;
use crate::{difference, gates};

/// Whether the status of a pod must wait: that of one that is being deleted, until nothing of it is left on the board,
/// since the scheduler gives its resources to another pod once its phase is final; and that of one that a fence ended.
pub fn is_held_back(local: &Value) -> bool {
    let is_deleted = local["metadata"]["deletionTimestamp"].is_string();
    (is_deleted || runs_again(local)) && has_terminal_phase(local)
}

/// Whether a fence ended the pod, which starts again unless the cluster deletes it: a final phase could not be taken
/// back.
pub fn runs_again(local: &Value) -> bool {
    local["status"]["reason"] == "NodeLost" && local["spec"]["restartPolicy"] != "Never"
}

/// The patch for a pod that has ended without a known status: before it is deleted, its phase must be final, or a Job
/// would wait for it.
pub fn ended(uid: &str) -> Value {
    json!({ "metadata": { "uid": uid }, "status": { "phase": "Failed" } })
}

/// Fields of a pod's status that this node owns, and that are removed when they have no value any more.
const OWN_FIELDS: [&str; 12] = [
    "allocatedResources",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "hostIP",
    "initContainerStatuses",
    "message",
    "observedGeneration",
    "phase",
    "podIP",
    "reason",
    "resources",
    "startTime",
];

/// Such fields that would merge by their addresses: one of an earlier sandbox must go.
const ADDRESSES: [&str; 2] = ["hostIPs", "podIPs"];

/// The strategic merge patch that makes the cluster's status of a pod that of the local API; `None` if it is already.
/// Conditions of others, such as those of readiness gates, stay.
pub fn status_patch(local: &Value, known: &Value) -> Option<Value> {
    let status = &local["status"];
    let mut patch = Map::new();
    for field in OWN_FIELDS {
        if let Some(changed) = difference::value(&known[field], &status[field], &|_| true) {
            patch.insert(field.to_owned(), changed);
        }
    }
    for field in ADDRESSES {
        let new = status[field].as_array().map_or(&[][..], Vec::as_slice);
        if let Some(changed) = difference::replaced(&known[field], new) {
            patch.insert(field.to_owned(), changed);
        }
    }
    let is_gate = |kind: &Value| gates::types(local).any(|gate| kind == gate);
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<Value> = conditions
        .filter(|new| !is_gate(&new["type"]))
        .map(|new| scheduled_at(new.clone(), &known["conditions"]))
        .collect();
    let is_own = |old: &Value| old["type"].as_str().is_some_and(is_node_owned) && !is_gate(&old["type"]);
    let differs = |old: &Value, new: &Value| difference::value(old, new, &|_| true);
    if let Some(changed) = difference::conditions(&known["conditions"], &conditions, differs, is_own) {
        patch.insert("conditions".to_owned(), changed);
    }
    if patch.is_empty() {
        return None;
    }
    Some(json!({ "metadata": { "uid": local["metadata"]["uid"] }, "status": patch }))
}

/// Whether a status of a pod is sent although a later one is known: between them, the phase changed, or a container was
/// started again. Whoever watches the pod then sees how the earlier run ended, as with a kubelet, which needs longer to
/// start a container than to send a status.
pub fn is_sent_before(earlier: &Value, later: &Value) -> bool {
    let (earlier, later) = (&earlier["status"], &later["status"]);
    let count = |status: &Value, list: &str, name: &Value| {
        let mut containers = status[list].as_array().into_iter().flatten();
        containers.find(|one| one["name"] == *name).map(|one| one["restartCount"].clone())
    };
    let has_restarted = |list: &str| {
        let mut containers = later[list].as_array().into_iter().flatten();
        containers
            .any(|one| count(earlier, list, &one["name"]).is_some_and(|count| count != one["restartCount"]))
    };
    earlier["phase"] != later["phase"]
        || ["initContainerStatuses", "containerStatuses"].into_iter().any(has_restarted)
}

/// A condition of the board with the time at which the scheduler assigned the pod, if the cluster knows it: the board
/// knows when it received the pod.
fn scheduled_at(mut new: Value, known: &Value) -> Value {
    let is_it = |old: &&Value| old["type"] == new["type"] && old["status"] == new["status"];
    let known = known.as_array().into_iter().flatten().find(is_it);
    if new["type"] == "PodScheduled"
        && let Some(since) = known.and_then(|old| old["lastTransitionTime"].as_str())
    {
        new["lastTransitionTime"] = since.into();
    }
    new
}

/// The reason of a pod that this node does not run because of its spec, and of the event about it.
const UNSUPPORTED: &str = "PodSpecNotSupported";

/// Why this node does not run a pod as it is in the cluster, which an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// This node does not support the spec of the pod.
    Unsupported,
    /// The agent died of the pod, of one of its volumes, or of an object that it refers to. Nothing is wrong with the spec.
    SetAside,
}

impl NotRun {
    /// The reason of the event.
    fn reason(self) -> &'static str {
        match self {
            NotRun::Unsupported => UNSUPPORTED,
            NotRun::SetAside => "SetAside",
        }
    }
}

/// The patch that rejects a pod, in a kubelet's form; or that shows why it is rejected later (`is_held`).
pub fn rejection(uid: &Value, message: &str, is_held: bool) -> Value {
    let phase = if is_held { PENDING } else { "Failed" };
    json!({
        "metadata": { "uid": uid },
        "status": { "phase": phase, "reason": UNSUPPORTED, "message": format!("{REJECTED}{message}") },
    })
}

/// The options of the final deletion of a pod.
pub fn final_deletion(uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": { "uid": uid } })
}

/// What is left to do in the cluster with a pod of a Node that was deleted. `is_present`: something of it may still run
/// here. The pod is no longer Ready from its first deletion on, and its controller makes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retirement {
    /// Delete it with its own grace period, and end it here.
    Begin,
    /// Wait until it has ended here.
    Await,
    /// Delete it for good.
    Finish,
    /// Nothing: its finalizers are others' work.
    Done,
}

/// Decides about a pod of a Node that was deleted.
pub fn retirement(pod: &Value, is_present: bool) -> Retirement {
    let metadata = &pod["metadata"];
    // What a mirror pod shows runs on, and gets another one with the next Node.
    let is_mirror = super::is_mirror(pod);
    match metadata["deletionTimestamp"].is_string() {
        false if !is_mirror => Retirement::Begin,
        true if is_present && !is_mirror => Retirement::Await,
        true if metadata["deletionGracePeriodSeconds"] == 0 => Retirement::Done,
        _ => Retirement::Finish,
    }
}

/// The options with which a pod of a Node that was deleted is deleted, with its own grace period.
pub fn first_deletion(uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid } })
}

/// The event about a pod that this node does not run. `suffix` is the end of its name.
pub fn rejection_event(
    pod: &Value,
    node: &str,
    suffix: &str,
    (why, message): (NotRun, &str),
    now: &str,
) -> Value {
    let metadata = &pod["metadata"];
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{suffix}", metadata["name"].as_str().unwrap_or_default()),
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod",
            "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"],
        },
        "type": "Warning",
        "reason": why.reason(),
        "message": message.chars().take(1024).collect::<String>(),
        "source": { "component": "kubelet", "host": node },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_phase_of_a_deleted_pod_is_held_back_until_it_is_gone() {
        let pod = |deleted: Option<&str>, phase: &str| json!({ "metadata": { "deletionTimestamp": deleted }, "status": { "phase": phase } });
        assert!(is_held_back(&pod(Some("t"), "Succeeded")) && is_held_back(&pod(Some("t"), "Failed")));
        assert!(!is_held_back(&pod(Some("t"), "Running")) && !is_held_back(&pod(None, "Failed")));
        let fenced = |policy: &str| json!({ "spec": { "restartPolicy": policy }, "status": { "phase": "Failed", "reason": "NodeLost" } });
        assert!(is_held_back(&fenced("Always")) && !is_held_back(&fenced("Never")));
        assert!(runs_again(&fenced("OnFailure")) && !runs_again(&fenced("Never")));
    }

    #[test]
    fn however_many_changes_are_read_at_once_the_end_of_each_run_is_sent() {
        let state = |phase: &str, state: &str, count: u64| {
            let container = json!({ "name": "app", "restartCount": count, "state": { state: {} } });
            let other = json!({ "name": "other", "restartCount": 0, "state": { "running": {} } });
            json!({ "status": { "phase": phase, "containerStatuses": [other, container] } })
        };
        let mut all = vec![state("Pending", "waiting", 0)];
        for count in 0..4 {
            all.extend([state("Running", "running", count), state("Running", "running", count)]);
            all.extend([state("Running", "terminated", count), state("Running", "waiting", count)]);
        }
        all.extend([state("Running", "running", 4), state("Succeeded", "terminated", 4)]);
        for at_once in 1..=all.len() {
            let mut sent = Vec::new();
            for read in all.chunks(at_once) {
                let is_due = |(place, one): &(usize, &Value)| {
                    read.get(place + 1).is_none_or(|next| is_sent_before(one, next))
                };
                sent.extend(read.iter().enumerate().filter(is_due).map(|(_, one)| one));
            }
            assert_eq!(sent.last(), all.last().as_ref());
            for (earlier, later) in all.iter().zip(&all[1..]) {
                let count = |one: &Value| one["status"]["containerStatuses"][1]["restartCount"].clone();
                let phase = |one: &Value| one["status"]["phase"].clone();
                if (count(earlier), phase(earlier)) != (count(later), phase(later)) {
                    assert!(sent.contains(&earlier), "{at_once} at once: {earlier}");
                }
            }
            // What differs in nothing that anybody waits for is sent once.
            assert!(at_once < all.len() || sent.len() == 7, "{sent:?}");
        }
    }

    #[test]
    fn a_status_is_sent_as_far_as_it_differs() {
        let local = json!({ "metadata": { "uid": "u" }, "status": {
            "phase": "Running", "podIP": "10.0.0.2", "podIPs": [{ "ip": "10.0.0.2" }], "qosClass": "Burstable",
            "conditions": [
                { "type": "PodScheduled", "status": "True", "observedGeneration": 1, "lastTransitionTime": "t" },
                { "type": "Ready", "status": "True", "lastTransitionTime": "t" },
            ],
        } });
        let known = json!({ "phase": "Pending", "message": "old", "conditions": [
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "earlier" },
            { "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "m" },
            { "type": "PodResizeInProgress", "status": "True" },
            { "type": "DisruptionTarget", "status": "True" },
        ] });
        let patch = status_patch(&local, &known).expect("a patch");
        assert_eq!(
            patch,
            json!({ "metadata": { "uid": "u" }, "status": {
            "phase": "Running", "podIP": "10.0.0.2", "message": null,
            "podIPs": [{ "$patch": "replace" }, { "ip": "10.0.0.2" }],
            "conditions": [
                { "type": "PodScheduled", "observedGeneration": 1 },
                { "type": "Ready", "status": "True", "lastTransitionTime": "t", "reason": null, "message": null },
                { "type": "PodResizeInProgress", "$patch": "delete" },
            ],
        } })
        );
        let after = json!({ "phase": "Running", "podIP": "10.0.0.2", "podIPs": [{ "ip": "10.0.0.2" }], "conditions": [
            { "type": "PodScheduled", "status": "True", "observedGeneration": 1, "lastTransitionTime": "earlier" },
            { "type": "Ready", "status": "True", "lastTransitionTime": "t", "lastProbeTime": null },
            { "type": "DisruptionTarget", "status": "True" },
        ] });
        assert_eq!(status_patch(&local, &after), None);
    }
}
