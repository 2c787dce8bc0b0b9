//! The environment of a container at its start, and starts that fail.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nodlet_host::launch::{ContainerConfig, MemoryVolume, MountConfig, MountSource, Propagation};
use nodlet_supervisor::client::{StartFailedAt, SupervisorEvent};

use crate::pod::{Pod, mount, touch, wait_until};

pub(crate) const TESTS: &[(&str, fn())] = tests![
    a_command_that_cannot_run_is_reported_with_the_errors_of_runc,
    a_start_helper_killed_at_any_moment_leaves_nothing,
    volumes_are_mounted_and_nothing_leaves_them,
    a_dev_of_the_host_stays_what_it_is,
    a_dev_of_the_host_stays_what_it_is_wherever_links_lead,
    volumes_lie_where_the_kernels_own_file_systems_are,
    an_image_whose_dev_is_a_link_is_refused,
    the_process_is_who_the_pod_says,
    paths_are_masked_unless_it_is_privileged,
    a_missing_working_directory_is_made,
    output_can_be_opened_again_by_a_user,
    a_read_only_root_has_places_to_write_to,
    mounts_propagate_as_the_volume_says,
];

pub(crate) fn failure(pod: &Pod, config: &ContainerConfig) -> (StartFailedAt, String) {
    pod.ask_to_start(config);
    match pod.next() {
        SupervisorEvent::StartFailed { at, message, .. } => (at, message),
        other => panic!("{other:?}"),
    }
}

fn a_command_that_cannot_run_is_reported_with_the_errors_of_runc() {
    let pod = Pod::new("texts");
    let bin = pod.root.join("layer/bin");
    fs::write(bin.join("text"), "hello").unwrap();
    fs::set_permissions(bin.join("text"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(bin.join("plain"), "hello").unwrap();
    fs::write(bin.join("bad"), "#!/bin/plain\n").unwrap();
    fs::set_permissions(bin.join("bad"), fs::Permissions::from_mode(0o755)).unwrap();
    for (command, expected) in [
        ("nope", "exec: \"nope\": executable file not found in $PATH"),
        ("/nope", "exec: \"/nope\": stat /nope: no such file or directory"),
        ("/bin", "exec: \"/bin\": is a directory"),
        ("/bin/plain", "exec: \"/bin/plain\": permission denied: the file has no x bit (chmod +x)"),
        ("plain", "exec: \"plain\": permission denied: the file has no x bit (chmod +x)"),
        ("/proc/version", "exec: \"/proc/version\": permission denied: its file system is mounted noexec"),
        (
            "/bin/bad",
            "exec /bin/bad: permission denied: the interpreter or loader that the file names cannot be executed",
        ),
        (
            "",
            "exec: \"\": executable file not found in $PATH: the first word of the command (command[0], or args[0] \
             without a command) is empty",
        ),
        ("text", "exec /bin/text: exec format error"),
    ] {
        let mut config = pod.container("app", &[]);
        config.process.args = vec![command.to_owned()];
        assert_eq!(failure(&pod, &config), (StartFailedAt::Run, expected.to_owned()));
        assert_eq!(pod.output(&config), "", "nothing of ours may reach the log");
    }
    let mut config = pod.container("app", &[]);
    config.process.user.image_user = "nobody".to_owned();
    let (at, message) = failure(&pod, &config);
    assert_eq!(at, StartFailedAt::Create);
    assert!(message.contains("nobody"), "{message}");
}

fn a_start_helper_killed_at_any_moment_leaves_nothing() {
    let pod = Pod::new("killed");
    let pid = pod.pid();
    let (mut started, mut failed) = (0, 0);
    for round in 0..40u32 {
        let config = pod.container("app", &["wait"]);
        let procs = config.cgroup.unified.join("cgroup.procs");
        pod.ask_to_start(&config);
        let mut helper = None;
        wait_until("helper", || {
            helper = fs::read_to_string(&procs)
                .unwrap_or_default()
                .lines()
                .next()
                .and_then(|pid| pid.parse().ok());
            helper.is_some()
        });
        // The start proceeds further in each round.
        for _ in 0..round * 40 {
            std::hint::black_box(fs::metadata("/proc/self/stat").is_ok());
        }
        let helper = nix::unistd::Pid::from_raw(helper.unwrap());
        let _ = nix::sys::signal::kill(helper, nix::sys::signal::Signal::SIGKILL);
        match pod.next() {
            SupervisorEvent::StartFailed { .. } => failed += 1,
            SupervisorEvent::Started { .. } => {
                started += 1;
                fs::write(config.cgroup.unified.join("cgroup.kill"), "1").unwrap();
                assert_eq!(pod.exited().code, 137);
            }
            other => panic!("{other:?}"),
        }
        fs::remove_dir(&config.cgroup.unified).expect("nobody is left in the cgroup");
    }
    assert!(failed > 0, "{started} started, {failed} failed");
    // The last event may be sent before the last child is reaped.
    let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    wait_until("no child to be left, not even a dead one", || children().trim().is_empty());
}

fn volumes_are_mounted_and_nothing_leaves_them() {
    let pod = Pod::with("volumes", |sandbox| {
        sandbox.memory_volumes = vec![MemoryVolume {
            name: "mem".to_owned(),
            size: Some(65536),
            fs_group: Some(77),
            page_size: None,
        }];
    });
    let volume = pod.root.join("volume");
    fs::create_dir_all(volume.join("inside")).unwrap();
    fs::write(volume.join("inside/file"), "in the file\n").unwrap();
    symlink("inside", volume.join("link")).unwrap();
    symlink("/etc", volume.join("absolute")).unwrap();
    symlink("../../..", volume.join("up")).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o750)).unwrap();
    let host = || MountSource::Host(volume.clone());
    let sub = |path: &str, destination: &str| MountConfig {
        sub_path: Some(path.into()),
        sub_path_shown: None,
        ..mount(host(), destination)
    };

    let mut config = pod.container(
        "app",
        &[
            "ls=/data",
            "cat=/file",
            "cat=/through/file",
            "write=/read-only/x:y",
            "write=/data/new:text",
            "ls=/made",
            "write=/mem/shared:seen\n",
        ],
    );
    config.mounts = vec![
        mount(host(), "/data"),
        sub("inside/file", "/file"),
        mount(MountSource::Memory("mem".to_owned()), "/mem"),
        sub("new/below", "/made"),
        MountConfig { read_only: true, ..mount(host(), "/read-only") },
        sub("link", "/through"),
    ];
    let (exit, output) = pod.run(&config);
    assert_eq!(exit.code, 0, "{output}");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        lines,
        [
            "absolute inside link new up",
            "in the file",
            "in the file",
            "/read-only/x: Read-only file system (os error 30)",
            "/data/new: Is a directory (os error 21)",
            "",
            "wrote /mem/shared",
        ]
    );
    assert_eq!(fs::metadata(volume.join("new/below")).unwrap().permissions().mode() & 0o7777, 0o750);

    // A memory volume belongs to the pod, not to the container.
    let mut again = pod.container("again", &["cat=/mem/shared"]);
    again.mounts = vec![mount(MountSource::Memory("mem".to_owned()), "/mem")];
    assert_eq!(pod.run(&again).1, "seen\n");

    for (path, expected) in [
        ("absolute", "it leads out of the volume"),
        ("up", "it leads out of the volume"),
        ("absolute/passwd", "it leads out of the volume"),
        ("../x", "it must be relative, without \"..\""),
    ] {
        let mut config = pod.container("app", &[]);
        config.mounts = vec![sub(path, "/sub")];
        let (at, message) = failure(&pod, &config);
        assert_eq!(at, StartFailedAt::Create);
        assert_eq!(message, format!("mount the volume at /sub: subPath {path}: {expected}"));
    }
}

/// Many pods that use devices mount the host's /dev: the container's own devices would replace the host's.
fn a_dev_of_the_host_stays_what_it_is() {
    let pod = Pod::new("dev");
    let dev = pod.root.join("dev");
    fs::create_dir_all(dev.join("own")).unwrap();
    fs::create_dir_all(dev.join("shm")).unwrap();
    fs::write(dev.join("ptmx"), "the host's\n").unwrap();
    let other = pod.root.join("other");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("file"), "").unwrap();
    // As a user who may do everything, and as one who may do nothing.
    for user in [0, 4711] {
        let mut config =
            pod.container("app", &["ls=/dev", "cat=/dev/ptmx", "ls=/dev/own", "write=/dev/own/x:y"]);
        config.process.user.run_as_user = Some(user);
        if user != 0 {
            config.process.capabilities.clear();
        }
        config.mounts = vec![
            // The order in the manifest is not the order of the directories.
            MountConfig { read_only: true, ..mount(MountSource::Host(other.clone()), "/dev/own") },
            mount(MountSource::Host(dev.clone()), "/dev"),
        ];
        let (exit, output) = pod.run(&config);
        assert_eq!(exit.code, 0, "{output}");
        let lines: Vec<&str> = output.lines().collect();
        let refused = "/dev/own/x: Read-only file system (os error 30)";
        assert_eq!(lines, ["own ptmx shm", "the host's", "file", refused], "user {user}");
    }
    let mut names: Vec<_> =
        fs::read_dir(&dev).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["own", "ptmx", "shm"]);
    assert!(fs::symlink_metadata(dev.join("ptmx")).unwrap().is_file());
}

/// The host's /dev also stays unchanged if it is reached by a link in the image, or in another volume, where
/// a container can make the link while others start.
fn a_dev_of_the_host_stays_what_it_is_wherever_links_lead() {
    let pod = Pod::new("led");
    let (dev, other) = (pod.root.join("dev"), pod.root.join("other"));
    fs::create_dir_all(dev.join("shm")).unwrap();
    fs::write(dev.join("ptmx"), "the host's\n").unwrap();
    fs::create_dir_all(&other).unwrap();
    std::os::unix::fs::symlink("/dev", other.join("led")).unwrap();
    std::os::unix::fs::symlink("/sys", other.join("kernel")).unwrap();

    let image = pod.root.join("layer");
    fs::create_dir_all(image.join("usr")).unwrap();
    std::os::unix::fs::symlink("/usr/../dev", image.join("led")).unwrap();
    let mut config = pod.container("app", &["link=/led", "ls=/dev", "cat=/dev/ptmx"]);
    config.mounts = vec![mount(MountSource::Host(dev.clone()), "/led")];
    let (exit, output) = pod.run(&config);
    assert_eq!((exit.code, &*output), (0, "/usr/../dev\nptmx shm\nthe host's\n"), "{output}");

    for link in ["led", "kernel"] {
        let mut config = pod.container("app", &[]);
        config.mounts = vec![
            mount(MountSource::Host(other.clone()), "/other"),
            mount(MountSource::Host(dev.clone()), &format!("/other/{link}")),
        ];
        let (at, message) = failure(&pod, &config);
        assert_eq!(at, StartFailedAt::Create);
        let expected =
            format!("mount the volume at /other/{link}: there is a symbolic link on the way to it");
        assert!(message.starts_with(&expected), "{message}");
    }
    let mut names: Vec<_> =
        fs::read_dir(&dev).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["ptmx", "shm"]);
    assert!(fs::symlink_metadata(dev.join("ptmx")).unwrap().is_file());
}

fn volumes_lie_where_the_kernels_own_file_systems_are() {
    let pod = Pod::new("below");
    let volume = |name: &str| {
        let path = pod.root.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(name), "").unwrap();
        MountSource::Host(path)
    };
    let mut config = pod.container("app", &["ls=/sys/fs", "ls=/first", "ls=/last", "ls=/dev/deep"]);
    config.mounts = vec![
        mount(volume("first"), "/first"),
        mount(volume("deep"), "/dev/deep"),
        mount(volume("below"), "/sys/fs"),
        mount(volume("last"), "/last"),
    ];
    let (exit, output) = pod.run(&config);
    assert_eq!(exit.code, 0, "{output}");
    assert_eq!(output.lines().collect::<Vec<_>>(), ["below", "first", "last", "deep"]);
}

fn an_image_whose_dev_is_a_link_is_refused() {
    let pod = Pod::new("dev");
    let target = pod.root.join("target");
    fs::create_dir(&target).unwrap();
    symlink(&target, pod.root.join("layer/dev")).unwrap();
    let (at, message) = failure(&pod, &pod.container("app", &[]));
    assert_eq!(at, StartFailedAt::Create);
    assert!(message.contains("/dev"), "{message}");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("no {name} in {status}"))
        .trim()
}

fn the_process_is_who_the_pod_says() {
    let pod = Pod::new("who");
    let wanted = "00000000080020a3".parse::<String>().unwrap();
    let mut config =
        pod.container("app", &["cat=/proc/self/status", "env=HOME", "cat=/proc/self/oom_score_adj"]);
    let (_, root) = pod.run(&config);
    assert_eq!(field(&root, "Uid:").split_whitespace().next(), Some("0"));
    for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
        let bits = u64::from_str_radix(field(&root, set), 16).unwrap();
        // CHOWN, DAC_OVERRIDE, KILL, NET_RAW, MKNOD.
        assert_eq!(bits, 1 | 1 << 1 | 1 << 5 | 1 << 13 | 1 << 27, "{set} {wanted}");
    }
    for set in ["CapInh:", "CapAmb:", "SigBlk:", "SigIgn:"] {
        let bits = u64::from_str_radix(field(&root, set), 16).unwrap();
        // Rust's runtime in the program ignores SIGPIPE again.
        assert_eq!(bits & !(1 << 12), 0, "{set}");
    }
    assert_eq!(field(&root, "NoNewPrivs:"), "0");
    assert_eq!(field(&root, "Umask:"), "0022");
    assert!(root.ends_with("/root\n500\n"), "{root}");

    config = pod.container("app", &["cat=/proc/self/status", "env=HOME"]);
    config.process.user.image_user = "web".to_owned();
    config.process.user.additional_gids = vec![3000];
    config.process.no_new_privileges = true;
    let (_, web) = pod.run(&config);
    assert_eq!(field(&web, "Uid:"), "1000\t1000\t1000\t1000");
    assert_eq!(field(&web, "Gid:"), "1001\t1001\t1001\t1001");
    let mut groups: Vec<&str> = field(&web, "Groups:").split_whitespace().collect();
    groups.sort_unstable();
    assert_eq!(groups, ["1001", "3000", "4"]);
    for set in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
        assert_eq!(field(&web, set), "0000000000000000", "{set}");
    }
    assert_eq!(field(&web, "CapBnd:"), field(&root, "CapBnd:"));

    // Ids of more than 16 bits, for which 32-bit ARM has its own system calls.
    config = pod.container("app", &["cat=/proc/self/status"]);
    config.process.user.image_user = "65536:131072".to_owned();
    config.process.user.additional_gids = vec![196_608, 70_000];
    let (_, high) = pod.run(&config);
    assert_eq!(field(&high, "Uid:"), "65536\t65536\t65536\t65536");
    assert_eq!(field(&high, "Gid:"), "131072\t131072\t131072\t131072");
    assert_eq!(field(&high, "Groups:"), "70000 131072 196608");
    assert_eq!(field(&web, "NoNewPrivs:"), "1");
    assert!(web.ends_with("/srv\n"));
}

fn paths_are_masked_unless_it_is_privileged() {
    let pod = Pod::new("masked");
    let program = [
        "cat=/proc/timer_list",
        "write=/proc/sys/kernel/domainname:x",
        "ls=/sys/firmware",
        "ls=/sys/fs/cgroup",
    ];
    let (_, output) = pod.run(&pod.container("app", &program));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], "/proc/sys/kernel/domainname: Read-only file system (os error 30)", "{output}");
    assert_eq!(lines[1], "", "{output}");
    let mut config = pod.container("app", &["cat=/proc/timer_list", "out=end"]);
    config.privileged = true;
    let (_, output) = pod.run(&config);
    assert_ne!(output, "end\n");
}

fn a_missing_working_directory_is_made() {
    let pod = Pod::new("cwd");
    let volume = pod.root.join("volume");
    fs::create_dir_all(&volume).unwrap();
    for (cwd, made) in [("/some/where", None), ("/data/below/it", Some("below/it"))] {
        let mut config = pod.container("app", &["cwd"]);
        config.mounts = vec![mount(MountSource::Host(volume.clone()), "/data")];
        config.process.cwd = cwd.into();
        assert_eq!(pod.run(&config).1, format!("{cwd}\n"));
        if let Some(made) = made {
            assert!(volume.join(made).is_dir());
        }
    }
    assert!(!Path::new("/some/where").exists());
}

fn output_can_be_opened_again_by_a_user() {
    let pod = Pod::new("reopen");
    let mut config = pod.container("app", &["write=/dev/stdout:again\n", "write=/dev/stderr:again\n"]);
    config.process.user.run_as_user = Some(1000);
    let (_, output) = pod.run(&config);
    assert_eq!(output.matches("again\n").count(), 2, "{output}");
}

fn a_read_only_root_has_places_to_write_to() {
    let pod = Pod::new("read-only");
    let volume = pod.root.join("volume");
    fs::create_dir_all(&volume).unwrap();
    let mut config =
        pod.container("app", &["write=/file:x", "write=/dev/shm/file:x", "write=/data/file:x", "out=end"]);
    config.read_only_root = true;
    config.mounts = vec![mount(MountSource::Host(volume), "/data")];
    assert_eq!(
        pod.run(&config).1,
        "/file: Read-only file system (os error 30)\nwrote /dev/shm/file\nwrote /data/file\nend\n"
    );
}

fn mounts_propagate_as_the_volume_says() {
    use nix::mount::{MntFlags, MsFlags, mount as mount_at, umount2};
    let pod = Pod::bare("propagate");
    let volume = pod.root.join("volume");
    fs::create_dir_all(&volume).unwrap();
    mount_at(Some("test"), &volume, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    mount_at(None::<&str>, &volume, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
    for name in ["late", "inner"] {
        fs::create_dir(volume.join(name)).unwrap();
    }
    pod.client(|supervisor| supervisor.create_sandbox(&pod.sandbox())).unwrap();
    assert!(matches!(pod.next(), SupervisorEvent::SandboxReady { .. }));
    let outside = |file: &str| volume.join(file).exists();
    for (propagation, late, inner) in [
        (Propagation::Private, false, false),
        (Propagation::Slave, true, false),
        (Propagation::Shared, true, true),
    ] {
        let program = [
            "out=up",
            "until=/go",
            "ls=/data/late",
            "mount=/data/inner",
            "write=/data/inner/file:x",
            "out=end",
            "wait",
        ];
        let mut config = pod.container("app", &program);
        config.privileged = true;
        config.process.capabilities.push("CAP_SYS_ADMIN".to_owned());
        config.mounts =
            vec![MountConfig { propagation, ..mount(MountSource::Host(volume.clone()), "/data") }];
        let process = pod.start(&config);
        pod.wait_for_output(&config, "up");
        let late_mount = volume.join("late");
        mount_at(Some("test"), &late_mount, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        fs::write(late_mount.join("seen"), "").unwrap();
        touch(&process, "go");
        pod.wait_for_output(&config, "end\n");
        assert_eq!(pod.output(&config).contains("seen\n"), late, "{propagation:?}");
        assert_eq!(outside("inner/file"), inner, "{propagation:?}");
        fs::write(config.cgroup.unified.join("cgroup.kill"), "1").unwrap();
        pod.exited();
        let _ = umount2(&volume.join("inner"), MntFlags::MNT_DETACH);
        umount2(&late_mount, MntFlags::MNT_DETACH).unwrap();
    }
    umount2(&volume, MntFlags::MNT_DETACH).unwrap();
}
