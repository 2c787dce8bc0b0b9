//! Process 1 and its children: their start, their end and their exit codes.

use std::time::Duration;

use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

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
    // SAFETY: process 1 has one thread.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => Some(child),
        Ok(ForkResult::Child) => {
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

/// Reaps one child that has ended. Returns its exit code, or 128 plus the signal. Does not use nix, which
/// returns no child for a real-time signal: that service would never be restarted.
pub(super) fn reap_one() -> Option<(Pid, i32)> {
    let mut status = 0;
    // SAFETY: the kernel writes one int.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then(|| (Pid::from_raw(pid), exit_code(status)))
}

pub(super) fn exit_code(status: i32) -> i32 {
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128_i32.wrapping_add(libc::WTERMSIG(status))
    }
}

/// Whether no child is left, alive or dead.
pub(super) fn has_no_child() -> bool {
    waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(nix::Error::ECHILD)
}
