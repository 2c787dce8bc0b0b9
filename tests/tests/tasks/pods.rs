//! Tasks about Pods of files, variables that depend on others, and containers that work together.

use nodlet_tests::{Device, Forwarding, Kubectl};

use super::{apply, output};

#[test]
fn a_static_pod_follows_its_file() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let manifest = include_str!("../../../examples/tasks/static-pod.yaml");
    device.write_manifest("static-web.yaml", manifest);
    let pod = device.pod("static-pod").wait_ready();
    let page = |port: u16| output(&pod, "web", &format!("get http://127.0.0.1:{port}/"));
    device.wait_for("the page", || page(8080) == "hello from the image");
    let shown = kubectl.line("get pods -l role=myrole --no-headers").ok();
    assert!(shown.starts_with("static-pod ") && shown.contains("1/1"), "{shown}");
    let refused = kubectl.line("label pod static-pod role=other --overwrite").refused();
    assert!(refused.contains("it is defined by") && refused.contains("static-web.yaml"), "{refused}");
    kubectl.line("delete pod static-pod --wait=false").refused();
    assert!(pod.is_ready());

    // The file is changed: another Pod with the same name.
    let uid = pod.uid();
    device.write_manifest("static-web.yaml", &manifest.replace("8080", "8081"));
    device.wait_for("another pod", || pod.uid() != uid && pod.is_ready());
    device.wait_for("the page", || page(8081) == "hello from the image");
    // It is moved out of the directory, and back.
    let (file, aside) = (device.manifests().join("static-web.yaml"), device.path("/etc/static-web.yaml"));
    std::fs::rename(&file, &aside).expect("it is there");
    pod.wait_gone();
    assert!(device.container_processes().is_empty());
    std::fs::rename(&aside, &file).expect("it is there");
    pod.wait_ready();
}

#[test]
fn containers_of_a_pod_work_together() {
    let device = Device::start();
    apply(&device, "shared-volume");
    let pod = device.pod("shared-volume");
    device.wait_for("the writer to end", || pod.container("writer").exit_code() == Some(0));
    let shown = || output(&pod, "server", "get http://127.0.0.1:8080/index.html");
    device.wait_for("the page", || shown() == "hello from the writer");
    assert!(pod.container("server").is_running());

    apply(&device, "sidecar");
    let pod = device.pod("sidecar").wait_log("app", "ready");
    assert!(pod.container("log-shipper").is_running() && pod.container("log-shipper").is_ready());
    pod.tell("log-shipper", "/logs/restart");
    pod.wait_restarts("log-shipper", 1);
    assert_eq!(pod.container("app").restart_count(), 0);
    pod.tell("app", "/logs/end");
    pod.wait_phase("Succeeded");
    let finished = |container: &str| pod.container(container).of_state("finishedAt").to_string();
    assert!(finished("app") <= finished("log-shipper"), "the sidecar ends last");
}

#[test]
fn a_port_is_forwarded() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    apply(&device, "port-forward");
    device.pod("port-forward").wait_log("server", "mirror");
    // Port 28015 of the page may be in use here.
    let words = ["port-forward", "--address=127.0.0.1", "pod/port-forward", ":7000"];
    assert_eq!(Forwarding::start(kubectl.command(words)).ask(b"ping"), b"ping");
}
