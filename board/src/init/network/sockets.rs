//! The sockets of the network service: the kernel's notifications of links, and DHCP on one link.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

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
    Ok(nodlet_kernel::socket::broadcast_on_link(index, libc::ETH_P_IP as u16, &wire::broadcast(message))?)
}

/// Sends a DHCP message to one server, from the link's address.
pub(super) fn unicast(socket: &UdpSocket, server: Ipv4Addr, message: &[u8]) -> io::Result<()> {
    socket.send_to(message, (server, wire::SERVER_PORT)).map(drop)
}
