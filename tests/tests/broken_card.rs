//! A card that accepts no writes any more while pods run: the agent and its pods go on, whoever asks for a change gets the
//! reason, and after a reboot with a card that works again nothing runs twice or is lost.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nodlet_tests::{Device, manifest};

/// The condition of the Node.
const READ_ONLY: &str = "ReadonlyFilesystem";

/// A device whose `/var` is an ext4 file system, with an applied pod.
fn device() -> Device {
    let mut device = Device::new();
    device.run_on_a_disk_of(64, "mkfs.ext4", &[], "errors=remount-ro");
    device.start_agent_with_demo();
    let text = manifest::pod("web", "print up then sleep");
    device.apply(&text);
    device.pod("web").wait_log("app", "up");
    device
}

/// Requires that the pod goes on, that the board says what is wrong, and that changes are refused with the reason.
fn require_reading_only(device: &Device) {
    assert_eq!(device.node_condition(READ_ONLY), "True");
    assert!(device.nodlet(["get", "events"]).ok().contains("FilesystemIsReadOnly"));
    let text = manifest::pod("new", "sleep");
    for refused in [
        device.nodlet_with_input(["apply", "-f", "-"], &text).refused(),
        device.nodlet(["delete", "pod", "web"]).refused(),
    ] {
        assert!(refused.contains("/var/lib/nodlet/manifests/default_"), "{refused}");
        assert!(refused.contains("Read-only file system"), "{refused}");
    }
    assert!(device.pod("web").is_ready());
    assert_eq!(device.pod("web").demo("app", "print here").ok(), "here\n");
}

#[test]
fn pods_go_on_when_ext4_finds_an_error_and_are_what_they_were_after_a_reboot() {
    let mut device = device();
    // Each run of a container leaves a mark on another file system.
    let (inside, shared) = device.shared("/shared");
    let mounts = "volumeMounts: [{name: shared, mountPath: /shared}]\n";
    let volume = format!("volumes: [{{name: shared, hostPath: {{path: {inside}}}}}]\n");
    for (name, policy) in [("once", "Never"), ("again", "Always")] {
        let steps = format!("append /shared/{name} x then wait /shared/end-{name}");
        let spec = format!("restartPolicy: {policy}\n{volume}");
        let container = manifest::container("app", &steps, mounts);
        device.apply(&manifest::pod_of(name, &[container], &spec));
    }
    device.run_pod("file", "sleep");
    for name in ["once", "again", "file"] {
        device.pod(name).wait_ready();
    }
    let runs = |name: &str| std::fs::read_to_string(shared.join(name)).expect("it has run").lines().count();
    let (uid, log) = (device.pod("web").uid(), device.pod("web").logs("app"));

    device.break_disk();
    require_reading_only(&device);
    // A container that ends is not started anew without a record, and a pod that is removed is ended. Its phase stays what
    // is durable.
    for name in ["once", "again"] {
        std::fs::write(shared.join(format!("end-{name}")), "").expect("another file system");
    }
    device.remove_manifest("file.yaml");
    device.wait_for("the reason", || {
        let events = device.pod("again").events();
        events.iter().any(|event| event.contains("/var/lib/nodlet/pods/") && event.contains("Read-only"))
    });
    for name in ["once", "file"] {
        device.pod(name).wait_terminated("app");
    }
    // The agent is replaced, or ends by itself.
    device.restart_agent();
    require_reading_only(&device);
    assert_eq!((runs("once"), runs("again")), (1, 1));
    assert_eq!(device.pod("web").container("app").restart_count(), 0);

    std::fs::remove_file(shared.join("end-again")).expect("it is there");
    device.power_cycle();
    for name in ["web", "again"] {
        device.pod(name).wait_ready();
    }
    assert_eq!(device.node_condition(READ_ONLY), "");
    assert_eq!((device.pod("web").uid(), device.pod("web").logs("app")), (uid, log));
    assert_eq!((runs("once"), runs("again")), (1, 2));
    assert_ne!(device.pod("once").phase(), "Running");
    let names = device.nodlet(["get", "pods", "-o", "name"]).ok();
    assert!(!names.contains("file") && !names.contains("new"), "{names}");
    device.nodlet(["delete", "pod", "web"]).ok();
    device.pod("web").wait_gone();
}

#[test]
fn down_ends_the_pods_of_a_broken_card_in_their_time_and_names_what_it_could_not_write() {
    let mut device = device();
    let (inside, shared) = device.shared("/shared");
    let mounts = "volumeMounts: [{name: shared, mountPath: /shared}]\n";
    let volume = format!("volumes: [{{name: shared, hostPath: {{path: {inside}}}}}]\n");
    for (name, steps, policy) in [
        ("once", "print up then sleep", "Never"),
        ("ends", "wait /shared/end", "OnFailure"),
        ("deaf", "ignore-term then print up then sleep", "Never"),
        ("leaving", "ignore-term then print up then sleep", "Always"),
    ] {
        let steps = format!("append /shared/{name} x then {steps}");
        let spec = format!("restartPolicy: {policy}\nterminationGracePeriodSeconds: 4\n{volume}");
        let container = manifest::container("app", &steps, mounts);
        device.apply(&manifest::pod_of(name, &[container], &spec));
        device.pod(name).wait_ready();
    }
    let runs = |name: &str| std::fs::read_to_string(shared.join(name)).expect("it has run").lines().count();
    device.nodlet(["delete", "pod", "leaving", "--wait=false"]).ok();
    device.break_disk();
    std::fs::write(shared.join("end"), "").expect("another file system");
    device.pod("ends").wait_terminated("app");

    let begun = Instant::now();
    let mut down = device.command(&["down"]);
    let down = down.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("nodlet can be run");
    let process = nix::unistd::Pid::from_raw(down.id().cast_signed());
    let ended = || {
        // It is not reaped, so that its output can be read.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(process), flags).is_ok_and(|status| status != WaitStatus::StillAlive)
    };
    device.wait_for("the end of nodlet down", ended);
    let down = down.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&down.stderr).into_owned();
    // The pods end side by side, in four seconds.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}\n{said}", begun.elapsed());
    assert!(device.container_processes().is_empty() && device.own_processes().is_empty(), "{said}");
    assert_eq!(down.status.code(), Some(1), "{said}");
    let error = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    for named in ["default/once: failed to write its record: ", "default/leaving: ", "default/web: "] {
        assert!(error.contains(named), "{said}");
    }
    assert!(error.contains("/var/lib/nodlet/pods: Read-only file system"), "{said}");

    // What could not be written is as after a power cut.
    device.power_cycle();
    device.pod("web").wait_ready();
    for name in ["once", "deaf"] {
        device.pod(name).wait_phase("Failed");
        assert_eq!(runs(name), 1, "{name}");
    }
    device.pod("ends").wait_phase("Succeeded");
    assert_eq!((runs("ends"), runs("leaving")), (2, 1));
    assert!(!device.nodlet(["get", "pods", "-o", "name"]).ok().contains("leaving"));
}
