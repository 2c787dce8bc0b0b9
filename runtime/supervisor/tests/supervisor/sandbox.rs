//! Namespaces and volumes that the containers of a pod share, and their separation from other pods.

use std::fs;
use std::net::Ipv4Addr;

use nodlet_host::netlink::{Netlink, link_index};
use nodlet_host::network::hardware_address;
use nodlet_supervisor::END_REASON_FILE;
use nodlet_supervisor::client::{Supervisor, SupervisorError, SupervisorEvent};

use crate::pod::{Pod, is_dead, link, touch, wait_until};

pub(crate) const TESTS: &[(&str, fn())] = tests![
    containers_share_ipc_and_uts_and_no_other_pod_does,
    a_pod_has_a_link_an_address_and_a_way_out,
    a_sandbox_that_fails_is_undone_and_can_be_asked_for_again,
    the_pause_process_of_a_shared_pid_namespace_has_no_privileges,
    processes_of_a_container_in_a_shared_pid_namespace_end_with_it,
    a_pod_whose_pause_ended_ends_and_says_how_its_containers_did,
    a_child_that_keeps_writing_does_not_delay_the_end_of_its_container,
    a_pod_on_the_host_shares_what_it_asks_for,
    no_container_can_write_to_the_binary,
    no_container_can_write_to_the_binary_while_others_start_or_when_they_have_ended,
];

/// Makes a bridge on the host, which is a network namespace in these tests.
///
/// Its hardware address is that of an earlier range, which it keeps when the range of the pods changes.
fn bridge(name: &str) -> Netlink {
    let mut netlink = Netlink::open().unwrap();
    let _ = netlink.remove_link(name);
    netlink.add_bridge(name).unwrap();
    let index = link_index(name).unwrap();
    let gateway = Ipv4Addr::new(10, 211, 7, 1);
    netlink.set_hardware_address(index, hardware_address(Ipv4Addr::new(10, 85, 0, 1))).unwrap();
    netlink.add_address(index, gateway, 24, None).unwrap();
    netlink.set_up(index).unwrap();
    netlink
}

fn containers_share_ipc_and_uts_and_no_other_pod_does() {
    let _bridge = bridge("ndipc");
    let pod = Pod::with("ipc", |sandbox| sandbox.network = Some(link("ndipc", 2)));
    let other = Pod::with("ipc-other", |sandbox| sandbox.network = Some(link("ndipc", 3)));
    let maker = pod.container("maker", &["msgmake=4711", "write=/dev/shm/file:posix\n", "out=made", "wait"]);
    pod.start(&maker);
    pod.wait_for_output(&maker, "made");
    let program = ["msgget=4711", "cat=/dev/shm/file", "hostname"];
    assert_eq!(pod.run(&pod.container("peer", &program)).1, "queue\nposix\nweb-0\n");
    let (_, output) = other.run(&other.container("stranger", &program));
    assert!(output.starts_with("no queue\n/dev/shm/file: No such file"), "{output}");
    assert!(!std::path::Path::new("/dev/shm/file").exists());
}

fn a_pod_has_a_link_an_address_and_a_way_out() {
    let mut host = bridge("ndnet");
    let pod = Pod::with("net", |sandbox| sandbox.network = Some(link("ndnet", 2)));
    let other = Pod::with("net-other", |sandbox| sandbox.network = Some(link("ndnet", 3)));
    let server = pod.container("server", &["listen=80", "wait"]);
    pod.start(&server);
    pod.wait_for_output(&server, "listening");
    // A container of the same pod, a container of another pod, and the host.
    assert_eq!(pod.run(&pod.container("near", &["connect=127.0.0.1:80"])).1, "hello\n");
    assert_eq!(other.run(&other.container("far", &["connect=10.211.7.2:80"])).1, "hello\n");
    let mut text = String::new();
    let mut stream = std::net::TcpStream::connect("10.211.7.2:80").unwrap();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    assert_eq!(text, "hello");
    let sysctls =
        ["cat=/proc/sys/net/ipv4/ip_unprivileged_port_start", "cat=/proc/sys/net/ipv4/ping_group_range"];
    assert_eq!(pod.run(&pod.container("sysctl", &sysctls)).1, "0\n0\t2147483647\n");

    // The link is removed with the supervisor, at once.
    let name = link("ndnet", 3).host_link;
    assert!(link_index(&name).is_ok());
    other.client(Supervisor::end).unwrap();
    wait_until("end of the supervisor", || is_dead(&other.dir));
    assert!(link_index(&name).is_err());
    drop(pod);
    host.remove_link("ndnet").unwrap();
}

fn a_sandbox_that_fails_is_undone_and_can_be_asked_for_again() {
    let pod = Pod::bare("undone");
    let mut config = pod.sandbox();
    config.network = Some(link("nobridge", 4));
    pod.client(|supervisor| supervisor.create_sandbox(&config)).unwrap();
    match pod.next() {
        SupervisorEvent::SandboxFailed { message } => {
            assert!(message.starts_with("find the bridge nobridge: "), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let _bridge = bridge("ndundone");
    config.network = Some(link("ndundone", 4));
    // This step comes after the link was made, and fails.
    config.memory_volumes = vec![nodlet_host::launch::MemoryVolume {
        name: "a/b".to_owned(),
        size: None,
        fs_group: None,
        page_size: None,
    }];
    pod.client(|supervisor| supervisor.create_sandbox(&config)).unwrap();
    match pod.next() {
        SupervisorEvent::SandboxFailed { message } => {
            assert!(message.starts_with("mount /dev/shm"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert!(link_index(&link("ndundone", 4).host_link).is_err());
    config.memory_volumes.clear();
    pod.client(|supervisor| supervisor.create_sandbox(&config)).unwrap();
    assert!(matches!(pod.next(), SupervisorEvent::SandboxReady { .. }));
    assert_eq!(pod.run(&pod.container("app", &["out=runs"])).1, "runs\n");
}

fn the_pause_process_of_a_shared_pid_namespace_has_no_privileges() {
    let pod = Pod::with("pause", |sandbox| sandbox.share_process_namespace = true);
    let mut config = pod.container(
        "app",
        &[
            "cat=/proc/1/comm",
            "ls=/proc/1/root",
            "ls=/proc/1/fd",
            "cat=/proc/1/mountinfo",
            "write=/proc/1/root/proc/sys/kernel/domainname:taken",
            "cat=/proc/1/status",
            "out=end",
            "wait",
        ],
    );
    config.process.capabilities.push("CAP_SYS_PTRACE".to_owned());
    pod.start(&config);
    pod.wait_for_output(&config, "end\n");
    let output = pod.output(&config);
    // The root of pause is empty, also for a tracer: it has no /proc with settings of the host.
    assert!(output.starts_with("pause\n\n0 1 2\n"), "{output}");
    let mounts: Vec<&str> = output.lines().filter(|line| line.contains(" - tmpfs ")).collect();
    assert!(mounts.len() == 1 && mounts[0].contains(" / / ro,"), "{output}");
    assert!(output.contains("/proc/1/root/proc/sys/kernel/domainname: No such file"), "{output}");
    assert!(output.contains("Uid:\t65535\t65535\t65535\t65535"), "{output}");
    assert!(output.contains("CapPrm:\t0000000000000000"), "{output}");
    assert!(output.contains("Seccomp:\t2"), "{output}");
    let (_, seen) = pod.run(&pod.container("peer", &["ls=/proc"]));
    let pids = seen.split_whitespace().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).count();
    assert_eq!(pids, 3, "pause, the other container and itself: {seen}");
    let pause: i32 =
        fs::read_to_string(pod.cgroup.join("pause/cgroup.procs")).unwrap().trim().parse().unwrap();
    fs::write(config.cgroup.unified.join("cgroup.kill"), "1").unwrap();
    pod.exited();
    pod.client(Supervisor::end).unwrap();
    wait_until("end of pause", || !fs::exists(format!("/proc/{pause}")).unwrap());
}

fn processes_of_a_container_in_a_shared_pid_namespace_end_with_it() {
    let pod = Pod::with("left", |sandbox| sandbox.share_process_namespace = true);
    let config = pod.container("app", &["fork=setsid", "exit=5"]);
    let (exit, _) = pod.run(&config);
    assert_eq!(exit.code, 5);
    assert_eq!(fs::read_to_string(config.cgroup.unified.join("cgroup.procs")).unwrap(), "");
    fs::remove_dir(&config.cgroup.unified).unwrap();
}

/// After the end of pause, no process could start in the pod's PID namespace.
fn a_pod_whose_pause_ended_ends_and_says_how_its_containers_did() {
    let pod = Pod::with("lost-pause", |sandbox| sandbox.share_process_namespace = true);
    let config = pod.container("app", &["out=up", "wait"]);
    pod.start(&config);
    pod.wait_for_output(&config, "up");
    fs::write(pod.cgroup.join("pause/cgroup.kill"), "1").unwrap();
    assert_eq!(pod.exited().code, 137);
    let end = pod.client(|supervisor| crate::pod::patiently("end", supervisor.next()));
    assert!(matches!(end, Err(SupervisorError::Died)), "{end:?}");
    let words = fs::read_to_string(pod.dir.join(END_REASON_FILE)).unwrap();
    assert_eq!(words, "the pause process of the pod ended");
}

fn a_child_that_keeps_writing_does_not_delay_the_end_of_its_container() {
    let pod = Pod::with("writes-on", |sandbox| sandbox.share_process_namespace = true);
    let mut config = pod.container("app", &["fork=spam", "until=/spamming", "exit=5"]);
    (config.log.max_size, config.log.max_files) = (1 << 20, 2);
    let (exit, output) = pod.run(&config);
    assert_eq!(exit.code, 5);
    assert!(output.contains("spam\n"));
}

fn a_pod_on_the_host_shares_what_it_asks_for() {
    let namespace =
        |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string();
    let pod = Pod::with("host", |sandbox| (sandbox.host_ipc, sandbox.host_pid) = (true, true));
    let links = [
        "link=/proc/self/ns/pid",
        "link=/proc/self/ns/ipc",
        "link=/proc/self/ns/net",
        "link=/proc/self/ns/mnt",
    ];
    let (_, output) = pod.run(&pod.container("app", &links));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..3], [namespace("pid"), namespace("ipc"), namespace("net")]);
    assert_ne!(lines[3], namespace("mnt"));
    let alone = Pod::new("alone");
    let (_, output) = alone.run(&alone.container("app", &links));
    let lines: Vec<&str> = output.lines().collect();
    assert_ne!(lines[0], namespace("pid"));
    assert_ne!(lines[1], namespace("ipc"));
}

fn no_container_can_write_to_the_binary() {
    let pod = Pod::with("seal", |sandbox| sandbox.host_pid = true);
    let supervisor = pod.pid();
    let mut config = pod.container("app", &[&format!("overwrite=/proc/{supervisor}/exe"), "out=end"]);
    config.privileged = true;
    config.process.capabilities = (0..41).map(capability).collect();
    assert_eq!(
        pod.run(&config).1,
        format!("/proc/{supervisor}/exe: Read-only file system (os error 30)\nend\n")
    );
}

/// All binaries that nodlet executes are sealed: while nodlet starts a container, while it executes a process
/// in one, and through descriptors that remain open after it has ended.
fn no_container_can_write_to_the_binary_while_others_start_or_when_they_have_ended() {
    let pod = Pod::with("seal-all", |sandbox| sandbox.host_pid = true);
    let mut attacker = pod.container("attacker", &["attack=/stop"]);
    attacker.privileged = true;
    attacker.process.capabilities = (0..41).map(capability).collect();
    let process = pod.start(&attacker);
    pod.wait_for_output(&attacker, "attacking");
    let all_seen = || {
        let output = pod.output(&attacker);
        ["nodlet:super", "nodlet:start", "nodlet:exec"].iter().all(|name| output.contains(name))
    };
    // With one processor, the attacker runs only where nodlet waits, and may not see all processes.
    let is_alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
    // A busy machine needs more rounds.
    for round in (0..200).take_while(|round| *round < 20 || !(all_seen() || is_alone)) {
        let app = pod.container("app", &["wait"]);
        let first = pod.start(&app);
        for id in 0..5 {
            assert_eq!(pod.exec(round * 5 + id, &app, &["out=in"]), (0, "in\n".to_owned()));
        }
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(first.pid), nix::sys::signal::Signal::SIGKILL)
            .unwrap();
        pod.exited();
    }
    touch(&process, "stop");
    assert_eq!(pod.exited().code, 0);
    let output = pod.output(&attacker);
    assert!(!output.contains("OVERWROTE"), "{output}");
    for name in ["nodlet:super", "nodlet:start", "nodlet:exec"] {
        assert!(is_alone || output.contains(name), "{name} was never seen: {output}");
    }
}

/// The name of a capability, by its number in the kernel.
fn capability(number: usize) -> String {
    let names = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
                 NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT \
                 SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE \
                 AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ \
                 PERFMON BPF CHECKPOINT_RESTORE";
    format!("CAP_{}", names.split_whitespace().nth(number).unwrap())
}
