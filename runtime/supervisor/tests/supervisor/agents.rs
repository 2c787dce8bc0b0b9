//! The state that outlives the agent, and what the next agent is sent.

use std::fs;
use std::io::Read;

use nix::sys::signal::Signal;
use nodlet_supervisor::client::{StartFailedAt, Supervisor, SupervisorError, SupervisorEvent};

use crate::pod::{Pod, config_number, patiently, send, stop, touch, wait_until};

pub(crate) const TESTS: &[(&str, fn())] = tests![
    a_container_outlives_its_agent_and_the_next_one_finds_all,
    a_start_under_way_is_reported_to_the_next_agent,
    the_next_agent_reads_the_terminal_output_of_an_exec_that_has_ended,
    a_supervisor_that_accepts_nobody_holds_up_no_agent,
    an_agent_that_reads_late_gets_every_report,
];

fn a_container_outlives_its_agent_and_the_next_one_finds_all() {
    let pod = Pod::new("outlive");
    let stays = pod.container("stays", &["out=first", "until=/go", "out=second", "wait"]);
    let leaves = pod.container("leaves", &["until=/go", "out=bye", "exit=3"]);
    let fails = pod.container("fails", &["wait"]);
    let before = pod.start(&stays);
    let leaving = pod.start(&leaves);
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
        patiently("an answer to hello", supervisor.hello_with(&mut |_, _| layers += 1)).expect("it answers");
    });
    assert_eq!(layers, 1, "the layer is still in use");
    assert_eq!(pod.output(&leaves), "bye\n");

    // The event of a forgotten run is not sent again; the event of the other run is.
    pod.client(|supervisor| supervisor.forget("leaves", config_number(&leaves))).unwrap();
    pod.ask_to_start(&{
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

fn a_start_under_way_is_reported_to_the_next_agent() {
    let pod = Pod::new("under-way");
    let config = pod.container("app", &["wait"]);
    let number = config_number(&config);
    pod.ask_to_start(&config);
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

fn the_next_agent_reads_the_terminal_output_of_an_exec_that_has_ended() {
    let pod = Pod::new("said");
    let config = pod.container("app", &["wait"]);
    let process = pod.start(&config);
    let words = ["/bin/program", "program", "out=last words", "write=/said:it"];
    ask_and_die(&pod, || pod.ask_to_exec(4, &config, &words, true, [None; 3]));
    let cgroup = nodlet_supervisor::client::exec_cgroup(&config.cgroup.unified, 4);
    let has_ended = || fs::read_to_string(cgroup.join("cgroup.procs")).map_or(true, |procs| procs.is_empty());
    let mark = std::path::PathBuf::from(format!("/proc/{}/root/said", process.pid));
    wait_until("the process to have spoken", || mark.exists());
    wait_until("the process to be over", has_ended);
    pod.connect();
    let mut events = pod.events();
    let mut terminal = terminal(&mut events, 4);
    let mut said = [0; 10];
    terminal.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"last words");
    assert!(events.any(|event| matches!(event, SupervisorEvent::ExecExited { id: 4, code: 0 })));
}

fn a_supervisor_that_accepts_nobody_holds_up_no_agent() {
    let pod = Pod::new("hangs");
    let pid = pod.pid();
    stop(pid);
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
    send(pid, Signal::SIGCONT);
    wait_until("connection", || Supervisor::connect(&pod.dir).is_ok());
    assert_eq!(pod.reconnect().pid, pid);
}

fn an_agent_that_reads_late_gets_every_report() {
    const RUNS: u32 = 200;
    let pod = Pod::new("late");
    for _ in 0..RUNS {
        let config = pod.container("app", &["exit=7"]);
        pod.start(&config);
        pod.exited();
        fs::remove_dir(&config.cgroup.unified).expect("nobody is left in the cgroup");
    }
    let pid = pod.pid();
    let sleeps = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        sleeps.trim().parse::<u64>().unwrap()
    };
    let state = pod.client(|supervisor| {
        let mut hello = std::pin::pin!(supervisor.hello());
        // The supervisor must not answer while the request is being sent.
        stop(pid);
        let before = sleeps();
        assert!(smol::block_on(smol::future::poll_once(&mut hello)).is_none());
        send(pid, Signal::SIGCONT);
        wait_until("sleep of a supervisor that has said what it can", || sleeps() > before);
        patiently("an answer to hello", hello).unwrap()
    });
    let exits = state.events.iter().filter(|event| matches!(event, SupervisorEvent::Exited { .. })).count();
    let starts = state.events.iter().filter(|event| matches!(event, SupervisorEvent::Started { .. })).count();
    assert_eq!((starts, exits), (RUNS as usize, RUNS as usize));
}

/// Kills the agent after it has sent a request, and before it receives an answer.
pub(crate) fn ask_and_die(pod: &Pod, ask: impl FnOnce()) {
    let pid = pod.pid();
    stop(pid);
    ask();
    pod.disconnect();
    send(pid, Signal::SIGCONT);
}

/// The terminal of an executed process, of which an agent has not been informed before.
pub(crate) fn terminal(events: &mut impl Iterator<Item = SupervisorEvent>, wanted: u32) -> fs::File {
    let terminal = events.find_map(|event| match event {
        SupervisorEvent::ExecStarted { id, terminal, .. } if id == wanted => terminal,
        _ => None,
    });
    terminal.expect("it has a terminal").into()
}
