use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::api::tests::{call, pods, with_api};
use crate::api::{ExecExit, ExecSession, Request};
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

/// Runs the API with a pod, and `client` in its own thread.
fn with_web(engine: impl FnMut(Request), client: impl FnOnce(PathBuf) + Send + 'static) {
    with_api(pods(&[("web", "Running")]), engine, client);
}

const EXEC: &str = "/api/v1/namespaces/default/pods/web/exec";

/// Upgrades a connection, and returns it with the head of the response.
fn upgraded(socket: &Path, request: &str, headers: &str) -> (UnixStream, String) {
    let mut stream = UnixStream::connect(socket).expect("the API listens");
    write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\n{headers}\r\n").expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).expect("a response"), 1, "{}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    (stream, head)
}

struct Client {
    stream: UnixStream,
    decoder: Decoder,
}

impl Client {
    fn start(socket: &Path, query: &str) -> Client {
        Client::speaking(socket, &format!("{EXEC}?{query}"), "v5.channel.k8s.io")
    }

    /// Executes a script of the shell, with the streams in `query`.
    fn script(socket: &Path, script: &str, query: &str) -> Client {
        let script: String = script.bytes().map(|byte| format!("%{byte:02x}")).collect();
        Client::start(socket, &format!("command=sh&command=-c&command={script}&{query}"))
    }

    fn speaking(socket: &Path, target: &str, protocol: &str) -> Client {
        let headers = format!(
            "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             sec-websocket-protocol: {protocol}\r\n"
        );
        let (stream, head) = upgraded(socket, &format!("GET {target}"), &headers);
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
    with_web(engine, |socket| {
        let script = "echo out; echo err >&2; exit 3";
        let (out, err, status) = Client::script(&socket, script, "stdout=1&stderr=1").finish();
        assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        let (_, _, status) = Client::start(&socket, "command=true&stdout=1").finish();
        assert_eq!(status, json!({"metadata": {}, "status": "Success"}));
        // The output is larger than a pipe, and the client reads it at the end.
        let (out, _, _) = Client::script(&socket, "head -c 1000000 /dev/zero", "stdout=1").finish();
        assert_eq!(out.len(), 1_000_000);
        // A child that outlives the process is waited for, with its output.
        let child = "(sleep 1; echo late)& echo started";
        let (out, _, status) = Client::script(&socket, child, "stdout=1").finish();
        assert_eq!((out.as_str(), &status["status"]), ("started\nlate\n", &json!("Success")));
        // One that keeps the pipe open and is silent is not waited for without end.
        let (out, _, _) = Client::script(&socket, "sleep 1000 & echo started $!", "stdout=1").finish();
        let pid = out.trim().strip_prefix("started ").and_then(|pid| pid.parse().ok()).expect("its number");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
            .expect("it runs");
    });
}

#[test]
fn input_reaches_the_process_until_the_client_closes_it() {
    with_web(engine, |socket| {
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
    with_web(engine, |socket| {
        // The first size arrives before the process starts; earlier keys are not lost.
        let mut shell = Client::script(&socket, "stty size; read x; echo got $x", "stdin=1&stdout=1&tty=1");
        shell.send(websocket::STDIN, b"early\n");
        shell.send(websocket::RESIZE, br#"{"Width":100,"Height":30}"#);
        let (out, _, _) = shell.finish();
        assert!(out.contains("30 100") && out.contains("got early"), "{out}");

        let mut shell = Client::script(&socket, "read x; stty size", "stdin=1&stdout=1&stderr=1&tty=1");
        shell.send(websocket::RESIZE, br#"{"Width":123,"Height":45}"#);
        shell.send(websocket::RESIZE, b"nonsense");
        shell.send(websocket::STDIN, b"go\n");
        let (out, _, status) = shell.finish();
        assert!(out.contains("45 123"), "{out}");
        assert_eq!(status["status"], "Success");
    });
}

#[test]
fn a_process_is_killed_when_its_client_disconnects_even_with_input_pending() {
    with_web(engine, |socket| {
        for is_pending in [false, true] {
            let query = if is_pending { "stdin=1&stdout=1" } else { "stdout=1" };
            let mut client = Client::script(&socket, "echo $$; exec sleep 1000", query);
            let mut out = Vec::new();
            while !out.ends_with(b"\n") {
                out.extend_from_slice(&client.next().expect("more").1[1..]);
            }
            let pid: i32 = String::from_utf8_lossy(&out).trim().parse().expect("a number");
            // The input is larger than a pipe, and no answer follows.
            client.stream.set_nonblocking(true).expect("it is open");
            let part = websocket::encode(Opcode::Binary, &[&[0], &[b'x'; 30_000]], Some([1, 2, 3, 4]));
            let ping = websocket::encode(Opcode::Ping, &[b"hi"], Some([1, 2, 3, 4]));
            let both = [part.as_slice(), &ping].concat();
            while is_pending && client.stream.write(&both).is_ok_and(|written| written > part.len()) {}
            drop(client);
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok() {
                assert!(std::time::Instant::now() < deadline, "it still runs");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    });
}

/// Executes a command over SPDY, with these streams and this input. Returns stdout, stderr and the status.
fn over_spdy(socket: &Path, query: &str, kinds: &[&str], input: &[u8]) -> [String; 3] {
    let headers = "upgrade: SPDY/3.1\r\nx-stream-protocol-version: v5.channel.k8s.io\r\n\
                   x-stream-protocol-version: v4.channel.k8s.io\r\n";
    let (mut stream, head) = upgraded(socket, &format!("POST {EXEC}?{query}"), headers);
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
    with_web(engine, |socket| {
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
    with_web(engine, |socket| {
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
    with_web(engine, |socket| {
        // After a rejected handshake, kubectl would try SPDY and report that it is not supported. What is rejected before
        // the handshake is in `api/tests/refused.txt`.
        for query in ["command=refused&stdout=1", "command=refused&stdout=1&tty=1"] {
            let (_, _, status) = Client::start(&socket, query).finish();
            assert_eq!(status["message"], "Internal error occurred: no such process", "{query}");
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
    with_web(engine, |socket| {
        // The process has closed its input, so that input is discarded as fast as it arrives.
        let script = "exec 0<&-; echo closed; exec sleep 1000";
        let mut client = Client::script(&socket, script, "stdin=1&stdout=1");
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
    with_web(engine, move |socket| {
        let attach = EXEC.replace("/exec", "/attach?stdin=true");
        let client = Client::speaking(&socket, &attach, "v5.channel.k8s.io");
        let flood = flooding.recv().expect("it was asked for");
        others_are_served(&socket, &flood);
        drop(client);
        flood.join().expect("no panic");
    });
}
