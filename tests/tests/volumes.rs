//! Volumes as containers see them.

use nix::mount::MsFlags;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nodlet_tests::image::Image;
use nodlet_tests::{Device, manifest, switches};

/// The volume of most pods here.
const WORK: &str = "volumes: [{name: work, emptyDir: {}}]";

#[test]
fn containers_of_a_pod_share_an_empty_dir_which_goes_with_the_pod_and_other_pods_have_their_own() {
    let device = Device::start();
    let pod = |name: &str| {
        let mount = "volumeMounts: [{name: work, mountPath: /work}]";
        let reads = "wait /work/said then cat /work/said then stat /work then sleep";
        let containers = [
            manifest::container(
                "writer",
                "ls /work then print listed then write /work/said hello then sleep",
                mount,
            ),
            manifest::container("app", reads, mount),
        ];
        manifest::pod_of(name, &containers, WORK)
    };
    let one = device.write_pod("one", &pod("one")).wait_log("app", "hello\ndir 0777 0:0");
    let two = device.write_pod("two", &pod("two")).wait_log("app", "hello");
    one.demo("app", "write /work/mine x").ok();
    two.demo("app", "cat /work/mine").refused();
    device.remove_pod("one");
    device.write_pod("one", &pod("one")).wait_log("app", "hello");
    assert_eq!(one.logs("writer"), "listed\n", "the new pod's directory is empty");
}

#[test]
fn a_memory_volume_is_a_tmpfs_with_its_size_limit_in_which_a_missing_sub_path_is_created() {
    let device = Device::start();
    let mounts = "volumeMounts: [{name: ram, mountPath: /ram}, {name: ram, mountPath: /below, subPath: a/b}]";
    let volume = "volumes: [{name: ram, emptyDir: {medium: Memory, sizeLimit: 2Mi}}]";
    let ram = device
        .write_single("ram", "mounts then sleep", mounts, volume)
        .wait_ready()
        .wait_log("app", " /ram ");
    let log = ram.logs("app");
    let line = log.lines().find(|line| line.contains(" /ram ")).unwrap_or_default();
    assert!(line.contains(" tmpfs ") && line.contains("size=2048k"), "{line}");
    ram.demo("app", "write /below/file deep").ok();
    assert_eq!(ram.demo("app", "cat /ram/a/b/file").ok(), "deep\n");
    // With the mode of the volume's root, independent of the umask.
    let mode = |path: &str| ram.demo("app", &format!("stat {path}")).ok();
    assert_eq!(mode("/ram/a").split(' ').nth(1), mode("/ram").split(' ').nth(1));
}

#[test]
fn a_volume_that_cannot_be_mounted_where_it_should_be_says_why() {
    let device = Device::start();
    let (shared, here) = device.shared("host");
    std::fs::write(here.join("file"), "x").expect("it can be written");
    for (name, mount, volume, expected) in [
        (
            "on-file",
            "mountPath: /etc/passwd",
            "emptyDir: {}",
            "it is a directory, and the image has a file there",
        ),
        ("below-file", "mountPath: /etc/passwd/x", "emptyDir: {}", "the image has a file where a directory"),
        ("on-root", "mountPath: /", "emptyDir: {}", "a container needs its own there"),
        (
            "on-directory",
            "mountPath: /etc",
            &*format!("hostPath: {{path: {shared}/file}}"),
            "it is a file, and the image has a directory there",
        ),
    ] {
        let text = manifest::single(
            name,
            "sleep",
            &format!("volumeMounts: [{{name: v, {mount}}}]"),
            &format!("volumes: [{{name: v, {volume}}}]"),
        );
        device.write_pod(name, &text).wait_event_of("Failed", expected);
    }
}

#[test]
fn mounts_pass_only_where_the_host_shares_them() {
    let device = Device::start();
    let host = device.mount_tmpfs("/host", "mode=755");
    let here = device.path("/host");
    let propagation = |to: MsFlags| {
        nix::mount::mount(None::<&str>, &here, None::<&str>, to, None::<&str>).expect("it is a mount");
    };
    propagation(MsFlags::MS_PRIVATE);
    let volume = format!("volumes: [{{name: v, hostPath: {{path: {}}}}}]", here.display());
    let slave = device
        .write_single(
            "slave",
            "sleep",
            "volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]",
            &volume,
        )
        .wait_event("but it is not a shared or slave mount");
    propagation(MsFlags::MS_SHARED);
    slave.wait_ready();
    let later = device.mount_tmpfs("/host/later", "mode=755");
    std::fs::write(here.join("later/file"), "seen\n").expect("it can be written");
    assert_eq!(slave.demo("app", "cat /v/later/file").ok(), "seen\n");
    drop((later, host));
}

#[test]
fn containers_share_mounts_in_an_empty_dir_also_where_the_root_is_not_shared() {
    let device = Device::start();
    let container = |name: &str, steps: &str, propagation: &str, more: &str| {
        let mount = format!("volumeMounts: [{{name: v, mountPath: /v{propagation}}}]\n{more}");
        manifest::container(name, steps, &mount)
    };
    let containers = [
        container(
            "mounts",
            "mkdir /v/inner then print up then wait /v/go then mount tmpfs none /v/inner then write /v/inner/file seen then sleep",
            ", mountPropagation: Bidirectional",
            "securityContext: {privileged: true}",
        ),
        container("sees", "sleep", ", mountPropagation: HostToContainer", ""),
        container("apart", "sleep", "", ""),
    ];
    let web = device.run_pod_of("web", &containers, "volumes: [{name: v, emptyDir: {}}]");
    web.wait_log("mounts", "up");
    web.wait_ready();
    web.demo("apart", "write /v/go x").ok();
    let seen = |name: &str| web.demo(name, "cat /v/inner/file");
    device.wait_for("the mount to reach the other container", || seen("sees").stdout == "seen\n");
    assert!(seen("apart").stderr.contains("No such file"), "{:?}", seen("apart"));
    // All of it goes with the pod.
    let uid = web.uid();
    device.remove_pod("web");
    device
        .wait_for("the files to be removed", || !device.path(&format!("var/lib/nodlet/pods/{uid}")).exists());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
    assert!(!mounts.contains(&uid), "{mounts}");
}

#[test]
fn a_host_path_of_another_type_is_rejected() {
    let device = Device::start();
    let (shared, here) = device.shared("host");
    std::fs::write(here.join("file"), "from the host\n").expect("it can be written");
    let _socket = std::os::unix::net::UnixListener::bind(here.join("socket")).expect("it can be bound");
    // No driver serves these devices: opening one fails, and mounting one must not.
    for (name, kind) in [("char", SFlag::S_IFCHR), ("block", SFlag::S_IFBLK), ("fifo", SFlag::S_IFIFO)] {
        mknod(&here.join(name), kind, Mode::from_bits_truncate(0o600), makedev(250, 99))
            .expect("it can be made");
    }
    let pod = |name: &str, path: &str, kind: &str| {
        manifest::single(
            name,
            "stat /here then sleep",
            "volumeMounts: [{name: host, mountPath: /here}]",
            &format!("volumes: [{{name: host, hostPath: {{path: {shared}/{path}, type: {kind}}}}}]"),
        )
    };
    for (name, path, kind, stat) in [
        ("dir", "", "Directory", "dir"),
        ("file", "file", "File", "file 0644 0:0 14"),
        ("socket", "socket", "Socket", "socket "),
        ("char", "char", "CharDevice", "char "),
        ("block", "block", "BlockDevice", "block "),
        ("fifo", "fifo", "''", "fifo "),
        ("unset", "unset", "''", "dir 0755"),
        ("made", "made/deep", "DirectoryOrCreate", "dir 0755"),
        ("made-file", "made.txt", "FileOrCreate", "file 0644 0:0 0"),
    ] {
        device.write_pod(name, &pod(name, path, kind)).wait_log("app", stat);
    }
    for (name, path, kind, refusal) in [
        ("no-dir", "file", "Directory", "is not a directory"),
        ("no-file", "", "File", "is not a file"),
        ("no-socket", "file", "Socket", "is not a socket file"),
        ("no-char", "file", "CharDevice", "is not a character device"),
        ("no-block", "absent", "BlockDevice", "is not a block device"),
    ] {
        device.write_pod(name, &pod(name, path, kind));
        device.wait_for(&format!("the refusal of {name}"), || {
            let events = device.pod(name).events();
            events.iter().any(|event| {
                event.starts_with("FailedMount: ")
                    && event.contains("hostPath type check failed")
                    && event.contains(refusal)
            })
        });
        assert_eq!(device.pod(name).phase(), "Pending");
    }
    // After the path has been corrected, the pod starts without another request.
    std::fs::remove_file(here.join("file")).expect("it is there");
    std::fs::create_dir(here.join("file")).expect("it can be made");
    device.pod("no-dir").wait_ready();
}

#[test]
fn helper_threads_end_after_their_work_and_the_agent_sleeps() {
    let device = Device::start_unwatched();
    let threads =
        || std::fs::read_dir(format!("/proc/{}/task", device.agent_pid())).expect("the agent lives").count();
    device.run_pod("quiet", "sleep").wait_phase("Running");
    let before = threads();
    // A hostPath volume, and probe hosts that need name resolution: one that exists, and many that do not.
    let (shared, _) = device.shared("host");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let probe = |host: &str, port| {
        let tcp = format!("tcpSocket: {{host: {host}, port: {port}}}");
        format!("readinessProbe: {{{tcp}, periodSeconds: 1, timeoutSeconds: 1}}")
    };
    let mut containers = vec![manifest::container("found", "sleep", &probe("localhost", port))];
    containers.extend((0..5).map(|number| {
        let host = format!("nobody-{number}.invalid");
        manifest::container(&format!("lost-{number}"), "sleep", &probe(&host, 1))
    }));
    let volume = format!("volumes: [{{name: host, hostPath: {{path: {shared}}}}}]");
    let names = device.run_pod_of("names", &containers, &volume);
    device.wait_for("the probe of a name to succeed", || names.container("found").is_ready());
    // Whether the name server rejects the name or does not respond.
    names.wait_event("Readiness probe failed: dial tcp");
    device.remove_pod("names");
    device.wait_for("the threads to end", || threads() == before);
    let mut switched = switches(&device);
    device.wait_for("the agent to sleep", || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        let earlier = std::mem::replace(&mut switched, switches(&device));
        switched == earlier
    });
}

/// The usual manifest for a modem: libcontainer creates a node with the same name for a privileged container.
#[test]
fn a_device_of_the_board_can_be_a_volume_of_a_privileged_pod() {
    let device = Device::start();
    let text = manifest::single(
        "modem",
        "open /dev/null then open /dev/random then ls /dev/net then print opened then sleep",
        "securityContext: {privileged: true}\nvolumeMounts:\n- {name: serial, mountPath: /dev/null}\n\
             - {name: zero, mountPath: /dev/random}\n- {name: net, mountPath: /dev/net}",
        "volumes:\n- {name: serial, hostPath: {path: /dev/null, type: CharDevice}}\n\
         - {name: zero, hostPath: {path: /dev/zero}}\n- {name: net, hostPath: {path: /dev/net}}",
    );
    device.write_pod("modem", &text).wait_log("app", "opened");
    assert_eq!(device.pod("modem").container("app").restart_count(), 0);
}

#[test]
fn an_image_is_a_volume_that_nobody_can_write_to_or_execute() {
    let mut device = Device::start();
    let text = |policy: &str| {
        manifest::single(
            "web",
            "cat /model/one/a then cat /b then mounts then sleep",
            "volumeMounts: [{name: model, mountPath: /model}, {name: model, mountPath: /b, subPath: one/b}]",
            &format!(
                "volumes: [{{name: model, image: {{reference: 'localhost/model:1', pullPolicy: {policy}}}}}]"
            ),
        )
    };
    let waits = |device: &Device, reason: &str, message: &str| {
        device.wait_for(reason, || device.pod("web").container("app").reason() == reason);
        let reported = device.pod("web").container("app").message();
        assert!(reported.contains(message), "{reported}");
    };
    device.write_manifest("web.yaml", &text("Never"));
    waits(
        &device,
        "ErrImageNeverPull",
        "Container image \"localhost/model:1\" is not present with pull policy of Never",
    );
    device.write_manifest("web.yaml", &text("IfNotPresent"));
    waits(&device, "ErrImagePull", "image localhost/model:1 is not on this node");
    let program = std::fs::read(nodlet_tests::demo_program()).expect("it is built");
    let image = Image::new("localhost/model:1")
        .directory("one", 0o755)
        .file("one/a", 0o644, b"first\n")
        .file("one/b", 0o644, b"hidden\n")
        .layer()
        .file("one/b", 0o644, b"second\n")
        .file("one/run", 0o755, &program);
    device.load(&image);
    device.pod("web").wait_log("app", " /model ");
    let log = device.pod("web").logs("app");
    assert!(log.starts_with("first\nsecond\n"), "{log}");
    let mount = log.lines().find(|line| line.contains(" /model ")).unwrap_or_default();
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(mount.split([' ', ',']).any(|one| one == option), "{option}: {mount}");
    }
    device.pod("web").demo("app", "write /model/x x").refused_with("Read-only file system");
    device.pod("web").exec("app", ["/model/one/run", "print", "x"]).refused_with("ermission denied");

    // It stays as long as the pod does, and for the containers that a later agent starts.
    device.nodlet(["image", "rm", "localhost/model:1"]).refused_with("default/web");
    device.restart_agent();
    device.wait_for("the pod", || device.pod("web").is_ready());
    device.pod("web").demo("app", "cat /model/one/a").ok();
    device.remove_pod("web");
    device.nodlet(["image", "rm", "localhost/model:1"]).ok();
}

#[test]
fn a_pod_that_writes_more_than_its_empty_dir_may_hold_is_evicted() {
    let device = Device::start();
    let text = |name: &str, file: &str| {
        manifest::single(
            name,
            &format!("mkdir /work/a/b then spam-file {file} 3000000 then print up then sleep"),
            "volumeMounts: [{name: work, mountPath: /work}]",
            "volumes: [{name: work, emptyDir: {sizeLimit: 1Mi}}]",
        )
    };
    device.write_manifest("small.yaml", &text("small", "/tmp-file"));
    device.write_manifest("large.yaml", &text("large", "/work/a/b/file"));
    device.pod("small").wait_log("app", "up");
    let minutes = std::time::Duration::from_secs(120);
    device.wait_within(minutes, "the eviction", || device.pod("large").phase() == "Failed");
    let status = device.pod("large").status();
    assert_eq!(status["reason"], "Evicted");
    let message = "Usage of EmptyDir volume \"work\" exceeds the limit \"1Mi\". ";
    assert_eq!(status["message"], message);
    let event = format!("Evicted: {message}");
    assert!(device.pod("large").events().contains(&event), "{:?}", device.pod("large").events());
    assert!(device.pod("small").container("app").is_running());
}
