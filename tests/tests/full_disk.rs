//! Pods that fill the file system of the data: with blocks or inodes, without privileges or as root, at each place that
//! a container can write to. The pod is evicted, and no other one; what is asked of the board meanwhile is done.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nodlet_tests::{Device, manifest};

/// A restricted pod's fields.
const RESTRICTED: &str = "securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
";

const MOUNT: &str = "volumeMounts: [{name: data, mountPath: /data}]\n";
const VOLUME: &str = "terminationGracePeriodSeconds: 1\nvolumes: [{name: data, emptyDir: {}}]\n";

/// A device whose `/var` is a file system of 64 MiB with few inodes and no reserved blocks, as process 1 makes them.
fn device() -> Device {
    device_with("2048")
}

/// The device of [`device`] with so many inodes.
fn device_with(inodes: &str) -> Device {
    let mut device = Device::new();
    device.run_on_a_disk_of(64, "mkfs.ext4", &["-m", "0", "-N", inodes], "");
    device.agent_arguments(["--container-log-max-size", "1Gi"]);
    start(&mut device);
    device
}

/// Starts the agent, and waits until the disk has the reserve.
fn start(device: &mut Device) {
    device.start_agent_with_demo();
    // Without anybody who asks.
    device.wait_for("the reserve", || spares(device) == 64);
}

/// Whether all spare files exist. An idle agent measures nothing.
fn has_reserve(device: &Device) -> bool {
    let _ = device.get("/api/v1/nodes");
    spares(device) == 64
}

/// Waits for a condition that an agent brings about when it measures the disk. An idle agent measures nothing.
#[track_caller]
fn wait_measuring(device: &Device, what: &str, condition: impl Fn() -> bool) {
    device.wait_within(Duration::from_secs(120), what, || {
        let _ = device.get("/api/v1/nodes");
        condition()
    });
}

/// Asserts that the pod `web` runs on, and has never restarted.
#[track_caller]
fn assert_undisturbed(device: &Device, what: &str) {
    let web = device.pod("web");
    assert_eq!(web.container("app").restart_count(), 0, "{what}");
    assert!(web.is_ready(), "{what}");
}

/// The number of spare files.
fn spares(device: &Device) -> usize {
    let entries = std::fs::read_dir(device.path("/var/lib/nodlet/reserve")).into_iter().flatten().flatten();
    let is_spare = |name: &str| name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_digit());
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_spare)).count()
}

/// Waits until the disk has no block or no inode left. No log can show it then.
fn wait_full(device: &Device) {
    device.wait_for("the disk to be full", || {
        let disk = nix::sys::statvfs::statvfs(&device.path("/var")).expect("it is mounted");
        disk.blocks_available() == 0 || disk.files_available() == 0
    });
}

/// A pod that fills the disk by these steps.
fn hog(steps: &str, container: &str, spec: &str) -> String {
    let container = manifest::container("app", steps, &format!("{container}{MOUNT}"));
    manifest::pod_of("hog", &[container], &format!("{VOLUME}{spec}"))
}

/// A pod with some bytes of its own, which must not be evicted for those of another one.
fn start_innocent(device: &Device) {
    let steps = "spam-file /data/own 2000000 then print up then sleep";
    let container = manifest::container("app", steps, MOUNT);
    device.run_pod_of("web", &[container], VOLUME).wait_log("app", "up");
}

/// Waits until the hog is evicted, and its files are removed, while the pod `web` runs on.
fn wait_evicted(device: &Device) {
    let hog = device.pod("hog");
    wait_measuring(device, "the eviction", || hog.status()["reason"] == "Evicted");
    assert_eq!(hog.phase(), "Failed");
    let files = hog.directory();
    device.wait_for("the removal of the files", || !files.exists());
    device.wait_for("the reserve", || has_reserve(device));
    assert_undisturbed(device, "beside the eviction");
}

/// Applies a ConfigMap.
fn apply(device: &Device, name: &str) {
    let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: b}}\n");
    device.apply(&text);
}

#[test]
fn a_pod_that_fills_the_disk_is_evicted_alone_whatever_it_fills_it_with() {
    for (what, steps, container) in [
        ("blocks of a volume, without privileges", "fill /data/file", RESTRICTED),
        ("inodes of a volume, without privileges", "fill-inodes /data", RESTRICTED),
        ("a volume, by a container that crashes then", "spam-file /data/file 1000000000", RESTRICTED),
        ("blocks of the writable layer, as root", "fill /file", ""),
        ("inodes of the writable layer, as root", "mkdir /many then fill-inodes /many", ""),
        ("the termination message", "fill /dev/termination-log", ""),
        ("/etc/hosts", "fill /etc/hosts", ""),
        ("the log", "spam 100000000 then sleep", ""),
        (
            "a file without a name",
            "leave fill /data/file then wait /data/file then rm /data/file then sleep",
            RESTRICTED,
        ),
        (
            "a file of the writable layer without a name, as root",
            "leave fill /file then wait /file then rm /file then sleep",
            "",
        ),
    ] {
        eprintln!("{what}");
        let mut device = device();
        start_innocent(&device);
        device.write_manifest("hog.yaml", &hog(steps, container, ""));
        wait_evicted(&device);
        // Neither runs again wrongly, or stays dead wrongly.
        device.power_cycle();
        device.pod("web").wait_ready();
        assert_eq!(device.pod("hog").phase(), "Failed", "{what}");
        assert_eq!(device.pod("hog").status()["reason"], "Evicted", "{what}");
    }
}

#[test]
fn a_pod_that_fills_the_disk_while_it_is_deleted_ends_before_its_grace_period_and_no_other_one_does() {
    let device = device();
    start_innocent(&device);
    let steps = "ignore-term then print up then wait /data/go then fill /data/file";
    let slow = hog(steps, RESTRICTED, "").replace("Seconds: 1\n", "Seconds: 3600\n");
    device.apply(&slow);
    device.pod("hog").wait_log("app", "up");
    device.nodlet(["delete", "pod", "hog", "--wait=false"]).ok();
    device.pod("hog").tell("app", "/data/go");
    wait_measuring(&device, "the end of the pod", || device.pods() == ["web"]);
    assert_undisturbed(&device, "after the end of the pod");
}

#[test]
fn pods_that_end_on_a_full_disk_leave_room_for_the_eviction() {
    let mut device = device_with("8192");
    start_innocent(&device);
    // More of them than spare files.
    let jobs = 70;
    let gate = device.path("/gate");
    std::fs::create_dir(&gate).expect("a directory");
    std::fs::set_permissions(&gate, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let spec = |rest: &str| {
        format!(
            "{rest}terminationGracePeriodSeconds: 1\nvolumes:\n- {{name: data, emptyDir: {{}}}}\n- {{name: gate, \
             hostPath: {{path: {}}}}}\n",
            gate.display()
        )
    };
    let mounts = format!(
        "{RESTRICTED}volumeMounts: [{{name: data, mountPath: /data}}, {{name: gate, mountPath: /gate}}]\n"
    );
    let pod = |name: &str, steps: &str, rest: &str| {
        manifest::pod_of(name, &[manifest::container("app", steps, &mounts)], &spec(rest))
    };
    for job in 0..jobs {
        let name = format!("job-{job:02}");
        let steps = format!("wait /gate/go then spam-file /gate/{name} 1 then exit 1");
        let text = pod(&name, &steps, "restartPolicy: Never\n");
        device.write_manifest(&format!("{name}.yaml"), &text);
    }
    device.write_manifest("hog.yaml", &pod("hog", "wait /gate/fill then fill /data/file", ""));
    let phases = |device: &Device, wanted: &str| {
        let pods = device.get("/api/v1/pods").unwrap_or_default();
        let pods = pods["items"].as_array().into_iter().flatten();
        pods.filter(|pod| pod["status"]["phase"] == wanted).count()
    };
    device
        .wait_within(Duration::from_secs(120), "all pods to run", || phases(&device, "Running") == jobs + 2);
    std::fs::write(gate.join("fill"), "").expect("a file");
    wait_full(&device);
    // All of them end before the eviction is decided.
    device.kill_agent();
    std::fs::write(gate.join("go"), "").expect("a file");
    let ended = || std::fs::read_dir(&gate).into_iter().flatten().flatten().count() == jobs + 2;
    device.wait_for("all to end", ended);
    device.start_agent();
    wait_evicted(&device);
    device.wait_for("all that ended to be recorded", || phases(&device, "Failed") == jobs + 1);
    apply(&device, "new");
    device.power_cycle();
    device.pod("web").wait_ready();
    assert_eq!(phases(&device, "Failed"), jobs + 1);
    assert_eq!(device.pod("hog").status()["reason"], "Evicted");
}

#[test]
fn objects_are_applied_and_pods_deleted_on_a_disk_that_stays_full() {
    for steps in ["fill /data/file", "fill-inodes /data"] {
        let device = device();
        start_innocent(&device);
        // A critical pod is not evicted.
        let critical = "priorityClassName: system-node-critical\n";
        let text =
            hog(steps, RESTRICTED, critical).replace("name: hog\n", "name: hog\n  namespace: kube-system\n");
        device.apply(&text);
        wait_full(&device);
        apply(&device, "new");
        apply(&device, "newer");
        assert!(device.nodlet(["get", "configmaps"]).ok().contains("newer"));
        // Leaving a cluster is recorded by the verb itself.
        std::fs::write(device.path("/etc/nodlet/bootstrap-kubeconfig"), "").expect("it is on another disk");
        device.nodlet(["leave"]).ok();
        assert!(device.path("/var/lib/nodlet/cluster-left").exists());
        // The innocent pod is the only one that may be evicted, and its record is durable nevertheless.
        wait_measuring(&device, "the eviction", || device.pod("web").status()["reason"] == "Evicted");
        device.remove_pod("web");
        device.nodlet(["delete", "configmap", "new"]).ok();
        device.nodlet(["delete", "pod", "-n", "kube-system", "hog"]).ok();
        device.wait_for("the reserve", || has_reserve(&device));
        assert!(device.nodlet(["get", "configmaps"]).ok().contains("newer"));
    }
}

#[test]
fn a_pod_that_fills_a_disk_with_the_run_time_directory_is_evicted_alone_by_the_next_agent_too() {
    for (steps, kill) in [
        ("fill /data/file", false),
        ("fill-inodes /data", false),
        ("fill /data/file", true),
        // The next agent has no inode for its socket at first.
        ("fill-inodes /data", true),
    ] {
        let mut device = Device::new();
        device.run_on_a_disk_of(64, "mkfs.ext4", &["-m", "0", "-N", "2048"], "");
        device.run_beside_data();
        start(&mut device);
        start_innocent(&device);
        device.write_manifest("hog.yaml", &hog(steps, RESTRICTED, ""));
        wait_full(&device);
        if kill {
            device.restart_agent();
        }
        wait_evicted(&device);
        device.nodlet(["down"]).ok();
    }
}

#[test]
#[ignore = "needs a kernel with these file systems, and their programs: cargo xtask guest disk"]
fn a_pod_that_fills_another_file_system_than_ext4_is_evicted_alone() {
    for (program, mib, steps) in [
        ("mkfs.xfs", 512, "fill /data/file"),
        ("mkfs.xfs", 512, "fill-inodes /data"),
        ("mkfs.btrfs", 256, "fill /data/file"),
    ] {
        eprintln!("{program}: {steps}");
        let mut device = Device::new();
        device.run_on_a_disk_of(mib, program, &[], "");
        start(&mut device);
        start_innocent(&device);
        device.write_manifest("hog.yaml", &hog(steps, RESTRICTED, ""));
        wait_evicted(&device);
        apply(&device, "new");
        device.power_cycle();
        device.pod("web").wait_ready();
        assert_eq!(device.pod("hog").status()["reason"], "Evicted");
        assert!(device.nodlet(["get", "configmaps"]).ok().contains("new"));
    }
}

#[test]
#[ignore = "needs a kernel with project quotas: cargo xtask guest disk"]
fn a_file_without_a_name_counts_once_where_a_project_quota_counts_it_too() {
    let mut device = Device::new();
    device.run_on_a_disk_of(64, "mkfs.ext4", &["-m", "0", "-O", "quota,project"], "");
    start(&mut device);
    let disk = nix::sys::statvfs::statvfs(&device.path("/var")).expect("it is mounted");
    // Less than the hog will have, and more than half of it.
    let size = disk.blocks_available() * disk.fragment_size() / 10 * 4;
    let steps =
        format!("spam-file /data/own {size} then lock /data/own then rm /data/own then print up then sleep");
    // Only volumes with a limit have a quota.
    let volume = VOLUME.replace("emptyDir: {}", "emptyDir: {sizeLimit: 64Mi}");
    let container = manifest::container("app", &steps, MOUNT);
    device.run_pod_of("web", &[container], &format!("hostUsers: false\n{volume}")).wait_log("app", "up");
    device.write_manifest("hog.yaml", &hog("fill /data/file", RESTRICTED, ""));
    wait_evicted(&device);
}
