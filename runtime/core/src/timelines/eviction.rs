//! Eviction of pods when the node has too little of a resource, and admission under pressure.

use super::*;
use crate::pressure::{NodeCondition, StarvedResource};
use crate::spec::placement::Toleration;

const MIB: u64 = 1 << 20;

/// A pod `name` whose container requests this much memory, in MiB; 0 for no request.
fn asking(name: &str, request: u64) -> Pod {
    let mut app = container("app");
    app.resources.memory_request = (request > 0).then(|| Quantity::binary(request * MIB));
    pod(RestartPolicy::Always).uid(name).named(name).with([app])
}

/// A simulation in which these pods run; the name, the request in MiB and the priority of each.
fn with_pods(pods: &[(&str, u64, i32)]) -> Sim {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm);
    for (name, request, priority) in pods {
        let mut pod = asking(name, *request);
        pod.priority = *priority;
        sim.want(pod);
    }
    sim.run(5);
    sim
}

/// Reports a shortage, and what pods use, in MiB.
fn starve(sim: &mut Sim, resource: StarvedResource, usage: &[(&str, u64)]) {
    let of = |(name, used): &(&str, u64)| {
        let index = sim.node.index_of(&(*name).into()).expect("it is known");
        (index, PodUsage { total: used * MIB, containers: vec![("app".into(), used * MIB)] })
    };
    let usage = usage.iter().map(of).collect();
    let (threshold, available, measured_at) = (100 * MIB, 80 * MIB, sim.now);
    let starved = Starved { resource, threshold, available, measured_at, usage };
    sim.later(secs(0), Observation::Starved(Box::new(starved)));
    let end = secs(sim.now.0 / 1_000_000_000 + 20);
    sim.run_until(end);
}

/// The evicted pods, in the order of their events.
fn evicted(sim: &Sim) -> usize {
    sim.events.iter().filter(|event| event.starts_with("Evicted: ")).count()
}

fn reason(sim: &Sim, name: &str) -> String {
    let status = sim.status(&name.into());
    format!("{} {}", status["phase"].as_str().unwrap_or_default(), status["reason"].as_str().unwrap_or("-"))
}

#[test]
fn a_start_under_way_in_an_evicted_pod_is_given_up() {
    let mut sim = Sim::empty(|_, _| Fate::HangsAtStart);
    sim.want(asking("web", 1));
    sim.run(5);
    starve(&mut sim, StarvedResource::Memory, &[("web", 50)]);
    sim.traces("0s app#0 start; 6s app#0 Kill, app#0 is given up");
    assert_eq!(reason(&sim, "web"), "Failed Evicted");
}

#[test]
fn a_pod_above_its_request_is_evicted_with_the_texts_of_the_kubelet() {
    let mut sim = with_pods(&[("within", 400, 0), ("above", 100, 0)]);
    starve(&mut sim, StarvedResource::Memory, &[("within", 350), ("above", 300)]);
    assert_eq!(
        (reason(&sim, "within"), reason(&sim, "above")),
        ("Running -".into(), "Failed Evicted".into())
    );
    let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. Container app \
                   was using 300Mi, request is 100Mi, has larger consumption of memory. ";
    let status = sim.status(&"above".into());
    assert_eq!(status["message"], message);
    assert!(sim.events.contains(&format!("Evicted: {message}")), "{:?}", sim.events);
    let conditions = status["conditions"].as_array().expect("conditions");
    let target = conditions.iter().find(|one| one["type"] == "DisruptionTarget").expect("it was disrupted");
    assert_eq!(json!([target["status"], target["reason"]]), json!(["True", "TerminationByKubelet"]));
    assert_eq!(target["message"], message);
    // The grace period is one second, of which the signal and the kill are seen.
    sim.traces_last("5s above/app#0 Term; 7s above/app#0 Kill, above/app#0 exits 137").replay();
    // It stays evicted after a reboot.
    sim.reboot().run(100);
    assert_eq!(reason(&sim, "above"), "Failed Evicted");
}

#[test]
fn pods_are_ranked_by_requests_then_priority_then_usage_above_the_request() {
    use StarvedResource::{EphemeralStorage, Inodes, Memory, Pids};
    let pods = [("first", 0, 5), ("second", 100, 1), ("third", 0, 1)];
    for (resource, usage, expected) in [
        // Within its request.
        (Memory, [("first", 9), ("second", 99), ("third", 8)], "third"),
        // Above its request by more.
        (Memory, [("first", 900), ("second", 120), ("third", 10)], "second"),
        (Memory, [("first", 900), ("second", 105), ("third", 10)], "third"),
        // Requests of memory are no requests of anything else.
        (EphemeralStorage, [("first", 900), ("second", 11), ("third", 10)], "second"),
        (Inodes, [("first", 900), ("second", 11), ("third", 10)], "second"),
        (Pids, [("first", 900), ("second", 0), ("third", 10)], "third"),
    ] {
        let mut sim = with_pods(&pods);
        starve(&mut sim, resource, &usage);
        assert_eq!(reason(&sim, expected), "Failed Evicted", "{resource:?} {usage:?}");
        assert_eq!(evicted(&sim), 1);
    }
    // A critical pod is never evicted.
    let mut sim = with_pods(&[("other", 0, 9), ("critical", 0, 2_000_000_000)]);
    starve(&mut sim, Memory, &[("other", 1), ("critical", 900)]);
    starve(&mut sim, Memory, &[("critical", 900)]);
    assert_eq!(
        (reason(&sim, "other"), reason(&sim, "critical")),
        ("Failed Evicted".into(), "Running -".into())
    );
    assert_eq!(evicted(&sim), 1);
    sim.replay();
}

#[test]
fn a_pod_that_began_after_the_pods_were_measured_is_evicted_last() {
    use StarvedResource::{EphemeralStorage, Inodes, Memory, Pids};
    for resource in [Memory, EphemeralStorage, Inodes, Pids] {
        let mut sim = with_pods(&[("full", 0, 5), ("small", 2000, 9)]);
        sim.want(asking("new", 0));
        sim.run(10);
        let usage = [("full", 900), ("small", 1)];
        starve(&mut sim, resource, &usage);
        assert_eq!(
            (reason(&sim, "full"), reason(&sim, "new")),
            ("Failed Evicted".into(), "Running -".into())
        );
        starve(&mut sim, resource, &usage);
        assert_eq!(
            (reason(&sim, "small"), reason(&sim, "new")),
            ("Failed Evicted".into(), "Running -".into())
        );
        // If no pod could be measured, one of them ends all the same.
        starve(&mut sim, resource, &usage);
        assert_eq!(reason(&sim, "new"), "Failed Evicted");
        sim.replay();
    }
}

#[test]
fn a_pod_between_two_runs_of_its_container_is_evicted_for_its_files() {
    use StarvedResource::{EphemeralStorage, Inodes, Memory};
    for resource in [Memory, EphemeralStorage, Inodes] {
        let mut sim =
            Sim::empty(|name, _| if name == "crash" { Fate::Exits(1, secs(1)) } else { Fate::Runs });
        let crashing =
            || pod(RestartPolicy::Always).uid("crashing").named("crashing").with([container("crash")]);
        for pod in [asking("one", 0), crashing(), asking("two", 0)] {
            sim.want(pod);
        }
        sim.run(50);
        let waiting = &sim.status(&"crashing".into())["containerStatuses"][0]["state"]["waiting"];
        assert_eq!(waiting["reason"], "CrashLoopBackOff");
        starve(&mut sim, resource, &[("one", 1), ("crashing", 900), ("two", 2)]);
        assert_eq!((reason(&sim, "crashing"), evicted(&sim)), ("Failed Evicted".into(), 1), "{resource:?}");
        // Without a process and without files, it frees nothing.
        let mut sim = Sim::empty(|_, _| Fate::Exits(1, secs(1)));
        sim.want(crashing());
        sim.run(50);
        starve(&mut sim, resource, &[("crashing", 0)]);
        assert_eq!(evicted(&sim), 0);
        sim.replay();
    }
}

#[test]
fn a_pod_that_is_ending_is_evicted_within_the_shortest_grace_period() {
    for resource in [StarvedResource::Memory, StarvedResource::EphemeralStorage] {
        let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm);
        let mut slow = asking("slow", 0);
        slow.spec.termination_grace_period = secs(3600);
        sim.want(slow);
        sim.want(asking("other", 0));
        sim.run(5).unwant(&"slow".into(), None).run(10);
        starve(&mut sim, resource, &[("slow", 900), ("other", 1)]);
        assert!(sim.trace.contains("  12s slow/app#0 Kill\n"), "{}", sim.trace);
        assert!(sim.is_gone(&"slow".into()));
        assert_eq!((reason(&sim, "other"), evicted(&sim)), ("Running -".into(), 1), "{resource:?}");
        sim.replay();
    }
}

#[test]
fn a_finished_pod_whose_sidecar_goes_on_ends_at_once_and_stays_finished() {
    let mut sim =
        Sim::empty(|name, _| if name == "app" { Fate::Exits(0, secs(1)) } else { Fate::IgnoresTerm });
    let mut job = pod(RestartPolicy::Never).uid("job").named("job").with([container("app")]);
    job.spec.termination_grace_period = secs(3600);
    job.spec.init_containers = vec![sidecar("log")];
    sim.want(job);
    sim.run(10);
    starve(&mut sim, StarvedResource::Inodes, &[("job", 900)]);
    assert_eq!((reason(&sim, "job"), evicted(&sim)), ("Succeeded -".into(), 1), "{}", sim.trace);
    starve(&mut sim, StarvedResource::Inodes, &[("job", 900)]);
    assert_eq!(evicted(&sim), 1);
}

#[test]
fn no_other_pod_is_evicted_while_an_evicted_one_ends() {
    let mut sim = with_pods(&[("one", 0, 0), ("two", 0, 0)]);
    for second in 0..2 {
        let starved = Starved {
            resource: StarvedResource::Pids,
            threshold: 9,
            available: 1,
            measured_at: sim.now,
            usage: Vec::new(),
        };
        sim.later(secs(second), Observation::Starved(Box::new(starved)));
    }
    sim.run(20);
    assert_eq!((reason(&sim, "one"), reason(&sim, "two")), ("Failed Evicted".into(), "Running -".into()));
    let expected = "The node was low on resource: pids. Threshold quantity: 9, available: 1. ";
    assert_eq!(sim.status(&"one".into())["message"], expected);
    starve(&mut sim, StarvedResource::Pids, &[]);
    assert_eq!(reason(&sim, "two"), "Failed Evicted");
}

#[test]
fn a_node_under_pressure_rejects_pods_by_their_class_their_tolerations_and_its_conditions() {
    use NodeCondition::{DiskPressure, MemoryPressure};
    let toleration = Toleration {
        key: "node.kubernetes.io/memory-pressure".into(),
        exists: true,
        ..Toleration::default()
    };
    let check = |pressure: &[NodeCondition], pod: Pod| {
        let mut sim =
            Sim::empty(|_, _| Fate::Runs).on(NodeInfo { pressure: pressure.to_vec(), ..NodeInfo::default() });
        let uid = sim.want(pod);
        sim.run(5);
        sim.status(&uid)["message"].as_str().unwrap_or_default().to_owned()
    };
    let tolerant = || {
        let mut pod = asking("web", 0);
        pod.spec.placement.tolerations.push(toleration.clone());
        pod
    };
    let critical = || Pod { priority: 2_000_000_000, ..asking("web", 0) };
    let memory = "Pod was rejected: The node had condition: [MemoryPressure]. ";
    let both = "Pod was rejected: The node had condition: [MemoryPressure DiskPressure]. ";
    assert_eq!(check(&[MemoryPressure], asking("web", 0)), memory);
    assert_eq!(check(&[MemoryPressure], asking("web", 9)), "");
    assert_eq!(check(&[MemoryPressure], tolerant()), "");
    assert_eq!(check(&[MemoryPressure, DiskPressure], tolerant()), both);
    assert_eq!(check(&[MemoryPressure, DiskPressure], asking("web", 9)), both);
    assert_eq!(check(&[MemoryPressure, DiskPressure], critical()), "");
    assert_eq!(check(&[], asking("web", 0)), "");
}

/// The names of the evicted pods.
fn victims(sim: &Sim) -> Vec<&'static str> {
    ["one", "two"].into_iter().filter(|name| reason(sim, name) == "Failed Evicted").collect()
}

/// Reports too little disk space, every ten seconds for a while.
fn starve_of_disk(sim: &mut Sim, times: u64, resource: StarvedResource) {
    for _ in 0..times {
        let measured_at = sim.now;
        let starved = Starved { resource, threshold: 9, available: 1, measured_at, usage: Vec::new() };
        sim.later(secs(0), Observation::Starved(Box::new(starved)));
        let end = secs(sim.now.0 / 1_000_000_000 + 10);
        sim.run_until(end);
    }
}

#[test]
fn no_other_pod_is_evicted_for_disk_space_before_the_files_of_the_first_one_are_gone() {
    for resource in [StarvedResource::EphemeralStorage, StarvedResource::Inodes] {
        let mut sim = with_pods(&[("one", 0, 0), ("two", 0, 0)]);
        // The record of the victim cannot be written for a long time, and so its files stay.
        sim.is_disk_full = true;
        starve_of_disk(&mut sim, 60, resource);
        assert_eq!((evicted(&sim), victims(&sim)), (1, vec![]), "{resource:?}");
        sim.is_disk_full = false;
        sim.run(sim.now.0 / 1_000_000_000 + 400);
        assert_eq!(victims(&sim), ["one"]);
        assert!(sim.log.contains("one remove volumes and logs"), "{}", sim.log);
        starve_of_disk(&mut sim, 1, resource);
        assert_eq!(victims(&sim), ["one", "two"]);
        sim.replay();
    }
}

#[test]
fn a_measurement_from_before_the_files_of_a_victim_were_removed_evicts_nobody() {
    let mut sim = with_pods(&[("one", 0, 0), ("two", 0, 0)]);
    let starved = |measured_at| {
        let resource = StarvedResource::EphemeralStorage;
        let starved = Starved { resource, threshold: 9, available: 1, measured_at, usage: Vec::new() };
        Observation::Starved(Box::new(starved))
    };
    let before = sim.now;
    sim.later(secs(0), starved(before)).run(20);
    assert_eq!(victims(&sim), ["one"]);
    sim.later(secs(0), starved(before)).run(30);
    assert_eq!(victims(&sim), ["one"]);
    let now = sim.now;
    sim.later(secs(0), starved(now)).run(40);
    assert_eq!(victims(&sim), ["one", "two"]);
}

#[test]
fn the_next_agent_evicts_nobody_before_it_has_removed_the_files_of_an_evicted_pod() {
    let mut sim = with_pods(&[("one", 0, 0), ("two", 0, 0)]);
    starve_of_disk(&mut sim, 1, StarvedResource::Inodes);
    assert_eq!(victims(&sim), ["one"]);
    sim.reboot();
    // As soon as it runs, and before the removal is answered.
    sim.latency(3);
    let measured_at = sim.now;
    let resource = StarvedResource::Inodes;
    let starved = Starved { resource, threshold: 9, available: 1, measured_at, usage: Vec::new() };
    sim.later(secs(0), Observation::Starved(Box::new(starved)));
    let end = secs(sim.now.0 / 1_000_000_000 + 10);
    sim.run_until(end);
    assert_eq!(victims(&sim), ["one"]);
}

#[test]
fn a_pod_that_was_rejected_under_pressure_delays_no_eviction() {
    let info = NodeInfo { pressure: vec![NodeCondition::DiskPressure], ..NodeInfo::default() };
    let mut sim = with_pods(&[("two", 0, 0)]);
    sim.later(secs(0), Observation::Node(Box::new(info))).run(6);
    sim.is_disk_full = true;
    sim.want(asking("one", 0));
    sim.run(10);
    starve_of_disk(&mut sim, 1, StarvedResource::Inodes);
    assert_eq!(evicted(&sim), 2, "{:?}", sim.events);
}
