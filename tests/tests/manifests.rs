//! Manifest files as people and tools handle them: written badly, renamed, swapped, removed. Errors do not
//! affect running pods.

use std::fs;
use std::os::unix::fs::symlink;

use nodlet_tests::{Calls, Device, manifest};

#[test]
fn a_bad_file_disturbs_no_other_and_says_where_it_is_wrong() {
    let device = Device::start();
    device.write_manifest("good.yaml", &manifest::pod("good", "sleep"));
    device.pod("good").wait_ready();
    let born = device.pod("good").born("app");

    device.write_manifest("broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: broken\n");
    device.write_manifest("unknown.yaml", &manifest::pod_with("unknown", "sleep", "hostNetwrok: true"));
    device.write_manifest("kind.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: many}\n");
    for said in ["broken.yaml", "unknown.yaml", "spec.hostNetwrok", "kind.yaml", "Deployment"] {
        device.wait_for(&format!("the agent to say {said:?}"), || device.agent_log().contains(said));
    }
    assert_eq!(device.pods(), ["good"]);
    assert_eq!(device.pod("good").born("app"), born);

    device.write_manifest("unknown.yaml", &manifest::pod("unknown", "sleep"));
    device.pod("unknown").wait_ready();
}

#[test]
fn a_copied_manifest_is_synced_once_with_its_directory() {
    let device = Device::start();
    device.write_manifest("seen.yaml", &manifest::pod("seen", "sleep"));
    device.pod("seen").wait_ready();
    let calls = Calls::count(&device);
    let syncs = || calls.so_far().calls.get(&libc::SYS_fsync).copied().unwrap_or(0);
    let before = syncs();
    // A refused file is synced by nobody. The agent does not write anything for a ConfigMap of a file.
    device.write_manifest("bad.yaml", "kind: ConfigMap\nmetadata: {");
    device.wait_for("the refusal", || device.agent_log().contains("bad.yaml"));
    assert_eq!(syncs(), before);
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: site}\n";
    device.write_manifest("site.yaml", map);
    device.wait_for("the file and its directory to be synced", || syncs() == before + 2);
    device.write_manifest("other.yaml", &map.replace("site", "other"));
    device.wait_for("the second file to be synced, and not the first again", || syncs() >= before + 4);
    assert_eq!(syncs(), before + 4);
}

#[test]
fn a_field_that_would_change_what_runs_is_refused_by_name() {
    let device = Device::start();
    for (field, said) in [
        (
            "initContainers: [{name: first, image: localhost/demo:1, securityContext: \
             {seLinuxOptions: {level: s0}}}]",
            "spec.initContainers[0].securityContext.seLinuxOptions",
        ),
        ("volumes: [{name: v, nfs: {server: a, path: /}}]", "spec.volumes[0].nfs"),
    ] {
        let text = manifest::pod_with("web", "sleep", field);
        let refusal = device.nodlet_with_input(["apply", "-f", "-"], &text).refused();
        assert!(refusal.contains(said), "{refusal}");
    }
    assert!(device.pods().is_empty());
}

#[test]
fn a_bad_edit_keeps_the_running_pod_until_the_file_is_right_or_gone() {
    let device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    let born = device.pod("web").born("app");

    device.write_manifest("web.yaml", &manifest::pod_with("web", "sleep", "restartPolicy: Sometimes"));
    device.wait_for("the refusal", || device.agent_log().contains("restartPolicy"));
    assert!(device.pod("web").is_ready());
    assert_eq!(device.pod("web").born("app"), born);

    device.write_manifest("web.yaml", &manifest::pod("web", "print right then sleep"));
    device.pod("web").wait_log("app", "right");
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
}

#[test]
fn a_changed_manifest_starts_the_new_pod_after_the_last_process_of_the_old() {
    let device = Device::start();
    let (shared, _) = device.shared("one");
    let version = |word: &str| {
        // Each version holds the lock until its very end, which takes a second.
        let steps = format!("on-term 0 1 then lock /one/lock then print {word} then sleep");
        manifest::pod_of(
            "web",
            &[manifest::container("app", &steps, "volumeMounts: [{name: one, mountPath: /one}]")],
            &format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]"),
        )
    };
    device.write_manifest("web.yaml", &version("old"));
    device.pod("web").wait_log("app", "old");
    let uid = device.pod("web").uid();
    device.write_manifest("web.yaml", &version("new"));
    device.pod("web").wait_log("app", "new");
    let web = device.pod("web");
    assert_ne!(web.uid(), uid);
    assert_eq!(web.container("app").restart_count(), 0, "the new one found the lock free at its first try");
    assert!(!web.logs("app").contains("TWO AT ONCE"));
}

#[test]
fn the_same_manifest_again_restarts_nothing_and_under_another_name_it_is_another_pod() {
    let device = Device::start();
    let text = manifest::pod("web", "on-term 0 then sleep");
    device.write_manifest("web.yaml", &text);
    let web = device.pod("web");
    web.wait_ready();
    let (born, uid) = (web.born("app"), web.uid());

    device.write_manifest("web.yaml", &text);
    device.write_manifest("web.yaml", &format!("# with a remark\n{text}"));
    // Files are processed in the order of their changes: when this pod runs, the others have been processed.
    device.write_manifest("other.yaml", &manifest::pod("other", "sleep"));
    device.pod("other").wait_ready();
    assert_eq!((web.born("app"), web.uid()), (born, uid.clone()));

    // The path is part of a file pod's identity, as in the kubelet.
    let dir = device.manifests();
    fs::rename(dir.join("web.yaml"), dir.join("renamed.yaml")).expect("the file is there");
    device.wait_for("the other pod to be ready", || web.is_ready() && web.uid() != uid);
    assert_eq!(device.pods(), ["other", "web"]);
    assert_eq!(device.container_processes().len(), 2);
}

#[test]
fn temporary_files_of_editors_are_not_read_as_manifests() {
    let device = Device::start();
    fs::create_dir_all(device.manifests()).expect("the root can be written to");
    for name in [".hidden.yaml", ".web.yaml.swp", "web.yaml~", "#web.yaml#"] {
        fs::write(device.manifests().join(name), manifest::pod("temporary", "sleep"))
            .expect("it can be written");
    }
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    assert_eq!(device.pods(), ["web"]);
}

#[test]
fn a_file_written_in_place_bit_by_bit_is_read_when_it_is_whole() {
    use std::io::Write;
    let device = Device::start();
    fs::create_dir_all(device.manifests()).expect("the root can be written to");
    let text = manifest::pod("web", "print whole then sleep");
    let mut file = fs::File::create(device.manifests().join("web.yaml")).expect("it can be created");
    for piece in text.as_bytes().chunks(16) {
        file.write_all(piece).expect("it can be written");
        file.flush().expect("it can be written");
    }
    drop(file);
    device.pod("web").wait_log("app", "whole");
}

#[test]
fn a_directory_that_vanishes_takes_its_pods_and_brings_them_back() {
    let device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    fs::remove_dir_all(device.manifests()).expect("it is there");
    device.pod("web").wait_gone();
    device.write_manifest("again.yaml", &manifest::pod("again", "sleep"));
    device.pod("again").wait_ready();

    // The whole directory is moved aside and back, as deployment tools do.
    let aside = device.path("/etc/nodlet/aside");
    fs::rename(device.manifests(), &aside).expect("it is there");
    device.pod("again").wait_gone();
    fs::rename(&aside, device.manifests()).expect("it is there");
    device.pod("again").wait_ready();
}

#[test]
fn a_manifest_may_be_a_symbolic_link() {
    let device = Device::start();
    let (_, store) = device.shared("store");
    fs::write(store.join("pod.yaml"), manifest::pod("linked", "sleep")).expect("it can be written");
    fs::create_dir_all(device.manifests()).expect("the root can be written to");
    symlink(store.join("pod.yaml"), device.manifests().join("linked.yaml")).expect("a link can be made");
    device.pod("linked").wait_ready();
    device.remove_manifest("linked.yaml");
    device.pod("linked").wait_gone();
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
    let vendor = device.path("/usr/lib/nodlet/manifests");
    fs::create_dir_all(&vendor).expect("the root can be written to");
    fs::write(vendor.join("web.yaml"), manifest::pod("web", "print vendor then sleep"))
        .expect("it can be written");
    device.pod("web").wait_log("app", "vendor");
    device.write_manifest("mine.yaml", &manifest::pod("web", "print site then sleep"));
    device.pod("web").wait_log("app", "site");
    device.remove_manifest("mine.yaml");
    device.pod("web").wait_log("app", "vendor");
}

#[test]
fn applying_an_overridden_pod_warns_with_the_name_of_the_file() {
    let device = Device::start();
    let later = device.path("/run/nodlet/manifests");
    fs::create_dir_all(&later).expect("the root can be written to");
    let overriding = manifest::pod("web", "print over then on-term 0 then sleep");
    fs::write(later.join("web.yaml"), &overriding).expect("it can be written");
    device.pod("web").wait_log("app", "over");

    let applied = manifest::pod("web", "print applied then sleep");
    let warning = format!("Warning: {}/web.yaml overrides this: pod \"web\" is defined by", later.display());
    for dry_run in ["--dry-run=server", "--dry-run=none"] {
        let ran = device.nodlet_with_input(["apply", "-f", "-", dry_run], &applied);
        assert!(ran.stderr.starts_with(&warning), "{ran:?}");
        assert!(ran.ok().starts_with("pod/web configured"));
    }
    assert_eq!(device.pod("web").logs("app"), "over\n");
    // Applying the same object keeps it, too: when the file is removed, the applied pod stays.
    let ran = device.nodlet_with_input(["apply", "-f", "-"], &overriding);
    assert!(ran.stderr.starts_with(&warning), "{ran:?}");
    device.nodlet_with_input(["apply", "-f", "-"], &applied).ok();
    fs::remove_file(later.join("web.yaml")).expect("it is there");
    device.pod("web").wait_log("app", "applied");
    let ran = device.nodlet_with_input(["apply", "-f", "-"], &applied);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("pod/web unchanged\n", ""));
}

#[test]
fn a_missing_image_is_named_and_the_pod_starts_the_moment_it_is_loaded() {
    let mut device = Device::new();
    device.start_agent();
    for (name, policy) in [("never", "Never"), ("absent", "IfNotPresent"), ("always", "Always")] {
        let policy = format!("    imagePullPolicy: {policy}\n    args");
        device.write_manifest(
            &format!("{name}.yaml"),
            &manifest::pod(name, "sleep").replace("    args", &policy),
        );
    }
    device.wait_for("the reason", || device.pod("never").container("app").reason() == "ErrImageNeverPull");
    for name in ["absent", "always"] {
        device.wait_for("the reason", || {
            ["ErrImagePull", "ImagePullBackOff"]
                .contains(&device.pod(name).container("app").reason().as_str())
        });
    }
    let never = device.pod("never").events();
    assert!(
        never.iter().any(|event| event
            == "ErrImageNeverPull: Container image \"localhost/demo:1\" is not present with pull policy of Never"),
        "{never:?}"
    );
    device.load_image(nodlet_tests::demo_archive());
    for name in ["never", "absent", "always"] {
        device.pod(name).wait_ready();
    }
    // `Always` asks no registry for an image that is there.
    device.remove_manifest("always.yaml");
    device.pod("always").wait_gone();
    device.write_manifest(
        "again.yaml",
        &manifest::pod("again", "sleep").replace("    args", "    imagePullPolicy: Always\n    args"),
    );
    device.pod("again").wait_ready();
}
