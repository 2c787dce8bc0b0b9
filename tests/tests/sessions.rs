//! Clients of `logs -f`, `attach`, `exec` and `port-forward` when the pod ends or another pod takes its name,
//! when the agent ends, and when there are a thousand clients. Both with nodlet's own verbs and with kubectl.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use nodlet_tests::{Device, Holdings, Kubectl, Memory, Terminal, manifest};

/// A command in the background, and its output so far.
struct Session {
    what: String,
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Session {
    fn start(what: &str, mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be run");
        let said = Arc::new(Mutex::new(String::new()));
        let outputs: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("it is piped")),
            Box::new(child.stderr.take().expect("it is piped")),
        ];
        for output in outputs {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    *said.lock().expect("no reader panics") += &format!("{line}\n");
                }
            });
        }
        Self { what: what.to_owned(), child, said }
    }

    fn said(&self) -> String {
        self.said.lock().expect("no reader panics").clone()
    }

    #[track_caller]
    fn wait_to_say(&self, device: &Device, text: &str) {
        device.wait_for(&format!("{} to say {text:?}; it said {:?}", self.what, self.said()), || {
            self.said().contains(text)
        });
    }

    /// Waits for the command to end, and checks its exit code and that its output contains `text`.
    #[track_caller]
    fn ends(mut self, device: &Device, code: i32, text: &str) {
        let mut ended = None;
        device.wait_for(&format!("{} to end", self.what), || {
            ended = self.child.try_wait().expect("a child can be waited for");
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.code()), Some(code), "{}: {}", self.what, self.said());
        self.wait_to_say(device, text);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A new connection to the local port from which the session forwards.
fn connect(device: &Device, session: &Session) -> TcpStream {
    session.wait_to_say(device, "Forwarding from 127.0.0.1:");
    let said = session.said();
    let port = said.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
    let port: u16 = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    TcpStream::connect(("127.0.0.1", port)).expect("it listens")
}

const STEPS: &str = "mirror 127.0.0.1:7000";

/// The pod of all sessions: it prints without end, serves a port, and ends at once.
fn pod(name: &str) -> String {
    pod_that_ticks(name, "0.05")
}

/// A pod that prints a line every `seconds`.
fn pod_that_ticks(name: &str, seconds: &str) -> String {
    let tick = manifest::container("tick", &format!("print tick {seconds}"), "");
    let app = manifest::container("app", STEPS, "");
    manifest::pod_of(name, &[tick, app], "terminationGracePeriodSeconds: 1")
}

/// Four sessions by one program, and a forwarded connection.
struct Four {
    logs: Session,
    attach: Session,
    exec: Session,
    forward: Session,
    connection: TcpStream,
}

impl Four {
    fn start(device: &Device, who: &str, program: &dyn Fn(&[&str]) -> Command, pod: &str) -> Four {
        let start = |words: &[&str]| Session::start(&format!("{who} {}", words.join(" ")), program(words));
        let logs = start(&["logs", "-f", pod, "-c", "tick"]);
        let attach = start(&["attach", pod, "-c", "tick"]);
        let exec = start(&["exec", pod, "-c", "app", "--", "/bin/demo", "print", "in", "then", "sleep"]);
        let forward = start(&["port-forward", "--address=127.0.0.1", pod, ":7000"]);
        logs.wait_to_say(device, "tick ");
        attach.wait_to_say(device, "tick ");
        exec.wait_to_say(device, "in\n");
        let connection = connect(device, &forward);
        say(&connection, "hello");
        Four { logs, attach, exec, forward, connection }
    }

    /// Waits for the ends of all sessions, with their pod, but for that of the forwarder, and returns that.
    #[track_caller]
    fn end_with_pod(self, device: &Device) -> Session {
        self.logs.ends(device, 0, "tick ");
        self.attach.ends(device, 0, "tick ");
        self.exec.ends(device, 137, "command terminated with exit code 137");
        is_cut(self.connection);
        self.forward
    }
}

/// Sends a word over a connection to a mirror, and receives it back.
fn say(mut connection: &TcpStream, word: &str) {
    connection.write_all(word.as_bytes()).expect("it is open");
    let mut back = vec![0; word.len()];
    connection.read_exact(&mut back).expect("it answers");
    assert_eq!(back, word.as_bytes());
}

/// Checks that a connection to a pod that is gone is closed.
fn is_cut(mut connection: TcpStream) {
    let mut rest = Vec::new();
    let _ = connection.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

#[test]
fn deleting_a_pod_ends_all_of_its_sessions() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    for (who, program) in programs(&device, &kubectl) {
        device.write_pod("web", &pod("web")).wait_ready();
        let four = Four::start(&device, who, &program, "web");
        device.remove_manifest("web.yaml");
        let forward = four.end_with_pod(&device);
        device.pod("web").wait_gone();
        match who {
            "kubectl" => forward.ends(&device, 1, "lost connection to pod"),
            // The session forwards to any pod with the name, so one more connection may be accepted.
            _ => {
                is_cut(connect(&device, &forward));
                forward.wait_to_say(&device, "pods \"web\" not found");
            }
        }
    }
    assert_eq!(Holdings::of(&device).zombies, 0);
}

#[test]
fn sessions_end_with_their_pod_and_do_not_move_to_its_replacement() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    for (who, program) in programs(&device, &kubectl) {
        device.write_pod("web", &pod("web")).wait_ready();
        let before = device.pod("web").uid();
        let four = Four::start(&device, who, &program, "web");
        // Another manifest with the same name: the old pod ends, and then the new one starts.
        device.write_manifest("web.yaml", &pod("web").replace("\"tick\"", "\"tock\""));
        let forward = four.end_with_pod(&device);
        device.wait_for("the next pod", || device.pod("web").uid() != before && device.pod("web").is_ready());
        match who {
            "kubectl" => forward.ends(&device, 1, "lost connection to pod"),
            _ => say(&connect(&device, &forward), "again"),
        }
        device.remove_pod("web");
    }
}

type Program<'a> = Box<dyn Fn(&[&str]) -> Command + 'a>;

fn programs<'a>(device: &'a Device, kubectl: &'a Kubectl) -> [(&'static str, Program<'a>); 2] {
    [
        ("nodlet", Box::new(|words| device.command(words))),
        (
            "kubectl",
            Box::new(|words| {
                let mut command = kubectl.command([]);
                command.args(words);
                command
            }),
        ),
    ]
}

#[test]
fn a_terminal_is_given_back_when_the_agent_goes_and_the_container_waits_for_the_next() {
    let mut device = Device::start();
    device.write_single("web", "print up then echo", "stdin: true\ntty: true", "").wait_log("app", "up");
    let born = device.pod("web").born("app");
    for how in ["it is killed", "it ends"] {
        let words = ["exec", "-it", "web", "--", "/bin/demo", "print", "in", "then", "sleep"];
        let kubectl = Kubectl::new(&device);
        let mut terminals = [
            ("our attach", Terminal::start(device.command(&["attach", "-it", "web"]))),
            ("our exec", Terminal::start(device.command(&words))),
            ("kubectl's attach", Terminal::start(kubectl.command(["attach", "-it", "web"]))),
            ("kubectl's exec", Terminal::start(kubectl.command(words))),
        ];
        for (who, terminal) in &mut terminals {
            if who.ends_with("attach") {
                terminal.wait_for("try pressing enter");
                terminal.type_in(&format!("{who}\r"));
                terminal.wait_for(&format!("{who}\r\n{who}\r\n"));
            } else {
                terminal.wait_for("in\r\n");
            }
            assert!(!is_cooked(terminal), "{who}: keys are handed on as they are typed");
        }
        match how {
            "it ends" => assert_eq!(device.stop_agent(), 0),
            _ => device.kill_agent(),
        }
        for (who, terminal) in &mut terminals {
            assert_eq!(terminal.ended(), 1, "{who}, when {how}: {}", terminal.screen());
            assert!(is_cooked(terminal), "{who}, when {how}");
            if who.starts_with("our") {
                terminal.wait_for("\r\nerror: the connection to the agent was lost\r\n");
            }
        }
        device.start_agent();
        device.pod("web").wait_ready();
        device.wait_for("what was executed to be gone", || device.container_processes().len() == 1);
        let mut terminal = Terminal::start(device.command(&["attach", "-it", "web"]));
        terminal.wait_for("try pressing enter");
        terminal.type_in("again\r");
        terminal.wait_for("again\r\nagain\r\n");
        terminal.type_in("\u{10}\u{11}");
        assert_eq!(terminal.ended(), 0, "{}", terminal.screen());
    }
    assert_eq!(device.pod("web").born("app"), born, "it is the same process");
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
}

#[test]
fn a_verb_that_a_signal_ends_restores_the_terminal() {
    let device = Device::start();
    device.run_pod("web", "sleep").wait_ready();
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let words = ["exec", "-it", "web", "--", "/bin/demo", "print", "in", "then", "sleep"];
        let mut terminal = Terminal::start(device.command(&words));
        terminal.wait_for("in\r\n");
        assert!(!is_cooked(&terminal));
        kill(Pid::from_raw(terminal.pid().cast_signed()), signal).expect("it runs");
        assert_eq!(terminal.ended(), 128 + signal as i32, "{}", terminal.screen());
        assert!(is_cooked(&terminal), "{signal}");
    }
}

/// Whether the terminal is in canonical mode with echo and signals, as for a shell.
fn is_cooked(terminal: &Terminal) -> bool {
    let flags = tcgetattr(terminal.keyboard()).expect("it is a terminal").local_flags;
    flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
}

/// KiB that an agent may use in addition while it serves as many clients as may stay and rejects as many
/// others: about one and a half times what was measured on x86-64, pages of the binary included.
const SERVING: u64 = 2816;

/// The agent's limit, minus the client with which each device follows its ring.
const STAYING: usize = 48 - 1;

#[test]
fn a_thousand_at_once_are_served_or_refused_and_the_pod_notices_nothing() {
    let device = Device::start();
    // None of the clients reads. The limit for the output that is kept for them meanwhile, on a slow machine
    // for minutes, is tested in `bounded.rs`.
    device.write_pod("web", &pod_that_ticks("web", "10")).wait_ready();
    let born = device.pod("web").born("app");
    Memory::forget_peak(device.agent_pid());
    let before = Memory::of(device.agent_pid());
    let path = "GET /api/v1/namespaces/default/pods/web";
    let websocket = |protocol: &str| {
        format!(
            "HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )
    };
    let (streams, ports) = (websocket("v5.channel.k8s.io"), websocket("SPDY/3.1+portforward.k8s.io"));
    let requests = [
        format!("{path}/log?follow=true&container=tick HTTP/1.1\r\nHost: x\r\n\r\n"),
        format!("{path}/attach?container=tick&stdout=true {streams}"),
        format!("{path}/exec?container=app&command=/bin/demo&command=sleep&stdout=true {streams}"),
        format!("{path}/portforward {ports}"),
    ];
    let (mut served, mut refused) = (Vec::new(), 0);
    for number in 0..1000 {
        let mut client = UnixStream::connect(device.socket()).expect("the API listens");
        client.write_all(requests[number % requests.len()].as_bytes()).expect("it is taken");
        let mut answer = [0; 12];
        client.read_exact(&mut answer).expect("it is answered");
        match &answer {
            b"HTTP/1.1 200" | b"HTTP/1.1 101" => served.push(client),
            b"HTTP/1.1 429" => refused += 1,
            other => panic!("{}", other.escape_ascii()),
        }
    }
    // More are served than stay connected: a container accepts sixteen clients and disconnects the next.
    println!("{} served, {refused} of 1000 refused", served.len());
    assert!(served.len() >= STAYING && refused >= 500, "{refused}");
    let memory = Memory::of(device.agent_pid());
    println!("{} KiB before, {} KiB at most, {} KiB after", before.now, memory.peak, memory.now);
    assert!(memory.peak < before.now + SERVING, "the agent took {} KiB more", memory.peak - before.now);
    assert!(device.nodlet(["get", "pod", "web"]).code == 0, "who only asks is answered");
    drop(served);
    device.wait_for("what was executed to be gone", || device.container_processes().len() == 2);
    let last = Session::start("the last", device.command(&["logs", "-f", "web", "-c", "tick"]));
    last.wait_to_say(&device, "tick ");
    assert_eq!(device.pod("web").born("app"), born);
    assert!(["tick", "app"].iter().all(|name| device.pod("web").container(name).restart_count() == 0));
}

#[test]
fn followers_that_hang_make_room_for_those_that_read() {
    let device = Device::start();
    // More than a connection can buffer: a client that does not read it blocks the connection.
    device.run_pod("web", "spam 5000000 then print end then sleep").wait_log("app", "\nend\n");
    let hang: Vec<UnixStream> = (0..STAYING)
        .map(|_| {
            let mut client = UnixStream::connect(device.socket()).expect("the API listens");
            let path = "/api/v1/namespaces/default/pods/web/log?follow=true";
            write!(client, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is taken");
            let mut answer = [0; 12];
            client.read_exact(&mut answer).expect("it is answered");
            assert_eq!(&answer, b"HTTP/1.1 200");
            client
        })
        .collect();
    // kubectl retries when the agent reports too many requests, and so does this test.
    let mut follower = None;
    device.wait_for("one more to follow", || {
        let session = Session::start("one more", device.command(&["logs", "-f", "--tail=1", "web"]));
        while session.said().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let follows = session.said() == "end\n";
        follower = Some(session);
        follows
    });
    drop(hang);
}

/// An SSH server gives `nodlet connect` pipes.
#[test]
fn a_connection_by_pipes_passes_each_response_before_the_next_one_is_there() {
    const REQUESTS: usize = 100;
    let device = Device::start();
    let mut child = device
        .command(&["connect"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be run");
    let (mut to, mut from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let (tells, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let _ = tells.send(bytes[..length].to_vec());
        }
    });
    for number in 0..REQUESTS {
        write!(to, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is taken");
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\nok") {
            let piece = told.recv_timeout(std::time::Duration::from_secs(60));
            response
                .extend(piece.unwrap_or_else(|_| panic!("request {number} has no response: {response:?}")));
        }
    }
    drop(to);
    assert!(child.wait().expect("it ends").success());
}
