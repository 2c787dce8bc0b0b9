//! One run of one container, from the fork of its start helper to the moment
//! its cgroup is empty.
//!
//! ```text
//! Starting ──► Running ──► Exited ──► Over        news: Started, Exited
//!     └──────► Failing ──────────────► Failed     news: StartFailed
//! ```
//! `Exited` and `Failing` wait for the cgroup: an attempt is over when its last
//! process is gone, not its first. A start that fails when its process has been
//! executed after all (its helper was killed in between) is a run, and goes on from `Exited`. The order of an exit is: see it, drain the
//! log, write the exit record, reap.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::console::Console;
use super::log::{Log, Stream};
use super::protocol::{MAX_GROUPS, Message, Name, receive_from};
use super::start::Status;
use super::sys;
use nodlet_core::time::Instant;
use nodlet_host::launch::TerminationMessage;

/// Who a container's process is, and its home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: heapless::Vec<u32, MAX_GROUPS>,
    pub(super) home: String,
}

/// Where an attempt is. See the module.
#[derive(Debug)]
pub(super) enum State {
    Starting {
        helper: Option<Pid>,
        status: OwnedFd,
        init: Option<Pid>,
        /// The process that may still report what it has made: libcontainer's, until it has named
        /// the one that goes on in a PID namespace that others share.
        reporter: Option<Pid>,
        deadline: Instant,
    },
    Running {
        init: Pid,
        pidfd: OwnedFd,
        at: Instant,
    },
    Exited {
        init: Pid,
        at: Instant,
    },
    Over {
        init: Pid,
        at: Instant,
    },
    /// `init` until it is reaped: only then it is known whether it was executed.
    Failing {
        run: bool,
        message: Message,
        init: Option<Pid>,
    },
    Failed {
        run: bool,
        message: Message,
    },
}

/// What the connected agent knows of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) starting: bool,
    pub(super) started: bool,
    pub(super) ended: bool,
}

/// One run of one container.
pub(super) struct Attempt {
    pub(super) container: Name,
    pub(super) number: u32,
    /// A `ContainerConfig`, for the processes that are executed beside the first.
    pub(super) config: OwnedFd,
    pub(super) leaf: PathBuf,
    /// `cgroup.events` of the leaf.
    pub(super) events: Option<File>,
    pub(super) user: User,
    pub(super) state: State,
    pub(super) log: Log,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    /// Its input, and who watches its output.
    pub(super) console: Console,
    pub(super) termination_message: Option<TerminationMessage>,
    /// Names of the layers it runs on.
    pub(super) layers: Vec<String>,
    pub(super) told: Told,
}

impl Attempt {
    pub(super) fn is(&self, container: &str, number: u32) -> bool {
        self.container == container && self.number == number
    }

    /// No process of it is left.
    pub(super) fn is_over(&self) -> bool {
        match &self.state {
            State::Over { .. } | State::Failed { .. } => true,
            State::Starting { .. } | State::Running { .. } | State::Exited { .. } | State::Failing { .. } => {
                false
            }
        }
    }

    /// Waits for its cgroup to become empty.
    pub(super) fn is_emptying(&self) -> bool {
        match &self.state {
            State::Exited { .. } | State::Failing { .. } => true,
            State::Starting { .. } | State::Running { .. } | State::Over { .. } | State::Failed { .. } => {
                false
            }
        }
    }

    /// Ends what a start has left; it is over when the cgroup is empty. Whom helper and reporter named
    /// last is asked for after the kill: they have said all that they ever will, and the process that
    /// they made may have been executed since they were heard.
    pub(super) fn fail(&mut self, run: bool, message: Message) {
        self.kill();
        let init = match &self.state {
            State::Starting { helper, status, init, reporter, .. } => {
                named_last(status.as_fd(), *helper, *reporter).or(*init)
            }
            State::Failing { init, .. } => *init,
            State::Running { .. } | State::Exited { .. } | State::Over { .. } | State::Failed { .. } => None,
        };
        // One that died before its helper named it was reaped as nobody's, and had executed nothing.
        let init = init.filter(|init| sys::is_child(*init));
        self.state = State::Failing { run, message, init };
    }

    /// SIGKILL to all that is left of it.
    pub(super) fn kill(&self) {
        // A cgroup that is gone has nobody in it.
        let _ = sys::kill_leaf(&self.leaf);
    }

    /// Whether its cgroup holds a process, or it is not known yet how the last one ended.
    pub(super) fn is_populated(&mut self) -> bool {
        sys::is_populated(&self.leaf, &mut self.events)
            || matches!(&self.state, State::Failing { init: Some(_), .. })
    }

    /// Its process has opened a terminal, which is all that it has instead of pipes.
    pub(super) fn set_terminal(&mut self, master: OwnedFd, stdin: bool) -> io::Result<()> {
        let is_terminal = nix::sys::statfs::fstatfs(&master)?.filesystem_type() == super::enter::DEVPTS;
        if !is_terminal || !self.console.is_tty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Nobody who has the other end may make the supervisor wait.
        nix::fcntl::fcntl(master.as_raw_fd(), nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        if stdin {
            self.console.set_stdin(master.try_clone()?);
        }
        self.stdout = Some(master);
        Ok(())
    }

    /// Adds a client to its output and, if it has any, its input.
    pub(super) fn attach(
        &mut self,
        stdin: Option<OwnedFd>,
        outputs: [Option<OwnedFd>; 2],
    ) -> Result<(), String> {
        self.console.attach(stdin, outputs, [self.stdout.is_some(), self.stderr.is_some()])
    }

    /// Reads what the container has written, to the last byte that is there now. Not for as
    /// long as there is more: others may hold its pipes, and write without end.
    pub(super) fn drain(&mut self, buffer: &mut [u8]) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let mut left = self.output(stream).as_ref().map_or(0, |pipe| capacity(pipe.as_fd()));
            while left > 0 {
                match self.read(stream, buffer) {
                    0 => break,
                    length => left = left.saturating_sub(length),
                }
            }
        }
    }

    /// Reads from one of its outputs, as much as fits into the buffer; 0 if there is nothing now.
    pub(super) fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> usize {
        loop {
            let Some(pipe) = self.output(stream) else { return 0 };
            match read(pipe.as_fd(), buffer) {
                Ok(length @ 1..) => {
                    self.log.write(stream, &buffer[..length]);
                    self.console.show(stream, &buffer[..length]);
                    return length;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return 0,
                // A terminal that nobody has open any more is EIO.
                Ok(_) | Err(_) => {
                    *self.output(stream) = None;
                    self.console.end([self.stdout.is_some(), self.stderr.is_some()]);
                    return 0;
                }
            }
        }
    }

    fn output(&mut self, stream: Stream) -> &mut Option<OwnedFd> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// The cgroup is empty: nobody writes any more, so what is there is all.
    pub(super) fn end(&mut self, buffer: &mut [u8]) {
        self.drain(buffer);
        self.log.finish();
        self.console.close();
        (self.stdout, self.stderr, self.events) = (None, None, None);
        self.layers.clear();
        // Those of executed processes would keep the agent from removing the leaf.
        for entry in std::fs::read_dir(&self.leaf).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(super::enter::PREFIX) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
        let state = match &self.state {
            State::Exited { init, at } => State::Over { init: *init, at: *at },
            State::Failing { run, message, .. } => State::Failed { run: *run, message: message.clone() },
            State::Starting { .. } | State::Running { .. } | State::Over { .. } | State::Failed { .. } => {
                unreachable!("only an attempt that is emptying ends")
            }
        };
        self.state = state;
    }
}

/// The process that was named last in what is left to hear of a start helper and of the process that
/// forks in a shared PID namespace.
fn named_last(status: BorrowedFd, helper: Option<Pid>, mut reporter: Option<Pid>) -> Option<Pid> {
    let mut last = None;
    while let Ok(Some(received)) = receive_from::<Status>(status) {
        let is_from = |whom: Option<Pid>| whom.is_some() && received.sender == whom;
        let from_helper = is_from(helper);
        if let Status::Created { pid } = received.frame
            && (from_helper || is_from(reporter))
        {
            last = Some(Pid::from_raw(pid)).filter(|pid| sys::is_child(*pid)).or(last);
            reporter = last.filter(|_| from_helper);
        }
    }
    last
}

fn read(fd: BorrowedFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(nix::unistd::read(fd.as_raw_fd(), buffer)?)
}

/// The most bytes that can lie in a pipe, or be on their way through a terminal.
fn capacity(pipe: BorrowedFd) -> usize {
    use nix::fcntl::{FcntlArg, fcntl};
    /// More than the kernel keeps on a terminal's way: 64 KiB and two lines' worth.
    const TERMINAL: usize = 128 * 1024;
    let size = fcntl(pipe.as_raw_fd(), FcntlArg::F_GETPIPE_SZ);
    size.ok().and_then(|size| usize::try_from(size).ok()).unwrap_or(TERMINAL)
}

/// A pipe whose reading end does not block, and whose writing end does.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(reader.as_raw_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((reader, writer))
}
