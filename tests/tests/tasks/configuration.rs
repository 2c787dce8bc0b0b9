//! Tasks with objects that change, and with Pods of the node itself.

use nodlet_tests::{Device, Kubectl};

use super::{apply, output, run};

#[test]
fn a_config_map_changes_while_a_pod_uses_it() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = run(&device, "updating-configuration");
    let file = |container: &str, path: &str| output(&pod, container, &format!("cat {path}"));
    let ran =
        kubectl.command(["patch", "configmap", "sport", "-p", r#"{"data": {"sport": "cricket"}}"#]).output();
    assert!(ran.is_ok_and(|ran| ran.status.success()));
    for container in ["app", "neighbour"] {
        device.wait_for("the new file", || file(container, "/etc/config/sport") == "cricket");
    }
    assert_eq!(pod.logs("app"), "variable football\n");
    assert!(output(&pod, "app", "env").lines().any(|line| line == "SPORT=football"));
    assert_eq!(file("app", "/etc/fixed"), "football");
    // The container starts again; the pod is the same.
    pod.tell("app", "/tmp/restart");
    pod.wait_restarts("app", 1);
    pod.wait_log("app", "variable cricket");
    assert_eq!(pod.container("neighbour").restart_count(), 0);
    kubectl.line("patch configmap sport --type=merge -p {\"immutable\":true}").ok();
    kubectl
        .line("patch configmap sport --type=merge -p {\"data\":{\"sport\":\"chess\"}}")
        .refused_with("field is immutable when `immutable` is set");
}

#[test]
fn a_secret_is_created_changed_decoded_and_deleted() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = run(&device, "managed-secret");
    let file = |name: &str| output(&pod, "app", &format!("cat /etc/secret/{name}"));
    assert_eq!(
        (file("username"), file("password")),
        ("administrator".to_owned(), r"S!B\*d$zDsb=".to_owned())
    );
    let stored = kubectl.line("get secret managed-secret -o jsonpath={.data.username}{.stringData}").ok();
    assert_eq!(stored, "YWRtaW5pc3RyYXRvcg==");
    let described = kubectl.line("describe secret managed-secret").ok();
    assert!(described.contains("username:  13 bytes") && !described.contains("administrator"), "{described}");
    kubectl.line("create secret generic by-hand --from-literal=password=first").ok();
    kubectl.line("patch secret managed-secret -p {\"stringData\":{\"username\":\"root\"}}").ok();
    device.wait_for("the new name", || file("username") == "root");
    kubectl.line("delete secret by-hand managed-secret").ok();
    assert!(kubectl.line("get secret managed-secret").refused().contains("not found"));
    // A pod that runs keeps its files.
    assert!(pod.is_ready());
    assert_eq!(file("username"), "root");
}

#[test]
fn a_critical_pod_of_the_node() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    apply(&device, "critical-pod");
    let mut shown = String::new();
    device.wait_for("the pod", || {
        let columns = "{.spec.priority} {.spec.priorityClassName} {.status.phase}";
        let line = ["get", "pod", "critical-pod", "-n", "kube-system", "-o"];
        let output = kubectl.command(line).arg(format!("jsonpath={columns}")).output().expect("kubectl runs");
        shown = String::from_utf8_lossy(&output.stdout).into_owned();
        shown.contains("Running")
    });
    assert!(shown.starts_with("2000001000 system-node-critical Running"), "{shown}");
    // The images of all containers.
    let images = "jsonpath={.items[*].spec['initContainers','containers'][*].image}";
    let listed =
        kubectl.command(["get", "pods", "--all-namespaces", "-o", images]).output().expect("kubectl runs");
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "localhost/demo:1");
}
