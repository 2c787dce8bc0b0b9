//! The life of a container, and the state that outlives the agent.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use nodlet_supervisor::client::{StartFailedAt, Supervisor, SupervisorError, SupervisorEvent};

use crate::pod::{Pod, config_number, is_dead, possessions, termination_message, touch, wait_until};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_container_starts_and_its_exit_is_told", a_container_starts_and_its_exit_is_told),
    ("exit_codes_and_signals_are_told_as_they_are", exit_codes_and_signals_are_told_as_they_are),
    (
        "a_container_outlives_its_agent_and_the_next_one_finds_all",
        a_container_outlives_its_agent_and_the_next_one_finds_all,
    ),
    (
        "a_start_under_way_is_told_to_the_agent_that_comes_meanwhile",
        a_start_under_way_is_told_to_the_agent_that_comes_meanwhile,
    ),
    ("a_second_supervisor_of_the_same_name_is_rejected", a_second_supervisor_of_the_same_name_is_rejected),
    ("a_dead_supervisor_is_seen_to_be_dead", a_dead_supervisor_is_seen_to_be_dead),
    (
        "a_second_attempt_is_rejected_while_the_first_one_runs",
        a_second_attempt_is_rejected_while_the_first_one_runs,
    ),
    ("a_hundred_starts_leave_nothing_behind", a_hundred_starts_leave_nothing_behind),
    ("no_line_of_a_flooded_log_is_lost_or_torn", no_line_of_a_flooded_log_is_lost_or_torn),
    ("a_run_is_forgotten_while_the_next_one_writes", a_run_is_forgotten_while_the_next_one_writes),
    ("the_termination_message_is_the_file_or_the_log", the_termination_message_is_the_file_or_the_log),
    ("a_supervisor_inherits_nothing_from_its_agent", a_supervisor_inherits_nothing_from_its_agent),
    (
        "a_supervisor_replaces_itself_and_no_container_notices",
        a_supervisor_replaces_itself_and_no_container_notices,
    ),
    (
        "clients_stay_attached_when_the_supervisor_replaces_itself",
        clients_stay_attached_when_the_supervisor_replaces_itself,
    ),
    (
        "a_terminal_that_no_agent_has_taken_outlives_the_replacement",
        a_terminal_that_no_agent_has_taken_outlives_the_replacement,
    ),
    (
        "the_next_agent_reads_the_terminal_output_of_an_exec_that_has_ended",
        the_next_agent_reads_the_terminal_output_of_an_exec_that_has_ended,
    ),
    (
        "a_supervisor_that_accepts_nobody_holds_up_no_agent",
        a_supervisor_that_accepts_nobody_holds_up_no_agent,
    ),
    ("an_agent_that_reads_late_is_told_all", an_agent_that_reads_late_is_told_all),
    ("a_binary_that_cannot_take_over_changes_nothing", a_binary_that_cannot_take_over_changes_nothing),
    ("a_further_pod_costs_little_memory", a_further_pod_costs_little_memory),
];

fn kill(pidfd: impl AsFd, signal: i32) {
    // SAFETY: no pointers but a null.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            std::os::fd::AsRawFd::as_raw_fd(&pidfd.as_fd()),
            signal,
            std::ptr::null::<libc::c_void>(),
            0,
        )
    };
    assert_eq!(sent, 0);
}

fn a_container_starts_and_its_exit_is_told() {
    let pod = Pod::new("line");
    let config = pod.container("app", &["out=to stdout", "err=to stderr", "env=GREETING", "fds", "exit=7"]);
    let (exit, output) = pod.run(&config);
    assert_eq!((exit.code, exit.signal), (7, None));
    assert!(exit.started_at <= exit.finished_at);
    for line in ["to stdout\n", "to stderr\n", "hello\n", "[0, 1, 2]\n"] {
        assert!(output.contains(line), "{output}");
    }
    assert_eq!(fs::read_link(&config.log.link).unwrap(), config.log.path);
    pod.client(|supervisor| supervisor.end()).unwrap();
    wait_until("end of the supervisor", || is_dead(&pod.dir));
}

fn exit_codes_and_signals_are_told_as_they_are() {
    let pod = Pod::new("codes");
    for code in [0, 1, 42, 255] {
        let (exit, _) = pod.run(&pod.container("app", &[&format!("exit={code}")]));
        assert_eq!((exit.code, exit.signal), (code, None));
    }
    for (program, signal, expected) in [
        (&["out=up", "wait"][..], libc::SIGKILL, (137, Some(9))),
        (&["term", "out=up", "wait"], libc::SIGTERM, (42, None)),
    ] {
        let config = pod.container("app", program);
        let process = pod.start(config_number(&config), &config);
        pod.wait_for_output(&config, "up");
        kill(process.pidfd.unwrap(), signal);
        let exit = pod.exited();
        assert_eq!((exit.code, exit.signal), expected);
    }
}

fn a_start_under_way_is_told_to_the_agent_that_comes_meanwhile() {
    let pod = Pod::new("under-way");
    let config = pod.container("app", &["wait"]);
    let number = config_number(&config);
    pod.ask_to_start(number, &config);
    pod.disconnect();
    let state = pod.reconnect();
    let is_it = |event: &SupervisorEvent| match event {
        SupervisorEvent::Started { container, number: of, .. } => {
            (container.as_str(), *of) == ("app", number)
        }
        _ => false,
    };
    // In either order the agent learns of the run: a second request would start a second run.
    if !state.events.iter().any(is_it) {
        assert_eq!(state.starting, [("app".to_owned(), number)]);
        assert!(is_it(&pod.next()));
    }
}

fn a_container_outlives_its_agent_and_the_next_one_finds_all() {
    let pod = Pod::new("outlive");
    let stays = pod.container("stays", &["out=first", "until=/go", "out=second", "wait"]);
    let leaves = pod.container("leaves", &["until=/go", "out=bye", "exit=3"]);
    let fails = pod.container("fails", &["wait"]);
    let before = pod.start(config_number(&stays), &stays);
    let leaving = pod.start(config_number(&leaves), &leaves);
    pod.disconnect();
    touch(&before, "go");
    touch(&leaving, "go");
    pod.wait_for_output(&stays, "second");
    wait_until("exit record", || {
        pod.dir.join("exits").join(format!("leaves_{}", config_number(&leaves))).exists()
    });
    let state = pod.reconnect();
    let mut seen = Vec::new();
    for event in state.events {
        match event {
            SupervisorEvent::SandboxReady { .. } => seen.push("ready".to_owned()),
            SupervisorEvent::Started { container, process, .. } => {
                if container == "stays" {
                    assert_eq!((process.pid, process.at), (before.pid, before.at));
                    assert!(process.pidfd.is_some());
                }
                seen.push(format!("{container} started"));
            }
            SupervisorEvent::Exited { container, exit, .. } => {
                seen.push(format!("{container} exited {}", exit.unwrap().code));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["ready", "stays started", "leaves started", "leaves exited 3"]);
    let mut layers = 0;
    pod.client(|supervisor| {
        crate::pod::patiently("an answer to hello", supervisor.hello_with(&mut |_, _| layers += 1))
            .expect("it answers");
    });
    assert_eq!(layers, 1, "the layer is still in use");
    assert_eq!(pod.output(&leaves), "bye\n");

    // The event of a forgotten run is not sent again; the event of the other run is.
    pod.client(|supervisor| supervisor.forget("leaves", config_number(&leaves))).unwrap();
    pod.ask_to_start(config_number(&fails), &{
        let mut config = fails.clone();
        config.process.args = vec!["/nowhere".to_owned()];
        config
    });
    assert!(matches!(pod.next(), SupervisorEvent::StartFailed { at: StartFailedAt::Run, .. }));
    pod.disconnect();
    let seen: Vec<&str> = pod
        .reconnect()
        .events
        .iter()
        .map(|event| match event {
            SupervisorEvent::SandboxReady { .. } => "ready",
            SupervisorEvent::Started { container, .. } if container == "stays" => "started",
            SupervisorEvent::StartFailed { .. } => "failed",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(seen, ["ready", "started", "failed"]);
}

fn a_second_supervisor_of_the_same_name_is_rejected() {
    let pod = Pod::new("lock");
    let other = pod.dir.with_file_name("other");
    fs::create_dir_all(&other).unwrap();
    match Supervisor::spawn(&other, &pod.lock_name(), &[]) {
        Err(SupervisorError::Locked { name }) => assert_eq!(name, pod.lock_name()),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("there are two"),
    }
    pod.client(|supervisor| supervisor.end()).unwrap();
    wait_until("end of the supervisor", || is_dead(&pod.dir));
    let second = Supervisor::spawn(&other, &pod.lock_name(), &[]).expect("the name is free");
    second.end().unwrap();
    wait_until("end of the second", || is_dead(&other));
}

fn a_dead_supervisor_is_seen_to_be_dead() {
    let pod = Pod::new("dead");
    let config = pod.container("app", &["wait"]);
    pod.start(0, &config);
    let pid = pod.pid();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    let died = pod.client(|supervisor| crate::pod::patiently("end", supervisor.next()));
    assert!(matches!(died, Err(SupervisorError::Died)), "{died:?}");
    wait_until("a free lock", || is_dead(&pod.dir));
}

fn a_second_attempt_is_rejected_while_the_first_one_runs() {
    let pod = Pod::new("twice");
    let first = pod.container("app", &["wait"]);
    pod.start(0, &first);
    let second = pod.container("app", &["wait"]);
    pod.ask_to_start(1, &second);
    match pod.next() {
        SupervisorEvent::StartFailed { number: 1, message, .. } => {
            assert_eq!(message, "start it: the previous attempt still runs");
        }
        other => panic!("{other:?}"),
    }
}

fn a_hundred_starts_leave_nothing_behind() {
    let pod = Pod::new("hundred");
    let pid = pod.pid();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    wait_until("end of the sandbox helper", || possessions(pid).1.is_empty());
    let (before, mounts_before) = (possessions(pid), mounts());
    for number in 0..100 {
        let config = pod.container("app", &["exit=0"]);
        pod.start(number, &config);
        assert_eq!(pod.exited().code, 0);
        pod.client(|supervisor| supervisor.forget("app", number)).unwrap();
        fs::remove_dir(&config.cgroup.unified).expect("nobody is left in the cgroup");
        for path in [&config.upper_dir, &config.work_dir] {
            fs::remove_dir_all(path).unwrap();
        }
    }
    assert_eq!(mounts(), mounts_before);
    wait_until(&format!("{before:?} but {:?}", possessions(pid)), || possessions(pid) == before);
    assert_eq!(fs::read_dir(pod.dir.join("exits")).unwrap().count(), 0);
}

fn no_line_of_a_flooded_log_is_lost_or_torn() {
    let pod = Pod::new("flood");
    let mut config = pod.container("app", &["flood=30000x120"]);
    config.log.max_size = 200_000;
    config.log.max_files = 1000;
    let (exit, _) = pod.run(&config);
    assert_eq!(exit.code, 0);
    let directory = config.log.path.parent().unwrap();
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    // The current file sorts first.
    files.rotate_left(1);
    assert!(files.len() > 10, "{files:?}");
    let mut next = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.len() <= 200_000 && text.ends_with('\n'));
        for line in text.lines() {
            let content = line.splitn(4, ' ').nth(3).unwrap();
            assert_eq!(content, format!("{next} {}", "x".repeat(120)));
            next += 1;
        }
    }
    assert_eq!(next, 30_000);
}

fn a_run_is_forgotten_while_the_next_one_writes() {
    let pod = Pod::new("forgotten");
    let first = pod.container("app", &["exit=1"]);
    pod.run(&first);
    let second = pod.container("app", &["until=/go", "out=late", "write=/said:x", "wait"]);
    let process = pod.start(config_number(&second), &second);
    // The stopped supervisor gets two things at once: output of the second run, and the request to forget the
    // first run, which moves the second one to another place in its list.
    let supervisor = pod.pid();
    let signal = |signal| {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::kill(supervisor, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    wait_until("stop of the supervisor", || {
        fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap().contains(") T ")
    });
    pod.client(|supervisor| supervisor.forget("app", config_number(&first))).unwrap();
    touch(&process, "go");
    wait_until("line in the pipe", || Path::new(&format!("/proc/{}/root/said", process.pid)).exists());
    signal(libc::SIGCONT);
    pod.wait_for_output(&second, "late");
    assert_eq!(pod.pid(), supervisor);
}

fn the_termination_message_is_the_file_or_the_log() {
    let pod = Pod::new("message");
    for (program, fallback, expected) in [
        (&["write=/dev/termination-log:goodbye", "exit=1"][..], false, "goodbye"),
        (&["write=/dev/termination-log:goodbye", "exit=1"], true, "goodbye"),
        (&["out=in the log", "exit=1"], false, ""),
        (&["out=in the log", "exit=1"], true, "in the log\n"),
        (&["out=in the log", "exit=0"], true, ""),
    ] {
        let mut config = pod.container("app", program);
        config.termination_message = Some(termination_message(&pod, fallback));
        let (exit, _) = pod.run(&config);
        assert_eq!(exit.message, expected, "{program:?} {fallback}");
    }
}

fn a_supervisor_inherits_nothing_from_its_agent() {
    let pod = Pod::new("nothing");
    let pid = pod.pid();
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let status = read("status");
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_ne!(field("PPid:"), std::process::id().to_string(), "it is nobody's child");
    assert_eq!(field("Threads:"), "1");
    assert!(read("environ").is_empty());
    assert!(read("cgroup").contains("/supervisors"));
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    for stream in 0..3 {
        assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{stream}")).unwrap(), Path::new("/dev/null"));
    }
    let session = read("stat").rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap().to_owned();
    assert_ne!(session, nix::unistd::getsid(None).unwrap().to_string());
    // Listening socket, connection, lock, signals, and the mount and ipc namespaces. The pod has no link, and
    // so no net namespace.
    let fds: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|entry| fs::read_link(entry.unwrap().path()).unwrap().to_string_lossy().into_owned())
        .filter(|target| target != "/dev/null")
        .collect();
    assert_eq!(fds.len(), 6, "{fds:?}");
}

fn a_supervisor_replaces_itself_and_no_container_notices() {
    let pod = Pod::new("reexec");
    let stays = pod.container("stays", &["part=half ", "until=/go", "out=whole", "exit=4"]);
    let floods = pod.container("floods", &["flood=20000x50"]);
    let gone = pod.container("gone", &["exit=6"]);
    pod.run(&gone);
    let process = pod.start(config_number(&stays), &stays);
    pod.start(config_number(&floods), &floods);
    // The flood may have ended by then.
    let execution_begins = |wanted: u32| loop {
        match pod.next() {
            SupervisorEvent::ExecStarted { id, .. } if id == wanted => break,
            SupervisorEvent::Exited { container, .. } if container == "floods" => {}
            other => panic!("{other:?}"),
        }
    };
    pod.ask_to_exec(9, &stays, &["program", "program", "until=/go", "exit=8"], false, [None; 3]);
    execution_begins(9);
    let ((their_in, mut our_in), (mut our_out, their_out)) =
        (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let session = ["/bin/program", "program", "out=open", "line", "exit=5"];
    let stdio = [Some(their_in.as_fd()), Some(their_out.as_fd()), None];
    pod.ask_to_exec(10, &stays, &session, false, stdio);
    execution_begins(10);
    drop((their_in, their_out));
    let pid = pod.pid();
    let exe = || {
        fs::metadata(format!("/proc/{pid}/exe"))
            .map(|file| std::os::unix::fs::MetadataExt::ino(&file))
            .unwrap()
    };
    let before = exe();
    let newer = newer(&pod);
    for _ in 0..3 {
        reexec(&pod, &newer);
    }
    assert_ne!(exe(), before);
    let state = pod.hello();
    assert_eq!(state.pid, pid);
    let known = |name: &str, number: u32| {
        state.events.iter().any(|event| match event {
            SupervisorEvent::Started { container, number: n, .. } => container == name && *n == number,
            _ => false,
        })
    };
    for config in [&stays, &floods, &gone] {
        assert!(known(&config.name, config_number(config)), "{:?}", state.events);
    }
    assert!(state.events.iter().any(|event| matches!(event, SupervisorEvent::ExecStarted { id: 9, .. })));
    our_in.write_all(b"still\n").unwrap();
    let mut said = String::new();
    our_out.read_to_string(&mut said).unwrap();
    assert_eq!(said, "open\nstill\n", "the streams of a session go on");
    touch(&process, "go");
    let (mut left, mut executed, mut session_over) = (2, false, false);
    let flood_is_over = state
        .events
        .iter()
        .any(|event| matches!(event, SupervisorEvent::Exited { container, .. } if container == "floods"));
    if flood_is_over {
        left = 1;
    }
    while left > 0 || !executed || !session_over {
        match pod.next() {
            SupervisorEvent::Exited { container, exit, .. } => {
                assert_eq!(exit.unwrap().code, if container == "stays" { 4 } else { 0 });
                left -= 1;
            }
            SupervisorEvent::ExecExited { id: 10, code } => {
                assert!(code == 5 || code == 137, "{code}");
                session_over = true;
            }
            SupervisorEvent::ExecExited { id: 9, code } => {
                // The container may have ended first, and its end kills the executed process.
                assert!(code == 8 || code == 137, "{code}");
                executed = true;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pod.output(&stays), "half whole\n");
    let lines = pod.output(&floods);
    for (number, line) in lines.lines().enumerate() {
        assert_eq!(line, format!("{number} {}", "x".repeat(50)));
    }
    assert_eq!(lines.lines().count(), 20_000);
    // The supervisor still works.
    let after = pod.container("after", &["out=runs"]);
    assert_eq!(pod.run(&after).1, "runs\n");
    wait_until("no child", || possessions(pid).1.is_empty());
}

/// Another binary for the supervisor of this pod.
fn newer(pod: &Pod) -> fs::File {
    let newer = pod.root.join("newer");
    fs::copy("/proc/self/exe", &newer).unwrap();
    fs::File::open(newer).unwrap()
}

fn reexec(pod: &Pod, binary: &fs::File) {
    pod.client(|supervisor| crate::pod::patiently("handover", supervisor.reexec(binary.as_fd()))).unwrap();
}

fn clients_stay_attached_when_the_supervisor_replaces_itself() {
    let pod = Pod::new("attached");
    let mut config = pod.container("app", &["line", "flood=3000x100", "line", "out=end"]);
    config.stdin = true;
    pod.start(config_number(&config), &config);
    let ((their_in, mut our_in), (mut our_out, their_out), (mut our_err, their_err)) =
        (std::io::pipe().unwrap(), std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let number = config_number(&config);
    let stdio = [Some(their_in.as_fd()), Some(their_out.as_fd()), Some(their_err.as_fd())];
    pod.client(|supervisor| supervisor.attach(1, "app", number, stdio)).unwrap();
    assert!(matches!(pod.next(), SupervisorEvent::Attached { id: 1, .. }));
    drop((their_in, their_out, their_err));
    our_in.write_all(b"go\n").unwrap();
    // The output is more than the pipe holds, and nobody reads it; the next binary takes over all of it.
    pod.wait_for_output(&config, "2999 ");
    let newer = newer(&pod);
    for _ in 0..2 {
        reexec(&pod, &newer);
    }
    pod.hello();
    our_in.write_all(b"typed\n").unwrap();
    pod.wait_for_output(&config, "end\n");
    assert_eq!(pod.exited().code, 0);
    let (mut shown, mut notice) = (String::new(), String::new());
    our_out.read_to_string(&mut shown).unwrap();
    our_err.read_to_string(&mut notice).unwrap();
    let skipped: usize = notice
        .lines()
        .filter_map(|line| line.strip_prefix("nodlet: ")?.split(' ').next()?.parse::<usize>().ok())
        .sum();
    let written = pod.output(&config);
    assert!(skipped > 0 && written.ends_with("typed\nend\n"), "{notice}");
    assert_eq!(shown.len() + skipped, written.len(), "{notice}");
    assert!(written.starts_with(&shown[..shown.len().min(1000)]), "{notice}");
}

fn a_terminal_that_no_agent_has_taken_outlives_the_replacement() {
    let pod = Pod::new("untold");
    let config = pod.container("app", &["wait"]);
    pod.start(config_number(&config), &config);
    ask_and_die(&pod, || {
        pod.ask_to_exec(4, &config, &["/bin/program", "program", "line", "exit=3"], true, [None; 3])
    });
    let procs = nodlet_supervisor::client::exec_cgroup(&config.cgroup.unified, 4).join("cgroup.procs");
    let executed = || {
        let procs = fs::read_to_string(&procs).unwrap_or_default();
        procs
            .lines()
            .any(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "program\n"))
    };
    wait_until("executed process", executed);
    pod.connect();
    reexec(&pod, &newer(&pod));
    let mut events = pod.events();
    let terminal = events.find_map(|event| match event {
        SupervisorEvent::ExecStarted { id: 4, terminal, .. } => Some(terminal.expect("it has a terminal")),
        _ => None,
    });
    let terminal = terminal.expect("events come until one is found");
    let mut terminal = fs::File::from(terminal);
    terminal.write_all(b"typed\n").unwrap();
    assert!(events.any(|event| matches!(event, SupervisorEvent::ExecExited { id: 4, code: 3 })));
}

/// Kills the agent after it has sent a request, and before it receives an answer.
fn ask_and_die(pod: &Pod, ask: impl FnOnce()) {
    use nix::sys::signal::{Signal, kill};
    let pid = nix::unistd::Pid::from_raw(pod.pid());
    kill(pid, Signal::SIGSTOP).unwrap();
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    wait_until("stop of the supervisor", || status().contains("State:\tT"));
    ask();
    pod.disconnect();
    kill(pid, Signal::SIGCONT).unwrap();
}

/// The supervisor hangs, and agents that have died since have left their connections in its queue.
fn a_supervisor_that_accepts_nobody_holds_up_no_agent() {
    let pod = Pod::new("hangs");
    let pid = nix::unistd::Pid::from_raw(pod.pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let mut waiting = Vec::new();
    wait_until("end of its patience", || match Supervisor::connect(&pod.dir) {
        Ok(connected) => {
            waiting.push(connected.expect("it lives"));
            false
        }
        Err(SupervisorError::Occupied) => true,
        Err(error) => panic!("{error}"),
    });
    assert!(waiting.len() < 20, "{}", waiting.len());
    drop(waiting);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    wait_until("connection", || Supervisor::connect(&pod.dir).is_ok());
    assert_eq!(pod.reconnect().pid, pid.as_raw());
}

/// The supervisor has more events to send than a socket holds.
fn an_agent_that_reads_late_is_told_all() {
    const RUNS: u32 = 200;
    let pod = Pod::new("late");
    for number in 0..RUNS {
        let config = pod.container("app", &["exit=7"]);
        pod.start(number, &config);
        pod.exited();
        fs::remove_dir(&config.cgroup.unified).expect("nobody is left in the cgroup");
    }
    let pid = pod.pid();
    let status = |name: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().to_owned()
    };
    let sleeps = || status("voluntary_ctxt_switches:").parse::<u64>().unwrap();
    let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    let state = pod.client(|supervisor| {
        let mut hello = std::pin::pin!(supervisor.hello());
        // The supervisor must not answer while the request is being sent.
        signal(nix::sys::signal::Signal::SIGSTOP);
        wait_until("supervisor that is stopped", || status("State:").starts_with('T'));
        let before = sleeps();
        assert!(smol::block_on(smol::future::poll_once(&mut hello)).is_none());
        signal(nix::sys::signal::Signal::SIGCONT);
        wait_until("sleep of a supervisor that has said what it can", || sleeps() > before);
        crate::pod::patiently("an answer to hello", hello).unwrap()
    });
    let exits = state.events.iter().filter(|event| matches!(event, SupervisorEvent::Exited { .. })).count();
    let starts = state.events.iter().filter(|event| matches!(event, SupervisorEvent::Started { .. })).count();
    assert_eq!((starts, exits), (RUNS as usize, RUNS as usize));
}

fn the_next_agent_reads_the_terminal_output_of_an_exec_that_has_ended() {
    let pod = Pod::new("said");
    let config = pod.container("app", &["wait"]);
    let process = pod.start(config_number(&config), &config);
    let words = ["/bin/program", "program", "out=last words", "write=/said:it"];
    ask_and_die(&pod, || pod.ask_to_exec(4, &config, &words, true, [None; 3]));
    let cgroup = nodlet_supervisor::client::exec_cgroup(&config.cgroup.unified, 4);
    let has_ended = || fs::read_to_string(cgroup.join("cgroup.procs")).map_or(true, |procs| procs.is_empty());
    let mark = std::path::PathBuf::from(format!("/proc/{}/root/said", process.pid));
    wait_until("the process to have spoken", || mark.exists());
    wait_until("the process to be over", has_ended);
    pod.connect();
    let mut events = pod.events();
    let terminal = events.find_map(|event| match event {
        SupervisorEvent::ExecStarted { id: 4, terminal, .. } => Some(terminal.expect("it has a terminal")),
        _ => None,
    });
    let terminal = terminal.expect("events come until one is found");
    let mut said = [0; 10];
    fs::File::from(terminal).read_exact(&mut said).unwrap();
    assert_eq!(&said, b"last words");
    assert!(events.any(|event| matches!(event, SupervisorEvent::ExecExited { id: 4, code: 0 })));
}

fn a_binary_that_cannot_take_over_changes_nothing() {
    let pod = Pod::new("cannot");
    let config = pod.container("app", &["wait"]);
    let process = pod.start(config_number(&config), &config);
    let pid = pod.pid();
    wait_until("end of the helpers", || possessions(pid).1.split_whitespace().count() == 1);
    let before = possessions(pid);
    for (name, text) in [("script", "#!/bin/true\n"), ("nonsense", "nonsense")] {
        let file = pod.root.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let file = fs::File::open(file).unwrap();
        let answer =
            pod.client(|supervisor| crate::pod::patiently("answer", supervisor.reexec(file.as_fd())));
        assert!(matches!(answer, Err(SupervisorError::Reexec { .. })), "{answer:?}");
    }
    wait_until("the same descriptors as before", || possessions(pid) == before);
    kill(process.pidfd.unwrap(), libc::SIGKILL);
    assert_eq!(pod.exited().code, 137);
}

/// Supervisors share the memory pages to which they have not written; the test measures what one more
/// supervisor adds.
fn a_further_pod_costs_little_memory() {
    const PODS: usize = 20;
    // The target is 256 KiB for a release build; this build is not optimised.
    const KIB_EACH: usize = 320;
    let with_container = |number: usize| {
        let pod = Pod::new(&format!("memory{number}"));
        let config = pod.container("app", &["out=up", "wait"]);
        pod.start(0, &config);
        pod.wait_for_output(&config, "up");
        pod
    };
    let proportional = |pods: &[Pod]| -> usize {
        let of = |pod: &Pod| {
            let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", pod.pid())).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
            line.split_whitespace().next().unwrap().parse::<usize>().unwrap()
        };
        pods.iter().map(of).sum()
    };
    let mut pods = vec![with_container(0)];
    let one = proportional(&pods);
    pods.extend((1..=PODS).map(with_container));
    let each = (proportional(&pods) - one) / PODS;
    assert!(each <= KIB_EACH, "{each} KiB");
}
