//! Delays a shutdown by systemd-logind: a delay lock blocks the shutdown until the pods have ended, or until logind's
//! timeout (`InhibitDelayMaxSec=`).
//!
//! This module implements only the necessary part of D-Bus, over one unix socket: no thread, no timer, and no wake-up
//! before a shutdown. Messages are untrusted input: each length is limited and checked, and an invalid message ends
//! the connection.

mod message;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::MsgFlags;
use nodlet_kernel::socket;
use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use message::{Body, Kind, Message};

/// Returns the path of the system bus: that in `DBUS_SYSTEM_BUS_ADDRESS`, or the default one.
pub(crate) fn system_bus() -> PathBuf {
    let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
    let path = address.strip_prefix("unix:path=").and_then(|rest| rest.split([',', ';']).next());
    path.unwrap_or("/run/dbus/system_bus_socket").into()
}

const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";
const LOGIND: &str = "org.freedesktop.login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const LOGIND_PATH: &str = "/org/freedesktop/login1";

/// Maximum size of a line of the greeting in bytes.
const LINE: usize = 512;

/// A connection to logind over the system bus.
pub(crate) struct Logind {
    bus: Bus,
}

/// A delay lock: while it exists, logind delays a shutdown up to its timeout.
#[derive(Debug)]
pub(crate) struct DelayLock {
    _held: OwnedFd,
}

impl Logind {
    /// Connects, and subscribes to shutdowns.
    ///
    /// # Errors
    /// There is no bus or no logind, or a response is invalid.
    pub(crate) async fn connect(socket: &Path) -> io::Result<Logind> {
        let mut bus = Bus::connect(socket).await?;
        bus.call([BUS, BUS_PATH, BUS, "Hello"], &[]).await?;
        let rule = format!(
            "type='signal',sender='{LOGIND}',path='{LOGIND_PATH}',interface='{MANAGER}',member='PrepareForShutdown'"
        );
        bus.call([BUS, BUS_PATH, BUS, "AddMatch"], &[&rule]).await?;
        Ok(Logind { bus })
    }

    /// Returns the time for which logind waits for delay locks.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) async fn patience(&mut self) -> io::Result<Duration> {
        let method = [LOGIND, LOGIND_PATH, "org.freedesktop.DBus.Properties", "Get"];
        let answer = self.bus.call(method, &[MANAGER, "InhibitDelayMaxUSec"]).await?;
        match answer.body {
            Body::Time(microseconds) => Ok(Duration::from_micros(microseconds)),
            Body::None | Body::Bool(_) | Body::Text(_) => Err(unexpected("the answer to Get")),
        }
    }

    /// Requests a delay lock.
    ///
    /// # Errors
    /// logind rejects the request, for example during a shutdown.
    pub(crate) async fn delay(&mut self) -> io::Result<DelayLock> {
        let asked = ["shutdown", "nodlet", "Pods end in the order of their priorities", "delay"];
        let answer = self.bus.call([LOGIND, LOGIND_PATH, MANAGER, "Inhibit"], &asked).await?;
        self.bus.logind = answer.sender;
        let held = answer.descriptor.ok_or_else(|| unexpected("an answer without a descriptor"))?;
        Ok(DelayLock { _held: held })
    }

    /// Waits until a shutdown begins or is cancelled.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn prepares_for_shutdown(&mut self) -> io::Result<bool> {
        loop {
            let signal = self.bus.next().await?;
            let Some(begins) = parse_prepare_for_shutdown(&signal) else { continue };
            // Any client of the bus may send this signal.
            let owner = self.bus.call([BUS, BUS_PATH, BUS, "GetNameOwner"], &[LOGIND]).await?;
            if owner.body == Body::Text(signal.sender) {
                return Ok(begins);
            }
        }
    }
}

fn parse_prepare_for_shutdown(message: &Message) -> Option<bool> {
    match (message.kind, &message.body) {
        (Kind::Signal, Body::Bool(begins)) if message.member == "PrepareForShutdown" => Some(*begins),
        _ => None,
    }
}

struct Bus {
    stream: Async<UnixStream>,
    serial: u32,
    /// The signal that arrived while a response was awaited.
    signal: Option<Message>,
    /// The unique bus name of logind at the last request.
    logind: String,
}

impl Bus {
    async fn connect(socket: &Path) -> io::Result<Bus> {
        let mut stream = Async::<UnixStream>::connect(socket).await?;
        // `EXTERNAL` and the uid, in hexadecimal digits of its decimal ones.
        let uid = nix::unistd::getuid().to_string();
        let uid: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes()).await?;
        expect_line(&mut stream, "OK ").await?;
        stream.write_all(b"NEGOTIATE_UNIX_FD\r\n").await?;
        expect_line(&mut stream, "AGREE_UNIX_FD").await?;
        stream.write_all(b"BEGIN\r\n").await?;
        Ok(Bus { stream, serial: 0, signal: None, logind: String::new() })
    }

    /// Calls a method, of which destination, path, interface and name are given, with string arguments, and waits for the
    /// response.
    async fn call(&mut self, method: [&str; 4], arguments: &[&str]) -> io::Result<Message> {
        self.serial += 1;
        let call = message::call(self.serial, method, arguments);
        self.stream.write_all(&call).await?;
        loop {
            let answer = self.read().await?;
            match answer.kind {
                Kind::Return if answer.reply_to == self.serial => return Ok(answer),
                Kind::Error if answer.reply_to == self.serial => {
                    let Body::Text(said) = answer.body else { return Err(unexpected("an error")) };
                    return Err(io::Error::other(format!("{}: {said}", method[3])));
                }
                // Only the latest signal of logind counts, whatever others send.
                Kind::Signal
                    if parse_prepare_for_shutdown(&answer).is_some()
                        && (self.signal.is_none() || answer.sender == self.logind) =>
                {
                    self.signal = Some(answer);
                }
                Kind::Return | Kind::Error | Kind::Signal | Kind::Other => {}
            }
        }
    }

    async fn next(&mut self) -> io::Result<Message> {
        match self.signal.take() {
            Some(signal) => Ok(signal),
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> io::Result<Message> {
        let mut bytes = vec![0; message::FIXED];
        let mut descriptor = None;
        self.fill(&mut bytes, 0, &mut descriptor).await?;
        let whole = message::length(&bytes).ok_or_else(|| unexpected("a message that is too long"))?;
        bytes.resize(whole, 0);
        self.fill(&mut bytes, message::FIXED, &mut descriptor).await?;
        let mut message = Message::parse(&bytes).ok_or_else(|| unexpected("a message"))?;
        message.descriptor = descriptor;
        Ok(message)
    }

    /// Fills the rest of `bytes`, and returns a descriptor if one was received.
    async fn fill(
        &mut self,
        bytes: &mut [u8],
        mut filled: usize,
        descriptor: &mut Option<OwnedFd>,
    ) -> io::Result<()> {
        while filled < bytes.len() {
            // A client of the bus that always sends must not occupy the thread.
            smol::future::yield_now().await;
            let (read, new) = self.stream.read_with(|stream| receive(stream, &mut bytes[filled..])).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += read;
            *descriptor = new.or(descriptor.take());
        }
        Ok(())
    }
}

/// Reads available bytes. Of several descriptors, the last is returned.
fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut received = socket::receive::<4>(stream.as_fd(), bytes, MsgFlags::empty())?;
    Ok((received.length, received.descriptors.pop()))
}

/// Reads a line of the greeting, byte by byte, so that later bytes stay in the socket.
async fn expect_line(stream: &mut Async<UnixStream>, begin: &str) -> io::Result<()> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        line.push(byte[0]);
        if line.len() > LINE {
            return Err(unexpected("a greeting without an end"));
        }
    }
    if line.starts_with(begin.as_bytes()) {
        Ok(())
    } else {
        Err(unexpected(&String::from_utf8_lossy(line.trim_ascii())))
    }
}

fn unexpected(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected on the bus: {what}"))
}

#[cfg(test)]
mod tests;
