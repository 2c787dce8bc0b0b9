//! Volumes as containers see them.

use nix::mount::MsFlags;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nodlet_tests::image::Image;
use nodlet_tests::{Device, manifest, switches};

#[test]
fn containers_of_a_pod_share_an_empty_dir_and_other_pods_have_their_own() {
    let device = Device::start();
    let pod = |name: &str| {
        let mount = "volumeMounts: [{name: work, mountPath: /work}]";
        manifest::pod_of(
            name,
            &[
                manifest::container("writer", "write /work/said hello then sleep", mount),
                manifest::container(
                    "app",
                    "wait /work/said then cat /work/said then stat /work then sleep",
                    mount,
                ),
            ],
            "volumes: [{name: work, emptyDir: {}}]",
        )
    };
    device.write_manifest("one.yaml", &pod("one"));
    device.pod("one").wait_log("app", "hello\ndir 0777 0:0");
    device.write_manifest("two.yaml", &pod("two"));
    device.pod("two").wait_log("app", "hello");
    device.pod("one").exec("app", ["/bin/demo", "write", "/work/mine", "x"]).ok();
    device.pod("two").exec("app", ["/bin/demo", "cat", "/work/mine"]).refused();
}

#[test]
fn an_empty_dir_goes_with_its_pod() {
    let device = Device::start();
    let text = manifest::pod_of(
        "web",
        &[manifest::container(
            "app",
            "ls /work then touch /work/file then print done then sleep",
            "volumeMounts: [{name: work, mountPath: /work}]",
        )],
        "volumes: [{name: work, emptyDir: {}}]",
    );
    device.write_manifest("web.yaml", &text);
    device.pod("web").wait_log("app", "done");
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    device.write_manifest("web.yaml", &text);
    device.pod("web").wait_log("app", "done");
    assert_eq!(device.pod("web").logs("app"), "done\n", "the new pod's directory is empty");
}

#[test]
fn a_memory_volume_is_a_tmpfs_with_its_size_limit() {
    let device = Device::start();
    device.write_manifest(
        "ram.yaml",
        &manifest::pod_of(
            "ram",
            &[manifest::container(
                "app",
                "mounts then sleep",
                "volumeMounts: [{name: ram, mountPath: /ram}]",
            )],
            "volumes: [{name: ram, emptyDir: {medium: Memory, sizeLimit: 2Mi}}]",
        ),
    );
    device.pod("ram").wait_log("app", " /ram ");
    let log = device.pod("ram").logs("app");
    let line = log.lines().find(|line| line.contains(" /ram ")).unwrap_or_default();
    assert!(line.contains(" tmpfs ") && line.contains("size=2048k"), "{line}");
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
        let container = manifest::container("app", "sleep", &format!("volumeMounts: [{{name: v, {mount}}}]"));
        let text = manifest::pod_of(name, &[container], &format!("volumes: [{{name: v, {volume}}}]"));
        device.write_manifest(&format!("{name}.yaml"), &text);
        device.wait_for(&format!("the refusal of {name}"), || {
            let events = device.pod(name).events();
            events.iter().any(|event| event.starts_with("Failed: ") && event.contains(expected))
        });
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
    let container = manifest::container(
        "app",
        "sleep",
        "volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]",
    );
    let volume = format!("volumes: [{{name: v, hostPath: {{path: {}}}}}]", here.display());
    device.write_manifest("slave.yaml", &manifest::pod_of("slave", &[container], &volume));
    let slave = device.pod("slave");
    device.wait_for("the refusal", || {
        slave.events().iter().any(|event| event.contains("but it is not a shared or slave mount"))
    });
    propagation(MsFlags::MS_SHARED);
    slave.wait_ready();
    let later = device.mount_tmpfs("/host/later", "mode=755");
    std::fs::write(here.join("later/file"), "seen\n").expect("it can be written");
    assert_eq!(slave.exec("app", ["/bin/demo", "cat", "/v/later/file"]).ok(), "seen\n");
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
    device.write_manifest(
        "web.yaml",
        &manifest::pod_of("web", &containers, "volumes: [{name: v, emptyDir: {}}]"),
    );
    let web = device.pod("web");
    web.wait_log("mounts", "up");
    web.wait_ready();
    web.exec("apart", ["/bin/demo", "write", "/v/go", "x"]).ok();
    let seen = |name: &str| web.exec(name, ["/bin/demo", "cat", "/v/inner/file"]);
    device.wait_for("the mount to reach the other container", || seen("sees").stdout == "seen\n");
    assert!(seen("apart").stderr.contains("No such file"), "{:?}", seen("apart"));
    // All of it goes with the pod.
    let uid = web.uid();
    device.remove_manifest("web.yaml");
    web.wait_gone();
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
        manifest::pod_of(
            name,
            &[manifest::container(
                "app",
                "stat /here then sleep",
                "volumeMounts: [{name: host, mountPath: /here}]",
            )],
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
        device.write_manifest(&format!("{name}.yaml"), &pod(name, path, kind));
        device.pod(name).wait_log("app", stat);
    }
    for (name, path, kind, refusal) in [
        ("no-dir", "file", "Directory", "is not a directory"),
        ("no-file", "", "File", "is not a file"),
        ("no-socket", "file", "Socket", "is not a socket file"),
        ("no-char", "file", "CharDevice", "is not a character device"),
        ("no-block", "absent", "BlockDevice", "is not a block device"),
    ] {
        device.write_manifest(&format!("{name}.yaml"), &pod(name, path, kind));
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
fn read_only_mounts_and_sub_paths_are_honoured() {
    let device = Device::start();
    device.write_manifest(
        "web.yaml",
        &manifest::pod_of(
            "web",
            &[
                manifest::container("app", "sleep", "volumeMounts: [{name: work, mountPath: /work}]"),
                manifest::container(
                    "reader",
                    "sleep",
                    "volumeMounts: [{name: work, mountPath: /work, readOnly: true}]",
                ),
                manifest::container(
                    "below",
                    "sleep",
                    "volumeMounts: [{name: work, mountPath: /work, subPath: a/b}]",
                ),
            ],
            "volumes: [{name: work, emptyDir: {}}]",
        ),
    );
    let web = device.pod("web");
    web.wait_ready();
    web.exec("below", ["/bin/demo", "write", "/work/file", "deep"]).ok();
    assert_eq!(web.exec("app", ["/bin/demo", "cat", "/work/a/b/file"]).ok(), "deep\n");
    assert_eq!(web.exec("reader", ["/bin/demo", "cat", "/work/a/b/file"]).ok(), "deep\n");
    let refusal = web.exec("reader", ["/bin/demo", "write", "/work/file", "x"]).refused();
    assert!(refusal.contains("Read-only file system"), "{refusal}");
}

#[test]
fn a_missing_sub_path_is_created_in_a_memory_volume() {
    let device = Device::start();
    let mounts =
        "volumeMounts: [{name: work, mountPath: /work}, {name: work, mountPath: /below, subPath: a/b}]";
    device.write_manifest(
        "web.yaml",
        &manifest::pod_of(
            "web",
            &[manifest::container("app", "sleep", mounts)],
            "volumes: [{name: work, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]",
        ),
    );
    let web = device.pod("web");
    web.wait_ready();
    web.exec("app", ["/bin/demo", "write", "/below/file", "deep"]).ok();
    assert_eq!(web.exec("app", ["/bin/demo", "cat", "/work/a/b/file"]).ok(), "deep\n");
    // With the mode of the volume's root, independent of the umask.
    let mode = |path| web.exec("app", ["/bin/demo", "stat", path]).ok();
    assert_eq!(mode("/work/a").split(' ').nth(1), mode("/work").split(' ').nth(1));
}

#[test]
fn a_sub_path_never_leads_out_of_its_volume() {
    let device = Device::start();
    let (shared, here) = device.shared("host");
    std::os::unix::fs::symlink("/etc", here.join("out")).expect("a link can be made");
    device.write_manifest(
        "out.yaml",
        &manifest::pod_of(
            "out",
            &[manifest::container(
                "app",
                "ls /work",
                "volumeMounts: [{name: host, mountPath: /work, subPath: out}]",
            )],
            &format!("restartPolicy: Never\nvolumes: [{{name: host, hostPath: {{path: {shared}}}}}]"),
        ),
    );
    let out = device.pod("out");
    device.wait_for("a refusal", || {
        ["CreateContainerConfigError", "CreateContainerError", "StartError"]
            .contains(&out.container("app").reason().as_str())
    });
    assert!(!out.logs("app").contains("passwd"));
}

#[test]
fn helper_threads_end_after_their_work_and_the_agent_sleeps() {
    let device = Device::start_unwatched();
    let threads =
        || std::fs::read_dir(format!("/proc/{}/task", device.agent_pid())).expect("the agent lives").count();
    device.write_manifest("quiet.yaml", &manifest::pod("quiet", "sleep"));
    device.pod("quiet").wait_phase("Running");
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
    device.write_manifest("names.yaml", &manifest::pod_of("names", &containers, &volume));
    let names = device.pod("names");
    device.wait_for("the probe of a name to succeed", || names.container("found").is_ready());
    // Whether the name server rejects the name or does not respond.
    device.wait_for("the probe of another to fail", || {
        names.events().iter().any(|event| event.contains("Readiness probe failed: dial tcp"))
    });
    device.remove_manifest("names.yaml");
    names.wait_gone();
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
    let text = manifest::pod_of(
        "modem",
        &[manifest::container(
            "app",
            "open /dev/null then open /dev/random then ls /dev/net then print opened then sleep",
            "securityContext: {privileged: true}\nvolumeMounts:\n- {name: serial, mountPath: /dev/null}\n\
             - {name: zero, mountPath: /dev/random}\n- {name: net, mountPath: /dev/net}",
        )],
        "volumes:\n- {name: serial, hostPath: {path: /dev/null, type: CharDevice}}\n\
         - {name: zero, hostPath: {path: /dev/zero}}\n- {name: net, hostPath: {path: /dev/net}}",
    );
    device.write_manifest("modem.yaml", &text);
    device.pod("modem").wait_log("app", "opened");
    assert_eq!(device.pod("modem").container("app").restart_count(), 0);
}

#[test]
fn an_image_is_a_volume_that_nobody_can_write_to_or_execute() {
    let mut device = Device::start();
    let text = |policy: &str| {
        manifest::pod_of(
            "web",
            &[manifest::container(
                "app",
                "cat /model/one/a then cat /b then mounts then sleep",
                "volumeMounts: [{name: model, mountPath: /model}, {name: model, mountPath: /b, subPath: one/b}]",
            )],
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
    let refused = device.pod("web").exec("app", ["/bin/demo", "write", "/model/x", "x"]).refused();
    assert!(refused.contains("Read-only file system"), "{refused}");
    let refused = device.pod("web").exec("app", ["/model/one/run", "print", "x"]).refused();
    assert!(refused.contains("ermission denied"), "{refused}");

    // It stays as long as the pod does, and for the containers that a later agent starts.
    let refused = device.nodlet(["image", "rm", "localhost/model:1"]).refused();
    assert!(refused.contains("default/web"), "{refused}");
    device.kill_agent();
    device.start_agent();
    device.wait_for("the pod", || device.pod("web").is_ready());
    device.pod("web").exec("app", ["/bin/demo", "cat", "/model/one/a"]).ok();
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    device.nodlet(["image", "rm", "localhost/model:1"]).ok();
}

#[test]
fn a_pod_that_writes_more_than_its_empty_dir_may_hold_is_evicted() {
    let device = Device::start();
    let text = |name: &str, file: &str| {
        let container = manifest::container(
            "app",
            &format!("mkdir /work/a/b then spam-file {file} 3000000 then print up then sleep"),
            "volumeMounts: [{name: work, mountPath: /work}]",
        );
        manifest::pod_of(name, &[container], "volumes: [{name: work, emptyDir: {sizeLimit: 1Mi}}]")
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

#[test]
fn a_recursive_read_only_mount_makes_the_mounts_below_it_read_only() {
    let device = Device::start();
    let here = device.path("/host");
    std::fs::create_dir_all(here.join("below")).expect("it can be made");
    let _below = device.mount_tmpfs("/host/below", "mode=777");
    let mount = |at: &str, recursive: &str| {
        format!("{{name: v, mountPath: {at}, readOnly: true, recursiveReadOnly: {recursive}}}")
    };
    let mounts = [mount("/disabled", "Disabled"), mount("/if", "IfPossible"), mount("/enabled", "Enabled")];
    let container =
        manifest::container("app", "print up then sleep", &format!("volumeMounts: [{}]", mounts.join(", ")));
    let volume = format!("volumes: [{{name: v, hostPath: {{path: {}}}}}]", here.display());
    device.write_manifest("web.yaml", &manifest::pod_of("web", &[container], &volume));
    device.pod("web").wait_log("app", "up");
    let write = |file: &str| device.pod("web").exec("app", ["/bin/demo", "write", file, "x"]);
    write("/disabled/below/x").ok();
    for place in ["/disabled/x", "/if/x", "/if/below/x", "/enabled/x", "/enabled/below/x"] {
        let refused = write(place).refused();
        assert!(refused.contains("Read-only file system"), "{place}: {refused}");
    }
    let status = device.pod("web").status();
    let shown = status["containerStatuses"][0]["volumeMounts"].as_array().expect("a list").iter();
    let shown: Vec<_> = shown.map(|mount| mount["recursiveReadOnly"].as_str().unwrap_or("none")).collect();
    assert_eq!(shown, ["Disabled", "Enabled", "Enabled"]);
}
