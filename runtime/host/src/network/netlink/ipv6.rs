//! IPv6 addresses, neighbours and default routes of pods and of their bridge.

use std::io;
use std::net::Ipv6Addr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};

use super::{Netlink, attribute};

// From linux/rtnetlink.h, linux/if_addr.h, linux/neighbour.h and linux/socket.h.
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWNEIGH: u16 = 28;
const AF_INET6: u8 = 10;
const IFA_ADDRESS: u16 = 1;
/// The address is usable at once, without a search for a duplicate.
const IFA_F_NODAD: u8 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RTN_UNICAST: u8 = 1;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

impl Netlink {
    /// Adds an IPv6 address to the link with `index`, unless it has it. It is usable at once.
    pub fn add_ipv6_address(&mut self, index: u32, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
        let mut body = vec![AF_INET6, prefix, IFA_F_NODAD, 0];
        body.extend(index.to_ne_bytes());
        body.extend(attribute(IFA_ADDRESS, &address.octets()));
        self.change_with(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Adds a fixed neighbour entry on the link with `index`: `address` is at `hardware`, and no message changes that.
    pub fn add_ipv6_neighbour(&mut self, index: u32, address: Ipv6Addr, hardware: [u8; 6]) -> io::Result<()> {
        // The family, the index, the state; then flags and type.
        let mut body = vec![AF_INET6, 0, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend(NUD_PERMANENT.to_ne_bytes());
        body.extend([0, 0]);
        body.extend(attribute(NDA_DST, &address.octets()));
        body.extend(attribute(NDA_LLADDR, &hardware));
        self.change_with(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Adds the IPv6 default route through `gateway`, on the link with `index`.
    pub fn add_ipv6_default_route(&mut self, index: u32, gateway: Ipv6Addr) -> io::Result<()> {
        let mut body = vec![AF_INET6, 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, 0, RTN_UNICAST, 0, 0, 0, 0];
        body.extend(attribute(RTA_GATEWAY, &gateway.octets()));
        body.extend(attribute(RTA_OIF, &index.to_ne_bytes()));
        self.change_with(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }
}
