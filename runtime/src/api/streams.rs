//! The streams of a process, over one connection: what `exec` and `attach` have in common.
//!
//! Bytes are transferred between the API's pipes or terminal and the client. At most one piece of each stream
//! is buffered: a client that does not read blocks an executed process at its next write, as a pipe does, and
//! misses output of a container that it is attached to (`supervisor/src/console.rs`). Read next:
//! `api/channels.rs`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_channel::Receiver;
use serde_json::{Value, json};
use smol::Async;

use super::Status;
use super::channels::{Channels, Framing, PIECE, Received};
use super::request::ExecExit;
use super::upgrade::Client;
use nodlet_wire::timeout::within;
use nodlet_wire::websocket;
use rustix::termios::{Winsize, tcsetwinsize};

/// The maximum number of frames that wait for the client to read them: one of each stream and a `Pong`.
const FRAMES: usize = 3;

/// The time after which an idle output counts as ended once the process has ended. Until then, the output of children that
/// keep it open is passed on. containerd waits for their end, however long they are silent.
const QUIET: Duration = Duration::from_secs(10);

/// The time for the client to reply to the last frame before the connection is closed.
const GOODBYE: Duration = Duration::from_secs(1);

/// The time for a client with a terminal to send its size.
const SIZE_WITHIN: Duration = Duration::from_millis(500);

/// The maximum number of messages before the size, such as keys that are pressed early.
const MAX_EARLY: usize = 8;

/// The pipes of stdin, stdout and stderr: the API's ends and those of the process.
pub(super) struct Pipes {
    pub(super) ours: [Option<OwnedFd>; 3],
    pub(super) theirs: [Option<OwnedFd>; 3],
}

impl Pipes {
    pub(super) fn new(wanted: [bool; 3]) -> Result<Pipes, Status> {
        let mut pipes = Pipes { ours: [None, None, None], theirs: [None, None, None] };
        for (index, wanted) in wanted.into_iter().enumerate() {
            if wanted {
                let pipe = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC);
                let (read, write) = pipe.map_err(|error| no_pipe(error.into()))?;
                let (ours, theirs) = if index == 0 { (write, read) } else { (read, write) };
                pipes.ours[index] = Some(ours);
                pipes.theirs[index] = Some(theirs);
            }
        }
        Ok(pipes)
    }
}

/// The API's ends of the streams of a process or container.
pub(super) struct Streams {
    stdin: Option<Async<File>>,
    stdout: Option<Async<File>>,
    stderr: Option<Async<File>>,
    terminal: Option<File>,
}

impl Streams {
    /// Creates the streams from the API's ends of stdin, stdout and stderr, and the terminal if there is one.
    pub(super) fn new(ours: [Option<OwnedFd>; 3], terminal: Option<OwnedFd>) -> Result<Streams, Status> {
        let open =
            |end: Option<OwnedFd>| end.map(|end| Async::new(File::from(end))).transpose().map_err(no_pipe);
        let [stdin, stdout, stderr] = ours;
        let terminal = terminal.map(File::from);
        Ok(Streams { stdin: open(stdin)?, stdout: open(stdout)?, stderr: open(stderr)?, terminal })
    }
}

pub(super) fn no_pipe(error: io::Error) -> Status {
    Status::internal(format!("failed to make a pipe: {error}"))
}

/// Transfers the streams until the client is gone, or everything is sent. The end is the `exit` of an executed process,
/// or for an attached client the end of the outputs.
pub(super) async fn talk(
    client: Client,
    channels: Channels,
    framing: Framing,
    early: Vec<Received>,
    Streams { stdin, stdout, stderr, terminal }: Streams,
    wants_stdout: bool,
    exit: Option<Receiver<ExecExit>>,
) {
    let stdout_channel = wants_stdout.then_some(websocket::STDOUT);
    // Closing the terminal of an executed process would not end its input. For an attached client, the supervisor handles
    // the end of the pipe.
    let sends_ctrl_d = exit.is_some() && terminal.is_some();
    let (frames, to_send) = async_channel::bounded::<Vec<u8>>(FRAMES);
    let (over, is_over) = async_channel::bounded::<()>(1);

    let send = client.send_all(&to_send);
    let run = async {
        // The first message shows clients that the channels are open.
        let first = stdout_channel.filter(|_| stdout.is_some()).unwrap_or(websocket::ERROR);
        let _ = frames.send(framing.data(first, &[])).await;
        let outputs = smol::future::zip(
            pump(stdout, stdout_channel, framing, &frames, &is_over),
            pump(stderr, Some(websocket::STDERR), framing, &frames, &is_over),
        );
        let ended = async {
            let Some(exit) = exit else { return ExecExit::Code(0) };
            let exit = exit.recv().await;
            over.close();
            exit.unwrap_or_else(|_| ExecExit::Failed("the process was lost".into()))
        };
        let (_, exit) = smol::future::zip(outputs, ended).await;
        let _ = frames.send(framing.end(&status(&exit))).await;
        frames.close();
    };
    let receive = receive(&client, channels, early, Input { stdin, terminal, sends_ctrl_d }, frames.clone());
    // The transfer ends when the client is gone, and the client should disconnect when everything is sent.
    smol::future::or(
        async {
            smol::future::zip(send, run).await;
            smol::Timer::after(GOODBYE).await;
        },
        receive,
    )
    .await;
}

/// Transfers output from the process to the client, until its end.
async fn pump(
    from: Option<Async<File>>,
    channel: Option<u8>,
    framing: Framing,
    frames: &async_channel::Sender<Vec<u8>>,
    is_over: &async_channel::Receiver<()>,
) {
    let Some(from) = from else { return };
    let mut piece = vec![0; PIECE];
    loop {
        match nodlet_host::terminal::read(from.get_ref(), &mut piece) {
            // A terminal that no process has open returns EIO.
            Ok(0) => return,
            Ok(read) => {
                let Some(channel) = channel else {
                    // This loop does not wait otherwise, and a process may write without end.
                    smol::future::yield_now().await;
                    continue;
                };
                if frames.send(framing.data(channel, &piece[..read])).await.is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let readable = async { from.readable().await.is_ok() };
                let more = if is_over.is_closed() {
                    within(QUIET, readable).await.unwrap_or(false)
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

/// The destinations of a client's messages.
struct Input {
    stdin: Option<Async<File>>,
    terminal: Option<File>,
    /// Whether Ctrl-D ends the input.
    sends_ctrl_d: bool,
}

/// Transfers input from the client to the process, until the client is gone.
async fn receive(
    client: &Client,
    mut channels: Channels,
    early: Vec<Received>,
    Input { mut stdin, terminal, sends_ctrl_d }: Input,
    frames: async_channel::Sender<Vec<u8>>,
) {
    let mut early = early.into_iter();
    loop {
        loop {
            let next = early.next().map_or_else(|| channels.next(), |received| Ok(Some(received)));
            let received = match next {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(error) => return ::log::debug!("api: failed to {error}"),
            };
            match received {
                Received::Close => return,
                Received::Reply(reply) => {
                    let _ = frames.send(reply).await;
                }
                Received::Data(websocket::STDIN, bytes) => {
                    let Some(to) = &stdin else { continue };
                    match client.unless_gone(write_all(to, &bytes)).await {
                        Some(Ok(())) => {}
                        // The process has closed its stdin: further input is lost, as in a pipe.
                        Some(Err(_)) => stdin = None,
                        None => return,
                    }
                }
                Received::Data(websocket::RESIZE, size) => {
                    if let Some(terminal) = &terminal {
                        resize(terminal, &size);
                    }
                }
                Received::End(websocket::STDIN) => {
                    if let Some(to) = stdin.take()
                        && sends_ctrl_d
                        && client.unless_gone(write_all(&to, b"\x04")).await.is_none()
                    {
                        return;
                    }
                }
                Received::Data(..) | Received::End(_) => {}
            }
        }
        if channels.read(client).await.is_none() {
            return;
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

/// Parses columns and rows in `{"Width":80,"Height":24}`.
fn window(size: &[u8]) -> Option<(u16, u16)> {
    let size: Value = serde_json::from_slice(size).ok()?;
    let cells = |field: &str| size[field].as_u64().and_then(|cells| u16::try_from(cells).ok());
    Some((cells("Width")?, cells("Height")?))
}

fn resize(terminal: &File, size: &[u8]) {
    let Some((ws_col, ws_row)) = window(size) else { return };
    let _ = tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 });
}

/// Reads the size of the terminal that a client sends first. Other messages before the size are stored in
/// `early`. The wait for a silent client is short.
pub(super) async fn first_size(
    client: &Client,
    channels: &mut Channels,
    early: &mut Vec<Received>,
) -> Option<(u16, u16)> {
    let listen = async {
        while early.len() < MAX_EARLY {
            match channels.next().ok()? {
                Some(received) => {
                    let size = match &received {
                        Received::Data(websocket::RESIZE, size) => window(size),
                        _ => None,
                    };
                    early.push(received);
                    if size.is_some() {
                        return size;
                    }
                }
                None => channels.read(client).await?,
            }
        }
        None
    };
    within(SIZE_WITHIN, listen).await.flatten()
}

/// Reports on the error channel why there is no process.
pub(super) async fn refuse(client: &Client, framing: Framing, status: &Status) {
    let _ = client.write_all(&framing.end(&status.to_json())).await;
}

/// Returns the final status for the error channel.
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
