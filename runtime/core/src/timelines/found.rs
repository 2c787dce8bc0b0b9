//! Agents that find no handover, but only the record on flash and the runs that the supervisor remembers, as
//! after an agent of an earlier version.

use serde_json::{Value, json};

use super::*;

/// The parts of the status that the record and the supervisor tell.
fn told(sim: &Sim) -> Value {
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
                            sim.run_until(secs(seconds));
                            sim
                        };
                        let (mut left, mut sim) = (start(), start());
                        let before = told(&sim);
                        sim.forget_handovers();
                        sim.restart_agent();
                        assert_eq!(told(&sim), before, "{about}\n{}", sim.log);
                        // The agent does not forget what it has to do.
                        for sim in [&mut left, &mut sim] {
                            sim.run_until(secs(100));
                        }
                        assert_eq!(phase(&sim), phase(&left), "{about}\n{}", sim.log);
                        assert_eq!(first_is_running(&sim), first_is_running(&left), "{about}\n{}", sim.log);
                    }
                }
            }
        }
    }
}
