//! Restart policies of single containers, their rules, and restarts of all containers.

use std::rc::Rc;

use serde_json::{Value, json};

use super::{condition, first, phase, uid};
use crate::facts::*;
use crate::sim::*;
use crate::spec::*;

fn own(
    mut container: Container,
    policy: RestartPolicy,
    rules: &[(RestartAction, bool, &[i32])],
) -> Container {
    let rule = |(action, within, codes): &(RestartAction, bool, &[i32])| RestartRule {
        action: *action,
        within: *within,
        codes: codes.to_vec(),
    };
    container.restart = Some(Rc::new(OwnRestart { policy, rules: rules.iter().map(rule).collect() }));
    container
}

const ALL: RestartAction = RestartAction::RestartAllContainers;

fn starts(sim: &Sim) -> Vec<&str> {
    sim.trace.lines().filter(|line| line.ends_with("start")).map(str::trim).collect()
}

#[test]
fn the_policy_of_a_container_comes_before_that_of_its_pod() {
    for (of_pod, of_container, code, restarted) in [
        (RestartPolicy::Always, RestartPolicy::Never, 1, false),
        (RestartPolicy::Always, RestartPolicy::OnFailure, 0, false),
        (RestartPolicy::Always, RestartPolicy::OnFailure, 1, true),
        (RestartPolicy::Never, RestartPolicy::Always, 0, true),
        (RestartPolicy::Never, RestartPolicy::OnFailure, 3, true),
        (RestartPolicy::OnFailure, RestartPolicy::Never, 3, false),
    ] {
        let two = pod(of_pod).with([own(container("app"), of_container, &[]), container("other")]);
        let mut sim = Sim::new(two, scripted(&format!("app#0 exits {code} after 5s")));
        sim.run(8);
        assert_eq!(starts(&sim).contains(&"5s app#1 start"), restarted, "{of_pod:?} {of_container:?} {code}");
        sim.shows_phase("Running");
    }
}

#[test]
fn the_first_rule_that_holds_decides_and_then_the_policy() {
    let rules: &[(RestartAction, bool, &[i32])] =
        &[(RestartAction::Restart, true, &[42, 43]), (RestartAction::Restart, false, &[0, 1, 2])];
    for (code, restarted) in [(42, true), (7, true), (0, false), (1, false)] {
        let app = own(container("app"), RestartPolicy::Never, rules);
        let mut sim =
            Sim::new(pod(RestartPolicy::Never).with([app]), scripted(&format!("*#0 exits {code} after 5s")));
        sim.run(8);
        assert_eq!(starts(&sim).contains(&"5s app#1 start"), restarted, "{code}");
        assert_eq!(
            phase(&sim),
            if restarted {
                "Running"
            } else if code == 0 {
                "Succeeded"
            } else {
                "Failed"
            }
        );
    }
}

#[test]
fn restart_policy_rules_ignore_a_kill_by_a_probe() {
    let mut app = own(container("app"), RestartPolicy::Never, &[(RestartAction::Restart, true, &[143])]);
    app.liveness_probe = Some(Probe { failure_threshold: 1, ..exec_probe() });
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Runs)
        .probes(|_, _, _| ProbeResult::Failure("no".into()));
    sim.run(60);
    assert_eq!(starts(&sim), ["0s app#0 start"]);
    sim.reports("Killing: Container app failed liveness probe").shows_phase("Failed");
}

#[test]
fn an_init_container_of_its_own_policy_fails_its_pod_or_is_tried_again() {
    for (of_pod, of_container, restarted) in [
        (RestartPolicy::Always, RestartPolicy::Never, false),
        (RestartPolicy::Never, RestartPolicy::OnFailure, true),
    ] {
        let first = own(container("first"), of_container, &[]);
        let mut sim =
            Sim::new(pod(of_pod).init([first]), scripted("first#0 exits 1 after 2s, first exits 0 after 2s"));
        sim.run(20);
        assert_eq!(phase(&sim), if restarted { "Running" } else { "Failed" });
    }
}

#[test]
fn a_container_that_is_never_restarted_begins_again_with_its_pods_new_sandbox() {
    let two = pod(RestartPolicy::Always)
        .with([own(container("app"), RestartPolicy::Never, &[]), container("other")]);
    let mut sim = Sim::new(two, scripted("app exits 1 after 5s"));
    sim.run(8);
    assert_eq!(starts(&sim), ["0s app#0 start", "0s other#0 start"]);
    sim.lose_sandbox(&uid()).run(20);
    assert_eq!(starts(&sim)[2..], ["8s app#1 start", "8s other#1 start"]);
}

fn all_again() -> Pod {
    pod(RestartPolicy::Never)
        .init([container("first"), sidecar("proxy")])
        .with([own(container("app"), RestartPolicy::Never, &[(ALL, true, &[42])]), container("other")])
}

fn fates(name: &str, number: u32) -> Fate {
    match (name, number) {
        ("first", _) => Fate::Exits(0, secs(2)),
        ("app", 0) => Fate::Exits(42, secs(5)),
        ("other", _) => Fate::IgnoresTerm,
        _ => Fate::Runs,
    }
}

#[test]
fn an_exit_with_a_rule_for_all_restarts_all_containers_in_their_sandbox() {
    let mut sim = Sim::new(all_again(), fates);
    let restarting = |sim: &Sim| {
        let condition = condition(&sim.status(&uid()), "AllContainersRestarting");
        (condition["status"].clone(), condition["reason"].clone(), condition["message"].clone())
    };
    sim.run(4);
    assert_eq!(restarting(&sim), ("False".into(), Value::Null, Value::Null));
    sim.run(9);
    assert_eq!(
        restarting(&sim),
        (
            "True".into(),
            "RestartAllContainersStarted".into(),
            "container exited with restart policy rule".into()
        )
    );
    sim.shows_phase("Running").run(10);
    let removed = "The container is removed because RestartAllContainers in place";
    for name in ["app", "other", "proxy"] {
        let shown = shown(&sim, name);
        let waits = json!({ "waiting": { "reason": "RestartingAllContainers", "message": removed } });
        assert_eq!(shown["state"], waits, "{name}");
        let last = &shown["lastState"]["terminated"];
        assert_eq!(json!([last["exitCode"], last["reason"]]), json!([137, "RestartingAllContainers"]));
        assert_eq!(shown["restartCount"], 1, "{name}");
    }
    sim.run(60);
    sim.traces(
        "0s first#0 start; 2s first#0 exits 0, proxy#0 start, app#0 start, other#0 start; 7s app#0 exits \
         42; 8s other#0 Term; 10s other#0 Kill, other#0 exits 137, proxy#0 Term, proxy#0 exits 143, first#1 \
         start; 12s first#1 exits 0, proxy#1 start, app#1 start, other#1 start",
    );
    assert_eq!(restarting(&sim), ("False".into(), Value::Null, Value::Null));
    sim.reports("Killing: killing").shows_phase("Running");
    assert_eq!(shown(&sim, "app")["restartCount"], 1);
    assert_eq!(shown(&sim, "app")["lastState"]["terminated"]["reason"], "RestartingAllContainers");
}

#[test]
fn a_pod_that_is_stopped_restarts_no_containers() {
    let mut sim = Sim::new(all_again(), fates);
    let restarting = |sim: &Sim| condition(&sim.status(&uid()), "AllContainersRestarting")["status"].clone();
    sim.run(7);
    assert_eq!(restarting(&sim), "True");
    sim.unwant(&uid(), None).run(8);
    assert_eq!(restarting(&sim), "False");
}

#[test]
fn restart_counts_do_not_fall_back_while_what_begins_again_with_all_is_started() {
    let mut slow = container("other");
    slow.lifecycle.post_start = Some(Hook::Sleeps(secs(10)));
    let app = own(container("app"), RestartPolicy::Never, &[(ALL, true, &[42])]);
    let mut sim = Sim::new(pod(RestartPolicy::Never).with([app, slow]), scripted("app#0 exits 42 after 20s"));
    sim.run(19);
    assert_eq!(shown(&sim, "other")["restartCount"], 0);
    // The hook is running, so the container is not shown as running yet.
    sim.run(25);
    assert_eq!(shown(&sim, "other")["state"]["waiting"]["reason"], "RestartingAllContainers");
    assert_eq!(shown(&sim, "other")["restartCount"], 1);
    sim.run(40);
    assert_eq!(shown(&sim, "other")["restartCount"], 1);
}

/// The hook fails because the container ends, which is reported later.
#[test]
fn an_exit_during_the_post_start_hook_restarts_all_containers() {
    let mut app = own(container("app"), RestartPolicy::Never, &[(ALL, true, &[42])]);
    app.lifecycle.post_start = Some(Hook::Asks(ProbeAction::Exec(vec!["true".into()])));
    let two = pod(RestartPolicy::Never).with([container("other"), app]);
    let sim = Sim::new(two, scripted("app#0 exits 42 after 5s"));
    let mut sim = sim.hooks(|_, _, number| HookFate::Succeeds(secs(if number == 0 { 60 } else { 0 })));
    sim.run(30);
    assert_eq!(shown(&sim, "app")["restartCount"], 1, "{}", sim.log);
    assert_eq!(starts(&sim), ["0s other#0 start", "0s app#0 start", "6s other#1 start", "6s app#1 start"]);
    sim.shows_phase("Running");
}

#[test]
fn all_containers_restart_without_back_off_at_most_once_a_second() {
    let app = own(container("app"), RestartPolicy::Always, &[(ALL, true, &[1])]);
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Exits(1, secs(0)));
    sim.run(5);
    assert_eq!(
        starts(&sim),
        [
            "0s app#0 start",
            "1s app#1 start",
            "2s app#2 start",
            "3s app#3 start",
            "4s app#4 start",
            "5s app#5 start"
        ]
    );
    assert_eq!(first(&sim)["restartCount"], 5);
}

#[test]
fn the_next_agent_continues_the_restart_of_all_containers() {
    for when in [7, 8, 9, 10, 11] {
        let mut sim = Sim::new(all_again(), fates);
        sim.run(when).restart_agent().run(60);
        let starts = starts(&sim).join(" ");
        for again in ["first#1", "proxy#1", "app#1", "other#1"] {
            assert_eq!(
                starts.matches(&format!("{again} start")).count(),
                1,
                "{when}: {again}\n{}",
                sim.trace
            );
        }
        assert!(!starts.contains("#2"), "{when}: {}", sim.trace);
        assert_eq!(phase(&sim), "Running", "{when}");
    }
}

#[test]
fn a_pod_that_is_deleted_while_all_containers_restart_is_removed() {
    let mut sim = Sim::new(all_again(), fates);
    sim.run(8).unwant(&uid(), Some(secs(5))).run(30);
    assert!(sim.is_gone(&uid()));
    assert!(!starts(&sim).iter().any(|start| start.contains("#1")));
}

#[test]
fn the_health_record_of_an_earlier_agent_round_trips_unchanged() {
    let before = r#"{"started":true,"ready":false}"#;
    let health: Health = serde_json::from_str(before).expect("it is read");
    assert_eq!(health, Health { started: true, ..Health::default() });
    assert_eq!(serde_json::to_string(&health).expect("it is written"), before);
    let now = Health { pre_stopped: true, superseded: true, ..health };
    let text = serde_json::to_string(&now).expect("it is written");
    assert_eq!(serde_json::from_str::<Health>(&text).expect("it is read"), now);
}

/// The shown results of the finished runs of `app`: the restart count, the newest result and the previous
/// one.
fn restarts_of_app(sim: &Sim) -> (Value, Value, Value) {
    let app = shown(sim, "app");
    (app["restartCount"].clone(), app["state"].clone(), app["lastState"]["terminated"]["exitCode"].clone())
}

#[test]
fn restart_counts_and_last_states_outlive_the_agent_and_the_back_off_does_not() {
    let crashes = |_: &str, number: u32| Fate::Exits(10 + number as i32, secs(1));
    let mut sim = Sim::new(pod(RestartPolicy::Always), crashes);
    sim.run(40);
    let (count, state, last) = restarts_of_app(&sim);
    assert_eq!((count, last), (json!(3), json!(13)));
    assert!(state["waiting"]["message"].as_str().is_some_and(|message| message.starts_with("back-off 40s ")));

    // The next agent does not know the back-off, which is in memory only: it restarts at once, and then after
    // 10 s.
    sim.restart_agent().run(42);
    let (count, state, last) = restarts_of_app(&sim);
    assert_eq!((count, last), (json!(4), json!(14)));
    assert!(state["waiting"]["message"].as_str().is_some_and(|message| message.starts_with("back-off 10s ")));
    sim.run(55);
    let begun = starts(&sim);
    let whole = ["0s app#0 start", "1s app#1 start", "12s app#2 start", "33s app#3 start", "40s app#4 start"];
    assert_eq!((&begun[..5], begun.get(5..)), (&whole[..], Some(&["51s app#5 start"][..])), "{}", sim.trace);
    assert_eq!(restarts_of_app(&sim).2, 15);
}

#[test]
fn an_exit_while_no_agent_ran_is_counted_and_becomes_the_last_state() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Always), scripted("*#0 exits 3 after 1s, *#1 exits 4 after 20s"));
    sim.run(20);
    // The container ends before the next agent looks.
    sim.restart_agent().run(30);
    assert_eq!(starts(&sim), ["0s app#0 start", "1s app#1 start", "21s app#2 start"]);
    let app = shown(&sim, "app");
    assert_eq!(json!([app["restartCount"], app["lastState"]["terminated"]["exitCode"]]), json!([2, 4]));
}

#[test]
fn restart_counts_and_the_last_exit_outlive_a_reboot_as_far_as_they_are_on_flash() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Always), scripted("*#0 exits 7 after 1s, *#1 exits 7 after 1s"));
    // Counts are written after they have not changed for ten seconds, and then not for minutes.
    sim.run(30);
    assert_eq!(restarts_of_app(&sim).0, 2);
    sim.reboot().run(35);
    // The unrecorded run is started again, at once: an exit of an earlier boot delays nothing.
    sim.traces_last("12s app#2 start; 30s app#2 start");
    let (count, _, last) = restarts_of_app(&sim);
    assert_eq!((count, last), (json!(2), json!(7)));
    sim.run(400).reboot().run(405);
    // The start of this run is on record, and its end is unknown.
    sim.traces_last("400s app#3 start");
    let app = shown(&sim, "app");
    assert_eq!(json!([app["restartCount"], app["lastState"]["terminated"]["exitCode"]]), json!([3, 137]));
    assert_eq!(app["lastState"]["terminated"]["reason"], "ContainerStatusUnknown");
}

#[test]
fn restarting_all_containers_resets_their_back_off() {
    let app = own(container("app"), RestartPolicy::Always, &[(ALL, true, &[42])]);
    let mut sim = Sim::new(
        pod(RestartPolicy::Always).with([app]),
        scripted("*#0 exits 42 after 1s, *#1 exits 1 after 1s, *#2 exits 1 after 1s"),
    );
    sim.run(30);
    // The run was removed with all others, as if it had never run: the first restart after that is immediate.
    assert_eq!(starts(&sim), ["0s app#0 start", "2s app#1 start", "3s app#2 start", "14s app#3 start"]);
}

#[test]
fn restarting_all_containers_leaves_ephemeral_containers_alone() {
    let mut sim = Sim::new(
        all_again(),
        scripted("first exits 0 after 0s, app#0 exits 42 after 10s, done exits 3 after 1s"),
    );
    sim.run(5).debug(&uid(), container("look")).debug(&uid(), container("done")).run(60);
    let of = |name: &str| sim.trace.lines().filter(|line| line.contains(&format!(" {name}#"))).count();
    assert_eq!((of("look"), of("done")), (1, 2), "{}", sim.trace);
    assert!(sim.trace.contains("app#1 start") && sim.trace.contains("proxy#1 start"), "{}", sim.trace);
}

#[test]
fn a_finished_pod_keeps_its_transition_times_and_address_across_reboots() {
    let once = scripted("first exits 0 after 3s, * exits 1 after 6s");
    let mut sim = Sim::new(pod(RestartPolicy::Never).init([container("first")]), once);
    let shown_times = |sim: &Sim| {
        let status = sim.status(&uid());
        let since = |kind: &str| condition(&status, kind)["lastTransitionTime"].clone();
        let all = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
        (all.map(since), status["podIP"].clone())
    };
    sim.run(20);
    let before = shown_times(&sim);
    sim.shows_phase("Failed");
    let time = |seconds: u32| Value::from(format!("1970-01-01T00:00:{seconds:02}Z"));
    assert_eq!(before, ([9, 3, 9, 9, 0].map(time), "10.85.0.2".into()));
    sim.restart_agent().run(40);
    assert_eq!(shown_times(&sim), before);
    sim.reboot().run(100);
    assert_eq!(shown_times(&sim), before);
}

/// A kubelet shows what its runtime has created: a container whose process could not be executed is one.
#[test]
fn a_run_that_could_not_be_executed_is_shown_as_any_other() {
    let fate = || {
        scripted(
            "*#1 exits 1 after 3s, *#0 fails with RunContainerError, *#2 fails with RunContainerError, * fails with CreateContainerError",
        )
    };
    let shown = |sim: &Sim, state: &str| {
        let status = first(sim);
        let ended = &status[state]["terminated"];
        assert_eq!((&ended["reason"], &ended["containerID"]), (&json!("StartError"), &status["containerID"]));
        for field in ["image", "imageID", "user", "stopSignal", "resources"] {
            assert!(!status[field].is_null() && status[field] != "", "{field}: {status}");
        }
        status["containerID"].as_str().expect("a container has an ID").to_owned()
    };
    let mut sim = Sim::new(pod(RestartPolicy::Always), fate());
    sim.run(5);
    assert_eq!(first(&sim)["lastState"]["terminated"]["exitCode"], 1);
    sim.run(15);
    let id = shown(&sim, "lastState");
    assert!(id.ends_with('2'), "it is that of the third run: {id}");
    sim.restart_agent().run(16);
    assert_eq!(shown(&sim, "lastState"), id, "the next run was not created");

    // What never ran is shown so for as long as its pod is there.
    let mut sim = Sim::new(pod(RestartPolicy::Never), fate());
    sim.run(5);
    let before = first(&sim);
    shown(&sim, "state");
    for (turn, until) in [(Sim::restart_agent as fn(&mut Sim) -> &mut Sim, 50), (Sim::reboot, 100)] {
        turn(&mut sim).run(until);
        assert_eq!(first(&sim), before);
    }
}

#[test]
fn a_container_that_cannot_run_shows_run_container_error_until_it_backs_off() {
    let fate = |_: &str, _: u32| Fate::FailsToStart(StartFailureReason::RunContainerError);
    let mut sim = Sim::new(pod(RestartPolicy::Always), fate);
    sim.run(5);
    let app = first(&sim);
    let failed = json!({ "waiting": { "reason": "RunContainerError", "message": "it cannot be" } });
    assert_eq!((&app["state"], &app["restartCount"]), (&failed, &1.into()));
    assert_eq!(app["lastState"]["terminated"]["reason"], "StartError");
    assert_eq!(app["lastState"]["terminated"]["exitCode"], 128);
    // The third run starts after ten seconds, and the next one is delayed by twenty.
    sim.run(15);
    assert_eq!(first(&sim)["state"], failed);
    sim.run(25);
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "CrashLoopBackOff");

    let mut sim = Sim::new(pod(RestartPolicy::Never), fate);
    sim.run(5);
    assert_eq!(first(&sim)["state"]["terminated"]["reason"], "StartError");
    sim.shows_phase("Failed");
}
