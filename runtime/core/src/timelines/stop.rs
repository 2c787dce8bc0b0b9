//! Pods and containers end: grace periods, kills, removal of files, and a shutdown of the machine.

use super::*;

#[test]
fn a_container_that_ends_when_asked_is_not_killed() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(5).unwant(&uid(), None).run(60).traces("0s app#0 start; 5s app#0 Term, app#0 exits 143");
    assert!(sim.is_gone(&uid()));
    sim.reports("Killing: Stopping container app");
}

#[test]
fn a_container_that_ignores_term_is_killed_when_its_grace_is_over() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run(5).unwant(&uid(), None).run(60);
    sim.traces("0s app#0 start; 5s app#0 Term; 35s app#0 Kill, app#0 exits 137");
    assert!(sim.is_gone(&uid()));
}

#[test]
fn a_start_under_way_is_given_up_when_the_grace_is_over() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::HangsAtStart);
    sim.run(5).unwant(&uid(), Some(secs(7))).run(11);
    sim.traces("0s app#0 start");
    sim.run(12).traces("0s app#0 start; 12s app#0 Kill, app#0 is given up");
    sim.run(13);
    assert!(sim.is_gone(&uid()));
    sim.reports("Failed: Error: the start was given up at the end of the grace period");
    // The one container is stopped, and the start of the other is given up.
    let two = pod(RestartPolicy::Always).with([container("a"), container("b")]);
    let mut sim = Sim::new(two, |name, _| if name == "a" { Fate::Runs } else { Fate::HangsAtStart });
    sim.run(5).unwant(&uid(), None).run(60);
    sim.traces("0s a#0 start, b#0 start; 5s a#0 Term, a#0 exits 143; 35s b#0 Kill, b#0 is given up");
    assert!(sim.is_gone(&uid()));
}

#[test]
fn a_start_is_also_given_up_when_the_pod_fails_is_fenced_or_replaced_or_the_agent_shuts_down() {
    let mut of_ten = pod(RestartPolicy::Always);
    of_ten.spec.termination_grace_period = secs(10);
    let hangs =
        || Sim::new(of_ten.clone(), |_, number| if number == 0 { Fate::HangsAtStart } else { Fate::Runs });
    let given_up = |at: u64| format!("0s app#0 start; {at}s app#0 Kill, app#0 is given up");

    let mut late = of_ten.clone();
    late.spec.active_deadline = Some(secs(20));
    let mut sim = Sim::new(late, |_, _| Fate::HangsAtStart);
    sim.run(40).traces(&given_up(30));
    assert_eq!(phase(&sim), "Failed");

    let mut sim = hangs();
    sim.run(5);
    let index = sim.node.index_of(&uid()).expect("the pod exists");
    let fence = PodObservation::Fence(Fence::Closed { grace: secs(8) });
    sim.later(secs(0), Observation::Of(index, fence));
    sim.run(40).traces(&given_up(13));

    let mut sim = hangs();
    sim.run(5).later(secs(0), down());
    sim.run(40).traces(&given_up(15));

    let mut sim = hangs();
    sim.run(5);
    let mut other = of_ten.clone();
    other.spec.containers[0].command = Some(vec!["other".to_owned()]);
    sim.fates(|_, _| Fate::Runs);
    sim.want(other);
    sim.run(40).traces(&format!("{}, app#0 start", given_up(15)));
}

#[test]
fn all_containers_of_a_pod_are_stopped_at_once() {
    let two = pod(RestartPolicy::Always).with([container("a"), container("b")]);
    let mut sim = Sim::new(two, |_, _| Fate::IgnoresTerm);
    sim.run(5).clear_trace().unwant(&uid(), Some(secs(7))).run(60);
    sim.traces("5s a#0 Term, b#0 Term; 12s a#0 Kill, b#0 Kill, a#0 exits 137, b#0 exits 137");
}

#[test]
fn a_grace_can_only_shrink_and_is_never_below_the_minimum_window() {
    for (asked, then, killed) in [(20, 10, 16), (20, 100, 25), (20, 0, 8), (0, 50, 7)] {
        let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
        sim.run(5).unwant(&uid(), Some(secs(asked))).run(6).unwant(&uid(), Some(secs(then)));
        let shown = sim.node.pods().next().and_then(PodState::termination_grace);
        assert_eq!(shown, Some(secs(asked.min(then).max(1))));
        sim.run(60);
        let kill = format!("{killed:>4}s app#0 Kill\n");
        assert!(sim.trace.contains(&kill), "{asked} then {then}:\n{}", sim.trace);
        assert_eq!(sim.trace.matches("Term").count(), 1);
    }
}

#[test]
fn a_shorter_grace_that_comes_late_does_not_postpone_the_kill() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run(5).unwant(&uid(), Some(secs(20))).run(20).unwant(&uid(), Some(secs(15))).run(60);
    assert!(sim.trace.contains("  25s app#0 Kill\n"), "{}", sim.trace);
}

#[test]
fn a_shorter_grace_that_comes_late_ends_a_sidecar_that_still_waits() {
    // The second grace period, requested seven seconds after the first one of 20 s; and the time at which the
    // sidecar is asked to end.
    for (later, asked) in [(8, 20), (13, 25), (20, 25)] {
        let served = pod(RestartPolicy::Always).init([sidecar("proxy")]);
        let mut sim = Sim::new(served, |name, _| if name == "app" { Fate::IgnoresTerm } else { Fate::Runs });
        sim.run(5).unwant(&uid(), Some(secs(20))).run(12).unwant(&uid(), Some(secs(later))).run(60);
        let ends = format!("{asked:>4}s proxy#0 Term\n");
        assert!(sim.trace.contains(&ends), "{later}: {}", sim.trace);
        assert_eq!(sim.trace.matches("app#0 Kill").count(), 1, "{}", sim.trace);
        assert!(sim.is_gone(&uid()));
    }
}

#[test]
fn a_container_that_is_stopped_is_reported_once_however_often_it_is_asked() {
    let both = pod(RestartPolicy::Always).init([sidecar("proxy")]);
    let mut sim = Sim::new(both, |_, _| Fate::IgnoresTerm);
    sim.run(5).unwant(&uid(), Some(secs(20))).run(10).unwant(&uid(), Some(secs(8))).run(60);
    let killing: Vec<_> = sim.events.iter().filter(|event| event.starts_with("Killing")).collect();
    assert_eq!(killing, ["Killing: Stopping container app", "Killing: Stopping container proxy"]);
}

#[test]
fn a_failed_kill_is_retried_with_growing_delays() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run(5).unwant(&uid(), Some(secs(2))).run(6).failures(100);
    sim.of(&uid()).gone_by = None;
    sim.run(100);
    assert!(sim.events.iter().any(|event| event.starts_with("FailedKillPod: error killing pod")));
    sim.failures(0).run(400);
    sim.traces(
        "0s app#0 start; 5s app#0 Term; 7s app#0 Kill; 17s app#0 Kill; 37s app#0 Kill; 77s app#0 Kill; 157s \
         app#0 Kill, app#0 exits 137",
    );
    assert!(sim.is_gone(&uid()));
}

#[test]
fn files_that_cannot_be_removed_are_tried_again_with_growing_delays() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(4)));
    let delays = |sim: &Sim, what: &str| -> Vec<u64> {
        let tries = sim.log.lines().filter(|line| line.ends_with(what));
        let times: Vec<u64> = tries.map(|line| line[..4].trim().parse().expect("a time")).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).collect()
    };
    let failures = |sim: &Sim| {
        sim.events.iter().filter(|event| **event == "FailedKillPod: error killing pod: busy").count()
    };
    sim.latency(2);
    let mut steps = (0..200).map(|step| Duration::from_millis(step * 100));
    while !sim.log.contains("remove sandbox") {
        sim.run_until(steps.next().expect("the sandbox is removed"));
    }
    sim.weather = Weather { failures: 100, ..Weather::default() };
    sim.run(100);
    assert_eq!(delays(&sim, "remove volumes"), [10, 20, 40]);
    assert_eq!(failures(&sim), 4);
    sim.failures(0).run(200);
    assert_eq!(delays(&sim, "remove volumes"), [10, 20, 40, 80]);
    sim.failures(100).unwant(&uid(), None);
    sim.of(&uid()).gone_by = None;
    sim.run(300);
    assert_eq!(delays(&sim, "forget"), [10, 20, 40]);
    assert_eq!(failures(&sim), 8);
    assert!(!sim.is_gone(&uid()) && !sim.node.is_empty());
    sim.failures(0).run(400);
    assert!(sim.is_gone(&uid()) && sim.node.is_empty());
}

#[test]
fn a_shutdown_ends_every_process_and_keeps_what_is_to_run_again() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(5).later(secs(0), down()).run(6);
    assert!(sim.node.is_empty());
    assert!(sim.log.contains("remove sandbox") && !sim.log.contains("forget"));
    sim.reboot().run(10);
    assert_eq!(sim.alive(&uid(), 0), Some(1));
}

#[test]
fn a_card_without_writes_does_not_keep_an_agent_that_takes_all_pods_down() {
    // Its end cannot be recorded.
    let once = pod(RestartPolicy::Never).uid("once").named("once").with([container("once")]);
    // Its record cannot be removed.
    let deleted = pod(RestartPolicy::Always).uid("deleted").named("deleted").with([container("deleted")]);
    let mut sim = Sim::empty(|name, _| if name == "once" { Fate::Exits(0, secs(6)) } else { Fate::Runs });
    for pod in [once, deleted] {
        sim.want(pod);
    }
    sim.run(5);
    sim.is_read_only = true;
    sim.unwant(&"deleted".into(), None).run(60);
    assert!(sim.log.contains("deleted forget") && !sim.node.is_empty(), "{}", sim.log);
    sim.later(secs(0), down()).run(61);
    assert!(sim.node.is_empty(), "{}", sim.log);
}

#[test]
fn an_agent_that_takes_all_pods_down_gives_found_pods_their_whole_grace() {
    let pod = std::rc::Rc::new(pod(RestartPolicy::Always));
    let attempt = FIRST_RUN;
    let run =
        FoundAttempt { attempt, container: started(at(2), attempt), exit: None, health: Health::default() };
    let found = found_pod(pod, at(1), vec![run]);
    let mut node = Node::new();
    for seen in [Observation::Found(Box::new(found)), down(), Observation::SourcesSeen] {
        node.observe(at(10), seen);
    }
    let plan = node.plan(at(10));
    assert!(plan.actions.iter().any(|(_, action)| matches!(action, Action::Terminate(_))));
    assert_eq!(plan.wake_at, Some(at(40)));
}

#[test]
fn a_sandbox_that_cannot_be_taken_down_is_tried_again() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(1)));
    sim.run(0).failures(100).run(40);
    assert_ne!(phase(&sim), "Succeeded");
    sim.failures(0).run(400).shows_phase("Succeeded").unwant(&uid(), None).run(401);
    assert!(sim.is_gone(&uid()));
}

#[test]
fn the_volumes_of_a_finished_pod_go_once_and_a_failure_is_retried() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(1)));
    sim.run(60);
    assert_eq!(times(&sim, "web remove volumes"), [1]);
    sim.failures(100).restart_agent().run(75);
    assert_eq!(times(&sim, "web remove volumes"), [1, 60, 70]);
    sim.reports("FailedKillPod: error killing pod: busy").shows_phase("Succeeded").failures(0).run(500);
    assert_eq!(times(&sim, "web remove volumes"), [1, 60, 70, 90]);
    // A pod that is removed as a whole needs no removal of its volumes before.
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(5).unwant(&uid(), None).run(60);
    assert!(sim.is_gone(&uid()) && times(&sim, "web remove volumes").is_empty());
}

#[test]
fn a_pod_that_is_deleted_while_its_volumes_are_removed_waits_for_that() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(1)));
    sim.run(0);
    sim.weather = Weather { latency: secs(20), ..Weather::default() };
    while !sim.log.contains("remove volumes") {
        let next = Duration::from_nanos(sim.now.0) + secs(1);
        sim.run_until(next);
    }
    let end = Duration::from_nanos(sim.now.0) + secs(60);
    sim.unwant(&uid(), None).run_until(end);
    assert!(sim.is_gone(&uid()), "{}", sim.log);
}
