//! ConfigMaps and Secrets that pods refer to: starts that wait for them, and volumes that follow them.

use super::{Observation, StartFailureReason, first, phase, uid};
use crate::sim::*;
use crate::spec::*;

/// A pod whose container has the variables of `c`.
fn with_variable(optional: bool) -> Pod {
    pod(RestartPolicy::Always).with([with_variables(container("app"), config_map("c", optional))])
}

/// A pod with a volume that shows `c`.
fn with_volume(optional: bool) -> Pod {
    let mut pod = pod(RestartPolicy::Always).with([container("app")]);
    pod.spec.volumes.push(config_volume(config_map("c", optional)));
    pod
}

fn asked_for(sim: &Sim, what: &str) -> usize {
    sim.log.lines().filter(|line| line.contains(what)).count()
}

#[test]
fn a_container_that_needs_a_missing_object_starts_the_moment_it_appears_and_no_timer_runs() {
    let mut sim = Sim::new(with_variable(false), |_, _| Fate::Runs);
    sim.run(1000);
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "CreateContainerConfigError");
    sim.traces("0s app#0 start").change_object("other", true).run(1001).traces("0s app#0 start");
    sim.change_object("c", true).run(1002).traces("0s app#0 start; 1001s app#0 start").shows_phase("Running");
}

#[test]
fn a_container_that_waits_for_what_an_annotation_requests_tries_again_when_the_annotations_change() {
    let mut sim = Sim::new(with_variable(false), |_, _| Fate::Runs);
    sim.run(1000);
    let mut annotated = with_variable(false);
    annotated.annotations.insert("note".into(), "new".into());
    sim.later(secs(0), Observation::Wanted { pod: annotated.into(), record: None, status: None }).run(2000);
    sim.traces("0s app#0 start; 1000s app#0 start");
}

#[test]
fn no_event_says_that_the_image_is_there_if_nobody_has_looked_for_it() {
    let check = |fate: Fate| {
        let mut sim = Sim::new(pod(RestartPolicy::Always).with([container("app")]), move |_, _| fate.clone());
        sim.run(100);
        assert_eq!(first(&sim)["state"]["waiting"]["reason"], "CreateContainerConfigError");
        sim.events
            .iter()
            .map(|event| event.split(':').next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(check(Fate::NotAllowed), ["Failed"]);
    assert_eq!(check(Fate::FailsToStart(StartFailureReason::ObjectNotFound)), ["Pulled", "Failed"]);
}

#[test]
fn an_optional_object_keeps_nothing_back() {
    for pod in [with_variable(true), with_volume(true)] {
        let mut sim = Sim::new(pod, |_, _| Fate::Runs);
        sim.run(5).shows_phase("Running");
    }
}

#[test]
fn a_pod_whose_volume_needs_a_missing_object_is_created_the_moment_it_appears() {
    let mut sim = Sim::new(with_volume(false), |_, _| Fate::Runs);
    sim.run(1000);
    assert_eq!(asked_for(&sim, "create sandbox"), 1);
    assert!(sim.events.iter().any(|event| event.starts_with("FailedMount: ")), "{:?}", sim.events);
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "ContainerCreating");
    sim.change_object("c", true).run(1001);
    assert_eq!((asked_for(&sim, "create sandbox"), phase(&sim).as_str()), (2, "Running"));
}

#[test]
fn volumes_of_a_running_pod_follow_their_objects_and_keep_what_they_showed_of_a_deleted_one() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    sim.change_object("c", true);
    sim.want(with_volume(false));
    sim.run(5);
    for exists in [true, false, true] {
        sim.change_object("c", exists).run(6);
        let world = sim.pods.iter().find(|world| world.pod.uid == uid()).expect("it is here").clone();
        sim.check_volumes(&world);
    }
    let failures = sim.events.iter().filter(|event| event.starts_with("FailedMount")).count();
    assert_eq!(failures, 1);
}

#[test]
fn a_later_agent_looks_whether_objects_have_changed_meanwhile() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    sim.change_object("c", true);
    sim.want(with_volume(false));
    sim.run(5);
    sim.change_object_unseen("c");
    sim.restart_agent().run(6);
    let world = sim.pods.iter().find(|world| world.pod.uid == uid()).expect("it is here").clone();
    sim.check_volumes(&world);
}

#[test]
fn labels_that_a_volume_shows_are_written_anew() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    sim.change_object("c", true);
    sim.want(with_volume(false));
    sim.run(5);
    let before = asked_for(&sim, "update volumes");
    sim.update(&uid(), |pod| drop(pod.labels.insert("a".into(), "b".into()))).run(6);
    assert_eq!(asked_for(&sim, "update volumes"), before + 1);
}
