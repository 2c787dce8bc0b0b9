//! Notifications to the service manager that started the agent (`sd_notify(3)`): ready, alive, stopping.
//!
//! Notifications are sent only if the manager requested them with `NOTIFY_SOCKET`, and the agent wakes up for the
//! watchdog only with `WATCHDOG_USEC`. Neither variable is passed on to pods. Read next: `engine.rs`, whose loop
//! sends the notifications.

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
    /// The service manager of this process, if it set `NOTIFY_SOCKET`.
    pub(crate) fn of_this_process() -> Option<Service> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let name = variable("NOTIFY_SOCKET")?;
        let warn = |error: std::io::Error| log::warn!("failed to use NOTIFY_SOCKET={name:?}: {error}");
        let manager = address(&name).map_err(warn).ok()?;
        let socket = UnixDatagram::unbound().map_err(warn).ok()?;
        // A manager that does not read must not hold up the loop.
        socket.set_nonblocking(true).map_err(warn).ok()?;
        let for_us = variable("WATCHDOG_PID")
            .is_none_or(|pid| pid.to_str() == Some(std::process::id().to_string().as_str()));
        let microseconds = variable("WATCHDOG_USEC").and_then(|value| value.to_str()?.parse::<u64>().ok());
        let watchdog = microseconds.filter(|&time| time > 0 && for_us).map(Duration::from_micros);
        Some(Service { socket, manager, watchdog })
    }

    /// Returns the interval of [`Service::lives`], which is half of the watchdog's.
    pub(crate) fn every(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 2)
    }

    /// Reports that the API is served and that the pods of an earlier agent were found.
    pub(crate) fn is_ready(&self) {
        self.notify("READY=1");
    }

    /// Reports that the loop makes progress.
    pub(crate) fn lives(&self) {
        self.notify("WATCHDOG=1");
    }

    /// Reports that the loop has ended. Pods continue.
    pub(crate) fn ends(&self) {
        self.notify("STOPPING=1");
    }

    fn notify(&self, what: &str) {
        if let Err(error) = self.socket.send_to_addr(what.as_bytes(), &self.manager) {
            log::warn!("failed to send {what} to the service manager: {error}");
        }
    }
}

/// Parses the address of the manager's socket: a path, or `@` and the name of an abstract socket.
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
