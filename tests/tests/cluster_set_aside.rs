//! Pods of a cluster that an agent dies of are set aside, as those from files are (`set_aside.rs`).

use nodlet_tests::deaths::{die_while_a_task_handles, fault};
use nodlet_tests::{ClusterNode, ControlPlane, manifest};

#[test]
fn a_pod_of_a_cluster_is_set_aside_and_the_cluster_learns_why() {
    let plane = ControlPlane::start();
    let mut node = ClusterNode::join(&plane, "board-1");
    node.device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    node.device.pod("web").wait_ready();
    let app = manifest::container("app", "sleep", "imagePullPolicy: IfNotPresent");
    let bad = manifest::pod_of("bad", &[app], "nodeName: board-1\nautomountServiceAccountToken: false");
    plane.apply(&bad);
    for _ in 0..2 {
        die_while_a_task_handles(&mut node.device, fault);
        node.device.launch_agent();
    }
    let events = "get events --field-selector involvedObject.name=bad -o jsonpath={.items[*].message}";
    plane.wait_for(events, |messages| messages.contains("is set aside: the agent died 2 times"));
    assert_eq!(plane.line("get pod bad -o jsonpath={.status.phase}").ok(), "Pending");
    assert!(node.device.pod("web").is_ready());
    node.device.nodlet(["restart", "bad"]).ok();
    plane.wait_for("get pod bad --no-headers", |pod| pod.contains("1/1"));
}
