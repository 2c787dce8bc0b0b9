//! Routes to the pods of other machines.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::{AF_INET, Netlink, attribute};

// From linux/rtnetlink.h and linux/socket.h.
const AF_INET6: u8 = 10;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RTN_UNICAST: u8 = 1;

impl Netlink {
    /// Adds a route to a range through a gateway of the same family. Fails with `AlreadyExists` if there is a route to
    /// the range, and with `NetworkUnreachable` if the gateway is on no link.
    pub(crate) fn add_route(&mut self, range: (IpAddr, u8), gateway: IpAddr) -> io::Result<()> {
        self.change_with(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &route(range, gateway))
    }

    /// Removes the route to a range through a gateway.
    pub(crate) fn remove_route(&mut self, range: (IpAddr, u8), gateway: IpAddr) -> io::Result<()> {
        self.change_with(RTM_DELROUTE, 0, &route(range, gateway))
    }
}

/// `struct rtmsg` with its attributes.
fn route((base, prefix): (IpAddr, u8), gateway: IpAddr) -> Vec<u8> {
    let family = if base.is_ipv4() { AF_INET as u8 } else { AF_INET6 };
    let mut body =
        vec![family, prefix, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST, 0, 0, 0, 0];
    for (kind, address) in [(RTA_DST, base), (RTA_GATEWAY, gateway)] {
        body.extend(match address {
            IpAddr::V4(address) => attribute(kind, &address.octets()),
            IpAddr::V6(address) => attribute(kind, &address.octets()),
        });
    }
    body
}
