//! Images as hostile input, with the real program: where it reads them, what happens if it is killed, and a
//! `/dev` that leads elsewhere.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::guest::is_guest;
use nodlet_tests::image::{Compression, Image};
use nodlet_tests::{Device, HalfLoad, manifest};

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

fn kill_9(pid: u32) {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("it can be killed");
}

#[test]
fn an_archive_is_read_by_a_process_that_can_do_nothing_else() {
    let device = Device::start();
    let half = HalfLoad::start(&device);
    let (reader, status) = (half.reader, half.of_reader("status"));
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).expect("it has one");
    assert_ne!(namespace(&reader.to_string()), namespace("self"), "no network");
    let root = fs::read_link(format!("/proc/{reader}/root")).expect("it has one");
    assert!(root.ends_with("var/lib/nodlet/images/staging"), "{}", root.display());
    let cgroups = half.of_reader("cgroup");
    // The guest has no disk, and there is no cgroup for a store in memory: see `limits.rs`.
    assert_eq!(cgroups.lines().any(|line| line.ends_with("/unpacker")), !is_guest(), "{cgroups}");
    assert!(half.of_reader("limits").contains("167772160"), "{}", half.of_reader("limits"));

    kill_9(reader);
    assert_eq!(
        half.error(),
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
    let HalfLoad { mut load, reader } = HalfLoad::start(&device);
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
    let half = HalfLoad::start(&device);
    let cgroups = half.of_reader("cgroup");
    assert!(!cgroups.contains("unpacker"), "{cgroups}");
    let limits = half.of_reader("limits");
    assert!(limits.contains("167772160"), "memory of its own is bounded all the same: {limits}");
    kill_9(half.reader);
    half.error();
}

#[test]
fn an_image_too_large_for_the_disk_is_rejected_with_both_sizes() {
    let device = Device::new();
    let disk = device.mount_tmpfs("/var/lib/nodlet", "size=1m");
    let archive = device.path("/large.tar");
    // Compressed, the archive seems to fit.
    for (compression, texts) in [
        (
            Compression::None,
            ["at least 3001856 bytes are needed and ", " are free; remove images with nodlet image rm"],
        ),
        (Compression::Gzip, [" bytes are needed and ", " are free"]),
    ] {
        let image = Image::new("localhost/large:1").compression(compression);
        image.file("large", 0o644, &[7; 3_000_000]).write_oci_archive(&archive).expect("it can be written");
        let refused = device.nodlet(["image", "load", &archive.display().to_string()]).refused();
        assert!(texts.iter().all(|text| refused.contains(text)), "{refused}");
    }
    assert_eq!(count(&device.path("/var/lib/nodlet/images/staging")), 0);
    assert_eq!(count(&device.path("/var/lib/nodlet/images/layers")), 0);
    drop(disk);
}

/// The container's own devices are created by path: a link would create them where it leads.
#[test]
fn a_container_does_not_start_from_an_image_whose_dev_is_a_link() {
    let device = Device::start();
    let target = device.path("/target");
    fs::create_dir(&target).expect("it can be made");
    let absolute = target.display().to_string();
    for (name, link) in [("absolute", &*absolute), ("upward", "../../../../../../tmp"), ("root", "/")] {
        load_with(&device, name, |image| image.layer().file(".wh.dev", 0o644, b"").symlink("dev", link));
        let pod = device.write_pod(name, &pod_of(name, name, "print up then sleep", "restartPolicy: Never"));
        pod.wait_message("app", "its /dev is a symbolic link to");
        assert_eq!(pod.logs("app"), "", "{name}");
    }
    assert_eq!(count(&target), 0, "nothing was made where the link leads");
}

#[test]
fn an_image_with_a_file_or_a_link_at_proc_or_sys_is_rejected_with_the_path() {
    let device = Device::start();
    for directory in ["proc", "sys"] {
        for what in ["file", "link"] {
            let name = &format!("{directory}-{what}");
            load_with(&device, name, |image| {
                let layer = image.layer().directory("else", 0o755);
                if what == "link" {
                    layer.symlink(directory, "/else")
                } else {
                    layer.file(directory, 0o644, b"no directory")
                }
            });
            let pod = pod_of(name, name, "print up then sleep", "restartPolicy: Never");
            device.write_pod(name, &pod).wait_message(
                "app",
                &format!(
                    "failed to make the container's own /{directory}: the image has something else there; it must be \
                     a directory or missing"
                ),
            );
        }
    }
}

/// Loads an image of the demo program with more in it.
fn load_with(device: &Device, name: &str, more: impl FnOnce(Image) -> Image) {
    device.load(&more(Image::of_demo(&format!("localhost/{name}:1"))));
}

/// A pod of such an image.
fn pod_of(name: &str, image: &str, steps: &str, spec: &str) -> String {
    manifest::with_image(&manifest::pod_with(name, steps, spec), &format!("localhost/{image}:1"))
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
    for name in ["swap-0", "swap-1"] {
        let swap = "mkdir /tmp/a then mkdir /tmp/b then print up then swap /tmp/a /tmp/b";
        let spec = "volumes: [{name: tmp, emptyDir: {medium: Memory}}]";
        let container = manifest::container("app", swap, &manifest::mount("tmp"));
        device.run_pod_of(name, &[container], spec).wait_log("app", "up");
    }
    let names: Vec<String> = (0..12).map(|number| format!("up-{number}")).collect();
    for name in &names {
        // The user is looked up in the image, and the subPath leads through a link with `..`.
        let fields = "securityContext: {runAsUser: 1234}\nvolumeMounts: [{name: data, mountPath: /data, subPath: a/l}]";
        let container = manifest::container("app", "print up then sleep", fields);
        let container = manifest::with_image(&container, "localhost/up:1");
        let steps = "mkdir /data/a then mkdir /data/b then link ../b /data/a/l";
        let first = manifest::container("first", steps, &manifest::mount("data"));
        let volume = manifest::empty_dir("data");
        device.write_pod(name, &manifest::pod_behind(name, &[first], &[container], &volume));
    }
    for name in &names {
        let pod = device.pod(name).wait_ready();
        assert!(!pod.has_event("temporarily unavailable"), "{:?}", pod.events());
        assert_eq!(pod.container("app").restart_count(), 0);
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
    let shm = device.write_pod("shm", &pod_of("shm", "dev", "print up then sleep", "")).wait_ready();
    assert!(shm.demo("app", "stat /dev/shm").ok().starts_with("dir"));
    assert_eq!(shm.demo("app", "cat /srv/index.html").ok(), "hello from the image\n");
}
