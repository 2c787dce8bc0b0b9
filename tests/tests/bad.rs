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
    device.nodlet(["image", "load", &demo_archive().display().to_string()]).refused_with("bytes are needed");
    assert!(!device.nodlet(["image", "ls"]).ok().contains("localhost/demo"));
    device.run_pod("web", "sleep");
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
    let device = Device::start_with(["--pod-pids-limit", "20"]);
    device.run_pod_with("forks", "forks 100 then sleep", "restartPolicy: Never").wait_phase("Failed");
    device.nodlet(["logs", "forks"]).ok_with("Resource temporarily unavailable");
}

#[test]
fn a_full_card_is_a_condition_of_the_node_as_soon_as_somebody_asks() {
    let mut device = Device::new();
    let card = device.mount_tmpfs("/var/lib/nodlet/records", "size=4m");
    device.agent_arguments(["--eviction-pressure-transition-period", "1s"]);
    device.start_agent();
    assert_eq!(device.node_condition("DiskPressure"), "False");
    let full = device.path("/var/lib/nodlet/records/.full");
    std::fs::write(&full, vec![0; 5 << 20]).expect_err("it is larger than the card");
    // An idle agent measures nothing, and nothing else wakes it.
    assert_eq!(device.node_condition("DiskPressure"), "True");
    std::fs::remove_file(&full).expect("it is there");
    device.wait_for("the pressure to end", || device.node_condition("DiskPressure") == "False");
    device.nodlet(["down"]).ok();
    drop(card);
}

#[test]
fn a_card_that_accepts_no_writes_is_a_condition_of_the_node() {
    let mut device = Device::new();
    let card = device.mount_tmpfs("/var/lib/nodlet/records", "size=4m");
    device.start_agent_with_demo();
    assert_eq!(device.node_condition("ReadonlyFilesystem"), "");
    card.remount(MsFlags::MS_RDONLY, "");
    assert_eq!(device.node_condition("ReadonlyFilesystem"), "True");
    device.nodlet(["get", "events"]).ok_with("FilesystemIsReadOnly");
    device.run_pod("web", "sleep").wait_event("Read-only file system");
    assert_eq!(device.node_condition("ReadonlyFilesystem"), "True");
    card.remount(MsFlags::empty(), "");
    device.pod("web").wait_ready();
    assert_eq!(device.node_condition("ReadonlyFilesystem"), "");
    device.nodlet(["down"]).ok();
}

#[test]
fn a_container_out_of_memory_is_in_an_event_and_in_the_log_of_the_agent() {
    let device = Device::start();
    let app = manifest::container("app", "hog 100", "resources: {limits: {memory: 20Mi}}");
    device.run_pod_of("hog", &[app], "restartPolicy: Never").wait_phase("Failed");
    let event = "OOMKilled: The kernel killed a process of the container, which has a memory limit of 20Mi, for lack of \
                 memory";
    device.wait_for("the event", || device.pod("hog").events().iter().any(|reported| reported == event));
    let log = device.agent_log();
    assert!(log.contains("default/hog/app#0 exited with 137 (OOMKilled)"), "{log}");
    assert!(log.contains("default/hog/app: Created Container created"), "the container is named: {log}");
}

#[test]
fn a_load_that_a_signal_interrupts_leaves_nothing_behind() {
    let device = Device::new();
    let mut load = Command::new(nodlet_program())
        .arg("--root")
        .arg(device.root())
        .args(["image", "load", "-"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("nodlet can be run");
    let archive = std::fs::read(demo_archive()).expect("it was written");
    let mut input = load.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, &archive[..archive.len() / 2]).expect("sent");
    let staged = || {
        let files = std::fs::read_dir(device.path("/var/lib/nodlet/images/staging"));
        files.map_or(0, |files| {
            files
                .filter_map(Result::ok)
                .filter(|file| file.metadata().is_ok_and(|file| file.len() > 0))
                .count()
        })
    };
    device.wait_for("a layer to be staged", || staged() > 0);
    let pid = nix::unistd::Pid::from_raw(load.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
    let output = load.wait_with_output().expect("it ends");
    drop(input);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"), "{output:?}");
    assert_eq!(staged(), 0);
}

#[test]
fn a_container_whose_memory_limit_is_too_low_to_start_names_the_limit() {
    let device = Device::start();
    // Thousandths of a byte: M was meant.
    let app = manifest::container("app", "sleep", "resources: {limits: {memory: 128m}}");
    let applied = device.nodlet_with_input(["apply", "-f", "-"], &manifest::pod_of("tiny", &[app], ""));
    let warning = "resources.limits[memory]: fractional byte value \"128m\" is invalid, must be an integer";
    assert!(applied.stderr.contains(warning), "{}", applied.stderr);
    let tiny = device.pod("tiny");
    let names_it = || tiny.has_event("resources.limits.memory of the container is 1, in bytes");
    device.wait_for("an event that names the limit", names_it);
}
