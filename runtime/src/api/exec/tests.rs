use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use serde_json::{Value, json};

use crate::api::tests::{Root, call, key, pod, with_api};
use crate::api::{ExecExit, ExecSession, Request};
use nodlet_registry::objects::Objects;
use nodlet_wire::spdy;
use nodlet_wire::websocket::{self, Decoder, Opcode, Role};

/// An engine that executes commands on this machine instead of in a container.
fn engine(request: Request) {
    let Request::Exec { command, tty, size, stdio, reply, .. } = request else { panic!("{request:?}") };
    if command[0] == "refused" {
        let _ = reply.try_send(Err(crate::api::Status::internal("no such process")));
        return;
    }
    let (ended, exit) = async_channel::bounded(1);
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]);
    let mut terminal = None;
    if tty {
        let size =
            size.map(|(ws_col, ws_row)| nix::pty::Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 });
        let pty = nix::pty::openpty(size.as_ref(), None).expect("a terminal");
        for set in [Command::stdin, Command::stdout, Command::stderr] {
            set(&mut process, pty.slave.try_clone().expect("a descriptor"));
        }
        terminal = Some(pty.master);
    } else {
        let [stdin, stdout, stderr] = stdio.map(|end| end.map_or_else(Stdio::null, Stdio::from));
        process.stdin(stdin).stdout(stdout).stderr(stderr);
    }
    let mut child: Child = process.spawn().expect("it can be executed");
    drop(process);
    std::thread::spawn(move || {
        // The test polls, because it must not block on a child that it has to kill.
        loop {
            if ended.is_closed() {
                let _ = child.kill();
            }
            if let Some(status) = child.try_wait().expect("a child") {
                let _ = ended.try_send(ExecExit::Code(status.code().unwrap_or(137)));
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let _ = reply.try_send(Ok(ExecSession { terminal, exit }));
}

fn objects() -> Rc<Objects> {
    let mut web = pod("web", "Running");
    web["status"]["containerStatuses"] = json!([{"name": "app", "state": {"running": {}}}]);
    let objects = Rc::new(Objects::new(0));
    objects.put(key("web"), web);
    objects.put(key("idle"), pod("idle", "Pending"));
    objects.put(key("done"), pod("done", "Succeeded"));
    objects
}

const EXEC: &str = "/api/v1/namespaces/default/pods/web/exec";

struct Client {
    stream: UnixStream,
    decoder: Decoder,
}

impl Client {
    fn start(socket: &Path, query: &str) -> Client {
        Client::of(socket, &format!("{EXEC}?{query}"))
    }

    fn of(socket: &Path, target: &str) -> Client {
        Client::speaking(socket, target, "v5.channel.k8s.io")
    }

    fn speaking(socket: &Path, target: &str, protocol: &str) -> Client {
        let mut stream = UnixStream::connect(socket).expect("the API listens");
        write!(
            stream,
            "GET {target} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             sec-websocket-protocol: {protocol}\r\n\r\n"
        )
        .expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).expect("a response"), 1, "{}", String::from_utf8_lossy(&head));
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        assert!(head.starts_with("http/1.1 101"), "{head}");
        assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        assert!(head.contains(&format!("sec-websocket-protocol: {protocol}\r\n")), "{head}");
        Client { stream, decoder: Decoder::new(Role::Client) }
    }

    fn send(&mut self, channel: u8, bytes: &[u8]) {
        let frame = websocket::encode(Opcode::Binary, &[&[channel], bytes], Some([9, 8, 7, 6]));
        self.stream.write_all(&frame).expect("sent");
    }

    fn next(&mut self) -> Option<(Opcode, Vec<u8>)> {
        loop {
            if let Some(message) = self.decoder.message().expect("well-formed") {
                return Some((message.opcode, message.payload));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.decoder.push(&bytes[..read]),
            }
        }
    }

    /// Returns stdout, stderr and the status, at the end.
    fn finish(mut self) -> (String, String, Value) {
        let (mut out, mut err, mut status) = (Vec::new(), Vec::new(), Value::Null);
        while let Some((opcode, payload)) = self.next() {
            match (opcode, payload.split_first()) {
                (Opcode::Binary, Some((1, bytes))) => out.extend_from_slice(bytes),
                (Opcode::Binary, Some((2, bytes))) => err.extend_from_slice(bytes),
                (Opcode::Binary, Some((3, bytes))) => {
                    status = serde_json::from_slice(bytes).expect("a Status")
                }
                (Opcode::Close, _) => break,
                other => panic!("{other:?}"),
            }
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(out), text(err), status)
    }
}

#[test]
fn output_and_exit_code_come_back() {
    with_api(&Root::new(), objects(), engine, |socket| {
        let script = "command=sh&command=-c&command=echo+out%3B+echo+err+%3E%262%3B+exit+3";
        let (out, err, status) = Client::start(&socket, &format!("{script}&stdout=1&stderr=1")).finish();
        assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        let (_, _, status) = Client::start(&socket, "command=true&stdout=1").finish();
        assert_eq!(status, json!({"metadata": {}, "status": "Success"}));
        // The output is larger than a pipe, and the client reads it at the end.
        let large = "command=sh&command=-c&command=head+-c+1000000+/dev/zero";
        let (out, _, _) = Client::start(&socket, &format!("{large}&stdout=1")).finish();
        assert_eq!(out.len(), 1_000_000);
        // A child that outlives the process is waited for, with its output.
        let child = "command=sh&command=-c&command=(sleep+1;+echo+late)%26+echo+started";
        let (out, _, status) = Client::start(&socket, &format!("{child}&stdout=1")).finish();
        assert_eq!((out.as_str(), &status["status"]), ("started\nlate\n", &json!("Success")));
        // One that keeps the pipe open and is silent is not waited for without end.
        let daemon = "command=sh&command=-c&command=sleep+1000+%26+echo+started+$!";
        let (out, _, _) = Client::start(&socket, &format!("{daemon}&stdout=1")).finish();
        let pid = out.trim().strip_prefix("started ").and_then(|pid| pid.parse().ok()).expect("its number");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
            .expect("it runs");
    });
}

#[test]
fn input_reaches_the_process_until_the_client_closes_it() {
    with_api(&Root::new(), objects(), engine, |socket| {
        let mut cat = Client::start(&socket, "command=cat&stdin=1&stdout=1");
        let text = "x".repeat(100_000);
        // Data flows in both directions at once: neither side may wait for the other.
        let mut writing = cat.stream.try_clone().expect("a descriptor");
        let sent = text.clone();
        let writer = std::thread::spawn(move || {
            for part in sent.as_bytes().chunks(30_000) {
                let frame = websocket::encode(Opcode::Binary, &[&[0], part], Some([1, 2, 3, 4]));
                writing.write_all(&frame).expect("sent");
            }
        });
        let ping = websocket::encode(Opcode::Ping, &[b"hi"], Some([1, 2, 3, 4]));
        writer.join().expect("no panic");
        cat.stream.write_all(&ping).expect("sent");
        let (mut out, mut pong) = (Vec::new(), false);
        while out.len() < text.len() || !pong {
            match cat.next().expect("more") {
                (Opcode::Pong, payload) => pong = payload == b"hi",
                (_, payload) => out.extend_from_slice(&payload[1..]),
            }
        }
        cat.send(websocket::CLOSE, &[websocket::STDIN]);
        let (_, _, status) = cat.finish();
        assert_eq!(status["status"], "Success");
    });
}

#[test]
fn a_terminal_has_a_size() {
    with_api(&Root::new(), objects(), engine, |socket| {
        // The first size arrives before the process starts; earlier keys are not lost.
        let mut shell = Client::start(
            &socket,
            "command=sh&command=-c&command=stty+size%3B+read+x%3B+echo+got+$x&stdin=1&stdout=1&tty=1",
        );
        shell.send(websocket::STDIN, b"early\n");
        shell.send(websocket::RESIZE, br#"{"Width":100,"Height":30}"#);
        let (out, _, _) = shell.finish();
        assert!(out.contains("30 100") && out.contains("got early"), "{out}");

        let mut shell = Client::start(
            &socket,
            "command=sh&command=-c&command=read+x%3B+stty+size&stdin=1&stdout=1&stderr=1&tty=1",
        );
        shell.send(websocket::RESIZE, br#"{"Width":123,"Height":45}"#);
        shell.send(websocket::RESIZE, b"nonsense");
        shell.send(websocket::STDIN, b"go\n");
        let (out, _, status) = shell.finish();
        assert!(out.contains("45 123"), "{out}");
        assert_eq!(status["status"], "Success");
    });
}

#[test]
fn a_process_is_killed_when_its_exec_client_disconnects() {
    with_api(&Root::new(), objects(), engine, |socket| {
        let mut client =
            Client::start(&socket, "command=sh&command=-c&command=echo+$$%3B+exec+sleep+1000&stdout=1");
        let mut out = Vec::new();
        while !out.ends_with(b"\n") {
            out.extend_from_slice(&client.next().expect("more").1[1..]);
        }
        let pid: i32 = String::from_utf8_lossy(&out).trim().parse().expect("a number");
        drop(client);
        wait_until_gone(pid);
    });
}

#[test]
fn a_process_is_killed_when_its_client_disconnects_with_input_pending() {
    with_api(&Root::new(), objects(), engine, |socket| {
        let mut client = Client::start(
            &socket,
            "command=sh&command=-c&command=echo+$$%3B+exec+sleep+1000&stdin=1&stdout=1",
        );
        let mut out = Vec::new();
        while !out.ends_with(b"\n") {
            out.extend_from_slice(&client.next().expect("more").1[1..]);
        }
        let pid: i32 = String::from_utf8_lossy(&out).trim().parse().expect("a number");
        // The input is larger than a pipe, and no answer follows.
        client.stream.set_nonblocking(true).expect("it is open");
        let part = websocket::encode(Opcode::Binary, &[&[0], &[b'x'; 30_000]], Some([1, 2, 3, 4]));
        let ping = websocket::encode(Opcode::Ping, &[b"hi"], Some([1, 2, 3, 4]));
        while client
            .stream
            .write(&[part.as_slice(), &ping].concat())
            .is_ok_and(|written| written > part.len())
        {}
        drop(client);
        wait_until_gone(pid);
    });
}

fn wait_until_gone(pid: i32) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok() {
        assert!(std::time::Instant::now() < deadline, "it still runs");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Executes a command over SPDY, with these streams and this input. Returns stdout, stderr and the status.
fn over_spdy(socket: &Path, query: &str, kinds: &[&str], input: &[u8]) -> [String; 3] {
    let mut stream = UnixStream::connect(socket).expect("the API listens");
    let head = format!(
        "POST {EXEC}?{query} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\
         x-stream-protocol-version: v5.channel.k8s.io\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).expect("a response"), 1, "{}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("x-stream-protocol-version: v4.channel.k8s.io"), "{head}");
    let mut encoder = spdy::Encoder::default();
    for (kind, number) in kinds.iter().zip((1..).step_by(2)) {
        stream.write_all(&encoder.open(number, &[("streamtype", kind)], false)).expect("sent");
    }
    if let Some(stdin) = kinds.iter().position(|kind| *kind == "stdin") {
        let stdin = stdin as u32 * 2 + 1;
        let frames = [spdy::data(stdin, input, false), spdy::pong(7), spdy::data(stdin, &[], true)];
        stream.write_all(&frames.concat()).expect("sent");
    }
    let (mut decoder, mut texts, mut open) = (spdy::Decoder::default(), [const { String::new() }; 3], 0);
    let outputs = ["stdout", "stderr", "error"];
    open += kinds.iter().filter(|kind| outputs.contains(*kind)).count();
    while open > 0 {
        while let Some(frame) = decoder.frame().expect("SPDY") {
            let spdy::Frame::Data { stream, bytes, fin } = frame else { continue };
            let output =
                outputs.iter().position(|kind| *kind == kinds[stream as usize / 2]).expect("an output");
            texts[output].push_str(&String::from_utf8_lossy(&bytes));
            open -= usize::from(fin);
        }
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).expect("more");
        assert!(read > 0 || open == 0, "ended early: {texts:?}");
        decoder.push(&bytes[..read]);
    }
    texts
}

#[test]
fn a_process_is_executed_over_spdy() {
    with_api(&Root::new(), objects(), engine, |socket| {
        let script = "command=sh&command=-c&command=cat%3B+echo+err+%3E%262%3B+exit+3";
        let query = format!("{script}&stdin=1&stdout=1&stderr=1");
        let [out, err, status] =
            over_spdy(&socket, &query, &["error", "stdin", "stdout", "stderr"], b"some input");
        assert_eq!((out.as_str(), err.as_str()), ("some input", "err\n"));
        assert!(status.contains("NonZeroExitCode"), "{status}");
        let [_, _, status] = over_spdy(&socket, "command=true&stdout=1", &["stdout", "error"], b"");
        assert_eq!(status, r#"{"metadata":{},"status":"Success"}"#);
        let [_, _, status] = over_spdy(&socket, "command=refused&stdout=1", &["error", "stdout"], b"");
        assert!(status.contains("no such process"), "{status}");
    });
}

#[test]
fn the_first_protocol_has_only_the_texts_of_failures() {
    with_api(&Root::new(), objects(), engine, |socket| {
        for (command, expected) in
            [("command=refused", "Internal error occurred: no such process"), ("command=true", "")]
        {
            let target = format!("{EXEC}?{command}&stdout=1");
            let mut client = Client::speaking(&socket, &target, "channel.k8s.io");
            let mut result = String::new();
            while let Some((Opcode::Binary, payload)) = client.next() {
                if payload[0] == 3 {
                    result.push_str(&String::from_utf8_lossy(&payload[1..]));
                }
            }
            assert_eq!(result, expected, "{command}");
        }
    });
}

#[test]
fn exec_failures_are_reported_where_kubectl_shows_them() {
    with_api(&Root::new(), objects(), engine, |socket| {
        // After a rejected handshake, kubectl would try SPDY and report that it is not supported.
        for query in ["command=refused&stdout=1", "command=refused&stdout=1&tty=1"] {
            let (_, _, status) = Client::start(&socket, query).finish();
            assert_eq!(status["message"], "Internal error occurred: no such process", "{query}");
        }
        let websocket = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                         sec-websocket-key: eA==\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n";
        let old = websocket.replace("v5.", "v1.");
        let spdy = "connection: Upgrade\r\nupgrade: SPDY/3.1\r\n";
        let (other, done) = (EXEC.replace("web", "idle"), EXEC.replace("web", "done"));
        let ports = EXEC.replace("/exec", "/portforward");
        for (target, query, headers, code, expected) in [
            (EXEC, "command=sh&stdout=1", "", 400, "Upgrade request required"),
            (
                EXEC,
                "command=sh&stdout=1",
                spdy,
                400,
                "x-stream-protocol-version must contain v4.channel.k8s.io",
            ),
            (EXEC, "command=sh&stdout=1", &old, 400, "none of the subprotocols"),
            (EXEC, "stdout=1", websocket, 400, "command: Required value"),
            (EXEC, "command=sh", websocket, 400, "at least 1 of stdin, stdout, stderr"),
            (
                EXEC,
                "command=sh&stdout=1&container=db",
                websocket,
                400,
                "container db is not valid for pod web",
            ),
            (EXEC, "command=a%00b&stdout=1", websocket, 400, "none with a NUL byte"),
            (&other, "command=sh&stdout=1", websocket, 400, "is not running"),
            (&other, "command=sh&stdout=1", spdy, 400, "is not running"),
            (
                &done,
                "command=sh&stdout=1",
                websocket,
                400,
                "cannot exec into a container in a completed pod; current phase is Succeeded",
            ),
            (
                &done.replace("/exec", "/attach"),
                "stdout=1",
                websocket,
                400,
                "cannot attach a container in a completed pod; current phase is Succeeded",
            ),
            (&ports, "", spdy, 400, "x-stream-protocol-version must contain portforward.k8s.io"),
            (&ports, "", websocket, 400, "is supported: use SPDY/3.1+portforward.k8s.io"),
        ] {
            let (answered, body) = call(&socket, "GET", &format!("{target}?{query}"), headers, "");
            assert_eq!(answered, code, "{query}: {body}");
            assert!(body.contains(expected), "{query}: {body}");
        }
    });
}

/// Asserts that other clients are served, as long as `busy` keeps a client's thread busy.
fn others_are_served(socket: &Path, busy: &std::thread::JoinHandle<()>) {
    for _ in 0..20 {
        assert_eq!(call(socket, "GET", "/version", "", "").0, 200);
    }
    assert!(!busy.is_finished(), "nobody was in their way");
}

/// The duration of a flood that is not ended.
const FLOOD: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn a_client_that_sends_continuously_delays_no_other_client() {
    with_api(&Root::new(), objects(), engine, |socket| {
        // The process has closed its input, so that input is discarded as fast as it arrives.
        let script = "command=sh&command=-c&command=exec+0%3C%26-%3B+echo+closed%3B+exec+sleep+1000";
        let mut client = Client::start(&socket, &format!("{script}&stdin=1&stdout=1"));
        while client.next().expect("more").1 != b"\x01closed\n" {}
        let mut stream = client.stream.try_clone().expect("a descriptor");
        let flood = std::thread::spawn(move || {
            let frame = websocket::encode(Opcode::Binary, &[&[0], &[b'x'; 30_000]], Some([0; 4]));
            let until = std::time::Instant::now() + FLOOD;
            while std::time::Instant::now() < until && stream.write_all(&frame).is_ok() {}
        });
        others_are_served(&socket, &flood);
        client.stream.shutdown(std::net::Shutdown::Both).expect("it is open");
        flood.join().expect("no panic");
    });
}

#[test]
fn unread_output_delays_no_other_client() {
    let (say, flooding) = std::sync::mpsc::channel();
    let engine = move |request| {
        let Request::Attach { stdio: [_, stdout, _], reply, .. } = request else { panic!("{request:?}") };
        let mut stdout = std::fs::File::from(stdout.expect("there is always one"));
        let flood = std::thread::spawn(move || {
            let until = std::time::Instant::now() + FLOOD;
            while std::time::Instant::now() < until && stdout.write_all(&[b'x'; 30_000]).is_ok() {}
        });
        say.send(flood).expect("the client waits for it");
        let _ = reply.try_send(Ok(None));
    };
    with_api(&Root::new(), objects(), engine, move |socket| {
        let client = Client::of(&socket, &EXEC.replace("/exec", "/attach?stdin=true"));
        let flood = flooding.recv().expect("it was asked for");
        others_are_served(&socket, &flood);
        drop(client);
        flood.join().expect("no panic");
    });
}
