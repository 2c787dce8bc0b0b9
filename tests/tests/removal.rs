//! A pod's data cannot be removed, because the card is read-only or damaged in one place. The pod stays until
//! the data can be removed, reports why, and runs again if its manifest is put back.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nodlet_tests::{Device, manifest};
use serde_json::json;

/// A file or directory that not even root can change, as on a card with an error.
struct Stuck(PathBuf);

impl Stuck {
    fn new(path: PathBuf) -> Stuck {
        make_immutable(&path, true);
        Stuck(path)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        make_immutable(&self.0, false);
    }
}

nix::ioctl_read!(
    /// Reads the flags of a file: `FS_IOC_GETFLAGS`.
    flags_of, b'f', 1, libc::c_long
);
nix::ioctl_write_ptr!(
    /// Sets the flags of a file: `FS_IOC_SETFLAGS`.
    set_flags, b'f', 2, libc::c_long
);

/// Does what `chattr +i` and `chattr -i` do.
fn make_immutable(path: &Path, immutable: bool) {
    const FS_IMMUTABLE_FL: libc::c_long = 0x10;
    let file = File::open(path).expect("it can be opened");
    let mut flags = 0;
    // SAFETY: the kernel reads and writes the flags, which outlive the calls.
    unsafe {
        flags_of(file.as_raw_fd(), &raw mut flags).expect("the file system has flags");
        flags = if immutable { flags | FS_IMMUTABLE_FL } else { flags & !FS_IMMUTABLE_FL };
        set_flags(file.as_raw_fd(), &raw const flags).expect("the flag is taken");
    }
}

/// The directory below `parent` that contains an entry with this name.
fn directory_with(parent: &Path, name: &str) -> PathBuf {
    let entries = fs::read_dir(parent).expect("it can be read").map(|entry| entry.expect("read").path());
    entries.into_iter().find(|path| path.join(name).exists()).expect("one has it")
}

/// The data that cannot be removed, and the text of its event.
const STUCK: [(&str, &str); 7] = [
    ("volumes", "failed to remove its volumes"),
    ("lease", "failed to remove its image leases"),
    ("record", "failed to remove its record"),
    ("ephemeral", "failed to remove its record"),
    ("held", "failed to remove its record"),
    ("lock", "failed to remove the lock default_lock"),
    ("sandbox", "failed to remove /"),
];

/// The path of the data that cannot be removed, for the pod with this name.
fn place(device: &Device, name: &str) -> PathBuf {
    let uid = device.pod(name).uid();
    let path = |inside: &str| device.path(inside);
    match name {
        "volumes" => path("/var/lib/nodlet/pods").join(uid),
        "logs" => path("/var/log/pods").join(format!("default_{name}_{uid}")),
        "lease" => directory_with(&path("/run/nodlet/leases"), &uid).join(uid),
        "record" => path("/var/lib/nodlet/records").join(format!("{uid}.json")),
        "ephemeral" => path("/var/lib/nodlet/records").join(format!("{uid}.ephemeral")),
        "held" => path("/var/lib/nodlet/records").join(format!("{uid}.kept")),
        "lock" => path("/run/nodlet/locks").join(format!("default_{name}")),
        "sandbox" => path("/run/nodlet/pods").join(uid),
        other => panic!("nobody knows {other}"),
    }
}

/// The manifest of a pod that has the data that is to be stuck; only a finished pod has a record.
fn manifest_of(name: &str) -> String {
    let mount = "volumeMounts: [{name: kept, mountPath: /kept}]";
    let volume = "volumes: [{name: kept, emptyDir: {}}]";
    match name {
        "record" => manifest::pod_with(name, "print up", "restartPolicy: Never"),
        _ => manifest::pod_of(name, &[manifest::container("app", "print up then sleep", mount)], volume),
    }
}

/// Runs the pod until the data that is to be stuck exists.
fn run(device: &Device, name: &str) {
    device.write_manifest(&format!("{name}.yaml"), &manifest_of(name));
    device.wait_for(&format!("{name} to be up"), || device.pod(name).logs("app") == "up\n");
    match name {
        "record" => device.pod(name).wait_phase("Succeeded"),
        "ephemeral" => {
            let target = format!("/api/v1/namespaces/default/pods/{name}/ephemeralcontainers");
            let debugger = json!({ "name": "debugger", "image": "localhost/demo:1" });
            let patch = json!({ "spec": { "ephemeralContainers": [debugger] } });
            let added = device.patch(&target, "strategic-merge", &patch);
            assert_eq!(added.0, 200, "{added:?}");
        }
        "held" => {
            // A version whose image is not on the board is held back, and the present one is kept.
            let next = manifest_of(name).replacen("demo:1", "demo:2", 1);
            device.write_manifest(&format!("{name}.yaml"), &next);
            device.wait_for("the present version to be kept", || place(device, name).exists());
        }
        _ => {}
    }
}

#[test]
fn a_pod_stays_until_all_of_it_can_be_removed_and_then_runs_again() {
    let device = Device::start();
    for (name, _) in STUCK {
        run(&device, name);
    }
    let stuck: Vec<Stuck> = STUCK.map(|(name, _)| Stuck::new(place(&device, name))).into();
    for (name, _) in STUCK {
        device.remove_manifest(&format!("{name}.yaml"));
    }
    for (name, why) in STUCK {
        device.wait_for(&format!("the event of {name}"), || {
            let events = device.pod(name).events();
            events.iter().any(|event| event.starts_with("FailedKillPod") && event.contains(why))
        });
        let pod = device.pod(name).object().expect("it is shown until it is gone");
        // A finished pod needs no time to end.
        assert_eq!(pod["metadata"]["deletionTimestamp"].is_string(), name != "record", "{name}: {pod:#}");
    }
    // Pods that are put back wait for the removal of their own data.
    for (name, _) in STUCK {
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod(name, "print again then sleep"));
    }
    assert_eq!(device.container_processes(), Vec::<u32>::new());
    drop(stuck);
    for (name, _) in STUCK {
        device.wait_for(&format!("{name} to run again"), || device.pod(name).logs("app") == "again\n");
        device.pod(name).wait_ready();
    }
}

#[test]
fn what_a_container_made_immutable_goes_with_its_pod() {
    let device = Device::start();
    run(&device, "kept");
    let volume = device.path("/var/lib/nodlet/pods").join(device.pod("kept").uid());
    let volume = volume.join("volumes/kubernetes.io~empty-dir/kept");
    let (directory, file) = (volume.join("deep"), volume.join("deep/file"));
    fs::create_dir(&directory).expect("made");
    fs::write(&file, "for ever").expect("written");
    // A container with CAP_LINUX_IMMUTABLE can do the same.
    for path in [&file, &directory, &volume] {
        make_immutable(path, true);
    }
    device.remove_manifest("kept.yaml");
    device.pod("kept").wait_gone();
    device.wait_for("the volume to go", || !volume.exists());
}

#[test]
fn a_pod_that_cannot_be_removed_is_removed_by_the_next_agent() {
    let mut device = Device::start();
    run(&device, "record");
    let record = place(&device, "record");
    let stuck = Stuck::new(record.clone());
    device.remove_manifest("record.yaml");
    device.wait_for("the event", || {
        device.pod("record").events().iter().any(|event| event.starts_with("FailedKillPod"))
    });
    device.kill_agent();
    drop(stuck);
    device.start_agent();
    device.wait_for("the record to be removed", || !record.exists());
    device.write_manifest("record.yaml", &manifest::pod("record", "print again then sleep"));
    device.wait_for("it to run again", || device.pod("record").logs("app") == "again\n");
}

/// If logs could delay a pod's removal, a log collector's pod could delay the removal of every other pod.
#[test]
fn a_pod_whose_logs_cannot_be_removed_is_gone_and_its_logs_are_swept_later() {
    let mut device = Device::start();
    run(&device, "logs");
    let logs = place(&device, "logs");
    let stuck = Stuck::new(logs.clone());
    device.remove_manifest("logs.yaml");
    device.pod("logs").wait_gone();
    assert!(device.agent_log().contains("failed to remove the logs of default/logs: "));
    assert!(logs.exists());
    device.kill_agent();
    drop(stuck);
    device.start_agent();
    device.wait_for("the logs to be removed", || !logs.exists());
}
