//! The rules of a pod's life as readable timelines.

mod admission;
mod bounds;
mod ephemeral;
mod eviction;
mod fence;
mod gates;
mod handover;
mod hooks;
mod init;
mod objects;
mod reboot;
mod recovered;
mod replacement;
mod resize;
mod restarts;
mod sandbox;
mod shutdown;
mod stop;
mod update;

use std::time::Duration;

use serde_json::json;

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

/// The times at which the log has this line.
fn times(sim: &Sim, what: &str) -> Vec<u64> {
    let lines = sim.log.lines().filter(|line| line[6..] == *what);
    lines.map(|line| line[..4].trim().parse().expect("a time")).collect()
}

/// A node with this much cpu, in thousandths.
fn small(cpu: i64) -> NodeInfo {
    let allocatable = Amounts { cpu, ..NodeInfo::default().allocatable };
    NodeInfo { name: "board".into(), allocatable, ..NodeInfo::default() }
}

/// A pod `name` that requests this much cpu, in thousandths.
fn asking(name: &str, cpu: i64) -> Pod {
    let mut app = container("app");
    app.resources.cpu_request = Some(Quantity::from_milli(i128::from(cpu)));
    pod(RestartPolicy::Always).uid(name).named(name).with([app])
}

#[test]
fn containers_start_one_after_another_in_the_order_of_the_spec() {
    let three = pod(RestartPolicy::Always).with([container("c"), container("a"), container("b")]);
    let mut sim = Sim::new(three, |_, _| Fate::Runs);
    sim.latency(2).run(20);
    let order: Vec<&str> = sim.trace.lines().map(|line| &line[6..]).collect();
    assert_eq!(order, ["c#0 start", "a#0 start", "b#0 start"]);
    sim.shows_phase("Running");
}

#[test]
fn a_container_that_cannot_start_does_not_hold_up_the_next() {
    let two = pod(RestartPolicy::Always).with([container("bad"), container("good")]);
    let mut sim = Sim::new(two, scripted("bad fails with CreateContainerConfigError"));
    sim.run(25).traces("0s bad#0 start, good#0 start; 10s bad#0 start; 20s bad#0 start");
    sim.shows_phase("Pending");
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "CreateContainerConfigError");
    assert_eq!(first(&sim)["restartCount"], 0);
}

#[test]
fn a_crashing_container_backs_off_to_five_minutes() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Exits(1, secs(1)));
    sim.run(950);
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
    let mut sim = Sim::new(
        pod(RestartPolicy::Always),
        scripted("*#0 exits 0 after 1s, *#1 exits 0 after 1s, *#2 exits 0 after 601s"),
    );
    sim.run(700);
    sim.traces(
        "0s app#0 start; 1s app#0 exits 0, app#1 start; 2s app#1 exits 0; 12s app#2 start; 613s app#2 exits \
         0, app#3 start",
    );
}

#[test]
fn on_failure_restarts_until_it_succeeds_and_then_the_pod_is_over() {
    let mut sim =
        Sim::new(pod(RestartPolicy::OnFailure), scripted("*#0 is OOMKilled after 3s, * exits 0 after 4s"));
    sim.run(60).traces("0s app#0 start; 3s app#0 exits 137, app#1 start; 7s app#1 exits 0");
    let status = sim.status(&uid());
    assert_eq!(status["phase"], "Succeeded");
    let app = first(&sim);
    assert_eq!(app["state"]["terminated"]["reason"], "Completed");
    assert_eq!(app["lastState"]["terminated"]["reason"], "OOMKilled");
    let event = "OOMKilled: The kernel killed a process of the container, which has no memory limit, for lack of memory";
    assert!(sim.events.contains(&event.to_owned()), "{:?}", sim.events);
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
    sim.run(1000).traces("0s app#0 start; 5s app#0 exits 3").shows_phase("Failed").unwant(&uid(), None);
    sim.run(1001);
    assert!(sim.is_gone(&uid()));
}

#[test]
fn the_start_of_a_never_pod_is_recorded_on_flash_before_it_runs() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.run(1);
    let order: Vec<&str> = sim.log.lines().map(|line| &line[6..]).take(3).collect();
    assert_eq!(order, ["web create sandbox", "web save Pending", "app#0 start"]);
}

#[test]
fn a_terminal_phase_is_on_flash_before_it_is_shown_and_before_the_sandbox_goes() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(5)));
    sim.latency(1).run(60);
    let saved = sim.log.find("save Succeeded").expect("it is saved");
    let removed = sim.log.find("remove sandbox").expect("it goes");
    assert!(saved < removed, "{}", sim.log);
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
    sim.latency(1);
    let state = |sim: &Sim| {
        let state = sim.node.index_of(&uid()).and_then(|index| sim.node.pod(index)).expect("it is here");
        (state.has_run(), state.generation())
    };
    sim.run(0);
    assert_eq!(state(&sim), (false, 1));
    sim.run(20);
    assert_eq!(state(&sim), (true, 1));
    sim.unwant(&uid(), None).run(22);
    assert_eq!(state(&sim), (true, 2));
}

#[test]
fn a_pod_that_waits_for_an_image_starts_the_moment_it_is_there() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Always), |_, _| Fate::FailsToStart(StartFailureReason::ErrImagePull));
    sim.run(9);
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "ErrImagePull");
    sim.run(5000);
    let waiting = first(&sim)["state"]["waiting"].clone();
    assert_eq!(waiting["reason"], "ImagePullBackOff");
    assert_eq!(waiting["message"], "Back-off pulling image \"app:1\": ErrImagePull: it cannot be");
    sim.fates(|_, _| Fate::Runs).later(secs(3), Observation::ImagesChanged).run(5010);
    sim.traces("0s app#0 start; 5003s app#0 start");
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
fn an_absent_image_is_pulled_and_a_failed_pull_backs_off() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.absent.insert("app:1".to_owned());
    sim.registry = Some([Err("no route"), Err("no route"), Ok(" in 1.5s.")].into());
    sim.run(21);
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "ImagePullBackOff");
    sim.run(100);
    sim.traces(
        "0s app#0 start, pull app:1; 10s app#0 start, pull app:1; 30s app#0 start, pull app:1, app#0 start",
    );
    let failed = ["Pulling: Pulling image \"app:1\"", "Failed: Failed to pull image \"app:1\": no route"];
    assert_eq!(sim.events[..2], failed);
    assert_eq!(
        sim.events[3..],
        [
            failed[0],
            failed[1],
            "Failed: Error: ErrImagePull",
            "BackOff: Back-off pulling image \"app:1\"",
            "Failed: Error: ImagePullBackOff",
            failed[0],
            "Pulled: Successfully pulled image \"app:1\" in 1.5s.",
            "Created: Container created",
            "Started: Container started",
        ]
    );
    sim.shows_phase("Running");
}

#[test]
fn a_loaded_image_ends_the_back_off_of_its_pull() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.absent.insert("app:1".to_owned());
    sim.registry = Some([Err("no route"); 3].into());
    sim.run(35);
    sim.absent.clear();
    sim.later(secs(0), Observation::ImagesChanged).run(36).shows_phase("Running");
}

#[test]
fn an_image_that_comes_while_a_start_looks_for_it_is_not_missed() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| {
        Fate::FailsToStart(StartFailureReason::ErrImageNeverPull)
    });
    sim.latency(2).run(0);
    while sim.trace.is_empty() {
        let next = sim.now + std::time::Duration::from_millis(1);
        sim.run_until(next.since(at(0)));
    }
    sim.fates(|_, _| Fate::Runs).later(secs(0), Observation::ImagesChanged).run(30);
    assert_eq!(sim.trace.matches("start").count(), 2, "{}", sim.trace);
    sim.shows_phase("Running");
}

#[test]
fn a_process_that_cannot_be_executed_counts_as_an_exit_with_128() {
    let fails = |_: &str, _| Fate::FailsToStart(StartFailureReason::RunContainerError);
    let mut sim = Sim::new(pod(RestartPolicy::Always), fails);
    sim.run(15).traces("0s app#0 start, app#1 start; 10s app#2 start");
    let last = first(&sim)["lastState"]["terminated"].clone();
    assert_eq!(json!([last["exitCode"], last["reason"]]), json!([128, "StartError"]));
    let mut sim = Sim::new(pod(RestartPolicy::Never), fails);
    sim.run(15).traces("0s app#0 start").shows_phase("Failed");
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
    sim.run(60);
    sim.traces("0s app#0 start; 10s app#0 start; 20s app#0 start; 30s app#0 start; 31s app#0 exits 0");
    sim.shows_phase("Succeeded");
}

#[test]
fn a_pod_past_its_active_deadline_fails() {
    let mut limited = pod(RestartPolicy::Always);
    limited.spec.active_deadline = Some(secs(20));
    let mut sim = Sim::new(limited, |_, _| Fate::Runs);
    sim.run(60).traces("0s app#0 start; 20s app#0 Term, app#0 exits 143");
    let status = sim.status(&uid());
    assert_eq!(json!([status["phase"], status["reason"]]), json!(["Failed", "DeadlineExceeded"]));
    assert_eq!(status["message"], "Pod was active on the node longer than the specified deadline");
}
