//! The protocol between agent and supervisor: small frames of JSON on a SEQPACKET socket, with descriptors
//! beside them; large data is in a sealed memfd.
//!
//! Two requests never change, so that any agent can greet and replace any supervisor: [`Request::Hello`] and
//! [`Request::Reexec`], with their answers [`Report::Hello`] and [`Report::ReexecFailed`]. All others may change:
//! a new agent updates its supervisors before it sends any other request.
//!
//! Helpers report to their supervisor with [`Status`] frames on a socket of the same kind.
//!
//! Reports are never queued. They are derived from the supervisor's state, and sent when the socket accepts
//! them.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::sys::socket::{self, ControlMessage, MsgFlags};
use nix::unistd::Pid;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use nodlet_core::time::Instant;

/// The version of all frames except those that never change.
pub(super) const VERSION: u32 = 2;

/// The message of a supervisor that cannot replace itself now, but may soon. Never changes.
pub(super) const BUSY: &str = "something is being started; ask again";

/// Upper bound of the reported groups of one process; a container with more is rejected.
pub(super) const MAX_GROUPS: usize = 64;

/// Upper bound of the descriptors in one frame: the kernel's SCM_MAX_FD. An image has at most 127 layers.
const MAX_DESCRIPTORS: usize = 253;

/// Maximum length of a frame: a message with every byte escaped, and the rest.
const MAX_FRAME: usize = 8192;

/// A container's name: a DNS label.
pub(super) type Name = heapless::String<64>;

/// A text for people; a longer one is cut.
pub(super) type Message = heapless::String<1024>;

/// Requests of the agent.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Asks for the supervisor's version and state. Never changes.
    Hello {
        /// [`VERSION`] of the agent.
        version: u32,
    },
    /// Makes the supervisor replace itself. Never changes. With it: the new binary.
    Reexec,
    /// Requests the sandbox. With it: a `SandboxConfig`.
    CreateSandbox,
    /// Requests the start of a container. With it: a `ContainerConfig`, then its layers, lowest first.
    Start { container: Name, number: u32 },
    /// Requests a process in a container. With it: an `ExecConfig`, then the given ones of stdin, stdout and
    /// stderr.
    Exec { id: u32, container: Name, number: u32, stdio: [bool; 3] },
    /// Requests a container's output, and that input is passed on. With it: the given ones of stdin, stdout
    /// and stderr, which are the client's ends of pipes.
    Attach { id: u32, container: Name, number: u32, stdio: [bool; 3] },
    /// Forgets an attempt that is over and that the agent does not need any more.
    Forget { container: Name, number: u32 },
    /// Makes the supervisor end when no container is left.
    End,
    /// Makes the supervisor keep descriptors for the next agent, instead of those that it keeps. With it: the descriptors.
    /// Supervisors of earlier binaries do not know it: see `Supervisor::hold_sockets`.
    HoldSockets,
    /// Requests the descriptors of `HoldSockets`. The same applies to earlier binaries.
    HeldSockets,
}

/// User and groups of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ReportedUser {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: heapless::Vec<u32, MAX_GROUPS>,
}

/// Reports from the supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a frame of fixed capacity on the stack")]
pub(super) enum Report {
    /// Answers `Hello`; if the versions are equal, the whole state follows, up to `HelloEnd`. Never changes.
    Hello { version: u32, pid: i32 },
    /// The whole state has been reported.
    HelloEnd,
    /// The namespaces exist.
    SandboxReady { at: Instant },
    /// The namespaces could not be made.
    SandboxFailed { message: Message },
    /// A container's process was executed. With it, while it runs: its pidfd.
    Started {
        container: Name,
        number: u32,
        pid: i32,
        at: Instant,
        uid: u32,
        gid: u32,
        groups: heapless::Vec<u32, MAX_GROUPS>,
    },
    /// A start is under way: `Started` or `StartFailed` will follow. Sent only before `HelloEnd`.
    Starting { container: Name, number: u32 },
    /// A start failed, and no process is left.
    StartFailed {
        container: Name,
        number: u32,
        run: bool,
        message: Message,
        /// The user of the process that could not be executed. Supervisors of earlier versions do not report it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<ReportedUser>,
    },
    /// The attempt is over; its exit record has the result.
    Exited { container: Name, number: u32 },
    /// A process was executed in a container. With it: the master of its terminal, if it has one.
    ExecStarted { id: u32, pid: i32 },
    /// A process could not be executed in a container.
    ExecFailed { id: u32, message: Message },
    /// A process that was executed in a container has ended.
    ExecExited { id: u32, code: i32 },
    /// Answers `Attach`. With it: the master of the container's terminal, if it has one. The end of the
    /// session is seen from its pipes.
    Attached { id: u32 },
    /// Answers `Attach`: no client was attached.
    AttachFailed { id: u32, message: Message },
    /// A layer that containers are running on. With it: its descriptor.
    Layer { name: heapless::String<128> },
    /// The supervisor could not replace itself. Never changes.
    ReexecFailed { message: Message },
    /// Answers `HeldSockets`. With it: the descriptors.
    HeldSockets,
}

/// The reports of a helper and of the process that it makes to the supervisor.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a frame of fixed capacity on the stack")]
pub(super) enum Status {
    /// The copy of the container's configuration that the supervisor keeps. With it: the copy.
    Config,
    /// User and groups of the process.
    User { uid: u32, gid: u32, groups: heapless::Vec<u32, MAX_GROUPS>, home: heapless::String<512> },
    /// The terminal that the container's process has opened. With it: the master.
    Terminal {
        /// Whether input is to be written to the terminal.
        stdin: bool,
    },
    /// The container's process, which waits for the request to execute.
    Created { pid: i32 },
    /// The start failed.
    Failed {
        /// Whether the container was created and only its process could not be executed.
        run: bool,
        message: Message,
    },
}

/// `text`, cut at a character to what fits.
pub(super) fn cut<const N: usize>(text: &str) -> heapless::String<N> {
    let mut end = text.len().min(N);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    heapless::String::try_from(&text[..end]).expect("it was cut to fit")
}

/// Sends one frame with descriptors. `WouldBlock` if the socket is full.
pub(super) fn send<T: Serialize>(
    socket: BorrowedFd,
    frame: &T,
    descriptors: &[BorrowedFd],
) -> io::Result<()> {
    let mut bytes = [0; MAX_FRAME];
    let length = serde_json_core::to_slice(frame, &mut bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the frame is too long"))?;
    let raw: heapless::Vec<RawFd, MAX_DESCRIPTORS> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage] = if raw.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    socket::sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&bytes[..length])], control, flags, None)?;
    Ok(())
}

/// A frame that was received.
pub(super) struct Received<T> {
    pub(super) frame: T,
    pub(super) descriptors: Vec<OwnedFd>,
    /// The sender's PID in the receiver's PID namespace, as the kernel reports it, after a call of
    /// [`enable_sender_credentials`].
    pub(super) sender: Option<Pid>,
}

/// Makes the kernel add the sender to each frame that `socket` receives. A process with the other end cannot
/// fake the sender, unless it has CAP_SYS_ADMIN: then it can name another process of its own PID namespace.
pub(super) fn enable_sender_credentials(socket: BorrowedFd) -> io::Result<()> {
    Ok(socket::setsockopt(&socket, socket::sockopt::PassCred, &true)?)
}

/// Makes the process at the other end continue, which waits for that.
pub(super) fn signal_continue(socket: BorrowedFd) -> io::Result<()> {
    socket::send(socket.as_raw_fd(), &[0], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)?;
    Ok(())
}

/// Waits until the other end sends the signal to continue.
///
/// # Errors
/// The other end is gone.
pub(super) fn wait_for_continue(socket: BorrowedFd) -> io::Result<()> {
    loop {
        match socket::recv(socket.as_raw_fd(), &mut [0], MsgFlags::empty()) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(()),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one frame with its descriptors. `None` if the other end is gone.
pub(super) fn receive<T: DeserializeOwned>(socket: BorrowedFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    Ok(receive_from(socket)?.map(|received| (received.frame, received.descriptors)))
}

/// Receives one frame with its descriptors and its sender. `None` if the other end is gone.
pub(super) fn receive_from<T: DeserializeOwned>(socket: BorrowedFd) -> io::Result<Option<Received<T>>> {
    let mut bytes = [0; MAX_FRAME];
    let nodlet_kernel::socket::Received { length, descriptors, sender } =
        nodlet_kernel::socket::receive::<MAX_DESCRIPTORS>(socket, &mut bytes, MsgFlags::MSG_DONTWAIT)?;
    if length == 0 {
        // The end of the stream has no sender; an empty frame has one.
        return if sender.is_none() { Ok(None) } else { Err(io::ErrorKind::InvalidData.into()) };
    }
    let mut unescaped = [0; MAX_FRAME];
    let (frame, _) = serde_json_core::from_slice_escaped(&bytes[..length], &mut unescaped)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some(Received { frame, descriptors, sender }))
}

/// A sealed memfd with `value` as JSON.
pub(super) fn memfd<T: Serialize>(value: &T) -> io::Result<OwnedFd> {
    sealed(&serde_json::to_vec(value)?)
}

/// Reads the value of a [`memfd`] like [`read_memfd`], and copies it into a memfd whose memory is that of the caller's
/// cgroup.
pub(super) fn read_and_copy_memfd<T: DeserializeOwned>(memfd: BorrowedFd) -> io::Result<(T, OwnedFd)> {
    let mut bytes = contents(memfd)?;
    let copy = sealed(&bytes);
    let value = serde_json::from_slice(&bytes);
    clear(&mut bytes);
    Ok((value?, copy?))
}

fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(memfd_create(c"nodlet", flags)?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file.into())
}

/// Reads the value of a [`memfd`], any number of times. No copy of its text stays in memory: see
/// `SupervisedContainer`.
pub(super) fn read_memfd<T: DeserializeOwned>(memfd: BorrowedFd) -> io::Result<T> {
    let mut bytes = contents(memfd)?;
    let value = serde_json::from_slice(&bytes);
    clear(&mut bytes);
    Ok(value?)
}

fn contents(memfd: BorrowedFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(rustix::fs::fstat(memfd)?.st_size).unwrap_or(0)];
    // Read by position, since forked helpers share the offset.
    match rustix::io::pread(memfd, &mut bytes, 0)? {
        length if length == bytes.len() => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn clear(bytes: &mut [u8]) {
    bytes.fill(0);
    // Otherwise the compiler may omit a write that nobody reads.
    std::hint::black_box(bytes);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socket::socketpair(
            socket::AddressFamily::Unix,
            socket::SockType::SeqPacket,
            None,
            socket::SockFlag::SOCK_CLOEXEC,
        )
        .unwrap()
    }

    #[test]
    fn frames_arrive_whole_with_their_descriptors() {
        let (ours, theirs) = pair();
        let config = memfd(&vec!["a", "b"]).unwrap();
        let start = Request::Start { container: cut("web"), number: 7 };
        send(ours.as_fd(), &start, &[config.as_fd()]).unwrap();
        send(ours.as_fd(), &Request::End, &[]).unwrap();
        let (frame, descriptors) = receive::<Request>(theirs.as_fd()).unwrap().unwrap();
        assert_eq!(frame, start);
        assert_eq!(read_memfd::<Vec<String>>(descriptors[0].as_fd()).unwrap(), ["a", "b"]);
        let (value, copy) = read_and_copy_memfd::<Vec<String>>(descriptors[0].as_fd()).unwrap();
        assert_eq!(value, ["a", "b"]);
        assert_eq!(read_memfd::<Vec<String>>(copy.as_fd()).unwrap(), value);
        assert_eq!(receive::<Request>(theirs.as_fd()).unwrap().unwrap().0, Request::End);
        drop(ours);
        assert!(receive::<Request>(theirs.as_fd()).unwrap().is_none());
    }

    #[test]
    fn an_empty_frame_is_an_error_if_sender_credentials_are_enabled() {
        let (ours, theirs) = pair();
        enable_sender_credentials(theirs.as_fd()).unwrap();
        send(ours.as_fd(), &Request::End, &[]).unwrap();
        let received = receive_from::<Request>(theirs.as_fd()).unwrap().unwrap();
        assert_eq!(received.sender, Some(Pid::this()));
        let nothing = [IoSlice::new(&[])];
        socket::sendmsg::<()>(ours.as_raw_fd(), &nothing, &[], MsgFlags::empty(), None).unwrap();
        assert!(receive_from::<Request>(theirs.as_fd()).is_err());
        drop(ours);
        assert!(receive_from::<Request>(theirs.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_message_of_which_every_character_is_escaped_fits_into_a_frame() {
        let (ours, theirs) = pair();
        for text in ["\u{1}".repeat(5000), "\"\n\\".repeat(5000), "é".repeat(5000)] {
            let message: Message = cut(&text);
            assert!(message.len() > 1000);
            let report = Report::ExecFailed { id: 1, message };
            send(ours.as_fd(), &report, &[]).unwrap();
            assert_eq!(receive::<Report>(theirs.as_fd()).unwrap().unwrap().0, report);
        }
    }

    /// A supervisor reads frames of any process of root, and an agent reads frames of a supervisor that a
    /// container may have broken into.
    #[test]
    fn a_randomly_changed_frame_is_either_decoded_or_rejected() {
        let encoded = |frame: &dyn Fn(&mut [u8]) -> usize| {
            let mut bytes = [0; MAX_FRAME];
            let length = frame(&mut bytes);
            bytes[..length].to_vec()
        };
        let request = |frame: Request| encoded(&|bytes| serde_json_core::to_slice(&frame, bytes).unwrap());
        let report = |frame: Report| encoded(&|bytes| serde_json_core::to_slice(&frame, bytes).unwrap());
        let corpus = [
            request(Request::Hello { version: 1 }),
            request(Request::Reexec),
            request(Request::Start { container: cut("web"), number: 7 }),
            request(Request::Exec { id: 9, container: cut("web"), number: 7, stdio: [true, false, true] }),
            request(Request::Forget { container: cut("web"), number: 7 }),
            request(Request::HoldSockets),
            report(Report::HeldSockets),
            report(Report::Hello { version: 1, pid: 9 }),
            report(Report::SandboxFailed { message: cut("no \u{1} \"space\" é") }),
            report(Report::ExecFailed { id: 3, message: cut(&"\u{1}".repeat(5000)) }),
        ];
        let words: [&[u8]; 7] = [b"null", b"\\u0000", b"\\ud800", b"{", b"[", b"\"Hello\":", b"\xff"];
        let (ours, theirs) = pair();
        nodlet_fuzz::fuzz("protocol frame", 20_000, &corpus, &words, |input| {
            for is_request in [true, false] {
                // An empty frame is how a socket reports that the other end is closed.
                if input.is_empty()
                    || nix::unistd::write(&ours, &input[..input.len().min(2 * MAX_FRAME)]).is_err()
                {
                    return;
                }
                let again = if is_request {
                    receive::<Request>(theirs.as_fd()).map(|got| got.map(|(frame, _)| request(frame)))
                } else {
                    receive::<Report>(theirs.as_fd()).map(|got| got.map(|(frame, _)| report(frame)))
                };
                if let Ok(frame) = again {
                    assert!(!frame.expect("the other end is there").is_empty());
                }
            }
        });
    }

    #[test]
    fn the_frames_that_never_change_have_not_changed() {
        let text = |frame: &Request| serde_json_core::to_string::<_, 64>(frame).unwrap();
        assert_eq!(text(&Request::Hello { version: 3 }), r#"{"Hello":{"version":3}}"#);
        assert_eq!(text(&Request::Reexec), r#""Reexec""#);
        let report = Report::Hello { version: 3, pid: 9 };
        assert_eq!(
            serde_json_core::to_string::<_, 64>(&report).unwrap(),
            r#"{"Hello":{"version":3,"pid":9}}"#
        );
        let report = Report::ReexecFailed { message: cut("why") };
        let text = serde_json_core::to_string::<_, 64>(&report).unwrap();
        assert_eq!(text, r#"{"ReexecFailed":{"message":"why"}}"#);
    }
}
