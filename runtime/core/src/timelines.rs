//! The rules of a pod's life as readable timelines.

mod admission;
mod ephemeral;
mod found;
mod gates;
mod handover;
mod hooks;
mod init;
mod objects;
mod replacement;
mod resize;
mod restarts;
mod shutdown;
mod update;

use std::time::Duration;

use crate::facts::*;
use crate::node::*;
use crate::pod::PodState;
use crate::sim::*;
use crate::spec::*;

fn uid() -> Uid {
    "u1".into()
}

/// Shuts down the agent, without limits.
fn down() -> Observation {
    Observation::Shutdown(Shutdown { scope: ShutdownScope::Agent, groups: Vec::new() })
}

/// The first container of the status of `u1`.
fn first(sim: &Sim) -> serde_json::Value {
    sim.status(&uid())["containerStatuses"][0].clone()
}

fn phase(sim: &Sim) -> String {
    sim.status(&uid())["phase"].as_str().expect("a phase").to_owned()
}

#[test]
fn containers_start_one_after_another_in_the_order_of_the_spec() {
    let three = pod(RestartPolicy::Always).with([container("c"), container("a"), container("b")]);
    let mut sim = Sim::new(three, |_, _| Fate::Runs);
    sim.weather.latency = secs(2);
    sim.run_until(secs(20));
    let order: Vec<&str> = sim.trace.lines().map(|line| &line[6..]).collect();
    assert_eq!(order, ["c#0 start", "a#0 start", "b#0 start"]);
    assert_eq!(phase(&sim), "Running");
}

#[test]
fn a_container_that_cannot_start_does_not_hold_up_the_next() {
    let two = pod(RestartPolicy::Always).with([container("bad"), container("good")]);
    let mut sim = Sim::new(two, |name, number| match (name, number) {
        ("bad", _) => Fate::FailsToStart(StartFailureReason::CreateContainerConfigError),
        _ => Fate::Runs,
    });
    sim.run_until(secs(25));
    assert_eq!(sim.trace, "   0s bad#0 start\n   0s good#0 start\n  10s bad#0 start\n  20s bad#0 start\n");
    assert_eq!(phase(&sim), "Pending");
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "CreateContainerConfigError");
    assert_eq!(first(&sim)["restartCount"], 0);
}

#[test]
fn a_crashing_container_backs_off_to_five_minutes() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Exits(1, secs(1)));
    sim.run_until(secs(950));
    let starts: Vec<u64> = sim
        .trace
        .lines()
        .filter(|line| line.ends_with("start"))
        .map(|line| line[..4].trim().parse().expect("a time"))
        .collect();
    assert_eq!(starts, [0, 1, 12, 33, 74, 155, 316, 617, 918]);
    let status = first(&sim);
    assert_eq!(status["state"]["waiting"]["reason"], "CrashLoopBackOff");
    let message = "back-off 5m0s restarting failed container=app pod=web_default(u1)";
    assert_eq!(status["state"]["waiting"]["message"], message);
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(status["restartCount"], 8);
    let event = "BackOff: Back-off restarting failed container app in pod web_default(u1)";
    assert!(sim.events.contains(&event.to_owned()));
}

#[test]
fn a_container_that_ran_for_more_than_ten_minutes_restarts_at_once_again() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, number| match number {
        0 | 1 => Fate::Exits(0, secs(1)),
        2 => Fate::Exits(0, secs(601)),
        _ => Fate::Runs,
    });
    sim.run_until(secs(700));
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n   1s app#0 exits 0\n   1s app#1 start\n   2s app#1 exits 0\n  \
         12s app#2 start\n 613s app#2 exits 0\n 613s app#3 start\n"
    );
}

#[test]
fn on_failure_restarts_until_it_succeeds_and_then_the_pod_is_over() {
    let mut sim = Sim::new(pod(RestartPolicy::OnFailure), |_, number| match number {
        0 => Fate::OutOfMemory(secs(3)),
        _ => Fate::Exits(0, secs(4)),
    });
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n   3s app#0 exits 137\n   3s app#1 start\n   7s app#1 exits 0\n"
    );
    let status = sim.status(&uid());
    assert_eq!(status["phase"], "Succeeded");
    let app = first(&sim);
    assert_eq!(app["state"]["terminated"]["reason"], "Completed");
    assert_eq!(app["lastState"]["terminated"]["reason"], "OOMKilled");
    assert_eq!(app["restartCount"], 1);
    assert_eq!(condition(&status, "Ready")["reason"], "PodCompleted");
    assert_eq!(condition(&status, "PodReadyToStartContainers")["status"], "False");
}

fn condition(status: &serde_json::Value, kind: &str) -> serde_json::Value {
    let all = status["conditions"].as_array().expect("conditions");
    all.iter().find(|condition| condition["type"] == kind).expect("of every kind").clone()
}

#[test]
fn a_pod_that_never_restarts_fails_with_its_container_and_stays_listed() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(3, secs(5)));
    sim.run_until(secs(1000));
    assert_eq!(sim.trace, "   0s app#0 start\n   5s app#0 exits 3\n");
    assert_eq!(phase(&sim), "Failed");
    sim.unwant(&uid(), None);
    sim.run_until(secs(1001));
    assert!(sim.is_gone(&uid()));
}

#[test]
fn the_start_of_a_never_pod_is_recorded_on_flash_before_it_runs() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.run_until(secs(1));
    let order: Vec<&str> = sim.log.lines().map(|line| &line[6..]).take(3).collect();
    assert_eq!(order, ["web create sandbox", "web save Pending", "app#0 start"]);
}

#[test]
fn a_terminal_phase_is_on_flash_before_it_is_shown_and_before_the_sandbox_goes() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(5)));
    sim.weather.latency = secs(1);
    sim.run_until(secs(60));
    let saved = sim.log.find("save Succeeded").expect("it is saved");
    let removed = sim.log.find("remove sandbox").expect("it goes");
    assert!(saved < removed, "{}", sim.log);
}

#[test]
fn a_container_that_ends_when_asked_is_not_killed() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.unwant(&uid(), None);
    sim.run_until(secs(60));
    assert_eq!(sim.trace, "   0s app#0 start\n   5s app#0 Term\n   5s app#0 exits 143\n");
    assert!(sim.is_gone(&uid()));
    assert!(sim.events.contains(&"Killing: Stopping container app".to_owned()));
}

#[test]
fn a_container_that_ignores_term_is_killed_when_its_grace_is_over() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.unwant(&uid(), None);
    sim.run_until(secs(60));
    assert_eq!(sim.trace, "   0s app#0 start\n   5s app#0 Term\n  35s app#0 Kill\n  35s app#0 exits 137\n");
    assert!(sim.is_gone(&uid()));
}

#[test]
fn all_containers_of_a_pod_are_stopped_at_once() {
    let two = pod(RestartPolicy::Always).with([container("a"), container("b")]);
    let mut sim = Sim::new(two, |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.trace.clear();
    sim.unwant(&uid(), Some(secs(7)));
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   5s a#0 Term\n   5s b#0 Term\n  12s a#0 Kill\n  12s b#0 Kill\n  12s a#0 exits 137\n  12s b#0 exits 137\n"
    );
}

#[test]
fn a_grace_can_only_shrink_and_is_never_below_the_minimum_window() {
    for (asked, then, killed) in [(20, 10, 16), (20, 100, 25), (20, 0, 8), (0, 50, 7)] {
        let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
        sim.run_until(secs(5));
        sim.unwant(&uid(), Some(secs(asked)));
        sim.run_until(secs(6));
        sim.unwant(&uid(), Some(secs(then)));
        let shown = sim.node.pods().next().and_then(PodState::termination_grace);
        assert_eq!(shown, Some(secs(asked.min(then).max(1))));
        sim.run_until(secs(60));
        let kill = format!("{killed:>4}s app#0 Kill\n");
        assert!(sim.trace.contains(&kill), "{asked} then {then}:\n{}", sim.trace);
        assert_eq!(sim.trace.matches("Term").count(), 1);
    }
}

#[test]
fn a_shorter_grace_that_comes_late_does_not_postpone_the_kill() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.unwant(&uid(), Some(secs(20)));
    sim.run_until(secs(20));
    sim.unwant(&uid(), Some(secs(15)));
    sim.run_until(secs(60));
    assert!(sim.trace.contains("  25s app#0 Kill\n"), "{}", sim.trace);
}

#[test]
fn a_shorter_grace_that_comes_late_ends_a_sidecar_that_still_waits() {
    // The second grace period, requested seven seconds after the first one of 20 s; and the time at which the
    // sidecar is asked to end.
    for (later, asked) in [(8, 20), (13, 25), (20, 25)] {
        let served = pod(RestartPolicy::Always).init([sidecar("proxy")]);
        let mut sim = Sim::new(served, |name, _| if name == "app" { Fate::IgnoresTerm } else { Fate::Runs });
        sim.run_until(secs(5));
        sim.unwant(&uid(), Some(secs(20)));
        sim.run_until(secs(12));
        sim.unwant(&uid(), Some(secs(later)));
        sim.run_until(secs(60));
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
    sim.run_until(secs(5));
    sim.unwant(&uid(), Some(secs(20)));
    sim.run_until(secs(10));
    sim.unwant(&uid(), Some(secs(8)));
    sim.run_until(secs(60));
    let killing: Vec<_> = sim.events.iter().filter(|event| event.starts_with("Killing")).collect();
    assert_eq!(killing, ["Killing: Stopping container app", "Killing: Stopping container proxy"]);
}

#[test]
fn a_failed_kill_is_retried_with_growing_delays() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.unwant(&uid(), Some(secs(2)));
    sim.run_until(secs(6));
    sim.weather.failures = 100;
    sim.of(&uid()).gone_by = None;
    sim.run_until(secs(100));
    assert!(sim.events.iter().any(|event| event.starts_with("FailedKillPod: error killing pod")));
    sim.weather.failures = 0;
    sim.run_until(secs(400));
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n   5s app#0 Term\n   7s app#0 Kill\n  17s app#0 Kill\n  37s app#0 Kill\n  \
         77s app#0 Kill\n 157s app#0 Kill\n 157s app#0 exits 137\n"
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
    sim.weather.latency = secs(2);
    let mut steps = (0..200).map(|step| Duration::from_millis(step * 100));
    while !sim.log.contains("remove sandbox") {
        sim.run_until(steps.next().expect("the sandbox is removed"));
    }
    sim.weather = Weather { failures: 100, ..Weather::default() };
    sim.run_until(secs(100));
    assert_eq!(delays(&sim, "remove volumes"), [10, 20, 40]);
    assert_eq!(failures(&sim), 4);
    sim.weather.failures = 0;
    sim.run_until(secs(200));
    assert_eq!(delays(&sim, "remove volumes"), [10, 20, 40, 80]);
    sim.weather.failures = 100;
    sim.unwant(&uid(), None);
    sim.of(&uid()).gone_by = None;
    sim.run_until(secs(300));
    assert_eq!(delays(&sim, "forget"), [10, 20, 40]);
    assert_eq!(failures(&sim), 8);
    assert!(!sim.is_gone(&uid()) && !sim.node.is_empty());
    sim.weather.failures = 0;
    sim.run_until(secs(400));
    assert!(sim.is_gone(&uid()) && sim.node.is_empty());
}

#[test]
fn a_pod_has_run_since_its_first_run_and_its_deletion_is_a_generation_of_its_own() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Always).with([container("a"), container("b")]), |name, number| {
            match (name, number) {
                ("b", 1) => Fate::IgnoresTerm,
                ("b", 0) => Fate::Exits(1, secs(1)),
                _ => Fate::FailsToStart(StartFailureReason::CreateContainerError),
            }
        });
    sim.weather.latency = secs(1);
    let state = |sim: &Sim| {
        let state = sim.node.index_of(&uid()).and_then(|index| sim.node.pod(index)).expect("it is here");
        (state.has_run(), state.generation())
    };
    sim.run_until(secs(0));
    assert_eq!(state(&sim), (false, 1));
    sim.run_until(secs(20));
    assert_eq!(state(&sim), (true, 1));
    sim.unwant(&uid(), None);
    sim.run_until(secs(22));
    assert_eq!(state(&sim), (true, 2));
}

#[test]
fn a_replaced_pod_starts_when_the_last_process_of_the_old_one_is_gone() {
    let mut sim = Sim::new(pod(RestartPolicy::Always).uid("old"), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.want(pod(RestartPolicy::Always).uid("new"));
    sim.unwant(&"old".into(), Some(secs(10)));
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n   5s old/app#0 Term\n  15s old/app#0 Kill\n  15s old/app#0 exits 137\n  \
         15s new/app#0 start\n"
    );
    let removed = sim.log.find("remove sandbox").expect("the old one goes");
    let created = sim.log.rfind("create sandbox").expect("the new one comes");
    assert!(removed < created);
}

#[test]
fn a_pod_wanted_again_while_it_goes_starts_afresh_when_it_is_forgotten() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.unwant(&uid(), Some(secs(10)));
    sim.run_until(secs(6));
    sim.want(pod(RestartPolicy::Always));
    let old = sim.node.index_of(&uid());
    sim.run_until(secs(60));
    assert_ne!(sim.node.index_of(&uid()), old);
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n   5s app#0 Term\n  15s app#0 Kill\n  15s app#0 exits 137\n  15s app#0 start\n"
    );
}

#[test]
fn a_pod_that_is_wanted_with_another_spec_under_its_uid_goes_and_that_one_follows() {
    let one = std::rc::Rc::new(pod(RestartPolicy::Always).with([container("a"), container("b")]));
    let other = std::rc::Rc::new(pod(RestartPolicy::Always).with([container("a")]));
    let run = |number| Attempt { container: ContainerIndex(number), number: 0 };
    let attempts = |numbers: [u8; 2]| {
        numbers.map(|number| FoundAttempt {
            attempt: run(number),
            container: started(at(2), run(number)),
            exit: None,
            health: Health::default(),
        })
    };
    // Reported by the agent that runs the pod, and by one that finds it running.
    for found in [false, true] {
        let mut node = Node::new();
        let sandbox = Some(FoundSandbox { ip: None, at: at(1) });
        let before = Found {
            pod: one.clone(),
            record: None,
            sandbox,
            processes: false,
            attempts: attempts([0, 1]).into(),
            status: StatusHandover::default(),
        };
        node.observe(at(10), Observation::Found(Box::new(before)));
        if !found {
            node.observe(at(10), Observation::Wanted { pod: one.clone(), record: None, status: None });
        }
        node.observe(at(10), Observation::Wanted { pod: other.clone(), record: None, status: None });
        node.observe(at(10), Observation::SourcesSeen);
        let index = node.index_of(&uid()).expect("it is here");
        let asked = |node: &mut Node| -> Vec<Action> {
            node.plan(at(10)).actions.into_iter().map(|(_, action)| action).collect()
        };
        let ended = |actions: &[Action]| actions.iter().filter(|a| matches!(a, Action::Terminate(_))).count();
        assert_eq!(ended(&asked(&mut node)), 2, "both are asked to end");
        for number in [0, 1] {
            let exit = Exit {
                code: 0,
                oom_killed: false,
                unknown: false,
                message: "".into(),
                started_at: crate::time::Moment::ThisBoot(at(2)),
                finished_at: crate::time::Moment::ThisBoot(at(10)),
            };
            let seen = PodObservation::Exited { attempt: run(number), exit: Box::new(exit) };
            node.observe(at(10), Observation::Of(index, seen));
        }
        let _ = asked(&mut node);
        let _ = asked(&mut node);
        for seen in [PodObservation::SandboxRemoved, PodObservation::Saved { generation: 1 }] {
            node.observe(at(10), Observation::Of(index, seen));
            let _ = asked(&mut node);
        }
        node.observe(at(10), Observation::Of(index, PodObservation::Forgotten));
        let _ = asked(&mut node);
        let next = node.index_of(&uid()).expect("the other one is here");
        assert!(next != index && node.pod(next).is_some_and(|state| *state.pod() == other));
        // Reporting the same pod again changes nothing.
        node.observe(at(11), Observation::Wanted { pod: other.clone(), record: None, status: None });
        assert!(!node.pod(next).is_some_and(PodState::is_unwanted));
    }
}

#[test]
fn a_pod_that_waits_for_an_image_starts_the_moment_it_is_there() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Always), |_, _| Fate::FailsToStart(StartFailureReason::ErrImagePull));
    sim.run_until(secs(9));
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "ErrImagePull");
    sim.run_until(secs(5000));
    let waiting = first(&sim)["state"]["waiting"].clone();
    assert_eq!(waiting["reason"], "ImagePullBackOff");
    assert_eq!(waiting["message"], "Back-off pulling image \"app:1\": ErrImagePull: it cannot be");
    sim.fates(|_, _| Fate::Runs);
    sim.later(secs(3), Observation::ImagesChanged);
    sim.run_until(secs(5010));
    assert_eq!(sim.trace, "   0s app#0 start\n5003s app#0 start\n");
    assert_eq!(
        sim.events[..4],
        [
            "Failed: Failed to pull image \"app:1\": it cannot be",
            "Failed: Error: ErrImagePull",
            "BackOff: Back-off pulling image \"app:1\"",
            "Failed: Error: ImagePullBackOff",
        ]
    );
}

#[test]
fn an_image_that_comes_while_a_start_looks_for_it_is_not_missed() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| {
        Fate::FailsToStart(StartFailureReason::ErrImageNeverPull)
    });
    sim.weather.latency = secs(2);
    sim.run_until(secs(0));
    while sim.trace.is_empty() {
        let next = sim.now + std::time::Duration::from_millis(1);
        sim.run_until(next.since(at(0)));
    }
    sim.fates(|_, _| Fate::Runs);
    sim.later(secs(0), Observation::ImagesChanged);
    sim.run_until(secs(30));
    assert_eq!(sim.trace.matches("start").count(), 2, "{}", sim.trace);
    assert_eq!(phase(&sim), "Running");
}

#[test]
fn a_process_that_cannot_be_executed_counts_as_an_exit_with_128() {
    let fails = |_: &str, _| Fate::FailsToStart(StartFailureReason::RunContainerError);
    let mut sim = Sim::new(pod(RestartPolicy::Always), fails);
    sim.run_until(secs(15));
    assert_eq!(sim.trace, "   0s app#0 start\n   0s app#1 start\n  10s app#2 start\n");
    let last = first(&sim)["lastState"]["terminated"].clone();
    assert_eq!((&last["exitCode"], &last["reason"]), (&128.into(), &"StartError".into()));
    let mut sim = Sim::new(pod(RestartPolicy::Never), fails);
    sim.run_until(secs(15));
    assert_eq!(sim.trace, "   0s app#0 start\n");
    assert_eq!(phase(&sim), "Failed");
}

#[test]
fn a_never_pod_that_could_not_start_is_tried_again_without_anybody_else_waking_the_core() {
    let mut tries = 0;
    let mut sim = Sim::new(pod(RestartPolicy::Never), move |_, _| {
        tries += 1;
        match tries {
            1..=3 => Fate::FailsToStart(StartFailureReason::CreateContainerError),
            _ => Fate::Exits(0, secs(1)),
        }
    });
    sim.run_until(secs(60));
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n  10s app#0 start\n  20s app#0 start\n  30s app#0 start\n  31s app#0 exits 0\n"
    );
    assert_eq!(phase(&sim), "Succeeded");
}

#[test]
fn a_sandbox_that_cannot_be_made_is_tried_again_every_ten_seconds() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.weather.failures = 100;
    sim.run_until(secs(25));
    assert_eq!(sim.log.matches("create sandbox").count(), 3);
    assert_eq!(sim.events[0], "FailedCreatePodSandBox: Failed to create pod sandbox: no such device");
    let waiting = |sim: &Sim| sim.status(&uid())["containerStatuses"][0]["state"]["waiting"].clone();
    let why = "Failed to create pod sandbox: no such device";
    assert_eq!(waiting(&sim), serde_json::json!({ "reason": "ContainerCreating", "message": why }));
    sim.weather.failures = 0;
    sim.run_until(secs(35));
    assert_eq!(sim.trace, "  30s app#0 start\n");
    assert!(waiting(&sim).is_null());
}

#[test]
fn a_never_pod_that_loses_its_sandbox_is_over_though_a_container_has_not_started_yet() {
    let two = pod(RestartPolicy::Never).with([container("done"), container("late")]);
    let mut sim = Sim::new(two, |name, _| match name {
        "late" => Fate::FailsToStart(StartFailureReason::ErrImagePull),
        _ => Fate::Exits(0, secs(1)),
    });
    sim.run_until(secs(5));
    sim.lose_sandbox(&uid());
    sim.run_until(secs(60));
    assert_eq!(times(&sim, "web create sandbox"), [0]);
    assert_eq!(phase(&sim), "Failed");
}

#[test]
fn a_pod_that_has_begun_is_not_replaced_if_it_is_found_late() {
    let found = |sim: &Sim| {
        let state = sim.node.pod(sim.node.index_of(&uid()).expect("it is here")).expect("it is here");
        Observation::Found(Box::new(Found {
            pod: state.pod().clone(),
            record: None,
            sandbox: Some(FoundSandbox { ip: None, at: at(1) }),
            processes: false,
            attempts: Vec::new(),
            status: StatusHandover::default(),
        }))
    };
    // One runs, one waits for its back-off, one has finished.
    for (policy, code) in
        [(RestartPolicy::Always, None), (RestartPolicy::Always, Some(1)), (RestartPolicy::Never, Some(0))]
    {
        let fate = move |_: &str, _| code.map_or(Fate::Runs, |code| Fate::Exits(code, secs(1)));
        let mut sim = Sim::new(pod(policy), fate);
        sim.run_until(secs(5));
        let before = sim.node.index_of(&uid());
        let found = found(&sim);
        sim.later(secs(0), found);
        sim.run_until(secs(6));
        assert_eq!(sim.node.index_of(&uid()), before, "{policy:?} {code:?}");
    }
}

/// The times at which the log has this line.
fn times(sim: &Sim, what: &str) -> Vec<u64> {
    let lines = sim.log.lines().filter(|line| line[6..] == *what);
    lines.map(|line| line[..4].trim().parse().expect("a time")).collect()
}

#[test]
fn remains_of_a_failed_sandbox_are_removed_before_the_next_attempt_which_keeps_its_time() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.weather = Weather { failures: 100, remains: 100, ..Weather::default() };
    sim.run_until(secs(5));
    // The removal fails, too, and is retried after 10 s.
    assert_eq!((times(&sim, "web create sandbox"), times(&sim, "web remove sandbox")), (vec![0], vec![0]));
    assert!(sim.events.contains(&"FailedKillPod: error killing pod: busy".to_owned()));
    sim.run_until(secs(25));
    assert_eq!(times(&sim, "web remove sandbox"), [0, 10]);
    sim.weather.failures = 0;
    sim.run_until(secs(60));
    assert_eq!(times(&sim, "web create sandbox"), [0, 30]);
    assert_eq!(times(&sim, "web remove sandbox"), [0, 10, 30]);
    assert_eq!(sim.trace, "  30s app#0 start\n");

    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.weather = Weather { failures: 100, remains: 100, latency: secs(2), ..Weather::default() };
    sim.run_until(secs(0));
    sim.weather.failures = 0;
    sim.run_until(secs(60));
    assert_eq!(times(&sim, "web remove sandbox").len(), 1);
    let made = times(&sim, "web create sandbox");
    assert!(made.len() == 2 && made[1] >= 10, "{made:?}");
}

#[test]
fn a_deleted_pod_stays_until_what_a_failed_creation_left_is_gone() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.weather = Weather { failures: 100, remains: 100, ..Weather::default() };
    sim.run_until(secs(1));
    sim.unwant(&uid(), None);
    sim.run_until(secs(9));
    assert!(sim.node.index_of(&uid()).is_some() && !sim.is_gone(&uid()));
    assert!(times(&sim, "web forget").is_empty(), "{}", sim.log);
    sim.weather.failures = 0;
    sim.run_until(secs(11));
    assert!(sim.is_gone(&uid()), "{}", sim.log);
    assert_eq!(times(&sim, "web create sandbox"), [0]);
}

#[test]
fn nothing_starts_while_processes_of_a_lost_sandbox_may_live() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.weather.failures = 100;
    sim.lose_sandbox_with(&uid(), true);
    sim.run_until(secs(30));
    assert_eq!(
        (times(&sim, "web create sandbox"), times(&sim, "web remove sandbox")),
        (vec![0], vec![5, 15])
    );
    assert_eq!(first(&sim)["state"]["terminated"]["reason"], "ContainerStatusUnknown");
    sim.weather.failures = 0;
    sim.run_until(secs(60));
    assert_eq!(times(&sim, "web remove sandbox"), [5, 15, 35]);
    assert_eq!(sim.trace, "   0s app#0 start\n  35s app#1 start\n");
}

#[test]
fn a_never_pod_is_not_over_while_processes_of_its_lost_sandbox_may_live() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.lose_sandbox_with(&uid(), true);
    sim.weather.failures = 100;
    sim.run_until(secs(9));
    assert_eq!(phase(&sim), "Running", "{}", sim.log);
    sim.weather.failures = 0;
    sim.run_until(secs(60));
    assert_eq!(phase(&sim), "Failed");
    assert_eq!(first(&sim)["state"]["terminated"]["reason"], "ContainerStatusUnknown");
}

#[test]
fn a_later_agent_starts_nothing_while_processes_of_a_lost_sandbox_may_live() {
    for policy in [RestartPolicy::Always, RestartPolicy::Never] {
        let mut sim = Sim::new(pod(policy), |_, _| Fate::Runs);
        sim.run_until(secs(5));
        sim.lose_sandbox_with(&uid(), true);
        sim.weather.failures = 100;
        sim.restart_agent();
        sim.run_until(secs(9));
        assert_ne!(phase(&sim), "Failed");
        assert_eq!(times(&sim, "web create sandbox"), [0]);
        sim.weather.failures = 0;
        sim.run_until(secs(60));
        assert_eq!(phase(&sim), if policy == RestartPolicy::Never { "Failed" } else { "Running" });
    }
}

#[test]
fn a_lost_sandbox_takes_its_runs_with_it_and_is_made_anew() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.lose_sandbox(&uid());
    sim.run_until(secs(60));
    assert_eq!(sim.trace, "   0s app#0 start\n   5s app#1 start\n");
    let app = first(&sim);
    let last = &app["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["reason"]), (&137.into(), &"ContainerStatusUnknown".into()));
    assert_eq!(app["restartCount"], 1);
    assert!(
        sim.log.find("remove sandbox").expect("remains go") < sim.log.rfind("create").expect("it is made")
    );
}

#[test]
fn a_never_pod_that_loses_its_sandbox_has_failed() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.lose_sandbox(&uid());
    sim.run_until(secs(60));
    assert_eq!(sim.trace, "   0s app#0 start\n");
    assert_eq!(phase(&sim), "Failed");
    assert_eq!(first(&sim)["state"]["terminated"]["reason"], "ContainerStatusUnknown");
}

#[test]
fn a_pod_past_its_active_deadline_fails() {
    let mut limited = pod(RestartPolicy::Always);
    limited.spec.active_deadline = Some(secs(20));
    let mut sim = Sim::new(limited, |_, _| Fate::Runs);
    sim.run_until(secs(60));
    assert_eq!(sim.trace, "   0s app#0 start\n  20s app#0 Term\n  20s app#0 exits 143\n");
    let status = sim.status(&uid());
    assert_eq!((&status["phase"], &status["reason"]), (&"Failed".into(), &"DeadlineExceeded".into()));
    assert_eq!(status["message"], "Pod was active on the node longer than the specified deadline");
}

#[test]
fn an_idle_pod_plans_no_action_and_no_wake_up() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run_until(secs(100));
    let plan = sim.node.plan(at(100));
    assert!(plan.actions.is_empty());
    assert_eq!((plan.wake_at, plan.more), (None, false));
}

#[test]
fn a_crashing_pod_writes_its_counts_at_most_every_five_minutes() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Exits(1, secs(5)));
    sim.run_until(secs(3600));
    let saves = sim.of(&uid()).saves;
    assert!((2..=13).contains(&saves), "{saves} saves in an hour");
}

#[test]
fn containers_that_run_once_and_cannot_be_created_do_not_wear_out_the_card() {
    let two = pod(RestartPolicy::Never).with([container("a"), container("b")]);
    let mut sim = Sim::new(two, |_, _| Fate::FailsToStart(StartFailureReason::CreateContainerError));
    sim.run_until(secs(3600));
    let saves = sim.of(&uid()).saves;
    assert!((2..=30).contains(&saves), "{saves} saves in an hour");
    assert!(sim.trace.matches("start").count() > 600, "each is tried every ten seconds");
}

#[test]
fn a_pod_changed_by_presets_is_recorded_on_flash_at_once() {
    let mut pod = pod(RestartPolicy::Always);
    let saves = |pod: Pod, seconds: u64| {
        let mut sim = Sim::new(pod, |_, _| Fate::Runs);
        sim.run_until(secs(seconds));
        sim.of(&uid()).saves
    };
    assert_eq!((saves(pod.clone(), 1), saves(pod.clone(), 3600)), (0, 1));
    pod.annotations.insert(format!("{}p", crate::spec::pod::PRESET_MARK), "7".into());
    assert_eq!((saves(pod.clone(), 1), saves(pod, 3600)), (1, 2));
}

#[test]
fn the_pod_that_is_one_too_many_is_refused_and_never_runs() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    for number in 0..=MAX_PODS {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    sim.run_until(secs(30));
    assert_eq!(sim.trace.matches("start").count(), MAX_PODS);
    let status = sim.status(&format!("u{MAX_PODS}").as_str().into());
    assert_eq!((&status["phase"], &status["reason"]), (&"Failed".into(), &"OutOfpods".into()));
    assert_eq!(
        status["message"],
        "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110"
    );
    assert!(status.get("containerStatuses").is_none());
    assert!(sim.largest_plan <= MAX_ACTIONS);
}

#[test]
fn only_so_many_starts_are_in_flight_at_once() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    sim.weather.latency = secs(5);
    for number in 0..40 {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    sim.run_until(secs(0));
    assert_eq!(sim.log.matches("create sandbox").count(), STARTS_AT_ONCE);
    sim.run_until(secs(200));
    assert_eq!(sim.trace.matches("start").count(), 40);
}

#[test]
fn starts_that_are_slow_to_fail_hold_up_no_pod_for_ever() {
    let mut sim = Sim::empty(|name, _| match name {
        "good" => Fate::Runs,
        _ => Fate::FailsToStart(StartFailureReason::CreateContainerConfigError),
    });
    sim.weather.latency = secs(30);
    for number in 0..3 * STARTS_AT_ONCE {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    let good = pod(RestartPolicy::Always).with([container("good")]).uid("last").named("last");
    sim.want(good);
    sim.run_until(secs(300));
    assert!(sim.trace.contains("good#0 start"), "{}", sim.trace);
}

#[test]
fn only_so_many_records_are_written_at_once() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    sim.weather.latency = secs(5);
    let refused = 2 * WRITES_AT_ONCE + 7;
    for number in 0..MAX_PODS + refused {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    sim.run_until(secs(0));
    assert_eq!(sim.log.matches(" save Failed").count(), WRITES_AT_ONCE);
    sim.run_until(secs(1000));
    assert_eq!(sim.log.matches(" save Failed").count(), refused, "each is written once");
    for number in MAX_PODS..MAX_PODS + refused {
        sim.unwant(&format!("u{number}").as_str().into(), None);
    }
    sim.run_until(secs(1000));
    assert_eq!(sim.log.matches(" forget").count(), WRITES_AT_ONCE);
    sim.run_until(secs(1200));
    assert_eq!(sim.node.pods().count(), MAX_PODS);
}

#[test]
fn actions_beyond_the_limit_of_a_plan_follow_in_the_next_plan() {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm);
    for number in 0..3 * MAX_ACTIONS {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    sim.run_until(secs(100));
    sim.largest_plan = 0;
    for number in 0..3 * MAX_ACTIONS {
        sim.unwant(&format!("u{number}").as_str().into(), Some(secs(10)));
    }
    sim.run_until(secs(100));
    assert_eq!(sim.trace.matches("100s").count(), 3 * MAX_ACTIONS, "all are asked in the same second");
    assert_eq!(sim.largest_plan, MAX_ACTIONS);
    sim.run_until(secs(110));
    assert!(sim.node.is_empty(), "each is killed, taken down and forgotten");
}

#[test]
fn no_found_pod_is_stopped_before_every_source_has_been_read() {
    let found = Found {
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
    let before = first(&sim)["state"].clone();
    sim.reboot();
    sim.run_until(secs(2000));
    assert_eq!(sim.trace, "   0s app#0 start\n   5s app#0 exits 0\n");
    assert_eq!(phase(&sim), "Succeeded");
    assert_eq!(first(&sim)["state"], before);
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
fn a_shutdown_ends_every_process_and_keeps_what_is_to_run_again() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.later(secs(0), down());
    sim.run_until(secs(6));
    assert!(sim.node.is_empty());
    assert!(sim.log.contains("remove sandbox") && !sim.log.contains("forget"));
    sim.reboot();
    sim.run_until(secs(10));
    assert_eq!(sim.alive(&uid(), 0), Some(1));
}

#[test]
fn an_agent_that_takes_all_pods_down_gives_found_pods_their_whole_grace() {
    let pod = std::rc::Rc::new(pod(RestartPolicy::Always));
    let attempt = Attempt { container: ContainerIndex(0), number: 0 };
    let run =
        FoundAttempt { attempt, container: started(at(2), attempt), exit: None, health: Health::default() };
    let found = Found {
        pod,
        record: None,
        sandbox: Some(FoundSandbox { ip: None, at: at(1) }),
        processes: false,
        attempts: vec![run],
        status: StatusHandover::default(),
    };
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
    sim.run_until(secs(0));
    sim.weather.failures = 100;
    sim.run_until(secs(40));
    assert_ne!(phase(&sim), "Succeeded");
    sim.weather.failures = 0;
    sim.run_until(secs(400));
    assert_eq!(phase(&sim), "Succeeded");
    sim.unwant(&uid(), None);
    sim.run_until(secs(401));
    assert!(sim.is_gone(&uid()));
}

#[test]
fn the_volumes_of_a_finished_pod_go_once_and_a_failure_is_retried() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(1)));
    sim.run_until(secs(60));
    assert_eq!(times(&sim, "web remove volumes"), [1]);
    sim.weather.failures = 100;
    sim.restart_agent();
    sim.run_until(secs(75));
    assert_eq!(times(&sim, "web remove volumes"), [1, 60, 70]);
    assert!(sim.events.contains(&"FailedKillPod: error killing pod: busy".to_owned()));
    assert_eq!(phase(&sim), "Succeeded");
    sim.weather.failures = 0;
    sim.run_until(secs(500));
    assert_eq!(times(&sim, "web remove volumes"), [1, 60, 70, 90]);
    // A pod that is removed as a whole needs no removal of its volumes before.
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.unwant(&uid(), None);
    sim.run_until(secs(60));
    assert!(sim.is_gone(&uid()) && times(&sim, "web remove volumes").is_empty());
}

#[test]
fn a_pod_that_is_deleted_while_its_volumes_are_removed_waits_for_that() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(1)));
    sim.run_until(secs(0));
    sim.weather = Weather { latency: secs(20), ..Weather::default() };
    while !sim.log.contains("remove volumes") {
        let next = Duration::from_nanos(sim.now.0) + secs(1);
        sim.run_until(next);
    }
    sim.unwant(&uid(), None);
    sim.run_until(Duration::from_nanos(sim.now.0) + secs(60));
    assert!(sim.is_gone(&uid()), "{}", sim.log);
}

#[test]
fn the_state_of_a_pod_takes_less_than_four_kibibytes() {
    use crate::pod::container::{ContainerState, Ended, Identity};
    let text = 2 * (64 + 64 + 128);
    let record = size_of::<Record>() + size_of::<ContainerRecord>() + text;
    let container = size_of::<ContainerState>()
        + 2 * size_of::<Ended>()
        + size_of::<Identity>()
        + size_of::<StartedContainer>()
        + text;
    let all = size_of::<PodState>() + container + 2 * record;
    assert!(all < 4096, "{all} bytes");
}
