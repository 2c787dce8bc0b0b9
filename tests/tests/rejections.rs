//! Pods of a controller that a board rejects, although the cluster's scheduler binds them to it.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use nodlet_tests::{ClusterNode, ControlPlane, manifest};

/// The time in which pods are counted.
const COUNTED: Duration = Duration::from_secs(60);

/// Pods that are reported as rejected after 0, 10 and 30 s, the one that waits until 70 s, and one more in case the
/// count takes longer.
const MOST: usize = 5;

/// A Deployment whose pods a board rejects.
struct Rejected {
    name: &'static str,
    /// YAML in the container, and in the spec of the pod.
    container: &'static str,
    pod: &'static str,
    reason: &'static str,
}

/// Each is rejected by another part of the board, for a reason that the scheduler does not know.
const REJECTED: [Rejected; 3] = [
    // The board's client of the cluster: a kubelet has such volumes, and a board has not.
    Rejected {
        name: "share",
        container: "",
        pod: "volumes: [{name: share, nfs: {server: 192.0.2.1, path: /share}}]",
        reason: "PodSpecNotSupported",
    },
    // Admission, as that of a kubelet: which sysctls a node allows is its own configuration.
    Rejected {
        name: "sysctl",
        container: "",
        pod: "securityContext: {sysctls: [{name: kernel.msgmax, value: '8192'}]}",
        reason: "SysctlForbidden",
    },
    // Admission beside the board's other pods: the cluster does not see those that were applied at the board's own API.
    Rejected {
        name: "port",
        container: "ports: [{containerPort: 8080, hostPort: 8080}]",
        pod: "",
        reason: "NodePorts",
    },
];

/// The pods of each label that the API server got in a time, each once.
fn counted(plane: &ControlPlane, labels: &[&str]) -> Vec<usize> {
    let (start, mut all) = (Instant::now(), vec![BTreeSet::new(); labels.len()]);
    while start.elapsed() < COUNTED {
        for (label, all) in labels.iter().zip(&mut all) {
            let line = format!("get pods -l app={label} -o jsonpath={{.items[*].metadata.uid}}");
            all.extend(plane.line(&line).ok().split_whitespace().map(str::to_owned));
        }
        thread::sleep(Duration::from_secs(1));
    }
    all.iter().map(BTreeSet::len).collect()
}

#[test]
fn deployments_whose_pods_the_board_rejects_make_few_of_them() {
    let plane = ControlPlane::start();
    let node = ClusterNode::join(&plane, "board-1");
    node.device.apply(&manifest::single(
        "other",
        "sleep",
        "ports: [{containerPort: 8080, hostPort: 8080}]",
        "",
    ));
    node.device.pod("other").wait_ready();
    for Rejected { name, container, pod, .. } in REJECTED {
        let app = manifest::container("app", "sleep", &format!("imagePullPolicy: Never\n{container}"));
        plane.apply(&manifest::deployment(1, &[app], "", pod).replace("web", name));
    }
    for Rejected { name, reason, .. } in REJECTED {
        plane.wait_for(&format!("get pods -l app={name} --no-headers"), |pods| pods.contains(reason));
    }
    let names = REJECTED.map(|rejected| rejected.name);
    for (name, count) in names.into_iter().zip(counted(&plane, &names)) {
        assert!((2..=MOST).contains(&count), "{name}: {count} pods in {COUNTED:?}");
    }
    let events = plane.line("get events -o jsonpath={.items[*]['involvedObject.name','reason']}").ok();
    for Rejected { name, reason, .. } in REJECTED {
        // The pod that waits shows its reason, and has its event.
        let line = format!(
            "get pods -l app={name} --field-selector status.phase=Pending -o \
             jsonpath={{.items[*]['metadata.name','status.reason']}}"
        );
        let waiting = plane.line(&line).ok();
        let [pod, shown] = waiting.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{waiting}") };
        assert_eq!(shown, reason, "{pod}");
        assert!(events.contains(pod) && events.contains(reason), "{pod}: {events}");
    }
    // A rejected pod that waits is deleted as any other.
    for name in names {
        plane.line(&format!("delete deployment {name}")).ok();
        plane.wait_for(&format!("get pods -l app={name} -o name"), str::is_empty);
    }
    assert_eq!(node.device.pods(), ["other"]);
}
