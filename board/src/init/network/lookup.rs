//! Looks up the name of a time server, in a child: the C library's resolver blocks while it waits for name
//! servers, and leases must be renewed meanwhile.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe2};
use nodlet_kernel::process::{exit_now, fork};

/// The most bytes of the child's answer.
const ANSWER: u64 = 64;

/// A pending lookup. Dropping it ends it.
pub(super) struct Lookup {
    child: Pid,
    answer: File,
}

impl Lookup {
    pub(super) fn begin(name: &str) -> io::Result<Lookup> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        match fork()? {
            Some(child) => Ok(Lookup { child, answer: File::from(read) }),
            None => {
                let found = (name, 0).to_socket_addrs().ok().and_then(|mut found| found.next());
                if let Some(found) = found {
                    let _ = write!(File::from(write), "{}", found.ip());
                }
                exit_now(0)
            }
        }
    }

    /// A descriptor that becomes readable when the lookup has finished.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }

    /// The address that was found, or `None`.
    pub(super) fn end(mut self) -> Option<IpAddr> {
        let mut text = String::new();
        (&mut self.answer).take(ANSWER).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let _ = kill(self.child, Signal::SIGKILL);
        let _ = waitpid(self.child, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_in_a_child() {
        let lookup = Lookup::begin("localhost").expect("a process can be made");
        assert!(lookup.end().expect("it has an address").is_loopback());
        assert_eq!(Lookup::begin("no such name").expect("a process can be made").end(), None);
    }
}
