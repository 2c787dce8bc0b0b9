//! What the agent tells the service manager that started it (`sd_notify(3)`): that it is ready,
//! that it lives, that it ends.
//!
//! Nothing is told, and nothing wakes up for it, unless the manager asked: `NOTIFY_SOCKET` for
//! the first, `WATCHDOG_USEC` for the second. Neither reaches a pod. Read next: `engine.rs`,
//! whose loop says that it lives by turning.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager.
#[derive(Debug)]
pub(crate) struct Service {
    socket: UnixDatagram,
    manager: SocketAddr,
    watchdog: Option<Duration>,
}

impl Service {
    /// The one that started this process and wants to know, if there is one.
    pub(crate) fn of_this_process() -> Option<Service> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let name = variable("NOTIFY_SOCKET")?;
        let said = |error: std::io::Error| log::warn!("failed to use NOTIFY_SOCKET={name:?}: {error}");
        let manager = address(&name).map_err(said).ok()?;
        let socket = UnixDatagram::unbound().map_err(said).ok()?;
        // A manager that does not read must not hold up the loop.
        socket.set_nonblocking(true).map_err(said).ok()?;
        let for_us = variable("WATCHDOG_PID")
            .is_none_or(|pid| pid.to_str() == Some(std::process::id().to_string().as_str()));
        let microseconds = variable("WATCHDOG_USEC").and_then(|value| value.to_str()?.parse::<u64>().ok());
        let watchdog = microseconds.filter(|&time| time > 0 && for_us).map(Duration::from_micros);
        Some(Service { socket, manager, watchdog })
    }

    /// How often to say [`Service::lives`]: twice as often as would do.
    pub(crate) fn every(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 2)
    }

    /// The API answers, and what an earlier agent left was found.
    pub(crate) fn is_ready(&self) {
        self.tell("READY=1");
    }

    /// The loop turns.
    pub(crate) fn lives(&self) {
        self.tell("WATCHDOG=1");
    }

    /// The loop has ended; pods go on.
    pub(crate) fn ends(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, what: &str) {
        if let Err(error) = self.socket.send_to_addr(what.as_bytes(), &self.manager) {
            log::warn!("failed to send {what} to the service manager: {error}");
        }
    }
}

/// A path, or with `@` the name of an abstract socket.
fn address(name: &OsStr) -> std::io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(std::io::Error::other("must be an absolute path, or begin with @")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_listens_at_a_path_or_at_an_abstract_name() {
        let path = address(OsStr::new("/run/systemd/notify")).unwrap();
        assert_eq!(path.as_pathname().and_then(|path| path.to_str()), Some("/run/systemd/notify"));
        let name = address(OsStr::new("@/org/x")).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"/org/x"[..]));
        assert!(address(OsStr::new("vsock:2:1")).is_err());
    }
}
