use std::cell::RefCell;
use std::rc::Rc;

use serde_json::json;

use crate::facts::*;
use crate::node::*;
use crate::sim::*;
use crate::spec::*;
use crate::time::Instant;

/// A pod whose one container has these probes.
fn probed(liveness: Option<Probe>, readiness: Option<Probe>, startup: Option<Probe>) -> Pod {
    let mut app = container("app");
    app.liveness_probe = liveness;
    app.readiness_probe = readiness;
    app.startup_probe = startup;
    pod(RestartPolicy::Always).with([app])
}

fn failure() -> ProbeResult {
    ProbeResult::Failure("no".into())
}

fn ready(sim: &Sim) -> bool {
    let status = sim.status(&"u1".into());
    let shown = status["containerStatuses"][0]["ready"] == true;
    let conditions = status["conditions"].as_array().expect("conditions");
    let condition = conditions.iter().find(|one| one["type"] == "Ready").expect("it is one of them");
    assert_eq!(condition["status"] == "True", shown, "one container makes the pod ready");
    shown
}

/// The probes that ran, as `second kind`.
fn asked_by(
    sim: Sim,
    answer: impl Fn(ProbeKind, u64) -> ProbeResult + 'static,
) -> (Sim, Rc<RefCell<Vec<String>>>) {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let noted = asked.clone();
    let sim = sim.probes(move |_, kind, age| {
        noted.borrow_mut().push(format!("{}s {kind:?}", age.as_secs()));
        answer(kind, age.as_secs())
    });
    (sim, asked)
}

#[test]
fn a_container_that_fails_its_liveness_probe_is_killed_and_restarted_with_back_off() {
    let mut sim =
        Sim::new(probed(Some(exec_probe()), None, None), |_, _| Fate::Runs).probes(|_, _, _| failure());
    sim.run(55);
    sim.traces(
        "0s app#0 start; 20s app#0 Term, app#0 exits 143, app#1 start; 40s app#1 Term, app#1 exits 143; 50s \
         app#2 start",
    );
    sim.reports("Unhealthy: Liveness probe failed: no");
    sim.reports("Killing: Container app failed liveness probe, will be restarted");
}

#[test]
fn a_failed_liveness_probe_restarts_whatever_the_exit_code_unless_the_policy_is_never() {
    let mut on_failure = probed(Some(exec_probe()), None, None);
    on_failure.spec.restart_policy = RestartPolicy::OnFailure;
    let mut never = on_failure.clone();
    never.spec.restart_policy = RestartPolicy::Never;
    let mut sim = Sim::new(on_failure, |_, _| Fate::Runs).probes(|_, _, _| failure());
    sim.run(21);
    assert!(sim.trace.ends_with("app#1 start\n"));
    let mut sim = Sim::new(never, |_, _| Fate::Runs).probes(|_, _, _| failure());
    sim.run(100).traces("0s app#0 start; 20s app#0 Term, app#0 exits 143");
    assert_eq!(sim.status(&"u1".into())["phase"], "Failed");
    sim.reports("Killing: Container app failed liveness probe");
}

#[test]
fn the_grace_of_a_probe_overrides_that_of_the_pod_and_the_probe_stops() {
    let mut probe = exec_probe();
    probe.termination_grace_period = Some(secs(25));
    let sim = Sim::new(probed(Some(probe), None, None), |_, _| Fate::IgnoresTerm);
    let (mut sim, asked) = asked_by(sim, |_, _| failure());
    sim.run(44);
    assert_eq!(*asked.borrow(), ["0s Liveness", "10s Liveness", "20s Liveness"].map(String::from));
    sim.run(46);
    assert!(
        sim.trace.contains("  20s app#0 Term\n  45s app#0 Kill\n  45s app#0 exits 137\n"),
        "{}",
        sim.trace
    );
}

#[test]
fn no_other_probe_runs_until_the_startup_probe_succeeds() {
    let mut patient = exec_probe();
    patient.failure_threshold = 30;
    let sim = Sim::new(probed(Some(exec_probe()), Some(exec_probe()), Some(patient)), |_, _| Fate::Runs);
    let (mut sim, asked) = asked_by(sim, |kind, age| match (kind, age) {
        (ProbeKind::Startup, 0..30) => failure(),
        _ => ProbeResult::Success,
    });
    sim.run(29);
    assert_eq!(sim.status(&"u1".into())["containerStatuses"][0]["started"], false);
    sim.run(45);
    assert_eq!(sim.status(&"u1".into())["containerStatuses"][0]["started"], true);
    let expected = [
        "0s Startup",
        "10s Startup",
        "20s Startup",
        "30s Startup",
        "30s Liveness",
        "30s Readiness",
        "40s Liveness",
        "40s Readiness",
    ];
    assert_eq!(*asked.borrow(), expected.map(String::from));
    sim.traces("0s app#0 start");
}

#[test]
fn a_container_that_never_gets_started_is_killed_by_its_startup_probe() {
    let mut sim =
        Sim::new(probed(None, None, Some(exec_probe())), |_, _| Fate::Runs).probes(|_, _, _| failure());
    sim.run(21);
    assert!(sim.trace.starts_with("   0s app#0 start\n  20s app#0 Term\n"));
    sim.reports("Killing: Container app failed startup probe, will be restarted");
}

#[test]
fn readiness_comes_and_goes_by_its_thresholds_and_kills_nothing() {
    let mut probe = exec_probe();
    probe.success_threshold = 2;
    let mut sim = Sim::new(probed(None, Some(probe), None), |_, _| Fate::Runs).probes(|_, _, age| match age
        .as_secs()
    {
        0..40 => ProbeResult::Success,
        40..80 => failure(),
        _ => ProbeResult::Success,
    });
    let mut story = Vec::new();
    for second in (5..120).step_by(10) {
        sim.run(second);
        story.push(u8::from(ready(&sim)));
    }
    //               0  10 20 30 40 50 60 70 80 90
    assert_eq!(story, [0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1]);
    sim.traces("0s app#0 start");
}

#[test]
fn a_probe_that_cannot_be_executed_changes_nothing_and_every_third_failure_is_reported() {
    let sim = Sim::new(probed(Some(exec_probe()), None, None), |_, _| Fate::Runs);
    let (mut sim, asked) = asked_by(sim, |_, _| ProbeResult::Error("no memory".into()));
    sim.run(105);
    assert_eq!(asked.borrow().len(), 33);
    sim.traces("0s app#0 start");
    let text = "Unhealthy: Liveness probe errored and resulted in success state: no memory";
    assert_eq!(sim.events.iter().filter(|event| *event == text).count(), 11);
}

#[test]
fn a_probe_waits_for_its_delay_and_keeps_to_its_period() {
    let mut probe = exec_probe();
    probe.initial_delay = secs(7);
    probe.period = secs(3);
    let sim = Sim::new(probed(Some(probe), None, None), |_, _| Fate::Runs);
    let (mut sim, asked) = asked_by(sim, |_, _| ProbeResult::Success);
    sim.run(6);
    assert_eq!(sim.node.plan(at(6)).wake_at, Some(at(7)));
    sim.run(14);
    assert_eq!(*asked.borrow(), ["7s Liveness", "10s Liveness", "13s Liveness"].map(String::from));
}

#[test]
fn while_a_pod_is_stopped_only_readiness_is_asked() {
    let probes = (Some(exec_probe()), Some(exec_probe()));
    let sim = Sim::new(probed(probes.0, probes.1, None), |_, _| Fate::IgnoresTerm);
    let (mut sim, asked) = asked_by(sim, |kind, age| match (kind, age) {
        (ProbeKind::Readiness, _) | (_, 0..5) => ProbeResult::Success,
        _ => failure(),
    });
    sim.run(5).unwant(&"u1".into(), None);
    asked.borrow_mut().clear();
    sim.run(34);
    assert_eq!(*asked.borrow(), ["10s Readiness", "20s Readiness", "30s Readiness"].map(String::from));
    assert!(ready(&sim), "a pod that is stopped stays ready while it says so");
}

#[test]
fn only_so_many_exec_probes_run_at_once_and_every_one_has_its_turn() {
    let asked = Rc::new(RefCell::new(Vec::<String>::new()));
    let noted = asked.clone();
    let mut sim = Sim::empty(|_, _| Fate::Runs).probes(move |name, _, _| {
        noted.borrow_mut().push(name.to_owned());
        ProbeResult::Success
    });
    for number in 0..12 {
        let mut app = container(&format!("app{number}"));
        app.liveness_probe = Some(Probe { period: secs(1), ..exec_probe() });
        sim.want(
            pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")).with([app]),
        );
    }
    // Answers take up to a second: four places serve some eight probes a second, but twelve are due.
    sim.latency(1).run(120);
    let turns = |number: usize| asked.borrow().iter().filter(|name| **name == format!("app{number}")).count();
    let all: Vec<usize> = (0..12).map(turns).collect();
    let (least, most) = (all.iter().min().expect("twelve"), all.iter().max().expect("twelve"));
    assert!(*least > 20 && most - least <= least / 4, "{all:?}");
}

/// A world whose containers note each exec probe, and the list of the containers that were asked.
fn noting() -> (Sim, Rc<RefCell<Vec<String>>>) {
    let asked = Rc::new(RefCell::new(Vec::<String>::new()));
    let noted = asked.clone();
    let sim = Sim::empty(|_, _| Fate::IgnoresTerm).probes(move |name, _, _| {
        noted.borrow_mut().push(name.to_owned());
        ProbeResult::Success
    });
    (sim, asked)
}

#[test]
fn an_exec_probe_holds_its_place_even_if_its_pod_is_stopped() {
    let (mut sim, asked) = noting();
    for number in 0..=EXEC_PROBES_AT_ONCE {
        let mut app = container(&format!("app{number}"));
        app.liveness_probe = Some(Probe { initial_delay: secs(5), ..exec_probe() });
        sim.want(
            pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")).with([app]),
        );
    }
    sim.run(4);
    // No probe answers during this time.
    sim.latency(1_000_000).run(5);
    assert_eq!(asked.borrow().len(), EXEC_PROBES_AT_ONCE);
    for number in 0..EXEC_PROBES_AT_ONCE {
        sim.unwant(&format!("u{number}").as_str().into(), Some(secs(100)));
    }
    sim.run_until(std::time::Duration::from_millis(5_900));
    assert_eq!(asked.borrow().len(), EXEC_PROBES_AT_ONCE, "a place was given twice");
    sim.run_until(secs(5) + EXEC_PROBE_HOLDS_PLACE);
    assert_eq!(asked.borrow().last().map(String::as_str), Some("app4"), "its place is free");
}

#[test]
fn a_pod_with_many_exec_probes_keeps_no_other_pod_from_being_probed() {
    let (mut sim, asked) = noting();
    let probe = Probe { initial_delay: secs(5), period: secs(1), ..exec_probe() };
    for (name, count) in [("many", 60), ("more", 60), ("other", 1)] {
        let containers = (0..count).map(|number| {
            let mut app = container(&format!("{name}{number}"));
            (app.liveness_probe, app.readiness_probe) = (Some(probe.clone()), Some(probe.clone()));
            app
        });
        sim.want(pod(RestartPolicy::Always).uid(name).named(name).with(containers));
    }
    sim.run(20);
    asked.borrow_mut().clear();
    sim.latency(2).run(60);
    let of_other = asked.borrow().iter().filter(|name| *name == "other0").count();
    // Each pod holds a place in turn: the other one is asked every few seconds, and not after 240 probes.
    assert!(of_other >= 20, "{of_other} of {}", asked.borrow().len());
}

#[test]
fn exec_probes_that_take_long_keep_no_other_pod_from_being_probed() {
    let (mut sim, asked) = noting();
    let slow = (0..EXEC_PROBES_OF_A_POD + 2).map(|number| {
        let mut app = container(&format!("slow{number}"));
        app.liveness_probe = Some(Probe { initial_delay: secs(5), timeout: secs(3600), ..exec_probe() });
        app
    });
    sim.want(pod(RestartPolicy::Always).uid("u1").named("slow").with(slow));
    let mut app = container("app");
    app.liveness_probe = Some(Probe { initial_delay: secs(8), ..exec_probe() });
    sim.want(pod(RestartPolicy::Always).uid("u2").named("other").with([app]));
    sim.run(4).latency(1_000_000).run(100);
    assert_eq!(asked.borrow().last().map(String::as_str), Some("app"));
    assert_eq!(asked.borrow().len(), EXEC_PROBES_OF_A_POD + 1, "a pod has a bound of its own");
}

#[test]
fn a_container_being_killed_is_not_probed_and_schedules_no_probe() {
    let mut sim = Sim::new(probed(None, Some(exec_probe()), None), |_, _| Fate::IgnoresTerm);
    sim.run(101).unwant(&"u1".into(), Some(secs(2))).latency(1_000_000).run(104);
    assert!(sim.trace.ends_with("app#0 Kill\n"), "{}", sim.trace);
    assert_eq!(sim.node.plan(at(104)).wake_at, Some(at(113)), "the kill, not the probe of 110s");
}

#[test]
fn an_adopted_container_stays_ready_until_a_probe_fails() {
    let pod = Rc::new(probed(None, Some(exec_probe()), None));
    for (before, ready) in [(true, true), (false, false)] {
        let attempt = FIRST_RUN;
        let found = found_pod(
            pod.clone(),
            at(1),
            vec![FoundAttempt {
                attempt,
                container: started(at(2), attempt),
                exit: None,
                health: Health { started: true, ready: before, ..Health::default() },
            }],
        );
        let mut node = Node::new();
        node.observe(at(100), Observation::Found(Box::new(found)));
        node.observe(at(100), Observation::Wanted { pod: pod.clone(), record: None, status: None });
        let index = node.index_of(&pod.uid).expect("it is here");
        let health = |node: &Node| node.pod(index).map(|pod| pod.health(ContainerIndex(0)).ready);
        assert_eq!(health(&node), Some(ready));
        // The first probe is spread over a period, the same each time.
        let plan = node.plan(at(100));
        let first = plan.wake_at.expect("a probe is due");
        assert!(first > at(100) && first < at(110), "{first:?}");
        let asks = |(_, action): &(PodIndex, Action)| matches!(action, Action::Probe(..));
        assert!(plan.actions.iter().all(|action| !asks(action)));
        assert!(node.plan(first).actions.iter().any(asks));
        for round in 0..3 {
            let now = Instant(first.0 + round * 10_000_000_000);
            let _ = node.plan(now);
            let seen = PodObservation::Probed { attempt, kind: ProbeKind::Readiness, result: failure() };
            node.observe(now, Observation::Of(index, seen));
        }
        assert_eq!(health(&node), Some(false));
    }
}

#[test]
fn an_unrequested_probe_result_is_ignored() {
    let mut sim = Sim::new(probed(Some(exec_probe()), None, None), |_, _| Fate::Runs);
    sim.run(5);
    let index = sim.node.index_of(&"u1".into()).expect("it is here");
    let attempt = FIRST_RUN;
    for _ in 0..5 {
        let seen = PodObservation::Probed { attempt, kind: ProbeKind::Liveness, result: failure() };
        sim.later(secs(0), Observation::Of(index, seen));
    }
    sim.run(60).traces("0s app#0 start");
    assert!(!sim.events.iter().any(|event| event.starts_with("Unhealthy")));
}

#[test]
fn failures_in_a_row_are_counted_on_in_the_next_run_of_the_container() {
    // The probe fails twice, and the run ends by itself; the next run has only one failure left.
    let fate = |_: &str, number| if number == 0 { Fate::Exits(0, secs(15)) } else { Fate::Runs };
    let mut sim = Sim::new(probed(Some(exec_probe()), None, None), fate).probes(|_, _, _| failure());
    sim.run(20).traces("0s app#0 start; 15s app#0 exits 0, app#1 start, app#1 Term, app#1 exits 143");
    // After a decision the count starts again: three failures.
    sim.run(46).traces_last("25s app#2 start; 45s app#2 Term, app#2 exits 143");
}

#[test]
fn probe_results_of_one_run_do_not_count_for_the_next() {
    let fate = |_: &str, number| if number == 0 { Fate::Exits(1, secs(15)) } else { Fate::Runs };
    // One success of the startup probe and two of the readiness probe, in the first run.
    let successes = Rc::new(RefCell::new(3));
    let mut sim =
        Sim::new(probed(None, Some(exec_probe()), Some(exec_probe())), fate).probes(move |_, _, _| {
            let mut left = successes.borrow_mut();
            *left -= 1;
            if *left >= 0 { ProbeResult::Success } else { failure() }
        });
    sim.run(14);
    assert!(ready(&sim));
    sim.run(16);
    let status = sim.status(&"u1".into());
    let shown = &status["containerStatuses"][0];
    assert_eq!(json!([shown["started"], shown["ready"]]), json!([false, false]));
}

#[test]
fn readiness_is_probed_again_as_soon_as_the_pods_state_changes() {
    let mut app = container("app");
    app.readiness_probe = Some(Probe { initial_delay: secs(5), period: secs(100), ..exec_probe() });
    let pod = pod(RestartPolicy::Always).with([app, container("other")]);
    let fate = scripted("other#0 exits 1 after 2s, other#1 exits 1 after 20s");
    let (mut sim, asked) = asked_by(Sim::new(pod, fate), |_, age| match age {
        0..22 => failure(),
        _ => ProbeResult::Success,
    });
    // The other container ends at 2s, before it may be probed, and at 22s; it starts again at 2s and 32s.
    sim.run(300);
    assert!(sim.trace.contains("  22s other#1 exits 1\n  32s other#2 start\n"), "{}", sim.trace);
    // The period starts again with the additional probe; the ready container is not probed additionally.
    let expected = ["5s Readiness", "22s Readiness", "122s Readiness", "222s Readiness"];
    assert_eq!(*asked.borrow(), expected.map(String::from));
}

#[test]
fn readiness_is_probed_again_at_once_after_it_is_lost() {
    let mut probe = exec_probe();
    probe.failure_threshold = 1;
    let sim = Sim::new(probed(None, Some(probe), None), |_, _| Fate::Runs);
    let (mut sim, asked) = asked_by(sim, |_, age| if age < 10 { ProbeResult::Success } else { failure() });
    sim.run(31);
    let expected = ["0s Readiness", "10s Readiness", "10s Readiness", "20s Readiness", "30s Readiness"];
    assert_eq!(*asked.borrow(), expected.map(String::from));
}

#[test]
fn a_state_change_during_a_readiness_probe_schedules_another_probe() {
    let mut app = container("app");
    app.readiness_probe = Some(exec_probe());
    let mut probes = crate::pod::probes::Probes::of(&app, at(0));
    let due = |probes: &crate::pod::probes::Probes| probes.due().map(|(_, _, due)| due).collect::<Vec<_>>();
    probes.mark_running(ProbeKind::Readiness);
    probes.ask_readiness_again(at(3));
    assert_eq!(due(&probes), []);
    probes.answered(&app, at(4), ProbeKind::Readiness, &failure());
    assert_eq!(due(&probes), [at(4)]);
    probes.mark_running(ProbeKind::Readiness);
    probes.answered(&app, at(5), ProbeKind::Readiness, &ProbeResult::Success);
    assert_eq!(due(&probes), [at(14)]);
    probes.ask_readiness_again(at(6));
    assert_eq!(due(&probes), [at(14)], "it is ready");
}

#[test]
fn an_agent_that_begins_spreads_what_it_adopts_over_a_period() {
    // No other change brings the probe forward, and no probe runs before its delay.
    let spread = |uid: &str, kind: ProbeKind, delay: u64| {
        let mut app = container("app");
        let probe = Some(Probe { period: secs(60), initial_delay: secs(delay), ..exec_probe() });
        match kind {
            ProbeKind::Liveness => app.liveness_probe = probe,
            ProbeKind::Readiness => app.readiness_probe = probe,
            ProbeKind::Startup => app.startup_probe = probe,
        }
        let pod = pod(RestartPolicy::Always).uid(uid).with([app]);
        let health = Health { started: kind != ProbeKind::Startup, ..Health::default() };
        let mut probes =
            crate::pod::probes::Probes::adopted(&pod, ContainerIndex(0), at(50), at(100), health);
        probes.ask_readiness_again(at(100));
        let (_, _, due) = probes.due().next().expect("there is one");
        due
    };
    let mut seen = crate::sorted::SortedSet::new();
    for number in 0..20 {
        for kind in [ProbeKind::Liveness, ProbeKind::Readiness, ProbeKind::Startup] {
            let due = spread(&format!("u{number}"), kind, 0);
            assert!((at(100)..at(160)).contains(&due), "{due:?}");
            assert_eq!(due, spread(&format!("u{number}"), kind, 0), "it is the same each time");
            assert_eq!(spread(&format!("u{number}"), kind, 1000), at(1050), "the delay is the longer one");
            seen.insert(due);
        }
    }
    assert!(seen.len() > 55, "{seen:?}");
    // Each sixth of the period has its share of probes.
    for sixth in 0..6 {
        let within = at(100 + 10 * sixth)..at(110 + 10 * sixth);
        assert!(seen.iter().filter(|due| within.contains(due)).count() >= 3, "{seen:?}");
    }
}

#[test]
fn a_container_is_unready_until_its_startup_probe_succeeds() {
    let mut app = container("app");
    app.startup_probe = Some(Probe { period: secs(1), failure_threshold: 30, ..exec_probe() });
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Runs).probes(|_, _, age| {
        match age.as_secs() {
            5.. => ProbeResult::Success,
            _ => ProbeResult::Failure("not yet".into()),
        }
    });
    let started_and_ready = |sim: &Sim| {
        let status = sim.status(&"u1".into());
        let app = &status["containerStatuses"][0];
        (app["started"].clone(), app["ready"].clone())
    };
    sim.run(4);
    assert_eq!(started_and_ready(&sim), (false.into(), false.into()));
    sim.run(6);
    assert_eq!(started_and_ready(&sim), (true.into(), true.into()));
}

#[test]
fn a_probe_by_network_runs_at_the_same_times_as_one_by_a_program() {
    let network = ProbeAction::TcpSocket { host: None, port: crate::spec::probe::PortOrName::Port(80) };
    for action in [exec_probe().action, network] {
        let liveness = Probe { action: action.clone(), ..exec_probe() };
        let readiness = Probe { action, period: secs(7), initial_delay: secs(2), ..exec_probe() };
        let sim = Sim::new(probed(Some(liveness), Some(readiness), None), |_, _| Fate::Runs);
        let (mut sim, asked) = asked_by(sim, |_, _| ProbeResult::Success);
        sim.run(21);
        let times =
            ["0s Liveness", "2s Readiness", "9s Readiness", "10s Liveness", "16s Readiness", "20s Liveness"];
        assert_eq!(*asked.borrow(), times);
    }
}
