//! The successor of a pod whose manifest changes while the pod is being removed, once or several times.

use super::uid;
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
    sim.run_until(secs(5));
    sim.want(version(2));
    sim.run_until(secs(10));
    sim.want(version(3));
    sim.run_until(secs(34));
    assert_eq!(sim.trace, "   0s app#0 start\n   5s app#0 Term\n", "a change gives no other grace");
    sim.run_until(secs(100));
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n   5s app#0 Term\n  35s app#0 Kill\n  35s app#0 exits 137\n  35s app#0 start\n"
    );
    assert_eq!(command(&sim), "app-3");
    assert_eq!(sim.resumed, [false], "it is the version that a source wanted last");
}

#[test]
fn a_replacement_that_is_superseded_before_its_turn_never_starts() {
    let named = |uid: &str| pod(RestartPolicy::Always).uid(uid);
    let mut sim = Sim::new(named("one"), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    // Each version of a file is another pod with the same name.
    sim.want(named("two"));
    sim.unwant(&"one".into(), None);
    sim.run_until(secs(10));
    sim.want(named("three"));
    sim.unwant(&"two".into(), None);
    sim.run_until(secs(100));
    assert_eq!(
        sim.trace,
        "   0s app#0 start\n   5s one/app#0 Term\n  35s one/app#0 Kill\n  35s one/app#0 exits 137\n  \
         35s three/app#0 start\n"
    );
    assert!(sim.is_gone(&"one".into()) && sim.is_gone(&"two".into()));
}

#[test]
fn a_terminating_pod_whose_manifest_is_changed_back_starts_anew() {
    let mut sim = Sim::new(version(1), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.want(version(2));
    sim.run_until(secs(10));
    sim.want(version(1));
    sim.run_until(secs(100));
    assert_eq!(sim.trace.matches("app#0 start").count(), 2, "{}", sim.trace);
    assert_eq!(command(&sim), "app-1");
    assert_eq!(sim.resumed, [false]);
}
