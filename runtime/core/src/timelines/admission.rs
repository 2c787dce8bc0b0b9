//! Admission, rejection and preemption of pods.

use serde_json::json;

use super::*;
use crate::spec::container::ContainerPort;

fn critical(name: &str, cpu: i64) -> Pod {
    let mut pod = asking(name, cpu);
    pod.priority = 2_000_001_000;
    pod.spec.priority_class_name = "system-node-critical".into();
    pod
}

fn of(sim: &Sim, name: &str) -> String {
    let status = sim.status(&name.into());
    format!("{} {}", status["phase"].as_str().unwrap_or_default(), status["reason"].as_str().unwrap_or("-"))
}

#[test]
fn a_rejected_pod_stays_failed_with_a_reason() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let first = sim.want(asking("first", 800));
    sim.run(1);
    let late = sim.want(asking("late", 300));
    sim.run(5);
    let message = "Node didn't have enough resource: cpu, requested: 300, used: 800, capacity: 1000";
    let status = sim.status(&late);
    assert_eq!(json!([status["phase"], status["reason"]]), json!(["Failed", "OutOfcpu"]));
    assert_eq!(status["message"], format!("Pod was rejected: {message}"));
    assert_eq!(sim.events.last(), Some(&format!("OutOfcpu: {message}")));
    // The room comes too late, and neither another agent nor another boot decides on the admission again.
    sim.unwant(&first, None).run(60).restart_agent().run(120).reboot().run(200);
    assert_eq!(of(&sim, "late"), "Failed OutOfcpu");
    assert!(!sim.trace.contains("late"), "{}", sim.trace);
}

#[test]
fn a_rejected_pod_reserves_no_resources_from_pods_of_the_same_change() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    sim.want(asking("large", 1001));
    sim.want(asking("fits", 1000));
    sim.run(5);
    assert_eq!((of(&sim, "large"), of(&sim, "fits")), ("Failed OutOfcpu".into(), "Running -".into()));
}

#[test]
fn the_requests_of_a_terminating_pod_count_until_it_is_removed() {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm).on(small(1000));
    let first = sim.want(asking("first", 800));
    sim.run(1).unwant(&first, None).run(5);
    sim.want(asking("early", 800));
    sim.run(60);
    sim.want(asking("late", 800));
    sim.run(70);
    assert_eq!((of(&sim, "early"), of(&sim, "late")), ("Failed OutOfcpu".into(), "Running -".into()));
}

#[test]
fn a_replacement_pod_may_use_the_resources_of_the_pod_it_replaces() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let old = sim.want(asking("web", 800));
    sim.run(1).unwant(&old, None);
    sim.want(asking("web", 900).uid("new"));
    sim.run(40);
    assert_eq!(of(&sim, "new"), "Running -");
}

#[test]
fn a_critical_pod_begins_when_its_victim_has_ended_with_its_own_grace() {
    let mut sim =
        Sim::empty(|name, _| if name == "app" { Fate::IgnoresTerm } else { Fate::Runs }).on(small(1000));
    let mut victim = asking("victim", 600);
    victim.spec.termination_grace_period = secs(20);
    let victim = sim.want(victim);
    sim.want(asking("other", 300));
    sim.run(5);
    sim.want(critical("needed", 500));
    sim.run(100);
    sim.traces(
        "0s victim/app#0 start, other/app#0 start; 5s victim/app#0 Term; 25s victim/app#0 Kill, \
         victim/app#0 exits 137, needed/app#0 start",
    );
    assert_eq!((of(&sim, "victim"), of(&sim, "needed")), ("Failed Preempting".into(), "Running -".into()));
    let status = sim.status(&victim);
    assert_eq!(status["message"], "Preempted in order to admit critical pod");
    let conditions = status["conditions"].as_array().expect("conditions");
    let target = conditions.iter().find(|one| one["type"] == "DisruptionTarget").expect("it was disrupted");
    assert_eq!(
        json!([target["status"], target["reason"], target["message"]]),
        json!([
            "True",
            "TerminationByKubelet",
            "Pod was preempted by Kubelet to accommodate a critical pod."
        ])
    );
    let preempting: Vec<_> = sim.events.iter().filter(|event| event.starts_with("Preempting")).collect();
    assert_eq!(preempting, ["Preempting: Preempted in order to admit critical pod"]);
    // The phases survive a reboot.
    sim.reboot().run(200);
    assert_eq!((of(&sim, "victim"), of(&sim, "needed")), ("Failed Preempting".into(), "Running -".into()));
    let shown = sim.status(&victim).to_string();
    assert!(shown.contains("DisruptionTarget"), "{shown}");
}

#[test]
fn room_made_by_preemption_is_reserved_and_no_pod_is_preempted_twice() {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm).on(small(1000));
    sim.want(asking("victim", 900));
    sim.run(5);
    sim.want(critical("needed", 500));
    sim.run(10);
    sim.want(asking("late", 600));
    // Another agent finds the victim that is ending, and decides on the waiting pod again.
    sim.restart_agent().run(20);
    sim.want(critical("also", 500));
    sim.run(100);
    assert_eq!(of(&sim, "late"), "Failed OutOfcpu");
    assert_eq!((of(&sim, "needed"), of(&sim, "also")), ("Running -".into(), "Running -".into()));
    let preempting = sim.events.iter().filter(|event| event.starts_with("Preempting")).count();
    assert_eq!(preempting, 1, "{:?}", sim.events);
}

#[test]
fn a_pod_that_fits_after_a_preemption_waits_for_the_victim_to_end() {
    for restarts in [false, true] {
        let mut sim =
            Sim::empty(|name, _| if name == "app" { Fate::IgnoresTerm } else { Fate::Runs }).on(small(1000));
        let mut victim = asking("victim", 900);
        victim.spec.termination_grace_period = secs(20);
        sim.want(victim);
        sim.run(5);
        // All pods come at once, as when a board boots.
        sim.want(critical("needed", 500));
        sim.want(asking("fits", 300));
        sim.want(asking("large", 300));
        sim.run(10);
        if restarts {
            sim.restart_agent();
        }
        sim.run(100);
        assert_eq!(
            [of(&sim, "victim"), of(&sim, "needed"), of(&sim, "fits"), of(&sim, "large")],
            ["Failed Preempting", "Running -", "Running -", "Failed OutOfcpu"],
            "{restarts}"
        );
        // Another agent gives the victim its whole grace period again.
        let at = if restarts { 30 } else { 25 };
        let end =
            format!("  {at}s victim/app#0 exits 137\n  {at}s needed/app#0 start\n  {at}s fits/app#0 start\n");
        assert!(sim.trace.ends_with(&end), "{}", sim.trace);
    }
}

#[test]
fn another_agent_waits_for_the_victims_of_the_one_before_however_long_they_take() {
    for disaster in [Sim::restart_agent, Sim::reboot] {
        let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm).on(small(1000));
        let mut victim = asking("victim", 900);
        victim.spec.termination_grace_period = secs(90);
        sim.want(victim);
        sim.run(20);
        let needed = sim.want(critical("needed", 500));
        // The client-set condition is on flash by then, but not that the pod was admitted.
        let said = ClientCondition { kind: "a".into(), status: "True".into(), ..ClientCondition::default() };
        sim.set_client_conditions(&needed, vec![said]).run(60);
        assert!(sim.of(&needed).record.is_some());
        disaster(&mut sim);
        // The world fails the test if the pod starts beside its victim.
        sim.run(300);
        assert_eq!(
            (of(&sim, "victim"), of(&sim, "needed")),
            ("Failed Preempting".into(), "Running -".into())
        );
        assert_eq!(sim.trace.matches("needed/app#0 start").count(), 1, "{}", sim.trace);
    }
}

#[test]
fn power_that_is_cut_while_a_victim_ends_changes_nothing_of_it() {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm).on(small(1000));
    sim.want(asking("victim", 900));
    sim.run(20);
    sim.want(critical("needed", 500));
    sim.run(25).reboot().run(100);
    assert_eq!((of(&sim, "victim"), of(&sim, "needed")), ("Failed Preempting".into(), "Running -".into()));
    assert_eq!(sim.trace.matches("victim/app#1 start").count(), 0, "{}", sim.trace);
}

#[test]
fn a_non_critical_pod_of_high_priority_preempts_no_pod() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    sim.want(asking("low", 900));
    sim.run(5);
    let mut high = asking("high", 500);
    high.priority = 1_000_000_000;
    sim.want(high);
    sim.run(50);
    assert_eq!((of(&sim, "low"), of(&sim, "high")), ("Running -".into(), "Failed OutOfcpu".into()));
}

#[test]
fn an_admitted_pod_stays_admitted_when_the_node_changes() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let old = sim.want(asking("old", 900));
    sim.run(60);
    sim.info = Some(NodeInfo {
        taints: vec![Taint { key: "a".into(), value: String::new(), effect: "NoExecute".into() }],
        ..small(1000)
    });
    sim.restart_agent().run(70).reboot();
    sim.info = Some(small(1000));
    sim.run(80);
    assert_eq!(of(&sim, "old"), "Running -");
    assert_eq!(sim.alive(&old, 0), Some(1));
}

#[test]
fn a_pod_with_gates_is_judged_when_they_are_gone() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let mut gated = asking("gated", 600);
    gated.spec.scheduling_gates = vec!["a".into()];
    gated.spec.placement.tolerations.clear();
    let gated = sim.want(gated);
    sim.want(asking("first", 600));
    sim.run(5);
    assert_eq!((of(&sim, "gated"), of(&sim, "first")), ("Pending -".into(), "Running -".into()));
    sim.ungate(&gated).run(10);
    assert_eq!(of(&sim, "gated"), "Failed OutOfcpu");
}

#[test]
fn a_gated_pod_is_admitted_if_it_fits_when_its_gates_are_removed() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let first = sim.want(asking("first", 600));
    sim.run(5);
    let mut gated = asking("gated", 600);
    gated.spec.scheduling_gates = vec!["a".into()];
    let gated = sim.want(gated);
    sim.run(10);
    assert_eq!(of(&sim, "gated"), "Pending -");
    sim.unwant(&first, None).run(60).ungate(&gated).run(70);
    assert_eq!(of(&sim, "gated"), "Running -");
}

#[test]
fn a_gated_critical_pod_preempts_when_its_gates_are_removed() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let mut gated = critical("gated", 600);
    gated.spec.scheduling_gates = vec!["a".into()];
    let gated = sim.want(gated);
    sim.want(asking("first", 600));
    sim.run(50);
    assert_eq!(of(&sim, "first"), "Running -");
    sim.ungate(&gated).run(100);
    assert_eq!((of(&sim, "gated"), of(&sim, "first")), ("Running -".into(), "Failed Preempting".into()));
}

#[test]
fn the_host_port_of_a_preempted_pod_is_awaited_like_its_resources() {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm).on(small(1000));
    let with_port = |mut pod: Pod| {
        let mut app = pod.spec.containers[0].clone();
        app.ports.push(ContainerPort {
            name: None,
            container_port: 80,
            protocol: "TCP".into(),
            host_port: 80,
            host_ip: String::new(),
        });
        pod.spec.termination_grace_period = secs(20);
        pod.with([app])
    };
    sim.want(with_port(asking("victim", 900)));
    sim.run(5);
    sim.want(critical("needed", 500));
    sim.want(with_port(asking("web", 300)));
    sim.run(10);
    assert_eq!(of(&sim, "web"), "Pending -");
    sim.run(100);
    let all = ["victim", "needed", "web"].map(|name| of(&sim, name));
    assert_eq!(all, ["Failed Preempting", "Running -", "Running -"]);
    // The port belongs to a pod that stays.
    sim.want(with_port(asking("late", 10)));
    sim.run(110);
    assert_eq!(of(&sim, "late"), "Failed NodePorts");
}

#[test]
fn an_admitted_pod_begins_again_on_a_node_that_has_become_too_small_for_it() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let web = sim.want(asking("web", 800));
    sim.run(5);
    sim.info = None;
    sim.later(secs(0), Observation::Node(Box::new(small(500)))).run(6).lose_sandbox(&web).run(60);
    assert_eq!(sim.alive(&web, 0), Some(1), "{}", sim.log);
}

#[test]
fn a_signal_that_cannot_be_delivered_is_reported_and_repeated_only_while_it_is_to_be() {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm);
    let web = sim.want(asking("web", 1));
    sim.run(5);
    let index = sim.node.index_of(&web).expect("it is here");
    let attempt = FIRST_RUN;
    let failed = || Observation::Of(index, PodObservation::StopFailed { attempt, message: "no".into() });
    let reported = |sim: &Sim| sim.events.iter().filter(|event| event.starts_with("FailedKillPod")).count();
    sim.later(secs(0), failed()).run(6);
    assert_eq!((reported(&sim), sim.trace.matches("Term").count()), (0, 0), "nobody stops it");
    sim.unwant(&web, Some(secs(30))).run(7).later(secs(0), failed()).run(20);
    assert_eq!((reported(&sim), sim.trace.matches("Term").count()), (1, 2), "{}", sim.trace);
    sim.reports("FailedKillPod: error killing pod: no").run(60);
    assert!(sim.is_gone(&web), "{}", sim.log);
}

#[test]
fn nobody_is_woken_between_the_signal_and_the_kill() {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm);
    let web = sim.want(asking("web", 1));
    sim.run(30).unwant(&web, Some(secs(1))).run(30);
    // The grace period is shorter than the time between signal and kill.
    assert_eq!(sim.node.plan(at(30)).wake_at, Some(at(32)), "{}", sim.log);
    sim.run(60).traces("0s app#0 start; 30s app#0 Term; 32s app#0 Kill, app#0 exits 137");
}
