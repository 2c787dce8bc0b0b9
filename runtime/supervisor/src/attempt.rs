//! One run of one container, from the fork of its start helper until its cgroup is empty.
//!
//! ```text
//! Starting ──► Running ──► Exited ──► Ended       reports: Started, Exited
//!     └──────► Failing ──────────────► Failed     report: StartFailed
//! ```
//! `Exited` and `Failing` wait for the cgroup: an attempt is over when its last process has ended, not its
//! first. If a start fails although its process has been executed (its helper was killed in between), it
//! counts as a run, and continues from `Exited`. The order of an exit is: see it, drain the log, write the
//! exit record, reap.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::console::Console;
use super::error::StepError;
use super::log::{Log, Stream};
use super::protocol::{Message, Name, Status, receive_from};
use super::saved;
use super::sys;
use super::user::User;
use nodlet_core::time::Instant;
use nodlet_host::launch::TerminationMessage;
use nodlet_host::terminal;

/// The state of an attempt; see the module documentation for the transitions.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum State {
    #[serde(skip)]
    Starting {
        helper: Option<Pid>,
        status: OwnedFd,
        init: Option<Pid>,
        /// The process that may still report the process it has made: libcontainer's process, until it has
        /// named the one that continues in a PID namespace shared with others.
        reporter: Option<Pid>,
        deadline: Instant,
    },
    Running {
        #[serde(with = "saved")]
        init: Pid,
        /// Always there, except before [`Attempt::resume`].
        #[serde(skip)]
        pidfd: Option<OwnedFd>,
        at: Instant,
    },
    Exited {
        #[serde(with = "saved")]
        init: Pid,
        at: Instant,
    },
    #[serde(rename = "Over")]
    Ended {
        #[serde(with = "saved")]
        init: Pid,
        at: Instant,
    },
    /// `init` is set until that process is reaped: only then is it known whether it was executed.
    Failing {
        run: bool,
        message: Message,
        #[serde(default, with = "saved")]
        init: Option<Pid>,
    },
    Failed {
        run: bool,
        message: Message,
    },
}

/// The connected agent's knowledge of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) starting: bool,
    pub(super) started: bool,
    pub(super) ended: bool,
}

/// One run of one container.
#[derive(Serialize, Deserialize)]
pub(super) struct Attempt {
    pub(super) container: Name,
    pub(super) number: u32,
    /// A `ContainerConfig`, used for processes that are executed in the container later: the agent's, and soon the copy
    /// that is memory of the container.
    #[serde(with = "saved")]
    pub(super) config: OwnedFd,
    pub(super) leaf: PathBuf,
    /// `cgroup.events` of the leaf.
    #[serde(skip)]
    pub(super) events: Option<File>,
    pub(super) user: User,
    pub(super) state: State,
    #[serde(flatten)]
    pub(super) log: Log,
    #[serde(with = "saved")]
    pub(super) stdout: Option<OwnedFd>,
    #[serde(with = "saved")]
    pub(super) stderr: Option<OwnedFd>,
    /// The container's input, and the clients that watch its output.
    #[serde(default)]
    pub(super) console: Console,
    pub(super) termination_message: Option<TerminationMessage>,
    /// Names of the layers of the container's root file system.
    pub(super) layers: Vec<String>,
    #[serde(skip)]
    pub(super) reported: Reported,
}

impl Attempt {
    pub(super) fn is(&self, container: &str, number: u32) -> bool {
        self.container == container && self.number == number
    }

    /// Opens what the earlier binary of the supervisor has not left open. The first process is a child that was not
    /// reaped, so its PID has not been reused.
    pub(super) fn resume(&mut self) -> io::Result<()> {
        self.log.open_first();
        if let State::Running { init, pidfd, .. } = &mut self.state {
            *pidfd = Some(sys::pidfd_open(*init)?);
        }
        Ok(())
    }

    /// All descriptors of the attempt that the next binary of the supervisor needs.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &OwnedFd> {
        let outputs = [&self.stdout, &self.stderr].into_iter().flatten();
        [&self.config].into_iter().chain(outputs).chain(self.console.descriptors())
    }

    /// The first process of the container and its pidfd, while it runs.
    pub(super) fn running(&self) -> Option<(Pid, &OwnedFd)> {
        match &self.state {
            State::Running { init, pidfd, .. } => Some((*init, pidfd.as_ref()?)),
            State::Starting { .. } | State::Exited { .. } | State::Ended { .. } => None,
            State::Failing { .. } | State::Failed { .. } => None,
        }
    }

    /// Whether no process of the attempt is left.
    pub(super) fn has_ended(&self) -> bool {
        match &self.state {
            State::Ended { .. } | State::Failed { .. } => true,
            State::Starting { .. } | State::Running { .. } | State::Exited { .. } | State::Failing { .. } => {
                false
            }
        }
    }

    /// Whether the attempt waits for its cgroup to become empty.
    pub(super) fn is_emptying(&self) -> bool {
        match &self.state {
            State::Exited { .. } | State::Failing { .. } => true,
            State::Starting { .. } | State::Running { .. } | State::Ended { .. } | State::Failed { .. } => {
                false
            }
        }
    }

    /// Ends a failed start; the attempt is over when the cgroup is empty. The process that helper and
    /// reporter named last is read after the kill: by then they have sent all their reports, and the process
    /// that they made may have been executed since the last one was read.
    pub(super) fn fail(&mut self, run: bool, message: Message) {
        self.kill();
        let init = match &self.state {
            State::Starting { helper, status, init, reporter, .. } => {
                named_last(status.as_fd(), *helper, *reporter).or(*init)
            }
            State::Failing { init, .. } => *init,
            State::Running { .. } | State::Exited { .. } | State::Ended { .. } | State::Failed { .. } => None,
        };
        // A process that died before its helper named it was reaped as an unknown child, and had executed
        // nothing.
        let init = init.filter(|init| sys::is_child(*init));
        self.state = State::Failing { run, message, init };
    }

    /// Sends SIGKILL to all processes that are left of the attempt.
    pub(super) fn kill(&self) {
        // A cgroup that was removed has no process.
        let _ = sys::kill_leaf(&self.leaf);
    }

    /// Whether the attempt's cgroup has a process, or it is not known yet how the last one ended.
    pub(super) fn is_populated(&mut self) -> bool {
        sys::is_populated(&self.leaf, &mut self.events)
            || matches!(&self.state, State::Failing { init: Some(_), .. })
    }

    /// Sets the terminal that the container's process has opened, which replaces the pipes.
    pub(super) fn set_terminal(&mut self, master: OwnedFd, stdin: bool) -> io::Result<()> {
        let is_terminal = nix::sys::statfs::fstatfs(&master)?.filesystem_type() == super::enter::DEVPTS;
        if !is_terminal || !self.console.is_tty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // A process with the other end must not be able to block the supervisor.
        nix::fcntl::fcntl(master.as_raw_fd(), nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        if stdin {
            self.console.set_stdin(master.try_clone()?);
        }
        self.stdout = Some(master);
        Ok(())
    }

    /// Adds a client to the container's output and, if it has any, its input.
    pub(super) fn attach(
        &mut self,
        stdin: Option<OwnedFd>,
        outputs: [Option<OwnedFd>; 2],
    ) -> Result<(), StepError> {
        self.console.attach(stdin, outputs, [self.stdout.is_some(), self.stderr.is_some()])
    }

    /// Reads the output that the container has written so far. It does not read for as long as there is more:
    /// other processes may have the pipes, and write without end.
    pub(super) fn drain(&mut self, buffer: &mut [u8]) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let mut remaining = self.output(stream).as_ref().map_or(0, |pipe| capacity(pipe.as_fd()));
            while remaining > 0 {
                match self.read(stream, buffer) {
                    0 => break,
                    length => remaining = remaining.saturating_sub(length),
                }
            }
        }
    }

    /// Reads from one of the container's outputs, as much as fits into the buffer; 0 if there is nothing now.
    pub(super) fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> usize {
        loop {
            let Some(pipe) = self.output(stream) else { return 0 };
            match terminal::read(pipe, buffer) {
                Ok(length @ 1..) => {
                    self.log.write(stream, &buffer[..length]);
                    self.console.show(stream, &buffer[..length]);
                    return length;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return 0,
                // A terminal that no process has open any more returns EIO.
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

    /// Completes the attempt after its cgroup became empty, when no process writes output any more.
    pub(super) fn end(&mut self, buffer: &mut [u8]) {
        self.drain(buffer);
        self.log.finish();
        self.console.close();
        (self.stdout, self.stderr, self.events) = (None, None, None);
        self.layers.clear();
        // The cgroups of executed processes would prevent the agent from removing the leaf.
        for entry in std::fs::read_dir(&self.leaf).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(super::enter::PREFIX) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
        let state = match &self.state {
            State::Exited { init, at } => State::Ended { init: *init, at: *at },
            State::Failing { run, message, .. } => State::Failed { run: *run, message: message.clone() },
            State::Starting { .. } | State::Running { .. } | State::Ended { .. } | State::Failed { .. } => {
                unreachable!("only an attempt that is emptying ends")
            }
        };
        self.state = state;
    }
}

/// The process that was named last in the unread reports of a start helper and of the process that forks in a
/// shared PID namespace.
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

/// The maximum of bytes in a pipe, or on their way through a terminal.
fn capacity(pipe: BorrowedFd) -> usize {
    use nix::fcntl::{FcntlArg, fcntl};
    /// More than the kernel buffers for a terminal: 64 KiB and two lines.
    const TERMINAL: usize = 128 * 1024;
    let size = fcntl(pipe.as_raw_fd(), FcntlArg::F_GETPIPE_SZ);
    size.ok().and_then(|size| usize::try_from(size).ok()).unwrap_or(TERMINAL)
}
