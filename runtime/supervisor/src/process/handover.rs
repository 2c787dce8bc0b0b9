//! Replacement of a supervisor by a newer binary: in place, so that PID, children, locks and descriptors
//! stay.
//!
//! The whole state goes into a memfd. The new binary first parses it in a child, as a trial; only after that
//! does the supervisor execute the binary. A binary that fails the trial changes nothing.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_core::sorted::SortedMap;
use serde::{Deserialize, Serialize};

use super::{Agent, Process, Sandbox, blocked_signals};
use crate::attempt::{Attempt, Reported, State};
use crate::client::seal;
use crate::console::{Console, SavedConsole};
use crate::enter::{Exec, ExecState};
use crate::log::{Log, Partial};
use crate::protocol::{self, Message, Name, Report, cut};
use crate::sandbox::Namespaces;
use crate::sys::{self, Ended, Parent, inherited, kept};
use crate::user::User;
use nodlet_core::time::Instant;
use nodlet_host::launch::{ContainerConfig, LogConfig, TerminationMessage};

/// Argument of the trial, `nodlet supervisor --parse FD`: checks whether this binary can take over.
pub(super) const PARSE: &str = "--parse";

/// Argument of the takeover, `nodlet supervisor --resume FD`.
pub(super) const RESUME: &str = "--resume";

/// The exit code of a successful trial. Not 0, with which any program may exit.
const TRIAL_SUCCEEDED: i32 = 113;

/// The longest time for a trial, which reads a few kilobytes.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The whole state of a supervisor. Descriptors are numbers: they stay open.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    dir: PathBuf,
    listener: RawFd,
    lock: RawFd,
    agent: Option<RawFd>,
    sandbox: SavedSandbox,
    attempts: Vec<SavedAttempt>,
    execs: Vec<SavedExec>,
    layers: SortedMap<String, RawFd>,
    ending: bool,
}

#[derive(Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "made once, written, dropped")]
enum SavedSandbox {
    Absent,
    Ready {
        mnt: RawFd,
        net: Option<RawFd>,
        ipc: Option<RawFd>,
        uts: Option<RawFd>,
        pid: Option<RawFd>,
        #[serde(default)]
        user: Option<RawFd>,
        host_pid: bool,
        host_ipc: bool,
        at: Instant,
        pause: Option<i32>,
        host_link: Option<String>,
        #[serde(default)]
        interfaces: bool,
    },
    Failed {
        message: Message,
    },
}

#[derive(Serialize, Deserialize)]
struct SavedAttempt {
    container: Name,
    number: u32,
    config: RawFd,
    leaf: PathBuf,
    user: User,
    state: SavedState,
    log: LogConfig,
    partial: Partial,
    stdout: Option<RawFd>,
    stderr: Option<RawFd>,
    #[serde(default)]
    console: SavedConsole,
    termination_message: Option<TerminationMessage>,
    layers: Vec<String>,
}

#[derive(Serialize, Deserialize)]
enum SavedState {
    Running {
        init: i32,
        at: Instant,
    },
    Exited {
        init: i32,
        at: Instant,
    },
    #[serde(rename = "Over")]
    Ended {
        init: i32,
        at: Instant,
    },
    Failing {
        run: bool,
        message: Message,
        #[serde(default)]
        init: Option<i32>,
    },
    Failed {
        run: bool,
        message: Message,
    },
}

#[derive(Serialize, Deserialize)]
struct SavedExec {
    id: u32,
    cgroup: PathBuf,
    state: SavedExecState,
}

#[derive(Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "made once, written, dropped")]
enum SavedExecState {
    Running {
        pid: i32,
        #[serde(default)]
        terminal: Option<RawFd>,
    },
    Ended {
        pid: i32,
        code: i32,
        #[serde(default)]
        terminal: Option<RawFd>,
    },
    Failed {
        message: Message,
    },
}

/// Runs the trial; never returns.
pub(super) fn parse(memfd: RawFd) -> ! {
    let can = protocol::read_memfd::<Saved>(kept(memfd)).is_ok_and(|saved| saved.knows_its_containers());
    std::process::exit(if can { TRIAL_SUCCEEDED } else { 1 })
}

impl Process {
    /// Replaces the supervisor with `binary`, or reports why that failed.
    pub(super) fn reexec(&mut self, binary: &OwnedFd) {
        let message = match self.try_reexec(binary) {
            Ok(never) => match never {},
            Err(error) => cut(&error.to_string()),
        };
        self.answer(Report::ReexecFailed { message }, None);
    }

    fn try_reexec(&self, binary: &OwnedFd) -> io::Result<std::convert::Infallible> {
        let saved = self.save().ok_or_else(|| io::Error::other(protocol::BUSY))?;
        let mut open = saved.descriptors();
        let memfd = protocol::memfd(&saved)?;
        open.push(memfd.as_raw_fd());
        let sealed = seal(&CString::new(format!("/proc/self/fd/{}", binary.as_raw_fd()))?)?;
        let path = CString::new(format!("/proc/self/fd/{}", sealed.as_raw_fd()))?;
        let args = |verb: &str| -> io::Result<Vec<CString>> {
            let number = memfd.as_raw_fd().to_string();
            ["nodlet", "supervisor", verb, &number].into_iter().map(|arg| Ok(CString::new(arg)?)).collect()
        };
        let environment: [CString; 0] = [];
        let (parse, resume) = (args(PARSE)?, args(RESUME)?);

        match sys::clone(Parent::Caller, None)? {
            None => {
                let _ = close_on_exec(&[memfd.as_raw_fd()], false);
                let _ = nix::unistd::execve(&path, &parse, &environment);
                sys::exit_now(1)
            }
            Some(child) => wait_for_trial(child)?,
        }
        close_on_exec(&open, false)?;
        let Err(error) = nix::unistd::execve(&path, &resume, &environment);
        close_on_exec(&open, true)?;
        Err(error.into())
    }

    /// The whole state; `None` while something is being started.
    fn save(&self) -> Option<Saved> {
        let raw = |fd: &OwnedFd| fd.as_raw_fd();
        let sandbox = match &self.sandbox {
            Sandbox::Absent => SavedSandbox::Absent,
            Sandbox::Making { .. } => return None,
            Sandbox::Ready { namespaces, at, pause, host_link, interfaces } => SavedSandbox::Ready {
                mnt: raw(&namespaces.mnt),
                net: namespaces.net.as_ref().map(raw),
                ipc: namespaces.ipc.as_ref().map(raw),
                uts: namespaces.uts.as_ref().map(raw),
                pid: namespaces.pid.as_ref().map(raw),
                user: namespaces.user.as_ref().map(raw),
                host_pid: namespaces.host_pid,
                host_ipc: namespaces.host_ipc,
                at: *at,
                pause: pause.map(Pid::as_raw),
                host_link: host_link.clone(),
                interfaces: *interfaces,
            },
            Sandbox::Failed { message } => SavedSandbox::Failed { message: message.clone() },
        };
        Some(Saved {
            dir: self.dir.clone(),
            listener: raw(&self.listener),
            lock: raw(&self.lock),
            agent: self.agent.as_ref().map(|agent| agent.socket().as_raw_fd()),
            sandbox,
            attempts: self.attempts.iter().map(save_attempt).collect::<Option<_>>()?,
            execs: self.execs.iter().map(save_exec).collect::<Option<_>>()?,
            layers: self.layers.iter().map(|(name, fd)| (name.clone(), raw(fd))).collect(),
            ending: self.ending,
        })
    }

    /// Restores the state that the earlier binary left in `memfd` when it executed this one.
    pub(super) fn resume(memfd: OwnedFd) -> io::Result<Process> {
        let saved: Saved = protocol::read_memfd(memfd.as_fd())?;
        drop(memfd);
        let open = saved.descriptors();
        sys::close_all_but(&open);
        close_on_exec(&open, true)?;
        // The descriptors were left open for this, and each number is in the record once: see `inherited`.
        let sandbox = match saved.sandbox {
            SavedSandbox::Absent => Sandbox::Absent,
            SavedSandbox::Failed { message } => Sandbox::Failed { message },
            SavedSandbox::Ready {
                mnt,
                net,
                ipc,
                uts,
                pid,
                user,
                host_pid,
                host_ipc,
                at,
                pause,
                host_link,
                interfaces,
            } => {
                let namespaces = Namespaces {
                    mnt: inherited(mnt),
                    net: net.map(inherited),
                    ipc: ipc.map(inherited),
                    uts: uts.map(inherited),
                    pid: pid.map(inherited),
                    user: user.map(inherited),
                    host_pid,
                    host_ipc,
                };
                Sandbox::Ready {
                    namespaces: Box::new(namespaces),
                    at,
                    pause: pause.map(Pid::from_raw),
                    host_link,
                    interfaces,
                }
            }
        };
        let attempts = saved.attempts.into_iter().map(restore_attempt);
        let attempts = attempts.collect::<io::Result<_>>()?;
        Ok(Process {
            dir: saved.dir,
            listener: inherited(saved.listener),
            lock: inherited(saved.lock),
            signals: blocked_signals()?,
            agent: saved.agent.map(|fd| Agent::for_reexec(inherited(fd))),
            sandbox,
            attempts,
            execs: saved.execs.into_iter().map(restore_exec).collect(),
            helpers: Vec::new(),
            layers: saved.layers.into_iter().map(|(name, fd)| (name, inherited(fd))).collect(),
            ending: saved.ending,
            buffer: vec![0; super::BUFFER],
        })
    }
}

impl Saved {
    fn descriptors(&self) -> Vec<RawFd> {
        let mut open = vec![self.listener, self.lock];
        open.extend(self.agent);
        if let SavedSandbox::Ready { mnt, net, ipc, uts, pid, user, .. } = &self.sandbox {
            open.push(*mnt);
            open.extend([net, ipc, uts, pid, user].into_iter().flatten());
        }
        for attempt in &self.attempts {
            open.push(attempt.config);
            open.extend([attempt.stdout, attempt.stderr].into_iter().flatten());
            open.extend(attempt.console.descriptors());
        }
        let terminal = |exec: &SavedExec| match exec.state {
            SavedExecState::Running { terminal, .. } | SavedExecState::Ended { terminal, .. } => terminal,
            SavedExecState::Failed { .. } => None,
        };
        open.extend(self.execs.iter().filter_map(terminal));
        open.extend(self.layers.values());
        open
    }

    /// Whether the configurations of the running containers can be read too: later executions need them. The
    /// trial has none of these descriptors, but can open those of its parent.
    fn knows_its_containers(&self) -> bool {
        let parent = std::os::unix::process::parent_id();
        self.attempts.iter().filter(|attempt| matches!(attempt.state, SavedState::Running { .. })).all(
            |attempt| {
                let config = std::fs::File::open(format!("/proc/{parent}/fd/{}", attempt.config));
                config.is_ok_and(|config| protocol::read_memfd::<ContainerConfig>(config.as_fd()).is_ok())
            },
        )
    }
}

fn save_attempt(attempt: &Attempt) -> Option<SavedAttempt> {
    let state = match &attempt.state {
        State::Starting { .. } => return None,
        State::Running { init, at, .. } => SavedState::Running { init: init.as_raw(), at: *at },
        State::Exited { init, at } => SavedState::Exited { init: init.as_raw(), at: *at },
        State::Ended { init, at } => SavedState::Ended { init: init.as_raw(), at: *at },
        State::Failing { run, message, init } => {
            SavedState::Failing { run: *run, message: message.clone(), init: init.map(Pid::as_raw) }
        }
        State::Failed { run, message } => SavedState::Failed { run: *run, message: message.clone() },
    };
    Some(SavedAttempt {
        container: attempt.container.clone(),
        number: attempt.number,
        config: attempt.config.as_raw_fd(),
        leaf: attempt.leaf.clone(),
        user: attempt.user.clone(),
        state,
        log: attempt.log.config().clone(),
        partial: attempt.log.partial().clone(),
        stdout: attempt.stdout.as_ref().map(AsRawFd::as_raw_fd),
        stderr: attempt.stderr.as_ref().map(AsRawFd::as_raw_fd),
        console: attempt.console.save(),
        termination_message: attempt.termination_message.clone(),
        layers: attempt.layers.clone(),
    })
}

fn restore_attempt(saved: SavedAttempt) -> io::Result<Attempt> {
    let state = match saved.state {
        // The process is a child that was not reaped, so its PID has not been reused.
        SavedState::Running { init, at } => {
            let init = Pid::from_raw(init);
            State::Running { init, pidfd: sys::pidfd_open(init)?, at }
        }
        SavedState::Exited { init, at } => State::Exited { init: Pid::from_raw(init), at },
        SavedState::Ended { init, at } => State::Ended { init: Pid::from_raw(init), at },
        SavedState::Failing { run, message, init } => {
            State::Failing { run, message, init: init.map(Pid::from_raw) }
        }
        SavedState::Failed { run, message } => State::Failed { run, message },
    };
    Ok(Attempt {
        container: saved.container,
        number: saved.number,
        config: inherited(saved.config),
        leaf: saved.leaf,
        events: None,
        user: saved.user,
        state,
        log: Log::open(saved.log, saved.partial),
        stdout: saved.stdout.map(inherited),
        stderr: saved.stderr.map(inherited),
        console: Console::restore(saved.console),
        termination_message: saved.termination_message,
        layers: saved.layers,
        reported: Reported::default(),
    })
}

fn save_exec(exec: &Exec) -> Option<SavedExec> {
    let state = match &exec.state {
        ExecState::Starting { .. } => return None,
        ExecState::Running { pid, terminal } => {
            SavedExecState::Running { pid: pid.as_raw(), terminal: terminal.as_ref().map(AsRawFd::as_raw_fd) }
        }
        ExecState::Ended { pid, code, terminal } => SavedExecState::Ended {
            pid: pid.as_raw(),
            code: *code,
            terminal: terminal.as_ref().map(AsRawFd::as_raw_fd),
        },
        ExecState::Failed { message } => SavedExecState::Failed { message: message.clone() },
    };
    Some(SavedExec { id: exec.id, cgroup: exec.cgroup.clone(), state })
}

fn restore_exec(saved: SavedExec) -> Exec {
    let state = match saved.state {
        SavedExecState::Running { pid, terminal } => {
            ExecState::Running { pid: Pid::from_raw(pid), terminal: terminal.map(inherited) }
        }
        SavedExecState::Ended { pid, code, terminal } => {
            ExecState::Ended { pid: Pid::from_raw(pid), code, terminal: terminal.map(inherited) }
        }
        SavedExecState::Failed { message } => ExecState::Failed { message },
    };
    Exec::new(saved.id, saved.cgroup, state)
}

fn wait_for_trial(child: Pid) -> io::Result<()> {
    let pidfd = sys::pidfd_open(child)?;
    let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(TRIAL_TIMEOUT).unwrap_or(PollTimeout::MAX);
    if !matches!(poll(&mut fds, timeout), Ok(1)) {
        let _ = kill(child, Signal::SIGKILL);
    }
    match sys::wait_for(child) {
        Some(Ended::Exited(TRIAL_SUCCEEDED)) => Ok(()),
        Some(Ended::Exited(_) | Ended::Signaled(_)) | None => {
            Err(io::Error::other("the new binary cannot take over from this one"))
        }
    }
}

fn close_on_exec(descriptors: &[RawFd], close: bool) -> io::Result<()> {
    let flags = if close { FdFlag::FD_CLOEXEC } else { FdFlag::empty() };
    for fd in descriptors {
        fcntl(*fd, FcntlArg::F_SETFD(flags))?;
    }
    Ok(())
}
