//! Supervisors that replace themselves by another binary.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use nodlet_kernel::process::pidfd_send_signal;
use nodlet_supervisor::client::{SupervisorError, SupervisorEvent};

use crate::agents::{ask_and_die, terminal};
use crate::pod::{Pod, config_number, patiently, possessions, touch, wait_until};

pub(crate) const TESTS: &[(&str, fn())] = tests![
    a_supervisor_replaces_itself_and_no_container_notices,
    clients_stay_attached_when_the_supervisor_replaces_itself,
    a_terminal_that_no_agent_has_taken_outlives_the_replacement,
    sockets_of_the_agent_outlive_it_and_a_replacement,
    a_binary_that_cannot_take_over_changes_nothing,
];

fn a_supervisor_replaces_itself_and_no_container_notices() {
    let pod = Pod::new("reexec");
    let stays = pod.container("stays", &["part=half ", "until=/go", "out=whole", "exit=4"]);
    let floods = pod.container("floods", &["flood=20000x50"]);
    let gone = pod.container("gone", &["exit=6"]);
    pod.run(&gone);
    let process = pod.start(&stays);
    pod.start(&floods);
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

fn clients_stay_attached_when_the_supervisor_replaces_itself() {
    let pod = Pod::new("attached");
    let mut config = pod.container("app", &["line", "flood=3000x100", "line", "out=end"]);
    config.stdin = true;
    pod.start(&config);
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
    pod.start(&config);
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
    let mut terminal = terminal(&mut events, 4);
    terminal.write_all(b"typed\n").unwrap();
    assert!(events.any(|event| matches!(event, SupervisorEvent::ExecExited { id: 4, code: 3 })));
}

fn sockets_of_the_agent_outlive_it_and_a_replacement() {
    let pod = Pod::bare("sockets");
    let held = || pod.client(|supervisor| patiently("sockets", supervisor.held_sockets())).unwrap();
    let identity =
        |socket: &dyn AsRawFd| fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
    let identities = |held: &[OwnedFd]| held.iter().map(|socket| identity(socket)).collect::<Vec<_>>();
    assert!(held().is_empty());
    let (first, client) = UnixDatagram::pair().unwrap();
    let ours = [first, UnixDatagram::unbound().unwrap()];
    let expected = ours.each_ref().map(|socket| identity(socket));
    for _ in 0..3 {
        pod.client(|supervisor| supervisor.hold_sockets(&ours.each_ref().map(AsFd::as_fd))).unwrap();
    }
    drop(ours);
    pod.disconnect();
    client.send(b"query").unwrap();
    pod.reconnect();
    assert!(held().is_empty(), "its binary may be another one, which must not be asked");
    pod.client(|supervisor| supervisor.set_current());
    assert_eq!(identities(&held()), expected);
    reexec(&pod, &newer(&pod));
    pod.hello();
    let mut bytes = [0; 8];
    let first = UnixDatagram::from(held().swap_remove(0));
    assert_eq!(first.recv(&mut bytes).unwrap(), 5, "what came meanwhile");
    let open = possessions(pod.pid()).0.len();
    pod.client(|supervisor| supervisor.hold_sockets(&[])).unwrap();
    assert!(held().is_empty());
    assert_eq!(possessions(pod.pid()).0.len(), open - expected.len());
}

fn a_binary_that_cannot_take_over_changes_nothing() {
    let pod = Pod::new("cannot");
    let config = pod.container("app", &["wait"]);
    let process = pod.start(&config);
    let pid = pod.pid();
    wait_until("end of the helpers", || possessions(pid).1.split_whitespace().count() == 1);
    let before = possessions(pid);
    for (name, text) in [("script", "#!/bin/true\n"), ("nonsense", "nonsense")] {
        let file = pod.root.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let file = fs::File::open(file).unwrap();
        let answer = pod.client(|supervisor| patiently("answer", supervisor.reexec(file.as_fd())));
        assert!(matches!(answer, Err(SupervisorError::Reexec { .. })), "{answer:?}");
    }
    wait_until("the same descriptors as before", || possessions(pid) == before);
    pidfd_send_signal(process.pidfd.unwrap(), libc::SIGKILL).unwrap();
    assert_eq!(pod.exited().code, 137);
}

fn newer(pod: &Pod) -> fs::File {
    let newer = pod.root.join("newer");
    fs::copy("/proc/self/exe", &newer).unwrap();
    fs::File::open(newer).unwrap()
}

fn reexec(pod: &Pod, binary: &fs::File) {
    pod.client(|supervisor| patiently("handover", supervisor.reexec(binary.as_fd()))).unwrap();
}
