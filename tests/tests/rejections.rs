//! Pods of a controller that a board rejects, although the cluster's scheduler binds them to it.

use std::thread;
use std::time::{Duration, Instant};

use nodlet_tests::{ClusterNode, ControlPlane, manifest};

/// The time in which pods are counted.
const COUNTED: Duration = Duration::from_secs(60);

/// Pods that are reported as rejected after 0, 10 and 30 s, the one that waits until 70 s, and one more in case the
/// count takes longer.
const MOST: usize = 5;

/// The pods of a label that the API server got in a time, each once.
fn counted(plane: &ControlPlane, label: &str) -> usize {
    let line = format!("get pods -l app={label} -o jsonpath={{.items[*].metadata.uid}}");
    let (start, mut all) = (Instant::now(), std::collections::BTreeSet::new());
    while start.elapsed() < COUNTED {
        all.extend(plane.line(&line).ok().split_whitespace().map(str::to_owned));
        thread::sleep(Duration::from_secs(1));
    }
    all.len()
}

#[test]
fn a_deployment_whose_pods_the_board_rejects_makes_few_of_them() {
    let plane = ControlPlane::start();
    let node = ClusterNode::join(&plane, "board-1");
    let app = "  - {name: app, image: 'localhost/demo:1', imagePullPolicy: Never}\n";
    // A kubelet has such volumes, and a board has not.
    let volumes = "volumes: [{name: share, nfs: {server: 192.0.2.1, path: /share}}]";
    plane.apply(&manifest::deployment(1, &[app.to_owned()], "", volumes));
    plane.wait_for("get pods -l app=web --no-headers", |pods| pods.contains("PodSpecNotSupported"));
    let count = counted(&plane, "web");
    assert!((2..=MOST).contains(&count), "{count} pods in {COUNTED:?}");
    // The pod that waits shows its reason, and has its event.
    let line = "get pods -l app=web --field-selector status.phase=Pending -o jsonpath={.items[*]['metadata.name','status.reason']}";
    let waiting = plane.line(line).ok();
    let events = plane.line("get events -o jsonpath={.items[*].involvedObject.name}").ok();
    let [name, "PodSpecNotSupported"] = waiting.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{waiting}")
    };
    assert!(events.contains(name), "{waiting}: {events}");
    // A rejected pod that waits is deleted as any other.
    plane.line("delete deployment web").ok();
    plane.wait_for("get pods -l app=web -o name", str::is_empty);
    assert!(node.device.pods().is_empty());
}
