//! Process 1 and its children: their start, their end and their exit codes.

use std::time::Duration;

use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use nodlet_kernel::process::{fork, reap_any};

use crate::boot::console::say;

/// Exit code of a service that this image lacks. The service is not restarted.
pub(super) const ABSENT: u8 = 113;

/// Stops the machine at once. Callers must write mounted file systems before.
pub(super) fn halt(mode: RebootMode) -> ! {
    loop {
        let Err(error) = reboot(mode);
        say(format_args!("failed to reboot or power off: {error}"));
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Forks a child that runs `job` and exits with its result. Returns `None` if the kernel cannot create a
/// process.
pub(super) fn start(job: fn() -> u8) -> Option<Pid> {
    match fork() {
        Ok(Some(child)) => Some(child),
        Ok(None) => {
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
            let _ = nix::unistd::setsid();
            std::process::exit(i32::from(job()))
        }
        Err(error) => {
            say(format_args!("failed to fork: {error}"));
            None
        }
    }
}

/// Reaps one child that has ended. Returns its exit code, or 128 plus the signal.
pub(super) fn reap_one() -> Option<(Pid, i32)> {
    reap_any().map(|(pid, ended)| (pid, ended.code()))
}

/// Whether no child is left, alive or dead.
pub(super) fn has_no_child() -> bool {
    waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(nix::Error::ECHILD)
}
