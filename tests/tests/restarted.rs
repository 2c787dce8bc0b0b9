//! What a cluster sees of a container that is started again at once.

use nodlet_tests::image::Image;
use nodlet_tests::{Background, ClusterNode, ControlPlane, demo_program};

/// State and restart count of the container in each status of the pod.
const SHOWN: &str =
    r#"jsonpath={.status.containerStatuses[0].state} {.status.containerStatuses[0].restartCount}{"\n"}"#;

const POD: &str = "
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
    readinessProbe: {periodSeconds: 1, exec: {command: [/bin/demo, stat, /ready]}}
";

#[test]
fn the_end_of_a_container_that_restarted_meanwhile_is_shown_before_its_next_run() {
    let plane = ControlPlane::start();
    let node = ClusterNode::join(&plane, "board-1");
    plane.apply(POD);
    let is_running = |state: &str, count: char| state.starts_with(r#"{"running""#) && state.ends_with(count);
    plane.wait_for("get pod web --no-headers", |pod| pod.contains("Running"));
    let watch = Background::start(plane.command(&["get", "pod", "web", "-w", "-o", SHOWN]));
    node.device.wait_for("the watch", || watch.saw(|seen| is_running(seen, '0')));
    let pod = node.device.pod("web");
    // The report that the pod is ready is under way until the container runs again.
    let cut = plane.partition_from(&node.address);
    pod.tell("app", "/ready");
    pod.wait_ready();
    pod.tell("app", "/end");
    node.device.wait_for("the next run", || {
        pod.container("app").is_running() && pod.container("app").restart_count() == 1
    });
    drop(cut);
    node.device.wait_for("the next run in the cluster", || watch.saw(|seen| is_running(seen, '1')));
    assert!(watch.saw(|seen| seen.starts_with(r#"{"terminated""#) && seen.ends_with('0')));
}

#[test]
fn a_container_that_gets_another_image_is_shown_as_running_throughout() {
    let plane = ControlPlane::start();
    let node = ClusterNode::join(&plane, "board-1");
    let program = std::fs::read(demo_program()).expect("it is built");
    node.device.load(&Image::demo("localhost/demo:2", &program));
    let probe = POD.lines().find(|line| line.contains("readinessProbe")).expect("it has one");
    plane.apply(&POD.replace(probe, ""));
    plane.wait_for("get pod web --no-headers", |pod| pod.contains("1/1"));
    let ready = r#"jsonpath={.status.containerStatuses[0].restartCount} {.status.conditions[?(@.type=="Ready")].status}{"\n"}"#;
    let watch = Background::start(plane.command(&["get", "pod", "web", "-w", "-o", ready]));
    node.device.wait_for("the watch", || watch.saw(|seen| seen == "0 True"));
    for (count, image) in ["demo:2", "demo:1", "demo:2"].into_iter().enumerate() {
        plane.line(&format!("set image pod/web app=localhost/{image}")).ok();
        let next = format!("{} True", count + 1);
        node.device.wait_for("the next run", || watch.saw(|seen| seen == next));
    }
    assert!(!watch.saw(|seen| seen.ends_with("False")));
}
