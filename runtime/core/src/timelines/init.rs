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

fn initialized(sim: &Sim) -> (Value, Value) {
    let condition = condition(&sim.status(&uid()), "Initialized");
    (condition["status"].clone(), condition["message"].clone())
}

#[test]
fn init_containers_run_one_after_another_and_then_the_others() {
    let two = pod(RestartPolicy::Always).init([container("first"), container("second")]);
    let mut sim = Sim::new(two, well);
    sim.run(1).shows_phase("Pending");
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
    sim.run(4);
    assert_eq!(initialized(&sim), incomplete("second"));
    assert_eq!(
        (&shown(&sim, "first")["started"], &shown(&sim, "first")["ready"]),
        (&false.into(), &true.into())
    );
    sim.run(60);
    sim.traces("0s first#0 start; 3s first#0 exits 0, second#0 start; 6s second#0 exits 0, app#0 start");
    assert_eq!((phase(&sim), initialized(&sim)), ("Running".into(), ("True".into(), Value::Null)));
    assert_eq!(condition(&sim.status(&uid()), "Initialized")["lastTransitionTime"], "1970-01-01T00:00:06Z");
    assert_eq!(condition(&sim.status(&uid()), "Ready")["status"], "True", "what is done need not be ready");
    let names = sim.status(&uid())["initContainerStatuses"].as_array().expect("a list").len();
    assert_eq!((names, &sim.status(&uid())["initContainerStatuses"][1]["name"]), (2, &"second".into()));
}

#[test]
fn an_init_container_that_fails_is_tried_again_with_back_off_unless_the_policy_is_never() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure] {
        let mut sim = Sim::new(
            pod(policy).init([container("first")]),
            scripted("first#0 exits 1 after 1s, first#1 is OOMKilled after 1s, first exits 0 after 1s"),
        );
        sim.run(5);
        let waiting = &shown(&sim, "first")["state"]["waiting"];
        let message = "back-off 10s restarting failed container=first pod=web_default(u1)";
        assert_eq!(*waiting, json!({ "reason": "CrashLoopBackOff", "message": message }));
        sim.shows_phase("Pending");
        sim.reports("BackOff: Back-off restarting failed container first in pod web_default(u1)").run(60);
        sim.traces(
            "0s first#0 start; 1s first#0 exits 1, first#1 start; 2s first#1 exits 137; 12s first#2 start; \
             13s first#2 exits 0, app#0 start",
        );
        assert_eq!(shown(&sim, "first")["restartCount"], 2);
    }
}

#[test]
fn an_init_container_of_a_never_pod_that_fails_fails_the_pod_and_what_comes_after_it_never_begins() {
    let three = pod(RestartPolicy::Never).init([sidecar("proxy"), container("first"), container("second")]);
    let mut sim = Sim::new(three, scripted("first exits 7 after 5s"));
    sim.run(60);
    sim.traces("0s proxy#0 start, first#0 start; 5s first#0 exits 7, proxy#0 Term, proxy#0 exits 143");
    sim.shows_phase("Failed");
    assert_eq!(shown(&sim, "first")["state"]["terminated"]["exitCode"], 7);
    let waits = json!({ "waiting": { "reason": "PodInitializing" } });
    assert_eq!((&shown(&sim, "second")["state"], &shown(&sim, "app")["state"]), (&waits, &waits));
    assert_eq!(initialized(&sim).1, "containers with incomplete status: [proxy first second]");
    let before = sim.status(&uid())["initContainerStatuses"].clone();
    sim.reboot().run(100);
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
    sim.run(7);
    assert_eq!((phase(&sim).as_str(), &shown(&sim, "proxy")["started"]), ("Pending", &false.into()));
    sim.run(60);
    assert_eq!(
        sim.story(),
        "0s proxy#0 start; 8s first#0 start; 11s first#0 exits 0, app#0 start",
        "that it is not ready holds up nothing"
    );
    sim.shows_phase("Running");
    let ready = condition(&sim.status(&uid()), "Ready");
    assert_eq!(ready["message"], "containers with unready status: [proxy]");
}

#[test]
fn a_sidecar_that_does_not_start_in_time_is_killed_and_started_again() {
    let mut slow = sidecar("proxy");
    slow.startup_probe = Some(exec_probe());
    let mut sim = Sim::new(pod(RestartPolicy::Never).init([slow]), |_, _| Fate::Runs)
        .probes(|_, _, _| ProbeResult::Failure("no".into()));
    sim.run(41);
    sim.traces(
        "0s proxy#0 start; 20s proxy#0 Term, proxy#0 exits 143, proxy#1 start; 40s proxy#1 Term, proxy#1 \
         exits 143",
    );
    sim.reports("Killing: Init container proxy failed startup probe");
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
        sim.run(60);
        sim.traces(
            "0s proxy#0 start, first#0 start; 3s first#0 exits 0, app#0 start; 5s proxy#0 exits 0, proxy#1 \
             start; 10s proxy#1 exits 1; 20s proxy#2 start",
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
    sim.run(25).traces("0s proxy#0 start, app#0 start; 20s proxy#0 Term, proxy#0 exits 143, proxy#1 start");
    sim.reports("Killing: Init container proxy failed liveness probe");
}

#[test]
fn when_the_regular_containers_are_done_sidecars_end_in_reverse_order_and_how_counts_for_nothing() {
    for (policy, code, outcome) in [
        (RestartPolicy::Never, 0, "Succeeded"),
        (RestartPolicy::Never, 4, "Failed"),
        (RestartPolicy::OnFailure, 0, "Succeeded"),
    ] {
        let two = pod(policy).init([sidecar("a"), sidecar("b")]);
        let mut sim = Sim::new(two, scripted(&format!("app exits {code} after 5s, b ignores Term")));
        sim.run(34);
        assert_eq!(phase(&sim), "Running", "what is over is shown when nothing of it runs");
        sim.run(60);
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
    sim.run(10).restart_agent().run(39).shows_phase("Running").run(60).shows_phase("Succeeded");
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
    sim.run(10).clear_trace().latency(4).unwant(&uid(), Some(secs(30))).run(100);
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
    sim.run(5).clear_trace().unwant(&uid(), Some(secs(10))).run(60);
    sim.traces(
        "5s app#0 Term; 15s app#0 Kill, a#0 Term, b#0 Term, app#0 exits 137; 17s a#0 Kill, b#0 Kill, a#0 \
         exits 137, b#0 exits 137",
    );
    assert!(sim.is_gone(&uid()));
}

#[test]
fn a_grace_that_shrinks_while_sidecars_wait_shrinks_for_them_too() {
    let mut sim = Sim::new(pod(RestartPolicy::Always).init([sidecar("a")]), |_, _| Fate::IgnoresTerm);
    sim.run(5).clear_trace().unwant(&uid(), Some(secs(100))).run(10).unwant(&uid(), Some(secs(1))).run(60);
    sim.traces("5s app#0 Term; 11s a#0 Term; 12s app#0 Kill, app#0 exits 137; 13s a#0 Kill, a#0 exits 137");
}

#[test]
fn a_sidecar_stopped_after_the_grace_keeps_its_two_seconds_if_the_grace_shrinks() {
    let mut sim = Sim::new(pod(RestartPolicy::Always).init([sidecar("a")]), |_, _| Fate::IgnoresTerm);
    sim.run(5).unwant(&uid(), Some(secs(10))).run(16).unwant(&uid(), Some(secs(0))).run(60);
    sim.traces_last("15s a#0 Term, app#0 exits 137; 17s a#0 Kill, a#0 exits 137");
}

#[test]
fn in_a_new_sandbox_all_init_containers_run_again() {
    let mut sim = Sim::new(served(RestartPolicy::Always), well);
    sim.run(10).lose_sandbox(&uid()).run(12);
    assert_eq!(phase(&sim), "Pending", "it initialises again");
    assert_eq!(initialized(&sim).0, "True", "what was initialised once stays so");
    assert!(sim.node.pods().next().is_some_and(|pod| !pod.health(ContainerIndex(0)).ready));
    sim.run(60);
    sim.traces(
        "0s first#0 start; 3s first#0 exits 0, proxy#0 start, app#0 start; 10s first#1 start; 13s first#1 \
         exits 0, proxy#1 start, app#1 start",
    );
    assert_eq!(shown(&sim, "first")["restartCount"], 1);
    sim.shows_phase("Running");
}

#[test]
fn a_never_pod_that_loses_its_sandbox_while_it_initialises_has_failed() {
    let mut sim = Sim::new(served(RestartPolicy::Never), well);
    sim.run(2).lose_sandbox(&uid()).run(60);
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
        sim.run(moment);
        let before = initialized(&sim).0;
        sim.restart_agent();
        assert_eq!(initialized(&sim).0, before, "at {moment}s");
        sim.run(60);
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
        sim.shows_phase("Running");
    }
}

#[test]
fn after_a_power_cut_init_containers_run_again_unless_the_pod_is_over() {
    let mut sim = Sim::new(served(RestartPolicy::OnFailure), well);
    sim.run(100).clear_trace().reboot().run(200);
    sim.traces("100s first#1 start; 103s first#1 exits 0, proxy#1 start, app#1 start");
    // A container that is done for good does not restart, and neither do the init containers before it.
    sim.fates(|name, number| if name == "app" { Fate::Exits(0, secs(1)) } else { well(name, number) });
    sim.lose_sandbox(&uid()).run(300).shows_phase("Succeeded").clear_trace().reboot().run(400);
    assert_eq!((phase(&sim).as_str(), sim.trace.as_str()), ("Succeeded", ""));
}

#[test]
fn after_a_power_cut_a_never_pod_that_was_initialising_has_failed() {
    let mut sim = Sim::new(served(RestartPolicy::Never), well);
    sim.run(1).reboot().run(60);
    assert_eq!((phase(&sim).as_str(), sim.trace.as_str()), ("Failed", "   0s first#0 start\n"));
}

#[test]
fn the_active_deadline_counts_the_time_of_init_containers() {
    let mut limited = served(RestartPolicy::Always);
    limited.spec.active_deadline = Some(secs(2));
    let mut sim = Sim::new(limited, well);
    sim.run(60).traces("0s first#0 start; 2s first#0 Term, first#0 exits 143");
    assert_eq!(sim.status(&uid())["reason"], "DeadlineExceeded");
    assert_eq!(shown(&sim, "app")["state"], json!({ "waiting": { "reason": "PodInitializing" } }));
}

#[test]
fn a_shutdown_ends_sidecars_last_and_all_begins_again_afterwards() {
    let mut sim = Sim::new(served(RestartPolicy::Always), well);
    sim.run(10).clear_trace().later(secs(0), down()).run(11);
    sim.traces("10s app#0 Term, app#0 exits 143, proxy#0 Term, proxy#0 exits 143");
    assert!(sim.node.is_empty());
    sim.reboot().run(20).traces_last("11s first#1 start; 14s first#1 exits 0, proxy#1 start, app#1 start");
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
    let mut sim =
        Sim::new(two, scripted("proxy#0 exits 0 after 5s, first#0 exits 1 after 8s, first exits 0 after 1s"))
            .probes(move |_, _, _| {
                asked += 1;
                if asked == 1 { ProbeResult::Success } else { ProbeResult::Failure("not yet".into()) }
            });
    sim.run(60);
    // An init container that has run in this sandbox may do so again, whether the sidecar has started again
    // or not.
    sim.traces(
        "0s proxy#0 start, first#0 start; 5s proxy#0 exits 0, proxy#1 start; 8s first#0 exits 1, first#1 \
         start; 9s first#1 exits 0, app#0 start",
    );
}

#[test]
fn an_initialised_pod_stays_initialised_while_its_containers_crash() {
    let mut sim = Sim::new(
        pod(RestartPolicy::Always).init([sidecar("proxy")]),
        scripted(
            "proxy#0 exits 1 after 15s, proxy#1 exits 1 after 1s, app#0 exits 1 after 1s, app#1 exits 1 after 1s, app#2 exits 1 after 1s",
        ),
    );
    sim.run(20);
    assert_eq!(shown(&sim, "proxy")["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(shown(&sim, "app")["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!((phase(&sim).as_str(), initialized(&sim).0), ("Running", "True".into()));
    sim.run(60);
    // The last sidecar delays the restart as it delayed the start.
    let order: Vec<&str> = sim.trace.lines().map(str::trim_start).collect();
    assert_eq!(order[order.len() - 2..], ["26s proxy#2 start", "33s app#3 start"]);
}

#[test]
fn a_restart_waits_for_a_last_sidecar_that_has_not_started_again() {
    let mut sim = Sim::new(
        pod(RestartPolicy::Always).init([sidecar("proxy")]),
        scripted("proxy#0 exits 1 after 10s, proxy#1 exits 1 after 10s, app#0 exits 1 after 21s"),
    );
    sim.run(60);
    sim.traces(
        "0s proxy#0 start, app#0 start; 10s proxy#0 exits 1, proxy#1 start; 20s proxy#1 exits 1; 21s app#0 \
         exits 1; 30s proxy#2 start, app#1 start",
    );
}

#[test]
fn a_sandbox_that_is_lost_while_no_agent_looks_is_a_new_one_to_init_containers() {
    let mut sim = Sim::new(served(RestartPolicy::Always), well);
    sim.run(10);
    // The agent dies before the loss is reported to it.
    sim.lose_sandbox(&uid()).restart_agent().run(60);
    let again = "  10s first#1 start\n  13s first#1 exits 0\n  13s proxy#1 start\n  13s app#1 start\n";
    assert!(sim.trace.ends_with(again), "{}", sim.trace);
}

#[test]
fn init_containers_of_a_pod_that_is_found_running_are_done_whoever_remembers_them() {
    let pod = std::rc::Rc::new(served(RestartPolicy::Always));
    let attempt = FIRST_RUN;
    let run =
        FoundAttempt { attempt, container: started(at(2), attempt), exit: None, health: Health::default() };
    let mut node = Node::new();
    node.observe(at(9), Observation::Found(Box::new(found_pod(pod.clone(), at(1), vec![run]))));
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
    use crate::pod::container::ContainerState;
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
    sim.run(5).unwant(&uid(), Some(secs(40))).run(10);
    assert_eq!(shown(&sim, "proxy")["started"], false);
    sim.restart_agent().run(11);
    assert_eq!(shown(&sim, "proxy")["started"], false, "{}", sim.log);
}
