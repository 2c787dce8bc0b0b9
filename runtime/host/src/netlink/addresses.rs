//! Addresses of links, and entries about neighbours.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Parseable};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressMessageBuffer, CacheInfo,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Netlink;

impl Netlink {
    /// Adds an address to the link with `index`, or renews it. The kernel removes the address after
    /// `lifetime`, even if no process of ours runs then; without a lifetime it stays. An IPv6 address is usable at
    /// once, without a search for a duplicate.
    pub fn add_address(
        &mut self,
        index: u32,
        address: impl Into<IpAddr>,
        prefix: u8,
        lifetime: Option<Duration>,
    ) -> io::Result<()> {
        let address = address.into();
        let mut message = address_message(index, address, prefix);
        match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
                let broadcast = Ipv4Addr::from_bits(address.to_bits() | mask);
                message.attributes.push(AddressAttribute::Broadcast(broadcast));
            }
            IpAddr::V6(_) => message.header.flags = AddressHeaderFlags::Nodad,
        }
        // All bits set means "for ever" to the kernel.
        let seconds = lifetime.map_or(u32::MAX, |time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
        let mut lifetimes = CacheInfo::default();
        lifetimes.ifa_preferred = seconds;
        lifetimes.ifa_valid = seconds;
        message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes an address from the link with `index`.
    pub fn remove_address(&mut self, index: u32, address: impl Into<IpAddr>, prefix: u8) -> io::Result<()> {
        let message = address_message(index, address.into(), prefix);
        self.change(RouteNetlinkMessage::DelAddress(message), 0)
    }

    /// All IPv4 addresses of this namespace: index of the link, address, prefix.
    pub fn addresses(&mut self) -> io::Result<Vec<(u32, Ipv4Addr, u8)>> {
        let ipv4 = |(index, address, prefix)| match address {
            IpAddr::V4(address) => Some((index, address, prefix)),
            IpAddr::V6(_) => None,
        };
        Ok(self.addresses_of(AddressFamily::Inet)?.into_iter().filter_map(ipv4).collect())
    }

    /// All addresses of this namespace, of both families.
    pub(crate) fn all_addresses(&mut self) -> io::Result<Vec<(u32, IpAddr, u8)>> {
        self.addresses_of(AddressFamily::Unspec)
    }

    /// An answer that cannot be parsed is skipped.
    fn addresses_of(&mut self, family: AddressFamily) -> io::Result<Vec<(u32, IpAddr, u8)>> {
        let mut message = AddressMessage::default();
        message.header.family = family;
        let mut found = Vec::new();
        self.request(&RouteNetlinkMessage::GetAddress(message), NLM_F_DUMP, &mut |answer| {
            let parsed = AddressMessageBuffer::new_checked(&answer);
            let Ok(address) = parsed.and_then(|answer| AddressMessage::parse(&answer)) else { return };
            // IFA_LOCAL is the link's own address; on a point-to-point link IFA_ADDRESS is that of the other
            // end. An IPv6 address of another link has no IFA_LOCAL.
            let mut own = None;
            for attribute in &address.attributes {
                match attribute {
                    AddressAttribute::Local(local) => own = Some(*local),
                    AddressAttribute::Address(ip @ IpAddr::V6(_)) => own = own.or(Some(*ip)),
                    _ => {}
                }
            }
            found.extend(own.map(|own| (address.header.index, own, address.header.prefix_len)));
        })?;
        Ok(found)
    }

    /// Adds a fixed forwarding entry: `hardware` is at the port with `index` of a bridge, and no frame from
    /// another port changes that.
    pub fn add_forwarding(&mut self, index: u32, hardware: [u8; 6]) -> io::Result<()> {
        let flags = NeighbourFlags::Controller | NeighbourFlags::Sticky;
        self.add_entry(index, AddressFamily::Bridge, (NeighbourState::Noarp, flags), hardware, None)
    }

    /// Adds a fixed neighbour entry on the link with `index`: `address` is at `hardware`, and no message of ARP or of
    /// neighbour discovery changes that.
    pub fn add_neighbour(
        &mut self,
        index: u32,
        address: impl Into<IpAddr>,
        hardware: [u8; 6],
    ) -> io::Result<()> {
        let address = address.into();
        let state = (NeighbourState::Permanent, NeighbourFlags::empty());
        self.add_entry(index, address.into(), state, hardware, Some(address))
    }

    fn add_entry(
        &mut self,
        index: u32,
        family: AddressFamily,
        (state, flags): (NeighbourState, NeighbourFlags),
        hardware: [u8; 6],
        address: Option<IpAddr>,
    ) -> io::Result<()> {
        let mut entry = NeighbourMessage::default();
        entry.header.family = family;
        entry.header.ifindex = index;
        entry.header.state = state;
        entry.header.flags = flags;
        entry.attributes.extend(address.map(|address| NeighbourAttribute::Destination(address.into())));
        entry.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware.to_vec()));
        self.change(RouteNetlinkMessage::NewNeighbour(entry), NLM_F_CREATE | NLM_F_REPLACE)
    }
}

fn address_message(index: u32, address: IpAddr, prefix: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = address.into();
    message.header.prefix_len = prefix;
    message.header.index = index;
    // With IFA_LOCAL alone, the kernel removes the first IPv4 address that is the same, whatever its prefix is.
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    message
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_new_namespace;
    use super::*;
    use crate::netlink::link_index;

    #[test]
    fn an_address_is_renewed_and_removed_and_a_default_route_is_replaced() {
        in_new_namespace(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.add_bridge("br0").unwrap();
            let index = link_index("br0").unwrap();
            netlink.set_up(index).unwrap();
            let (address, gateway) = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(192, 0, 2, 1));
            netlink.add_address(index, address, 24, Some(Duration::from_secs(600))).unwrap();
            netlink.add_address(index, address, 24, None).unwrap();
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
            netlink.add_address(index, address, 23, None).unwrap();
            netlink.remove_address(index, address, 23).unwrap();
            assert_eq!(netlink.addresses().unwrap(), [(index, address, 24)]);
            netlink.remove_address(index, address, 24).unwrap();
            assert_eq!(netlink.addresses().unwrap(), []);
            netlink.add_address(index, address, 24, Some(Duration::from_secs(1))).unwrap();
            let end = std::time::Instant::now() + Duration::from_secs(30);
            while !netlink.addresses().unwrap().is_empty() {
                assert!(std::time::Instant::now() < end, "the kernel keeps an address beyond its lifetime");
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }
}
