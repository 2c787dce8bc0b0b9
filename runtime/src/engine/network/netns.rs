//! Creates sockets in a pod's network namespace, for port forwarding.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::api::{Family, Status};
use nodlet_core::facts::PodIndex;

use crate::engine::pods::Pods;

/// Stack size of the thread that enters the namespace; it only makes three system calls.
const STACK: usize = 64 * 1024;

/// Creates a non-blocking TCP socket in the network namespace of `pod`.
///
/// # Errors
/// No container of the pod runs, so that its namespace is unknown.
pub(in crate::engine) fn pod_socket(pods: &Pods, pod: PodIndex, family: Family) -> Result<OwnedFd, Status> {
    let sandbox = pods.sandbox(pod).ok_or_else(|| Status::internal("the pod does not run"))?;
    let runs = sandbox.runs.borrow();
    let process = runs.values().find_map(|run| run.process.as_ref());
    let process = process.ok_or_else(|| Status::internal("no container of the pod runs"))?;
    socket_in(std::os::fd::AsFd::as_fd(process), family).map_err(|error| {
        Status::internal(format!("failed to make a socket in the pod's network namespace: {error}"))
    })
}

/// Creates the socket in a thread of its own, since only the calling thread enters a namespace: the loop's thread
/// stays in its namespace.
fn socket_in(process: BorrowedFd, family: Family) -> io::Result<OwnedFd> {
    let family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let make = || -> io::Result<OwnedFd> {
        setns(process, CloneFlags::CLONE_NEWNET)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        Ok(socket(family, SockType::Stream, flags, None)?)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, make)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    })
}
