//! Ephemeral containers: they inspect an existing pod, and do not affect it.

use std::time::Duration;

use serde_json::json;

use super::{condition, first, phase, uid};
use crate::facts::*;
use crate::sim::*;
use crate::spec::*;

/// The lines of the trace for a container.
fn of<'a>(sim: &'a Sim, name: &str) -> Vec<&'a str> {
    sim.trace.lines().filter(|line| line[6..].starts_with(name)).collect()
}

/// `app` runs, and `look` has run since second five.
fn looked_into(policy: RestartPolicy, fate: Fate) -> Sim {
    let mut sim =
        Sim::new(pod(policy), move |name, _| if name == "look" { fate.clone() } else { Fate::Runs });
    sim.run(5).debug(&uid(), container("look")).run(6);
    sim
}

#[test]
fn an_ephemeral_container_runs_once_without_affecting_the_pods_status() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        let mut sim = looked_into(policy, Fate::Exits(3, secs(10)));
        let running = shown(&sim, "look");
        assert_eq!(running["state"], json!({ "running": { "startedAt": "1970-01-01T00:00:05Z" } }));
        assert_eq!((&running["ready"], running.get("started")), (&false.into(), None));
        let health = sim.node.pods().next().map(|pod| pod.health(ContainerIndex(1)));
        assert_eq!(health, Some(Health::default()), "an ephemeral container is neither started nor ready");
        assert_eq!(condition(&sim.status(&uid()), "Ready")["status"], "True");
        assert_eq!(condition(&sim.status(&uid()), "Ready")["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(condition(&sim.status(&uid()), "Initialized")["status"], "True");
        assert_eq!(sim.status(&uid())["qosClass"], "BestEffort");
        sim.run(900);
        assert_eq!(
            sim.story(),
            "0s app#0 start; 5s look#0 start; 15s look#0 exits 3",
            "{policy:?}: whatever it ends with"
        );
        sim.shows_phase("Running");
        let over = shown(&sim, "look");
        assert_eq!(over["state"]["terminated"]["exitCode"], 3);
        assert_eq!(json!([over["restartCount"], over["lastState"]]), json!([0, {}]));
        sim.reports("Started: Container started");
    }
}

#[test]
fn an_ephemeral_container_starts_before_its_pod_is_initialised() {
    let mut sim = Sim::new(
        pod(RestartPolicy::Always).init([container("first")]),
        scripted("first exits 1 after 4s, look exits 0 after 100s"),
    );
    sim.run(1).debug(&uid(), container("look")).run(2);
    assert!(shown(&sim, "look")["state"]["running"].is_object());
    sim.shows_phase("Pending");
    let expected = "containers with incomplete status: [first]";
    assert_eq!(condition(&sim.status(&uid()), "Initialized")["message"], expected);
    sim.fates(|name, _| if name == "first" { Fate::Exits(0, secs(1)) } else { Fate::Runs }).run(60);
    sim.shows_phase("Running");
    assert_eq!(condition(&sim.status(&uid()), "Ready")["status"], "True");
}

#[test]
fn the_start_of_an_ephemeral_container_is_recorded_before_it_runs() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(60).latency(3).debug(&uid(), container("look")).run(60);
    assert_eq!(of(&sim, "look"), Vec::<&str>::new(), "the card is slow");
    sim.run(70);
    assert_eq!(of(&sim, "look").len(), 1, "{}", sim.trace);
    let record = sim.of(&uid()).record.clone().expect("it was written");
    let look = &record.containers[1];
    assert_eq!((look.name.as_str(), look.attempts, look.decided.is_some()), ("look", 1, true));
}

#[test]
fn deleting_a_pod_stops_its_ephemeral_container_without_delaying_others() {
    let served = pod(RestartPolicy::Always).init([sidecar("proxy")]);
    let mut sim = Sim::new(served, |name, _| if name == "look" { Fate::IgnoresTerm } else { Fate::Runs });
    sim.run(5).debug(&uid(), container("look")).run(10).unwant(&uid(), None).run(60);
    sim.traces(
        "0s proxy#0 start, app#0 start; 5s look#0 start; 10s app#0 Term, look#0 Term, app#0 exits 143, \
         proxy#0 Term, proxy#0 exits 143; 40s look#0 Kill, look#0 exits 137",
    );
    assert!(sim.is_gone(&uid()));
}

#[test]
fn a_completed_pod_stops_its_ephemeral_container_before_it_succeeds() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), scripted("app exits 0 after 20s"));
    sim.run(5).debug(&uid(), container("look")).run(19).shows_phase("Running").run(60);
    sim.traces("0s app#0 start; 5s look#0 start; 20s app#0 exits 0, look#0 Term, look#0 exits 143");
    assert_eq!(phase(&sim), "Succeeded", "how it ended counts for nothing");
    assert_eq!(shown(&sim, "look")["state"]["terminated"]["exitCode"], 143);
}

#[test]
fn an_ephemeral_container_never_starts_in_a_finished_pod() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(1, secs(1)));
    sim.run(20).shows_phase("Failed").debug(&uid(), container("look")).run(100);
    assert_eq!(of(&sim, "look"), Vec::<&str>::new());
    assert_eq!(shown(&sim, "look")["state"], json!({ "waiting": { "reason": "ContainerCreating" } }));
    sim.restart_agent().reboot().run(200);
    assert_eq!((phase(&sim), of(&sim, "look").len()), ("Failed".into(), 0));
}

#[test]
fn an_ephemeral_container_is_not_restarted_in_a_new_sandbox() {
    let mut sim = looked_into(RestartPolicy::Always, Fate::Runs);
    sim.lose_sandbox(&uid()).run(100);
    assert_eq!(
        sim.story(),
        "0s app#0 start; 5s look#0 start; 6s app#1 start",
        "what the pod is there for does"
    );
    let terminated = &shown(&sim, "look")["state"]["terminated"];
    assert_eq!(json!([terminated["exitCode"], terminated["reason"]]), json!([137, "ContainerStatusUnknown"]));
    assert_eq!(json!([phase(&sim), first(&sim)["restartCount"]]), json!(["Running", 1]));
    sim.debug(&uid(), container("again")).run(110);
    assert!(shown(&sim, "again")["state"]["running"].is_object(), "another may");
}

#[test]
fn an_ephemeral_container_is_not_restarted_after_a_power_cut() {
    for ended in [false, true] {
        let fate = if ended { Fate::Exits(4, secs(2)) } else { Fate::Runs };
        let mut sim = looked_into(RestartPolicy::Always, fate);
        sim.run(400).reboot().run(500).restart_agent().run(900);
        assert_eq!(of(&sim, "look").iter().filter(|line| line.ends_with("start")).count(), 1);
        let terminated = &shown(&sim, "look")["state"]["terminated"];
        let expected = if ended { (4, "Error") } else { (137, "ContainerStatusUnknown") };
        assert_eq!(json!([terminated["exitCode"], terminated["reason"]]), json!([expected.0, expected.1]));
        assert_eq!(shown(&sim, "look")["restartCount"], 0);
        sim.shows_phase("Running");
    }
}

#[test]
fn an_ephemeral_container_waits_for_its_image_across_sandboxes() {
    let mut sim = looked_into(RestartPolicy::Always, Fate::FailsToStart(StartFailureReason::ErrImagePull));
    assert_eq!(shown(&sim, "look")["state"]["waiting"]["reason"], "ErrImagePull");
    sim.run(20);
    let waiting = &shown(&sim, "look")["state"]["waiting"];
    assert_eq!(
        json!([waiting["reason"], waiting["message"]]),
        json!(["ImagePullBackOff", "Back-off pulling image \"app:1\": ErrImagePull: it cannot be"])
    );
    sim.shows_phase("Running").run(400).lose_sandbox(&uid()).run(500).reboot().run(600);
    sim.fates(|_, _| Fate::Exits(0, secs(1))).later(secs(0), Observation::ImagesChanged).run(610);
    assert_eq!(shown(&sim, "look")["state"]["terminated"]["reason"], "Completed", "{}", sim.trace);
}

#[test]
fn the_next_agent_adopts_a_running_ephemeral_container() {
    let mut sim = looked_into(RestartPolicy::Always, Fate::Exits(7, secs(60)));
    sim.restart_agent().run(30);
    assert!(shown(&sim, "look")["state"]["running"].is_object());
    sim.restart_agent().run(100).restart_agent().run(200);
    assert_eq!(of(&sim, "look"), ["   5s look#0 start", "  65s look#0 exits 7"]);
    assert_eq!(shown(&sim, "look")["state"]["terminated"]["exitCode"], 7);
}

#[test]
fn an_ephemeral_start_interrupted_by_an_agent_restart_is_completed() {
    let mut tried = [0, 0];
    for seed in 0..20 {
        let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
        sim.chance = Chance(seed);
        sim.run(30).latency(2).debug(&uid(), container("look"));
        // Some time between the decision and the report that the container runs.
        sim.run(31).restart_agent().latency(0).run(60);
        assert!(shown(&sim, "look")["state"]["running"].is_object(), "{seed}\n{}", sim.log);
        let starts = of(&sim, "look").len();
        tried[starts - 1] += 1;
    }
    assert!(
        tried.iter().all(|count| *count > 0),
        "some were known to the supervisor, some were not: {tried:?}"
    );
}

#[test]
fn ephemeral_containers_start_in_order_and_keep_their_indexes() {
    let mut sim = looked_into(RestartPolicy::Always, Fate::Runs);
    sim.latency(2).debug(&uid(), container("b")).debug(&uid(), container("a")).run(60);
    let starts: Vec<&str> = sim.trace.lines().map(|line| &line[6..]).collect();
    assert_eq!(starts, ["app#0 start", "look#0 start", "b#0 start", "a#0 start"]);
    let status = sim.status(&uid());
    let names = status["ephemeralContainerStatuses"].as_array().expect("a list").iter();
    let expected = ["a", "b", "look"];
    assert_eq!(names.map(|one| one["name"].as_str().expect("a name")).collect::<Vec<_>>(), expected);
    let spec = &sim.of(&uid()).pod.spec;
    let paths: Vec<String> = spec.container_indexes().map(|index| spec.field_path(index)).collect();
    assert_eq!(
        paths,
        [
            "spec.containers{app}",
            "spec.ephemeralContainers{look}",
            "spec.ephemeralContainers{b}",
            "spec.ephemeralContainers{a}"
        ]
    );
}

#[test]
fn a_replacement_under_the_same_uid_has_no_ephemeral_containers() {
    let mut sim = looked_into(RestartPolicy::Always, Fate::Runs);
    let mut other = pod(RestartPolicy::Always).debugged([container("look")]);
    other.spec.containers[0].command = Some(vec!["other".into()]);
    sim.want(other);
    sim.run(100);
    sim.traces(
        "0s app#0 start; 5s look#0 start; 6s app#0 Term, look#0 Term, app#0 exits 143, look#0 exits 143, \
         app#0 start",
    );
    assert!(sim.status(&uid())["ephemeralContainerStatuses"].is_null());
}

#[test]
fn a_rejected_pod_neither_runs_nor_shows_ephemeral_containers() {
    let mut sim = Sim::new(pod(RestartPolicy::Always).uid("full-0"), |_, _| Fate::Runs);
    for number in 1..=MAX_PODS {
        sim.want(pod(RestartPolicy::Always).uid(&format!("full-{number}")).named(&format!("full-{number}")));
    }
    let refused: Uid = format!("full-{MAX_PODS}").as_str().into();
    sim.run(10);
    assert_eq!(sim.status(&refused)["reason"], "OutOfpods");
    sim.debug(&refused, container("look")).run(20);
    assert!(!sim.trace.contains("look"));
    assert!(sim.status(&refused)["ephemeralContainerStatuses"].is_null());
}

#[test]
fn the_active_deadline_stops_ephemeral_containers_too() {
    let mut with_deadline = pod(RestartPolicy::Always);
    with_deadline.spec.active_deadline = Some(secs(30));
    let mut sim = Sim::new(with_deadline, |_, _| Fate::Runs);
    sim.run(5).debug(&uid(), container("look")).run(100);
    assert_eq!(of(&sim, "look"), ["   5s look#0 start", "  30s look#0 Term", "  30s look#0 exits 143"]);
    assert_eq!(json!([phase(&sim), sim.status(&uid())["reason"]]), json!(["Failed", "DeadlineExceeded"]));
}

#[test]
fn an_ephemeral_start_is_completed_after_sandbox_and_agent_were_lost() {
    let mut tried = 0;
    for seed in 0..600 {
        let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
        let mut chance = Chance(seed);
        let mut after = |most: u64| Duration::from_millis(chance.below(most));
        let (lost, died) = (after(2_500), after(9_000));
        sim.chance = Chance(seed);
        sim.run(30).latency(2).debug(&uid(), container("look")).run_until(secs(30) + lost);
        sim.lose_sandbox(&uid());
        if !sim.of(&uid()).begun[1].is_empty() {
            continue;
        }
        sim.run_until(secs(30) + lost + died);
        // The record may be of the previous sandbox by then, and nothing shows that.
        if sim.of(&uid()).begun[1].is_empty() {
            continue;
        }
        sim.restart_agent().latency(0).run(100);
        assert!(shown(&sim, "look")["state"]["running"].is_object(), "{seed}\n{}", sim.log);
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn an_ephemeral_container_that_never_started_is_not_reported_as_terminated() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Never), scripted("look fails with ErrImagePull, * exits 0 after 20s"));
    sim.run(5).debug(&uid(), container("look")).run(60).shows_phase("Succeeded");
    assert_eq!(shown(&sim, "look")["state"], json!({ "waiting": { "reason": "ContainerCreating" } }));
}

#[test]
fn an_unstarted_ephemeral_container_stays_waiting_after_a_power_cut() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(20)));
    sim.run(18);
    // The SD card is slow: the start is not on flash before the pod has finished.
    sim.latency(4).debug(&uid(), container("look")).run(60);
    let waits = json!({ "waiting": { "reason": "ContainerCreating" } });
    assert_eq!((phase(&sim), &shown(&sim, "look")["state"]), ("Succeeded".into(), &waits), "{}", sim.log);
    sim.reboot().run(70);
    assert_eq!((phase(&sim), &shown(&sim, "look")["state"]), ("Succeeded".into(), &waits), "{}", sim.log);
}

#[test]
fn an_ephemeral_container_does_not_change_the_qos_class_of_its_pod() {
    let mut app = container("app");
    let some = Some(Quantity::from_milli(1000));
    app.resources = ResourceRequirements {
        cpu_limit: some.clone(),
        cpu_request: some.clone(),
        memory_limit: some.clone(),
        memory_request: some,
        ..ResourceRequirements::default()
    };
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Runs);
    sim.debug(&uid(), container("look")).run(5);
    assert!(shown(&sim, "look")["state"]["running"].is_object());
    assert_eq!(sim.status(&uid())["qosClass"], "Guaranteed");
}

#[test]
fn the_next_agent_does_not_rerun_an_ephemeral_container_of_a_lost_sandbox() {
    let mut sim = looked_into(RestartPolicy::Always, Fate::Exits(3, secs(10)));
    sim.run(60).lose_sandbox(&uid()).run(90).restart_agent().run(200);
    assert_eq!(of(&sim, "look"), ["   5s look#0 start", "  15s look#0 exits 3"], "{}", sim.log);
    assert!(shown(&sim, "look")["state"]["terminated"].is_object(), "{}", sim.log);
}

#[test]
fn recording_an_ephemeral_container_does_not_delay_restarting_all_containers() {
    let mut restarting = pod(RestartPolicy::Never);
    let rule = RestartRule { action: RestartAction::RestartAllContainers, within: true, codes: vec![42] };
    let own = OwnRestart { policy: RestartPolicy::Never, rules: vec![rule] };
    restarting.spec.containers[0].restart = Some(std::rc::Rc::new(own));
    let mut sim = Sim::new(restarting, scripted("app#0 exits 42 after 5s"));
    sim.run(4);
    // The SD card is full for a while: the restart is due before the run is on flash.
    sim.failures(100).debug(&uid(), container("look")).run(4).failures(0).run(60);
    assert_eq!(of(&sim, "app").last().map(|line| line.trim_start().ends_with("app#1 start")), Some(true));
    assert_eq!(of(&sim, "look").len(), 1, "{}", sim.trace);
}
