//! One row of `kubectl get pods`: READY, STATUS and RESTARTS are worked out
//! from a pod's status as Kubernetes' printers do, line for line. `pod/describe.rs` describes a pod.

use serde_json::{Value, json};

use super::cells::{age, array, condition, none_if_empty, text, timestamp};
use super::strategy::{Column, Describe, Strategy};
use nodlet_core::time::Timestamp;

mod describe;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions,
    describe: Describe::WithEvents(describe::describe),
    reader: None,
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Ready", "string", "", 0),
    ("Status", "string", "", 0),
    ("Restarts", "string", "", 0),
    ("Age", "string", "", 0),
    ("IP", "string", "", 1),
    ("Node", "string", "", 1),
    ("Nominated Node", "string", "", 1),
    ("Readiness Gates", "string", "", 1),
];

/// Returns the row conditions of a finished pod; null for another pod.
fn row_conditions(pod: &Value) -> Value {
    let (reason, message) = match text(&pod["status"]["phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return Value::Null,
    };
    json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}])
}

fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let (metadata, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
    let summary = Summary::of(pod);
    let restarts = match (summary.restarts, summary.last_restart) {
        (0, _) | (_, None) => summary.restarts.to_string(),
        (restarts, last) => format!("{restarts} ({} ago)", age(last, now)),
    };
    let ip = match text(&status["podIPs"][0]["ip"]) {
        "" => text(&status["podIP"]),
        ip => ip,
    };
    let gates = array(&spec["readinessGates"]);
    let total_gates = gates.len();
    let true_gates = gates.filter(|gate| condition(pod, text(&gate["conditionType"])) == "True").count();
    vec![
        text(&metadata["name"]).into(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.text.into(),
        restarts.into(),
        age(timestamp(&metadata["creationTimestamp"]), now).into(),
        none_if_empty(ip),
        none_if_empty(text(&spec["nodeName"])),
        none_if_empty(text(&status["nominatedNodeName"])),
        if total_gates == 0 { "<none>".into() } else { format!("{true_gates}/{total_gates}").into() },
    ]
}

struct Summary {
    ready: usize,
    total: usize,
    restarts: u64,
    last_restart: Option<Timestamp>,
    text: String,
}

impl Summary {
    fn of(pod: &Value) -> Summary {
        let (spec, status) = (&pod["spec"], &pod["status"]);
        let phase = text(&status["phase"]);
        let is_sidecar = |name: &str| {
            array(&spec["initContainers"])
                .any(|container| container["name"] == name && container["restartPolicy"] == "Always")
        };
        let sidecars =
            array(&spec["initContainers"]).filter(|container| container["restartPolicy"] == "Always").count();
        let mut summary = Summary {
            ready: 0,
            total: array(&spec["containers"]).len() + sidecars,
            restarts: 0,
            last_restart: None,
            text: match text(&status["reason"]) {
                "" => phase.into(),
                reason => reason.into(),
            },
        };
        if array(&status["conditions"])
            .any(|condition| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated")
        {
            summary.text = "SchedulingGated".into();
        }

        let (mut sidecar_restarts, mut last_sidecar_restart) = (0, None);
        let mut initializing = false;
        for (index, container) in array(&status["initContainerStatuses"]).enumerate() {
            let sidecar = is_sidecar(text(&container["name"]));
            summary.restarts += restart_count(container);
            summary.last_restart = summary.last_restart.max(last_finish(container));
            if sidecar {
                sidecar_restarts += restart_count(container);
                last_sidecar_restart = last_sidecar_restart.max(last_finish(container));
            }
            let (terminated, waiting) = (&container["state"]["terminated"], &container["state"]["waiting"]);
            if terminated.is_object() && exit_code(terminated) == 0 {
                continue;
            }
            if sidecar && container["started"] == true {
                summary.ready += usize::from(container["ready"] == true);
                continue;
            }
            summary.text = if terminated.is_object() {
                format!("Init:{}", ended(terminated))
            } else if !matches!(text(&waiting["reason"]), "" | "PodInitializing") {
                format!("Init:{}", text(&waiting["reason"]))
            } else {
                format!("Init:{index}/{}", array(&spec["initContainers"]).len())
            };
            initializing = true;
            break;
        }

        if !initializing || condition(pod, "Initialized") == "True" {
            summary.restarts = sidecar_restarts;
            summary.last_restart = last_sidecar_restart;
            let (mut running, mut error) = (false, None);
            // Backwards, so that the first container has the last word.
            for container in array(&status["containerStatuses"]).rev() {
                summary.restarts += restart_count(container);
                summary.last_restart = summary.last_restart.max(last_finish(container));
                let state = &container["state"];
                if !text(&state["waiting"]["reason"]).is_empty() {
                    summary.text = text(&state["waiting"]["reason"]).into();
                } else if state["terminated"].is_object() {
                    summary.text = ended(&state["terminated"]);
                    if exit_code(&state["terminated"]) != 0 {
                        error = Some(summary.text.clone());
                    }
                } else if container["ready"] == true && state["running"].is_object() {
                    running = true;
                    summary.ready += 1;
                }
            }
            if summary.text == "Completed" {
                if running && condition(pod, "Ready") == "True" {
                    summary.text = "Running".into();
                } else if let Some(error) = error {
                    summary.text = error;
                } else if running {
                    summary.text = "NotReady".into();
                }
            }
        }

        if !text(&pod["metadata"]["deletionTimestamp"]).is_empty() {
            if text(&status["reason"]) == "NodeLost" {
                summary.text = "Unknown".into();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                summary.text = "Terminating".into();
            }
        }
        summary
    }
}

fn ended(terminated: &Value) -> String {
    match (text(&terminated["reason"]), terminated["signal"].as_i64().unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", exit_code(terminated)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.into(),
    }
}

fn exit_code(terminated: &Value) -> i64 {
    terminated["exitCode"].as_i64().unwrap_or(0)
}

fn restart_count(container: &Value) -> u64 {
    container["restartCount"].as_u64().unwrap_or(0)
}

fn last_finish(container: &Value) -> Option<Timestamp> {
    timestamp(&container["lastState"]["terminated"]["finishedAt"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut pod: Value, ready: &str, status: &str, restarts: &str) {
        pod["metadata"]["name"] = "p".into();
        let now = Timestamp::parse("2026-01-31T12:00:00Z").expect("a time");
        let cells = cells(&pod, now);
        assert_eq!([&cells[1], &cells[2], &cells[3]], [ready, status, restarts], "{pod:#}");
    }

    /// A pod of `app` and `helper` with these container statuses.
    fn running(phase: &str, statuses: Value) -> Value {
        json!({"spec": {"containers": [{"name": "app"}, {"name": "helper"}]},
               "status": {"phase": phase, "containerStatuses": statuses}})
    }

    /// A pod with the init containers `first`, the sidecar `proxy`, and `app`.
    fn initialising(init: Value, statuses: Value) -> Value {
        json!({"spec": {"initContainers": [{"name": "first"}, {"name": "proxy", "restartPolicy": "Always"}],
                        "containers": [{"name": "app"}]},
               "status": {"phase": "Pending", "initContainerStatuses": init, "containerStatuses": statuses}})
    }

    fn ok() -> Value {
        json!({"state": {"running": {}}, "ready": true})
    }

    fn waits(reason: &str) -> Value {
        json!({"state": {"waiting": {"reason": reason}}})
    }

    fn ended(reason: &str, code: i32) -> Value {
        json!({"state": {"terminated": {"reason": reason, "exitCode": code}}})
    }

    #[test]
    fn the_ready_status_and_restarts_columns_are_those_of_kubectl() {
        check(running("Pending", json!([])), "0/2", "Pending", "0");
        check(running("Running", json!([ok(), ok()])), "2/2", "Running", "0");
        check(running("Running", json!([ok(), {"state": {"running": {}}}])), "1/2", "Running", "0");
        check(
            running("Pending", json!([waits("ContainerCreating"), waits("ContainerCreating")])),
            "0/2",
            "ContainerCreating",
            "0",
        );
        check(running("Running", json!([ok(), waits("CrashLoopBackOff")])), "1/2", "CrashLoopBackOff", "0");
        check(running("Running", json!([ended("Error", 1), waits("ErrImagePull")])), "0/2", "Error", "0");
        check(
            running("Succeeded", json!([ended("Completed", 0), ended("Completed", 0)])),
            "0/2",
            "Completed",
            "0",
        );
        // One container is done and the other runs on.
        check(running("Running", json!([ended("Completed", 0), ok()])), "1/2", "NotReady", "0");
        let mut ready = running("Running", json!([ended("Completed", 0), ok()]));
        ready["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        check(ready, "1/2", "Running", "0");
        // The containers of an evicted or fenced pod have the last word, here and in `printPod` of Kubernetes.
        for (first, shown) in [(0, "Completed"), (137, "Error")] {
            let statuses = json!([ended(shown, first), ended("Completed", 0)]);
            let mut lost = running("Failed", statuses);
            lost["status"]["reason"] = "NodeLost".into();
            check(lost, "0/2", shown, "0");
        }
        let mut lost = running("Failed", json!([]));
        lost["status"]["reason"] = "NodeLost".into();
        check(lost, "0/2", "NodeLost", "0");
        check(
            running("Running", json!([ended("Completed", 0), ended("OOMKilled", 137)])),
            "0/2",
            "OOMKilled",
            "0",
        );
        check(running("Failed", json!([ended("", 3)])), "0/2", "ExitCode:3", "0");
        check(
            running("Failed", json!([{"state": {"terminated": {"signal": 9, "exitCode": 137}}}])),
            "0/2",
            "Signal:9",
            "0",
        );
    }

    /// A pod of containers with these states, `first` and `proxy` (a sidecar) before `app` and `helper`.
    fn every(phase: &str, conditions: Value, init: Value, regular: Value) -> Value {
        let named = |states: Value, names: [&str; 2]| -> Value {
            let states = states.as_array().cloned().unwrap_or_default().into_iter().zip(names);
            states
                .map(|(mut state, name)| {
                    state["name"] = name.into();
                    state
                })
                .collect()
        };
        json!({"spec": {"initContainers": [{"name": "first"}, {"name": "proxy", "restartPolicy": "Always"}],
                        "containers": [{"name": "app"}, {"name": "helper"}]},
               "status": {"phase": phase, "conditions": conditions,
                          "initContainerStatuses": named(init, ["first", "proxy"]),
                          "containerStatuses": named(regular, ["app", "helper"])}})
    }

    /// Each line of the rule by which kubectl finds its word for a pod (`printPod`).
    #[test]
    fn the_status_column_is_that_of_kubectl_for_each_state() {
        let is = |kind: &str, status: &str| json!([{"type": kind, "status": status}]);
        let (done, runs) = (ended("Completed", 0), json!({"state": {"running": {}}}));
        let started = json!({"state": {"running": {}}, "started": true, "ready": true});
        let unready = json!({"state": {"running": {}}, "started": true, "ready": false});
        let begun = || json!([done, started]);
        let signalled = json!({"state": {"terminated": {"signal": 9, "exitCode": 137}}});
        let code = |code: i32| json!({"state": {"terminated": {"exitCode": code}}});
        let nothing = json!({"state": {"waiting": {}}});
        let gated = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
        for (phase, conditions, init, regular, ready, status) in [
            // No container has a status yet.
            ("Pending", json!([]), json!([]), json!([]), "0/3", "Pending"),
            ("Pending", gated, json!([]), json!([]), "0/3", "SchedulingGated"),
            // Init containers, the first that is not done.
            ("Pending", json!([]), json!([runs]), json!([]), "0/3", "Init:0/2"),
            ("Pending", json!([]), json!([waits("PodInitializing")]), json!([]), "0/3", "Init:0/2"),
            ("Pending", json!([]), json!([nothing]), json!([]), "0/3", "Init:0/2"),
            ("Pending", json!([]), json!([waits("ErrImagePull")]), json!([]), "0/3", "Init:ErrImagePull"),
            (
                "Pending",
                json!([]),
                json!([waits("CrashLoopBackOff")]),
                json!([]),
                "0/3",
                "Init:CrashLoopBackOff",
            ),
            ("Failed", json!([]), json!([ended("Error", 1)]), json!([]), "0/3", "Init:Error"),
            ("Failed", json!([]), json!([ended("OOMKilled", 137)]), json!([]), "0/3", "Init:OOMKilled"),
            ("Pending", json!([]), json!([signalled]), json!([]), "0/3", "Init:Signal:9"),
            ("Pending", json!([]), json!([code(3)]), json!([]), "0/3", "Init:ExitCode:3"),
            ("Pending", json!([]), json!([done, runs]), json!([]), "0/3", "Init:1/2"),
            (
                "Pending",
                json!([]),
                json!([done, waits("PostStartHookError")]),
                json!([]),
                "0/3",
                "Init:PostStartHookError",
            ),
            // A sidecar that has started is passed, ready or not.
            ("Pending", json!([]), begun(), json!([waits("PodInitializing")]), "1/3", "PodInitializing"),
            ("Pending", json!([]), json!([done, unready]), json!([nothing]), "0/3", "Pending"),
            // Regular containers: the first of those that have something to say.
            ("Running", json!([]), begun(), json!([ok(), ok()]), "3/3", "Running"),
            (
                "Running",
                json!([]),
                begun(),
                json!([ok(), waits("ImagePullBackOff")]),
                "2/3",
                "ImagePullBackOff",
            ),
            (
                "Running",
                json!([]),
                begun(),
                json!([waits("CreateContainerError"), ended("Error", 1)]),
                "1/3",
                "CreateContainerError",
            ),
            ("Running", json!([]), begun(), json!([ended("OOMKilled", 137), ok()]), "2/3", "OOMKilled"),
            ("Running", json!([]), begun(), json!([signalled, ok()]), "2/3", "Signal:9"),
            ("Running", json!([]), begun(), json!([code(4), ok()]), "2/3", "ExitCode:4"),
            ("Succeeded", json!([]), json!([done, done]), json!([done, done]), "0/3", "Completed"),
            ("Failed", json!([]), json!([done, done]), json!([done, ended("Error", 1)]), "0/3", "Error"),
            ("Failed", json!([]), json!([done, done]), json!([ended("Error", 1), done]), "0/3", "Error"),
            // One is done, and another runs on.
            ("Running", is("Ready", "True"), begun(), json!([done, ok()]), "2/3", "Running"),
            ("Running", is("Ready", "False"), begun(), json!([done, ok()]), "2/3", "NotReady"),
            // Initialised once: a sidecar that has ended again holds up nothing that is shown.
            (
                "Running",
                is("Initialized", "True"),
                json!([done, waits("CrashLoopBackOff")]),
                json!([ok(), ok()]),
                "2/3",
                "Init:CrashLoopBackOff",
            ),
            (
                "Running",
                is("Initialized", "True"),
                json!([done, waits("CrashLoopBackOff")]),
                json!([waits("ErrImagePull"), ok()]),
                "1/3",
                "ErrImagePull",
            ),
        ] {
            check(every(phase, conditions, init, regular), ready, status, "0");
        }
        // What is said of the pod as a whole, and what becomes of it.
        let with = |phase: &str, reason: &str, deleted: bool| {
            let mut pod = every(phase, json!([]), begun(), json!([]));
            pod["status"]["reason"] = reason.into();
            if deleted {
                pod["metadata"] = json!({"deletionTimestamp": "2026-01-31T12:00:00Z"});
            }
            pod
        };
        for (phase, reason, deleted, status) in [
            ("Failed", "Evicted", false, "Evicted"),
            ("Failed", "DeadlineExceeded", false, "DeadlineExceeded"),
            ("Failed", "OutOfcpu", false, "OutOfcpu"),
            ("Unknown", "NodeLost", true, "Unknown"),
            ("Running", "", true, "Terminating"),
            ("Pending", "", true, "Terminating"),
            ("Failed", "Evicted", true, "Evicted"),
            ("Succeeded", "", true, "Succeeded"),
        ] {
            check(with(phase, reason, deleted), "1/3", status, "0");
        }
    }

    #[test]
    fn restarts_are_summed_and_the_newest_is_dated() {
        let restarted = |count: u32, finished: &str| {
            json!({"restartCount": count, "ready": true, "state": {"running": {}},
                   "lastState": {"terminated": {"finishedAt": finished}}})
        };
        let two = json!([restarted(2, "2026-01-31T11:00:00Z"), restarted(1, "2026-01-31T11:59:00Z")]);
        check(running("Running", two), "2/2", "Running", "3 (60s ago)");
        let unknown = json!({"restartCount": 4, "ready": true, "state": {"running": {}}});
        check(running("Running", json!([unknown])), "1/2", "Running", "4");
    }

    #[test]
    fn the_status_column_counts_finished_init_containers() {
        check(initialising(json!([{"state": {"running": {}}}]), json!([])), "0/2", "Init:0/2", "0");
        check(initialising(json!([waits("PodInitializing")]), json!([])), "0/2", "Init:0/2", "0");
        check(
            initialising(json!([waits("CrashLoopBackOff")]), json!([])),
            "0/2",
            "Init:CrashLoopBackOff",
            "0",
        );
        check(initialising(json!([ended("Error", 1)]), json!([])), "0/2", "Init:Error", "0");
        check(initialising(json!([ended("", 2)]), json!([])), "0/2", "Init:ExitCode:2", "0");
        check(
            initialising(json!([ended("Completed", 0), {"state": {"running": {}}}]), json!([])),
            "0/2",
            "Init:1/2",
            "0",
        );
        let started = json!({"name": "proxy", "started": true, "ready": true, "restartCount": 2, "state": {"running": {}}});
        let mut first = ended("Completed", 0);
        first["name"] = "first".into();
        first["restartCount"] = 5.into();
        // Restarts of init containers that are over no longer count; those of sidecars do.
        check(initialising(json!([first, started]), json!([ok()])), "2/2", "Pending", "2");
    }

    #[test]
    fn a_reason_of_the_whole_pod_takes_precedence_in_the_status_column() {
        let mut pod = running("Failed", json!([]));
        pod["status"]["reason"] = "Evicted".into();
        check(pod.clone(), "0/2", "Evicted", "0");
        assert_eq!(row_conditions(&pod)[0]["message"], "The pod failed.");
        let mut pod = running("Running", json!([ok(), ok()]));
        assert!(row_conditions(&pod).is_null());
        pod["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z".into();
        check(pod.clone(), "2/2", "Terminating", "0");
        pod["status"]["reason"] = "NodeLost".into();
        check(pod, "2/2", "Unknown", "0");
        let mut over = running("Succeeded", json!([ended("Completed", 0)]));
        over["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z".into();
        check(over, "0/2", "Completed", "0");
    }

    #[test]
    fn missing_fields_of_a_pod_are_printed_as_none() {
        let cells = cells(&json!({"metadata": {"name": "p"}}), Timestamp(0));
        let expected = ["p", "0/0", "", "0", "<unknown>", "<none>", "<none>", "<none>", "<none>"];
        assert_eq!(cells, expected);
    }
}
