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
    Ok(nodlet_kernel::socket::broadcast_on_link(index, libc::ETH_P_IP as u16, &wire::broadcast(message))?)
}

/// Sends a DHCP message to one server, from the link's address.
pub(super) fn unicast(socket: &UdpSocket, server: Ipv4Addr, message: &[u8]) -> io::Result<()> {
    socket.send_to(message, (server, wire::SERVER_PORT)).map(drop)
}
