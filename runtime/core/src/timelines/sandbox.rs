//! Sandboxes that cannot be created, or that are lost.

use super::*;

#[test]
fn a_sandbox_that_cannot_be_made_is_tried_again_every_ten_seconds() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.failures(100).run(25);
    assert_eq!(sim.log.matches("create sandbox").count(), 3);
    assert_eq!(sim.events[0], "FailedCreatePodSandBox: Failed to create pod sandbox: no such device");
    let waiting = |sim: &Sim| sim.status(&uid())["containerStatuses"][0]["state"]["waiting"].clone();
    let why = "Failed to create pod sandbox: no such device";
    assert_eq!(waiting(&sim), serde_json::json!({ "reason": "ContainerCreating", "message": why }));
    sim.failures(0).run(35).traces("30s app#0 start");
    assert!(waiting(&sim).is_null());
}

#[test]
fn a_never_pod_that_loses_its_sandbox_is_over_though_a_container_has_not_started_yet() {
    let two = pod(RestartPolicy::Never).with([container("done"), container("late")]);
    let mut sim = Sim::new(two, scripted("late fails with ErrImagePull, * exits 0 after 1s"));
    sim.run(5).lose_sandbox(&uid()).run(60);
    assert_eq!(times(&sim, "web create sandbox"), [0]);
    sim.shows_phase("Failed");
}

#[test]
fn a_pod_that_has_begun_is_not_replaced_if_it_is_found_late() {
    let found = |sim: &Sim| {
        let state = sim.node.pod(sim.node.index_of(&uid()).expect("it is here")).expect("it is here");
        Observation::Found(Box::new(found_pod(state.pod().clone(), at(1), Vec::new())))
    };
    // One runs, one waits for its back-off, one has finished.
    for (policy, code) in
        [(RestartPolicy::Always, None), (RestartPolicy::Always, Some(1)), (RestartPolicy::Never, Some(0))]
    {
        let fate = move |_: &str, _| code.map_or(Fate::Runs, |code| Fate::Exits(code, secs(1)));
        let mut sim = Sim::new(pod(policy), fate);
        sim.run(5);
        let before = sim.node.index_of(&uid());
        let found = found(&sim);
        sim.later(secs(0), found).run(6);
        assert_eq!(sim.node.index_of(&uid()), before, "{policy:?} {code:?}");
    }
}

#[test]
fn remains_of_a_failed_sandbox_are_removed_before_the_next_attempt_which_keeps_its_time() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.weather = Weather { failures: 100, remains: 100, ..Weather::default() };
    sim.run(5);
    // The removal fails, too, and is retried after 10 s.
    assert_eq!((times(&sim, "web create sandbox"), times(&sim, "web remove sandbox")), (vec![0], vec![0]));
    sim.reports("FailedKillPod: error killing pod: busy").run(25);
    assert_eq!(times(&sim, "web remove sandbox"), [0, 10]);
    sim.failures(0).run(60);
    assert_eq!(times(&sim, "web create sandbox"), [0, 30]);
    assert_eq!(times(&sim, "web remove sandbox"), [0, 10, 30]);
    sim.traces("30s app#0 start");

    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.weather = Weather { failures: 100, remains: 100, latency: secs(2), ..Weather::default() };
    sim.run(0).failures(0).run(60);
    assert_eq!(times(&sim, "web remove sandbox").len(), 1);
    let made = times(&sim, "web create sandbox");
    assert!(made.len() == 2 && made[1] >= 10, "{made:?}");
}

#[test]
fn a_deleted_pod_stays_until_what_a_failed_creation_left_is_gone() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.weather = Weather { failures: 100, remains: 100, ..Weather::default() };
    sim.run(1).unwant(&uid(), None).run(9);
    assert!(sim.node.index_of(&uid()).is_some() && !sim.is_gone(&uid()));
    assert!(times(&sim, "web forget").is_empty(), "{}", sim.log);
    sim.failures(0).run(11);
    assert!(sim.is_gone(&uid()), "{}", sim.log);
    assert_eq!(times(&sim, "web create sandbox"), [0]);
}

#[test]
fn nothing_starts_while_processes_of_a_lost_sandbox_may_live() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(5).failures(100).lose_sandbox_with(&uid(), true).run(30);
    assert_eq!(
        (times(&sim, "web create sandbox"), times(&sim, "web remove sandbox")),
        (vec![0], vec![5, 15])
    );
    assert_eq!(first(&sim)["state"]["terminated"]["reason"], "ContainerStatusUnknown");
    sim.failures(0).run(60);
    assert_eq!(times(&sim, "web remove sandbox"), [5, 15, 35]);
    sim.traces("0s app#0 start; 35s app#1 start");
}

#[test]
fn a_never_pod_is_not_over_while_processes_of_its_lost_sandbox_may_live() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.run(5).lose_sandbox_with(&uid(), true).failures(100).run(9).shows_phase("Running").failures(0);
    sim.run(60).shows_phase("Failed");
    assert_eq!(first(&sim)["state"]["terminated"]["reason"], "ContainerStatusUnknown");
}

#[test]
fn a_later_agent_starts_nothing_while_processes_of_a_lost_sandbox_may_live() {
    for policy in [RestartPolicy::Always, RestartPolicy::Never] {
        let mut sim = Sim::new(pod(policy), |_, _| Fate::Runs);
        sim.run(5).lose_sandbox_with(&uid(), true).failures(100).restart_agent().run(9);
        assert_ne!(phase(&sim), "Failed");
        assert_eq!(times(&sim, "web create sandbox"), [0]);
        sim.failures(0).run(60);
        assert_eq!(phase(&sim), if policy == RestartPolicy::Never { "Failed" } else { "Running" });
    }
}

#[test]
fn a_lost_sandbox_takes_its_runs_with_it_and_is_made_anew() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(5).lose_sandbox(&uid()).run(60).traces("0s app#0 start; 5s app#1 start");
    let app = first(&sim);
    let last = &app["lastState"]["terminated"];
    assert_eq!(json!([last["exitCode"], last["reason"]]), json!([137, "ContainerStatusUnknown"]));
    assert_eq!(app["restartCount"], 1);
    assert!(
        sim.log.find("remove sandbox").expect("remains go") < sim.log.rfind("create").expect("it is made")
    );
}

#[test]
fn a_never_pod_that_loses_its_sandbox_has_failed() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.run(5).lose_sandbox(&uid()).run(60).traces("0s app#0 start").shows_phase("Failed");
    assert_eq!(first(&sim)["state"]["terminated"]["reason"], "ContainerStatusUnknown");
}
