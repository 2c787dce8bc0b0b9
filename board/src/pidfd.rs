//! Descriptors of processes, by which their end can be awaited.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::unistd::Pid;

/// Opens a pidfd. Returns `None` if the process no longer exists.
pub(crate) fn pidfd(pid: Pid) -> io::Result<Option<OwnedFd>> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    if descriptor < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(None) } else { Err(error) };
    }
    // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }))
}
