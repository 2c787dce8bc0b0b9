//! Scheduling gates and readiness gates.

use std::rc::Rc;

use serde_json::{Value, json};

use super::*;

/// A pod `web` with these scheduling gates.
fn gated(gates: &[&str]) -> Pod {
    let mut pod = pod(RestartPolicy::Always);
    pod.spec.scheduling_gates = gates.iter().map(|gate| (*gate).to_owned()).collect();
    pod
}

/// A pod `web` with these readiness gates.
fn asking_for(gates: &[&str]) -> Pod {
    let mut pod = pod(RestartPolicy::Always);
    pod.spec.readiness_gates = gates.iter().map(|gate| (*gate).to_owned()).collect();
    pod
}

fn client_condition(kind: &str, status: &str) -> ClientCondition {
    ClientCondition { kind: kind.into(), status: status.into(), ..ClientCondition::default() }
}

/// Sets conditions of `u1`, as a client does.
fn set_conditions(sim: &mut Sim, conditions: &[ClientCondition]) {
    let index = sim.node.index_of(&uid()).expect("it is here");
    let conditions: Rc<[_]> = conditions.into();
    sim.later(secs(0), Observation::Of(index, PodObservation::ClientConditions { conditions }));
}

fn condition(sim: &Sim, kind: &str) -> Value {
    let status = sim.status(&uid());
    let conditions = status["conditions"].as_array().expect("conditions");
    conditions.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// Status, reason, message and time of a condition.
fn condition_fields(sim: &Sim, kind: &str) -> [String; 4] {
    let condition = condition(sim, kind);
    ["status", "reason", "message", "lastTransitionTime"]
        .map(|field| condition[field].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_gated_pod_is_not_started_until_its_last_gate_is_gone() {
    let mut sim = Sim::new(gated(&["a/x", "b/y"]), |_, _| Fate::Runs);
    sim.run(100);
    let expected = json!({
        "phase": "Pending", "observedGeneration": 1, "qosClass": "BestEffort",
        "conditions": [{
            "type": "PodScheduled", "status": "False", "observedGeneration": 1, "lastProbeTime": null,
            "lastTransitionTime": "1970-01-01T00:00:00Z", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }],
    });
    assert_eq!(sim.status(&uid()), expected);

    let is_admitted = |sim: &Sim| sim.node.pods().all(PodState::is_admitted);
    assert!(!is_admitted(&sim));

    let one_less = Pod { generation: 2, ..gated(&["b/y"]) };
    sim.later(secs(0), Observation::Wanted { pod: one_less.into(), record: None, status: None }).run(200);
    assert_eq!((sim.trace.as_str(), &sim.status(&uid())["observedGeneration"]), ("", &json!(2)));

    let free = Pod { generation: 3, ..gated(&[]) };
    sim.later(secs(0), Observation::Wanted { pod: free.into(), record: None, status: None }).run(201);
    sim.traces("200s app#0 start");
    assert!(is_admitted(&sim));
    let status = sim.status(&uid());
    assert_eq!(json!([status["phase"], status["startTime"]]), json!(["Running", "1970-01-01T00:03:20Z"]));
    assert_eq!(condition_fields(&sim, "PodScheduled"), ["True", "", "", "1970-01-01T00:03:20Z"]);
    assert_eq!(condition(&sim, "Ready")["observedGeneration"], 3);
    sim.replay();
}

#[test]
fn the_deadline_of_a_gated_pod_begins_when_its_gates_are_gone() {
    let limited = |gates: &[&str]| {
        let mut pod = gated(gates);
        pod.spec.active_deadline = Some(secs(60));
        pod
    };
    let mut sim = Sim::new(limited(&["a"]), |_, _| Fate::Runs);
    sim.run(300).shows_phase("Pending");
    sim.later(secs(0), Observation::Wanted { pod: limited(&[]).into(), record: None, status: None }).run(359);
    sim.shows_phase("Running").run(362);
    assert_eq!(sim.status(&uid())["reason"], "DeadlineExceeded");
}

#[test]
fn a_deleted_gated_pod_is_removed_without_a_terminal_phase() {
    let mut sim = Sim::new(gated(&["a"]), |_, _| Fate::Runs);
    sim.run(5).unwant(&uid(), None).run(6);
    assert!(sim.is_gone(&uid()), "{}", sim.log);
    assert_eq!((sim.trace.as_str(), sim.events.len()), ("", 0));
    assert!(!sim.log.contains("save"), "{}", sim.log);
}

#[test]
fn adding_a_scheduling_gate_replaces_the_pod() {
    let mut sim = Sim::new(gated(&[]), |_, _| Fate::Runs);
    sim.run(5).later(secs(0), Observation::Wanted { pod: gated(&["a"]).into(), record: None, status: None });
    sim.run(100).traces("0s app#0 start; 5s app#0 Term, app#0 exits 143");
    assert_eq!(condition(&sim, "PodScheduled")["reason"], "SchedulingGated");
}

#[test]
fn gated_pods_reserve_no_resources_until_their_gates_are_removed() {
    let mut sim = Sim::new(gated(&["a"]).named("waits"), |_, _| Fate::Runs);
    for number in 0..MAX_PODS {
        let name = format!("p{number}");
        sim.want(pod(RestartPolicy::Always).uid(&name).named(&name));
    }
    sim.run(5);
    let phases = |sim: &Sim| sim.node.pods().filter(|pod| pod.phase() == PodPhase::Failed).count();
    assert_eq!(phases(&sim), 0);
    let free = gated(&[]).named("waits");
    sim.later(secs(0), Observation::Wanted { pod: free.into(), record: None, status: None }).run(10);
    let status = sim.status(&uid());
    assert_eq!(json!([status["phase"], status["reason"]]), json!(["Failed", "OutOfpods"]));
    let message =
        "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110";
    assert_eq!(status["message"], message);
}

#[test]
fn labels_and_annotations_change_in_place() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(5);
    let mut labelled = pod(RestartPolicy::Always);
    labelled.labels.insert("app".into(), "web".into());
    labelled.annotations.insert("note".into(), "new".into());
    sim.later(secs(0), Observation::Wanted { pod: labelled.into(), record: None, status: None }).run(100);
    sim.traces("0s app#0 start");
    let index = sim.node.index_of(&uid()).expect("it is here");
    assert_eq!(sim.node.pod(index).expect("it is here").pod().labels.len(), 1);
}

#[test]
fn a_pod_is_ready_when_each_of_its_readiness_gates_is_true() {
    let mut sim = Sim::new(asking_for(&["example.com/a", "example.com/b"]), |_, _| Fate::Runs);
    sim.run(5);
    assert_eq!(condition_fields(&sim, "ContainersReady"), ["True", "", "", "1970-01-01T00:00:00Z"]);
    let missing = "corresponding condition of pod readiness gate \"example.com/a\" does not exist., \
                   corresponding condition of pod readiness gate \"example.com/b\" does not exist.";
    let since_0 = "1970-01-01T00:00:00Z";
    assert_eq!(condition_fields(&sim, "Ready"), ["False", "ReadinessGatesNotReady", missing, since_0]);

    set_conditions(
        &mut sim,
        &[client_condition("example.com/a", "True"), client_condition("example.com/b", "Unknown")],
    );
    sim.run(10);
    let closed = "the status of pod readiness gate \"example.com/b\" is not \"True\", but Unknown";
    assert_eq!(condition_fields(&sim, "Ready"), ["False", "ReadinessGatesNotReady", closed, since_0]);
    // Client-set conditions come first, as a kubelet lists them.
    let status = sim.status(&uid());
    assert_eq!(status["conditions"][0]["type"], "example.com/a");
    assert_eq!(status["conditions"][2]["type"], "PodReadyToStartContainers");

    set_conditions(
        &mut sim,
        &[client_condition("example.com/a", "True"), client_condition("example.com/b", "True")],
    );
    sim.run(20);
    assert_eq!(condition_fields(&sim, "Ready"), ["True", "", "", "1970-01-01T00:00:10Z"]);
    set_conditions(&mut sim, &[client_condition("example.com/b", "True")]);
    sim.run(30);
    assert_eq!(condition_fields(&sim, "Ready")[0..2], ["False", "ReadinessGatesNotReady"]);
    assert_eq!(condition_fields(&sim, "ContainersReady")[3], since_0, "nothing became of the containers");
    sim.replay();
}

#[test]
fn an_unready_container_is_reported_before_an_unmet_readiness_gate() {
    let mut unready = asking_for(&["a"]);
    unready.spec.containers[0].readiness_probe = Some(exec_probe());
    let mut sim = Sim::new(unready, |_, _| Fate::Runs).probes(|_, _, _| ProbeResult::Failure("no".into()));
    sim.run(5);
    let words = "containers with unready status: [app]";
    for kind in ["Ready", "ContainersReady"] {
        assert_eq!(condition_fields(&sim, kind)[0..3], ["False", "ContainersNotReady", words]);
    }
}

#[test]
fn client_conditions_survive_restarts_and_are_written_to_flash_sparingly() {
    let mut sim = Sim::new(asking_for(&["a"]), |_, _| Fate::Runs);
    sim.run(60);
    let saves = sim.of(&uid()).saves;
    set_conditions(&mut sim, &[client_condition("a", "True")]);
    sim.run(61);
    assert_eq!(sim.of(&uid()).saves, saves + 1, "a gate that opens is on flash at once");
    set_conditions(&mut sim, &[client_condition("a", "True")]);
    sim.run(62);
    // A gate that keeps opening and closing is written no more often than that.
    for second in 62..82 {
        set_conditions(&mut sim, &[client_condition("a", if second % 2 == 0 { "False" } else { "True" })]);
        sim.run(second + 1);
    }
    assert!(sim.of(&uid()).saves <= saves + 3, "{}", sim.log);
    sim.run(100);
    let saves = sim.of(&uid()).saves - 1;
    // A condition that is no gate of the pod is written later, like everything that is not urgent.
    set_conditions(&mut sim, &[client_condition("a", "True"), client_condition("b", "True")]);
    sim.run(105);
    assert_eq!(sim.of(&uid()).saves, saves + 1);
    sim.run(500);
    assert_eq!(sim.of(&uid()).saves, saves + 2);

    sim.restart_agent().run(510);
    assert_eq!(
        (condition_fields(&sim, "Ready")[0].as_str(), condition_fields(&sim, "b")[0].as_str()),
        ("True", "True")
    );
    sim.reboot().run(520);
    assert_eq!(
        (condition_fields(&sim, "Ready")[0].as_str(), condition_fields(&sim, "b")[0].as_str()),
        ("True", "True")
    );
}

#[test]
fn client_conditions_of_a_finished_pod_are_kept() {
    let once = |_: &str, _| Fate::Exits(0, secs(1));
    let mut sim = Sim::new(pod(RestartPolicy::Never), once);
    sim.run(20).shows_phase("Succeeded");
    set_conditions(&mut sim, &[client_condition("example.com/billed", "True")]);
    sim.run(400).restart_agent().run(410);
    let expected = ("Succeeded", "True");
    assert_eq!((phase(&sim).as_str(), condition_fields(&sim, "example.com/billed")[0].as_str()), expected);
}

#[test]
fn the_next_agent_keeps_the_transition_times_of_unchanged_conditions() {
    let pod = Rc::new(pod(RestartPolicy::Always));
    let run = FIRST_RUN;
    let since = |seconds| crate::time::Moment::ThisBoot(at(seconds));
    let conditions = vec![
        FoundCondition { kind: ConditionType::Ready, status: true, since: since(7) },
        FoundCondition { kind: ConditionType::ContainersReady, status: false, since: since(8) },
        FoundCondition { kind: ConditionType::PodScheduled, status: true, since: since(3) },
    ];
    let attempt = FoundAttempt {
        attempt: run,
        container: started(at(2), run),
        exit: None,
        health: Health { started: true, ready: true, ..Health::default() },
    };
    let status = StatusHandover {
        conditions,
        client_conditions: Some(vec![client_condition("a", "True")]),
        state: None,
    };
    let found = FoundPod { status, ..found_pod(pod, at(1), vec![attempt]) };
    let mut node = Node::new();
    node.observe(at(100), Observation::Found(Box::new(found)));
    let index = node.index_of(&uid()).expect("it is here");
    let state = node.pod(index).expect("it is here");
    assert_eq!(state.client_conditions()[..], [client_condition("a", "True")], "on flash or not");
    let status = crate::status::of(state, crate::time::Anchor(0), None);
    assert_eq!(status["startTime"], "1970-01-01T00:00:03Z", "when it was scheduled, not when it was ready");
    let left = state.handover().conditions;
    let of = |kind| left.iter().find(|known| known.kind == kind).expect("one of each");
    assert_eq!(of(ConditionType::Ready).since, since(7));
    assert_eq!(of(ConditionType::ContainersReady).since, since(100), "it was not so before");
    assert_eq!(of(ConditionType::PodScheduled).since, since(3), "it was accepted then, record or not");
}

#[test]
fn a_pod_whose_gates_go_while_no_agent_looks_is_accepted_by_the_next_one() {
    let mut sim = Sim::new(gated(&["a"]), |_, _| Fate::Runs);
    // The client-set condition is in the record by then.
    let said = ClientCondition { kind: "b".into(), status: "True".into(), ..ClientCondition::default() };
    sim.set_client_conditions(&uid(), vec![said]).run(100);
    assert!(sim.pods[0].record.is_some());
    let mut free = (*sim.pods[0].pod).clone();
    free.spec.scheduling_gates.clear();
    free.spec.active_deadline = Some(secs(60));
    sim.pods[0].pod = free.into();
    sim.restart_agent().run(155);
    assert_eq!(phase(&sim), "Running", "its deadline began when its gates were gone");
    assert_eq!(sim.status(&uid())["startTime"], "1970-01-01T00:01:40Z");
    sim.run(162);
    assert_eq!(sim.status(&uid())["reason"], "DeadlineExceeded");
}
