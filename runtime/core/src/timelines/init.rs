//! Init containers and sidecars: the order of starts, restarts and ends.

use serde_json::{Value, json};

use super::{condition, down, phase, uid};
use crate::facts::*;
use crate::node::*;
use crate::sim::*;
use crate::spec::*;

/// `app` after the init container `first` and the sidecar `proxy`.
fn served(policy: RestartPolicy) -> Pod {
    pod(policy).init([container("first"), sidecar("proxy")])
}

/// Init containers succeed after three seconds, all others run.
fn well(name: &str, _: u32) -> Fate {
    match name {
        "first" | "second" => Fate::Exits(0, secs(3)),
        _ => Fate::Runs,
    }
}

/// The entry of a container in the status.
fn shown(sim: &Sim, name: &str) -> Value {
    let status = sim.status(&uid());
    let lists = ["initContainerStatuses", "containerStatuses"];
    let mut all = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
    all.find(|status| status["name"] == name).expect("a status for each container").clone()
}

fn initialized(sim: &Sim) -> (Value, Value) {
    let condition = condition(&sim.status(&uid()), "Initialized");
    (condition["status"].clone(), condition["message"].clone())
}

#[test]
fn init_containers_run_one_after_another_and_then_the_others() {
    let two = pod(RestartPolicy::Always).init([container("first"), container("second")]);
    let mut sim = Sim::new(two, well);
    sim.run_until(secs(1));
    assert_eq!(phase(&sim), "Pending");
    assert!(shown(&sim, "first")["state"]["running"].is_object());
    assert_eq!(
        (&shown(&sim, "first")["started"], &shown(&sim, "first")["ready"]),
        (&true.into(), &false.into())
    );
    let waits = json!({ "waiting": { "reason": "PodInitializing" } });
    assert_eq!((&shown(&sim, "second")["state"], &shown(&sim, "app")["state"]), (&waits, &waits));
    let incomplete =
        |names: &str| ("False".into(), format!("containers with incomplete status: [{names}]").into());
    assert_eq!(initialized(&sim), incomplete("first second"));
    assert_eq!(condition(&sim.status(&uid()), "Initialized")["reason"], "ContainersNotInitialized");
    sim.run_until(secs(4));
    assert_eq!(initialized(&sim), incomplete("second"));
    assert_eq!(
        (&shown(&sim, "first")["started"], &shown(&sim, "first")["ready"]),
        (&false.into(), &true.into())
    );
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   0s first#0 start\n   3s first#0 exits 0\n   3s second#0 start\n   6s second#0 exits 0\n   \
         6s app#0 start\n"
    );
    assert_eq!((phase(&sim), initialized(&sim)), ("Running".into(), ("True".into(), Value::Null)));
    assert_eq!(condition(&sim.status(&uid()), "Initialized")["lastTransitionTime"], "1970-01-01T00:00:06Z");
    assert_eq!(condition(&sim.status(&uid()), "Ready")["status"], "True", "what is done need not be ready");
    let names = sim.status(&uid())["initContainerStatuses"].as_array().expect("a list").len();
    assert_eq!((names, &sim.status(&uid())["initContainerStatuses"][1]["name"]), (2, &"second".into()));
}

#[test]
fn an_init_container_that_fails_is_tried_again_with_back_off_unless_the_policy_is_never() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure] {
        let mut sim = Sim::new(pod(policy).init([container("first")]), |name, number| match (name, number) {
            ("first", 0) => Fate::Exits(1, secs(1)),
            ("first", 1) => Fate::OutOfMemory(secs(1)),
            ("first", _) => Fate::Exits(0, secs(1)),
            _ => Fate::Runs,
        });
        sim.run_until(secs(5));
        let waiting = &shown(&sim, "first")["state"]["waiting"];
        let message = "back-off 10s restarting failed container=first pod=web_default(u1)";
        assert_eq!(*waiting, json!({ "reason": "CrashLoopBackOff", "message": message }));
        assert_eq!(phase(&sim), "Pending");
        assert!(
            sim.events.contains(
                &"BackOff: Back-off restarting failed container first in pod web_default(u1)".into()
            )
        );
        sim.run_until(secs(60));
        assert_eq!(
            sim.trace,
            "   0s first#0 start\n   1s first#0 exits 1\n   1s first#1 start\n   2s first#1 exits 137\n  \
             12s first#2 start\n  13s first#2 exits 0\n  13s app#0 start\n"
        );
        assert_eq!(shown(&sim, "first")["restartCount"], 2);
    }
}

#[test]
fn an_init_container_of_a_never_pod_that_fails_fails_the_pod_and_what_comes_after_it_never_begins() {
    let three = pod(RestartPolicy::Never).init([sidecar("proxy"), container("first"), container("second")]);
    let mut sim = Sim::new(three, |name, _| match name {
        "first" => Fate::Exits(7, secs(5)),
        _ => Fate::Runs,
    });
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   0s proxy#0 start\n   0s first#0 start\n   5s first#0 exits 7\n   5s proxy#0 Term\n   \
         5s proxy#0 exits 143\n"
    );
    assert_eq!(phase(&sim), "Failed");
    assert_eq!(shown(&sim, "first")["state"]["terminated"]["exitCode"], 7);
    let waits = json!({ "waiting": { "reason": "PodInitializing" } });
    assert_eq!((&shown(&sim, "second")["state"], &shown(&sim, "app")["state"]), (&waits, &waits));
    assert_eq!(initialized(&sim).1, "containers with incomplete status: [proxy first second]");
    let before = sim.status(&uid())["initContainerStatuses"].clone();
    sim.reboot();
    sim.run_until(secs(100));
    let states = |list: &Value| -> Vec<Value> {
        list.as_array().expect("a list").iter().map(|status| status["state"].clone()).collect()
    };
    assert_eq!(states(&sim.status(&uid())["initContainerStatuses"]), states(&before));
    assert!(!sim.trace.contains("app"), "{}", sim.trace);
}

#[test]
fn a_sidecar_has_started_before_what_comes_after_it_begins() {
    let mut slow = sidecar("proxy");
    slow.startup_probe = Some(Probe { period: secs(1), failure_threshold: 30, ..exec_probe() });
    slow.readiness_probe = Some(exec_probe());
    let mut sim =
        Sim::new(pod(RestartPolicy::Always).init([slow, container("first")]), well).probes(|_, kind, age| {
            match (kind, age.as_secs()) {
                (ProbeKind::Startup, 8..) => ProbeResult::Success,
                _ => ProbeResult::Failure("not yet".into()),
            }
        });
    sim.run_until(secs(7));
    assert_eq!((phase(&sim).as_str(), &shown(&sim, "proxy")["started"]), ("Pending", &false.into()));
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace, "   0s proxy#0 start\n   8s first#0 start\n  11s first#0 exits 0\n  11s app#0 start\n",
        "that it is not ready holds up nothing"
    );
    assert_eq!(phase(&sim), "Running");
    let ready = condition(&sim.status(&uid()), "Ready");
    assert_eq!(ready["message"], "containers with unready status: [proxy]");
}

#[test]
fn a_sidecar_that_does_not_start_in_time_is_killed_and_started_again() {
    let mut slow = sidecar("proxy");
    slow.startup_probe = Some(exec_probe());
    let mut sim = Sim::new(pod(RestartPolicy::Never).init([slow]), |_, _| Fate::Runs)
        .probes(|_, _, _| ProbeResult::Failure("no".into()));
    sim.run_until(secs(41));
    assert_eq!(
        sim.trace,
        "   0s proxy#0 start\n  20s proxy#0 Term\n  20s proxy#0 exits 143\n  20s proxy#1 start\n  \
         40s proxy#1 Term\n  40s proxy#1 exits 143\n"
    );
    assert!(sim.events.contains(&"Killing: Init container proxy failed startup probe".to_owned()));
    assert_eq!((phase(&sim).as_str(), initialized(&sim).0), ("Pending", "False".into()));
}

#[test]
fn a_sidecar_is_restarted_whatever_the_policy_and_nothing_after_it_begins_again() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        let two = pod(policy).init([sidecar("proxy"), container("first")]);
        let mut sim = Sim::new(two, |name, number| match (name, number) {
            ("proxy", 0) => Fate::Exits(0, secs(5)),
            ("proxy", 1) => Fate::Exits(1, secs(5)),
            _ => well(name, number),
        });
        sim.run_until(secs(60));
        assert_eq!(
            sim.trace,
            "   0s proxy#0 start\n   0s first#0 start\n   3s first#0 exits 0\n   3s app#0 start\n   \
             5s proxy#0 exits 0\n   5s proxy#1 start\n  10s proxy#1 exits 1\n  20s proxy#2 start\n"
        );
        assert_eq!((phase(&sim).as_str(), &shown(&sim, "proxy")["restartCount"]), ("Running", &2.into()));
        assert_eq!(initialized(&sim).0, "True");
    }
}

#[test]
fn a_sidecar_that_fails_its_liveness_probe_is_restarted() {
    let mut sick = sidecar("proxy");
    sick.liveness_probe = Some(exec_probe());
    let mut sim = Sim::new(pod(RestartPolicy::Never).init([sick]), |_, _| Fate::Runs)
        .probes(|_, _, _| ProbeResult::Failure("no".into()));
    sim.run_until(secs(25));
    assert_eq!(
        sim.trace,
        "   0s proxy#0 start\n   0s app#0 start\n  20s proxy#0 Term\n  20s proxy#0 exits 143\n  20s proxy#1 start\n"
    );
    assert!(sim.events.contains(&"Killing: Init container proxy failed liveness probe".to_owned()));
}

#[test]
fn when_the_regular_containers_are_done_sidecars_end_in_reverse_order_and_how_counts_for_nothing() {
    for (policy, code, outcome) in [
        (RestartPolicy::Never, 0, "Succeeded"),
        (RestartPolicy::Never, 4, "Failed"),
        (RestartPolicy::OnFailure, 0, "Succeeded"),
    ] {
        let two = pod(policy).init([sidecar("a"), sidecar("b")]);
        let mut sim = Sim::new(two, move |name, _| match name {
            "app" => Fate::Exits(code, secs(5)),
            "b" => Fate::IgnoresTerm,
            _ => Fate::Runs,
        });
        sim.run_until(secs(34));
        assert_eq!(phase(&sim), "Running", "what is over is shown when nothing of it runs");
        sim.run_until(secs(60));
        let exit = format!("   5s app#0 exits {code}\n");
        assert_eq!(
            sim.trace,
            format!(
                "   0s a#0 start\n   0s b#0 start\n   0s app#0 start\n{exit}   5s b#0 Term\n  35s a#0 Term\n  \
                 35s b#0 Kill\n  35s a#0 exits 143\n  35s b#0 exits 137\n"
            )
        );
        assert_eq!(phase(&sim), outcome);
        assert_eq!(shown(&sim, "b")["state"]["terminated"]["exitCode"], 137);
    }
}

#[test]
fn an_agent_that_starts_anew_finishes_what_was_decided_of_a_pod_whose_sidecars_still_end() {
    let mut sim = Sim::new(served(RestartPolicy::Never), |name, number| match name {
        "app" => Fate::Exits(0, secs(5)),
        "proxy" => Fate::IgnoresTerm,
        _ => well(name, number),
    });
    sim.run_until(secs(10));
    sim.restart_agent();
    sim.run_until(secs(39));
    assert_eq!(phase(&sim), "Running");
    sim.run_until(secs(60));
    assert_eq!(phase(&sim), "Succeeded", "{}", sim.log);
    assert_eq!(sim.trace.matches("start").count(), 3);
}

#[test]
fn a_pod_that_is_deleted_ends_its_sidecars_after_all_else_each_after_those_behind_it() {
    let three = pod(RestartPolicy::Always).with([container("x"), container("y")]).init([
        sidecar("a"),
        container("first"),
        sidecar("b"),
        sidecar("c"),
    ]);
    let mut sim = Sim::new(three, well);
    sim.run_until(secs(10));
    sim.trace.clear();
    sim.weather.latency = secs(4);
    sim.unwant(&uid(), Some(secs(30)));
    sim.run_until(secs(100));
    let order: Vec<&str> = sim.trace.lines().map(|line| &line[6..]).collect();
    assert_eq!(order[..2], ["x#0 Term", "y#0 Term"]);
    let behind = ["c#0 Term", "c#0 exits 143", "b#0 Term", "b#0 exits 143", "a#0 Term", "a#0 exits 143"];
    assert_eq!(order[4..], behind);
    // The `Killing` events come all at once.
    let killing = sim.events.iter().position(|event| event == "Killing: Stopping container a");
    let last = sim.events.iter().rposition(|event| event.starts_with("Killing:"));
    assert!(killing.is_some() && last.is_some_and(|last| last < sim.events.len()));
    assert_eq!(sim.events.iter().filter(|event| event.starts_with("Killing:")).count(), 5);
    assert!(sim.is_gone(&uid()));
}

#[test]
fn when_the_grace_is_over_all_waiting_sidecars_are_stopped_at_once_within_two_seconds() {
    let two = pod(RestartPolicy::Always).init([sidecar("a"), sidecar("b")]);
    let mut sim = Sim::new(two, |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.trace.clear();
    sim.unwant(&uid(), Some(secs(10)));
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   5s app#0 Term\n  15s app#0 Kill\n  15s a#0 Term\n  15s b#0 Term\n  15s app#0 exits 137\n  \
         17s a#0 Kill\n  17s b#0 Kill\n  17s a#0 exits 137\n  17s b#0 exits 137\n"
    );
    assert!(sim.is_gone(&uid()));
}

#[test]
fn a_grace_that_shrinks_while_sidecars_wait_shrinks_for_them_too() {
    let mut sim = Sim::new(pod(RestartPolicy::Always).init([sidecar("a")]), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.trace.clear();
    sim.unwant(&uid(), Some(secs(100)));
    sim.run_until(secs(10));
    sim.unwant(&uid(), Some(secs(1)));
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   5s app#0 Term\n  11s a#0 Term\n  12s app#0 Kill\n  12s app#0 exits 137\n  13s a#0 Kill\n  \
         13s a#0 exits 137\n"
    );
}

#[test]
fn a_sidecar_stopped_after_the_grace_keeps_its_two_seconds_if_the_grace_shrinks() {
    let mut sim = Sim::new(pod(RestartPolicy::Always).init([sidecar("a")]), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.unwant(&uid(), Some(secs(10)));
    sim.run_until(secs(16));
    sim.unwant(&uid(), Some(secs(0)));
    sim.run_until(secs(60));
    assert!(
        sim.trace.ends_with("  15s a#0 Term\n  15s app#0 exits 137\n  17s a#0 Kill\n  17s a#0 exits 137\n")
    );
}

#[test]
fn in_a_new_sandbox_all_init_containers_run_again() {
    let mut sim = Sim::new(served(RestartPolicy::Always), well);
    sim.run_until(secs(10));
    sim.lose_sandbox(&uid());
    sim.run_until(secs(12));
    assert_eq!(phase(&sim), "Pending", "it initialises again");
    assert_eq!(initialized(&sim).0, "True", "what was initialised once stays so");
    assert!(sim.node.pods().next().is_some_and(|pod| !pod.health(ContainerIndex(0)).ready));
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   0s first#0 start\n   3s first#0 exits 0\n   3s proxy#0 start\n   3s app#0 start\n  \
         10s first#1 start\n  13s first#1 exits 0\n  13s proxy#1 start\n  13s app#1 start\n"
    );
    assert_eq!(shown(&sim, "first")["restartCount"], 1);
    assert_eq!(phase(&sim), "Running");
}

#[test]
fn a_never_pod_that_loses_its_sandbox_while_it_initialises_has_failed() {
    let mut sim = Sim::new(served(RestartPolicy::Never), well);
    sim.run_until(secs(2));
    sim.lose_sandbox(&uid());
    sim.run_until(secs(60));
    assert_eq!((phase(&sim).as_str(), sim.trace.as_str()), ("Failed", "   0s first#0 start\n"));
    assert_eq!(shown(&sim, "first")["state"]["terminated"]["reason"], "ContainerStatusUnknown");
}

#[test]
fn an_agent_that_starts_again_runs_no_init_container_again() {
    let mut slow = sidecar("proxy");
    slow.startup_probe = Some(Probe { period: secs(1), failure_threshold: 30, ..exec_probe() });
    let three = pod(RestartPolicy::Always).init([container("first"), slow, container("second")]);
    for moment in 0..12 {
        let mut sim = Sim::new(three.clone(), well).probes(|_, _, age| match age.as_secs() {
            0..4 => ProbeResult::Failure("not yet".into()),
            _ => ProbeResult::Success,
        });
        sim.run_until(secs(moment));
        let before = initialized(&sim).0;
        sim.restart_agent();
        assert_eq!(initialized(&sim).0, before, "at {moment}s");
        sim.run_until(secs(60));
        let order: Vec<&str> = sim.trace.lines().map(|line| &line[6..]).collect();
        let expected = [
            "first#0 start",
            "first#0 exits 0",
            "proxy#0 start",
            "second#0 start",
            "second#0 exits 0",
            "app#0 start",
        ];
        assert_eq!(order, expected, "at {moment}s");
        assert_eq!(phase(&sim), "Running");
    }
}

#[test]
fn after_a_power_cut_init_containers_run_again_unless_the_pod_is_over() {
    let mut sim = Sim::new(served(RestartPolicy::OnFailure), well);
    sim.run_until(secs(100));
    sim.trace.clear();
    sim.reboot();
    sim.run_until(secs(200));
    assert_eq!(
        sim.trace,
        " 100s first#1 start\n 103s first#1 exits 0\n 103s proxy#1 start\n 103s app#1 start\n"
    );
    // A container that is done for good does not restart, and neither do the init containers before it.
    sim.fates(|name, number| if name == "app" { Fate::Exits(0, secs(1)) } else { well(name, number) });
    sim.lose_sandbox(&uid());
    sim.run_until(secs(300));
    assert_eq!(phase(&sim), "Succeeded");
    sim.trace.clear();
    sim.reboot();
    sim.run_until(secs(400));
    assert_eq!((phase(&sim).as_str(), sim.trace.as_str()), ("Succeeded", ""));
}

#[test]
fn after_a_power_cut_a_never_pod_that_was_initialising_has_failed() {
    let mut sim = Sim::new(served(RestartPolicy::Never), well);
    sim.run_until(secs(1));
    sim.reboot();
    sim.run_until(secs(60));
    assert_eq!((phase(&sim).as_str(), sim.trace.as_str()), ("Failed", "   0s first#0 start\n"));
}

#[test]
fn the_active_deadline_counts_the_time_of_init_containers() {
    let mut limited = served(RestartPolicy::Always);
    limited.spec.active_deadline = Some(secs(2));
    let mut sim = Sim::new(limited, well);
    sim.run_until(secs(60));
    assert_eq!(sim.trace, "   0s first#0 start\n   2s first#0 Term\n   2s first#0 exits 143\n");
    assert_eq!(sim.status(&uid())["reason"], "DeadlineExceeded");
    assert_eq!(shown(&sim, "app")["state"], json!({ "waiting": { "reason": "PodInitializing" } }));
}

#[test]
fn a_shutdown_ends_sidecars_last_and_all_begins_again_afterwards() {
    let mut sim = Sim::new(served(RestartPolicy::Always), well);
    sim.run_until(secs(10));
    sim.trace.clear();
    sim.later(secs(0), down());
    sim.run_until(secs(11));
    assert_eq!(
        sim.trace,
        "  10s app#0 Term\n  10s app#0 exits 143\n  10s proxy#0 Term\n  10s proxy#0 exits 143\n"
    );
    assert!(sim.node.is_empty());
    sim.reboot();
    sim.run_until(secs(20));
    assert!(
        sim.trace.ends_with(
            "  11s first#1 start\n  14s first#1 exits 0\n  14s proxy#1 start\n  14s app#1 start\n"
        )
    );
}

#[test]
fn a_record_without_container_names_belongs_to_the_regular_containers() {
    let of =
        |attempts: u32, name: &str| ContainerRecord { name: name.into(), attempts, ..Default::default() };
    let two = pod(RestartPolicy::Always).with([container("x"), container("y")]).init([container("first")]);
    for (containers, restarts) in [
        (vec![of(3, ""), of(5, "")], [3, 5, 0]),
        // By name, whatever the index; removed containers are forgotten.
        (vec![of(9, "gone"), of(2, "first"), of(5, "y"), of(3, "x")], [3, 5, 2]),
    ] {
        let record = Record { containers, ..Record::default() };
        let mut node = Node::new();
        let pod = std::rc::Rc::new(two.clone());
        node.observe(
            at(1),
            Observation::Wanted { pod: pod.clone(), record: Some(Box::new(record)), status: None },
        );
        let state = node.pods().next().expect("it is here");
        let next: Vec<u32> = state.containers().map(|(_, container)| container.started_count()).collect();
        assert_eq!(next, restarts);
    }
}

#[test]
fn a_sidecar_that_ends_while_pods_initialise_is_restarted_and_what_has_begun_behind_it_goes_on() {
    let mut slow = sidecar("proxy");
    slow.startup_probe = Some(Probe { period: secs(1), failure_threshold: 99, ..exec_probe() });
    let two = pod(RestartPolicy::Always).init([slow, container("first")]);
    let mut asked = 0;
    let mut sim = Sim::new(two, |name, number| match (name, number) {
        ("proxy", 0) => Fate::Exits(0, secs(5)),
        ("first", 0) => Fate::Exits(1, secs(8)),
        ("first", _) => Fate::Exits(0, secs(1)),
        _ => Fate::Runs,
    })
    .probes(move |_, _, _| {
        asked += 1;
        if asked == 1 { ProbeResult::Success } else { ProbeResult::Failure("not yet".into()) }
    });
    sim.run_until(secs(60));
    // An init container that has run in this sandbox may do so again, whether the sidecar has started again
    // or not.
    assert_eq!(
        sim.trace,
        "   0s proxy#0 start\n   0s first#0 start\n   5s proxy#0 exits 0\n   5s proxy#1 start\n   \
         8s first#0 exits 1\n   8s first#1 start\n   9s first#1 exits 0\n   9s app#0 start\n"
    );
}

#[test]
fn an_initialised_pod_stays_initialised_while_its_containers_crash() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Always).init([sidecar("proxy")]), |name, number| match (name, number) {
            ("proxy", 0) => Fate::Exits(1, secs(15)),
            ("proxy", 1) => Fate::Exits(1, secs(1)),
            ("app", 0..3) => Fate::Exits(1, secs(1)),
            _ => Fate::Runs,
        });
    sim.run_until(secs(20));
    assert_eq!(shown(&sim, "proxy")["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(shown(&sim, "app")["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!((phase(&sim).as_str(), initialized(&sim).0), ("Running", "True".into()));
    sim.run_until(secs(60));
    // The last sidecar delays the restart as it delayed the start.
    let order: Vec<&str> = sim.trace.lines().map(str::trim_start).collect();
    assert_eq!(order[order.len() - 2..], ["26s proxy#2 start", "33s app#3 start"]);
}

#[test]
fn a_restart_waits_for_a_last_sidecar_that_has_not_started_again() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Always).init([sidecar("proxy")]), |name, number| match (name, number) {
            ("proxy", 0..2) => Fate::Exits(1, secs(10)),
            ("app", 0) => Fate::Exits(1, secs(21)),
            _ => Fate::Runs,
        });
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   0s proxy#0 start\n   0s app#0 start\n  10s proxy#0 exits 1\n  10s proxy#1 start\n  \
         20s proxy#1 exits 1\n  21s app#0 exits 1\n  30s proxy#2 start\n  30s app#1 start\n"
    );
}

#[test]
fn a_sandbox_that_is_lost_while_no_agent_looks_is_a_new_one_to_init_containers() {
    let mut sim = Sim::new(served(RestartPolicy::Always), well);
    sim.run_until(secs(10));
    // The agent dies before the loss is reported to it.
    sim.lose_sandbox(&uid());
    sim.restart_agent();
    sim.run_until(secs(60));
    let again = "  10s first#1 start\n  13s first#1 exits 0\n  13s proxy#1 start\n  13s app#1 start\n";
    assert!(sim.trace.ends_with(again), "{}", sim.trace);
}

#[test]
fn init_containers_of_a_pod_that_is_found_running_are_done_whoever_remembers_them() {
    let pod = std::rc::Rc::new(served(RestartPolicy::Always));
    let attempt = Attempt { container: ContainerIndex(0), number: 0 };
    let run =
        FoundAttempt { attempt, container: started(at(2), attempt), exit: None, health: Health::default() };
    let sandbox = Some(FoundSandbox { ip: None, at: at(1) });
    let mut node = Node::new();
    node.observe(
        at(9),
        Observation::Found(Box::new(FoundPod {
            pod: pod.clone(),
            record: None,
            sandbox,
            processes: false,
            attempts: vec![run],
            status: StatusHandover::default(),
        })),
    );
    node.observe(at(9), Observation::Wanted { pod, record: None, status: None });
    let plan = node.plan(at(9));
    let started: Vec<u8> = plan
        .actions
        .iter()
        .filter_map(|(_, action)| match action {
            Action::Start { attempt, .. } => Some(attempt.container.0),
            _ => None,
        })
        .collect();
    assert_eq!(started, [2], "the sidecar alone");
}

#[test]
fn an_init_container_that_was_short_of_memory_has_failed_whatever_it_ended_with() {
    use crate::pod::container::{ContainerState, Ended};
    for (reason, code, again) in [("Completed", 0, false), ("OOMKilled", 0, true), ("Error", 1, true)] {
        let mut container = ContainerState::new(Role::Init, None);
        container.has_ended(Ended {
            number: 0,
            code,
            reason: reason.into(),
            message: "".into(),
            started_at: None,
            finished_at: None,
            id: None,
        });
        assert_eq!(container.restarts(RestartPolicy::OnFailure), again, "{reason}");
        assert_eq!(container.failed_for_good(RestartPolicy::Never), again, "{reason}");
        assert_eq!(container.has_initialised(), !again, "{reason}");
    }
}

#[test]
fn a_new_agent_does_not_count_a_sidecar_of_a_stopping_pod_as_started() {
    let mut proxy = sidecar("proxy");
    proxy.startup_probe = Some(Probe { period: secs(1), failure_threshold: 100, ..exec_probe() });
    let mut sim = Sim::new(pod(RestartPolicy::Always).init([proxy]), |_, _| Fate::IgnoresTerm)
        .probes(|_, _, _| ProbeResult::Failure("not yet".into()));
    sim.run_until(secs(5));
    sim.unwant(&uid(), Some(secs(40)));
    sim.run_until(secs(10));
    assert_eq!(shown(&sim, "proxy")["started"], false);
    sim.restart_agent();
    sim.run_until(secs(11));
    assert_eq!(shown(&sim, "proxy")["started"], false, "{}", sim.log);
}
