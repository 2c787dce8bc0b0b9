//! The status of a pod of the cluster, as this board reports it. Pure.

use nodlet_core::facts::is_node_owned;
use nodlet_core::pod::REJECTED;
use serde_json::{Map, Value, json};

use super::has_terminal_phase;
use crate::rejections::PENDING;
use crate::{difference, gates};

/// Whether the status of a pod must wait: that of one that is being deleted, until nothing of it is left on the board,
/// since the scheduler gives its resources to another pod once its phase is final; that of one that runs again; and
/// while the machine goes down, that of one that is to run again, since even the end of a container could not always be
/// taken back.
pub fn is_held_back(local: &Value, goes_down: bool) -> bool {
    if has_terminal_phase(local) {
        local["metadata"]["deletionTimestamp"].is_string() || runs_again(local)
    } else {
        goes_down && is_interrupted_by_shutdown(local)
    }
}

/// Whether the pod starts again, unless the cluster deletes it, although the board shows its phase as final: a fence or a
/// shutdown of the machine has ended it. The cluster does not learn of that phase: it could not be taken back, and a
/// controller would make another pod beside this one.
pub fn runs_again(local: &Value) -> bool {
    match local["status"]["reason"].as_str() {
        Some("NodeLost") => local["spec"]["restartPolicy"] != "Never",
        Some("Terminated") => is_interrupted_by_shutdown(local),
        Some("NodeShutdown") => true,
        Some(_) | None => false,
    }
}

/// What the cluster learns of a pod whose status is held back because it runs again: that it is not ready. Everything else
/// is as the cluster knows it.
pub fn unready(local: &Value, known: &Value) -> Value {
    let mut shown = json!({ "metadata": local["metadata"], "status": known });
    let conditions = |status: &Value| status["conditions"].as_array().cloned().unwrap_or_default();
    let mut own = conditions(known);
    for condition in &mut own {
        let of_board = conditions(&local["status"]).into_iter().find(|one| one["type"] == condition["type"]);
        let Some(of_board) = of_board.filter(|one| one["status"] == "False") else { continue };
        if matches!(condition["type"].as_str(), Some("Ready" | "ContainersReady"))
            && condition["status"] == "True"
        {
            condition["status"] = "False".into();
            condition["lastTransitionTime"] = of_board["lastTransitionTime"].clone();
            condition["reason"] = "ContainersNotReady".into();
            condition["message"] = "the board has ended the pod, and will run it again".into();
        }
    }
    if !own.is_empty() {
        shown["status"]["conditions"] = own.into();
    }
    shown
}

/// Whether a shutdown of the machine only interrupts the pod: unless its policy is `Never` and one of its containers has
/// started (`nodlet_core::pod::shutdown`).
fn is_interrupted_by_shutdown(local: &Value) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists.iter().filter_map(|list| local["status"][*list].as_array()).flatten();
    let has_started = |container: &Value| {
        let state = &container["state"];
        [&state["running"], &state["terminated"], &container["lastState"]["terminated"]]
            .iter()
            .any(|state| state.is_object())
    };
    local["spec"]["restartPolicy"] != "Never" || !all.any(has_started)
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
    let is_deleted = metadata["deletionTimestamp"].is_string();
    if !is_deleted && !is_mirror {
        Retirement::Begin
    } else if is_deleted && is_present && !is_mirror {
        Retirement::Await
    } else if is_deleted && metadata["deletionGracePeriodSeconds"] == 0 {
        Retirement::Done
    } else {
        Retirement::Finish
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
        let is_held_back = |pod| super::is_held_back(&pod, false);
        assert!(is_held_back(pod(Some("t"), "Succeeded")) && is_held_back(pod(Some("t"), "Failed")));
        assert!(!is_held_back(pod(Some("t"), "Running")) && !is_held_back(pod(None, "Failed")));
        let fenced = |policy: &str| json!({ "spec": { "restartPolicy": policy }, "status": { "phase": "Failed", "reason": "NodeLost" } });
        assert!(is_held_back(fenced("Always")) && !is_held_back(fenced("Never")));
        assert!(runs_again(&fenced("OnFailure")) && !runs_again(&fenced("Never")));
    }

    #[test]
    fn a_pod_that_runs_again_is_not_ready_until_then_and_nothing_else() {
        let condition = |kind: &str, status: &str, since: &str| json!({ "type": kind, "status": status, "lastTransitionTime": since });
        let local = json!({ "metadata": { "name": "web" }, "status": {
            "phase": "Failed", "reason": "Terminated",
            "conditions": [condition("Ready", "False", "2"), condition("PodScheduled", "False", "2")],
        } });
        let known = json!({
            "phase": "Running",
            "conditions": [condition("Ready", "True", "1"), condition("PodScheduled", "True", "1")],
        });
        let shown = unready(&local, &known);
        let mut expected = known.clone();
        expected["conditions"][0] = json!({
            "type": "Ready", "status": "False", "lastTransitionTime": "2", "reason": "ContainersNotReady",
            "message": "the board has ended the pod, and will run it again",
        });
        assert_eq!(shown["status"], expected);
        assert!(status_patch(&shown, &known).is_some());
        assert_eq!(status_patch(&unready(&local, &expected), &expected), None, "it is sent once");
        let new = json!({ "phase": "Pending" });
        assert_eq!(status_patch(&unready(&local, &new), &new), None);
    }

    #[test]
    fn the_cluster_learns_of_a_shutdown_only_what_stays_so_after_it() {
        let pod = |policy: &str, phase: &str, reason: &str, state: Value| {
            json!({
                "metadata": {}, "spec": { "restartPolicy": policy },
                "status": { "phase": phase, "reason": reason, "containerStatuses": [state] },
            })
        };
        let waiting = || json!({ "state": { "waiting": {} } });
        let running = || json!({ "state": { "running": {} } });
        let ended = || json!({ "state": { "terminated": {} } });
        let again = || json!({ "state": { "waiting": {} }, "lastState": { "terminated": {} } });
        for (policy, phase, reason, state, always, while_down) in [
            ("Always", "Failed", "Terminated", ended(), true, true),
            ("OnFailure", "Failed", "Terminated", ended(), true, true),
            ("Never", "Failed", "Terminated", ended(), false, false),
            ("Never", "Failed", "Terminated", again(), false, false),
            ("Never", "Failed", "Terminated", waiting(), true, true),
            ("Never", "Failed", "NodeShutdown", waiting(), true, true),
            ("Always", "Failed", "Evicted", ended(), false, false),
            ("OnFailure", "Succeeded", "", ended(), false, false),
            ("OnFailure", "Running", "", ended(), false, true),
            ("Never", "Running", "", running(), false, false),
            ("Never", "Pending", "", waiting(), false, true),
        ] {
            let pod = pod(policy, phase, reason, state);
            let found = (is_held_back(&pod, false), is_held_back(&pod, true));
            assert_eq!(found, (always, while_down), "{pod}");
        }
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
