//! The sockets of the network service: the kernel's notifications of links, and DHCP on one link.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrIn, bind, setsockopt, socket,
    sockopt,
};

use super::wire;

/// `RTMGRP_LINK` of linux/rtnetlink.h: notifications of links that appear, disappear or change.
const LINKS: u32 = 1;

const NONBLOCKING: SockFlag = SockFlag::SOCK_CLOEXEC.union(SockFlag::SOCK_NONBLOCK);

/// Opens a socket that is readable when a link has appeared, disappeared or changed.
pub(super) fn links_changed() -> io::Result<OwnedFd> {
    let news = socket(AddressFamily::Netlink, SockType::Raw, NONBLOCKING, SockProtocol::NetlinkRoute)?;
    bind(news.as_raw_fd(), &NetlinkAddr::new(0, LINKS))?;
    Ok(news)
}

/// Discards the kernel's notifications: all links are inspected anyway, even if notifications overflowed the
/// socket's buffer.
pub(super) fn discard(news: &OwnedFd) {
    let mut buffer = [0; 4096];
    loop {
        match nix::unistd::read(news.as_raw_fd(), &mut buffer) {
            Ok(_) | Err(nix::Error::ENOBUFS | nix::Error::EINTR) => {}
            Err(_) => return,
        }
    }
}

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
    // The protocol 0 means that the socket receives nothing.
    // SAFETY: no pointer is passed, and nobody else has the descriptor.
    let socket = unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(socket)
    };
    // SAFETY: all zero is a value of this structure of numbers.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    to.sll_ifindex = index as i32;
    to.sll_halen = 6;
    to.sll_addr = [0xff; 8];
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
