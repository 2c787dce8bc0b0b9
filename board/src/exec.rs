//! `nodlet exec`: a command in a running container, as if it ran here: with
//! this terminal, this input and its exit code.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use lexopt::{Parser, ValueExt};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nodlet_runtime::api::websocket::{self, Decoder, Opcode, Role};
use serde_json::Value;

use crate::arguments::{Context, Flag, switch};
use crate::client::{Client, Response, encode, explain};
use crate::{Failure, Outcome, Verb, containers};

pub(crate) const VERB: Verb = Verb {
    name: "exec",
    summary: "Run a command in a container",
    help: "\
Run a command in a running container. Ends with the exit code of the command.

Usage: nodlet exec POD [-c CONTAINER] [flags] -- COMMAND [ARGUMENTS...]

Examples:
  # One command
  nodlet exec web -- cat /etc/hosts

  # A shell
  nodlet exec -it web -c app -- sh

Flags:
  -c, --container NAME    in this container
  -i, --stdin             pass on standard input
  -n, --namespace NAME    of this namespace instead of default
  -t, --tty               give it a terminal
      --root DIR          of the agent of this root
",
    run,
};

#[derive(Debug, Default, PartialEq, Eq)]
struct Exec {
    pod: String,
    container: Option<String>,
    stdin: bool,
    tty: bool,
    command: Vec<String>,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let mut exec = Exec::parse(&mut context, &mut parser)?;
    let client = Client::new(&context.root);
    if exec.container.is_none() {
        exec.container = containers::default(&context, &client, &exec.pod)?;
    }
    if exec.tty && tcgetattr(io::stdin().as_fd()).is_err() {
        eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
        exec.tty = false;
    }
    let connection = exec.connect(&context, &client)?;
    // Before there is another thread, so that only the one that waits for it gets it.
    let mut resized = SigSet::empty();
    resized.add(Signal::SIGWINCH);
    resized.thread_block().map_err(io::Error::from)?;
    let raw = if exec.tty { Some(Raw::new()?) } else { None };
    let ended = exec.talk(connection, resized);
    drop(raw);
    ended
}

impl Exec {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Exec, Failure> {
        let mut exec = Exec::default();
        let mut values: Vec<String> = Vec::new();
        loop {
            // What is behind `--` is the command, whatever it looks like.
            if parser.try_raw_args().is_some_and(|raw| raw.peek().is_some_and(|next| next == "--")) {
                for value in parser.raw_args()?.skip(1) {
                    exec.command.push(value.string()?);
                }
                break;
            }
            let Some(argument) = parser.next()? else { break };
            if let lexopt::Arg::Value(value) = argument {
                values.push(value.string()?);
                continue;
            }
            match Flag::from(argument) {
                Flag::Short('c') => exec.container = Some(parser.value()?.string()?),
                Flag::Short('i') => exec.stdin = true,
                Flag::Short('t') => exec.tty = true,
                Flag::Long(name) => match name.as_str() {
                    "container" => exec.container = Some(parser.value()?.string()?),
                    "stdin" => exec.stdin = switch(parser)?,
                    "tty" => exec.tty = switch(parser)?,
                    _ => context.namespaced(&Flag::Long(name), parser)?,
                },
                other => context.namespaced(&other, parser)?,
            }
        }
        let mut values = values.into_iter();
        let pod = values
            .next()
            .ok_or_else(|| context.wrong_use("pod, type/name or --filename must be specified"))?;
        exec.pod = containers::pod_name(&pod)?;
        if values.next().is_some() {
            return Err(Failure::new(format!(
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead: nodlet exec {pod} -- COMMAND"
            )));
        }
        if exec.command.is_empty() {
            return Err(context.wrong_use("you must specify at least one command for the container"));
        }
        Ok(exec)
    }

    fn target(&self, context: &Context) -> String {
        let mut target = format!(
            "/api/v1/namespaces/{}/pods/{}/exec?stdin={}&stdout=true&stderr={}&tty={}",
            encode(&context.namespace),
            encode(&self.pod),
            self.stdin,
            !self.tty,
            self.tty
        );
        if let Some(container) = &self.container {
            target.push_str(&format!("&container={}", encode(container)));
        }
        for argument in &self.command {
            target.push_str(&format!("&command={}", encode(argument)));
        }
        target
    }

    fn connect(&self, context: &Context, client: &Client) -> Result<Connection, Failure> {
        // Any key will do: there is no proxy on the way that it would have to fool.
        const KEY: &str = "bm9kbGV0IGV4ZWMgdjEuMA==";
        let mut stream = client.connect()?;
        let request = format!(
            "GET {} HTTP/1.1\r\nhost: nodlet\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: {KEY}\r\nsec-websocket-protocol: {}\r\n\r\n",
            self.target(context),
            websocket::PROTOCOLS[0]
        );
        stream.write_all(request.as_bytes()).map_err(Failure::disconnected)?;
        let mut response = Response::read(stream).map_err(Failure::disconnected)?;
        if response.code != 101 {
            let mut text = String::new();
            let _ = response.body.read_to_string(&mut text);
            return Err(Failure::refused(response.code, explain(response.code, &text)));
        }
        if response.header("sec-websocket-accept") != Some(&websocket::accept_key(KEY)) {
            return Err(Failure::new("the agent's answer is not that of a WebSocket"));
        }
        let (stream, read_ahead) = response.body.into_stream();
        let mut decoder = Decoder::new(Role::Client);
        decoder.push(&read_ahead);
        let writer = Writer(Arc::new(Mutex::new(stream.try_clone()?)));
        Ok(Connection { stream, decoder, writer })
    }

    /// Until the command has ended.
    fn talk(&self, connection: Connection, resized: SigSet) -> Outcome {
        let Connection { mut stream, mut decoder, writer } = connection;
        if self.tty {
            let writer = writer.clone();
            writer.resize();
            std::thread::spawn(move || {
                while resized.wait().is_ok() {
                    writer.resize();
                }
            });
        }
        if self.stdin {
            let writer = writer.clone();
            std::thread::spawn(move || writer.pass_on_stdin());
        }
        let mut status = Value::Null;
        let mut bytes = vec![0; 32 * 1024];
        loop {
            while let Some(message) = decoder.message().map_err(|error| Failure::chain(&error))? {
                match (message.opcode, message.payload.split_first()) {
                    (Opcode::Binary, Some((&websocket::STDOUT, bytes))) => {
                        show(&mut io::stdout().lock(), bytes)?
                    }
                    (Opcode::Binary, Some((&websocket::STDERR, bytes))) => {
                        show(&mut io::stderr().lock(), bytes)?
                    }
                    (Opcode::Binary, Some((&websocket::ERROR, bytes))) if !bytes.is_empty() => {
                        status = serde_json::from_slice(bytes).unwrap_or_default();
                    }
                    (Opcode::Ping, _) => writer.send(Opcode::Pong, &[&message.payload])?,
                    (Opcode::Close, _) => {
                        let _ = stream.shutdown(Shutdown::Both);
                        return outcome(&status);
                    }
                    _ => {}
                }
            }
            match stream.read(&mut bytes) {
                Ok(0) if !status.is_null() => return outcome(&status),
                Ok(0) => return Err(Failure::disconnected("the connection to the agent was lost")),
                Ok(read) => decoder.push(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Failure::disconnected(format!(
                        "the connection to the agent was lost: {error}"
                    )));
                }
            }
        }
    }
}

fn show(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    writer: Writer,
}

/// Frames of several threads, whole.
#[derive(Clone)]
struct Writer(Arc<Mutex<UnixStream>>);

impl Writer {
    fn send(&self, opcode: Opcode, parts: &[&[u8]]) -> io::Result<()> {
        let frame = websocket::encode(opcode, parts, Some([0x6e, 0x6f, 0x64, 0x6c]));
        let mut stream = self.0.lock().map_err(|_| io::Error::other("a thread panicked"))?;
        stream.write_all(&frame)
    }

    fn pass_on_stdin(&self) {
        let mut bytes = vec![0; 32 * 1024];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut bytes) {
                Ok(0) => break,
                Ok(read) => {
                    if self.send(Opcode::Binary, &[&[websocket::STDIN], &bytes[..read]]).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = self.send(Opcode::Binary, &[&[websocket::CLOSE, websocket::STDIN]]);
    }

    fn resize(&self) {
        let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: TIOCGWINSZ writes one winsize, which lives until the call is over.
        if unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0 && size.ws_col > 0 {
            let size = format!("{{\"Width\":{},\"Height\":{}}}", size.ws_col, size.ws_row);
            let _ = self.send(Opcode::Binary, &[&[websocket::RESIZE], size.as_bytes()]);
        }
    }
}

/// This terminal hands on every key; as it was, when this is dropped.
struct Raw {
    before: Termios,
}

impl Raw {
    fn new() -> io::Result<Raw> {
        let before = tcgetattr(io::stdin().as_fd())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &raw)?;
        Ok(Raw { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &self.before);
    }
}

/// The command's exit code becomes ours.
fn outcome(status: &Value) -> Outcome {
    if status["status"] == "Success" {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes
        .into_iter()
        .flatten()
        .find(|cause| cause["reason"] == "ExitCode")
        .and_then(|cause| cause["message"].as_str()?.parse::<u8>().ok());
    match code {
        Some(code) => {
            eprintln!("command terminated with exit code {code}");
            Ok(ExitCode::from(code))
        }
        None => Err(Failure::new(status["message"].as_str().unwrap_or("the command was lost"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(line: &str) -> Result<Exec, String> {
        let mut context = Context::new();
        context.help = VERB.help;
        let mut parser = Parser::from_args(line.split_whitespace());
        Exec::parse(&mut context, &mut parser).map_err(|failure| failure.to_string())
    }

    #[test]
    fn arguments_of_exec() {
        let sh = |command: &[&str]| Exec {
            pod: "web".into(),
            command: command.iter().map(|&word| word.into()).collect(),
            ..Exec::default()
        };
        for (line, expected) in [
            ("web -- date", sh(&["date"])),
            ("-it web -- sh -c true", Exec { stdin: true, tty: true, ..sh(&["sh", "-c", "true"]) }),
            ("pod/web -c app -- ls -- -l", Exec { container: Some("app".into()), ..sh(&["ls", "--", "-l"]) }),
            ("web -- --help", sh(&["--help"])),
        ] {
            assert_eq!(parse(line), Ok(expected), "{line}");
        }
        for (line, expected) in [
            ("", "error: pod, type/name or --filename must be specified"),
            ("-- date", "error: pod, type/name or --filename must be specified"),
            ("web", "error: you must specify at least one command for the container"),
            ("web --", "error: you must specify at least one command for the container"),
            ("web date", "error: exec [POD] [COMMAND] is not supported anymore"),
            ("web -x -- date", "error: unknown flag: -x"),
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.starts_with(expected), "{line}: {refused}");
        }
    }

    #[test]
    fn the_commands_end_is_ours() {
        assert_eq!(outcome(&json!({"status": "Success"})).ok(), Some(ExitCode::SUCCESS));
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode",
                            "details": {"causes": [{"reason": "ExitCode", "message": "42"}]}});
        assert_eq!(outcome(&failed).ok(), Some(ExitCode::from(42)));
        let lost = outcome(&json!({"status": "Failure", "message": "no such file"})).expect_err("no code");
        assert_eq!(lost.to_string(), "error: no such file");
    }
}
