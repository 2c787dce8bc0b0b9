//! Descriptors of processes, by which their end can be awaited.

use std::io;
use std::os::fd::OwnedFd;

use nix::unistd::Pid;

/// Opens a pidfd. Returns `None` if the process no longer exists.
pub(crate) fn pidfd(pid: Pid) -> io::Result<Option<OwnedFd>> {
    match nodlet_kernel::process::pidfd_open(pid) {
        Err(nix::Error::ESRCH) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}
