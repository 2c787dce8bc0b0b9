//! Pods between a board and a real Kubernetes control plane: mirror pods, ephemeral containers, deletion, events.

use nodlet_tests::{ClusterNode as Node, ControlPlane};

/// A pod in a file of a board, with a ConfigMap of the board.
const STATIC: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: local}
data: {color: green}
---
apiVersion: v1
kind: Pod
metadata: {name: fixed, labels: {app: fixed}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/demo:1
    args: [wait, /end]
    envFrom: [{configMapRef: {name: local}}]
    resources: {requests: {cpu: 100m}}
";

#[test]
fn pods_of_files_are_shown_as_mirror_pods_and_run_once() {
    let plane = ControlPlane::start();
    let node = Node::join(&plane, "board-1");
    node.device.write_manifest("fixed.yaml", STATIC);
    let pod = node.device.pod("fixed");
    pod.wait_ready();
    let born = pod.born("app");

    let line = "get pod fixed-board-1 --no-headers";
    plane.wait_for(line, |pod| pod.contains("1/1") && pod.contains("Running"));
    let object = plane.line("get pod fixed-board-1 -o json").ok();
    let object: serde_json::Value = serde_json::from_str(&object).expect("JSON");
    let (metadata, annotations) = (&object["metadata"], &object["metadata"]["annotations"]);
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert_eq!(annotations["kubernetes.io/config.mirror"], annotations["kubernetes.io/config.hash"]);
    assert_eq!(metadata["ownerReferences"][0]["kind"], "Node");
    assert_eq!(metadata["ownerReferences"][0]["controller"], true);
    assert_eq!(object["status"]["observedGeneration"], metadata["generation"]);
    assert_eq!(object["status"]["podIP"], pod.ip());
    // The scheduler counts its resources.
    let described = plane.line("describe node board-1").ok();
    assert!(described.contains("fixed-board-1") && described.contains("100m"), "{described}");
    let described = plane.line("describe pod fixed-board-1").ok();
    assert!(described.contains("Started container app"), "{described}");

    // Whoever deletes it ends no container.
    let uid = "get pod fixed-board-1 -o jsonpath={.metadata.uid}";
    let first = plane.line(uid).ok();
    plane.line("delete pod fixed-board-1 --wait=false").ok();
    let second = plane.wait_for(uid, |uid| !uid.is_empty() && uid != first);
    plane.line("delete pod fixed-board-1 --force --grace-period=0").ok();
    let third = plane.wait_for(uid, |uid| !uid.is_empty() && uid != second);
    plane.wait_for(line, |pod| pod.contains("1/1") && pod.contains("Running"));
    assert_eq!(pod.born("app"), born);

    // Deleted while the board is away.
    let cut = plane.partition_from(&node.address);
    plane.line("delete pod fixed-board-1 --force --grace-period=0").ok();
    drop(cut);
    let fourth = plane.wait_for(uid, |uid| !uid.is_empty() && uid != third);
    assert_eq!(pod.born("app"), born);

    // Another file, and none.
    node.device.write_manifest("fixed.yaml", &STATIC.replace("100m", "200m"));
    plane.wait_for(uid, |uid| !uid.is_empty() && uid != fourth);
    let request = "get pod fixed-board-1 -o jsonpath={.spec.containers[0].resources.requests.cpu}";
    plane.wait_for(request, |request| request == "200m");
    node.device.remove_manifest("fixed.yaml");
    plane.wait_for("get pods -o name", str::is_empty);
    assert!(node.device.pods().is_empty());
}
