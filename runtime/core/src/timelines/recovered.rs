//! Agents that find no handover, but only the record on flash and the runs that the supervisor remembers, as
//! after an agent of an earlier version.

use serde_json::{Value, json};

use super::*;

/// The parts of the status that come from the record and the supervisor.
fn restored_status(sim: &Sim) -> Value {
    let status = sim.status(&uid());
    let lists = ["initContainerStatuses", "containerStatuses"];
    let of_container = |one: &Value| {
        let state = &one["state"];
        let code = |state: &Value| state["terminated"]["exitCode"].as_i64();
        // A back-off is forgotten, and with it the state `waiting`.
        let ended = code(state).or(code(&one["lastState"]));
        json!([one["name"], state["running"]["startedAt"], ended, one["restartCount"]])
    };
    let containers = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
    let containers: Vec<Value> = containers.map(of_container).collect();
    let initialized = &condition(&status, "Initialized");
    json!([status["phase"], status["startTime"], containers, initialized["status"]])
}

fn first_is_running(sim: &Sim) -> bool {
    first(sim)["state"]["running"].is_object()
}

#[test]
fn without_a_handover_the_status_comes_from_record_and_supervisor() {
    let ends = [
        ("runs", Fate::Runs),
        ("fails", Fate::Exits(3, secs(4))),
        ("succeeds", Fate::Exits(0, secs(4))),
        ("kills", Fate::OutOfMemory(secs(20))),
    ];
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        for init in [vec![], vec![container("init")], vec![sidecar("proxy")]] {
            for (first, first_fate) in ends.iter().take(if init.is_empty() { 1 } else { ends.len() }) {
                for (then, then_fate) in &ends {
                    for seconds in [3, 12, 40] {
                        let about = format!("{policy:?} {} {first} {then} {seconds}", init.len());
                        let start = || {
                            let (first_fate, then_fate) = (first_fate.clone(), then_fate.clone());
                            let fate = move |name: &str, number: u32| match name {
                                "app" if number == 0 => then_fate.clone(),
                                "app" => Fate::Runs,
                                _ => first_fate.clone(),
                            };
                            let mut sim = Sim::new(pod(policy).init(init.clone()), fate);
                            sim.run(seconds);
                            sim
                        };
                        let (mut left, mut sim) = (start(), start());
                        let before = restored_status(&sim);
                        sim.forget_handovers().restart_agent();
                        assert_eq!(restored_status(&sim), before, "{about}\n{}", sim.log);
                        // The agent does not forget what it has to do.
                        for sim in [&mut left, &mut sim] {
                            sim.run(100);
                        }
                        assert_eq!(phase(&sim), phase(&left), "{about}\n{}", sim.log);
                        assert_eq!(first_is_running(&sim), first_is_running(&left), "{about}\n{}", sim.log);
                    }
                }
            }
        }
    }
}

#[test]
fn a_pod_of_which_this_agent_has_begun_is_not_replaced_by_remains_that_are_found_late() {
    let found = |sim: &Sim| {
        let pod = sim.node.pods().next().expect("it is here").pod().clone();
        let (record, sandbox, attempts) = (None, None, Vec::new());
        let status = StatusHandover::default();
        Observation::Found(Box::new(FoundPod { pod, record, sandbox, processes: false, attempts, status }))
    };
    let index = |sim: &Sim| sim.node.index_of(&uid());
    // While the sandbox is created, while a container runs, and during a back-off.
    for (fate, latency, moment) in [(Fate::Runs, 4, 2), (Fate::Runs, 0, 5), (Fate::Exits(1, secs(1)), 0, 5)] {
        let mut sim = Sim::new(pod(RestartPolicy::Always), move |_, _| fate.clone());
        sim.weather.latency = secs(latency);
        sim.run(moment);
        let before = index(&sim);
        let seen = found(&sim);
        sim.later(secs(0), seen).run(moment);
        assert_eq!(index(&sim), before, "{}", sim.log);
        sim.run(60);
        assert_eq!(sim.status(&uid())["phase"], "Running", "{}", sim.log);
    }
}
