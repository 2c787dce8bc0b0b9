//! The running agent of a root: which process it is, and its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_host::paths::Paths;
use nodlet_kernel::own_file;

use crate::error::VerbError;
use crate::pidfd::pidfd;

/// How long an agent may take to end. An ending agent waits for nothing.
const AGENT_END: Duration = Duration::from_secs(10);

/// Ends the agent that holds the lock of this root, if there is one, and waits until it has ended.
pub(crate) fn end_agent(paths: &Paths) -> Result<(), VerbError> {
    let Some(pid) = holder(&paths.agent_lock()) else { return Ok(()) };
    let failed = |what: &str, why: &dyn std::fmt::Display| {
        VerbError::new(format!("failed to {what} the agent (pid {pid}): {why}"))
    };
    let Some(process) = pidfd(pid).map_err(|error| failed("find", &error))? else { return Ok(()) };
    kill(pid, Signal::SIGTERM).map_err(|errno| failed("end", &errno))?;
    let mut poll = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&process), nix::poll::PollFlags::POLLIN)];
    let timeout = u16::try_from(AGENT_END.as_millis()).unwrap_or(u16::MAX);
    match nix::poll::poll(&mut poll, timeout) {
        Ok(0) => Err(failed("end", &"it does not respond; kill it and try again")),
        Ok(_) => Ok(()),
        Err(errno) => Err(failed("wait for", &errno)),
    }
}

/// The executable file of the running agent of this root, if there is one.
pub(crate) fn executable(paths: &Paths) -> Option<PathBuf> {
    let pid = holder(&paths.agent_lock())?;
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The process that holds the lock, by the pid that it wrote into the lock file.
fn holder(lock: &Path) -> Option<Pid> {
    let file = own_file::open(lock).ok()?;
    match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockSharedNonblock) {
        Ok(_free) => None,
        Err(_) => Some(Pid::from_raw(own_file::read_to_string(lock).ok()?.trim().parse().ok()?)),
    }
}
