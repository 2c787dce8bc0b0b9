//! The successor of a pod whose manifest changes while the pod is being removed, once or several times.

use super::uid;
use crate::facts::*;
use crate::node::Node;
use crate::pod::PodState;
use crate::sim::*;
use crate::spec::*;

/// The pod in another version.
fn version(number: u32) -> Pod {
    let mut pod = pod(RestartPolicy::Always);
    pod.spec.containers[0].command = Some(vec![format!("app-{number}")]);
    pod
}

/// The version of the existing pod.
fn command(sim: &Sim) -> String {
    let index = sim.node.index_of(&uid()).expect("it is here");
    sim.node.pod(index).expect("it is here").pod().spec.containers[0]
        .command
        .clone()
        .unwrap_or_default()
        .concat()
}

#[test]
fn a_manifest_changed_twice_during_termination_starts_its_last_version() {
    let mut sim = Sim::new(version(1), |_, _| Fate::IgnoresTerm);
    sim.run(5);
    sim.want(version(2));
    sim.run(10);
    sim.want(version(3));
    sim.run(34);
    assert_eq!(sim.story(), "0s app#0 start; 5s app#0 Term", "a change gives no other grace");
    sim.run(100).traces("0s app#0 start; 5s app#0 Term; 35s app#0 Kill, app#0 exits 137, app#0 start");
    assert_eq!(command(&sim), "app-3");
    assert_eq!(sim.resumed, [false], "it is the version that a source wanted last");
}

#[test]
fn a_replacement_that_is_superseded_before_its_turn_never_starts() {
    let named = |uid: &str| pod(RestartPolicy::Always).uid(uid);
    let mut sim = Sim::new(named("one"), |_, _| Fate::IgnoresTerm);
    sim.run(5);
    // Each version of a file is another pod with the same name.
    sim.want(named("two"));
    sim.unwant(&"one".into(), None).run(10);
    sim.want(named("three"));
    sim.unwant(&"two".into(), None).run(100);
    sim.traces(
        "0s app#0 start; 5s one/app#0 Term; 35s one/app#0 Kill, one/app#0 exits 137, three/app#0 start",
    );
    assert!(sim.is_gone(&"one".into()) && sim.is_gone(&"two".into()));
}

#[test]
fn a_terminating_pod_whose_manifest_is_changed_back_starts_anew() {
    let mut sim = Sim::new(version(1), |_, _| Fate::IgnoresTerm);
    sim.run(5);
    sim.want(version(2));
    sim.run(10);
    sim.want(version(1));
    sim.run(100);
    assert_eq!(sim.trace.matches("app#0 start").count(), 2, "{}", sim.trace);
    assert_eq!(command(&sim), "app-1");
    assert_eq!(sim.resumed, [false]);
}

#[test]
fn a_replaced_pod_starts_when_the_last_process_of_the_old_one_is_gone() {
    let mut sim = Sim::new(pod(RestartPolicy::Always).uid("old"), |_, _| Fate::IgnoresTerm);
    sim.run(5);
    sim.want(pod(RestartPolicy::Always).uid("new"));
    sim.unwant(&"old".into(), Some(secs(10))).run(60);
    sim.traces("0s app#0 start; 5s old/app#0 Term; 15s old/app#0 Kill, old/app#0 exits 137, new/app#0 start");
    let removed = sim.log.find("remove sandbox").expect("the old one goes");
    let created = sim.log.rfind("create sandbox").expect("the new one comes");
    assert!(removed < created);
}

#[test]
fn a_pod_wanted_again_while_it_goes_starts_afresh_when_it_is_forgotten() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run(5).unwant(&uid(), Some(secs(10))).run(6);
    sim.want(pod(RestartPolicy::Always));
    let old = sim.node.index_of(&uid());
    sim.run(60);
    assert_ne!(sim.node.index_of(&uid()), old);
    sim.traces("0s app#0 start; 5s app#0 Term; 15s app#0 Kill, app#0 exits 137, app#0 start");
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
        let before = found_pod(one.clone(), at(1), attempts([0, 1]).into());
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
            let exit = exit(0, at(2), at(10));
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
