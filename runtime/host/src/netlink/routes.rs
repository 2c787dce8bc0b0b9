//! Routes of the main table.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, Parseable};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMessageBuffer, RouteProtocol,
    RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Netlink;

impl Netlink {
    /// All IPv4 routes of the main table: index of the link, destination, prefix.
    pub fn routes(&mut self) -> io::Result<Vec<(u32, Ipv4Addr, u8)>> {
        let mut found = Vec::new();
        self.list_routes(AddressFamily::Inet, &mut |_, index, (destination, prefix)| match destination {
            Some(IpAddr::V4(destination)) => found.push((index, destination, prefix)),
            Some(IpAddr::V6(_)) => {}
            None => found.push((index, Ipv4Addr::UNSPECIFIED, prefix)),
        })?;
        Ok(found)
    }

    /// The ranges of the routes that [`Netlink::add_link_route`] has added to the link with `index`.
    pub(crate) fn link_routes(&mut self, index: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            self.list_routes(family, &mut |protocol, of, (destination, prefix)| {
                let is_ours = of == index && protocol == RouteProtocol::Static;
                found.extend(destination.filter(|_| is_ours).map(|base| (base, prefix)));
            })?;
        }
        Ok(found)
    }

    /// Passes the routes of the main table to `each`: protocol, index of the link, destination with its prefix.
    fn list_routes(
        &mut self,
        family: AddressFamily,
        each: &mut dyn FnMut(RouteProtocol, u32, (Option<IpAddr>, u8)),
    ) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        self.request(&RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP, &mut |answer| {
            let parsed = RouteMessageBuffer::new_checked(&answer);
            let Ok(route) = parsed.and_then(|answer| RouteMessage::parse(&answer)) else { return };
            if route.header.table != RouteHeader::RT_TABLE_MAIN || route.header.address_family != family {
                return;
            }
            let (mut index, mut destination) = (0, None);
            for attribute in &route.attributes {
                match attribute {
                    RouteAttribute::Oif(oif) => index = *oif,
                    RouteAttribute::Destination(RouteAddress::Inet(address)) => {
                        destination = Some(IpAddr::V4(*address));
                    }
                    RouteAttribute::Destination(RouteAddress::Inet6(address)) => {
                        destination = Some(IpAddr::V6(*address));
                    }
                    _ => {}
                }
            }
            each(route.header.protocol, index, (destination, route.header.destination_prefix_length));
        })
    }

    /// Adds or replaces the default route of a pod through `gateway`, on the link with `index`.
    pub fn add_default_route(&mut self, index: u32, gateway: impl Into<IpAddr>) -> io::Result<()> {
        let mut route = route(None, gateway.into(), RouteProtocol::Boot);
        route.attributes.push(RouteAttribute::Oif(index));
        self.change(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds or replaces the default route of the board with this `metric`. The gateway need not be in the range of an
    /// address of the link.
    pub fn replace_default_route(&mut self, index: u32, gateway: Ipv4Addr, metric: u32) -> io::Result<()> {
        let route = default_route(index, gateway, metric);
        self.change(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes the default route that [`Netlink::replace_default_route`] added.
    pub fn remove_default_route(&mut self, index: u32, gateway: Ipv4Addr, metric: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelRoute(default_route(index, gateway, metric)), 0)
    }

    /// Adds a route to a range through a gateway of the same family. Fails with `AlreadyExists` if there is a route to
    /// the range, and with `NetworkUnreachable` if the gateway is on no link.
    pub(crate) fn add_route(&mut self, range: (IpAddr, u8), gateway: IpAddr) -> io::Result<()> {
        let route = route(Some(range), gateway, RouteProtocol::Static);
        self.change(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a route to a range that is on the link with `index`. Fails with `AlreadyExists` if there is a route to the
    /// range.
    pub(crate) fn add_link_route(&mut self, range: (IpAddr, u8), index: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::NewRoute(link_route(range, index)), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes the route that [`Netlink::add_link_route`] added.
    pub(crate) fn remove_link_route(&mut self, range: (IpAddr, u8), index: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelRoute(link_route(range, index)), 0)
    }

    /// Removes the route to a range through a gateway.
    pub(crate) fn remove_route(&mut self, range: (IpAddr, u8), gateway: IpAddr) -> io::Result<()> {
        let route = route(Some(range), gateway, RouteProtocol::Static);
        self.change(RouteNetlinkMessage::DelRoute(route), 0)
    }
}

/// A route to a range; `None` for the default route.
fn route(range: Option<(IpAddr, u8)>, gateway: IpAddr, protocol: RouteProtocol) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = gateway.into();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = protocol;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    if let Some((base, prefix)) = range {
        message.header.destination_prefix_length = prefix;
        message.attributes.push(RouteAttribute::Destination(base.into()));
    }
    message.attributes.push(RouteAttribute::Gateway(gateway.into()));
    message
}

/// A route to a range on a link.
fn link_route(range: (IpAddr, u8), index: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = range.0.into();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = if range.0.is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
    message.header.kind = RouteType::Unicast;
    message.header.destination_prefix_length = range.1;
    message.attributes.extend([RouteAttribute::Destination(range.0.into()), RouteAttribute::Oif(index)]);
    message
}

fn default_route(index: u32, gateway: Ipv4Addr, metric: u32) -> RouteMessage {
    let mut route = route(None, gateway.into(), RouteProtocol::Dhcp);
    route.header.flags = RouteFlags::Onlink;
    route.attributes.extend([RouteAttribute::Oif(index), RouteAttribute::Priority(metric)]);
    route
}
