//! Tasks about storage and resources of the node.

use std::fs;
use std::path::Path;

use nodlet_tests::Device;

use super::{apply, output, run};

/// A directory of the machine that an example names, until it is dropped.
struct Directory(&'static str);

impl Directory {
    fn new(path: &'static str) -> Directory {
        let _ = fs::remove_dir_all(path);
        fs::create_dir(path).expect("/var/tmp can be written to");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

#[test]
fn pages_in_a_persistent_volume_outlive_their_pod() {
    fs::create_dir_all("/var/tmp").expect("a directory");
    let pages = Directory::new("/var/tmp/nodlet-task-volume");
    let page = Path::new(pages.0).join("index.html");
    fs::write(&page, "Hello from Kubernetes storage\n").expect("it can be written");
    let device = Device::start();
    let pod = run(&device, "persistent-volume");
    let shown = || output(&pod, "server", "get http://127.0.0.1:8080/");
    device.wait_for("the page", || shown() == "Hello from Kubernetes storage");
    let claims = device.nodlet(["get", "persistentvolumeclaims", "task-claim"]).ok();
    assert!(claims.contains("Bound") && claims.contains("task-volume"), "{claims}");
    pod.exec("server", ["demo", "write", "/pages/index.html", "from the pod"]).ok();
    device.nodlet(["delete", "pod", "persistent-volume"]).ok();
    pod.wait_gone();
    assert_eq!(fs::read_to_string(&page).expect("it is there"), "from the pod\n");
}

#[test]
fn a_second_pod_gets_no_unit_of_an_extended_resource_with_one() {
    let device = Device::start();
    let devices = device.path("/etc/nodlet/devices");
    fs::create_dir_all(&devices).expect("a directory");
    let definition = include_str!("../../../examples/devices/dongle.yaml");
    fs::write(devices.join("dongle.yaml"), definition).expect("it can be written");
    device.wait_for("the resource", || {
        device.nodlet(["describe", "node"]).stdout.contains("nodlet.dev/dongle")
    });
    let pod = run(&device, "extended-resource");
    assert!(output(&pod, "app", "stat /dev/dongle").ends_with(" 1,3"));
    let other = device.pod("extended-resource-2").wait_phase("Failed");
    assert_eq!(other.status()["reason"], "OutOfnodlet.dev/dongle");
}

#[test]
fn a_pod_that_uses_more_local_storage_than_its_limit_is_evicted() {
    let device = Device::start();
    apply(&device, "local-ephemeral-storage");
    let within = device.pod("storage-within-limit").wait_ready();
    device.wait_within(std::time::Duration::from_secs(120), "the pod to be evicted", || {
        device.pod("storage-beyond-limit").phase() == "Failed"
    });
    let status = device.pod("storage-beyond-limit").status();
    assert_eq!(status["reason"], "Evicted", "{status}");
    assert!(
        status["message"].as_str().is_some_and(|text| text.contains("limit of containers 1Mi")),
        "{status}"
    );
    assert!(within.is_ready());
}
