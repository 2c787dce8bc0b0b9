//! `pods/exec`: a command in a running container, its streams over one WebSocket.
//!
//! The engine starts the process with pipes or a terminal of ours; here bytes
//! go to and fro. Nothing is buffered beyond one piece of each stream: a client
//! that does not read stops the process at its next write, as a pipe does. A
//! client that goes away drops the [`ExecSession`], which ends the process.
//! Read next: `api/websocket.rs`, the frames.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use serde_json::{Value, json};
use smol::Async;
use smol_hyper::rt::FuturesIo;

use super::body::Body;
use super::read::parse;
use super::request::{ExecExit, ExecSession};
use super::websocket::{self, Decoder, Message, Opcode, PROTOCOLS, Role};
use super::{Afterwards, Api, Query, Request, Status, log, write};
use crate::objects::Key;

/// Read at a time from a stream, and sent as one message.
const PIECE: usize = 32 * 1024;

/// Frames that wait for the client to read: one of each stream and a `Pong`.
const FRAMES: usize = 3;

/// After the process has ended its output is in the pipe already, unless a
/// child of it holds on to that; nobody waits for those.
const QUIET: Duration = Duration::from_millis(200);

/// For the client to answer our last frame, so that it does not find the line cut.
const GOODBYE: Duration = Duration::from_secs(1);

/// How often a client whose input is held up is looked after.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// For a client with a terminal to say how large that is.
const SIZE_WITHIN: Duration = Duration::from_millis(500);

/// Messages that may come before that: keys pressed early.
const MAX_EARLY: usize = 8;

/// Arguments of a command, as Linux would refuse still more of them.
const MAX_ARGUMENTS: usize = 256;

pub(super) async fn exec(
    api: &Rc<Api>,
    key: &Key,
    query: &Query,
    request: hyper::Request<Incoming>,
    afterwards: &Afterwards,
) -> Result<Response<Body>, Status> {
    let asked = Asked::parse(query)?;
    let object = api.objects.get(key).ok_or_else(|| Status::not_found("pods", &key.name))?;
    let pod = parse(&object.json);
    let container = log::container(&pod, asked.container.as_deref())?;
    if !log::container_status(&pod, &container).is_some_and(|status| status["state"]["running"].is_object()) {
        return Err(Status::bad_request(format!(
            "container \"{container}\" in pod \"{}\" is not running: see `nodlet get pod {}`",
            key.name, key.name
        )));
    }
    // Last: kubectl asks again with SPDY when a handshake is refused, and shows
    // what that is answered. For the same reason the process is started after it.
    let handshake = Handshake::of(&request, &PROTOCOLS)?;
    let (api, key) = (api.clone(), key.clone());
    let response = handshake.response();
    let upgrade = hyper::upgrade::on(request);
    *afterwards.borrow_mut() = Some(Box::pin(async move {
        let connection = match upgrade.await {
            Ok(connection) => connection,
            Err(error) => return ::log::debug!("api: exec: {error}"),
        };
        // What was read behind the request are the client's first frames.
        if let Ok(parts) = connection.downcast::<FuturesIo<Async<UnixStream>>>() {
            let mut decoder = Decoder::new(Role::Server);
            decoder.push(&parts.read_buf);
            let connection = parts.io.into_inner();
            let mut early = Vec::new();
            // The process is to see the size of its terminal from the start.
            let size = match asked.tty {
                true => first_size(&connection, &mut decoder, &mut early).await,
                false => None,
            };
            match start(&api, &key, &container, &asked, size).await {
                Ok((streams, session)) => talk(connection, decoder, early, streams, Some(session)).await,
                Err(status) => refuse(&connection, &status).await,
            }
        }
    }));
    Ok(response)
}

/// Has the engine start the process.
async fn start(
    api: &Rc<Api>,
    key: &Key,
    container: &str,
    asked: &Asked,
    size: Option<(u16, u16)>,
) -> Result<(Streams, ExecSession), Status> {
    let failed = |error: &dyn std::fmt::Display| Status::internal(format!("failed to make a pipe: {error}"));
    let Pipes { ours, theirs } =
        Pipes::new([asked.stdin, asked.stdout, asked.stderr].map(|wanted| wanted && !asked.tty))
            .map_err(|error| failed(&error))?;
    let session = write::ask(api, |reply| Request::Exec {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        container: container.to_owned(),
        command: asked.command.clone(),
        tty: asked.tty,
        size,
        stdio: theirs,
        reply,
    })
    .await?;
    let streams = Streams::new(asked, ours, session.terminal.as_ref()).map_err(|error| failed(&error))?;
    Ok((streams, session))
}

/// The size that a client with a terminal says first. What else it says before
/// is left in `early`; one that says nothing is not waited for.
pub(super) async fn first_size(
    mut client: &Async<UnixStream>,
    decoder: &mut Decoder,
    early: &mut Vec<Message>,
) -> Option<(u16, u16)> {
    let listen = async {
        let mut piece = vec![0; PIECE];
        while early.len() < MAX_EARLY {
            match decoder.message().ok()? {
                Some(message) => {
                    let size = match message.payload.split_first() {
                        Some((&websocket::RESIZE, size)) => window(size),
                        _ => None,
                    };
                    early.push(message);
                    if size.is_some() {
                        return size;
                    }
                }
                None => match client.read(&mut piece).await {
                    Ok(0) | Err(_) => return None,
                    Ok(read) => decoder.push(&piece[..read]),
                },
            }
        }
        None
    };
    smol::future::or(listen, async {
        smol::Timer::after(SIZE_WITHIN).await;
        None
    })
    .await
}

/// Says on the error channel why there is no process.
pub(super) async fn refuse(mut client: &Async<UnixStream>, status: &Status) {
    let status = status.to_json().to_string();
    let frames = [
        websocket::encode(Opcode::Binary, &[&[websocket::ERROR], status.as_bytes()], None),
        websocket::encode(Opcode::Close, &[&1000u16.to_be_bytes()], None),
    ];
    let _ = client.write_all(&frames.concat()).await;
}

/// The client's side of the upgrade.
pub(super) struct Handshake {
    accept: String,
    protocol: &'static str,
}

impl Handshake {
    /// `protocols` are those that are spoken, the best first.
    pub(super) fn of(
        request: &hyper::Request<Incoming>,
        protocols: &[&'static str],
    ) -> Result<Handshake, Status> {
        let text = |name| {
            request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or("")
        };
        let upgrade = text(header::UPGRADE);
        if upgrade.to_ascii_lowercase().starts_with("spdy/") {
            return Err(Status::bad_request(
                "nodlet speaks WebSocket and not SPDY: use kubectl 1.31 or later, and leave KUBECTL_REMOTE_COMMAND_WEBSOCKETS alone",
            ));
        }
        if !upgrade.eq_ignore_ascii_case("websocket") {
            return Err(Status::bad_request("Upgrade request required"));
        }
        let key = text(header::SEC_WEBSOCKET_KEY);
        if key.is_empty() || text(header::SEC_WEBSOCKET_VERSION) != "13" {
            return Err(Status::bad_request("a WebSocket of version 13 with a key is required"));
        }
        let offered = text(header::SEC_WEBSOCKET_PROTOCOL);
        let protocol = protocols
            .iter()
            .copied()
            .find(|known| offered.split(',').any(|offered| offered.trim() == *known))
            .ok_or_else(|| {
                Status::bad_request(format!(
                    "none of the subprotocols {offered:?} is known: {}",
                    protocols.join(", ")
                ))
            })?;
        Ok(Handshake { accept: websocket::accept_key(key), protocol })
    }

    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::Whole(None));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(self.protocol));
        if let Ok(accept) = HeaderValue::from_str(&self.accept) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        response
    }
}

/// `PodExecOptions`, and without a command `PodAttachOptions`.
pub(super) struct Asked {
    pub(super) container: Option<String>,
    command: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

impl Asked {
    fn parse(query: &Query) -> Result<Asked, Status> {
        let asked =
            Asked { command: query.all("command").map(Into::into).collect(), ..Asked::streams(query)? };
        if asked.command.first().is_none_or(String::is_empty) {
            return Err(Status::bad_request("command: Required value: what is to be executed"));
        }
        if asked.command.len() > MAX_ARGUMENTS || asked.command.iter().any(|argument| argument.contains('\0'))
        {
            return Err(Status::bad_request(format!(
                "command: Invalid value: must have at most {MAX_ARGUMENTS} arguments, none with a NUL byte"
            )));
        }
        Ok(asked)
    }

    /// All but the command.
    pub(super) fn streams(query: &Query) -> Result<Asked, Status> {
        let asked = Asked {
            container: query.get("container").filter(|name| !name.is_empty()).map(Into::into),
            command: Vec::new(),
            stdin: query.flag("stdin"),
            stdout: query.flag("stdout"),
            // A terminal has one output.
            stderr: query.flag("stderr") && !query.flag("tty"),
            tty: query.flag("tty"),
        };
        if !asked.stdin && !asked.stdout && !asked.stderr {
            return Err(Status::bad_request("you must specify at least one of stdin, stdout, stderr"));
        }
        Ok(asked)
    }
}

/// stdin, stdout and stderr: our ends and the process's.
pub(super) struct Pipes {
    pub(super) ours: [Option<OwnedFd>; 3],
    pub(super) theirs: [Option<OwnedFd>; 3],
}

impl Pipes {
    pub(super) fn new(wanted: [bool; 3]) -> io::Result<Pipes> {
        let mut pipes = Pipes { ours: [None, None, None], theirs: [None, None, None] };
        for (index, wanted) in wanted.into_iter().enumerate() {
            if wanted {
                let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
                let (ours, theirs) = if index == 0 { (write, read) } else { (read, write) };
                pipes.ours[index] = Some(ours);
                pipes.theirs[index] = Some(theirs);
            }
        }
        Ok(pipes)
    }
}

/// What is written to, read from and resized.
pub(super) struct Streams {
    stdin: Option<Async<File>>,
    stdout: Option<Async<File>>,
    stderr: Option<Async<File>>,
    terminal: Option<File>,
    /// Where what is read of stdout goes: nowhere, if nobody wanted it.
    stdout_channel: Option<u8>,
    /// How input ends that is typed into a terminal.
    end_of_input: EndOfInput,
}

/// What a client's end of input is to a process that has a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndOfInput {
    /// Dropping a terminal would not end its input; Ctrl-D does.
    CtrlD,
    /// Its pipe's end: the supervisor knows what that means.
    Closes,
}

impl Streams {
    fn new(asked: &Asked, ours: [Option<OwnedFd>; 3], terminal: Option<&OwnedFd>) -> io::Result<Streams> {
        let open = |end: Option<OwnedFd>| end.map(|end| Async::new(File::from(end))).transpose();
        let another = |wanted: bool| match terminal {
            Some(terminal) if wanted => terminal.try_clone().map(Some),
            _ => Ok(None),
        };
        let [stdin, stdout, stderr] = ours;
        Ok(Streams {
            stdin: open(stdin.or(another(asked.stdin)?))?,
            stdout: open(stdout.or(another(asked.stdout)?))?,
            stderr: open(stderr)?,
            terminal: another(true)?.map(File::from),
            stdout_channel: Some(websocket::STDOUT),
            end_of_input: EndOfInput::CtrlD,
        })
    }

    /// Of a client that is attached: pipes alone, the terminal is only resized.
    /// There is always a stdout, by which the end is seen.
    pub(super) fn attached(
        stdout: bool,
        ours: [Option<OwnedFd>; 3],
        terminal: Option<OwnedFd>,
    ) -> io::Result<Streams> {
        let open = |end: Option<OwnedFd>| end.map(|end| Async::new(File::from(end))).transpose();
        let [stdin, out, err] = ours;
        Ok(Streams {
            stdin: open(stdin)?,
            stdout: open(out)?,
            stderr: open(err)?,
            terminal: terminal.map(File::from),
            stdout_channel: stdout.then_some(websocket::STDOUT),
            end_of_input: EndOfInput::Closes,
        })
    }
}

/// Until the client is gone, or all is said. A process has an end of its own; without
/// one, as for a client that is attached, it is that of the outputs.
pub(super) async fn talk(
    connection: Async<UnixStream>,
    decoder: Decoder,
    early: Vec<Message>,
    Streams { stdin, stdout, stderr, terminal, stdout_channel, end_of_input }: Streams,
    session: Option<ExecSession>,
) {
    let (reader, mut writer) = (&connection, &connection);
    let (frames, to_send) = async_channel::bounded::<Vec<u8>>(FRAMES);
    let (over, is_over) = async_channel::bounded::<()>(1);

    let send = async {
        while let Ok(frame) = to_send.recv().await {
            if writer.write_all(&frame).await.is_err() {
                break;
            }
        }
        // Nobody waits for a place in a queue that is not read any more.
        to_send.close();
    };
    let run = async {
        // By this clients see that the channels are there.
        let first = stdout_channel.filter(|_| stdout.is_some()).unwrap_or(websocket::ERROR);
        let _ = frames.send(websocket::encode(Opcode::Binary, &[&[first]], None)).await;
        let outputs = smol::future::zip(
            pump(stdout, stdout_channel, &frames, &is_over),
            pump(stderr, Some(websocket::STDERR), &frames, &is_over),
        );
        let ended = async {
            let Some(session) = session else { return ExecExit::Code(0) };
            let exit = session.exit.recv().await;
            over.close();
            exit.unwrap_or_else(|_| ExecExit::Failed("the process was lost".into()))
        };
        let (_, exit) = smol::future::zip(outputs, ended).await;
        let status = status(&exit).to_string();
        let status = websocket::encode(Opcode::Binary, &[&[websocket::ERROR], status.as_bytes()], None);
        let normal = websocket::encode(Opcode::Close, &[&1000u16.to_be_bytes()], None);
        for frame in [status, normal] {
            let _ = frames.send(frame).await;
        }
        frames.close();
    };
    let receive = receive(reader, decoder, early, Input { stdin, terminal, end_of_input }, frames.clone());
    // Over when the client is gone; and it should go when everything is said.
    smol::future::or(
        async {
            smol::future::zip(send, run).await;
            smol::Timer::after(GOODBYE).await;
        },
        receive,
    )
    .await;
}

/// From the process to the client, until the end of it.
async fn pump(
    from: Option<Async<File>>,
    channel: Option<u8>,
    frames: &async_channel::Sender<Vec<u8>>,
    is_over: &async_channel::Receiver<()>,
) {
    let Some(from) = from else { return };
    let mut piece = vec![0; PIECE];
    loop {
        match from.get_ref().read(&mut piece) {
            // EIO is how a terminal says that nobody has it open any more.
            Ok(0) => return,
            Ok(read) => {
                let Some(channel) = channel else { continue };
                let frame = websocket::encode(Opcode::Binary, &[&[channel], &piece[..read]], None);
                if frames.send(frame).await.is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let readable = async { from.readable().await.is_ok() };
                let more = if is_over.is_closed() {
                    smol::future::or(readable, async {
                        smol::Timer::after(QUIET).await;
                        false
                    })
                    .await
                } else {
                    smol::future::or(readable, async {
                        let _ = is_over.recv().await;
                        true
                    })
                    .await
                };
                if !more {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// Where a client's messages go.
struct Input {
    stdin: Option<Async<File>>,
    terminal: Option<File>,
    end_of_input: EndOfInput,
}

/// From the client to the process, until the client is gone.
async fn receive(
    mut reader: &Async<UnixStream>,
    mut decoder: Decoder,
    early: Vec<Message>,
    Input { mut stdin, terminal, end_of_input }: Input,
    frames: async_channel::Sender<Vec<u8>>,
) {
    let mut piece = vec![0; PIECE];
    let mut early = early.into_iter();
    loop {
        loop {
            let next = early.next().map_or_else(|| decoder.message(), |message| Ok(Some(message)));
            let message = match next {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return ::log::debug!("api: exec: failed to {error}"),
            };
            let Message { opcode, payload } = message;
            match (opcode, payload.split_first()) {
                (Opcode::Close, _) => return,
                (Opcode::Ping, _) => {
                    let _ = frames.send(websocket::encode(Opcode::Pong, &[&payload], None)).await;
                }
                (Opcode::Binary, Some((&websocket::STDIN, bytes))) => {
                    let Some(to) = &stdin else { continue };
                    match smol::future::or(write_all(to, bytes), gone(reader)).await {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
                        // The process closed it: what is still to come is lost, as in a pipe.
                        Err(_) => stdin = None,
                    }
                }
                (Opcode::Binary, Some((&websocket::RESIZE, size))) => {
                    if let Some(terminal) = &terminal {
                        resize(terminal, size);
                    }
                }
                (Opcode::Binary, Some((&websocket::CLOSE, [websocket::STDIN]))) => {
                    match (terminal.as_ref().map(|_| end_of_input), stdin.take()) {
                        (Some(EndOfInput::CtrlD), Some(to)) => {
                            let _ = smol::future::or(write_all(&to, b"\x04"), gone(reader)).await;
                        }
                        (_, closed) => drop(closed),
                    }
                }
                (Opcode::Binary | Opcode::Text | Opcode::Pong, _) => {}
            }
        }
        match reader.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(read) => decoder.push(&piece[..read]),
        }
    }
}

/// Ends with `NotConnected` when the client is gone. Only while its input is
/// held up, for what it has sent cannot be read then to find out.
async fn gone(client: &Async<UnixStream>) -> io::Result<()> {
    loop {
        smol::Timer::after(LOOK_AGAIN).await;
        let mut poll = [PollFd::new(client.as_fd(), PollFlags::from_bits_retain(libc::POLLRDHUP))];
        if nix::poll::poll(&mut poll, PollTimeout::ZERO)? > 0 {
            return Err(io::ErrorKind::NotConnected.into());
        }
    }
}

async fn write_all(to: &Async<File>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.get_ref().write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Columns and rows in `{"Width":80,"Height":24}`.
fn window(size: &[u8]) -> Option<(u16, u16)> {
    let size: Value = serde_json::from_slice(size).ok()?;
    let cells = |field: &str| size[field].as_u64().and_then(|cells| u16::try_from(cells).ok());
    Some((cells("Width")?, cells("Height")?))
}

fn resize(terminal: &File, size: &[u8]) {
    let Some((ws_col, ws_row)) = window(size) else { return };
    let size = libc::winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize, which lives until the call is over;
    // the descriptor is open for as long as `terminal` is borrowed.
    unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &size) };
}

/// What the error channel says in the end.
fn status(exit: &ExecExit) -> Value {
    match exit {
        ExecExit::Code(0) => json!({"metadata": {}, "status": "Success"}),
        ExecExit::Code(code) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        ExecExit::Failed(why) => json!({
            "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
            "message": format!("Internal error occurred: error executing command in container: {why}"),
        }),
    }
}

#[cfg(test)]
mod tests;
