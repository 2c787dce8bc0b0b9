//! Connects the streams of a process in a container to this terminal, over one WebSocket. `nodlet exec` and
//! `nodlet attach` share this module.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nodlet_wire::websocket::{self, Decoder, Opcode, Role};
use serde_json::Value;

use crate::client::Client;
use crate::error::VerbError;

/// The local streams that a session uses.
pub(crate) struct Stdio {
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
    /// Whether to make the program redraw its screen, by changing the window size and restoring it.
    pub(crate) redraw: bool,
    /// Keys that, typed in this order, end the session but not the process; empty for none.
    pub(crate) detach_keys: Vec<u8>,
}

/// How a session ended.
pub(crate) enum Ended {
    /// The process ended with this `Status`.
    Status(Value),
    /// The user typed the detach keys.
    Detached,
}

/// Whether a session can have the terminal that was asked for: the standard input must be one. If not, the user is told.
pub(crate) fn check_terminal() -> bool {
    let is_terminal = tcgetattr(io::stdin().as_fd()).is_ok();
    if !is_terminal {
        eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    is_terminal
}

/// Opens a session at `target`, and returns when it has ended.
pub(crate) fn run(client: &Client, target: &str, stdio: &Stdio) -> Result<Ended, VerbError> {
    let (stream, decoder) = connect(client, target, websocket::PROTOCOLS[0])?;
    let raw = if stdio.tty { Some(Raw::new()?) } else { None };
    let signals = Signals::block(raw.as_ref())?;
    let ended = talk(stdio, stream, decoder, signals);
    let cut_off = matches!(&ended, Err(failure) if failure.is_disconnected());
    if raw.is_some() && cut_off {
        // The next message must not continue a partial line.
        eprint!("\r\n");
    }
    drop(raw);
    ended
}

/// Opens a WebSocket at `target` with the subprotocol `protocol`.
pub(crate) fn connect(
    client: &Client,
    target: &str,
    protocol: &str,
) -> Result<(UnixStream, Decoder), VerbError> {
    // Any key is valid: there is no proxy that it would have to protect against.
    const KEY: &str = "bm9kbGV0IGV4ZWMgdjEuMA==";
    let response = client.upgrade(
        target,
        &format!(
            "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: {KEY}\r\n\
             sec-websocket-protocol: {protocol}\r\n"
        ),
    )?;
    if response.header("sec-websocket-accept") != Some(&websocket::accept_key(KEY)) {
        return Err(VerbError::new("the agent's response is not a WebSocket handshake"));
    }
    let (stream, read_ahead) = response.body.into_stream();
    let mut decoder = Decoder::new(Role::Client);
    decoder.push(&read_ahead);
    Ok((stream, decoder))
}

/// Transfers data until the session has ended.
fn talk(
    stdio: &Stdio,
    mut stream: UnixStream,
    mut decoder: Decoder,
    signals: Option<Signals>,
) -> Result<Ended, VerbError> {
    let writer = Writer::new(stream.try_clone()?);
    let (detach, detached) = (stream.try_clone()?, Arc::new(AtomicBool::new(false)));
    if let Some(signals) = signals {
        let writer = writer.clone();
        if stdio.redraw {
            writer.resize(1);
        }
        writer.resize(0);
        std::thread::spawn(move || signals.obey(&writer));
    }
    if stdio.stdin {
        let (writer, detached) = (writer.clone(), detached.clone());
        let keys = Keys::new(&stdio.detach_keys);
        std::thread::spawn(move || {
            if writer.pass_on_stdin(keys) {
                detached.store(true, Ordering::SeqCst);
                let _ = detach.shutdown(Shutdown::Both);
            }
        });
    }
    let mut status = Value::Null;
    let mut bytes = vec![0; 32 * 1024];
    loop {
        while let Some(message) = decoder.message().map_err(|error| VerbError::chain(&error))? {
            match (message.opcode, message.payload.split_first()) {
                (Opcode::Binary, Some((&websocket::STDOUT, bytes))) => show(&mut io::stdout().lock(), bytes)?,
                (Opcode::Binary, Some((&websocket::STDERR, bytes))) => show(&mut io::stderr().lock(), bytes)?,
                (Opcode::Binary, Some((&websocket::ERROR, bytes))) if !bytes.is_empty() => {
                    status = serde_json::from_slice(bytes).unwrap_or_default();
                }
                (Opcode::Ping, _) => writer.send(Opcode::Pong, &[&message.payload])?,
                (Opcode::Close, _) => {
                    let _ = stream.shutdown(Shutdown::Both);
                    return Ok(Ended::Status(status));
                }
                _ => {}
            }
        }
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) if detached.load(Ordering::SeqCst) => return Ok(Ended::Detached),
            Ok(0) if !status.is_null() => return Ok(Ended::Status(status)),
            Ok(0) => return Err(VerbError::disconnected("the connection to the agent was lost")),
            Ok(read) => decoder.push(&bytes[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(VerbError::disconnected(format!(
                    "the connection to the agent was lost: {error}"
                )));
            }
        }
    }
}

fn show(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

/// Writes frames of several threads without interleaving them.
#[derive(Clone)]
pub(crate) struct Writer(Arc<Mutex<UnixStream>>);

impl Writer {
    pub(crate) fn new(stream: UnixStream) -> Writer {
        Writer(Arc::new(Mutex::new(stream)))
    }

    pub(crate) fn send(&self, opcode: Opcode, parts: &[&[u8]]) -> io::Result<()> {
        let frame = websocket::encode(opcode, parts, Some([0x6e, 0x6f, 0x64, 0x6c]));
        let mut stream = self.0.lock().map_err(|_| io::Error::other("a thread panicked"))?;
        stream.write_all(&frame)
    }

    /// Sends standard input until it ends. Returns `true` if the user typed the detach keys.
    fn pass_on_stdin(&self, mut keys: Keys) -> bool {
        let mut bytes = vec![0; 32 * 1024];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut bytes) {
                Ok(0) => break,
                Ok(read) => {
                    let (typed, detach) = keys.typed(&bytes[..read]);
                    if detach {
                        return true;
                    }
                    if self.send(Opcode::Binary, &[&[websocket::STDIN], &typed]).is_err() {
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = self.send(Opcode::Binary, &[&[websocket::CLOSE, websocket::STDIN]]);
        false
    }

    /// Sends the size of this terminal, enlarged `by` this many cells.
    fn resize(&self, by: u16) {
        if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout())
            && size.ws_col > 0
        {
            let size = format!(
                "{{\"Width\":{},\"Height\":{}}}",
                size.ws_col.saturating_add(by),
                size.ws_row.saturating_add(by)
            );
            let _ = self.send(Opcode::Binary, &[&[websocket::RESIZE], size.as_bytes()]);
        }
    }
}

/// Raw mode of this terminal, in which every key is passed on. Dropping it restores the previous mode.
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
        restore(&self.before);
    }
}

fn restore(before: &Termios) {
    let _ = tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, before);
}

/// The signals of a session: on a change of window size, sends the new size; on a request to end, restores
/// the terminal and exits.
struct Signals {
    blocked: SigSet,
    before: Termios,
}

impl Signals {
    /// Blocks the signals. Must be called before there is another thread, so that only the waiting thread
    /// gets them.
    fn block(raw: Option<&Raw>) -> io::Result<Option<Signals>> {
        let Some(raw) = raw else { return Ok(None) };
        let mut blocked = SigSet::empty();
        for signal in [Signal::SIGWINCH, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
            blocked.add(signal);
        }
        blocked.thread_block()?;
        Ok(Some(Signals { blocked, before: raw.before.clone() }))
    }

    fn obey(&self, writer: &Writer) {
        while let Ok(signal) = self.blocked.wait() {
            if signal != Signal::SIGWINCH {
                restore(&self.before);
                std::process::exit(128 + signal as i32);
            }
            writer.resize(0);
        }
    }
}

/// Detects the detach keys in typed input.
struct Keys {
    keys: Vec<u8>,
    /// How many of the keys were typed last, and are held back.
    held: usize,
}

impl Keys {
    fn new(keys: &[u8]) -> Keys {
        Keys { keys: keys.to_vec(), held: 0 }
    }

    /// Returns the part of `bytes` to pass on, and whether the detach keys are complete.
    fn typed(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut on = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            if self.keys.get(self.held) == Some(&byte) {
                self.held += 1;
                if self.held == self.keys.len() {
                    return (on, true);
                }
                continue;
            }
            on.extend_from_slice(&self.keys[..self.held]);
            self.held = usize::from(!self.keys.is_empty() && self.keys[0] == byte);
            if self.held == 0 {
                on.push(byte);
            }
        }
        (on, false)
    }
}

/// Parses keys in the notation of docker and kubectl, such as `ctrl-p,ctrl-q`, to bytes.
pub(crate) fn parse_keys(text: &str) -> Option<Vec<u8>> {
    text.split(',')
        .map(|key| match (key.strip_prefix("ctrl-"), key.as_bytes()) {
            (Some(key), _) => match key.as_bytes() {
                [key @ (b'a'..=b'z' | b'@' | b'[' | b'\\' | b']' | b'^' | b'_')] => Some(key & 0x1f),
                _ => None,
            },
            (None, [key]) => Some(*key),
            (None, _) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_to_detach_are_found_wherever_input_is_cut() {
        for (pieces, expected) in [
            (&["ab\x10", "\x11"][..], ("ab", true)),
            (&["\x10x\x10\x10", "\x11"][..], ("\x10x\x10", true)),
            (&["\x11\x10"][..], ("\x11", false)),
        ] {
            let mut keys = Keys::new(&[0x10, 0x11]);
            let (mut on, mut detached) = (Vec::new(), false);
            for piece in pieces {
                let (more, detach) = keys.typed(piece.as_bytes());
                on.extend(more);
                detached |= detach;
            }
            assert_eq!((on.as_slice(), detached), (expected.0.as_bytes(), expected.1), "{pieces:?}");
        }
        assert_eq!(Keys::new(&[]).typed(b"\x10\x11"), (b"\x10\x11".to_vec(), false));
    }

    #[test]
    fn keys_are_written_as_docker_writes_them() {
        assert_eq!(parse_keys("ctrl-p,ctrl-q"), Some(vec![0x10, 0x11]));
        assert_eq!(parse_keys("a,ctrl-["), Some(vec![b'a', 0x1b]));
        for wrong in ["", "ctrl-", "ctrl-1", "ab", "ctrl-p,"] {
            assert_eq!(parse_keys(wrong), None, "{wrong}");
        }
    }
}
