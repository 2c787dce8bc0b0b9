//! Attacks from inside a container: too many processes, and frames with a forged sender.

use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, fork};

use crate::Failure;

/// Forks `count` children, reports it, and lets all of them use the processor. They ignore SIGTERM.
pub(crate) fn bomb(count: usize) -> Result<(), Failure> {
    let (fuse, lit) = nix::unistd::pipe()?;
    for _ in 0..count {
        // SAFETY: this program has one thread, and the child only makes system calls.
        if let ForkResult::Child = unsafe { fork() }? {
            ignore_term();
            drop(lit);
            // The end of file means that the parent has forked all children.
            let _ = nix::unistd::read(fuse.as_raw_fd(), &mut [0]);
            loop {
                std::hint::spin_loop();
            }
        }
    }
    ignore_term();
    println!("{count} children");
    Ok(())
}

/// Forks until the kernel rejects it, reports how often it succeeded, and forks again whenever possible. The
/// children do nothing, and like their parent ignore SIGTERM.
pub(crate) fn exhaust() -> Result<(), Failure> {
    ignore_term();
    let mut count = 0;
    loop {
        // SAFETY: this program has one thread, and the child only makes system calls.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => loop {
                nix::unistd::pause();
            },
            Ok(ForkResult::Parent { .. }) => count += 1,
            Err(nix::errno::Errno::EAGAIN) => {
                if count > 0 {
                    println!("full after {count}");
                    count = 0;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Writes a file until the file system is full, and takes every block that becomes free afterwards.
pub(crate) fn fill(file: &str) -> Result<(), Failure> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    let mut bytes = vec![b'x'; 64 << 10];
    loop {
        match file.write(&bytes) {
            Ok(_) => {}
            Err(error) if is_full(&error) && bytes.len() > 512 => bytes.truncate(bytes.len() / 2),
            Err(error) if is_full(&error) => std::thread::sleep(Duration::from_micros(100)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes files until the file system has no inode left, and takes every one that becomes free afterwards.
pub(crate) fn fill_inodes(directory: &str) -> Result<(), Failure> {
    let mut count = 0;
    loop {
        match std::fs::File::create(format!("{directory}/{count}")) {
            Ok(_) => count += 1,
            Err(error) if is_full(&error) => std::thread::sleep(Duration::from_micros(100)),
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}

fn ignore_term() {
    // SAFETY: ignoring a signal runs no code.
    let _ = unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) };
}

/// Sends an Ethernet frame, given in hexadecimal digits, unchanged by eth0.
pub(crate) fn frame(digits: &str) -> Result<(), Failure> {
    let bytes: Result<Vec<u8>, _> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(digits.get(at..at + 2).unwrap_or("?"), 16))
        .collect();
    let bytes = bytes?;
    // SAFETY: no pointers; the call returns a new descriptor or -1.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zeros are an address of no family.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = nix::net::if_::if_nametoindex("eth0")?.cast_signed();
    // SAFETY: the frame and the address live through the call, and the lengths are correct.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

/// Prints a line for each datagram: its sender and its contents.
pub(crate) fn datagrams(address: &str, port: u16) -> Result<(), Failure> {
    let socket = UdpSocket::bind((address, port))?;
    println!("bound");
    let mut buffer = [0; 1500];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        println!("{} says {}", from.ip().to_canonical(), String::from_utf8_lossy(&buffer[..length]));
        io::stdout().flush()?;
    }
}
