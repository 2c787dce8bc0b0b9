//! Processes that are executed in a container besides the container's own process.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;

use nodlet_supervisor::client::{SupervisorEvent, exec_cgroup};

use crate::pod::{Pod, possessions, touch, wait_until};

pub(crate) const TESTS: &[(&str, fn())] = tests![
    an_exec_has_the_identity_and_environment_of_its_container,
    stdio_is_passed_on_and_the_exit_code_comes_back,
    a_terminal_is_the_containers_own,
    an_overrun_is_killed_with_all_it_started_and_the_container_lives,
    an_exec_that_fails_to_start_reports_the_reason,
    executing_leaves_nothing_behind,
    an_exec_that_hangs_at_its_start_keeps_no_helper_of_others_from_being_reaped,
    processes_left_by_an_exec_join_the_container_and_take_no_exec_slot,
];

/// The lines of /proc/self/status that do not differ between any two processes.
fn comparable(status: &str) -> Vec<&str> {
    let differ = "Name State Tgid Ngid Pid PPid NStgid NSpid NSpgid NSsid FDSize VmPeak VmSize VmLck VmPin \
                  VmHWM VmRSS RssAnon RssFile RssShmem VmData VmStk VmExe VmLib VmPTE VmSwap Threads SigQ \
                  voluntary_ctxt_switches nonvoluntary_ctxt_switches x86_Thread_features \
                  x86_Thread_features_locked Cpus_allowed Cpus_allowed_list";
    status
        .lines()
        .filter(|line| !differ.split(' ').any(|name| line.split(':').next() == Some(name)))
        .collect()
}

fn an_exec_has_the_identity_and_environment_of_its_container() {
    let pod = Pod::new("identity");
    for (name, user, no_new_privileges) in
        [("root", "", false), ("web", "web", true), ("number", "1000:44", false)]
    {
        let program = ["cat=/proc/self/status", "env=HOME", "env=GREETING", "cwd", "out=end", "wait"];
        let mut config = pod.container(name, &program);
        config.process.user.image_user = user.to_owned();
        config.process.user.additional_gids = vec![3000];
        config.process.no_new_privileges = no_new_privileges;
        config.process.cwd = "/bin".into();
        pod.start(&config);
        pod.wait_for_output(&config, "end\n");
        let (code, executed) = pod.exec(1, &config, &program[..5]);
        assert_eq!(code, 0);
        let own = pod.output(&config);
        assert!(own.contains("CapBnd:"), "{own}");
        assert_eq!(comparable(&executed), comparable(&own), "{name}");
        let (_, output) =
            pod.exec(2, &config, &["fds", "cat=/proc/self/oom_score_adj", "link=/proc/self/ns/pid"]);
        assert!(output.starts_with("[0, 1, 2]\n500\n"), "{output}");
    }
}

fn stdio_is_passed_on_and_the_exit_code_comes_back() {
    let pod = Pod::new("stdio");
    let config = pod.container("app", &["wait"]);
    pod.start(&config);
    let (stdin, mut to) = std::io::pipe().unwrap();
    let (mut from, stdout) = std::io::pipe().unwrap();
    let (mut errors, stderr) = std::io::pipe().unwrap();
    let args = ["program", "program", "echo", "err=oops", "exit=9"];
    pod.ask_to_exec(
        7,
        &config,
        &args,
        false,
        [Some(stdin.as_fd()), Some(stdout.as_fd()), Some(stderr.as_fd())],
    );
    drop((stdin, stdout, stderr));
    to.write_all(b"through the pipe").unwrap();
    drop(to);
    let (mut output, mut error) = (String::new(), String::new());
    from.read_to_string(&mut output).unwrap();
    errors.read_to_string(&mut error).unwrap();
    assert_eq!((output.as_str(), error.as_str()), ("through the pipe", "oops\n"));
    assert!(matches!(pod.next(), SupervisorEvent::ExecStarted { id: 7, terminal: None, .. }));
    assert!(matches!(pod.next(), SupervisorEvent::ExecExited { id: 7, code: 9 }));
    assert_eq!(pod.output(&config), "", "it has nothing to do with the container's log");
}

fn a_terminal_is_the_containers_own() {
    let pod = Pod::new("tty");
    let config = pod.container("app", &["wait"]);
    pod.start(&config);
    let args = ["program", "program", "tty", "env=TERM", "link=/proc/self/fd/0", "line", "wait"];
    pod.ask_to_exec(3, &config, &args, true, [None; 3]);
    let mut terminal = match pod.next() {
        SupervisorEvent::ExecStarted { id: 3, terminal: Some(terminal), .. } => File::from(terminal),
        other => panic!("{other:?}"),
    };
    let size = libc::winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel reads one winsize.
    let resized =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&terminal), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(resized, 0);
    let mut seen = String::new();
    let mut read_to = |end: &str, terminal: &mut File| {
        wait_until(end, || {
            let mut bytes = [0; 256];
            if let Ok(length) = terminal.read(&mut bytes) {
                seen.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
            seen.contains(end)
        });
        seen.clone()
    };
    let text = read_to("/dev/pts/0", &mut terminal);
    assert!(text.starts_with("true\r\nxterm\r\n/dev/pts/0"), "{text}");
    terminal.write_all(b"typed\n").unwrap();
    read_to("typed\r\ntyped\r\n", &mut terminal);
    // Control-C reaches the process: the terminal is the controlling terminal of its session.
    terminal.write_all(b"\x03").unwrap();
    assert!(matches!(pod.next(), SupervisorEvent::ExecExited { id: 3, code: 130 }));
}

fn an_overrun_is_killed_with_all_it_started_and_the_container_lives() {
    let pod = Pod::new("overrun");
    let config = pod.container("app", &["wait"]);
    let process = pod.start(&config);
    let args = ["program", "program", "fork=setsid", "fork", "wait"];
    pod.ask_to_exec(5, &config, &args, false, [None; 3]);
    assert!(matches!(pod.next(), SupervisorEvent::ExecStarted { id: 5, .. }));
    let cgroup = exec_cgroup(&config.cgroup.unified, 5);
    wait_until("three processes", || {
        fs::read_to_string(cgroup.join("cgroup.procs")).unwrap().lines().count() == 3
    });
    fs::write(cgroup.join("cgroup.kill"), "1").unwrap();
    assert!(matches!(pod.next(), SupervisorEvent::ExecExited { id: 5, code: 137 }));
    wait_until("removed cgroup", || !cgroup.exists());
    assert!(fs::exists(format!("/proc/{}", process.pid)).unwrap());
    assert_eq!(pod.exec(6, &config, &["out=alive"]).1, "alive\n");
}

fn an_exec_that_fails_to_start_reports_the_reason() {
    let pod = Pod::new("beside");
    let config = pod.container("app", &["until=/go"]);
    let process = pod.start(&config);
    let failure = |id: u32, command: &str| {
        pod.ask_to_exec(id, &config, &[command], false, [None; 3]);
        match pod.next() {
            SupervisorEvent::ExecFailed { id: failed, message } => {
                assert_eq!(failed, id);
                message
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(failure(1, "nope"), "exec: \"nope\": executable file not found in $PATH");
    assert_eq!(failure(2, "/nope"), "exec: \"/nope\": stat /nope: no such file or directory");
    touch(&process, "go");
    pod.exited();
    assert_eq!(failure(3, "program"), "exec: container app is not running");
}

fn executing_leaves_nothing_behind() {
    let pod = Pod::new("leaves");
    let config = pod.container("app", &["wait"]);
    pod.start(&config);
    let pid = pod.pid();
    wait_until("end of the helpers", || possessions(pid).1.split_whitespace().count() == 1);
    let before = possessions(pid);
    for id in 0..50 {
        assert_eq!(pod.exec(id, &config, &["out=x"]), (0, "x\n".to_owned()));
    }
    wait_until(&format!("{before:?} but {:?}", possessions(pid)), || possessions(pid) == before);
    let groups =
        fs::read_dir(&config.cgroup.unified).unwrap().flatten().filter(|entry| entry.path().is_dir()).count();
    assert_eq!(groups, 0);
}

/// As under containerd, a process that an executed process leaves behind belongs to the container.
fn processes_left_by_an_exec_join_the_container_and_take_no_exec_slot() {
    let pod = Pod::new("behind");
    let config = pod.container("app", &["wait"]);
    pod.start(&config);
    // More processes than may be executed at the same time.
    for id in 0..100 {
        pod.ask_to_exec(id, &config, &["/bin/program", "program", "fork=setsid"], false, [None; 3]);
        loop {
            match pod.next() {
                SupervisorEvent::ExecStarted { .. } => {}
                SupervisorEvent::ExecExited { id: exited, code } => {
                    assert_eq!((exited, code), (id, 0));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let leaf = &config.cgroup.unified;
    let processes = || fs::read_to_string(leaf.join("cgroup.procs")).unwrap().lines().count();
    let groups = || fs::read_dir(leaf).unwrap().flatten().filter(|entry| entry.path().is_dir()).count();
    wait_until("all to be in the container's cgroup", || processes() == 101 && groups() == 0);
    fs::write(leaf.join("cgroup.kill"), "1").unwrap();
    pod.exited();
    assert_eq!(processes(), 0);
}

fn an_exec_that_hangs_at_its_start_keeps_no_helper_of_others_from_being_reaped() {
    let pod = Pod::new("zombies");
    let (frozen, free) = (pod.container("frozen", &["wait"]), pod.container("free", &["wait"]));
    for config in [&frozen, &free] {
        pod.start(config);
    }
    let children = || possessions(pod.pid()).1.split_whitespace().count();
    wait_until("end of the start helpers", || children() == 2);
    // The helper is in the container's cgroup from its first instruction on.
    let freezer = frozen.cgroup.unified.join("cgroup.freeze");
    fs::write(&freezer, "1").unwrap();
    pod.ask_to_exec(1, &frozen, &["/bin/program", "program", "out=late"], false, [None; 3]);
    for id in 2..6 {
        assert_eq!(pod.exec(id, &free, &["out=x"]), (0, "x\n".to_owned()));
    }
    wait_until("end of the exec helpers but the frozen one", || children() == 3);
    fs::write(&freezer, "0").unwrap();
    assert!(matches!(pod.next(), SupervisorEvent::ExecStarted { id: 1, .. }));
}
