//! The start of the next agent: running pods after a restart, and records after a power cut.

use super::*;

#[test]
fn no_found_pod_is_stopped_before_every_source_has_been_read() {
    let found =
        found_pod(std::rc::Rc::new(pod(RestartPolicy::Always).uid("u2").named("other")), at(1), Vec::new());
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
    let mut sim = Sim::new(two, scripted("a runs, * exits 4 after 20s"));
    sim.run(15);
    let before = sim.status(&uid());
    sim.restart_agent();
    assert_eq!(sim.status(&uid())["containerStatuses"], before["containerStatuses"]);
    sim.run(18).traces("0s a#0 start, b#0 start").run(21).traces_last("20s b#0 exits 4, b#1 start");
}

#[test]
fn after_a_power_cut_pods_start_again_and_count_it() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(100).reboot().run(200).traces("0s app#0 start; 100s app#1 start");
    assert_eq!(first(&sim)["restartCount"], 1);
    assert_eq!(first(&sim)["lastState"]["terminated"]["reason"], "ContainerStatusUnknown");
}

#[test]
fn a_restart_after_a_power_cut_counts_for_the_back_off_of_the_next() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(100).fates(|_, _| Fate::Exits(1, secs(1))).reboot().run(140);
    sim.traces(
        "0s app#0 start; 100s app#1 start; 101s app#1 exits 1; 111s app#2 start; 112s app#2 exits 1; 132s \
         app#3 start; 133s app#3 exits 1",
    );
}

#[test]
fn a_finished_pod_does_not_run_again_after_a_power_cut() {
    let mut sim = Sim::new(pod(RestartPolicy::OnFailure), |_, _| Fate::Exits(0, secs(5)));
    sim.run(6);
    let before = first(&sim);
    assert!(before["user"]["linux"]["uid"].is_number() && before["stopSignal"] == "SIGTERM", "{before}");
    sim.reboot().run(2000).traces("0s app#0 start; 5s app#0 exits 0").shows_phase("Succeeded");
    assert_eq!(first(&sim), before);
    sim.restart_agent();
    assert_eq!(first(&sim), before);
}

#[test]
fn after_a_power_cut_an_interrupted_never_pod_has_failed() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.run(5).reboot().run(60).traces("0s app#0 start").shows_phase("Failed");
    let ended = first(&sim)["state"]["terminated"].clone();
    assert_eq!(json!([ended["exitCode"], ended["reason"]]), json!([137, "ContainerStatusUnknown"]));
}

#[test]
fn after_a_power_cut_a_never_pod_that_waited_for_its_image_may_still_run() {
    let fails = |_: &str, _| Fate::FailsToStart(StartFailureReason::ErrImagePull);
    let mut sim = Sim::new(pod(RestartPolicy::Never), fails);
    sim.run(60).reboot().fates(|_, _| Fate::Exits(0, secs(1))).run(120).shows_phase("Succeeded");
}

#[test]
fn a_run_that_nobody_has_seen_start_has_no_container_id_after_a_power_cut_either() {
    let mut sim = Sim::new(pod(RestartPolicy::OnFailure), |_, _| Fate::Exits(1, secs(1)));
    sim.latency(2);
    sim.run_until_traced("app#1 start");
    sim.update(&uid(), |pod| pod.spec.active_deadline = Some(secs(0))).lose_sandbox(&uid()).run(60);
    let before = first(&sim);
    assert_eq!(before["state"]["terminated"]["reason"], "ContainerStatusUnknown");
    assert!(before["state"]["terminated"]["containerID"].is_null() && before["containerID"].is_string());
    sim.reboot();
    assert_eq!(first(&sim)["state"], before["state"]);
}
