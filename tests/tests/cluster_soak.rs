//! Pods of a cluster by the hundred: an agent keeps nothing of those that are gone.

use std::time::Duration;

use nodlet_tests::{ClusterNode, Memory, manifest};

/// The number of pods that come and go at once.
const WAVE: usize = 25;

/// The number of pods after which all rings are full.
const FILLED: usize = 175;

/// The number of pods over which the growth is measured.
const COUNTED: usize = 300;

/// The growth in KiB that is allowed for them, less than a KiB each. 28 and 100 were measured for a hundred pods, and 490
/// when a Secret with the token of each pod stayed.
const NOISE: u64 = 256;

#[test]
#[ignore = "by cargo xtask long soak-cluster"]
fn nothing_grows_by_pods_of_a_cluster_that_come_and_go() {
    let rounds = std::env::var("NODLET_ROUNDS").ok();
    let pods: usize = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(COUNTED);
    let (plane, node) = ClusterNode::in_new_cluster();
    let wave = |first: usize| {
        let names: Vec<String> = (first..first + WAVE).map(|number| format!("short-{number}")).collect();
        let all: Vec<String> = names.iter().map(|name| manifest::pod(name, "sleep")).collect();
        plane.create(&all.join("\n---\n"));
        for name in &names {
            let pod = node.device.pod(name);
            node.device.wait_within(Duration::from_secs(240), "the pod", || pod.is_ready());
        }
        plane.line(&format!("delete pods --wait=false {}", names.join(" "))).ok();
        plane.wait_for("get pods -o name", str::is_empty);
        for name in &names {
            node.device.pod(name).wait_gone();
        }
    };
    let mut done = 0;
    let mut until = |count: usize| {
        while done < count {
            wave(done);
            done += WAVE;
            println!("{done} pods: {} KiB", Memory::of(node.device.agent_pid()).now);
        }
        Memory::of(node.device.agent_pid()).now
    };
    let before = until(FILLED);
    let after = until(FILLED + pods);
    assert!(after < before + NOISE, "the agent has {after} KiB, {before} before");
}
