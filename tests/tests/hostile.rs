//! Images as hostile input, with the real program: where it reads them, what happens if it is killed, and a
//! `/dev` that leads elsewhere.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::guest::is_guest;
use nodlet_tests::image::{Compression, Image};
use nodlet_tests::{Device, demo_program, manifest};

/// A load that has received half of its archive through a pipe, and the process that reads it.
struct HalfLoaded {
    load: Child,
    reader: u32,
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Starts a load and stops half-way, when a layer has been begun.
fn half_load(device: &Device) -> HalfLoaded {
    let archive = device.path("/large.tar");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let image = Image::new("localhost/large:1").compression(Compression::None).file("large", 0o644, &bytes);
    image.write_docker_archive(&archive).expect("it can be written");
    let bytes = fs::read(&archive).expect("it can be read");
    let mut load = device
        .command(&["image", "load", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nodlet can be run");
    let mut input = load.stdin.take().expect("a pipe");
    input.write_all(&bytes[..bytes.len() / 2]).expect("it reads");
    load.stdin = Some(input);
    let staging = device.path("/var/lib/nodlet/images/staging");
    device.wait_for("a layer to be begun", || count(&staging) == 1);
    let reader = *children(load.id()).first().expect("a process that reads");
    HalfLoaded { load, reader }
}

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

/// The error message of a load, which must fail.
fn last_words(mut load: Child) -> String {
    drop(load.stdin.take());
    let mut said = String::new();
    let mut stderr = load.stderr.take().expect("a pipe");
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!(load.wait().expect("it ends").code(), Some(1));
    said
}

fn kill_9(pid: u32) {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("it can be killed");
}

#[test]
fn an_archive_is_read_by_a_process_that_can_do_nothing_else() {
    let device = Device::start();
    let HalfLoaded { load, reader } = half_load(&device);
    let status = fs::read_to_string(format!("/proc/{reader}/status")).expect("it runs");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).expect("it has one");
    assert_ne!(namespace(&reader.to_string()), namespace("self"), "no network");
    let root = fs::read_link(format!("/proc/{reader}/root")).expect("it has one");
    assert!(root.ends_with("var/lib/nodlet/images/staging"), "{}", root.display());
    let cgroups = fs::read_to_string(format!("/proc/{reader}/cgroup")).expect("it has some");
    // The guest has no disk, and there is no cgroup for a store in memory: see `limits.rs`.
    assert_eq!(cgroups.lines().any(|line| line.ends_with("/unpacker")), !is_guest(), "{cgroups}");
    let limits = fs::read_to_string(format!("/proc/{reader}/limits")).expect("it has some");
    assert!(limits.contains("167772160"), "{limits}");

    kill_9(reader);
    assert_eq!(
        last_words(load),
        "error: standard input: failed to unpack the archive: the process that reads it was killed by SIGKILL; it \
         can use 160 MiB of memory, and an archive that needs more is rejected\n"
    );
    assert_eq!(count(&device.path("/var/lib/nodlet/images/staging")), 0);
    assert!(!device.nodlet(["image", "ls"]).ok().contains("large"));
}

#[test]
fn a_load_that_was_killed_leaves_nothing_that_the_next_agent_does_not_sweep() {
    // Without an agent, because one that has just started may sweep at any time.
    let mut device = Device::new();
    let before = device.nodlet(["image", "ls"]).ok();
    let HalfLoaded { mut load, reader } = half_load(&device);
    // The archive does not end: the process that reads would remove what it had begun.
    let input = load.stdin.take();
    kill_9(load.id());
    load.wait().expect("it ends");
    device.wait_for("the process that reads to die with it", || {
        !Path::new(&format!("/proc/{reader}")).exists()
    });
    drop(input);
    let staging = device.path("/var/lib/nodlet/images/staging");
    assert_eq!(count(&staging), 1, "what it had begun");
    device.start_agent();
    device.wait_for("the agent to sweep", || count(&staging) == 0);
    assert_eq!(device.nodlet(["image", "ls"]).ok(), before);
}

/// The kernel would charge the layers to the process, which would not survive a large image.
#[test]
fn into_a_store_in_memory_an_archive_is_read_without_a_cgroup_of_memory() {
    let device = Device::new();
    let _disk = device.mount_tmpfs("/var/lib/nodlet", "size=64m");
    let HalfLoaded { load, reader } = half_load(&device);
    let cgroups = fs::read_to_string(format!("/proc/{reader}/cgroup")).expect("it has some");
    assert!(!cgroups.contains("unpacker"), "{cgroups}");
    let limits = fs::read_to_string(format!("/proc/{reader}/limits")).expect("it has some");
    assert!(limits.contains("167772160"), "memory of its own is bounded all the same: {limits}");
    kill_9(reader);
    last_words(load);
}

#[test]
fn an_image_too_large_for_the_disk_is_rejected_with_both_sizes() {
    let device = Device::new();
    let disk = device.mount_tmpfs("/var/lib/nodlet", "size=1m");
    let archive = device.path("/large.tar");
    let image = Image::new("localhost/large:1").compression(Compression::None);
    image.file("large", 0o644, &[7; 3_000_000]).write_oci_archive(&archive).expect("it can be written");
    let said = device.nodlet(["image", "load", &archive.display().to_string()]).refused();
    assert!(said.contains("at least 3001856 bytes are needed and "), "{said}");
    assert!(said.contains(" are free; remove images with nodlet image rm"), "{said}");
    // Compressed, the archive seems to fit.
    let image = Image::new("localhost/large:1").compression(Compression::Gzip);
    image.file("large", 0o644, &[7; 3_000_000]).write_oci_archive(&archive).expect("it can be written");
    let said = device.nodlet(["image", "load", &archive.display().to_string()]).refused();
    assert!(said.contains(" bytes are needed and ") && said.contains(" are free"), "{said}");
    assert_eq!(count(&device.path("/var/lib/nodlet/images/staging")), 0);
    assert_eq!(count(&device.path("/var/lib/nodlet/images/layers")), 0);
    drop(disk);
}

/// The container's own devices are created by path: a link would create them where it leads.
#[test]
fn a_container_does_not_start_from_an_image_whose_dev_is_a_link() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    let target = device.path("/target");
    fs::create_dir(&target).expect("it can be made");
    let absolute = target.display().to_string();
    for (name, link) in [("absolute", absolute.as_str()), ("upward", "../../../../../../tmp"), ("root", "/")]
    {
        let image = format!("localhost/{name}:1");
        device.load(&Image::demo(&image, &program).layer().file(".wh.dev", 0o644, b"").symlink("dev", link));
        let text = manifest::pod_with(name, "print up then sleep", "restartPolicy: Never");
        device.write_manifest(&format!("{name}.yaml"), &text.replace("localhost/demo:1", &image));
        device.wait_for("the refusal", || {
            let app = device.pod(name).container("app");
            app.message().contains("its /dev is a symbolic link to")
        });
        assert_eq!(device.pod(name).logs("app"), "", "{name}");
    }
    assert_eq!(count(&target), 0, "nothing was made where the link leads");
}

#[test]
fn an_image_with_a_file_or_a_link_at_proc_or_sys_is_rejected_with_the_path() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    for (name, directory, is_link) in [
        ("proc-file", "proc", false),
        ("sys-file", "sys", false),
        ("proc-link", "proc", true),
        ("sys-link", "sys", true),
    ] {
        let image = format!("localhost/{name}:1");
        let layer = Image::demo(&image, &program).layer().directory("else", 0o755);
        device.load(&match is_link {
            true => layer.symlink(directory, "/else"),
            false => layer.file(directory, 0o644, b"no directory"),
        });
        let text = manifest::pod_with(name, "print up then sleep", "restartPolicy: Never");
        device.write_manifest(&format!("{name}.yaml"), &text.replace("localhost/demo:1", &image));
        let said = format!(
            "failed to make the container's own /{directory}: the image has something else there; it must be a \
             directory or missing"
        );
        device.wait_for(&said, || device.pod(name).container("app").message().contains(&said));
    }
}

/// Loads an image of the demo program with more in it.
fn load_with(device: &Device, name: &str, more: impl FnOnce(Image) -> Image) {
    let program = fs::read(demo_program()).expect("it is built");
    device.load(&more(Image::demo(&format!("localhost/{name}:1"), &program)));
}

/// A pod of such an image.
fn pod_of(name: &str, image: &str, steps: &str, spec: &str) -> String {
    manifest::pod_with(name, steps, spec).replace("localhost/demo:1", &format!("localhost/{image}:1"))
}

/// Each rename or mount on the machine disturbs the kernel's walk along a `..` within a directory.
#[test]
fn containers_that_rename_without_end_keep_no_other_from_starting() {
    let device = Device::start();
    load_with(&device, "up", |image| {
        image
            .layer()
            .directory("usr/lib", 0o755)
            .file("usr/lib/passwd", 0o644, b"app:x:1234:1234::/:/bin/demo\n")
            .symlink("etc/passwd", "../usr/lib/passwd")
    });
    for number in 0..2 {
        let swap = "mkdir /tmp/a then mkdir /tmp/b then print up then swap /tmp/a /tmp/b";
        let name = format!("swap-{number}");
        let spec = "volumes: [{name: tmp, emptyDir: {medium: Memory}}]";
        let container = manifest::container("app", swap, "volumeMounts: [{name: tmp, mountPath: /tmp}]");
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod_of(&name, &[container], spec));
        device.pod(&name).wait_log("app", "up");
    }
    let names: Vec<String> = (0..12).map(|number| format!("up-{number}")).collect();
    for name in &names {
        // The user is looked up in the image, and the subPath leads through a link with `..`.
        let container = manifest::container(
            "app",
            "print up then sleep",
            "securityContext: {runAsUser: 1234}\n\
             volumeMounts: [{name: data, mountPath: /data, subPath: a/l}]",
        )
        .replace("localhost/demo:1", "localhost/up:1");
        let first = manifest::container(
            "first",
            "mkdir /data/a then mkdir /data/b then link ../b /data/a/l",
            "volumeMounts: [{name: data, mountPath: /data}]",
        );
        let spec = "volumes: [{name: data, emptyDir: {}}]";
        let pod = manifest::pod_behind(name, &[first], &[container], spec);
        device.write_manifest(&format!("{name}.yaml"), &pod);
    }
    for name in &names {
        device.pod(name).wait_ready();
        let events = device.pod(name).events();
        assert!(!events.iter().any(|event| event.contains("temporarily unavailable")), "{events:?}");
        assert_eq!(device.pod(name).container("app").restart_count(), 0);
    }
}

#[test]
fn what_an_image_has_in_its_dev_leads_no_mount_elsewhere() {
    let device = Device::start();
    load_with(&device, "dev", |image| {
        image
            .directory("dev", 0o755)
            .symlink("dev/shm", "/etc")
            .symlink("dev/termination-log", "/srv/index.html")
    });
    device.write_manifest("shm.yaml", &pod_of("shm", "dev", "print up then sleep", ""));
    device.pod("shm").wait_ready();
    assert!(device.pod("shm").exec("app", ["/bin/demo", "stat", "/dev/shm"]).ok().starts_with("dir"));
    let page = device.pod("shm").exec("app", ["/bin/demo", "cat", "/srv/index.html"]).ok();
    assert_eq!(page, "hello from the image\n");
}
