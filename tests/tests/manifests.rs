//! Manifest files as people and tools handle them: written badly, renamed, swapped, removed. Errors do not
//! affect running pods.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;

use nodlet_tests::{Calls, Device, manifest};

#[test]
fn a_bad_file_disturbs_no_other_and_says_where_it_is_wrong() {
    let device = Device::start();
    device.run_pod("good", "sleep").wait_ready();
    let born = device.pod("good").born("app");

    device.write_manifest("broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: broken\n");
    device.run_pod_with("unknown", "sleep", "hostNetwrok: true");
    device.write_manifest("kind.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: many}\n");
    for text in ["broken.yaml", "unknown.yaml", "spec.hostNetwrok", "kind.yaml", "Deployment"] {
        device.wait_logged(text);
    }
    // Fields that would change what runs are named.
    for (field, path) in [
        (
            "initContainers: [{name: first, image: localhost/demo:1, securityContext: {seLinuxOptions: {level: s0}}}]",
            "spec.initContainers[0].securityContext.seLinuxOptions",
        ),
        ("volumes: [{name: v, nfs: {server: a, path: /}}]", "spec.volumes[0].nfs"),
    ] {
        device.reject(&manifest::pod_with("web", "sleep", field), path);
    }
    assert_eq!(device.pods(), ["good"]);
    assert_eq!(device.pod("good").born("app"), born);

    device.run_pod("unknown", "sleep").wait_ready();
}

#[test]
fn a_copied_manifest_is_synced_once_with_its_directory() {
    let device = Device::start();
    device.run_pod("seen", "sleep").wait_ready();
    let calls = Calls::count(&device);
    let syncs = || calls.so_far().calls.get(&libc::SYS_fsync).copied().unwrap_or(0);
    let before = syncs();
    // A refused file is synced by nobody. The agent does not write anything for a ConfigMap of a file.
    device.write_manifest("bad.yaml", "kind: ConfigMap\nmetadata: {");
    device.wait_logged("bad.yaml");
    assert_eq!(syncs(), before);
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: site}\n";
    device.write_manifest("site.yaml", map);
    device.wait_for("the file and its directory to be synced", || syncs() == before + 2);
    device.write_manifest("other.yaml", &map.replace("site", "other"));
    device.wait_for("the second file to be synced, and not the first again", || syncs() >= before + 4);
    assert_eq!(syncs(), before + 4);
}

#[test]
fn a_bad_edit_keeps_the_running_pod_until_the_file_is_right_or_gone() {
    let device = Device::start();
    device.run_pod("web", "sleep").wait_ready();
    let born = device.pod("web").born("app");

    device.run_pod_with("web", "sleep", "restartPolicy: Sometimes");
    device.wait_logged("restartPolicy");
    assert!(device.pod("web").is_ready());
    assert_eq!(device.pod("web").born("app"), born);

    device.run_pod("web", "print right then sleep").wait_log("app", "right");
    device.remove_pod("web");
}

#[test]
fn a_changed_manifest_starts_the_new_pod_after_the_last_process_of_the_old() {
    let device = Device::start();
    let (shared, _) = device.shared("one");
    let run = |word: &str| {
        // Each version holds the lock until its very end, which takes a second.
        let steps = format!("on-term 0 1 then lock /one/lock then print {word} then sleep");
        let app = manifest::container("app", &steps, &manifest::mount("one"));
        device.run_pod_of("web", &[app], &manifest::host_path("one", &shared)).wait_log("app", word)
    };
    let uid = run("old").uid();
    let web = run("new");
    assert_ne!(web.uid(), uid);
    assert_eq!(web.container("app").restart_count(), 0, "the new one found the lock free at its first try");
    assert!(!web.logs("app").contains("TWO AT ONCE"));
}

#[test]
fn the_same_manifest_again_restarts_nothing_and_under_another_name_it_is_another_pod() {
    let device = Device::start();
    let text = manifest::pod("web", "on-term 0 then sleep");
    let web = device.write_pod("web", &text).wait_ready();
    let (born, uid) = (web.born("app"), web.uid());

    device.write_manifest("web.yaml", &text);
    device.write_manifest("web.yaml", &format!("# with a remark\n{text}"));
    // Files are processed in the order of their changes: when this pod runs, the others have been processed.
    device.run_pod("other", "sleep").wait_ready();
    assert_eq!((web.born("app"), web.uid()), (born, uid.clone()));

    // The path is part of a file pod's identity, as in the kubelet.
    let dir = device.manifests();
    fs::rename(dir.join("web.yaml"), dir.join("renamed.yaml")).expect("the file is there");
    device.wait_for("the other pod to be ready", || web.is_ready() && web.uid() != uid);
    assert_eq!(device.pods(), ["other", "web"]);
    assert_eq!(device.container_processes().len(), 2);
}

#[test]
fn temporary_files_are_not_read_a_file_written_bit_by_bit_is_read_whole_and_links_are_followed() {
    let device = Device::start();
    for name in [".hidden.yaml", ".web.yaml.swp", "web.yaml~", "#web.yaml#"] {
        device.write_file(&format!("/etc/nodlet/manifests/{name}"), manifest::pod("temporary", "sleep"));
    }
    let mut file = fs::File::create(device.manifests().join("web.yaml")).expect("it can be created");
    for piece in manifest::pod("web", "print whole then sleep").as_bytes().chunks(16) {
        file.write_all(piece).expect("it can be written");
        file.flush().expect("it can be written");
    }
    drop(file);
    device.pod("web").wait_ready().wait_log("app", "whole");
    assert_eq!(device.pods(), ["web"]);
    let target = device.write_file("/store/pod.yaml", manifest::pod("linked", "sleep"));
    symlink(target, device.manifests().join("linked.yaml")).expect("a link can be made");
    device.pod("linked").wait_ready();
    device.remove_pod("linked");
}

#[test]
fn a_directory_that_vanishes_takes_its_pods_and_brings_them_back() {
    let device = Device::start();
    device.run_pod("web", "sleep").wait_ready();
    fs::remove_dir_all(device.manifests()).expect("it is there");
    device.pod("web").wait_gone();
    device.run_pod("again", "sleep").wait_ready();

    // The whole directory is moved away and back, as deployment tools do.
    let backup = device.path("/etc/nodlet/backup");
    fs::rename(device.manifests(), &backup).expect("it is there");
    device.pod("again").wait_gone();
    fs::rename(&backup, device.manifests()).expect("it is there");
    device.pod("again").wait_ready();
}

#[test]
fn a_manifest_file_may_contain_several_pods_and_a_list() {
    let device = Device::start();
    let item = |name: &str| manifest::pod(name, "sleep").replace('\n', "\n    ");
    let text = format!(
        "{}---\n{}---\napiVersion: v1\nkind: List\nitems:\n  - {}\n  - {}\n",
        manifest::pod("one", "sleep"),
        manifest::pod("two", "sleep"),
        item("three").trim_end(),
        item("four").trim_end()
    );
    device.write_manifest("many.yaml", &text);
    for name in ["one", "two", "three", "four"] {
        device.pod(name).wait_ready();
    }
}

#[test]
fn directories_come_in_order_and_later_ones_win_by_name() {
    let device = Device::start();
    let web = device.pod("web");
    device.write_file("/usr/lib/nodlet/manifests/web.yaml", manifest::pod("web", "print vendor then sleep"));
    web.wait_log("app", "vendor");
    device.write_manifest("mine.yaml", &manifest::pod("web", "print site then sleep"));
    web.wait_log("app", "site");
    device.remove_manifest("mine.yaml");
    web.wait_log("app", "vendor");
}

#[test]
fn applying_an_overridden_pod_warns_with_the_name_of_the_file() {
    let device = Device::start();
    let overriding = manifest::pod("web", "print over then on-term 0 then sleep");
    let file = device.write_file("/run/nodlet/manifests/web.yaml", &overriding);
    let web = device.pod("web").wait_log("app", "over");

    let applied = manifest::pod("web", "print applied then sleep");
    let warning = format!("Warning: {} overrides this: pod \"web\" is defined by", file.display());
    let apply = |dry_run: &str, text: &str| device.nodlet_with_input(["apply", "-f", "-", dry_run], text);
    for dry_run in ["--dry-run=server", "--dry-run=none"] {
        let ran = apply(dry_run, &applied);
        assert!(ran.stderr.starts_with(&warning), "{ran:?}");
        assert!(ran.ok().starts_with("pod/web configured"));
    }
    assert_eq!(web.logs("app"), "over\n");
    // Applying the same object keeps it, too: when the file is removed, the applied pod stays.
    let ran = apply("--dry-run=none", &overriding);
    assert!(ran.stderr.starts_with(&warning), "{ran:?}");
    device.apply(&applied);
    fs::remove_file(file).expect("it is there");
    web.wait_log("app", "applied");
    let ran = apply("--dry-run=none", &applied);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("pod/web unchanged\n", ""));
}

#[test]
fn a_missing_image_is_named_and_the_pod_starts_the_moment_it_is_loaded() {
    let mut device = Device::new();
    device.start_agent();
    let write = |name: &str, policy: &str| {
        let policy = format!("imagePullPolicy: {policy}");
        device.run_pod_of(name, &[manifest::container("app", "sleep", &policy)], "");
    };
    let pods = [("never", "Never"), ("absent", "IfNotPresent"), ("always", "Always")];
    pods.iter().for_each(|(name, policy)| write(name, policy));
    device.pod("never").wait_reason("app", "ErrImageNeverPull");
    for name in ["absent", "always"] {
        device.wait_for("the reason", || {
            let reason = device.pod(name).container("app").reason();
            ["ErrImagePull", "ImagePullBackOff"].contains(&&*reason)
        });
    }
    let event =
        "ErrImageNeverPull: Container image \"localhost/demo:1\" is not present with pull policy of Never";
    let events = device.pod("never").events();
    assert!(events.iter().any(|reported| reported == event), "{events:?}");
    device.load_image(nodlet_tests::demo_archive());
    for (name, _) in pods {
        device.pod(name).wait_ready();
    }
    // `Always` asks no registry for an image that is there.
    device.remove_pod("always");
    write("again", "Always");
    device.pod("again").wait_ready();
}

#[test]
fn a_manifest_beyond_the_quota_is_read_when_a_client_removes_an_object() {
    let config = |name: &str| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
    let device = Device::start();
    device.apply(&config("first"));
    device.apply(&manifest::pod("second", "sleep"));
    device.pod("second").wait_ready();
    let has = |name: &str| device.get(&format!("/api/v1/namespaces/default/configmaps/{name}")).is_ok();
    let all: String = (0..1022).map(|number| config(&format!("c{number}"))).collect();
    device.write_manifest("all.yaml", &all);
    device.wait_for("the quota to be used up", || has("c1021"));
    for name in ["late", "later"] {
        device.write_manifest(&format!("{name}.yaml"), &config(name));
        device.wait_logged(&format!("{name}.yaml: quota exceeded: all manifests together"));
    }
    // What the agent itself removes causes no read but this one.
    device.nodlet(["delete", "configmap", "first"]).ok();
    device.wait_for("the next object to take its room", || has("late"));
    assert!(!has("later"));
    device.nodlet(["delete", "pod", "second", "--grace-period", "1"]).ok();
    device.wait_for("the last object to take the room of the pod", || has("later"));
    // A file that only becomes smaller is read after those before it.
    device.write_manifest("again.yaml", &config("again"));
    device.wait_logged("again.yaml: quota exceeded: all manifests together");
    device.write_manifest("all.yaml", &all.replace(&config("c1021"), ""));
    device.wait_for("the object to take the room in the other file", || has("again"));
}
