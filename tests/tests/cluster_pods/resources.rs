//! Extended resources of a Node: those of the board's devices, and those that somebody else advertises.

use nodlet_tests::ClusterNode as Node;

use super::pod;

/// A device of the board, as a file in `etc/nodlet/devices`: `/dev/null` under another name.
const EMPTY: &str = "name: empty\npath: /dev/null\ncontainerPath: /dev/empty\n";

/// A Deployment of one pod, with these lines of YAML in its container, and with its name as its pods' label `app`.
fn deployment(name: &str, container: &str) -> String {
    let pod = pod(name, container);
    let spec = pod.split_once("spec:\n").expect("a spec").1;
    let spec: String = spec.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 1\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    \
         spec:\n{spec}"
    )
}

#[test]
fn a_device_whose_file_is_removed_is_no_longer_a_resource_of_the_node() {
    let (plane, node) = Node::in_new_cluster();
    let file = node.device.write_file("etc/nodlet/devices/null.yaml", EMPTY);
    let capacity = "get node board-1 -o jsonpath={.status.capacity}|{.status.allocatable}";
    let both = |text: &str| text.matches("nodlet.dev/empty").count();
    plane.wait_for(capacity, |all| both(all) == 2);

    // Resources that somebody else advertises stay, whatever the board reports.
    let patch =
        r#"{"status":{"capacity":{"example.com/dongle":"4"},"allocatable":{"example.com/dongle":"4"}}}"#;
    plane.kubectl(["patch", "node", "board-1", "--subresource", "status", "-p", patch]).ok();
    let empty = "    resources: {limits: {nodlet.dev/empty: 1}}\n";
    plane.apply(&deployment("user", empty));
    let pods = "get pods -l app=user --no-headers";
    plane.wait_for(pods, |pods| pods.contains("1/1"));
    std::fs::remove_file(&file).expect("removed");
    plane.line("delete pods -l app=user --wait=false").ok();
    let all = plane.wait_for(capacity, |all| both(all) == 0);
    assert_eq!(all.matches("example.com/dongle").count(), 2, "{all}");

    // The scheduler places no more pods there: one waits. At most one was placed before the scheduler knew.
    plane.wait_for("get events -o jsonpath={.items[*].message}", |all| {
        all.contains("Insufficient nodlet.dev/empty")
    });
    let all = plane.wait_for(pods, |pods| pods.contains("Pending"));
    assert!(all.lines().count() <= 2, "{all}");
    std::fs::write(&file, EMPTY).expect("written");
    plane.wait_for(pods, |pods| pods.contains("1/1"));
}

#[test]
fn resources_that_somebody_else_advertises_are_counted_by_the_scheduler_alone() {
    let (plane, node) = Node::in_new_cluster();
    // As on Kubernetes' page of this task, the capacity alone: a kubelet makes it allocatable.
    let patch = r#"{"status":{"capacity":{"example.com/dongle":"4"}}}"#;
    plane.kubectl(["patch", "node", "board-1", "--subresource", "status", "-p", patch]).ok();
    // The board learns of it with its next report.
    node.device.write_file("etc/nodlet/devices/null.yaml", EMPTY);
    plane.wait_for("get node board-1 -o jsonpath={.status.allocatable}", |all| all.contains("dongle"));
    let dongles = "    resources: {requests: {example.com/dongle: 3}, limits: {example.com/dongle: 3}}\n";
    plane.apply(&deployment("first", dongles));
    plane.wait_for("get pods -l app=first --no-headers", |pods| pods.contains("1/1"));
    // The scheduler counts them, and no controller makes one pod after the other.
    plane.apply(&deployment("second", dongles));
    plane.wait_for("get events -o jsonpath={.items[*].message}", |all| {
        all.contains("Insufficient example.com/dongle")
    });
    assert_eq!(plane.line("get pods -o name").ok().lines().count(), 2);
    assert_eq!(node.device.pods().len(), 1);
}
