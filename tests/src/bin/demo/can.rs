//! Sends and receives frames on CAN interfaces.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd};

use super::Failure;

/// The size of the kernel's `struct can_frame`: an identifier, a length, three bytes of padding, the data.
const FRAME: usize = 16;
const DATA: usize = 8;

/// A raw socket on an interface.
fn on(interface: &str) -> Result<File, Failure> {
    let index = nix::net::if_::if_nametoindex(interface)?;
    // SAFETY: numbers only.
    let socket = unsafe { libc::socket(libc::AF_CAN, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::CAN_RAW) };
    if socket < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let socket = unsafe { File::from_raw_fd(socket) };
    // SAFETY: zero is a valid value of each field.
    let mut address: libc::sockaddr_can = unsafe { std::mem::zeroed() };
    address.can_family = libc::AF_CAN as libc::sa_family_t;
    address.can_ifindex = index as libc::c_int;
    let size = size_of::<libc::sockaddr_can>() as libc::socklen_t;
    // SAFETY: an address that outlives the call, with its size.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    if bound < 0 { Err(io::Error::last_os_error().into()) } else { Ok(socket) }
}

/// Sends one frame with at most eight bytes.
pub(super) fn send(interface: &str, identifier: u32, text: &str) -> Result<(), Failure> {
    let mut frame = [0; FRAME];
    frame[..4].copy_from_slice(&identifier.to_ne_bytes());
    frame[4] = text.len().try_into()?;
    frame[DATA..].get_mut(..text.len()).ok_or("at most 8 bytes")?.copy_from_slice(text.as_bytes());
    Ok(on(interface)?.write_all(&frame)?)
}

/// Prints `listening`, and then each frame as `IDENTIFIER TEXT`, until there were so many.
pub(super) fn receive(interface: &str, count: usize) -> Result<(), Failure> {
    let mut socket = on(interface)?;
    println!("listening");
    for _ in 0..count {
        let mut frame = [0; FRAME];
        socket.read_exact(&mut frame)?;
        let [a, b, c, d, length, ..] = frame;
        let data = &frame[DATA..][..usize::from(length).min(FRAME - DATA)];
        println!("{} {}", u32::from_ne_bytes([a, b, c, d]), String::from_utf8_lossy(data));
    }
    Ok(())
}
