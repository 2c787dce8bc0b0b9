//! The attacks that a container with CAP_SYS_PTRACE can make on processes of nodlet that come into its PID
//! namespace: access the host through them, take their descriptors, send messages in their name.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::sys::socket::{self, ControlMessageOwned, MsgFlags, UnixAddr, sockopt};

/// A file of the host that no container has.
pub(crate) const MARKER: &str = "/etc/hostname-of-the-host";

/// Examines every process until the file `stop` exists, then prints the findings, one per line.
pub(crate) fn hunt(stop: &Path) {
    let own = capabilities("self").expect("/proc is there");
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::new();
    println!("hunting");
    while !stop.exists() {
        for process in fs::read_dir("/proc").expect("/proc is there").flatten() {
            let name = process.file_name().to_string_lossy().into_owned();
            let Ok(pid) = name.parse::<i32>() else { continue };
            let process = process.path();
            let comm = fs::read_to_string(process.join("comm")).unwrap_or_default().trim().to_owned();
            if !comm.starts_with("nodlet:") && !comm.starts_with("youki:") {
                continue;
            }
            seen.insert(comm.clone());
            if capabilities(&name).is_some_and(|theirs| theirs & !own != 0) {
                found.insert(format!("CAPABILITIES of {comm}"));
            }
            let marker = process.join("root").join(MARKER.trim_start_matches('/'));
            if marker.exists() || process.join("cwd").join("run/nodlet").exists() {
                found.insert(format!("ROOT of {comm}"));
            }
            take_descriptors(pid, &process, &comm, &mut found);
        }
    }
    for line in found {
        println!("FOUND {line}");
    }
    println!("seen: {}", seen.into_iter().collect::<Vec<_>>().join(" "));
}

fn capabilities(pid: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Takes the open descriptors of a process, and reports on its socket that process 1 is the container's. Of a process
/// that starts or is executed, the container may see the terminal, the file of the process's own name, and the one socket
/// on which the process reports: nothing can be reached or received through it.
fn take_descriptors(pid: i32, process: &Path, comm: &str, found: &mut BTreeSet<String>) {
    let Ok(open) = fs::read_dir(process.join("fd")) else { return };
    let mut sockets = BTreeSet::new();
    for entry in open.flatten() {
        let Ok(leads) = fs::read_link(entry.path()) else { continue };
        let leads = leads.to_string_lossy().into_owned();
        let number: i32 = entry.file_name().to_string_lossy().parse().expect("a number");
        if number < 3 || leads.starts_with("/dev/pts") || leads.starts_with("/dev/ptmx") {
            continue;
        }
        if leads == format!("/proc/{pid}/comm") {
            continue;
        }
        if !leads.starts_with("socket:") {
            found.insert(format!("DESCRIPTOR of {comm}: {}", leads.split('[').next().unwrap_or_default()));
            continue;
        }
        let Ok(taken) = take(pid, number) else { continue };
        if !is_connected_pair(&taken) {
            found.insert(format!("SOCKET of {comm} with a name, or of another family than AF_UNIX"));
        }
        if receives_descriptor(&taken) {
            found.insert(format!("SOCKET of {comm} with a message that has a descriptor"));
        }
        sockets.insert(leads);
        if sockets.len() > 1 {
            found.insert(format!("SOCKETS of {comm}: more than the one for its report"));
        }
        // For even PIDs the first frame is sent alone, since the second one is rejected whatever the
        // result of the first.
        let frames = [r#"{"Created":{"pid":1}}"#, r#"{"User":{"uid":0,"gid":0,"groups":[],"home":"/"}}"#];
        for frame in &frames[..1 + (pid % 2) as usize] {
            // SAFETY: the bytes outlive the call.
            unsafe { libc::send(taken.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT) };
        }
        println!("forged");
    }
}

/// Whether a socket is of AF_UNIX, has no name, and is connected to another that has no path: the kernel gives an abstract
/// name to a connected socket that receives credentials, and nobody can connect to that.
fn is_connected_pair(taken: &OwnedFd) -> bool {
    let peer = match socket::getpeername::<UnixAddr>(taken.as_raw_fd()) {
        // The other end is closed.
        Err(nix::Error::ENOTCONN) => !socket::getsockopt(taken, sockopt::AcceptConn).unwrap_or(true),
        peer => peer.is_ok_and(|name| name.path().is_none()),
    };
    let own = socket::getsockname::<UnixAddr>(taken.as_raw_fd());
    peer && own.is_ok_and(|name| name.path().is_none() && name.as_abstract().is_none())
}

/// Whether a message waits in a socket that contains a descriptor. The message stays there.
fn receives_descriptor(taken: &OwnedFd) -> bool {
    let mut bytes = [0; 4096];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!([RawFd; 8]);
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let read = socket::recvmsg::<UnixAddr>(taken.as_raw_fd(), &mut parts, Some(&mut space), flags);
    let Ok(message) = read else { return false };
    let mut is_with = false;
    for part in message.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(descriptors) = part {
            is_with = true;
            for descriptor in descriptors {
                // SAFETY: the kernel made the descriptor for this process, and nobody else owns it.
                drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
    }
    is_with
}

/// `pidfd_getfd(2)`.
fn take(pid: i32, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; each call returns a new descriptor that nobody else owns.
    unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if pidfd < 0 {
            return Err(io::Error::last_os_error());
        }
        let pidfd = OwnedFd::from_raw_fd(pidfd as i32);
        let taken = libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0);
        if taken < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(taken as i32)) }
    }
}
