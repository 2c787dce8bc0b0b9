//! Agents that are killed, and what the next agent publishes. The simulator compares the status before and
//! after each restart; these are the restarts that once gave a different status.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::spec::*;

fn app(sim: &Sim) -> serde_json::Value {
    sim.status(&uid())["containerStatuses"][0].clone()
}

#[test]
fn a_running_pod_that_is_deleted_goes_on_running_under_the_next_agent() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run(20).unwant(&uid(), Some(secs(30))).run(25).restart_agent().shows_phase("Running");
    // With the whole grace period again.
    sim.run(54);
    assert!(!sim.is_gone(&uid()));
    sim.run(60);
    assert!(sim.is_gone(&uid()));
}

#[test]
fn the_published_deletion_is_fixed_moves_only_earlier_and_is_the_same_under_the_next_agent() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    let deletion = |sim: &Sim| {
        let state = sim.node.index_of(&uid()).and_then(|index| sim.node.pod(index)).expect("it is here");
        state.deletion()
    };
    let published = |seconds: u64, grace: u64| Some(Deletion { at: at(seconds), grace: secs(grace) });
    sim.run(20);
    assert_eq!(deletion(&sim), None);
    sim.unwant(&uid(), Some(secs(30))).run(25);
    assert_eq!(deletion(&sim), published(50, 30));
    // A longer grace period changes nothing; a shorter one is counted from the first request.
    sim.unwant(&uid(), Some(secs(60)));
    assert_eq!(deletion(&sim), published(50, 30));
    sim.unwant(&uid(), Some(secs(20))).run(30);
    assert_eq!(deletion(&sim), published(40, 20));
    // The container has the whole grace period again, and the published time is the same.
    sim.restart_agent().run(45);
    assert_eq!(deletion(&sim), published(40, 20));
    sim.run(60);
    assert!(sim.is_gone(&uid()));
}

#[test]
fn the_deletion_of_a_pod_that_had_ended_has_no_time() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(5)));
    sim.run(40).shows_phase("Succeeded").unwant(&uid(), Some(secs(30)));
    let state = sim.node.index_of(&uid()).and_then(|index| sim.node.pod(index)).expect("it is here");
    assert_eq!((state.is_unwanted(), state.deletion()), (true, None));
}

#[test]
fn an_agent_reads_the_handover_of_a_deletion_without_its_time() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run(20).unwant(&uid(), Some(secs(30))).run(25);
    let state = sim.node.index_of(&uid()).and_then(|index| sim.node.pod(index)).expect("it is here");
    let mut left = serde_json::to_value(state.handover().state).expect("it is JSON");
    assert!(left["deletion"].is_object(), "{left}");
    left.as_object_mut().expect("an object").remove("deletion");
    let left: HandedOver = serde_json::from_value(left).expect("it is read");
    assert_eq!((left.deletion, left.deletion_grace_period_seconds), (None, Some(30)));
}

#[test]
fn restarts_of_what_cannot_be_executed_are_counted_on_by_the_next_agent() {
    let fate = |_: &str, _: u32| Fate::FailsToStart(StartFailureReason::RunContainerError);
    let mut sim = Sim::new(pod(RestartPolicy::Always), fate);
    sim.run(200);
    // Writes are delayed to spare flash: the record has three runs.
    let on_flash = sim.pods[0].record.as_ref().map(|record| record.containers[0].attempts);
    assert_eq!((app(&sim)["restartCount"].clone(), on_flash), (json!(5), Some(3)));
    sim.restart_agent().run(201);
    assert_eq!(app(&sim)["restartCount"], 6);
    assert_eq!(app(&sim)["lastState"]["terminated"]["reason"], "StartError");
}

#[test]
fn a_finished_pod_keeps_its_last_state_across_agents_and_reboots() {
    let mut sim =
        Sim::new(pod(RestartPolicy::OnFailure), scripted("*#0 exits 7 after 3s, * exits 0 after 3s"));
    sim.run(30);
    let before = app(&sim);
    sim.shows_phase("Succeeded");
    assert_eq!(before["lastState"]["terminated"]["exitCode"], 7);
    sim.restart_agent().run(40);
    assert_eq!(app(&sim), before);
    sim.reboot().run(50);
    assert_eq!((&app(&sim)["state"], &app(&sim)["lastState"]), (&before["state"], &before["lastState"]));
}

#[test]
fn the_last_two_ends_of_a_container_outlive_its_supervisor_and_its_agent() {
    let done = scripted("app#0 exits 7 after 1s, app exits 0 after 1s");
    let pod = pod(RestartPolicy::OnFailure).with([container("app"), container("stays")]);
    let mut sim = Sim::new(pod, done);
    sim.run(9);
    let before = app(&sim);
    assert_eq!(before["lastState"]["terminated"]["exitCode"], 7);
    sim.lose_sandbox(&uid());
    // The loss was not reported to the agent.
    sim.restart_agent().run(20);
    assert_eq!((&app(&sim)["state"], &app(&sim)["lastState"]), (&before["state"], &before["lastState"]));
}

#[test]
fn the_next_agent_hides_a_force_deleted_pod_and_keeps_its_successors_times() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run(20).delete_by_force(&uid());
    let successor = sim.want(pod(RestartPolicy::Always).uid("u2"));
    sim.run(23).restart_agent();
    assert_eq!(sim.status(&successor)["startTime"], "1970-01-01T00:00:20Z");
    // The pod's running processes are orphans.
    sim.run(30);
    assert!(sim.is_gone(&uid()));
    assert_eq!(sim.status(&successor)["phase"], "Running");
    assert_eq!(sim.status(&successor)["startTime"], "1970-01-01T00:00:20Z");
}

#[test]
fn a_container_that_a_probe_has_ended_begins_again_though_it_ended_well_and_another_agent_came() {
    let mut probed = container("app");
    probed.liveness_probe = Some(Probe { failure_threshold: 1, ..exec_probe() });
    let unwell = |_: &str, _: ProbeKind, age: Duration| {
        if age >= secs(5) { ProbeResult::Failure("no".into()) } else { ProbeResult::Success }
    };
    let fate = |_: &str, number: u32| if number == 0 { Fate::Exits(0, secs(12)) } else { Fate::Runs };
    let mut sim = Sim::new(pod(RestartPolicy::OnFailure).with([probed]), fate).probes(unwell);
    // The run is asked to end at ten seconds, and takes some time.
    sim.latency(4).run(16).restart_agent();
    sim.weather.latency = Duration::ZERO;
    sim.run(40);
    assert!(sim.trace.contains("app#1 start"), "{}", sim.trace);
}

#[test]
fn a_pod_that_never_restarts_gets_no_sandbox_changed_event() {
    for (policy, is_expected) in [(RestartPolicy::Never, false), (RestartPolicy::Always, true)] {
        let mut sim = Sim::new(pod(policy), |_, _| Fate::Runs);
        sim.run(20).lose_sandbox(&uid()).run(40);
        let has_event = sim.events.iter().any(|event| event.starts_with("SandboxChanged"));
        assert_eq!(has_event, is_expected, "{policy:?}: {:?}", sim.events);
    }
}

#[test]
fn the_restart_count_after_restarting_all_containers_survives_a_lost_sandbox() {
    let own = |rules| std::rc::Rc::new(OwnRestart { policy: RestartPolicy::OnFailure, rules });
    let rule = RestartRule { action: RestartAction::RestartAllContainers, within: true, codes: vec![1] };
    let mut first = container("i0");
    first.restart = Some(own(vec![rule]));
    let mut sim = Sim::new(pod(RestartPolicy::Always).init([sidecar("s0"), first]), |name, number| {
        match (name, number) {
            ("i0", 0) => Fate::Exits(1, secs(5)),
            ("s0", 1) => Fate::FailsToStart(StartFailureReason::ErrImagePull),
            _ => Fate::Runs,
        }
    });
    let count = |sim: &Sim| sim.status(&uid())["initContainerStatuses"][1]["restartCount"].clone();
    sim.run(20);
    assert_eq!(count(&sim), 1, "{}", sim.trace);
    sim.lose_sandbox(&uid()).run(21);
    assert_eq!(count(&sim), 1, "{}", sim.trace);
    sim.lose_sandbox(&uid()).restart_agent();
    assert_eq!(count(&sim), 1, "{}", sim.trace);
}

/// `app` with a postStart hook.
fn with_post_start(hook: Hook) -> Pod {
    let mut hooked = container("app");
    hooked.lifecycle.post_start = Some(hook);
    pod(RestartPolicy::Always).with([hooked])
}

#[test]
fn a_post_start_hook_that_sleeps_sleeps_on_under_the_next_agent() {
    let mut sim = Sim::new(with_post_start(Hook::Sleeps(secs(30))), |_, _| Fate::Runs);
    sim.run(10).restart_agent().run(29);
    assert!(app(&sim)["state"]["waiting"].is_object(), "{}", app(&sim));
    sim.run(31);
    assert!(app(&sim)["state"]["running"].is_object(), "{}", app(&sim));
}

#[test]
fn a_container_whose_post_start_hook_failed_is_killed_by_the_next_agent() {
    let fate = |_: &str, number: u32| if number == 0 { Fate::IgnoresTerm } else { Fate::Runs };
    let hook = Hook::Asks(ProbeAction::Exec(vec!["false".into()]));
    let sim = Sim::new(with_post_start(hook), fate);
    let mut sim = sim.hooks(|_, _, number| match number {
        0 => HookFate::Fails(secs(1)),
        _ => HookFate::Succeeds(Duration::ZERO),
    });
    sim.run(10).restart_agent().run(30);
    assert!(app(&sim)["state"]["waiting"].is_object(), "{}", app(&sim));
    sim.run(60);
    assert!(sim.trace.contains("app#0 Kill"), "{}", sim.trace);
    assert!(app(&sim)["state"]["running"].is_object(), "{}", app(&sim));
    assert_eq!(app(&sim)["restartCount"], 1);
}

#[test]
fn a_handover_of_an_earlier_version_with_fewer_fields_is_read() {
    let before = r#"{"conditions":[{"kind":"Ready","status":true,"since":{"ThisBoot":5}}],"given":[]}"#;
    let status: StatusHandover = serde_json::from_str(before).expect("it is read");
    assert_eq!((status.conditions.len(), status.state.is_none()), (1, true));
    let container = HandedOverContainer { attempts: 1, is_running: true, ..HandedOverContainer::default() };
    let before: HandedOverContainer =
        serde_json::from_str(r#"{"attempts":1,"is_running":true}"#).expect("it is read");
    assert_eq!(before, container);
}

/// Agents of other versions read these names.
#[test]
fn renamed_fields_keep_their_serialised_names() {
    let conditions = vec![ClientCondition::default()];
    let record = Record { client_conditions: conditions.clone(), ..Record::default() };
    let record = serde_json::to_value(record).expect("a record is JSON");
    assert!(record["given"].is_array(), "{record}");
    let status = StatusHandover { client_conditions: Some(conditions.clone()), ..StatusHandover::default() };
    let status = serde_json::to_value(status).expect("a handover is JSON");
    assert!(status["given"].is_array(), "{status}");
    let container = HandedOverContainer { ran_in_sandbox: true, ..HandedOverContainer::default() };
    let container = serde_json::to_value(container).expect("a handover is JSON");
    assert_eq!(container["ran_here"], true, "{container}");
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(1)));
    sim.run(5);
    let ended = sim.node.pods().next().expect("it is shown").handover();
    let ended = serde_json::to_value(ended).expect("a handover is JSON");
    assert_eq!(ended["state"]["verdict"]["phase"], "Succeeded", "{ended}");
    let seen: PodObservation = PodObservation::ClientConditions { conditions: conditions.into() };
    let seen = serde_json::to_value(seen).expect("an observation is JSON");
    assert!(seen["Given"].is_object(), "{seen}");
    let shutdown = Shutdown { scope: ShutdownScope::Agent, groups: Vec::new() };
    let shutdown = serde_json::to_value(shutdown).expect("a request is JSON");
    assert_eq!(shutdown["whole"], "Agent", "{shutdown}");
}

#[test]
fn a_run_that_the_previous_agent_did_not_know_has_not_the_health_of_the_run_before() {
    let mut probed = container("app");
    probed.readiness_probe = Some(exec_probe());
    let pod = pod(RestartPolicy::Always).with([probed]);
    let mut sim = Sim::new(pod.clone(), |_, _| Fate::Runs);
    sim.run(30);
    let app = ContainerIndex(0);
    let before = sim.node.pod(sim.node.index_of(&uid()).expect("it runs")).expect("it runs");
    assert!(before.health(app).ready);
    let run = |number, exit| {
        let attempt = Attempt { container: app, number };
        FoundAttempt { attempt, container: started(at(31), attempt), exit, health: Health::default() }
    };
    let exit = exit(1, at(0), at(31));
    for (attempts, is_ready) in [(vec![run(0, None)], true), (vec![run(0, Some(exit)), run(1, None)], false)]
    {
        let found = FoundPod {
            status: before.handover(),
            ..found_pod(std::rc::Rc::new(pod.clone()), at(0), attempts)
        };
        let mut node = Node::new();
        node.observe(at(32), Observation::Found(Box::new(found)));
        let after = node.pod(node.index_of(&uid()).expect("it is found")).expect("it is found");
        assert_eq!(after.health(app).ready, is_ready);
        assert!(after.running(app).is_some());
    }
}
