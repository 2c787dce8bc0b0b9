//! The sockets of the network service for DHCP on one link.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};

use super::wire;

const NONBLOCKING: SockFlag = SockFlag::SOCK_CLOEXEC.union(SockFlag::SOCK_NONBLOCK);

/// Opens a socket that receives DHCP servers' messages on the link `name`, even while it has no address.
pub(super) fn dhcp(name: &str) -> io::Result<UdpSocket> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, NONBLOCKING, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(name))?;
    bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, wire::CLIENT_PORT))?;
    Ok(UdpSocket::from(socket))
}

/// Broadcasts a DHCP message on the link with `index`, without a source address: the kernel's UDP would use
/// the address of another link.
pub(super) fn broadcast(index: u32, message: &[u8]) -> io::Result<()> {
    // Without a protocol, the socket receives nothing.
    let socket = socket(AddressFamily::Packet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let to = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_IP as u16).to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0xff; 8],
    };
    let packet = wire::broadcast(message);
    // SAFETY: packet and address have the lengths that are passed.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            libc::MSG_DONTWAIT,
            (&raw const to).cast(),
            size_of_val(&to) as libc::socklen_t,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a DHCP message to one server, from the link's address.
pub(super) fn unicast(socket: &UdpSocket, server: Ipv4Addr, message: &[u8]) -> io::Result<()> {
    socket.send_to(message, (server, wire::SERVER_PORT)).map(drop)
}
