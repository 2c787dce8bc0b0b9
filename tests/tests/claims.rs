//! Volumes of pods that outlive them: PersistentVolumes and the claims that pods use.

use std::fs;
use std::path::Path;

use nodlet_tests::{Device, Kubectl, LoopDevice, manifest};
use serde_json::json;

/// A PersistentVolume of 1 GiB with this source.
fn volume(name: &str, mode: &str, source: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\n\
         spec: {{capacity: {{storage: 1Gi}}, accessModes: [{mode}], {source}}}\n"
    )
}

fn claim(name: &str, mode: &str, rest: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\n\
         spec: {{accessModes: [{mode}], resources: {{requests: {{storage: 10Mi}}}}{rest}}}\n"
    )
}

fn host_path(path: &Path) -> String {
    format!("hostPath: {{path: {}}}", path.display())
}

const MOUNT: &str = "volumeMounts: [{name: data, mountPath: /data}]";

/// The block device at `path`, on the node `node` only.
fn local_block(node: &str, path: &str) -> String {
    format!(
        "local: {{path: {path}}}, volumeMode: Block, nodeAffinity: {{required: {{nodeSelectorTerms: \
         [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]}}]}}}}"
    )
}

/// A pod that executes these steps with the claim `data` at `/data`.
fn user(name: &str, steps: &str) -> String {
    manifest::pod_of(
        name,
        &[manifest::container("app", steps, MOUNT)],
        "volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]",
    )
}

fn phase(device: &Device, path: &str) -> String {
    let found = device.get(path).unwrap_or_default();
    found["status"]["phase"].as_str().unwrap_or("none").to_owned()
}

fn volume_phase(device: &Device, name: &str) -> String {
    phase(device, &format!("/api/v1/persistentvolumes/{name}"))
}

fn claim_phase(device: &Device, name: &str) -> String {
    phase(device, &format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}"))
}

#[test]
fn a_claim_outlives_its_pods_and_its_volume_keeps_the_data() {
    let mut device = Device::start();
    let here = device.path("/srv/data");
    device.write_pod("web", &user("web", "append /data/log once then print up then sleep"));
    device.pod("web").wait_message("app", "persistentvolumeclaim \"data\" not found");
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ""));
    device.pod("web").wait_message("app", "pod has unbound immediate PersistentVolumeClaims");
    assert_eq!(claim_phase(&device, "data"), "Pending");
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &host_path(&here)));
    device.pod("web").wait_log("app", "up");
    assert_eq!(fs::read_to_string(here.join("log")).expect("it was written"), "once\n");
    assert_eq!((&*claim_phase(&device, "data"), &*volume_phase(&device, "disk")), ("Bound", "Bound"));

    let kubectl = Kubectl::new(&device);
    let volumes = kubectl.line("get pv").ok();
    let row: Vec<&str> = volumes.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row[..7], ["disk", "1Gi", "RWO", "Retain", "Bound", "default/data", "<unset>"], "{volumes}");
    let claims = kubectl.line("get pvc").ok();
    let row: Vec<&str> = claims.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row[..6], ["data", "Bound", "disk", "1Gi", "RWO", "<unset>"], "{claims}");
    assert!(kubectl.line("describe pvc data").ok().contains("Used By:       web"));

    // A better volume binds nothing anew, not even after a power cut.
    device.write_manifest("w.yaml", &volume("a", "ReadWriteOnce", &host_path(&device.path("/srv/other"))));
    device.wait_for("the other volume", || volume_phase(&device, "a") == "Available");
    device.power_cycle();
    device.pod("web").wait_log("app", "up");
    device.wait_for("the second line", || {
        fs::read_to_string(here.join("log")).expect("it is there") == "once\nonce\n"
    });
    assert_eq!(volume_phase(&device, "a"), "Available");

    // An agent that finds the pod knows what it uses.
    device.restart_agent();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").demo("app", "cat /data/log").ok(), "once\nonce\n");

    // Without its claim, a pod keeps what it has, and no other claim gets the data.
    device.remove_manifest("c.yaml");
    device.wait_for("the release", || volume_phase(&device, "disk") == "Released");
    device.write_manifest("c2.yaml", &claim("late", "ReadWriteOnce", ", volumeName: disk"));
    device.wait_for("the claim", || claim_phase(&device, "late") == "Pending");
    assert_eq!(device.pod("web").demo("app", "cat /data/log").ok(), "once\nonce\n");
    let (status, patched) =
        device.patch("/api/v1/persistentvolumes/disk", "merge", &json!({"spec": {"claimRef": null}}));
    assert_eq!(status, 403, "it is of a file: {patched}");
    device.remove_manifest("v.yaml");
    device.wait_for("the end of the volume", || volume_phase(&device, "disk") == "none");
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &host_path(&here)));
    device.wait_for("the claim", || claim_phase(&device, "late") == "Bound");
    assert!(here.join("log").exists());
}

#[test]
fn clients_create_volumes_and_claims_and_use_released_ones_again() {
    let device = Device::start();
    let here = device.path("/srv/data");
    let kubectl = Kubectl::new(&device);
    let apply = |text: &str| {
        let file = device.path("/objects.yaml");
        fs::write(&file, text).expect("it can be written");
        kubectl.line(&format!("apply -f {}", file.display()))
    };
    apply(&volume("disk", "ReadWriteOnce", &host_path(&here))).ok();
    device.wait_for("the volume", || volume_phase(&device, "disk") == "Available");
    apply(&claim("data", "ReadWriteOnce", "")).ok();
    device.wait_for("the claim", || claim_phase(&device, "data") == "Bound");
    apply(&claim("data", "ReadWriteOnce", "")).ok_with("unchanged");
    apply(&claim("data", "ReadWriteMany", "")).refused_with("spec is immutable after creation");
    apply(&volume("nfs", "ReadWriteOnce", "nfs: {server: a, path: /}"))
        .refused_with("nodlet provides no PersistentVolumes but those of hostPath and local");
    kubectl.line("delete pvc data").ok();
    device.wait_for("the release", || volume_phase(&device, "disk") == "Released");
    apply(&claim("data", "ReadWriteOnce", "")).ok();
    device.wait_for("the new claim", || claim_phase(&device, "data") == "Pending");
    kubectl.line("patch pv disk --type=merge -p {\"spec\":{\"claimRef\":null}}").ok();
    device.wait_for("the new claim to be bound", || claim_phase(&device, "data") == "Bound");
    let uid = |path: &str| device.get(path).expect("it is there")["metadata"]["uid"].clone();
    let bound = device.get("/api/v1/persistentvolumes/disk").expect("it is there");
    assert_eq!(
        bound["spec"]["claimRef"]["uid"],
        uid("/api/v1/namespaces/default/persistentvolumeclaims/data")
    );
}

#[test]
fn two_pods_never_use_a_volume_of_read_write_once_pod() {
    let mut device = Device::start();
    let here = device.path("/srv/data");
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOncePod", &host_path(&here)));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOncePod", ""));
    // The lock of the program shows that the other one is dead.
    let steps = "lock /data/lock then print up then ignore-term then sleep";
    let text =
        |name: &str| user(name, steps).replace("spec:\n", "spec:\n  terminationGracePeriodSeconds: 2\n");
    device.write_pod("one", &text("one")).wait_log("app", "up");
    device.write_manifest("two.yaml", &text("two"));
    let message =
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    device.pod("two").wait_message("app", message);
    // An agent that dies does not make room.
    device.restart_agent();
    device.pod("two").wait_message("app", message);
    assert_eq!(device.pod("two").container("app").state(), "waiting");
    device.remove_manifest("one.yaml");
    device.pod("two").wait_log("app", "up");
    assert_eq!(device.pod("two").container("app").restart_count(), 0, "it did not start earlier");
    device.kill_everything();
    device.start_agent();
    device.write_manifest("one.yaml", &text("one"));
    device.wait_for("one of them", || {
        ["one", "two"].iter().filter(|name| device.pod(name).container("app").is_running()).count() == 1
    });
}

#[test]
fn a_supervisor_that_dies_alone_gives_no_other_pod_its_volume_of_read_write_once_pod() {
    let device = Device::start();
    let here = device.path("/srv/data");
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOncePod", &host_path(&here)));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOncePod", ""));
    // The lock of the program shows that no other one is alive.
    let steps = "lock /data/lock then print up then ignore-term then sleep";
    let text =
        |name: &str| user(name, steps).replace("spec:\n", "spec:\n  terminationGracePeriodSeconds: 8\n");
    device.write_pod("one", &text("one")).wait_log("app", "up");
    device.write_manifest("two.yaml", &text("two"));
    let message =
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    device.pod("two").wait_message("app", message);
    let kill_supervisors = || {
        let supervisors = device.supervisors();
        assert_eq!(supervisors.len(), 1, "the other pod has none");
        for supervisor in supervisors.values() {
            let pid = nix::unistd::Pid::from_raw(supervisor.pid.cast_signed());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it can be killed");
        }
    };
    let born = device.pod("one").born("app");
    kill_supervisors();
    device.wait_for("the next run of the first pod", || {
        let app = device.pod("one").container("app");
        app.restart_count() == 1 && app.is_running()
    });
    assert_ne!(device.pod("one").born("app"), born);
    device.pod("two").wait_message("app", message);
    assert_eq!(device.pod("two").container("app").state(), "waiting");
    // A pod that ends, ignores SIGTERM and loses its supervisor: the next one starts after its last process.
    device.remove_manifest("one.yaml");
    device.wait_for("the first pod to end", || {
        device.pod("one").object().is_some_and(|one| one["metadata"]["deletionTimestamp"].is_string())
    });
    assert_eq!(device.pod("two").container("app").state(), "waiting");
    kill_supervisors();
    device.pod("two").wait_log("app", "up");
    assert_eq!(device.pod("two").container("app").restart_count(), 0, "it did not start earlier");
}

/// The processes of a pod's containers.
fn processes_of(uid: &str) -> Vec<nix::unistd::Pid> {
    let all = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let cgroup = format!("/pod{uid}/");
    let is_of_pod = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&cgroup))
    };
    all.filter(is_of_pod).map(nix::unistd::Pid::from_raw).collect()
}

#[test]
fn a_volume_of_read_write_once_pod_stays_locked_while_a_process_lives_that_nobody_manages() {
    use nix::sys::signal::{Signal, kill};
    let (mut first, other) = (Device::start(), Device::start());
    let here = first.path("/srv/data");
    let message =
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    for (device, path) in [(&first, here.clone()), (&other, other.path("/srv/link/sub"))] {
        device.write_manifest("v.yaml", &volume("disk", "ReadWriteOncePod", &host_path(&path)));
        device.write_manifest("c.yaml", &claim("data", "ReadWriteOncePod", ""));
    }
    first.write_pod("one", &user("one", "print up then ignore-term then sleep")).wait_log("app", "up");
    // The other agent knows the directory by a link, and has another one in it.
    fs::create_dir_all(other.path("/srv")).expect("it can be made");
    std::os::unix::fs::symlink(&here, other.path("/srv/link")).expect("it can be made");
    other.write_manifest("two.yaml", &user("two", "print up then sleep"));
    let event = format!("FailedMount: MountVolume.SetUp failed for volume \"data\" : {message}");
    other.wait_for(&event, || other.pod("two").events().contains(&event));

    // The agent and the supervisor are dead: the lock is the process's.
    let processes = processes_of(&first.pod("one").uid());
    assert!(!processes.is_empty());
    let supervisors = first.supervisors();
    first.kill_agent();
    for supervisor in supervisors.values() {
        kill(nix::unistd::Pid::from_raw(supervisor.pid.cast_signed()), Signal::SIGKILL).expect("it lives");
    }
    let two = || other.pod("two");
    other.write_manifest("three.yaml", &user("three", "print up then sleep"));
    let waits_too = || other.pod("three").events().contains(&event);
    other.wait_for("another pod to find the lock", waits_too);
    assert!(processes.iter().all(|pid| kill(*pid, None).is_ok()), "the process lives on");
    assert!([two(), other.pod("three")].iter().all(|pod| pod.container("app").state() == "waiting"));

    processes.iter().for_each(|pid| kill(*pid, Signal::SIGKILL).expect("it lives"));
    let is_up = |name: &&str| other.pod(name).container("app").is_running();
    other.wait_for("one of them", || ["two", "three"].iter().filter(|name| is_up(name)).count() == 1);
    // The first agent comes back, and its pod waits.
    first.start_agent();
    first.wait_for(&event, || first.pod("one").events().contains(&event));
    for name in ["two", "three"] {
        other.remove_manifest(&format!("{name}.yaml"));
    }
    for name in ["two", "three"] {
        other.pod(name).wait_gone();
    }
    first.pod("one").wait_running("app");
}

#[test]
fn a_volume_of_read_write_once_pod_stays_exclusive_with_another_claim_and_another_name() {
    let device = Device::start();
    let here = device.path("/srv/data");
    let volume_file = |name: &str| volume(name, "ReadWriteOncePod", &host_path(&here));
    let of = |name: &str, claimed: &str| {
        user(name, "print up then sleep").replace("claimName: data", &format!("claimName: {claimed}"))
    };
    device.write_manifest("v.yaml", &volume_file("disk"));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOncePod", ""));
    device.write_pod("one", &of("one", "data")).wait_log("app", "up");
    // The same directory under another name, with another claim.
    device.remove_manifest("c.yaml");
    device.remove_manifest("v.yaml");
    device.wait_for("the end of the volume", || volume_phase(&device, "disk") == "none");
    device.write_manifest("v.yaml", &volume_file("again"));
    device.write_manifest("d.yaml", &claim("other", "ReadWriteOncePod", ""));
    device.write_pod("two", &of("two", "other"));
    device.pod("two").wait_message("app", "node has pod using PersistentVolumeClaim");
    device.remove_manifest("one.yaml");
    device.pod("two").wait_log("app", "up");
}

#[test]
fn a_local_volume_is_used_on_its_node_only_and_a_missing_path_is_named() {
    let device = Device::start();
    let here = device.path("/srv/local");
    let node = device.get("/api/v1/nodes").expect("there is one")["items"][0]["metadata"]["name"].clone();
    let local = |node: &str, path: &Path| {
        format!(
            "local: {{path: {}}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: \
             [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]}}]}}}}",
            path.display()
        )
    };
    device.write_manifest("v.yaml", &volume("elsewhere", "ReadWriteOnce", &local("other", &here)));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ""));
    device.write_pod("web", &user("web", "write /data/file x then print up then sleep"));
    device.pod("web").wait_message("app", "pod has unbound immediate PersistentVolumeClaims");
    let node = node.as_str().expect("it has a name");
    device.write_manifest("w.yaml", &volume("here", "ReadWriteOnce", &local(node, &here)));
    let missing = format!(
        "MountVolume.SetUp failed for volume \"here\" : path {:?} does not exist",
        here.display().to_string()
    );
    device.pod("web").wait_message("app", &missing);
    fs::create_dir_all(&here).expect("it can be made");
    device.pod("web").wait_log("app", "up");
    assert!(here.join("file").exists());
    // A path that vanishes under a pod ends nothing; the next run of the pod waits.
    fs::rename(&here, device.path("/srv/gone")).expect("it can be renamed");
    device.pod("web").demo("app", "write /data/more x").ok();
    assert!(device.path("/srv/gone/more").exists());
    device.remove_pod("web");
    device.write_pod("web", &user("web", "print up then sleep")).wait_message("app", &missing);
}

#[test]
fn a_local_volume_is_searched_for_files_of_another_group_if_the_policy_is_always() {
    let device = Device::start();
    let here = device.path("/srv/data");
    fs::create_dir_all(&here).expect("it can be made");
    let node = device.get("/api/v1/nodes").expect("there is a node")["items"][0]["metadata"]["name"].clone();
    let local = format!(
        "local: {{path: {}}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: \
         [{{key: kubernetes.io/hostname, operator: In, values: [{}]}}]}}]}}}}",
        here.display(),
        node.as_str().expect("it has a name")
    );
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &local));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ""));
    // What is mounted in the volume is not the volume's.
    let mounted = here.join("mounted");
    fs::create_dir(&mounted).expect("it is new");
    let no_flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("tmpfs"), &mounted, Some("tmpfs"), no_flags, None::<&str>)
        .expect("root may mount");
    let group_of = |name: &str| {
        let found = fs::metadata(here.join(name)).expect("it is there");
        std::os::unix::fs::MetadataExt::gid(&found)
    };
    for (pod, policy, expected) in [
        ("first", "", 4242),
        ("root", ", fsGroupChangePolicy: OnRootMismatch", 7),
        ("unset", "", 7),
        ("always", ", fsGroupChangePolicy: Always", 4242),
    ] {
        fs::write(here.join("file"), "x").expect("it can be written");
        std::os::unix::fs::chown(here.join("file"), None, Some(7)).expect("it is ours");
        let spec = format!(
            "volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
securityContext: {{fsGroup: 4242{policy}}}"
        );
        let app = manifest::container("app", "print up then sleep", MOUNT);
        device.write_manifest("web.yaml", &manifest::pod_of(pod, &[app], &spec));
        device.pod(pod).wait_log("app", "up");
        assert_eq!(group_of("file"), expected, "{pod}");
        device.remove_manifest("web.yaml");
        device.pod(pod).wait_gone();
    }
    // A file whose group nobody can change is named, with the remedy.
    let file = fs::File::open(here.join("file")).expect("it is there");
    let set_flags = |flags: libc::c_int| {
        use std::os::fd::AsRawFd;
        // SAFETY: an open descriptor, and the kernel reads one integer.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS as _, &raw const flags) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    };
    std::os::unix::fs::chown(here.join("file"), None, Some(7)).expect("it is ours");
    let immutable = 0x10;
    set_flags(immutable);
    let spec = "volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n\
                securityContext: {fsGroup: 4242, fsGroupChangePolicy: Always}";
    let app = manifest::container("app", "print up then sleep", MOUNT);
    device.write_manifest("web.yaml", &manifest::pod_of("fixed", &[app], spec));
    let expected = format!("give {:?} to fsGroup: Operation not permitted", here.join("file"));
    device.wait_for("the event", || {
        let events = device.pod("fixed").events();
        events.iter().any(|event| {
            event.contains("FailedMount") && event.contains(&expected) && event.contains("chattr -ia")
        })
    });
    set_flags(0);
    device.pod("fixed").wait_log("app", "up");
    let group = group_of("mounted");
    nix::mount::umount2(&mounted, nix::mount::MntFlags::MNT_DETACH).expect("it is mounted");
    assert_eq!(group, 0);
}

#[test]
fn the_group_of_a_volume_that_is_used_for_reading_stays_and_a_read_only_path_is_named() {
    let device = Device::start();
    let here = device.path("/srv/data");
    let on_disk = device.mount_tmpfs("/srv/data", "mode=0755");
    fs::write(here.join("file"), "x").expect("it can be written");
    std::os::unix::fs::chown(here.join("file"), None, Some(7)).expect("it is ours");
    let node = device.get("/api/v1/nodes").expect("there is a node")["items"][0]["metadata"]["name"].clone();
    let local = format!(
        "local: {{path: {}}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: \
         [{{key: kubernetes.io/hostname, operator: In, values: [{}]}}]}}]}}}}",
        here.display(),
        node.as_str().expect("it has a name")
    );
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &local));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ""));
    let group_of = |name: &str| {
        let found = fs::metadata(here.join(name)).expect("it is there");
        std::os::unix::fs::MetadataExt::gid(&found)
    };
    let text = |name: &str, read_only: bool, group: &str| {
        let spec = format!(
            "volumes: [{{name: data, persistentVolumeClaim: {{claimName: data, readOnly: {read_only}}}}}]\n{group}"
        );
        manifest::pod_of(name, &[manifest::container("app", "print up then sleep", MOUNT)], &spec)
    };
    let group = "securityContext: {fsGroup: 4242, fsGroupChangePolicy: Always}";
    device.write_manifest("web.yaml", &text("reads", true, group));
    device.pod("reads").wait_log("app", "up");
    assert_eq!((group_of("file"), group_of(".")), (7, 0));
    device.remove_manifest("web.yaml");
    device.pod("reads").wait_gone();

    // The node has mounted it read-only: the pod that would write waits, and the others run.
    on_disk.remount(nix::mount::MsFlags::MS_RDONLY, "");
    device.write_manifest("web.yaml", &text("writes", false, group));
    device.pod("writes").wait_message("app", "MountVolume.SetUp failed for volume \"disk\" : ");
    let message = device.pod("writes").container("app").message();
    assert!(message.contains("to fsGroup: Read-only file system"), "{message}");
    assert!(message.contains(&here.display().to_string()), "{message}");
    assert!(
        device.pod("writes").events().iter().any(|event| {
            event.contains("FailedMount") && event.contains("to fsGroup: Read-only file system")
        }),
        "{:?}",
        device.pod("writes").events()
    );
    device.remove_manifest("web.yaml");
    device.pod("writes").wait_gone();
    for (pod, read_only, group) in [("reads", true, group), ("plain", false, "")] {
        device.write_manifest("web.yaml", &text(pod, read_only, group));
        device.pod(pod).wait_log("app", "up");
        assert_eq!(group_of("file"), 7, "{pod}");
        device.remove_manifest("web.yaml");
        device.pod(pod).wait_gone();
    }
    // Where the files have the group already, nothing is written unless the policy demands it.
    on_disk.remount(nix::mount::MsFlags::empty(), "");
    device.write_manifest("web.yaml", &text("gives", false, group));
    device.pod("gives").wait_log("app", "up");
    assert_eq!(group_of("file"), 4242);
    device.remove_manifest("web.yaml");
    device.pod("gives").wait_gone();
    on_disk.remount(nix::mount::MsFlags::MS_RDONLY, "");
    let on_mismatch = "securityContext: {fsGroup: 4242, fsGroupChangePolicy: OnRootMismatch}";
    device.write_manifest("web.yaml", &text("has", false, on_mismatch));
    device.pod("has").wait_log("app", "up");
    device.remove_manifest("web.yaml");
    device.pod("has").wait_gone();
    drop(on_disk);
}

#[test]
fn an_ephemeral_claim_is_made_for_its_pod_and_goes_with_it() {
    let device = Device::start();
    let here = device.path("/srv/scratch");
    device.write_manifest("v.yaml", &volume("scratch", "ReadWriteOnce", &host_path(&here)));
    let text = manifest::pod_of(
        "web",
        &[manifest::container("app", "write /data/file x then print up then sleep", MOUNT)],
        "volumes:\n- name: data\n  ephemeral: {volumeClaimTemplate: {metadata: {labels: {a: b}, annotations: {note: m}}, \
         spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}",
    );
    device.write_pod("web", &text).wait_log("app", "up");
    let made = device.get("/api/v1/namespaces/default/persistentvolumeclaims/web-data").expect("it is made");
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], device.pod("web").uid());
    assert_eq!((&made["metadata"]["labels"]["a"], &made["status"]["phase"]), (&json!("b"), &json!("Bound")));
    assert_eq!(made["metadata"]["annotations"]["note"], "m");
    device.remove_pod("web");
    device.wait_for("the end of the claim", || claim_phase(&device, "web-data") == "none");
    assert_eq!(volume_phase(&device, "scratch"), "Released");
    assert!(here.join("file").exists(), "Retain keeps the data");
    // The pod of another one's claim does not get it.
    device.write_manifest("c.yaml", &claim("web-data", "ReadWriteOnce", ""));
    device.write_pod("web", &text);
    device.pod("web").wait_message("app", "was not created for pod default/web (pod is not owner)");
}

#[test]
fn a_claim_that_is_used_for_reading_is_mounted_read_only() {
    let device = Device::start();
    let here = device.path("/srv/data");
    fs::create_dir_all(&here).expect("it can be made");
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &host_path(&here)));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ""));
    let text =
        user("web", "print up then sleep").replace("claimName: data", "claimName: data, readOnly: true");
    device.write_pod("web", &text).wait_log("app", "up");
    device.pod("web").demo("app", "write /data/x x").refused_with("Read-only file system");
}

#[test]
fn a_block_volume_is_a_device_of_the_container_and_of_no_other() {
    let device = Device::start();
    let file = device.path("/disk.img");
    fs::write(&file, vec![0; 1 << 20]).expect("it can be written");
    let disk = LoopDevice::over(&file);
    let node = device.get("/api/v1/nodes").expect("there is one")["items"][0]["metadata"]["name"].clone();
    let node = node.as_str().expect("it has a name");
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &local_block(node, disk.path())));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ", volumeMode: Block, volumeName: disk"));
    // Another block volume of the pods, which no container names.
    let unused_file = device.path("/unused.img");
    fs::write(&unused_file, vec![0; 1 << 20]).expect("it can be written");
    let unused = LoopDevice::over(&unused_file);
    device.write_manifest("v2.yaml", &volume("unused", "ReadWriteOnce", &local_block(node, unused.path())));
    device.write_manifest(
        "c2.yaml",
        &claim("more", "ReadWriteOnce", ", volumeMode: Block, volumeName: unused"),
    );
    let device_of = |name: &str, steps: &str, read_only: bool| {
        manifest::pod_of(
            name,
            &[
                manifest::container("app", steps, "volumeDevices: [{name: data, devicePath: /dev/data}]"),
                manifest::container("other", "print up then sleep", ""),
            ],
            &format!(
                "volumes: [{{name: unused, persistentVolumeClaim: {{claimName: more}}}}, \
                 {{name: data, persistentVolumeClaim: {{claimName: data, readOnly: {read_only}}}}}]"
            ),
        )
    };
    device.write_pod("web", &device_of("web", "append /dev/data hello then print up then sleep", false));
    device.pod("web").wait_log("app", "up").wait_log("other", "up");
    device.pod("web").demo("app", "stat /dev/data").ok_with("0660 0:0");
    let content = fs::read(disk.path()).expect("it can be read");
    assert_eq!(&content[..6], b"hello\n");
    let untouched = fs::read(unused.path()).expect("it can be read");
    assert!(untouched.iter().all(|byte| *byte == 0), "the volume that no container names");
    let number = fs::metadata(disk.path()).map(|found| std::os::unix::fs::MetadataExt::rdev(&found));
    let number = number.expect("it is there");
    let (major, minor) =
        (nix::sys::stat::major(number).to_string(), nix::sys::stat::minor(number).to_string());
    device.pod("web").demo("other", &format!("mknod-block /tmp-node {major} {minor}")).ok();
    device.pod("web").demo("other", "open /tmp-node").refused_with("Operation not permitted");
    // An ephemeral container has only the devices that it names itself.
    for (name, devices) in
        [("look", r#", "volumeDevices": [{"name": "data", "devicePath": "/dev/look"}]"#), ("none", "")]
    {
        let path = "/api/v1/namespaces/default/pods/web/ephemeralcontainers";
        let text =
            format!(r#"{{"name": "{name}", "image": "localhost/demo:1", "args": ["sleep"]{devices}}}"#);
        let container: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        let body = json!({"spec": {"ephemeralContainers": [container]}});
        let answer = device.patch(path, "strategic-merge", &body);
        assert_eq!(answer.0, 200, "{answer:?}");
        device.wait_for("the ephemeral container", || device.pod("web").demo(name, "exit 0").code == 0);
    }
    device.pod("web").demo("look", "append /dev/look again").ok();
    assert_eq!(&fs::read(disk.path()).expect("it can be read")[..6], b"again\n");
    device.pod("web").demo("none", &format!("mknod-block /tmp-node {major} {minor}")).ok();
    device.pod("web").demo("none", "open /tmp-node").refused_with("Operation not permitted");
    device.remove_pod("web");
    device.write_pod("ro", &device_of("ro", "print up then sleep", true)).wait_log("app", "up");
    device.pod("ro").demo("app", "append /dev/data x").refused_with("Operation not permitted");
    let (_, mounted) = (device.remove_manifest("ro.yaml"), user("mounted", "sleep"));
    device.pod("ro").wait_gone();
    device.write_manifest("mounted.yaml", &mounted);
    device
        .pod("mounted")
        .wait_message("app", "volume data has volumeMode Block, but is specified in volumeMounts");
}

#[test]
fn a_block_volume_is_local_to_its_node_and_no_host_path() {
    let device = Device::start();
    device
        .write_manifest("v.yaml", &volume("elsewhere", "ReadWriteOnce", &local_block("other", "/dev/loop0")));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ", volumeMode: Block"));
    let devices = "volumeDevices: [{name: data, devicePath: /dev/data}]";
    let pod = manifest::pod_of(
        "web",
        &[manifest::container("app", "sleep", devices)],
        "volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]",
    );
    device.write_pod("web", &pod).wait_message("app", "pod has unbound immediate PersistentVolumeClaims");
    let block = "hostPath: {path: /dev/loop0}, volumeMode: Block";
    device.write_manifest("w.yaml", &volume("path", "ReadWriteOnce", block));
    device.pod("web").wait_message("app", "MapVolume.FindMapperPluginBySpec failed to find BlockVolumeMapper plugin: hostPath of persistentvolume \
         \"path\" cannot have volumeMode Block; use local",
    );
}

#[test]
fn a_pipe_in_place_of_the_saved_bindings_keeps_claims_unbound_and_delays_no_other_pod() {
    let mut device = Device::start();
    device.kill_agent();
    let saved = device.path("/var/lib/nodlet/claims.json");
    assert!(!saved.exists());
    nix::unistd::mkfifo(&saved, nix::sys::stat::Mode::S_IRUSR).expect("it can be made");
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &host_path(&device.path("/srv"))));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ""));
    device.write_manifest("web.yaml", &user("web", "print up then sleep"));
    device.run_pod("other", "print up then sleep");
    device.start_agent();
    device.pod("other").wait_ready();
    device.pod("web").wait_message("app", "failed to read which claims were bound: it is not a file");
}

#[test]
fn saved_bindings_that_are_too_large_are_not_read() {
    let mut device = Device::start();
    device.kill_agent();
    let saved = device.path("/var/lib/nodlet/claims.json");
    let file = fs::File::create(&saved).expect("it can be made");
    file.set_len((4 << 20) + 1).expect("the file may have holes");
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &host_path(&device.path("/srv"))));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ""));
    device.write_manifest("web.yaml", &user("web", "print up then sleep"));
    device.start_agent();
    device
        .pod("web")
        .wait_message("app", "failed to read which claims were bound: it has more than 4194304 bytes");
}
