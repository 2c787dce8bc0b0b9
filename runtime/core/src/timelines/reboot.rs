//! The start of the next agent: running pods after a restart, and records after a power cut.

use super::*;

#[test]
fn no_found_pod_is_stopped_before_every_source_has_been_read() {
    let found = FoundPod {
        status: StatusHandover::default(),
        pod: std::rc::Rc::new(pod(RestartPolicy::Always).uid("u2").named("other")),
        record: None,
        sandbox: Some(FoundSandbox { ip: None, at: at(1) }),
        processes: false,
        attempts: Vec::new(),
    };
    let mut node = Node::new();
    node.observe(at(6), Observation::Found(Box::new(found)));
    assert!(node.plan(at(6)).actions.is_empty());
    node.observe(at(7), Observation::SourcesSeen);
    let removes = |(_, action): &(PodIndex, Action)| matches!(action, Action::RemoveSandbox);
    assert!(node.plan(at(7)).actions.iter().any(removes));
}

#[test]
fn an_agent_that_starts_again_disturbs_nothing() {
    let two = pod(RestartPolicy::Always).with([container("a"), container("b")]);
    let mut sim = Sim::new(two, |name, _| match name {
        "a" => Fate::Runs,
        _ => Fate::Exits(4, secs(20)),
    });
    sim.run_until(secs(15));
    let before = sim.status(&uid());
    sim.restart_agent();
    assert_eq!(sim.status(&uid())["containerStatuses"], before["containerStatuses"]);
    sim.run_until(secs(18));
    assert_eq!(sim.trace, "   0s a#0 start\n   0s b#0 start\n");
    sim.run_until(secs(21));
    assert!(sim.trace.ends_with("  20s b#0 exits 4\n  20s b#1 start\n"), "{}", sim.trace);
}

#[test]
fn after_a_power_cut_pods_start_again_and_count_it() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run_until(secs(100));
    sim.reboot();
    sim.run_until(secs(200));
    assert_eq!(sim.trace, "   0s app#0 start\n 100s app#1 start\n");
    assert_eq!(first(&sim)["restartCount"], 1);
    assert_eq!(first(&sim)["lastState"]["terminated"]["reason"], "ContainerStatusUnknown");
}

#[test]
fn a_restart_after_a_power_cut_counts_for_the_back_off_of_the_next() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run_until(secs(100));
    sim.fates(|_, _| Fate::Exits(1, secs(1)));
    sim.reboot();
    sim.run_until(secs(140));
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n 100s app#1 start\n 101s app#1 exits 1\n 111s app#2 start\n 112s app#2 exits 1\n \
         132s app#3 start\n 133s app#3 exits 1\n"
    );
}

#[test]
fn a_finished_pod_does_not_run_again_after_a_power_cut() {
    let mut sim = Sim::new(pod(RestartPolicy::OnFailure), |_, _| Fate::Exits(0, secs(5)));
    sim.run_until(secs(6));
    let before = first(&sim);
    assert!(before["user"]["linux"]["uid"].is_number() && before["stopSignal"] == "SIGTERM", "{before}");
    sim.reboot();
    sim.run_until(secs(2000));
    assert_eq!(sim.trace, "   0s app#0 start\n   5s app#0 exits 0\n");
    assert_eq!(phase(&sim), "Succeeded");
    assert_eq!(first(&sim), before);
    sim.restart_agent();
    assert_eq!(first(&sim), before);
}

#[test]
fn after_a_power_cut_an_interrupted_never_pod_has_failed() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.reboot();
    sim.run_until(secs(60));
    assert_eq!(sim.trace, "   0s app#0 start\n");
    assert_eq!(phase(&sim), "Failed");
    let ended = first(&sim)["state"]["terminated"].clone();
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&137.into(), &"ContainerStatusUnknown".into()));
}

#[test]
fn after_a_power_cut_a_never_pod_that_waited_for_its_image_may_still_run() {
    let fails = |_: &str, _| Fate::FailsToStart(StartFailureReason::ErrImagePull);
    let mut sim = Sim::new(pod(RestartPolicy::Never), fails);
    sim.run_until(secs(60));
    sim.reboot();
    sim.fates(|_, _| Fate::Exits(0, secs(1)));
    sim.run_until(secs(120));
    assert_eq!(phase(&sim), "Succeeded");
}

#[test]
fn a_run_that_nobody_has_seen_start_has_no_container_id_after_a_power_cut_either() {
    let mut sim = Sim::new(pod(RestartPolicy::OnFailure), |_, _| Fate::Exits(1, secs(1)));
    sim.weather.latency = secs(2);
    run_until_traced(&mut sim, "app#1 start");
    sim.update(&uid(), |pod| pod.spec.active_deadline = Some(secs(0)));
    sim.lose_sandbox(&uid());
    sim.run_until(secs(60));
    let before = first(&sim);
    assert_eq!(before["state"]["terminated"]["reason"], "ContainerStatusUnknown");
    assert!(before["state"]["terminated"]["containerID"].is_null() && before["containerID"].is_string());
    sim.reboot();
    assert_eq!(first(&sim)["state"], before["state"]);
}
