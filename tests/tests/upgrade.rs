//! Upgrades to another binary: its agent makes the running supervisors execute it in place, and no container
//! notices. A binary that cannot take over leaves the supervisors as they are, and reports it. `cargo xtask
//! long upgrade` starts with binaries of earlier commits, `$NODLET_EARLIER`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use nodlet_tests::upgrade::inode;
use nodlet_tests::{Device, Forwarding, Terminal, demo_archive, manifest, nodlet_program};

/// The binary under test, with one word changed that it must have in common with the previous binary.
fn incompatible(device: &Device, word: &str) -> PathBuf {
    let mut bytes = fs::read(nodlet_program()).expect("it is built");
    let word = word.as_bytes();
    let places: Vec<usize> =
        bytes.windows(word.len()).enumerate().filter(|(_, at)| *at == word).map(|(place, _)| place).collect();
    assert!(!places.is_empty(), "the binary does not know the word");
    for place in places {
        bytes[place + 2] = bytes[place + 2].to_ascii_uppercase();
    }
    device.binary("incompatible", &bytes)
}

/// A device with pods of every kind, all run by one binary; and the directories that the pods share with the
/// test.
fn begin(first: impl FnOnce(&Device) -> PathBuf) -> (Device, PathBuf, PathBuf) {
    let mut device = Device::new();
    let first = first(&device);
    device.install(&first);
    device.start_agent();
    device.load_image(demo_archive());
    let (shared, here) = device.shared("one");
    settle(&device, &shared);
    assert!(runs_all_on(&device, &first));
    (device, here, first)
}

/// Creates pods of every kind that an upgrade may disturb, and waits until all of them are settled.
fn settle(device: &Device, shared: &str) {
    let held = |name: &str, steps: &str| {
        manifest::container(
            name,
            &format!("lock /one/{name} then append /one/{name}-starts run then {steps}"),
            "volumeMounts: [{name: one, mountPath: /one}]",
        )
    };
    let volumes = format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]");
    device
        .write_manifest("tick.yaml", &manifest::pod_of("tick", &[held("app", "print tick 0.02")], &volumes));
    let web = [
        held("server", "fail-once /one/failed then print up then sleep"),
        held("beside", "print up then sleep"),
    ];
    let spec = format!("shareProcessNamespace: true\n{volumes}");
    device.write_manifest("web.yaml", &manifest::pod_of("web", &web, &spec));
    let spec = format!("restartPolicy: Never\n{volumes}");
    let job = held("job", "print begun then wait /one/go then print done then exit 7");
    device.write_manifest("job.yaml", &manifest::pod_of("job", &[job], &spec));
    device.pod("tick").wait_log("app", "tick 3\n");
    device.pod("web").wait_restarts("server", 1);
    device.wait_all_ready(["web", "job"]);
    device.pod("job").wait_log("job", "begun");
}

/// The start time of each container's first process, and the container's restart count.
fn lives(device: &Device) -> Vec<(String, i64)> {
    [("tick", "app"), ("web", "server"), ("web", "beside"), ("job", "job")]
        .map(|(pod, container)| {
            let pod = device.pod(pod);
            let started = pod.container(container).of_state("startedAt").to_string();
            (started + &pod.container(container).id(), pod.container(container).restart_count())
        })
        .to_vec()
}

/// The processes of every container, or, with `executed`, those that were started by exec, each with what the
/// kernel reports of it.
fn processes(device: &Device, executed: bool) -> Vec<(u32, String)> {
    let is_wanted = |pid: &u32| {
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        cgroup.contains("/exec-") == executed
    };
    let mut all: Vec<(u32, String)> = device
        .container_processes()
        .into_iter()
        .filter(is_wanted)
        .map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let born = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
            (pid, born.unwrap_or_default().to_owned())
        })
        .collect();
    all.sort();
    all
}

fn open_session(device: &Device) -> Child {
    let before = processes(device, true).len();
    let session = device
        .command(&["exec", "web", "-c", "beside", "--", "/bin/demo", "print", "in", "then", "sleep"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nodlet can be run");
    device.wait_for("the session's process", || processes(device, true).len() > before);
    session
}

/// Checks that no tick is missing and that none is printed twice.
fn check_ticks(device: &Device) {
    let text = device.nodlet(["logs", "tick"]).ok();
    for (number, line) in text.lines().enumerate() {
        assert_eq!(line, format!("tick {number}"));
    }
}

/// Checks that everything works as before: exits are reported, commands are executed, pods are deleted.
fn check_use(device: &Device, here: &Path) {
    check_ticks(device);
    assert_eq!(device.pod("web").demo("beside", "print hello").ok(), "hello\n");
    fs::write(here.join("go"), "").expect("it can be written");
    device.pod("job").wait_phase("Failed");
    let app = device.pod("job").container("job");
    assert_eq!((app.exit_code(), app.restart_count()), (Some(7), 0));
    assert_eq!(device.pod("job").logs("job"), "begun\ndone\n");
    for name in ["app", "server", "beside", "job"] {
        let starts = fs::read_to_string(here.join(format!("{name}-starts"))).expect("it ran");
        assert_eq!(starts.lines().count(), if name == "server" { 2 } else { 1 }, "{name}");
        assert!(!here.join(format!("{name}.twice")).exists(), "two of {name} at once");
    }
    device.remove_pod("web");
    check_ticks(device);
}

/// Upgrades to another binary while a session is open, and checks what the next agent finds.
fn upgrade(device: &mut Device, to: &Path) {
    let (lives_before, were) = (lives(device), processes(device, false));
    let mut session = open_session(device);
    let pids = |device: &Device| -> Vec<u32> {
        device.supervisors().into_values().map(|supervisor| supervisor.pid).collect()
    };
    let supervisors_before = pids(device);
    assert!(!supervisors_before.is_empty());
    let ticks = device.pod("tick").logs("app").lines().count();

    device.stop_agent();
    device.install(to);
    device.start_agent();

    device.wait_all_ready(["tick", "web"]);
    assert!(!session.wait().expect("it ends").success(), "its connection went to the agent before");
    device.wait_for("the sessions' processes to end", || processes(device, true).is_empty());
    assert_eq!(processes(device, false), were);
    assert_eq!(lives(device), lives_before);
    assert_eq!(pids(device), supervisors_before);
    device.wait_for("ticks to go on", || device.pod("tick").logs("app").lines().count() > ticks + 10);
    check_ticks(device);
}

fn runs_all_on(device: &Device, program: &Path) -> bool {
    device.supervisors().into_values().all(|supervisor| supervisor.executes == inode(program))
}

/// Open sessions of clients: container streams, terminals and forwarded ports.
struct Clients {
    attached: Child,
    input: ChildStdin,
    watched: Terminal,
    executed: Terminal,
    _forwarder: Forwarding,
    forwarded: TcpStream,
}

/// An attached client, and the lines of its output.
fn attach(device: &Device) -> (Child, ChildStdin, impl Iterator<Item = String>) {
    let mut attached = piped(device.command(&["attach", "-i", "talk"]));
    let input = attached.stdin.take().expect("it is piped");
    let lines = BufReader::new(attached.stdout.take().expect("it is piped")).lines();
    (attached, input, lines.map_while(Result::ok))
}

fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("it can be run")
}

/// A `port-forward` client, and a connection through it that has been answered.
fn forward(device: &Device) -> (Forwarding, TcpStream) {
    let forwarder = Forwarding::start(device.command(&["port-forward", "mirror", ":7000"]));
    let mut forwarded = forwarder.connect();
    forwarded.write_all(b"hello").expect("it is taken");
    let mut answer = [0; 5];
    forwarded.read_exact(&mut answer).expect("it answers");
    assert_eq!(&answer, b"hello");
    (forwarder, forwarded)
}

impl Clients {
    fn open(device: &Device) -> Clients {
        let container = |steps: &str, more: &str| manifest::container("app", steps, more);
        for (name, container) in [
            ("talk", container("print up then echo then sleep", "stdin: true")),
            ("screen", container("print up then echo then sleep", "stdin: true\ntty: true")),
            ("mirror", container("mirror 127.0.0.1:7000", "")),
        ] {
            device.run_pod_of(name, &[container], "");
        }
        device.pod("talk").wait_log("app", "up");
        device.pod("screen").wait_log("app", "up");
        device.pod("mirror").wait_log("app", "mirror");
        let (attached, mut input, mut lines) = attach(device);
        input.write_all(b"before\n").expect("the client reads");
        assert!(lines.any(|line| line == "before"), "the container answers");
        let mut watched = Terminal::start(device.command(&["attach", "-it", "screen"]));
        watched.wait_for("try pressing enter");
        watched.type_in("one\r");
        watched.wait_for("one\r\none\r\n");
        let mut executed =
            Terminal::start(device.command(&["exec", "-it", "talk", "--", "/bin/demo", "echo"]));
        executed.type_in("two\r");
        executed.wait_for("two\r\ntwo\r\n");
        let (_forwarder, forwarded) = forward(device);
        Clients { attached, input, watched, executed, _forwarder, forwarded }
    }

    /// Checks that the sessions end, since the agent that served them is gone.
    fn end(mut self) {
        assert!(!self.attached.wait().expect("it ends").success(), "a lost session is no success");
        drop(self.input);
        assert_ne!(self.watched.ended(), 0, "{}", self.watched.screen());
        assert_ne!(self.executed.ended(), 0, "{}", self.executed.screen());
        // The connection was closed or reset.
        assert_eq!(self.forwarded.read(&mut [0; 8]).unwrap_or(0), 0);
    }

    /// The containers notice nothing of the upgrade: new sessions work as before.
    fn come_again(device: &Device) {
        for pod in ["talk", "screen", "mirror"] {
            device.pod(pod).wait_ready();
            assert_eq!(device.pod(pod).container("app").restart_count(), 0, "{pod}");
        }
        let (mut attached, mut input, mut lines) = attach(device);
        input.write_all(b"after\n").expect("the client reads");
        assert!(lines.any(|line| line == "after"), "the container answers");
        drop(input);
        assert!(attached.wait().expect("it ends").success());
        assert_eq!(device.pod("talk").logs("app"), "up\nbefore\nafter\n");
        let mut watched = Terminal::start(device.command(&["attach", "-it", "screen"]));
        watched.wait_for("try pressing enter");
        watched.type_in("three\r");
        watched.wait_for("three\r\nthree\r\n");
        // Earlier input of the terminal is not repeated, and none of it is lost.
        assert_eq!(device.pod("screen").logs("app"), "up\r\none\r\none\r\nthree\r\nthree\r\n");
        let mut executed =
            Terminal::start(device.command(&["exec", "-it", "screen", "--", "/bin/demo", "echo"]));
        executed.type_in("four\r");
        executed.wait_for("four\r\nfour\r\n");
        executed.type_in("\u{4}");
        assert_eq!(executed.ended(), 0, "{}", executed.screen());
        forward(device);
    }
}

#[test]
fn a_newer_binary_takes_over_running_supervisors_and_no_container_notices() {
    let (mut device, here, _) = begin(|device| device.newer_binary("first"));
    let second = device.newer_binary("second");
    let clients = Clients::open(&device);
    upgrade(&mut device, &second);
    assert!(runs_all_on(&device, &second), "{:?}", device.supervisors());
    clients.end();
    Clients::come_again(&device);
    check_use(&device, &here);
}

/// The binary does not respond to the trial, or it cannot read the requests with which containers were
/// started.
#[test]
fn a_binary_that_cannot_take_over_leaves_supervisors_as_they_are_and_says_so() {
    for word in ["--parse", "upper_dir"] {
        let (mut device, here, first) = begin(|device| device.newer_binary("first"));
        let second = device.newer_binary("second");
        let incompatible = incompatible(&device, word);
        upgrade(&mut device, &incompatible);
        assert!(runs_all_on(&device, &first), "{:?}", device.supervisors());
        let said = "failed to replace the supervisor: the new binary cannot take over from this one; the supervisor keeps its binary";
        assert_eq!(device.agent_log().matches(said).count(), 3, "{}", device.agent_log());
        // A compatible binary can still take over from the first.
        upgrade(&mut device, &second);
        assert!(runs_all_on(&device, &second), "{:?}", device.supervisors());
        check_use(&device, &here);
    }
}

#[test]
#[ignore = "needs a binary of an earlier commit: cargo xtask long upgrade"]
fn this_binary_takes_over_what_one_of_an_earlier_commit_runs() {
    let earlier =
        std::env::var_os("NODLET_EARLIER").map(PathBuf::from).expect("cargo xtask long upgrade says it");
    let (mut device, here, _) = begin(|_| earlier.clone());
    // Some earlier binaries support neither input nor terminals.
    let attaches = device.nodlet(["--help"]).stdout.contains("attach");
    let clients = attaches.then(|| Clients::open(&device));
    upgrade(&mut device, &nodlet_program());
    assert!(runs_all_on(&device, &nodlet_program()), "{:?}", device.supervisors());
    if let Some(clients) = clients {
        clients.end();
        Clients::come_again(&device);
    }
    check_use(&device, &here);
    println!(
        "{}: taken over, {}",
        earlier.display(),
        if attaches { "clients and all" } else { "it knows no clients" }
    );
}
