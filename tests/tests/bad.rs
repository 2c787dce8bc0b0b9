//! Machines that lack a requirement: one sentence names it and the remedy.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::mount::MsFlags;
use nodlet_tests::{Device, demo_archive, manifest, nodlet_program};

#[test]
fn an_agent_without_root_reports_that_it_needs_root() {
    let device = Device::new();
    // The program itself may be in a directory that only root can read.
    let program = device.path("/nodlet");
    std::fs::copy(nodlet_program(), &program).expect("it can be copied");
    let output = Command::new(&program)
        .args(["--root", "/tmp/nodlet-nowhere", "agent"])
        .uid(65534)
        .gid(65534)
        .output()
        .expect("it can be run");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("root") && said.lines().count() <= 2, "{said}");
}

#[test]
fn a_read_only_root_is_named() {
    let mut device = Device::new();
    let mount = device.mount_tmpfs("/", "mode=755");
    mount.remount(MsFlags::MS_RDONLY, "");
    device.launch_agent();
    assert_ne!(device.agent_ended(), 0);
    let said = device.agent_log();
    assert!(said.to_lowercase().contains("read-only file system"), "{said}");
    assert!(said.contains(&device.root().display().to_string()), "{said}");
}

#[test]
fn a_full_disk_refuses_the_image_and_takes_it_when_there_is_room() {
    let mut device = Device::new();
    let mount = device.mount_tmpfs("/var/lib/nodlet", "size=1m");
    device.start_agent();
    let refusal = device.nodlet(["image", "load", &demo_archive().display().to_string()]).refused();
    assert!(refusal.contains("bytes are needed"), "{refusal}");
    assert!(!device.nodlet(["image", "ls"]).ok().contains("localhost/demo"));
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.wait_for("the reason", || device.pod("web").container("app").state() == "waiting");

    mount.remount(MsFlags::empty(), "size=64m");
    device.load_image(demo_archive());
    device.pod("web").wait_ready();
    device.nodlet(["down"]).ok();
}

#[test]
fn the_error_about_a_missing_root_names_it() {
    let output = Command::new(nodlet_program())
        .args(["--root", "/tmp/nodlet-tests/absent", "agent"])
        .output()
        .expect("it can be run");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/tmp/nodlet-tests/absent"), "{said}");
}

#[test]
fn a_pod_that_forks_without_end_has_as_many_processes_as_it_may() {
    let mut device = Device::new();
    device.agent_arguments(["--pod-pids-limit", "20"]);
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.write_manifest(
        "forks.yaml",
        &manifest::pod_with("forks", "forks 100 then sleep", "restartPolicy: Never"),
    );
    device.pod("forks").wait_phase("Failed");
    let log = device.nodlet(["logs", "forks"]).ok();
    assert!(log.contains("Resource temporarily unavailable"), "{log}");
}
