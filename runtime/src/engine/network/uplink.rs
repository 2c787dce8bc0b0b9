//! Waits for a link to the cluster to come up, by news of the kernel (rtnetlink): a route to the server, another address
//! of this machine on it, or a carrier that returns. Nothing is polled. Only a board that waits for its cluster has the
//! socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use nodlet_host::netlink::{News, link_news};
use smol::Async;

const GROUPS: [u32; 5] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
];

/// Links without a carrier that are remembered.
const LINKS: usize = 16;

/// Returns when a link comes up over which `server` may be reached; never if the kernel refuses to report. `ours` is the
/// beginning of the names of pods' links.
pub(in crate::engine) async fn comes_up(server: Option<SocketAddr>, ours: &str) {
    if let Err(error) = watch(server, ours).await {
        log::warn!("failed to watch the links of the machine: {error}");
        std::future::pending::<()>().await;
    }
}

async fn watch(server: Option<SocketAddr>, ours: &str) -> io::Result<()> {
    let news = Async::new_nonblocking(News::open(libc::NETLINK_ROUTE, &GROUPS)?)?;
    let mut before = source(server);
    let mut without_carrier = Vec::new();
    loop {
        news.readable().await?;
        let mut returned = false;
        // After lost news, the routes tell.
        news.get_ref().read(|bytes| {
            returned |= bytes.is_some_and(|bytes| carrier(bytes, ours, &mut without_carrier));
        })?;
        let now = source(server);
        if now.is_some() && (returned || now != before) {
            return Ok(());
        }
        before = now;
    }
}

/// The address of this machine from which packets to `server` would be sent; without one, to any other network.
fn source(server: Option<SocketAddr>) -> Option<IpAddr> {
    let server = server.unwrap_or(SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 443));
    let unspecified = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    // A connected datagram socket sends nothing.
    let socket = UdpSocket::bind(unspecified).ok()?;
    socket.connect(server).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Reads news of links. Returns whether one that was in `without_carrier` has a carrier again.
fn carrier(news: &[u8], ours: &str, without_carrier: &mut Vec<u32>) -> bool {
    const IFF_UP: u32 = libc::IFF_UP.cast_unsigned();
    const IFF_LOWER_UP: u32 = libc::IFF_LOWER_UP.cast_unsigned();
    let mut returned = false;
    for link in link_news(news).filter(|link| !link.is_named(ours)) {
        let known = without_carrier.iter().position(|other| *other == link.index);
        match (link.flags & IFF_LOWER_UP != 0, known) {
            (true, Some(place)) => {
                without_carrier.swap_remove(place);
                returned = true;
            }
            (false, None) if link.flags & IFF_UP != 0 && without_carrier.len() < LINKS => {
                without_carrier.push(link.index)
            }
            _ => {}
        }
    }
    returned
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the head of a netlink message and of `struct ifinfomsg`.
    const HEAD: usize = 32;

    fn link(index: u32, flags: u32, name: &str) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[4..6].copy_from_slice(&16u16.to_ne_bytes());
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes[24..28].copy_from_slice(&flags.to_ne_bytes());
        let length = u16::try_from(4 + name.len() + 1).expect("a name is short");
        bytes.extend([length.to_ne_bytes(), 3u16.to_ne_bytes()].concat());
        bytes.extend([name.as_bytes(), &[0]].concat());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let length = u32::try_from(bytes.len()).expect("short");
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_carrier_that_returns_is_noticed_but_for_links_of_pods() {
        const UP: u32 = 1;
        const CARRIER: u32 = 1 << 16;
        let mut without = Vec::new();
        let mut see = |news: &[Vec<u8>]| carrier(&news.concat(), "nod1", &mut without);
        assert!(!see(&[link(2, UP | CARRIER, "eth0")]), "it had one");
        assert!(!see(&[link(2, UP, "eth0"), link(7, UP, "nod1-a")]));
        assert!(!see(&[link(7, UP | CARRIER, "nod1-a")]));
        assert!(see(&[link(9, 0, "eth1"), link(2, UP | CARRIER, "eth0")]));
        assert!(!see(&[link(2, UP | CARRIER, "eth0")]));
        for cut in 0..60 {
            let news = link(2, UP, "eth0");
            carrier(&news[..cut.min(news.len())], "nod1", &mut Vec::new());
        }
        carrier(&[0xff; 64], "nod1", &mut Vec::new());
        assert!(source(Some("127.0.0.1:1".parse().expect("an address"))).is_some_and(|ip| ip.is_loopback()));
    }
}
