//! The rtnetlink requests that a pod's network needs.
//!
//! Synchronous: one request, one acknowledgement, within microseconds. A [`Netlink`] always belongs to the
//! network namespace in which it was opened; the sandbox helper keeps one of the host and opens one of the
//! pod.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

// From linux/if_link.h and linux/socket.h.
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_INET_CONF: u16 = 1;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_LEARNING: u16 = 8;
const IFLA_BRPORT_UNICAST_FLOOD: u16 = 9;
/// Ignored before Linux 5.18.
const IFLA_BRPORT_LOCKED: u16 = 39;
const AF_INET: u16 = 2;

// From linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h and linux/if_ether.h.
const RTNLGRP_IPV4_IFADDR: u32 = 5;
/// With news of the route to its own network, a link reports that it is up: its other routes are gone then.
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV4_NETCONF: u32 = 24;
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_NEWTFILTER: u16 = 44;
const TC_H_INGRESS: u32 = 0xffff_0000;
const TC_H_CLSACT: u32 = 0xffff_fff1;
const TC_H_CLSACT_INGRESS: u32 = 0xffff_fff2;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const ETH_P_ALL: u16 = 3;

const AF_BRIDGE: u8 = 7;

/// `NLMSG_HDRLEN`: the bytes of the header of netlink.
const HEADER_BYTES: usize = 16;

mod addresses;
mod borrowed;
mod ipv6;
mod routes;

pub use borrowed::LinkSettings;

/// A socket to the kernel's routing tables.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// A socket that receives news of changed IPv4 addresses and routes, and of the forwarding of links.
    pub(super) fn news() -> io::Result<Socket> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        for group in [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_NETCONF] {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(socket)
    }

    /// Makes a bridge. Fails with `AlreadyExists` if there is a link of the name.
    pub fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
        self.change(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes a veth pair: `name` in this namespace, as a port of the bridge with index `bridge` that is not
    /// up yet; and `peer` in the network namespace `peer_namespace`, with the hardware address `hardware`.
    /// The peer never exists in this namespace.
    pub fn add_veth(
        &mut self,
        name: &str,
        bridge: u32,
        (peer, hardware): (&str, [u8; 6]),
        peer_namespace: RawFd,
    ) -> io::Result<()> {
        let mut other = LinkMessage::default();
        other.attributes.push(LinkAttribute::IfName(peer.to_owned()));
        other.attributes.push(LinkAttribute::Address(hardware.to_vec()));
        other.attributes.push(LinkAttribute::NetNsFd(peer_namespace));
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.push(LinkAttribute::Controller(bridge));
        link.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
        ]));
        self.change(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sets the hardware address of the link with `index`.
    pub fn set_hardware_address(&mut self, index: u32, address: [u8; 6]) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::Address(address.to_vec()));
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Sets values of the link's IPv4 configuration: pairs of an `IPV4_DEVCONF_*` and its value.
    pub(crate) fn set_ipv4(&mut self, index: u32, values: &[(u16, u32)]) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(ipv4_configuration(values));
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Sets a port of a bridge up, with these values of its IPv4 configuration. The bridge learns no address
    /// from incoming frames of the port, floods no frame for an unknown address to it, and accepts only
    /// senders with a forwarding entry for the port. With `hairpin`, it sends frames back to the port by which
    /// they came.
    pub fn set_port_up(&mut self, index: u32, hairpin: bool, values: &[(u16, u32)]) -> io::Result<()> {
        let flags = [
            (IFLA_BRPORT_MODE, hairpin.into()),
            (IFLA_BRPORT_LEARNING, 0),
            (IFLA_BRPORT_UNICAST_FLOOD, 0),
            (IFLA_BRPORT_LOCKED, 1),
        ];
        let flags: Vec<u8> = flags.iter().flat_map(|(kind, value)| attribute(*kind, &[*value])).collect();
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Other(DefaultNla::new(
            IFLA_INFO_SLAVE_DATA,
            flags,
        ))]));
        link.attributes.push(ipv4_configuration(values));
        // Only this one of the two requests that change a link evaluates the flags of a port.
        self.change(RouteNetlinkMessage::NewLink(link), 0)
    }

    /// Adds a fixed forwarding entry: `hardware` is at the port with `index` of a bridge, and no frame from
    /// another port changes that.
    pub fn add_forwarding(&mut self, index: u32, hardware: [u8; 6]) -> io::Result<()> {
        let mut entry = NeighbourMessage::default();
        entry.header.family = AddressFamily::Other(AF_BRIDGE);
        entry.header.ifindex = index;
        entry.header.state = NeighbourState::Noarp;
        entry.header.flags = NeighbourFlags::Controller | NeighbourFlags::Sticky;
        entry.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware.to_vec()));
        self.change(RouteNetlinkMessage::NewNeighbour(entry), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds a fixed neighbour entry on the link with `index`: `address` is at `hardware`, and no ARP message
    /// changes that.
    pub fn add_neighbour(&mut self, index: u32, address: Ipv4Addr, hardware: [u8; 6]) -> io::Result<()> {
        let mut entry = NeighbourMessage::default();
        entry.header.family = AddressFamily::Inet;
        entry.header.ifindex = index;
        entry.header.state = NeighbourState::Permanent;
        entry.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
        entry.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware.to_vec()));
        self.change(RouteNetlinkMessage::NewNeighbour(entry), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Sets the link with `index` up.
    pub fn set_up(&mut self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Moves the link with `index` to another network namespace, in which it has this name.
    pub fn move_link(&mut self, index: u32, name: &str, namespace: RawFd) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.push(LinkAttribute::NetNsFd(namespace));
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Removes the link with `name`; of a veth pair, also its peer. Fails with `NotFound` if there is none.
    pub fn remove_link(&mut self, name: &str) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.change(RouteNetlinkMessage::DelLink(link), 0).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => io::ErrorKind::NotFound.into(),
            Some(_) | None => error,
        })
    }

    /// Adds an address to the link with `index`. Fails with `AlreadyExists` if the link has it.
    pub fn add_address(&mut self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix;
        message.header.index = index;
        let mask = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
        message.attributes.push(AddressAttribute::Address(IpAddr::V4(address)));
        message.attributes.push(AddressAttribute::Local(IpAddr::V4(address)));
        message.attributes.push(AddressAttribute::Broadcast(Ipv4Addr::from_bits(address.to_bits() | mask)));
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
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
    pub(super) fn all_addresses(&mut self) -> io::Result<Vec<(u32, IpAddr, u8)>> {
        self.addresses_of(AddressFamily::Unspec)
    }

    fn addresses_of(&mut self, family: AddressFamily) -> io::Result<Vec<(u32, IpAddr, u8)>> {
        let mut message = AddressMessage::default();
        message.header.family = family;
        let mut found = Vec::new();
        for answer in self.dump(RouteNetlinkMessage::GetAddress(message))? {
            let RouteNetlinkMessage::NewAddress(address) = answer else { continue };
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
        }
        Ok(found)
    }

    /// All IPv4 routes of the main table: index of the link, destination, prefix.
    pub fn routes(&mut self) -> io::Result<Vec<(u32, Ipv4Addr, u8)>> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        let mut found = Vec::new();
        for answer in self.dump(RouteNetlinkMessage::GetRoute(message))? {
            let RouteNetlinkMessage::NewRoute(route) = answer else { continue };
            if route.header.table != netlink_packet_route::route::RouteHeader::RT_TABLE_MAIN {
                continue;
            }
            let (mut index, mut destination) = (0, Ipv4Addr::UNSPECIFIED);
            for attribute in &route.attributes {
                if let RouteAttribute::Oif(oif) = attribute {
                    index = *oif;
                }
                if let RouteAttribute::Destination(RouteAddress::Inet(address)) = attribute {
                    destination = *address;
                }
            }
            found.push((index, destination, route.header.destination_prefix_length));
        }
        Ok(found)
    }

    /// Adds the default route through `gateway`, on the link with `index`.
    pub fn add_default_route(&mut self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = netlink_packet_route::route::RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Boot;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
        message.attributes.push(RouteAttribute::Oif(index));
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Attaches an eBPF program, which decides for each incoming packet of the link with `index` whether it
    /// passes.
    pub(crate) fn add_classifier(&mut self, index: u32, program: BorrowedFd) -> io::Result<()> {
        let queue = attribute(TCA_KIND, b"clsact\0");
        self.change_traffic(RTM_NEWQDISC, (index, TC_H_INGRESS, TC_H_CLSACT, 0), &queue)?;
        let options = [
            attribute(TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes()),
            attribute(TCA_BPF_NAME, b"nodlet\0"),
            attribute(TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes()),
        ];
        let filter = [attribute(TCA_KIND, b"bpf\0"), attribute(TCA_OPTIONS, &options.concat())];
        let info = 1 << 16 | u32::from(ETH_P_ALL.to_be());
        self.change_traffic(RTM_NEWTFILTER, (index, 0, TC_H_CLSACT_INGRESS, info), &filter.concat())
            .inspect_err(|_| drop(self.remove_classifier(index)))
    }

    /// Removes the program that [`Netlink::add_classifier`] attached.
    pub(crate) fn remove_classifier(&mut self, index: u32) -> io::Result<()> {
        self.change_traffic(RTM_DELQDISC, (index, TC_H_INGRESS, TC_H_CLSACT, 0), &[])
    }

    /// Sends a `struct tcmsg` with a link's index, handle, parent and info, followed by attributes.
    fn change_traffic(
        &mut self,
        kind: u16,
        (index, handle, parent, info): (u32, u32, u32, u32),
        attributes: &[u8],
    ) -> io::Result<()> {
        let create = if kind == RTM_DELQDISC { 0 } else { NLM_F_CREATE | NLM_F_EXCL };
        let mut body: Vec<u8> =
            [0, index, handle, parent, info].into_iter().flat_map(u32::to_ne_bytes).collect();
        body.extend(attributes);
        self.change_with(kind, create, &body)
    }

    /// Sends a request with `body` as its header and attributes, and waits for the acknowledgement.
    fn change_with(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(body);
        self.socket.send(&bytes, 0)?;
        self.receive(|_, _| ())
    }

    /// Sends a request that changes something, and waits for the acknowledgement.
    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(message, flags | NLM_F_ACK)?;
        self.receive(|_, _| ())
    }

    /// Sends a request for a list. It does not set NLM_F_ACK, since the acknowledgement would be read as the
    /// answer to the next request. An answer that cannot be parsed is skipped.
    fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(message, NLM_F_DUMP)?;
        let mut found = Vec::new();
        self.receive(|kind, body| {
            let mut header = NetlinkHeader::default();
            header.message_type = kind;
            found.extend(RouteNetlinkMessage::deserialize(&header, body));
        })?;
        Ok(found)
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        Ok(())
    }

    /// Reads the answers to the latest request, up to its acknowledgement or the end of its list: for each of them its
    /// type, and its bytes after the header of netlink.
    fn receive(&mut self, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            if read_answers(&bytes, self.sequence, &mut each)? {
                return Ok(());
            }
        }
    }
}

/// Reads the answers to one request from one message of the kernel. Returns whether they are complete.
fn read_answers(bytes: &[u8], sequence: u32, each: &mut impl FnMut(u16, &[u8])) -> io::Result<bool> {
    // From linux/netlink.h. Other types below the first one of rtnetlink have no content.
    const NLMSG_ERROR: u16 = 2;
    const NLMSG_DONE: u16 = 3;
    const NLMSG_MIN_TYPE: u16 = 0x10;
    let mut rest = bytes;
    while !rest.is_empty() {
        let header = NetlinkBuffer::new_checked(rest)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let (length, kind) = (header.length() as usize, header.message_type());
        let body = rest.get(HEADER_BYTES..length).unwrap_or_default();
        let is_answer = header.sequence_number() == sequence;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        match kind {
            _ if !is_answer => {}
            NLMSG_ERROR => {
                let code = body.first_chunk().map_or(-libc::EIO, |code| i32::from_ne_bytes(*code));
                return if code == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(code.abs())) };
            }
            NLMSG_DONE => return Ok(true),
            NLMSG_MIN_TYPE.. => each(kind, body),
            _ => {}
        }
    }
    Ok(false)
}

/// The link attribute with values of its IPv4 configuration.
fn ipv4_configuration(values: &[(u16, u32)]) -> LinkAttribute {
    let values: Vec<u8> =
        values.iter().flat_map(|(kind, value)| attribute(*kind, &value.to_ne_bytes())).collect();
    let values = attribute(AF_INET, &attribute(IFLA_INET_CONF, &values));
    LinkAttribute::Other(DefaultNla::new(IFLA_AF_SPEC, values))
}

/// The bytes of an rtnetlink attribute, padded to a multiple of four.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    // No attribute of ours is near 64 KiB.
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The index of the link with `name` in the network namespace of the calling thread.
pub fn link_index(name: &str) -> io::Result<u32> {
    Ok(nix::net::if_::if_nametoindex(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test in a thread with its own network namespace, which ends with the thread.
    pub(super) fn in_new_namespace(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
            test();
        });
        thread.join().expect("the test failed");
    }

    #[test]
    fn a_bridge_gets_an_address_and_a_veth_pair_joins_it() {
        in_new_namespace(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.add_bridge("br0").unwrap();
            assert_eq!(netlink.add_bridge("br0").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            let bridge = link_index("br0").unwrap();
            netlink.add_address(bridge, Ipv4Addr::new(10, 1, 2, 1), 24).unwrap();
            netlink.set_up(bridge).unwrap();
            let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            let hardware = [2, 0, 0, 0, 0, 9];
            let namespace = std::os::fd::AsRawFd::as_raw_fd(&here);
            netlink.add_veth("host0", bridge, ("eth0", hardware), namespace).unwrap();
            let port = link_index("host0").unwrap();
            netlink.set_port_up(port, true, &[(8, 1)]).unwrap();
            netlink.add_forwarding(port, hardware).unwrap();
            netlink.add_neighbour(bridge, Ipv4Addr::new(10, 1, 2, 9), hardware).unwrap();
            let peer = link_index("eth0").unwrap();
            netlink.set_up(peer).unwrap();
            assert_eq!(netlink.addresses().unwrap(), [(bridge, Ipv4Addr::new(10, 1, 2, 1), 24)]);
            assert!(netlink.routes().unwrap().contains(&(bridge, Ipv4Addr::new(10, 1, 2, 0), 24)));
            netlink.add_default_route(bridge, Ipv4Addr::new(10, 1, 2, 9)).unwrap();
            assert!(netlink.routes().unwrap().contains(&(bridge, Ipv4Addr::UNSPECIFIED, 0)));
            netlink.remove_link("host0").unwrap();
            assert!(link_index("eth0").is_err());
            assert_eq!(netlink.remove_link("host0").unwrap_err().kind(), io::ErrorKind::NotFound);
        });
    }

    #[test]
    fn the_answers_to_a_request_are_read_up_to_its_end() {
        const NLMSG_ERROR: u16 = 2;
        const NLMSG_DONE: u16 = 3;
        const RTM_NEWLINK: u16 = 16;
        let message = |kind: u16, body: &[u8]| {
            let length = u32::try_from(16 + body.len()).expect("it is short");
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([2, 0]);
            bytes.extend(7u32.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(body);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let done = message(NLMSG_DONE, &[0; 4]);
        let bytes = [message(RTM_NEWLINK, &[1]), message(RTM_NEWLINK, &[2; 5]), done.clone()].concat();
        let mut seen = Vec::new();
        assert!(read_answers(&bytes, 7, &mut |kind, body| seen.push((kind, body.to_vec()))).unwrap());
        assert_eq!(seen, [(RTM_NEWLINK, vec![1]), (RTM_NEWLINK, vec![2; 5])]);
        assert!(!read_answers(&message(RTM_NEWLINK, &[]), 7, &mut |_, _| {}).unwrap(), "a part of a list");
        assert!(!read_answers(&done, 8, &mut |_, _| {}).unwrap(), "the end of another list");
        let refused = |code: i32| message(NLMSG_ERROR, &code.to_ne_bytes());
        assert!(read_answers(&refused(0), 7, &mut |_, _| {}).unwrap());
        let error = read_answers(&refused(-libc::ENODEV), 7, &mut |_, _| {}).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        assert!(read_answers(&message(NLMSG_ERROR, &[]), 7, &mut |_, _| {}).is_err());
        assert!(read_answers(&[1, 2, 3], 7, &mut |_, _| {}).is_err());
    }
}
