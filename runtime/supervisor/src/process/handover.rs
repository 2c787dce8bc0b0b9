//! Replacement of a supervisor by a newer binary: in place, so that PID, children, locks and descriptors
//! stay.
//!
//! The whole state goes into a memfd. The new binary first parses it in a child, as a trial; only after that
//! does the supervisor execute the binary. A binary that fails the trial changes nothing.

use std::ffi::CString;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Process, Sandbox, blocked_signals};
use crate::attempt::{Attempt, State};
use crate::client::seal;
use crate::enter::{Exec, ExecState};
use crate::protocol::{self, Report, cut};
use crate::sys::{self, Ended, Parent, kept};
use nodlet_host::launch::ContainerConfig;

/// Argument of the trial, `nodlet supervisor --parse FD`: checks whether this binary can take over.
pub(super) const PARSE: &str = "--parse";

/// Argument of the takeover, `nodlet supervisor --resume FD`.
pub(super) const RESUME: &str = "--resume";

/// The exit code of a successful trial. Not 0, with which any program may exit.
const TRIAL_SUCCEEDED: i32 = 113;

/// The longest time for a trial, which reads a few kilobytes.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the trial; never returns.
pub(super) fn parse(memfd: RawFd) -> ! {
    // Never dropped: the trial has none of the descriptors.
    let saved = ManuallyDrop::new(protocol::read_memfd::<Process>(kept(memfd)));
    let can = saved.as_ref().is_ok_and(Process::knows_its_containers);
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
        if self.is_busy() {
            return Err(io::Error::other(protocol::BUSY));
        }
        let mut open = self.descriptors();
        let memfd = protocol::memfd(self)?;
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

    /// Whether something is being started, which cannot be handed over.
    fn is_busy(&self) -> bool {
        matches!(self.sandbox, Sandbox::Making { .. })
            || self.attempts.iter().any(|attempt| matches!(attempt.state, State::Starting { .. }))
            || self.execs.iter().any(|exec| matches!(exec.state, ExecState::Starting { .. }))
    }

    /// Restores the state that the earlier binary left in `memfd` when it executed this one. The descriptors were left open
    /// for this.
    pub(super) fn resume(memfd: OwnedFd) -> io::Result<Process> {
        let mut process: Process = protocol::read_memfd(memfd.as_fd())?;
        drop(memfd);
        let open = process.descriptors();
        sys::close_all_but(&open);
        close_on_exec(&open, true)?;
        process.signals = Some(blocked_signals()?);
        process.buffer = vec![0; super::BUFFER];
        process.attempts.iter_mut().try_for_each(Attempt::resume)?;
        Ok(process)
    }

    /// All descriptors that the next binary needs.
    fn descriptors(&self) -> Vec<RawFd> {
        let namespaces = match &self.sandbox {
            Sandbox::Ready { namespaces, .. } => Some(namespaces),
            Sandbox::Absent | Sandbox::Making { .. } | Sandbox::Failed { .. } => None,
        };
        let all = [&self.listener, &self.lock]
            .into_iter()
            .chain(namespaces.iter().flat_map(|namespaces| namespaces.descriptors()))
            .chain(self.attempts.iter().flat_map(Attempt::descriptors))
            .chain(self.execs.iter().filter_map(Exec::terminal))
            .chain(self.layers.values())
            .chain(&self.sockets)
            .map(AsRawFd::as_raw_fd);
        all.chain(self.agent.iter().map(|agent| agent.socket().as_raw_fd())).collect()
    }

    /// Whether the configurations of the running containers can be read too: later executions need them. The
    /// trial has none of these descriptors, but can open those of its parent.
    fn knows_its_containers(&self) -> bool {
        let parent = std::os::unix::process::parent_id();
        self.attempts.iter().filter(|attempt| matches!(attempt.state, State::Running { .. })).all(|attempt| {
            let config = std::fs::File::open(format!("/proc/{parent}/fd/{}", attempt.config.as_raw_fd()));
            config.is_ok_and(|config| protocol::read_memfd::<ContainerConfig>(config.as_fd()).is_ok())
        })
    }
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_state_of_an_earlier_version_is_read_and_written_the_same() {
        let console = json!({
            "stdin": 110, "stdin_once": true, "tty": false, "pending": [1], "prompt": [2],
            "early": {"outputs": [[3], []], "skipped": [0, 4]},
            "clients": [{"stdin": null, "outputs": [[111, 5], null]}],
        });
        let attempt = |state: Value| {
            json!({
                "container": "app", "number": 3, "config": 107, "leaf": "/leaf", "state": state,
                "user": {"uid": 1, "gid": 2, "groups": [2, 3], "home": "/home"},
                "log": {"path": "/log", "link": "/link", "max_size": 6, "max_files": 7},
                "partial": {"stdout": [97], "stderr": [], "lost": {"lines": 1, "bytes": 2, "why": "full"}},
                "stdout": 108, "stderr": 109, "console": console, "termination_message": null,
                "layers": ["base"],
            })
        };
        let states = json!([
            {"Running": {"init": 9, "at": 8}}, {"Exited": {"init": 9, "at": 8}}, {"Over": {"init": 9, "at": 8}},
            {"Failing": {"run": true, "message": "why", "init": 9}}, {"Failed": {"run": true, "message": "why"}},
        ]);
        let states = states.as_array().unwrap().iter().cloned();
        let saved = json!({
            "dir": "/pod", "listener": 101, "lock": 102, "agent": 103, "ending": false, "layers": {"base": 112},
            "sandbox": {"Ready": {
                "mnt": 104, "net": 105, "ipc": null, "uts": 106, "pid": null, "user": null, "host_pid": false,
                "host_ipc": true, "at": 8, "pause": 10, "host_link": "link", "interfaces": true,
            }},
            "attempts": states.map(attempt).collect::<Vec<_>>(),
            "execs": [
                {"id": 1, "cgroup": "/exec", "state": {"Running": {"pid": 11, "terminal": 113}}},
                {"id": 2, "cgroup": "/exec", "state": {"Ended": {"pid": 11, "code": 1, "terminal": null}}},
                {"id": 3, "cgroup": "/exec", "state": {"Failed": {"message": "why"}}},
            ],
        });
        // Never dropped: nothing is open.
        let process = ManuallyDrop::new(serde_json::from_str::<Process>(&saved.to_string()).unwrap());
        assert_eq!(serde_json::to_value(&*process).unwrap(), saved);
        assert!(process.descriptors().starts_with(&[101, 102, 104, 105, 106, 107, 108, 109, 110, 111]));
        assert!(process.descriptors().ends_with(&[113, 112, 103]));
    }
}
