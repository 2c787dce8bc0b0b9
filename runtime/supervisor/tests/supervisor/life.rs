//! The life of a container and of its supervisor.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use nodlet_kernel::process::pidfd_send_signal;
use nodlet_supervisor::client::{Supervisor, SupervisorError, SupervisorEvent};

use crate::pod::{
    Pod, config_number, is_dead, patiently, possessions, send, stop, termination_message, touch, wait_until,
};

pub(crate) const TESTS: &[(&str, fn())] = tests![
    a_container_starts_and_its_exit_is_reported,
    exit_codes_and_signals_are_reported,
    a_second_supervisor_of_the_same_name_is_rejected,
    a_dead_supervisor_is_seen_to_be_dead,
    a_second_attempt_is_rejected_while_the_first_one_runs,
    a_hundred_starts_leave_nothing_behind,
    no_line_of_a_flooded_log_is_lost_or_torn,
    a_run_is_forgotten_while_the_next_one_writes,
    the_termination_message_is_the_file_or_the_log,
    a_supervisor_inherits_nothing_from_its_agent,
    a_further_pod_costs_little_memory,
];

fn a_container_starts_and_its_exit_is_reported() {
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

fn exit_codes_and_signals_are_reported() {
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
        let process = pod.start(&config);
        pod.wait_for_output(&config, "up");
        pidfd_send_signal(process.pidfd.unwrap(), signal).unwrap();
        let exit = pod.exited();
        assert_eq!((exit.code, exit.signal), expected);
    }
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
    pod.start(&config);
    send(pod.pid(), Signal::SIGKILL);
    let died = pod.client(|supervisor| patiently("end", supervisor.next()));
    assert!(matches!(died, Err(SupervisorError::Died)), "{died:?}");
    wait_until("a free lock", || is_dead(&pod.dir));
}

fn a_second_attempt_is_rejected_while_the_first_one_runs() {
    let pod = Pod::new("twice");
    let first = pod.container("app", &["wait"]);
    pod.start(&first);
    let second = pod.container("app", &["wait"]);
    pod.ask_to_start(&second);
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
        pod.start(&config);
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
    let process = pod.start(&second);
    // The stopped supervisor gets two things at once: output of the second run, and the request to forget the
    // first run, which moves the second one to another place in its list.
    let supervisor = pod.pid();
    stop(supervisor);
    pod.client(|supervisor| supervisor.forget("app", config_number(&first))).unwrap();
    touch(&process, "go");
    wait_until("line in the pipe", || Path::new(&format!("/proc/{}/root/said", process.pid)).exists());
    send(supervisor, Signal::SIGCONT);
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

fn a_further_pod_costs_little_memory() {
    const PODS: usize = 20;
    // The target is 256 KiB for a release build; this build is not optimised.
    const KIB_EACH: usize = 320;
    let with_container = |number: usize| {
        let pod = Pod::new(&format!("memory{number}"));
        let config = pod.container("app", &["out=up", "wait"]);
        pod.start(&config);
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
