//! Restarts and exec probes by the hundred, and by the ten thousand with `cargo xtask long soak`: no resource
//! use grows with them. The baseline is measured when the rings of events and of changes are full, because
//! those are expected to fill.

use std::time::{Duration, Instant};

use nodlet_tests::{Device, Holdings, Memory, manifest};

/// The number of containers in a pod.
const CONTAINERS: usize = 8;

/// The number of pods with probes; each container is probed once a second.
const PROBED: usize = 2;

/// The number of restarts after which all rings are full: a ring holds 512 events, and two runs of a
/// container produce six.
const WARM: usize = 96;

/// The difference in KiB that is allowed for the agent's memory, and for that of all supervisors together,
/// because an allocator keeps more at some moments than at others. In the long form this is some 80 bytes a
/// restart and 40 bytes a probe: a leaked object with a name takes more.
const NOISE: u64 = 768;

#[test]
fn nothing_grows_by_restarts_and_exec_probes() {
    let rounds = std::env::var("NODLET_ROUNDS").ok();
    let restarts: usize = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(250);
    let probes = 2 * restarts;
    // Side by side, so that no pod waits hours for another.
    let failing = if restarts > 1000 { 4 } else { 1 };
    let mut device = Device::start();
    // The entries of the ring would also need too much memory when a test reads all of them.
    device.replay_nothing();
    let (host, shared) = device.shared("work");
    for pod in 0..PROBED {
        let containers: Vec<String> = (0..CONTAINERS).map(|number| {
            let probe = format!(
                "livenessProbe: {{exec: {{command: [/bin/demo, append, /work/{pod}-{number}, x]}}, periodSeconds: 1, timeoutSeconds: 60}}\n\
                 volumeMounts: [{{name: work, mountPath: /work}}]"
            );
            manifest::container(&format!("c{number}"), "sleep", &probe)
        }).collect();
        let spec = format!("volumes: [{{name: work, hostPath: {{path: {host}}}}}]");
        device.write_manifest(
            &format!("probed-{pod}.yaml"),
            &manifest::pod_of(&format!("probed-{pod}"), &containers, &spec),
        );
    }
    let probed_so_far = || -> usize {
        let files = std::fs::read_dir(&shared).expect("it is there").flatten();
        files.filter_map(|file| Some(file.metadata().ok()?.len() as usize)).sum()
    };
    device.wait_for("all to be probed", || {
        std::fs::read_dir(&shared).expect("it is there").count() == PROBED * CONTAINERS
    });
    // Each pod's record is written after a delay, and is one more file from then on.
    device.wait_for("the records of the pods", || device.records().len() == PROBED);
    let length = probed_so_far() / (PROBED * CONTAINERS);
    assert!(length > 0, "a probe leaves a mark");
    let mut done = 0;
    while done < WARM {
        done += round(&device, failing);
    }
    let (before, memory) = quiet(&device, None);
    let (began, probes_before) = (Instant::now(), probed_so_far() / 2);
    done = 0;
    while done < restarts || probed_so_far() / 2 < probes_before + probes {
        done += round(&device, failing);
    }
    let probes = probed_so_far() / 2 - probes_before;
    let (after, memory_after) = quiet(&device, Some(before));
    println!(
        "{done} restarts and {probes} exec probes in {:?}\n{before:?}\n{after:?}\nKiB of agent and of supervisors: {memory:?}, then {memory_after:?}",
        began.elapsed()
    );
    assert_eq!(after, before);
    for (before, after) in [(memory.0, memory_after.0), (memory.1, memory_after.1)] {
        assert!(after < before + NOISE, "{before} KiB became {after}");
    }
    for pod in 0..PROBED {
        for number in 0..CONTAINERS {
            let name = format!("probed-{pod}");
            assert_eq!(device.pod(&name).container(&format!("c{number}")).restart_count(), 0);
        }
    }
}

/// The number of pods that are applied and deleted at a time.
const SHORT: usize = 25;

/// The number of pods after which the ring of events is full: each has at least four events of 512.
const FILLED: usize = 175;

#[test]
fn nothing_grows_by_pods_that_come_and_go() {
    let rounds = std::env::var("NODLET_ROUNDS").ok();
    let pods: usize = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(200);
    let mut device = Device::start();
    device.replay_nothing();
    let wave = |first: usize| {
        let names: Vec<String> = (first..first + SHORT).map(|number| format!("short-{number}")).collect();
        for name in &names {
            device.run_pod(name, "sleep");
        }
        for name in &names {
            device.wait_within(Duration::from_secs(240), "the pod", || device.pod(name).is_ready());
            device.remove_manifest(&format!("{name}.yaml"));
        }
        for name in &names {
            device.pod(name).wait_gone();
        }
    };
    let mut done = 0;
    let mut until = |count: usize| {
        while done < count {
            wave(done);
            done += SHORT;
            println!("{done} pods: {} KiB", Memory::of(device.agent_pid()).now);
        }
        quiet(&device, None)
    };
    let (before, memory) = until(FILLED);
    let (after, memory_after) = until(FILLED + pods);
    println!("{before:?}\n{after:?}\nKiB of agent and of supervisors: {memory:?}, then {memory_after:?}");
    assert_eq!(after, before);
    assert!(memory_after.0 < memory.0 + NOISE, "the agent has {} KiB, {} before", memory_after.0, memory.0);
}

/// Creates pods whose containers all fail and are restarted at once, since it is the first restart of each,
/// and deletes the pods. Returns the number of restarts.
fn round(device: &Device, pods: usize) -> usize {
    let containers: Vec<String> =
        (0..CONTAINERS).map(|number| manifest::container(&format!("c{number}"), "exit 1", "")).collect();
    let spec = "restartPolicy: OnFailure\nterminationGracePeriodSeconds: 1";
    let names: Vec<String> = (0..pods).map(|number| format!("failing-{number}")).collect();
    for name in &names {
        device.run_pod_of(name, &containers, spec);
    }
    let mut restarted = 0;
    for name in &names {
        let mut of_this = 0;
        device.wait_for("all to be restarted", || {
            let status = device.pod(name).status();
            let all = status["containerStatuses"].as_array().into_iter().flatten();
            let counts: Vec<u64> = all.filter_map(|one| one["restartCount"].as_u64()).collect();
            of_this = counts.iter().sum();
            counts.len() == CONTAINERS && counts.iter().all(|count| *count > 0)
        });
        restarted += usize::try_from(of_this).expect("a count of runs");
        device.remove_manifest(&format!("{name}.yaml"));
    }
    for name in &names {
        device.pod(name).wait_gone();
    }
    restarted
}

/// The resources that are held while no probe is running, and the memory of the agent and of the supervisors.
fn quiet(device: &Device, like: Option<Holdings>) -> (Holdings, (u64, u64)) {
    // The fewest resources are held while no probe is running; holding as many as before is enough.
    let until = Instant::now() + Duration::from_secs(30);
    let mut least = Holdings::of(device);
    while Instant::now() < until && like != Some(least) {
        let now = Holdings::of(device);
        // The cgroup of a probe is removed after its process has ended.
        let size = |held: Holdings| (held.processes, held.descriptors, held.cgroups, held.zombies);
        if size(now) < size(least) {
            least = now;
        }
    }
    let agent = device.agent_pid();
    let others = device.own_processes().into_iter().filter(|pid| *pid != agent);
    (least, (Memory::of(agent).now, others.map(|pid| Memory::of(pid).now).sum()))
}
