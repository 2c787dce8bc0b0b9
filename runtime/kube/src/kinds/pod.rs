//! One row of `kubectl get pods`: READY, STATUS and RESTARTS are worked out
//! from a pod's status as Kubernetes' printers do, line for line. `pod/describe.rs` describes a pod.

use serde_json::{Value, json};

use super::cells::{age, array, condition, none_if_empty, text, timestamp};
use super::strategy::{AGE, Column, NAME, Strategy, of};
use nodlet_core::time::Timestamp;

mod describe;

pub(super) static STRATEGY: Strategy =
    Strategy { row_conditions, ..Strategy::new(COLUMNS, describe::describe) };

const COLUMNS: &[Column] = &[
    NAME,
    of("Ready", "", |pod, _, _| {
        let Summary { ready, total, .. } = Summary::of(pod);
        format!("{ready}/{total}").into()
    }),
    of("Status", "", |pod, _, _| Summary::of(pod).text.into()),
    of("Restarts", "", |pod, _, now| match Summary::of(pod) {
        Summary { restarts: restarts @ 1.., last_restart: last @ Some(_), .. } => {
            format!("{restarts} ({} ago)", age(last, now)).into()
        }
        Summary { restarts, .. } => restarts.to_string().into(),
    }),
    AGE,
    of("IP", "", |pod, _, _| match text(&pod["status"]["podIPs"][0]["ip"]) {
        "" => none_if_empty(text(&pod["status"]["podIP"])),
        ip => ip.into(),
    })
    .wide(),
    of("Node", "", |pod, _, _| none_if_empty(text(&pod["spec"]["nodeName"]))).wide(),
    of("Nominated Node", "", |pod, _, _| none_if_empty(text(&pod["status"]["nominatedNodeName"]))).wide(),
    of("Readiness Gates", "", |pod, _, _| {
        let gates = array(&pod["spec"]["readinessGates"]);
        let all = gates.len();
        let is_true = gates.filter(|gate| condition(pod, text(&gate["conditionType"])) == "True").count();
        if all == 0 { "<none>".into() } else { format!("{is_true}/{all}").into() }
    })
    .wide(),
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
    use nodlet_fuzz::cases;

    use super::*;

    fn check(mut pod: Value, ready: &str, status: &str, restarts: &str) {
        pod["metadata"]["name"] = "p".into();
        let now = Timestamp::parse("2026-01-31T12:00:00Z").expect("a time");
        let cells = STRATEGY.cells(&pod, now);
        assert_eq!([&cells[1], &cells[2], &cells[3]], [ready, status, restarts], "{pod:#}");
    }

    fn running(phase: &str, statuses: Value) -> Value {
        json!({"spec": {"containers": [{"name": "app"}, {"name": "helper"}]},
               "status": {"phase": phase, "containerStatuses": statuses}})
    }

    /// The statuses of containers with these names, such as `ok, waits ErrImagePull, Error 1`.
    fn statuses(text: &str, names: [&str; 2]) -> Value {
        let states = text.split(", ").filter(|state| !state.is_empty()).zip(names);
        let status = |(state, name): (&str, &str)| {
            let mut status = match state.split(' ').collect::<Vec<_>>()[..] {
                ["ok"] => json!({"state": {"running": {}}, "ready": true}),
                ["runs"] => json!({"state": {"running": {}}}),
                ["started"] => json!({"state": {"running": {}}, "started": true, "ready": true}),
                ["unready"] => json!({"state": {"running": {}}, "started": true, "ready": false}),
                ["waits"] => json!({"state": {"waiting": {}}}),
                ["waits", reason] => json!({"state": {"waiting": {"reason": reason}}}),
                ["signal", _] => json!({"state": {"terminated": {"signal": 9, "exitCode": 137}}}),
                [reason, code] => {
                    let code: i32 = code.parse().expect("a code");
                    let reason = Some(reason).filter(|reason| *reason != "code");
                    json!({"state": {"terminated": {"reason": reason, "exitCode": code}}})
                }
                _ => panic!("{state}"),
            };
            status["name"] = name.into();
            status
        };
        states.map(status).collect()
    }

    #[test]
    fn the_ready_and_status_columns_are_those_of_kubectl_for_each_state() {
        // Phase, anything else of the pod, init containers (- without any), containers, READY, STATUS.
        for [phase, more, init, regular, ready, expected] in cases(
            "
            Pending   =>                  => - =>                                    => 0/2 => Pending
            Running   =>                  => - => ok, ok                             => 2/2 => Running
            Running   =>                  => - => ok, runs                           => 1/2 => Running
            Pending   =>                  => - => waits ContainerCreating, waits ContainerCreating => 0/2 => ContainerCreating
            Running   =>                  => - => ok, waits CrashLoopBackOff         => 1/2 => CrashLoopBackOff
            Running   =>                  => - => Error 1, waits ErrImagePull        => 0/2 => Error
            Succeeded =>                  => - => Completed 0, Completed 0           => 0/2 => Completed
            Running   =>                  => - => Completed 0, ok                    => 1/2 => NotReady
            Running   => Ready=True       => - => Completed 0, ok                    => 1/2 => Running
            Running   =>                  => - => Completed 0, OOMKilled 137         => 0/2 => OOMKilled
            Failed    =>                  => - => code 3                             => 0/2 => ExitCode:3
            Failed    =>                  => - => signal 9                           => 0/2 => Signal:9
            // The end of a container takes precedence over the reason of the pod.
            Failed    => reason NodeLost  => - => Completed 0, Completed 0           => 0/2 => Completed
            Failed    => reason NodeLost  => - => Error 137, Completed 0             => 0/2 => Error
            Failed    => reason NodeLost  => - =>                                    => 0/2 => NodeLost
            Failed    => reason Evicted   => - =>                                    => 0/2 => Evicted
            Running   => deleted          => - => ok, ok                             => 2/2 => Terminating
            Running   => reason NodeLost, deleted => - => ok, ok                     => 2/2 => Unknown
            Succeeded => deleted          => - => Completed 0                        => 0/2 => Completed
            Pending   =>                  =>   =>                                    => 0/3 => Pending
            Pending   => PodScheduled=False SchedulingGated => =>                    => 0/3 => SchedulingGated
            Pending   =>                  => runs                       =>           => 0/3 => Init:0/2
            Pending   =>                  => waits PodInitializing      =>           => 0/3 => Init:0/2
            Pending   =>                  => waits                      =>           => 0/3 => Init:0/2
            Pending   =>                  => waits ErrImagePull         =>           => 0/3 => Init:ErrImagePull
            Pending   =>                  => waits CrashLoopBackOff     =>           => 0/3 => Init:CrashLoopBackOff
            Failed    =>                  => Error 1                    =>           => 0/3 => Init:Error
            Failed    =>                  => OOMKilled 137              =>           => 0/3 => Init:OOMKilled
            Pending   =>                  => signal 9                   =>           => 0/3 => Init:Signal:9
            Pending   =>                  => code 3                     =>           => 0/3 => Init:ExitCode:3
            Pending   =>                  => Completed 0, runs          =>           => 0/3 => Init:1/2
            Pending   =>                  => Completed 0, waits PostStartHookError => => 0/3 => Init:PostStartHookError
            Pending   =>                  => Completed 0, started => waits PodInitializing => 1/3 => PodInitializing
            Pending   =>                  => Completed 0, unready => waits           => 0/3 => Pending
            Running   =>                  => Completed 0, started => ok, ok          => 3/3 => Running
            Running   =>                  => Completed 0, started => ok, waits ImagePullBackOff => 2/3 => ImagePullBackOff
            Running   =>                  => Completed 0, started => waits CreateContainerError, Error 1 => 1/3 => CreateContainerError
            Running   =>                  => Completed 0, started => OOMKilled 137, ok => 2/3 => OOMKilled
            Running   =>                  => Completed 0, started => signal 9, ok    => 2/3 => Signal:9
            Running   =>                  => Completed 0, started => code 4, ok      => 2/3 => ExitCode:4
            Succeeded =>                  => Completed 0, Completed 0 => Completed 0, Completed 0 => 0/3 => Completed
            Failed    =>                  => Completed 0, Completed 0 => Completed 0, Error 1 => 0/3 => Error
            Failed    =>                  => Completed 0, Completed 0 => Error 1, Completed 0 => 0/3 => Error
            Running   => Ready=True       => Completed 0, started => Completed 0, ok => 2/3 => Running
            Running   => Ready=False      => Completed 0, started => Completed 0, ok => 2/3 => NotReady
            Running   => Initialized=True => Completed 0, waits CrashLoopBackOff => ok, ok => 2/3 => Init:CrashLoopBackOff
            Running   => Initialized=True => Completed 0, waits CrashLoopBackOff => waits ErrImagePull, ok => 1/3 => ErrImagePull
            Failed    => reason Evicted   => Completed 0, started =>                 => 1/3 => Evicted
            Failed    => reason DeadlineExceeded => Completed 0, started =>          => 1/3 => DeadlineExceeded
            Failed    => reason OutOfcpu  => Completed 0, started =>                 => 1/3 => OutOfcpu
            Unknown   => reason NodeLost, deleted => Completed 0, started =>         => 1/3 => Unknown
            Running   => deleted          => Completed 0, started =>                 => 1/3 => Terminating
            Pending   => deleted          => Completed 0, started =>                 => 1/3 => Terminating
            Failed    => reason Evicted, deleted => Completed 0, started =>          => 1/3 => Evicted
            Succeeded => deleted          => Completed 0, started =>                 => 1/3 => Succeeded
            ",
        ) {
            let mut pod = running(phase, statuses(regular, ["app", "helper"]));
            if init != "-" {
                let proxy = json!({"name": "proxy", "restartPolicy": "Always"});
                pod["spec"]["initContainers"] = json!([{"name": "first"}, proxy]);
                pod["status"]["initContainerStatuses"] = statuses(init, ["first", "proxy"]);
            }
            for word in more.split(", ").filter(|word| !word.is_empty()) {
                match (word.strip_prefix("reason "), word.split_once('=')) {
                    (Some(reason), _) => pod["status"]["reason"] = reason.into(),
                    (None, Some((kind, status))) => {
                        let (status, reason) = status.split_once(' ').unwrap_or((status, ""));
                        let condition = json!({"type": kind, "status": status, "reason": reason});
                        pod["status"]["conditions"] = json!([condition]);
                    }
                    (None, None) => pod["metadata"] = json!({"deletionTimestamp": "2026-01-31T12:00:00Z"}),
                }
            }
            check(pod, ready, expected, "0");
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
    fn restarts_of_finished_init_containers_do_not_count() {
        let mut pod = running("Pending", statuses("ok", ["app", ""]));
        pod["spec"]["initContainers"] =
            json!([{"name": "first"}, {"name": "proxy", "restartPolicy": "Always"}]);
        let mut init = statuses("Completed 0, started", ["first", "proxy"]);
        init[0]["restartCount"] = 5.into();
        init[1]["restartCount"] = 2.into();
        pod["status"]["initContainerStatuses"] = init;
        check(pod, "2/3", "Pending", "2");
    }

    #[test]
    fn a_finished_pod_has_a_row_condition() {
        assert_eq!(row_conditions(&running("Failed", json!([])))[0]["message"], "The pod failed.");
        assert!(row_conditions(&running("Running", json!([]))).is_null());
    }

    #[test]
    fn missing_fields_of_a_pod_are_printed_as_none() {
        let cells = STRATEGY.cells(&json!({"metadata": {"name": "p"}}), Timestamp(0));
        let expected = ["p", "0/0", "", "0", "<unknown>", "<none>", "<none>", "<none>", "<none>"];
        assert_eq!(cells, expected);
    }
}
