//! The status of a pod in the cluster is that of the board.

use nodlet_tests::{ClusterNode as Node, ControlPlane};
use serde_json::Value;

use super::pod;

/// The part of a status that the board reports: without what the API server adds, and without an order of conditions.
fn reported(status: &Value) -> Value {
    let mut status = status.clone();
    let conditions = status["conditions"].as_array_mut().expect("conditions");
    conditions.sort_by_key(|one| one["type"].as_str().unwrap_or_default().to_owned());
    for condition in conditions {
        let condition = condition.as_object_mut().expect("a condition");
        condition.retain(|_, value| !value.is_null());
        if condition["type"] == "PodScheduled" {
            // The scheduler assigned the pod before the board received it.
            condition.remove("lastTransitionTime");
        }
    }
    status
}

/// Waits until the cluster and the board show a pod with the same status, which `is_it` accepts.
fn wait_for_equal_status(
    plane: &ControlPlane,
    node: &Node,
    name: &str,
    is_it: impl Fn(&Value) -> bool,
) -> Value {
    let mut found = Value::Null;
    plane.wait_for(&format!("get pod {name} -o json"), |pod| {
        let pod: Value = serde_json::from_str(pod).unwrap_or_default();
        let local = node.device.pod(name).object().unwrap_or_default();
        if !pod["status"]["conditions"].is_array() || !local["status"]["conditions"].is_array() {
            return false;
        }
        found = reported(&pod["status"]);
        let is_equal = found == reported(&local["status"]);
        if !is_equal && is_it(&found) {
            eprintln!("the cluster: {found:#}\nthe board: {:#}", reported(&local["status"]));
        }
        is_equal && is_it(&found)
    });
    found
}

#[test]
fn the_cluster_has_the_status_of_the_board_after_each_change() {
    let (plane, node) = Node::in_new_cluster();
    plane.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/demo:1
    imagePullPolicy: Never
    args: [wait, /end]
    resources: {requests: {cpu: 10m, memory: 16Mi}}
    readinessProbe: {periodSeconds: 1, failureThreshold: 1, exec: {command: [/bin/demo, stat, /ready]}}
",
    );
    let condition = |status: &Value, kind: &str| {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == kind).unwrap_or_default()
    };
    let is_ready = |status: &Value, is_ready: &str| condition(status, "Ready")["status"] == is_ready;
    let status = wait_for_equal_status(&plane, &node, "web", |status| {
        is_ready(status, "False") && status["containerStatuses"][0]["state"]["running"].is_object()
    });
    assert_eq!(condition(&status, "Ready")["reason"], "ContainersNotReady");
    let file = node.device.pod("web");
    for _ in 0..2 {
        file.tell("app", "/ready");
        let status = wait_for_equal_status(&plane, &node, "web", |status| is_ready(status, "True"));
        assert_eq!(condition(&status, "Ready").get("reason"), None);
        assert_eq!(condition(&status, "ContainersReady").get("message"), None);
        assert_eq!(condition(&status, "PodScheduled")["observedGeneration"], 1);
        file.demo("app", "rm /ready").ok();
        wait_for_equal_status(&plane, &node, "web", |status| is_ready(status, "False"));
    }

    // A resize waits for room, and another one is carried out.
    let resize = |cpu: &str| {
        let patch = format!(
            r#"{{"spec":{{"containers":[{{"name":"app","resources":{{"requests":{{"cpu":"{cpu}"}}}}}}]}}}}"#
        );
        plane.kubectl(["patch", "pod", "web", "--subresource", "resize", "-p", &patch]).ok();
    };
    let cpus: usize =
        plane.line("get node board-1 -o jsonpath={.status.allocatable.cpu}").ok().parse().expect("cpus");
    let big = format!("    resources: {{requests: {{cpu: {}m}}}}\n", 1000 * cpus - 100);
    plane.apply(&(pod("big", "") + &big));
    plane.wait_for("get pod big --no-headers", |pod| pod.contains("1/1"));
    resize("500m");
    wait_for_equal_status(&plane, &node, "web", |status| condition(status, "PodResizePending").is_object());
    resize("20m");
    wait_for_equal_status(&plane, &node, "web", |status| {
        let requested = &status["containerStatuses"][0]["resources"]["requests"]["cpu"];
        let is_gone = |kind: &str| condition(status, kind).is_null();
        requested == "20m" && is_gone("PodResizePending") && is_gone("PodResizeInProgress")
    });
    file.tell("app", "/end");
    wait_for_equal_status(&plane, &node, "web", |status| status["containerStatuses"][0]["restartCount"] == 1);
}
