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
        device.write_manifest(&format!("{name}.yaml"), &with_uid(name));
    }
    for name in names {
        let has_event = |reason: &str, text: &str| {
            let events = device.pod(name).events();
            events.iter().any(|event| event.starts_with(reason) && event.contains(text))
        };
        device.wait_for(&format!("the creation of {name} to fail"), || {
            has_event("FailedCreatePodSandBox", "Failed to create pod sandbox")
        });
        device.wait_for(&format!("the removal for {name} to fail"), || {
            has_event("FailedKillPod", "failed to remove /")
        });
    }
    device.remove_manifest("deleted.yaml");
    device.write_manifest("other.yaml", &manifest::pod("other", "sleep"));
    device.pod("other").wait_ready();
    assert!(device.pod("deleted").object().is_some(), "a pod is shown until it is gone");
    drop(stuck);
    device.pod("deleted").wait_gone();
    assert!(!place("deleted").exists());
    device.pod("again").wait_ready();
    device.pod("again").wait_log("app", "up");
    let address = |name: &str| device.pod(name).ip().parse::<std::net::Ipv4Addr>().expect("an address");
    assert!(address("again") < address("other"), "an address was given away while its pod had remains");
}

/// Whether the pod has an event about a removal that failed, with this text.
fn has_failed(device: &Device, name: &str, text: &str) -> bool {
    let events = device.pod(name).events();
    events.iter().any(|event| event.starts_with("FailedKillPod") && event.contains(text))
}

#[test]
fn the_volumes_of_a_finished_pod_go_as_soon_as_they_can() {
    let device = Device::start();
    let app = manifest::container(
        "app",
        "print up then wait /kept/go",
        "volumeMounts: [{name: kept, mountPath: /kept}]",
    );
    let spec = "restartPolicy: Never\nvolumes: [{name: kept, emptyDir: {}}]";
    device.write_manifest("volumes.yaml", &manifest::pod_of("volumes", &[app], spec));
    device.pod("volumes").wait_log("app", "up");
    let place = place(&device, "volumes");
    let stuck = Stuck::new(place.clone());
    fs::write(place.join("volumes/kubernetes.io~empty-dir/kept/go"), "").expect("written");
    device.pod("volumes").wait_phase("Succeeded");
    device.wait_for("the event", || has_failed(&device, "volumes", "failed to remove its volumes"));
    assert!(place.exists());
    drop(stuck);
    device.wait_for("the volumes to go", || !place.exists());
    assert_eq!(device.pod("volumes").phase(), "Succeeded");
}

#[test]
fn a_writable_layer_that_cannot_be_removed_goes_with_the_next_one() {
    let device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then wait /tmp/go"));
    let web = device.pod("web");
    web.wait_ready();
    let layers = device.path("/var/lib/nodlet/pods").join(web.uid()).join("containers/app");
    let stuck = Stuck::new(layers.join("0"));
    web.tell("app", "/tmp/go");
    device.wait_for("the layer to be kept", || {
        let text = format!("failed to remove {}", layers.join("0").display());
        device.agent_log().contains(&text)
    });
    drop(stuck);
    device.wait_for("it to run again", || web.container("app").restart_count() == 1 && web.is_ready());
    web.tell("app", "/tmp/go");
    device.wait_for("it to run once more", || web.container("app").restart_count() == 2 && web.is_ready());
    device.wait_for("both layers to go", || !layers.join("0").exists() && !layers.join("1").exists());
    assert!(layers.join("2").exists());
}

#[test]
fn logs_of_earlier_runs_that_cannot_be_removed_go_with_the_next_ones() {
    let device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then wait /tmp/go"));
    let web = device.pod("web");
    web.wait_ready();
    let logs = device.path("/var/log/pods").join(format!("default_web_{}/app", web.uid()));
    let restart = |count: i64| {
        web.tell("app", "/tmp/go");
        device.wait_for("the next run", || web.container("app").restart_count() == count && web.is_ready());
    };
    restart(1);
    let stuck = Stuck::new(logs.join("0.log"));
    restart(2);
    let text = format!("failed to remove earlier logs from {}", logs.display());
    device.wait_for("the log to be kept", || device.agent_log().contains(&text));
    assert!(logs.join("0.log").exists());
    drop(stuck);
    restart(3);
    device.wait_for("both logs to go", || !logs.join("0.log").exists() && !logs.join("1.log").exists());
    assert!(logs.join("2.log").exists() && logs.join("3.log").exists());
}

#[test]
fn a_file_about_a_run_that_cannot_be_removed_goes_with_the_pod() {
    let device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then wait /tmp/go"));
    let web = device.pod("web");
    web.wait_ready();
    let directory = device.path("/run/nodlet/pods").join(web.uid());
    let file = directory_with(&directory, "app_0.json").join("app_0.json");
    let stuck = Stuck::new(file.clone());
    for count in [1, 2] {
        web.tell("app", "/tmp/go");
        device.wait_for("the next run", || web.container("app").restart_count() == count && web.is_ready());
    }
    let text = format!("failed to remove {}", file.display());
    device.wait_for("the file to be kept", || device.agent_log().contains(&text));
    device.remove_manifest("web.yaml");
    // The removal of the whole directory takes the flag away.
    device.wait_for("the pod to go", || web.object().is_none() && !directory.exists());
    std::mem::forget(stuck);
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
        let app = manifest::container(
            "app",
            "print up then wait /tmp/never",
            "volumeMounts: [{name: data, mountPath: /data}]",
        );
        manifest::pod_of(
            name,
            &[app],
            "terminationGracePeriodSeconds: 1\nvolumes: [{name: data, persistentVolumeClaim: {claimName: data}}]",
        )
    };
    device.write_manifest("one.yaml", &user("one"));
    device.pod("one").wait_ready();
    let uid = device.pod("one").uid();
    let locks =
        fs::read_dir("/run/nodlet-volumes").expect("it is there").map(|entry| entry.expect("read").path());
    let lock = locks.into_iter().find(|path| path.display().to_string().ends_with(&uid)).expect("its lock");
    let stuck = Stuck::new(lock.clone());
    device.remove_manifest("one.yaml");
    device.wait_for("the pod to go", || device.pod("one").object().is_none());
    device
        .wait_for("the failure", || device.agent_log().contains("failed to remove the lock of the volumes"));
    device.write_manifest("two.yaml", &user("two"));
    device.pod("two").wait_ready();
    assert!(lock.exists());
    drop(stuck);
    device.remove_manifest("two.yaml");
    device.write_manifest("three.yaml", &user("three"));
    device.pod("three").wait_ready();
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
    device.wait_for("the failure", || device.agent_log().contains("failed to remove a kept manifest: "));
    assert_eq!(device.pod("held").born("app"), born);
    device.cut_power();
    device.start_agent();
    device.pod("held").wait_ready();
    assert!(kept.exists());
    let image = device.pod("held").object().expect("it is there")["spec"]["containers"][0]["image"].clone();
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
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.pod("web").wait_ready();
    let name = format!("pod{}", device.pod("web").uid());
    let is_of_pod = |path: &PathBuf| {
        path.ends_with(&name) && path.components().any(|part| part.as_os_str() == "kubepods")
    };
    let cgroups: Vec<PathBuf> = device.cgroups().into_iter().filter(is_of_pod).collect();
    let cgroup = cgroups.iter().find(|path| path.starts_with("/sys/fs/cgroup/pids")).or(cgroups.first());
    let cgroup = cgroup.expect("a running pod has a cgroup").clone();
    let covered = Covered::new(cgroup.clone());
    device.remove_manifest("web.yaml");
    device.wait_for("the event", || has_failed(&device, "web", &format!("remove {}", cgroup.display())));
    assert!(device.pod("web").object().is_some(), "a pod is shown until it is gone");
    assert_eq!(device.container_processes(), Vec::<u32>::new());
    drop(covered);
    device.pod("web").wait_gone();
    assert!(cgroups.iter().all(|cgroup| !cgroup.exists()), "{cgroups:?}");
}

/// The file is for later agents of this boot only, so that it need not keep the pod.
#[test]
fn a_pod_whose_status_file_cannot_be_removed_is_gone_and_the_file_is_swept_later() {
    let mut device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.pod("web").wait_ready();
    let uid = device.pod("web").uid();
    let file = device.path("/run/nodlet/statuses").join(format!("{uid}.json"));
    let stuck = Stuck::new(file.clone());
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    let text = format!("failed to remove the status file of {uid}");
    device.wait_for("the warning", || device.agent_log().contains(&text));
    assert!(file.exists());
    device.kill_agent();
    drop(stuck);
    device.start_agent();
    device.wait_for("the file to be removed", || !file.exists());
    assert_eq!(device.pods(), Vec::<String>::new());
}

/// An object that was reported as deleted, and came back at the next start, would run what its owner has removed.
#[test]
fn a_deletion_whose_manifest_cannot_be_removed_fails_and_succeeds_later() {
    let device = Device::start();
    let files = [
        ("web.yaml", manifest::pod("web", "print up then sleep")),
        (
            "web-config.yaml",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {a: b}}".into(),
        ),
    ];
    for (name, text) in files {
        let file = device.path(name);
        fs::write(&file, text).expect("the root can be written to");
        let file = file.to_str().expect("UTF-8").to_owned();
        device.nodlet(["apply", "-f", &file]).ok();
    }
    device.pod("web").wait_ready();
    let (processes, uid) = (device.container_processes(), device.pod("web").uid());
    let stuck = Stuck::new(device.path("/var/lib/nodlet/manifests"));
    for what in ["pod/web", "configmap/settings"] {
        let error = device.nodlet(["delete", what]).refused();
        assert!(error.contains("failed to remove /"), "{what}: {error}");
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
