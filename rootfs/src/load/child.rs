//! The process that reads an archive: how it is started, instructed and supervised, and, in
//! [`run_unpacker`], what it does.
//!
//! ```text
//! parent, which holds the store                 child: standard input is a socket,
//!                                               its directory is the staging one
//!   starts the child, puts it into its cgroup
//!   Request, with the archive's descriptor  ->
//!                                               confines itself, unpacks
//!                                           <-  Progress …
//!                                           <-  Unpacked, or a Refusal
//!   checks all of it, renames, writes the index
//! ```
//!
//! Frames are a length and JSON. The child can make nothing visible in the store and replace nothing. If it
//! dies, or reports something impossible, the parent sweeps the staging directory, and the store is
//! unchanged.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::Pid;
use nodlet_kernel::socket;
use serde::{Deserialize, Serialize};

use super::error::{LoadError, Refusal, printable};
use super::progress::Progress;
use super::source::{BASES_MAX, Source};
use super::unpack::{Request, Unpacked, unpack};
use crate::confine::{self, Limits};
use crate::content::ContentError;
use crate::reference::Digest;
use crate::store::{StoreError, lock};

/// The longest frame in bytes: twice the limit of an archive's documents.
const FRAME_MAX: u32 = 32 * 1024 * 1024;

/// How to start the process that reads an archive.
#[derive(Clone, Debug)]
pub struct Unpacker {
    /// A program that calls [`run_unpacker`].
    pub program: PathBuf,
    /// The arguments that make the program call it.
    pub arguments: Vec<OsString>,
    /// The most bytes of memory of the process.
    pub memory: u64,
    /// `cgroup.procs` of the cgroups into which to move the process.
    pub cgroups: Vec<PathBuf>,
}

/// The first frame, from the parent to the child.
#[derive(Serialize, Deserialize)]
struct Task {
    request: Request,
    limits: Limits,
}

/// A frame from the child. Its texts are printed on a terminal: see [`printable`].
#[derive(Serialize, Deserialize)]
enum ChildMessage {
    Progress(Progress),
    Unpacked(Unpacked),
    Refused(Refusal),
    NotRebuilt(Digest, Refusal),
    NotEnoughSpace {
        needed: u64,
        free: u64,
        is_limited: bool,
    },
    /// A failed operation on a file in the staging directory: verb, file name, error number.
    Failed(String, String, i32),
}

impl Unpacker {
    /// Unpacks `source` into `staging`, in a new process.
    pub(super) fn unpack(
        &self,
        source: Source,
        request: &Request,
        staging: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Unpacked, LoadError> {
        let failed = |verb| move |source| LoadError::Unpacker { verb, source };
        let (ours, theirs) = UnixStream::pair().map_err(failed("make a socket"))?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .current_dir(staging)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed("start the process that unpacks"))?;
        // Kills the process at the end of this function, whatever the result.
        UNPACKING.store(child.id().cast_signed(), Ordering::Relaxed);
        let mut child = Ended(child);
        for path in &self.cgroups {
            std::fs::write(path, child.0.id().to_string())
                .map_err(failed("limit the memory of the process that unpacks"))?;
        }
        let limits = Limits { memory: self.memory };
        // If sending fails, the child's exit status explains why.
        let sent =
            encode(&TaskOf { request, limits: &limits }).and_then(|bytes| send_with(&ours, &bytes, &source));
        drop(source);
        let mut ours = File::from(OwnedFd::from(ours));
        let mut last = sent.err();
        while last.is_none() {
            match receive::<ChildMessage>(&mut ours) {
                Ok(ChildMessage::Progress(step)) => progress(match step {
                    Progress::Reading { layer, bytes, total } => {
                        Progress::Reading { layer: printable(&layer), bytes, total }
                    }
                    Progress::Warning(text) => Progress::Warning(printable(&text)),
                    step @ (Progress::Stored { .. } | Progress::Present { .. }) => step,
                }),
                Ok(ChildMessage::Unpacked(unpacked)) => return Ok(unpacked),
                Ok(ChildMessage::Refused(refusal)) => return Err(LoadError::Refused(refusal.printable())),
                Ok(ChildMessage::NotRebuilt(layer, cause)) => {
                    return Err(LoadError::NotRebuilt { layer, cause: cause.printable() });
                }
                Ok(ChildMessage::NotEnoughSpace { needed, free, is_limited }) => {
                    return Err(LoadError::not_enough_space(staging, needed, free, is_limited));
                }
                Ok(ChildMessage::Failed(verb, name, errno)) => {
                    let error = ContentError::from_wire((printable(&verb), printable(&name), errno), staging);
                    return Err(StoreError::from(error).into());
                }
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(LoadError::InvalidResult { problem: error.to_string() })
            }
            _ => {
                let status = child.0.wait().map_err(failed("wait for the process that unpacks"))?;
                Err(LoadError::Died { status, memory: self.memory })
            }
        }
    }
}

/// A borrowed [`Task`].
#[derive(Serialize)]
struct TaskOf<'a> {
    request: &'a Request,
    limits: &'a Limits,
}

/// A process that is killed when this value is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        UNPACKING.store(0, Ordering::Relaxed);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process that unpacks for this process; 0 for none.
static UNPACKING: AtomicI32 = AtomicI32::new(0);

/// Kills the process that unpacks for this process, so that the load fails and removes its files. Returns whether there
/// was one. A signal handler may call this function.
pub fn stop_unpacker() -> bool {
    let process = UNPACKING.load(Ordering::Relaxed);
    process > 0 && kill(Pid::from_raw(process), Signal::SIGKILL).is_ok()
}

/// The main function of the child process. Standard input is the parent's socket, and layers are written to
/// the working directory.
pub fn run_unpacker() -> ExitCode {
    match serve_request() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failed to unpack for another process: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the child.
pub(super) fn serve_request() -> io::Result<()> {
    confine::close_inherited()?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let (mut descriptors, length) = receive_with(&socket)?;
    let mut socket = File::from(socket);
    let task: Task = receive_rest(&mut socket, length)?;
    // Kept until the end: another load waits for this lock before it sweeps.
    let _lock = lock(Path::new(".")).map_err(io::Error::other)?;
    let mut send = |message: &ChildMessage| encode(message).and_then(|bytes| socket.write_all(&bytes));
    let archive = descriptors.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let bases = task.request.rebuilt.iter().copied().zip(descriptors.map(File::from)).collect();
    let (archive, weaker) = match confine::confine(File::from(archive), &task.limits) {
        Ok(confined) => confined,
        Err(error) => {
            return send(&ChildMessage::Refused(Refusal::new(
                "confine the process that reads the archive",
                &error,
            )));
        }
    };
    for weakness in weaker {
        send(&ChildMessage::Progress(Progress::Warning(weakness.to_owned())))?;
    }
    let source = Source { archive, bases };
    let unpacked = unpack(source, &task.request, Path::new("."), &mut |step| {
        // A parent may have died before it could kill this process: nobody needs the result.
        if send(&ChildMessage::Progress(step)).is_err() {
            std::process::exit(1);
        }
    });
    send(&match unpacked {
        Ok(unpacked) => ChildMessage::Unpacked(unpacked),
        Err(LoadError::NotRebuilt { layer, cause }) => ChildMessage::NotRebuilt(layer, cause),
        Err(LoadError::NotEnoughSpace { needed, free, is_limited, .. }) => {
            ChildMessage::NotEnoughSpace { needed, free, is_limited }
        }
        Err(LoadError::Store(StoreError::Content(error))) => {
            let (verb, name, errno) = error.to_wire();
            ChildMessage::Failed(verb, name, errno)
        }
        Err(error) => ChildMessage::Refused(Refusal::of(&error)),
    })
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size_of::<u32>()];
    serde_json::to_writer(&mut bytes, value)?;
    let length = u32::try_from(bytes.len() - size_of::<u32>()).unwrap_or(u32::MAX);
    bytes[..size_of::<u32>()].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

fn receive<T: serde::de::DeserializeOwned>(stream: &mut File) -> io::Result<T> {
    let mut length = [0; size_of::<u32>()];
    stream.read_exact(&mut length)?;
    receive_rest(stream, u32::from_le_bytes(length))
}

fn receive_rest<T: serde::de::DeserializeOwned>(stream: &mut File, length: u32) -> io::Result<T> {
    if length > FRAME_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{length} bytes at once: at most {FRAME_MAX} are accepted"),
        ));
    }
    let mut bytes = Vec::new();
    stream.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() == length as usize {
        serde_json::from_slice(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Sends a frame. Its length carries the descriptors of the archive and of its bases.
fn send_with(socket: &UnixStream, bytes: &[u8], source: &Source) -> io::Result<()> {
    let (length, rest) = bytes.split_at(size_of::<u32>());
    let files = std::iter::once(&source.archive).chain(source.bases.values());
    let descriptors: Vec<RawFd> = files.map(|file| file.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(length)], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    let mut socket = socket;
    socket.write_all(rest)
}

fn receive_with(socket: &OwnedFd) -> io::Result<(std::vec::IntoIter<OwnedFd>, u32)> {
    let mut length = [0; size_of::<u32>()];
    let received = socket::receive::<{ BASES_MAX + 1 }>(socket.as_fd(), &mut length, MsgFlags::MSG_WAITALL)?;
    if received.length == size_of::<u32>() {
        Ok((received.descriptors.into_iter(), u32::from_le_bytes(length)))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
