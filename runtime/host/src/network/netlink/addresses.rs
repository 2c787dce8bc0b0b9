//! Addresses and default routes of the board's own links, which change with leases and cables.
//!
//! Each request replaces an existing entry of the same kind, so that it can be repeated.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};

use super::{AF_INET, Netlink, attribute};

// From linux/rtnetlink.h, linux/if_addr.h and linux/socket.h.
const AF_INET6: u8 = 10;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_CACHEINFO: u16 = 6;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_DHCP: u8 = 16;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RTN_UNICAST: u8 = 1;
const RTNH_F_ONLINK: u32 = 4;

impl Netlink {
    /// Adds an address to the link with `index`, or renews it. The kernel removes the address after
    /// `lifetime`, even if no process of ours runs then; without a lifetime it stays.
    pub fn replace_address(
        &mut self,
        index: u32,
        address: Ipv4Addr,
        prefix: u8,
        lifetime: Option<Duration>,
    ) -> io::Result<()> {
        // All bits set means "for ever" to the kernel.
        let seconds = lifetime.map_or(u32::MAX, |time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
        let mask = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
        let broadcast = Ipv4Addr::from_bits(address.to_bits() | mask);
        // Preferred and valid lifetime, then two times that only the kernel sets.
        let lifetimes: Vec<u8> = [seconds, seconds, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut body = address_header(index, prefix);
        body.extend(attribute(IFA_LOCAL, &address.octets()));
        body.extend(attribute(IFA_ADDRESS, &address.octets()));
        body.extend(attribute(IFA_BROADCAST, &broadcast.octets()));
        body.extend(attribute(IFA_CACHEINFO, &lifetimes));
        self.change_with(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Removes an address of either family from the link with `index`.
    pub fn remove_address(&mut self, index: u32, address: impl Into<IpAddr>, prefix: u8) -> io::Result<()> {
        let mut body = address_header(index, prefix);
        let octets = match address.into() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => {
                body[0] = AF_INET6;
                address.octets().to_vec()
            }
        };
        body.extend(attribute(IFA_LOCAL, &octets));
        // Without this, the kernel removes the first IPv4 address that is the same, whatever its prefix is.
        body.extend(attribute(IFA_ADDRESS, &octets));
        self.change_with(RTM_DELADDR, 0, &body)
    }

    /// Adds or replaces the default route with this `metric`. The gateway need not be in the range of an
    /// address of the link.
    pub fn replace_default_route(&mut self, index: u32, gateway: Ipv4Addr, metric: u32) -> io::Result<()> {
        let body = default_route(index, gateway, metric);
        self.change_with(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Removes the default route that [`Netlink::replace_default_route`] added.
    pub fn remove_default_route(&mut self, index: u32, gateway: Ipv4Addr, metric: u32) -> io::Result<()> {
        self.change_with(RTM_DELROUTE, 0, &default_route(index, gateway, metric))
    }
}

/// `struct ifaddrmsg`.
fn address_header(index: u32, prefix: u8) -> Vec<u8> {
    let mut body = vec![AF_INET as u8, prefix, 0, RT_SCOPE_UNIVERSE];
    body.extend(index.to_ne_bytes());
    body
}

/// `struct rtmsg` with its attributes.
fn default_route(index: u32, gateway: Ipv4Addr, metric: u32) -> Vec<u8> {
    let mut body = vec![AF_INET as u8, 0, 0, 0, RT_TABLE_MAIN, RTPROT_DHCP, RT_SCOPE_UNIVERSE, RTN_UNICAST];
    body.extend(RTNH_F_ONLINK.to_ne_bytes());
    body.extend(attribute(RTA_GATEWAY, &gateway.octets()));
    body.extend(attribute(RTA_OIF, &index.to_ne_bytes()));
    body.extend(attribute(RTA_PRIORITY, &metric.to_ne_bytes()));
    body
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_new_namespace;
    use super::*;
    use crate::network::netlink::link_index;

    #[test]
    fn an_address_is_renewed_and_removed_and_a_default_route_is_replaced() {
        in_new_namespace(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.add_bridge("br0").unwrap();
            let index = link_index("br0").unwrap();
            netlink.set_up(index).unwrap();
            let (address, gateway) = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(192, 0, 2, 1));
            netlink.replace_address(index, address, 24, Some(Duration::from_secs(600))).unwrap();
            netlink.replace_address(index, address, 24, None).unwrap();
            assert_eq!(netlink.addresses().unwrap(), [(index, address, 24)]);
            // A gateway outside the ranges of the link.
            netlink.replace_default_route(index, gateway, 1024).unwrap();
            netlink.replace_default_route(index, gateway, 1024).unwrap();
            let defaults =
                |netlink: &mut Netlink| netlink.routes().unwrap().iter().filter(|route| route.2 == 0).count();
            assert_eq!(defaults(&mut netlink), 1);
            netlink.replace_default_route(index, gateway, 1025).unwrap();
            assert_eq!(defaults(&mut netlink), 2);
            netlink.remove_default_route(index, gateway, 1024).unwrap();
            assert_eq!(defaults(&mut netlink), 1);
            // Of two prefixes of one address, the named one goes, although it is not the first.
            netlink.replace_address(index, address, 23, None).unwrap();
            netlink.remove_address(index, address, 23).unwrap();
            assert_eq!(netlink.addresses().unwrap(), [(index, address, 24)]);
            netlink.remove_address(index, address, 24).unwrap();
            assert_eq!(netlink.addresses().unwrap(), []);
            netlink.replace_address(index, address, 24, Some(Duration::from_secs(1))).unwrap();
            let end = std::time::Instant::now() + Duration::from_secs(30);
            while !netlink.addresses().unwrap().is_empty() {
                assert!(std::time::Instant::now() < end, "the kernel keeps an address beyond its lifetime");
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }
}
