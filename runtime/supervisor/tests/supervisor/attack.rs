//! Attacks from inside a container on the processes of nodlet that start a container or execute a process in
//! it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nodlet_host::launch::{ContainerConfig, MountConfig, MountSource};
use nodlet_supervisor::client::{StartFailedAt, SupervisorEvent};

use crate::hunt::MARKER;
use crate::pod::{Pod, mount, patiently, touch, wait_until};

pub(crate) const TESTS: &[(&str, fn())] = tests![
    no_link_in_a_volume_leads_to_a_mount_point,
    a_volume_swapped_between_runs_takes_no_other_place,
    no_link_of_an_image_leads_to_the_root,
    links_of_an_image_lead_volumes_within_it,
    devices_of_the_host_are_volumes_too,
    nothing_that_starts_in_a_shared_pid_namespace_has_more_than_its_container,
    nothing_that_is_executed_has_more_than_its_container,
    an_executed_process_shares_no_memory_with_its_helper,
    every_process_has_a_session_keyring_of_its_own,
    a_quota_of_keys_that_is_used_up_holds_up_no_start,
    a_passwd_that_never_ends_holds_up_no_start,
    a_child_that_a_real_time_signal_ended_hides_no_other,
    a_working_directory_is_no_descriptor_of_nodlet,
    a_link_to_another_processs_root_is_no_working_directory,
    a_rejection_by_libcontainer_is_reported_with_its_cause,
    a_supervisor_keeps_no_environment_in_memory,
];

fn volume(path: &Path, destination: &str) -> MountConfig {
    mount(MountSource::Host(path.to_owned()), destination)
}

fn failure(pod: &Pod, config: &ContainerConfig) -> String {
    let (at, message) = crate::start::failure(pod, config);
    assert_eq!(at, StartFailedAt::Create, "{message}");
    message
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Two volumes of a pod, one mounted inside the other: the containers control the path to the mount point of
/// the inner one.
fn no_link_in_a_volume_leads_to_a_mount_point() {
    let pod = Pod::new("covered");
    let (outer, inner, host) = (pod.root.join("outer"), pod.root.join("inner"), pod.root.join("host"));
    for directory in [&outer.join("a"), &host, &inner.join("proc"), &inner.join("sys"), &inner.join("bin")] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::write(host.join("ptmx"), "the host's\n").unwrap();
    symlink(&host, inner.join("dev")).unwrap();
    fs::copy(pod.root.join("layer/bin/program"), inner.join("bin/program")).unwrap();
    let no_trust = "there is a symbolic link on the way to it, and what a container can write to is not \
                    trusted to lead to a mount point; mount the volume elsewhere";
    for leads in ["/", "/bin", "/dev", "..", "../..", "/vol", "."] {
        for (link, point) in [("a/sub", "a/sub"), ("b", "b/sub")] {
            symlink(leads, outer.join(link)).unwrap();
            let mut config = pod.container("app", &["ls=/"]);
            config.mounts = vec![volume(&outer, "/vol"), volume(&inner, &format!("/vol/{point}"))];
            let message = failure(&pod, &config);
            assert_eq!(message, format!("mount the volume at /vol/{point}: {no_trust}"), "{link} -> {leads}");
            // In either order of the mounts in the manifest.
            config = pod.container("app", &["ls=/"]);
            config.mounts = vec![volume(&inner, &format!("/vol/{point}")), volume(&outer, "/vol")];
            assert!(failure(&pod, &config).contains(no_trust), "{link} -> {leads}");
            fs::remove_file(outer.join(link)).unwrap();
        }
    }
    assert_eq!(names(&host), ["ptmx"]);
    assert!(fs::symlink_metadata(host.join("ptmx")).unwrap().is_file());
}

/// A container swaps the volume, with nothing but its write access to it.
fn a_volume_swapped_between_runs_takes_no_other_place() {
    let pod = Pod::new("swapped");
    let (outer, inner, host) = (pod.root.join("outer"), pod.root.join("inner"), pod.root.join("host"));
    for directory in [&outer, &inner, &host] {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let program = [
        "mkdir=/vol/a/sub/proc",
        "mkdir=/vol/a/sub/sys",
        &format!("symlink={}:/vol/a/sub/dev", host.display()),
        "rename=/vol/a:/vol/was-a",
        "mkdir=/vol/a",
        "symlink=/:/vol/a/sub",
    ];
    let container = |program: &[&str]| {
        let mut config = pod.container("app", program);
        config.process.user.run_as_user = Some(1000);
        config.process.capabilities.clear();
        config.process.no_new_privileges = true;
        config.mounts = vec![volume(&outer, "/vol"), volume(&inner, "/vol/a/sub")];
        config
    };
    fs::create_dir(outer.join("a")).unwrap();
    std::os::unix::fs::chown(outer.join("a"), Some(1000), None).unwrap();
    let (exit, output) = pod.run(&container(&program));
    assert_eq!((exit.code, output.as_str()), (0, "made\nmade\nlinked\nrenamed\nmade\nlinked\n"));
    let message = failure(&pod, &container(&["ls=/"]));
    assert!(message.starts_with("mount the volume at /vol/a/sub: there is a symbolic link"), "{message}");
    assert_eq!(names(&host), [] as [&str; 0]);
}

fn no_link_of_an_image_leads_to_the_root() {
    let pod = Pod::new("rooted");
    let (data, host) = (pod.root.join("data"), pod.root.join("host"));
    fs::create_dir_all(data.join("bin")).unwrap();
    fs::create_dir(&host).unwrap();
    symlink(&host, data.join("dev")).unwrap();
    let image = pod.root.join("layer");
    for (link, leads) in
        [("data", "/"), ("up", "../.."), ("self", "."), ("kernel", "/proc"), ("stdout", "/dev/stdout")]
    {
        symlink(leads, image.join(link)).unwrap();
        let mut config = pod.container("app", &["ls=/"]);
        config.mounts = vec![volume(&data, &format!("/{link}"))];
        let message = failure(&pod, &config);
        let place = if leads.starts_with("/dev") || leads == "/proc" { leads } else { "/" };
        let expected =
            format!("mount the volume at /{link}: a link in the image leads to {place}: a container ");
        assert!(message.starts_with(&expected), "{message}");
    }
    symlink("loop", image.join("loop")).unwrap();
    let mut config = pod.container("app", &["ls=/"]);
    config.mounts = vec![volume(&data, "/loop/below")];
    assert!(failure(&pod, &config).starts_with("mount the volume at /loop/below: "));
    assert_eq!(names(&host), [] as [&str; 0]);
}

/// Images have the link `/var/run -> /run`, and volumes are mounted below it.
fn links_of_an_image_lead_volumes_within_it() {
    let pod = Pod::new("linked");
    let (outer, inner) = (pod.root.join("outer"), pod.root.join("inner"));
    for directory in [&outer, &inner] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(inner.join("file"), "inner\n").unwrap();
    let image = pod.root.join("layer");
    fs::create_dir(image.join("var")).unwrap();
    symlink("../run", image.join("var/run")).unwrap();
    symlink("/nowhere/yet", image.join("dangling")).unwrap();
    let mut config = pod.container("app", &["cat=/run/app/deep/file", "cat=/nowhere/yet/file", "cwd"]);
    config.process.cwd = "/var/run/app/work".into();
    config.mounts =
        vec![volume(&inner, "/run/app/deep"), volume(&outer, "/var/run/app"), volume(&inner, "/dangling")];
    let (exit, output) = pod.run(&config);
    assert_eq!((exit.code, output.as_str()), (0, "inner\ninner\n/run/app/work\n"));
    assert_eq!(names(&outer), ["deep", "work"]);
}

/// The usual manifest for a modem, and other devices of /dev that pods use.
fn devices_of_the_host_are_volumes_too() {
    let pod = Pod::new("devices");
    let net = pod.root.join("net");
    fs::create_dir(&net).unwrap();
    fs::write(net.join("tun"), "the volume's\n").unwrap();
    let file = pod.root.join("file");
    fs::write(&file, "the volume's\n").unwrap();
    for privileged in [false, true] {
        let mut config = pod
            .container("app", &["write=/dev/null:x", "cat=/dev/net/tun", "cat=/dev/ttyS0", "cat=/dev/zero"]);
        config.privileged = privileged;
        config.mounts = vec![
            volume(Path::new("/dev/null"), "/dev/null"),
            volume(&net, "/dev/net"),
            volume(&file, "/dev/ttyS0"),
            volume(&file, "/dev/zero"),
        ];
        let (exit, output) = pod.run(&config);
        let expected = "wrote /dev/null\nthe volume's\nthe volume's\nthe volume's\n";
        assert_eq!((exit.code, output.as_str()), (0, expected), "privileged: {privileged}");
    }
    for link in ["fd", "stdin", "stdout", "stderr", "ptmx"] {
        let mut config = pod.container("app", &[]);
        config.mounts = vec![volume(&file, &format!("/dev/{link}"))];
        assert_eq!(
            failure(&pod, &config),
            format!(
                "mount the volume at /dev/{link}: a container has a link of its own there; mount the volume elsewhere"
            )
        );
    }
}

/// A `PATH` with many directories: the search for the program makes the time between fork and execve longer.
fn long_path() -> String {
    format!("PATH={}/bin", "/none:".repeat(3000))
}

/// The config of a container with CAP_SYS_PTRACE that examines every process which comes into its PID
/// namespace, until the file `/stop` exists.
fn hunter(pod: &Pod) -> ContainerConfig {
    fs::write(MARKER, "").unwrap();
    let mut config = pod.container("hunter", &["hunt=/stop", "out=end", "wait"]);
    config.process.capabilities.push("CAP_SYS_PTRACE".to_owned());
    config
}

fn hunter_findings(pod: &Pod, hunter: &ContainerConfig) -> Vec<String> {
    pod.wait_for_output(hunter, "end\n");
    let output = pod.output(hunter);
    let seen = output.lines().find(|line| line.starts_with("seen: ")).expect("it says what it saw");
    assert!(
        ["nodlet:", "youki:"].iter().any(|name| seen.contains(name)),
        "it saw none of those that it hunted: {output}"
    );
    output.lines().filter(|line| line.starts_with("FOUND")).map(str::to_owned).collect()
}

fn nothing_that_starts_in_a_shared_pid_namespace_has_more_than_its_container() {
    for target in [false, true] {
        let pod = Pod::with("hunted", |sandbox| sandbox.share_process_namespace = !target);
        let hunter = hunter(&pod);
        let process = pod.start(&hunter);
        pod.wait_for_output(&hunter, "hunting");
        let mut started = 0;
        for round in 0..20 {
            let mut config = pod.container("app", &["out=runs", "cat=/proc/self/comm"]);
            config.process.args[0] = "program".to_owned();
            config.process.env = vec![long_path()];
            config.tty = round % 4 == 3;
            config.target = target.then(|| "hunter".to_owned());
            pod.ask_to_start(&config);
            match pod.next() {
                SupervisorEvent::Started { process, .. } => {
                    started += 1;
                    assert!(process.pid > 1, "a container's process passed for another");
                    match pod.exited().code {
                        0 => assert!(pod.output(&config).starts_with("runs"), "{}", pod.output(&config)),
                        // The container was executed before the supervisor read the forged frame.
                        code => assert_eq!(code, 137),
                    }
                }
                // The supervisor read the forged frame, and rejected it.
                SupervisorEvent::StartFailed { message, .. } => {
                    assert_eq!(
                        message,
                        "create the container: its process was reported by another than the start helper"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        touch(&process, "stop");
        assert_eq!(hunter_findings(&pod, &hunter), [] as [&str; 0], "{started} started, target: {target}");
    }
}

fn nothing_that_is_executed_has_more_than_its_container() {
    let pod = Pod::new("hunted-exec");
    let mut hunter = hunter(&pod);
    hunter.process.env = vec![long_path()];
    let process = pod.start(&hunter);
    pod.wait_for_output(&hunter, "hunting");
    for id in 0..30 {
        pod.ask_to_exec(id, &hunter, &["program", "program", "exit=3"], id % 4 == 3, [None; 3]);
        match pod.next() {
            SupervisorEvent::ExecStarted { pid, .. } => {
                assert!(pid > 1, "an executed process passed for another");
                assert!(matches!(pod.next(), SupervisorEvent::ExecExited { code: 3, .. }));
            }
            SupervisorEvent::ExecFailed { message, .. } => {
                assert_eq!(message, "exec: the process was reported by another than its helper");
            }
            other => panic!("{other:?}"),
        }
    }
    touch(&process, "stop");
    assert_eq!(hunter_findings(&pod, &hunter), [] as [&str; 0]);
}

/// A tracer that stops the process between fork and execve stops no other process.
fn an_executed_process_shares_no_memory_with_its_helper() {
    let pod = Pod::new("memory");
    let mut config = pod.container("app", &["wait"]);
    config.process.env = vec![long_path()];
    let app = pod.start(&config);
    // A process that was executed before it was stopped shows nothing; the next one is tried.
    for id in 1..=100 {
        let cgroup = nodlet_supervisor::client::exec_cgroup(&config.cgroup.unified, id);
        let until = format!("until=/go-{id}");
        pod.ask_to_exec(id, &config, &["program", "program", &until, "exit=3"], false, [None; 3]);
        let (pid, stopped) = stop_before_execve(&cgroup);
        if stopped {
            wait_until("end of the helper, which waits for nobody", || {
                fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default().lines().count() == 1
            });
        }
        // SAFETY: no pointers.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        touch(&app, &format!("go-{id}"));
        assert!(matches!(pod.next(), SupervisorEvent::ExecStarted { .. }));
        assert!(matches!(pod.next(), SupervisorEvent::ExecExited { code: 3, .. }));
        if stopped {
            return;
        }
    }
    panic!("none of 100 processes was stopped before its execve");
}

/// Stops the process of the container that is put into `cgroup`. Returns its PID, and whether it still ran
/// nodlet's program.
fn stop_before_execve(cgroup: &Path) -> (i32, bool) {
    let status = |pid: i32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut found = None;
    wait_until("the process that is to be executed", || {
        let procs = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        found = procs.lines().filter_map(|pid| pid.parse::<i32>().ok()).find(|pid| {
            status(*pid)
                .lines()
                .any(|line| line.starts_with("NSpid:") && line.split_whitespace().count() == 3)
        });
        found.is_some()
    });
    let pid = found.expect("it was waited for");
    // SAFETY: no pointers.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    wait_until("stop of the process", || status(pid).lines().any(|line| line.starts_with("State:\tT")));
    (pid, status(pid).starts_with("Name:\tnodlet:exec\n"))
}

fn every_process_has_a_session_keyring_of_its_own() {
    let pod = Pod::with("keyring", |sandbox| sandbox.share_process_namespace = true);
    let config = pod.container("app", &["keyring", "wait"]);
    pod.start(&config);
    pod.wait_for_output(&config, "\n");
    let mut user = pod.container("user", &["keyring"]);
    user.process.user.run_as_user = Some(1000);
    let keyrings = [
        pod.output(&config),
        pod.run(&user).1,
        pod.exec(1, &config, &["keyring"]).1,
        pod.exec(2, &config, &["keyring"]).1,
    ];
    // SAFETY: no pointers.
    let own = unsafe { libc::syscall(libc::SYS_keyctl, 0, -3, 0) };
    let mut all: Vec<libc::c_long> =
        keyrings.iter().map(|id| id.trim().parse().expect("a keyring")).collect();
    assert!(all.iter().all(|id| *id > 0), "{all:?}");
    all.push(own);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 5, "{keyrings:?} and this process's {own}");
}

/// All containers that run as root share root's key quota, and any of them can exhaust it.
fn a_quota_of_keys_that_is_used_up_holds_up_no_start() {
    struct Quota(String);
    const MOST_KEYS: &str = "/proc/sys/kernel/keys/root_maxkeys";
    impl Drop for Quota {
        fn drop(&mut self) {
            fs::write(MOST_KEYS, &self.0).expect("it was written before");
        }
    }
    let pod = Pod::new("quota");
    let app = pod.container("app", &["keyring", "wait"]);
    pod.start(&app);
    pod.wait_for_output(&app, "\n");
    let before = Quota(fs::read_to_string(MOST_KEYS).expect("the kernel has keys"));
    fs::write(MOST_KEYS, "1").expect("this is root");
    let all = [
        pod.run(&pod.container("other", &["keyring", "cat=/proc/self/status"])).1,
        pod.exec(1, &app, &["keyring"]).1,
    ];
    drop(before);
    assert!(all[0].contains("Uid:\t0\t0\t0\t0"), "{}", all[0]);
    let mut keyrings: Vec<&str> = all.iter().map(|output| output.lines().next().expect("a line")).collect();
    let first = pod.output(&app);
    keyrings.push(first.trim());
    keyrings.sort_unstable();
    keyrings.dedup();
    assert_eq!(keyrings.len(), 3, "{all:?}");
}

/// A volume or an image provides `/etc/passwd`: a FIFO blocks its reader for ever, an endless file takes all
/// memory.
fn a_passwd_that_never_ends_holds_up_no_start() {
    let pod = Pod::new("passwd");
    let fifo = pod.root.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    for source in [fifo.as_path(), Path::new("/dev/zero")] {
        for (user, env) in [(None, vec![]), (Some(4711), vec!["HOME=/there".to_owned()])] {
            let mut config = pod.container("app", &["env=HOME"]);
            config.process.env = env;
            config.process.user.run_as_user = user;
            config.mounts = vec![volume(source, "/etc/passwd")];
            let home = if user.is_some() { "/there" } else { "/root" };
            let (exit, output) = pod.run(&config);
            assert_eq!((exit.code, output), (0, format!("{home}\n")));
        }
    }
    // An image cannot contain a device that can be opened, but it can contain FIFOs and links.
    let passwd = pod.root.join("layer/etc/passwd");
    for link in [None, Some("/dev/zero"), Some("/proc/self/fd/0")] {
        let _ = fs::remove_file(&passwd);
        match link {
            Some(leads) => symlink(leads, &passwd).unwrap(),
            None => {
                nix::unistd::mkfifo(&passwd, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
            }
        }
        let (exit, output) = pod.run(&pod.container("app", &["env=HOME"]));
        assert_eq!((exit.code, output.as_str()), (0, "/\n"), "{link:?}");
    }
}

fn a_child_that_a_real_time_signal_ended_hides_no_other() {
    let pod = Pod::with("real-time", |sandbox| sandbox.share_process_namespace = true);
    let other = pod.container("other", &["until=/go", "exit=7"]);
    let process = pod.start(&other);
    for signal in [33, 34, 37, 64] {
        let config = pod.container("app", &[&format!("raise={signal}")]);
        let (exit, _) = pod.run(&config);
        assert_eq!((exit.code, exit.signal), (128 + signal, Some(signal)));
        let (code, _) = pod.exec(signal.cast_unsigned(), &other, &[&format!("raise={signal}")]);
        assert_eq!(code, 128 + signal);
    }
    touch(&process, "go");
    assert_eq!(patiently("exit", async { pod.exited() }).code, 7);
}

/// The image sets the working directory, and the numbers of nodlet's open descriptors can be guessed.
fn a_working_directory_is_no_descriptor_of_nodlet() {
    let pod = Pod::new("cwd-fd");
    for number in 3..40 {
        let mut config = pod.container("app", &["cwd"]);
        config.process.cwd = format!("/proc/self/fd/{number}").into();
        pod.ask_to_start(&config);
        match pod.next() {
            SupervisorEvent::StartFailed { .. } => {}
            SupervisorEvent::Started { .. } => {
                pod.exited();
                assert_eq!(pod.output(&config), "/\n", "descriptor {number}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The helper of an exec may follow the root link of any process that the container sees; the container may
/// not.
fn a_link_to_another_processs_root_is_no_working_directory() {
    for host in [true, false] {
        let pod = Pod::with("cwd-root", |sandbox| {
            (sandbox.host_pid, sandbox.share_process_namespace) = (host, !host);
        });
        let mut other = pod.container("other", &["write=/secret:x", "wait"]);
        pod.start(&other);
        pod.wait_for_output(&other, "wrote");
        // The target is this test, a process of the host; in a shared PID namespace it is the process after
        // pause.
        let leads = format!("/proc/{}/root", if host { std::process::id() } else { 2 });
        let program = ["rename=/work:/was", &format!("symlink={leads}:/work"), "ls=/work", "out=end", "wait"];
        other = pod.container("app", &program);
        other.process.cwd = "/work".into();
        // With the capabilities of the other process, the container could follow the link itself.
        other.process.capabilities.clear();
        pod.start(&other);
        pod.wait_for_output(&other, "end\n");
        let output = pod.output(&other);
        assert!(output.contains("denied"), "the container itself: {output}");
        let (mut reader, writer) = std::io::pipe().unwrap();
        let args = ["/bin/program", "program", "ls=."];
        pod.ask_to_exec(1, &other, &args, false, [None, Some(std::os::fd::AsFd::as_fd(&writer)), None]);
        drop(writer);
        let news = pod.next();
        let mut listed = String::new();
        std::io::Read::read_to_string(&mut reader, &mut listed).unwrap();
        match news {
            SupervisorEvent::ExecFailed { message, .. } => {
                assert_eq!(message, "exec: chdir to /work: it leads out of the container's root")
            }
            news => panic!("host: {host}, {news:?}, {listed}"),
        }
    }
}

fn a_rejection_by_libcontainer_is_reported_with_its_cause() {
    let pod = Pod::new("causes");
    let data = pod.root.join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "").unwrap();
    symlink("/etc/passwd", data.join("link")).unwrap();
    for (cwd, read_only, message) in [
        (
            "/data/missing",
            true,
            "create the container: the working directory /data/missing is missing, is not a directory, or cannot \
             be entered",
        ),
        (
            "/data/link",
            false,
            "create the container: the working directory /data/link is missing, is not a directory, or cannot be \
             entered",
        ),
        ("/data/file", false, "make the working directory /data/file: Not a directory (os error 20)"),
    ] {
        let mut config = pod.container("app", &[]);
        config.mounts = vec![MountConfig { read_only, ..volume(&data, "/data") }];
        config.process.cwd = cwd.into();
        assert_eq!(failure(&pod, &config), message);
    }
}

/// The supervisor's memory is copied for each process that it executes in a container.
fn a_supervisor_keeps_no_environment_in_memory() {
    use std::os::unix::fs::FileExt;
    let pod = Pod::new("secrets");
    let (secret, argument) = ("needle-of-the-environment", "needle-of-an-argument");
    let mut config = pod.container("app", &["wait"]);
    // The values have many sizes, so that later allocations do not overwrite all of them.
    let values = (0..60).map(|number| format!("PASSWORD_{number}={}{secret}", "x".repeat(number * 13)));
    config.process.env.extend(values);
    pod.start(&config);
    pod.exec(1, &config, &[&format!("out={argument}")]);
    let pid = pod.pid();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut bytes = Vec::new();
    for map in maps.lines().filter(|map| map.contains(" rw")) {
        let (from, to) = map.split(' ').next().unwrap().split_once('-').unwrap();
        let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mut part = vec![0; (address(to) - address(from)) as usize];
        // The kernel's own pages cannot be read.
        if memory.read_exact_at(&mut part, address(from)).is_ok() {
            bytes.extend(part);
        }
    }
    let holds = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(holds("sha256:0"), "the name of its layer is in there");
    assert!(!holds(secret) && !holds(argument));
}
