//! Links: bridges, veth pairs, and what both have in common with the links of hardware.

use std::io;
use std::os::fd::RawFd;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVeth, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage, LinkMessageBuffer,
};

use super::{Netlink, attribute, attributes, messages};

// From linux/if_link.h, linux/rtnetlink.h and linux/socket.h.
pub(super) const IFLA_IFNAME: u16 = 3;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET_CONF: u16 = 1;
const RTM_NEWLINK: u16 = 16;
const AF_INET: u16 = 2;

impl Netlink {
    /// Makes a bridge. Fails with `AlreadyExists` if there is a link of the name.
    pub fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        self.add_link(vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ])
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
        let other = vec![
            LinkAttribute::IfName(peer.to_owned()),
            LinkAttribute::Address(hardware.to_vec()),
            LinkAttribute::NetNsFd(peer_namespace),
        ];
        self.add_link(vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Controller(bridge),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(link(0, other)))),
            ]),
        ])
    }

    fn add_link(&mut self, attributes: Vec<LinkAttribute>) -> io::Result<()> {
        self.change(RouteNetlinkMessage::NewLink(link(0, attributes)), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Changes attributes of the link with `index`.
    pub(super) fn set_link(&mut self, index: u32, attributes: Vec<LinkAttribute>) -> io::Result<()> {
        self.change(RouteNetlinkMessage::SetLink(link(index, attributes)), 0)
    }

    /// Sets those flags of the link with `index` that are in `mask`.
    pub(super) fn set_flags(&mut self, index: u32, flags: LinkFlags, mask: LinkFlags) -> io::Result<()> {
        self.change(RouteNetlinkMessage::SetLink(with_flags(link(index, Vec::new()), flags, mask)), 0)
    }

    /// Sets the hardware address of the link with `index`.
    pub fn set_hardware_address(&mut self, index: u32, address: [u8; 6]) -> io::Result<()> {
        self.set_link(index, vec![LinkAttribute::Address(address.to_vec())])
    }

    /// Sets values of the link's IPv4 configuration: pairs of an `IPV4_DEVCONF_*` and its value.
    pub(crate) fn set_ipv4(&mut self, index: u32, values: &[(u16, u32)]) -> io::Result<()> {
        self.set_link(index, vec![ipv4_configuration(values)])
    }

    /// Sets a port of a bridge up, with these values of its IPv4 configuration. The bridge learns no address
    /// from incoming frames of the port, floods no frame for an unknown address to it, and accepts only
    /// senders with a forwarding entry for the port. With `hairpin`, it sends frames back to the port by which
    /// they came.
    pub fn set_port_up(&mut self, index: u32, hairpin: bool, values: &[(u16, u32)]) -> io::Result<()> {
        let port = InfoPortData::BridgePort(vec![
            InfoBridgePort::HairpinMode(hairpin),
            InfoBridgePort::Learning(false),
            InfoBridgePort::UnicastFlood(false),
            // Ignored before Linux 5.18.
            InfoBridgePort::Locked(true),
        ]);
        let attributes =
            vec![LinkAttribute::LinkInfo(vec![LinkInfo::PortData(port)]), ipv4_configuration(values)];
        let link = with_flags(link(index, attributes), LinkFlags::Up, LinkFlags::Up);
        // Only this one of the two requests that change a link evaluates the flags of a port.
        self.change(RouteNetlinkMessage::NewLink(link), 0)
    }

    /// Makes the bridge send frames back to the port with `index` by which they came.
    pub(crate) fn set_hairpin(&mut self, index: u32) -> io::Result<()> {
        let port = InfoPortData::BridgePort(vec![InfoBridgePort::HairpinMode(true)]);
        let link = link(index, vec![LinkAttribute::LinkInfo(vec![LinkInfo::PortData(port)])]);
        self.change(RouteNetlinkMessage::NewLink(link), 0)
    }

    /// Sets the link with `index` up.
    pub fn set_up(&mut self, index: u32) -> io::Result<()> {
        self.set_flags(index, LinkFlags::Up, LinkFlags::Up)
    }

    /// Renames the link with `index`, which is down. In the name, `%d` stands for the lowest free number.
    pub fn rename(&mut self, index: u32, name: &str) -> io::Result<()> {
        self.set_link(index, vec![LinkAttribute::IfName(name.to_owned())])
    }

    /// Moves the link with `index` to another network namespace, in which it has this name.
    pub fn move_link(&mut self, index: u32, name: &str, namespace: RawFd) -> io::Result<()> {
        self.set_link(index, vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::NetNsFd(namespace)])
    }

    /// Removes the link with `name`; of a veth pair, also its peer. Fails with `NotFound` if there is none.
    pub fn remove_link(&mut self, name: &str) -> io::Result<()> {
        let link = link(0, vec![LinkAttribute::IfName(name.to_owned())]);
        self.change(RouteNetlinkMessage::DelLink(link), 0).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => io::ErrorKind::NotFound.into(),
            Some(_) | None => error,
        })
    }
}

/// A message about the link with `index`; 0 for a link that is named or new.
pub(super) fn link(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.attributes = attributes;
    link
}

fn with_flags(mut link: LinkMessage, flags: LinkFlags, mask: LinkFlags) -> LinkMessage {
    link.header.flags = flags;
    link.header.change_mask = mask;
    link
}

/// The link attribute with values of its IPv4 configuration. The message of `netlink-packet-route` is the list that the
/// kernel reports, which it does not accept.
fn ipv4_configuration(values: &[(u16, u32)]) -> LinkAttribute {
    let values: Vec<u8> =
        values.iter().flat_map(|(kind, value)| attribute(*kind, &value.to_ne_bytes())).collect();
    let values = attribute(AF_INET, &attribute(IFLA_INET_CONF, &values));
    LinkAttribute::Other(DefaultNla::new(IFLA_AF_SPEC, values))
}

/// The index of the link with `name` in the network namespace of the calling thread.
pub fn link_index(name: &str) -> io::Result<u32> {
    Ok(nix::net::if_::if_nametoindex(name)?)
}

/// A link as the kernel reports it. Its attributes are read one by one: a container may have chosen names that are no
/// UTF-8, with which a `LinkMessage` cannot be parsed.
#[derive(Debug)]
pub struct LinkNews<'a> {
    /// The index of the link.
    pub index: u32,
    /// `IFF_*` of the link.
    pub flags: u32,
    attributes: &'a [u8],
}

impl<'a> LinkNews<'a> {
    pub(super) fn parse(payload: &'a [u8]) -> Option<LinkNews<'a>> {
        let link = LinkMessageBuffer::new_checked(payload).ok()?;
        Some(LinkNews { index: link.link_index(), flags: link.flags(), attributes: link.payload() })
    }

    /// The types and values of the attributes.
    pub(super) fn attributes(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        attributes(self.attributes)
    }

    /// Whether the name of the link begins with `beginning`.
    pub fn is_named(&self, beginning: &str) -> bool {
        super::find(self.attributes, IFLA_IFNAME).is_some_and(|name| name.starts_with(beginning.as_bytes()))
    }
}

/// The links that are new or have changed, in one datagram of [`News`](super::News) of links.
pub fn link_news(bytes: &[u8]) -> impl Iterator<Item = LinkNews<'_>> {
    let links = messages(bytes).flatten().filter(|message| message.message_type() == RTM_NEWLINK);
    links.filter_map(|message| LinkNews::parse(message.payload()))
}
