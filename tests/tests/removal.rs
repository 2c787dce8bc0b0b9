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
        _ => manifest::single(name, "print up then sleep", mount, volume),
    }
}

/// Runs the pod until the data that is to be stuck exists.
fn run(device: &Device, name: &str) {
    device.write_pod(name, &manifest_of(name));
    device.wait_for(&format!("{name} to be up"), || device.pod(name).logs("app") == "up\n");
    match name {
        "record" => drop(device.pod(name).wait_phase("Succeeded")),
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
            device.write_pod(name, &next);
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
        device.pod(name).wait_event_of("FailedKillPod", why);
        let pod = device.pod(name).object().expect("it is shown until it is gone");
        // A finished pod needs no time to end.
        assert_eq!(pod["metadata"]["deletionTimestamp"].is_string(), name != "record", "{name}: {pod:#}");
    }
    // Pods that are put back wait for the removal of their own data.
    for (name, _) in STUCK {
        device.run_pod(name, "print again then sleep");
    }
    assert_eq!(device.container_processes(), Vec::<u32>::new());
    drop(stuck);
    for (name, _) in STUCK {
        device.wait_for(&format!("{name} to run again"), || device.pod(name).logs("app") == "again\n");
        device.pod(name).wait_ready();
    }
}

#[test]
fn immutable_files_of_a_volume_are_removed_with_the_pod() {
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
    device.remove_pod("kept");
    device.wait_for("the volume to go", || !volume.exists());
}

#[test]
fn a_pod_that_cannot_be_removed_is_removed_by_the_next_agent() {
    let mut device = Device::start();
    run(&device, "record");
    let record = place(&device, "record");
    let stuck = Stuck::new(record.clone());
    device.remove_manifest("record.yaml");
    device.pod("record").wait_event_of("FailedKillPod", "");
    device.kill_agent();
    drop(stuck);
    device.start_agent();
    device.wait_for("the record to be removed", || !record.exists());
    device.run_pod("record", "print again then sleep");
    device.wait_for("it to run again", || device.pod("record").logs("app") == "again\n");
}

/// If logs could delay a pod's removal, a log collector's pod could delay the removal of every other pod. The status file
/// is for later agents of this boot only, so that it need not keep the pod.
#[test]
fn a_pod_whose_logs_and_status_file_cannot_be_removed_is_gone_and_they_are_swept_later() {
    let mut device = Device::start();
    run(&device, "logs");
    let uid = device.pod("logs").uid();
    let status = device.path("/run/nodlet/statuses").join(format!("{uid}.json"));
    let files = [place(&device, "logs"), status];
    let stuck = files.clone().map(Stuck::new);
    device.remove_pod("logs");
    device.wait_logged("failed to remove the logs of default/logs: ");
    device.wait_logged(&format!("failed to remove the status file of {uid}"));
    assert!(files.iter().all(|file| file.exists()));
    device.kill_agent();
    drop(stuck);
    device.start_agent();
    device.wait_for("the files to be removed", || !files.iter().any(|file| file.exists()));
    assert_eq!(device.pods(), Vec::<String>::new());
}

/// The manifest of a pod with a UID of its own, so that the place of its files is known before it exists.
fn with_uid(name: &str) -> String {
    manifest::pod(name, "print up then sleep").replacen(
        "  name:",
        &format!("  uid: uid-of-{name}\n  name:"),
        1,
    )
}

/// Otherwise a deleted pod would leave its Secrets in memory, and a later pod would get an address that is in use.
#[test]
fn remains_of_a_failed_sandbox_are_removed_before_the_next_try_and_before_the_pod_is_gone() {
    let device = Device::start();
    let place = |name: &str| device.path("/run/nodlet/pods").join(format!("uid-of-{name}"));
    let names = ["again", "deleted"];
    let stuck = names.map(|name| {
        fs::create_dir_all(place(name)).expect("the root can be written to");
        Stuck::new(place(name))
    });
    for name in names {
        device.write_pod(name, &with_uid(name));
    }
    for name in names {
        device.pod(name).wait_event_of("FailedCreatePodSandBox", "Failed to create pod sandbox");
        device.pod(name).wait_event_of("FailedKillPod", "failed to remove /");
    }
    device.remove_manifest("deleted.yaml");
    device.run_pod("other", "sleep").wait_ready();
    assert!(device.pod("deleted").object().is_some(), "a pod is shown until it is gone");
    drop(stuck);
    device.pod("deleted").wait_gone();
    assert!(!place("deleted").exists());
    device.pod("again").wait_ready();
    device.pod("again").wait_log("app", "up");
    let address = |name: &str| device.pod(name).ip().parse::<std::net::Ipv4Addr>().expect("an address");
    assert!(address("again") < address("other"), "an address was given away while its pod had remains");
}

#[test]
fn the_volumes_of_a_finished_pod_go_as_soon_as_they_can() {
    let device = Device::start();
    let spec = "restartPolicy: Never\nvolumes: [{name: kept, emptyDir: {}}]";
    device
        .write_single(
            "volumes",
            "print up then wait /kept/go",
            "volumeMounts: [{name: kept, mountPath: /kept}]",
            spec,
        )
        .wait_log("app", "up");
    let place = place(&device, "volumes");
    let stuck = Stuck::new(place.clone());
    fs::write(place.join("volumes/kubernetes.io~empty-dir/kept/go"), "").expect("written");
    device.pod("volumes").wait_phase("Succeeded");
    device.pod("volumes").wait_event_of("FailedKillPod", "failed to remove its volumes");
    assert!(place.exists());
    drop(stuck);
    device.wait_for("the volumes to go", || !place.exists());
    assert_eq!(device.pod("volumes").phase(), "Succeeded");
}

#[test]
fn what_cannot_be_removed_of_earlier_runs_goes_with_later_ones_or_with_the_pod() {
    let device = Device::start();
    let web = device.run_pod("web", "print up then wait /tmp/go").wait_ready();
    let uid = web.uid();
    let layers = device.path("/var/lib/nodlet/pods").join(&uid).join("containers/app");
    let logs = device.path("/var/log/pods").join(format!("default_web_{uid}/app"));
    let directory = device.path("/run/nodlet/pods").join(&uid);
    let file = directory_with(&directory, "app_0.json").join("app_0.json");
    let restart = |count: i64| {
        web.tell("app", "/tmp/go");
        device.wait_for("the next run", || web.container("app").restart_count() == count && web.is_ready());
    };
    // A writable layer.
    let (stuck_layer, stuck_file) = (Stuck::new(layers.join("0")), Stuck::new(file.clone()));
    restart(1);
    device.wait_logged(&format!("failed to remove {}", layers.join("0").display()));
    drop(stuck_layer);
    // A log.
    let stuck_log = Stuck::new(logs.join("0.log"));
    restart(2);
    device.wait_for("both layers to go", || !layers.join("0").exists() && !layers.join("1").exists());
    assert!(layers.join("2").exists());
    device.wait_logged(&format!("failed to remove earlier logs from {}", logs.display()));
    assert!(logs.join("0.log").exists());
    drop(stuck_log);
    restart(3);
    device.wait_for("both logs to go", || !logs.join("0.log").exists() && !logs.join("1.log").exists());
    assert!(logs.join("2.log").exists() && logs.join("3.log").exists());
    // A file about a run: the removal of the whole directory takes the flag away.
    device.wait_logged(&format!("failed to remove {}", file.display()));
    device.remove_manifest("web.yaml");
    device.wait_for("the pod to go", || web.object().is_none() && !directory.exists());
    std::mem::forget(stuck_file);
}

#[test]
fn a_lock_of_volumes_that_cannot_be_removed_holds_no_volume() {
    let device = Device::start();
    let disk = device.path("/disk");
    fs::create_dir(&disk).expect("it can be made");
    let volume = format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: disk}}\n\
         spec: {{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOncePod], hostPath: {{path: {}}}}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data}}\n\
         spec: {{accessModes: [ReadWriteOncePod], resources: {{requests: {{storage: 10Mi}}}}}}\n",
        disk.display()
    );
    device.write_manifest("disk.yaml", &volume);
    let user = |name: &str| {
        manifest::single(
            name,
            "print up then wait /tmp/never",
            "volumeMounts: [{name: data, mountPath: /data}]",
            "terminationGracePeriodSeconds: 1\nvolumes: [{name: data, persistentVolumeClaim: {claimName: data}}]",
        )
    };
    device.write_pod("one", &user("one")).wait_ready();
    let uid = device.pod("one").uid();
    let locks =
        fs::read_dir("/run/nodlet-volumes").expect("it is there").map(|entry| entry.expect("read").path());
    let lock = locks.into_iter().find(|path| path.display().to_string().ends_with(&uid)).expect("its lock");
    let stuck = Stuck::new(lock.clone());
    device.remove_pod("one");
    device.wait_logged("failed to remove the lock of the volumes");
    device.write_pod("two", &user("two")).wait_ready();
    assert!(lock.exists());
    drop(stuck);
    device.remove_manifest("two.yaml");
    device.write_pod("three", &user("three")).wait_ready();
    assert!(!lock.exists(), "a later pod removes it");
}

#[test]
fn a_kept_manifest_that_cannot_be_removed_changes_nothing_and_goes_with_a_later_agent() {
    let mut device = Device::start();
    run(&device, "held");
    let kept = place(&device, "held");
    let stuck = Stuck::new(kept.clone());
    let born = device.pod("held").born("app");
    // The change is taken back.
    device.write_manifest("held.yaml", &manifest_of("held"));
    device.wait_logged("failed to remove a kept manifest: ");
    assert_eq!(device.pod("held").born("app"), born);
    device.power_cycle();
    device.pod("held").wait_ready();
    assert!(kept.exists());
    let image = device.pod("held").get("/spec/containers/0/image");
    assert!(image.as_str().is_some_and(|image| image.ends_with("demo:1")), "{image}");
    device.kill_agent();
    drop(stuck);
    device.start_agent();
    device.wait_for("the file to go", || !kept.exists());
    device.pod("held").wait_ready();
}

/// A file system that hides a directory of another, which therefore cannot be removed.
struct Covered(PathBuf);

impl Covered {
    fn new(path: PathBuf) -> Covered {
        let tmpfs = Some("tmpfs");
        nix::mount::mount(tmpfs, &path, tmpfs, nix::mount::MsFlags::empty(), None::<&str>)
            .expect("root can mount a tmpfs");
        Covered(path)
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_pod_stays_until_its_cgroup_can_be_removed() {
    let device = Device::start();
    device.run_pod("web", "print up then sleep").wait_ready();
    let name = format!("pod{}", device.pod("web").uid());
    let is_of_pod = |path: &PathBuf| {
        path.ends_with(&name) && path.components().any(|part| part.as_os_str() == "kubepods")
    };
    let cgroups: Vec<PathBuf> = device.cgroups().into_iter().filter(is_of_pod).collect();
    let cgroup = cgroups.iter().find(|path| path.starts_with("/sys/fs/cgroup/pids")).or(cgroups.first());
    let cgroup = cgroup.expect("a running pod has a cgroup").clone();
    let covered = Covered::new(cgroup.clone());
    device.remove_manifest("web.yaml");
    device.pod("web").wait_event_of("FailedKillPod", &format!("remove {}", cgroup.display()));
    assert!(device.pod("web").object().is_some(), "a pod is shown until it is gone");
    assert_eq!(device.container_processes(), Vec::<u32>::new());
    drop(covered);
    device.pod("web").wait_gone();
    assert!(cgroups.iter().all(|cgroup| !cgroup.exists()), "{cgroups:?}");
}

/// An object that was reported as deleted, and came back at the next start, would run what its owner has removed.
#[test]
fn a_deletion_whose_manifest_cannot_be_removed_fails_and_succeeds_later() {
    let device = Device::start();
    let settings = "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {a: b}}";
    let web = manifest::pod("web", "print up then sleep");
    device.run_applied("web", &format!("{settings}\n---\n{web}"));
    let (processes, uid) = (device.container_processes(), device.pod("web").uid());
    let stuck = Stuck::new(device.path("/var/lib/nodlet/manifests"));
    for what in ["pod/web", "configmap/settings"] {
        device.nodlet(["delete", what]).refused_with("failed to remove /");
        device.nodlet(["get", what]).ok();
    }
    assert_eq!(device.container_processes(), processes, "a pod that stays is not disturbed");
    assert!(device.pod("web").object().expect("it is shown")["metadata"].get("deletionTimestamp").is_none());
    drop(stuck);
    for what in ["pod/web", "configmap/settings"] {
        device.nodlet(["delete", what]).ok();
    }
    device.pod("web").wait_gone();
    assert!(device.nodlet(["get", "configmap/settings"]).refused().contains("not found"));
    assert!(!device.path("/run/nodlet/pods").join(&uid).exists());
}
