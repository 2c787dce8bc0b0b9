//! A message bus with logind on it, as far as an agent uses them.

use std::io::{IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// A fake logind, which listens where an agent looks for the bus, and serves one agent at a time.
pub struct FakeLogind {
    /// The connected agent.
    agent: Arc<Mutex<Option<UnixStream>>>,
    locks: Receiver<UnixStream>,
}

/// An inhibitor lock: the machine stays up as long as an agent keeps the other end open.
pub struct Lock(UnixStream);

impl Lock {
    /// Whether the agent has released the lock.
    pub fn is_released(&mut self) -> bool {
        self.0.set_nonblocking(true).expect("it is a socket");
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}

impl FakeLogind {
    /// Starts a bus at this path.
    pub fn listen(path: &Path) -> FakeLogind {
        let listener = UnixListener::bind(path).expect("nothing is there yet");
        let agent: Arc<Mutex<Option<UnixStream>>> = Arc::default();
        let (taken, locks) = channel();
        let current = Arc::clone(&agent);
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                *current.lock().expect("nobody panics") = stream.try_clone().ok();
                // Errors after the end of an agent do not matter.
                let _ = serve(stream, &taken);
            }
        });
        FakeLogind { agent, locks }
    }

    /// Waits for the next lock that an agent takes.
    #[track_caller]
    pub fn lock(&self) -> Lock {
        Lock(self.locks.recv_timeout(Duration::from_secs(60)).expect("an agent takes a lock"))
    }

    /// Signals that the machine is about to go down, or no longer is.
    pub fn prepare_for_shutdown(&self, begins: bool) {
        let mut agent = self.agent.lock().expect("nobody panics");
        let signal = message(4, 0, "PrepareForShutdown", "b", &[u8::from(begins), 0, 0, 0]);
        agent.as_mut().expect("an agent is here").write_all(&signal).expect("it listens");
    }
}

fn serve(mut stream: UnixStream, taken: &Sender<UnixStream>) -> std::io::Result<()> {
    for (asked, answer) in [("AUTH", "OK 0123\r\n"), ("NEGOTIATE", "AGREE_UNIX_FD\r\n"), ("BEGIN", "")] {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        assert!(String::from_utf8_lossy(&line).contains(asked), "{line:?}");
        stream.write_all(answer.as_bytes())?;
    }
    loop {
        let mut call = vec![0; 16];
        stream.read_exact(&mut call)?;
        let number =
            |place: usize| u32::from_le_bytes(call[place..place + 4].try_into().expect("four bytes"));
        let (body, serial, fields) = (number(4), number(8), number(12));
        call.resize(16 + (fields as usize).next_multiple_of(8) + body as usize, 0);
        stream.read_exact(&mut call[16..])?;
        let said = String::from_utf8_lossy(&call);
        if said.contains("InhibitDelayMaxUSec") {
            let mut body = vec![1, b't', 0, 0, 0, 0, 0, 0];
            body.extend(60_000_000_u64.to_le_bytes());
            stream.write_all(&message(2, serial, "", "v", &body))?;
        } else if said.contains("Inhibit") {
            let (ours, theirs) = UnixStream::pair()?;
            let answer = message(2, serial, "", "h", &[0; 4]);
            let raw = [theirs.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&raw)];
            sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&answer)], &rights, MsgFlags::empty(), None)?;
            let _ = taken.send(ours);
        } else {
            stream.write_all(&message(2, serial, "", "s", &text(LOGIND)))?;
        }
    }
}

/// The bus name of logind.
const LOGIND: &str = ":1.1";

/// Encodes a message from logind.
fn message(kind: u8, answers: u32, member: &str, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![b'l', kind, 0, 1];
    for number in [body.len() as u32, 1, 0] {
        bytes.extend(number.to_le_bytes());
    }
    let align = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(8), 0);
    for (code, value) in [(3, member), (7, LOGIND)].into_iter().filter(|(_, value)| !value.is_empty()) {
        align(&mut bytes);
        bytes.extend([code, 1, b's', 0]);
        bytes.extend(text(value));
    }
    if answers > 0 {
        align(&mut bytes);
        bytes.extend([5, 1, b'u', 0]);
        bytes.extend(answers.to_le_bytes());
    }
    align(&mut bytes);
    bytes.extend([8, 1, b'g', 0, signature.len() as u8]);
    bytes.extend(signature.as_bytes());
    bytes.push(0);
    let fields = (bytes.len() - 16) as u32;
    bytes[12..16].copy_from_slice(&fields.to_le_bytes());
    align(&mut bytes);
    bytes.extend(body);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}
