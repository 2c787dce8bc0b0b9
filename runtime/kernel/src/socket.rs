//! Messages of sockets with descriptors (`SCM_RIGHTS`) and senders, and packets on a link.
//!
//! `unsafe`: `nix` returns received descriptors as bare numbers; `rustix` cannot hold a sender in another PID namespace,
//! whose number is 0; neither makes an address of a link.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::Pid;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::errno;

/// A message of a socket. Its bytes are in the caller's buffer.
#[derive(Debug)]
pub struct Received {
    /// How many bytes it has; 0 also at the end of the stream.
    pub length: usize,
    /// Its descriptors, which are closed on exec.
    pub descriptors: Vec<OwnedFd>,
    /// Its sender, if the socket has `SO_PASSCRED`. 0 if this PID namespace does not have it.
    pub sender: Option<Pid>,
}

/// recvmsg(2) with `MSG_CMSG_CLOEXEC`: with room for `N` descriptors and a sender.
///
/// # Errors
/// The kernel's; ENOBUFS if the control messages were cut.
pub fn receive<const N: usize>(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: MsgFlags,
) -> nix::Result<Received> {
    let mut control = nix::cmsg_space!([RawFd; N], libc::ucred);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let mut received = Received { length: message.bytes, descriptors: Vec::new(), sender: None };
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::ScmRights(numbers) => {
                // SAFETY: the kernel made these for this call; nobody else owns them.
                let owned = numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) });
                received.descriptors.extend(owned);
            }
            ControlMessageOwned::ScmCredentials(from) => received.sender = Some(Pid::from_raw(from.pid())),
            _ => {}
        }
    }
    Ok(received)
}

/// Sends a packet to all stations on the link with `index`, in a frame for `protocol` (`ETH_P_*`).
///
/// # Errors
/// The kernel's.
pub fn broadcast_on_link(index: u32, protocol: u16, packet: &[u8]) -> nix::Result<()> {
    // The protocol 0 means that the socket receives nothing.
    let socket =
        socket_with(AddressFamily::PACKET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(errno)?;
    let to = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0xff; 8],
    };
    // SAFETY: packet and address have the lengths that are passed.
    Errno::result(unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            libc::MSG_DONTWAIT,
            (&raw const to).cast(),
            size_of_val(&to) as libc::socklen_t,
        )
    })
    .map(drop)
}
