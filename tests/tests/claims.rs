//! Volumes of pods that outlive them: PersistentVolumes and the claims that pods use.

use std::fs;
use std::path::Path;

use nodlet_tests::{Device, Kubectl, manifest};
use serde_json::json;

mod block;
mod once_pod;

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

/// A file, directory or block device, on the node `node` only.
fn local(node: &str, path: impl AsRef<Path>) -> String {
    format!(
        "local: {{path: {}}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: \
         [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]}}]}}}}",
        path.as_ref().display()
    )
}

/// Writes the volume `disk` with this source, and the claim `data`.
fn offer(device: &Device, mode: &str, source: &str) {
    device.write_manifest("v.yaml", &volume("disk", mode, source));
    device.write_manifest("c.yaml", &claim("data", mode, ""));
}

/// The group of a file.
fn group_of(path: &Path) -> u32 {
    std::os::unix::fs::MetadataExt::gid(&fs::metadata(path).expect("it is there"))
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
fn a_local_volume_is_used_on_its_node_only_and_a_missing_path_is_named() {
    let device = Device::start();
    let here = device.path("/srv/local");
    device.write_manifest("v.yaml", &volume("elsewhere", "ReadWriteOnce", &local("other", &here)));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ""));
    device.write_pod("web", &user("web", "write /data/file x then print up then sleep"));
    device.pod("web").wait_message("app", "pod has unbound immediate PersistentVolumeClaims");
    device.write_manifest("w.yaml", &volume("here", "ReadWriteOnce", &local(&device.node_name(), &here)));
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
    offer(&device, "ReadWriteOnce", &local(&device.node_name(), &here));
    // What is mounted in the volume is not the volume's.
    let mounted = here.join("mounted");
    fs::create_dir(&mounted).expect("it is new");
    let no_flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("tmpfs"), &mounted, Some("tmpfs"), no_flags, None::<&str>)
        .expect("root may mount");
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
        assert_eq!(group_of(&here.join("file")), expected, "{pod}");
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
    let fixed = device.pod("fixed");
    device.wait_for("the event", || {
        let mut events = fixed.events().into_iter();
        events.any(|event| {
            event.starts_with("FailedMount") && event.contains(&expected) && event.contains("chattr -ia")
        })
    });
    set_flags(0);
    device.pod("fixed").wait_log("app", "up");
    let group = group_of(&mounted);
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
    offer(&device, "ReadWriteOnce", &local(&device.node_name(), &here));
    let text = |name: &str, read_only: bool, group: &str| {
        let spec = format!(
            "volumes: [{{name: data, persistentVolumeClaim: {{claimName: data, readOnly: {read_only}}}}}]\n{group}"
        );
        manifest::pod_of(name, &[manifest::container("app", "print up then sleep", MOUNT)], &spec)
    };
    let group = "securityContext: {fsGroup: 4242, fsGroupChangePolicy: Always}";
    device.write_pod("reads", &text("reads", true, group)).wait_log("app", "up");
    device.pod("reads").demo("app", "write /data/x x").refused_with("Read-only file system");
    assert_eq!((group_of(&here.join("file")), group_of(&here)), (7, 0));
    device.remove_pod("reads");

    // The node has mounted it read-only: the pod that would write waits, and the others run.
    on_disk.remount(nix::mount::MsFlags::MS_RDONLY, "");
    device.write_pod("writes", &text("writes", false, group));
    device.pod("writes").wait_message("app", "MountVolume.SetUp failed for volume \"disk\" : ");
    let message = device.pod("writes").container("app").message();
    assert!(message.contains("to fsGroup: Read-only file system"), "{message}");
    assert!(message.contains(&here.display().to_string()), "{message}");
    device.pod("writes").wait_event_of("FailedMount", "to fsGroup: Read-only file system");
    device.remove_pod("writes");
    for (pod, read_only, group) in [("reads", true, group), ("plain", false, "")] {
        device.write_pod(pod, &text(pod, read_only, group)).wait_log("app", "up");
        assert_eq!(group_of(&here.join("file")), 7, "{pod}");
        device.remove_pod(pod);
    }
    // Where the files have the group already, nothing is written unless the policy demands it.
    on_disk.remount(nix::mount::MsFlags::empty(), "");
    device.write_pod("gives", &text("gives", false, group)).wait_log("app", "up");
    assert_eq!(group_of(&here.join("file")), 4242);
    device.remove_pod("gives");
    on_disk.remount(nix::mount::MsFlags::MS_RDONLY, "");
    let on_mismatch = "securityContext: {fsGroup: 4242, fsGroupChangePolicy: OnRootMismatch}";
    device.write_pod("has", &text("has", false, on_mismatch)).wait_log("app", "up");
    device.remove_pod("has");
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
fn saved_bindings_that_cannot_be_read_keep_claims_unbound_and_delay_no_other_pod() {
    for (is_pipe, reason) in [(true, "it is not a file"), (false, "it has more than 4194304 bytes")] {
        let mut device = Device::start();
        device.kill_agent();
        let saved = device.path("/var/lib/nodlet/claims.json");
        assert!(!saved.exists());
        if is_pipe {
            nix::unistd::mkfifo(&saved, nix::sys::stat::Mode::S_IRUSR).expect("it can be made");
        } else {
            let file = fs::File::create(&saved).expect("it can be made");
            file.set_len((4 << 20) + 1).expect("the file may have holes");
        }
        offer(&device, "ReadWriteOnce", &host_path(&device.path("/srv")));
        device.write_pod("web", &user("web", "print up then sleep"));
        device.run_pod("other", "print up then sleep");
        device.start_agent();
        device.pod("other").wait_ready();
        let reason = format!("failed to read which claims were bound: {reason}");
        device.pod("web").wait_message("app", &reason);
    }
}
