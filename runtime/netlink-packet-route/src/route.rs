//! `struct rtmsg` and `RTA_*`.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::AddressFamily;
use crate::attribute::{Attribute, Message, number};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

/// A route: `RTM_NEWROUTE`, `RTM_GETROUTE`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct RouteMessage {
    pub header: RouteHeader,
    pub attributes: Vec<RouteAttribute>,
}

/// `struct rtmsg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct RouteHeader {
    pub address_family: AddressFamily,
    pub destination_prefix_length: u8,
    pub source_prefix_length: u8,
    pub tos: u8,
    pub table: u8,
    pub protocol: RouteProtocol,
    pub scope: RouteScope,
    pub kind: RouteType,
    /// `RTM_F_*`.
    pub flags: u32,
}

impl RouteHeader {
    /// The routing table that `ip route` shows.
    pub const RT_TABLE_MAIN: u8 = 254;
}

/// `RTPROT_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the protocol of that name")]
pub enum RouteProtocol {
    #[default]
    Unspec,
    Boot,
    Other(u8),
}

/// `RT_SCOPE_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the scope of that name")]
pub enum RouteScope {
    #[default]
    Universe,
    Other(u8),
}

/// `RTN_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the type of that name")]
pub enum RouteType {
    #[default]
    Unspec,
    Unicast,
    Other(u8),
}

/// `RTA_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the attribute of that name")]
pub enum RouteAttribute {
    Destination(RouteAddress),
    Gateway(RouteAddress),
    Oif(u32),
    Other(u16, Vec<u8>),
}

/// An address, of the family that the header names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the family of that name")]
pub enum RouteAddress {
    Inet(Ipv4Addr),
    Inet6(Ipv6Addr),
}

impl Message for RouteMessage {
    const HEADER: usize = 12;
    type Attribute = RouteAttribute;

    fn write_header(&self, out: &mut Vec<u8>) {
        let header = &self.header;
        let protocol = match header.protocol {
            RouteProtocol::Unspec => 0,
            RouteProtocol::Boot => 3,
            RouteProtocol::Other(other) => other,
        };
        let scope = match header.scope {
            RouteScope::Universe => 0,
            RouteScope::Other(other) => other,
        };
        let kind = match header.kind {
            RouteType::Unspec => 0,
            RouteType::Unicast => 1,
            RouteType::Other(other) => other,
        };
        out.extend([
            header.address_family.into(),
            header.destination_prefix_length,
            header.source_prefix_length,
            header.tos,
            header.table,
            protocol,
            scope,
            kind,
        ]);
        out.extend(header.flags.to_ne_bytes());
    }

    fn attributes(&self) -> &[RouteAttribute] {
        &self.attributes
    }

    fn from_parts(header: &[u8], attributes: Vec<RouteAttribute>) -> Self {
        let protocol = match header[5] {
            0 => RouteProtocol::Unspec,
            3 => RouteProtocol::Boot,
            other => RouteProtocol::Other(other),
        };
        let scope = match header[6] {
            0 => RouteScope::Universe,
            other => RouteScope::Other(other),
        };
        let kind = match header[7] {
            0 => RouteType::Unspec,
            1 => RouteType::Unicast,
            other => RouteType::Other(other),
        };
        let header = RouteHeader {
            address_family: header[0].into(),
            destination_prefix_length: header[1],
            source_prefix_length: header[2],
            tos: header[3],
            table: header[4],
            protocol,
            scope,
            kind,
            flags: number(header, 8),
        };
        Self { header, attributes }
    }
}

impl Attribute for RouteAttribute {
    fn kind(&self) -> u16 {
        match self {
            Self::Destination(_) => RTA_DST,
            Self::Gateway(_) => RTA_GATEWAY,
            Self::Oif(_) => RTA_OIF,
            Self::Other(kind, _) => *kind,
        }
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        match self {
            Self::Destination(RouteAddress::Inet(address)) | Self::Gateway(RouteAddress::Inet(address)) => {
                out.extend(address.octets());
            }
            Self::Destination(RouteAddress::Inet6(address)) | Self::Gateway(RouteAddress::Inet6(address)) => {
                out.extend(address.octets());
            }
            Self::Oif(index) => out.extend(index.to_ne_bytes()),
            Self::Other(_, value) => out.extend(value),
        }
    }

    fn read(kind: u16, value: &[u8]) -> Self {
        let address = || {
            let v4 = <[u8; 4]>::try_from(value).map(|octets| RouteAddress::Inet(octets.into()));
            v4.or_else(|_| <[u8; 16]>::try_from(value).map(|octets| RouteAddress::Inet6(octets.into()))).ok()
        };
        let read = match kind {
            RTA_DST => address().map(Self::Destination),
            RTA_GATEWAY => address().map(Self::Gateway),
            RTA_OIF => value.try_into().ok().map(|index| Self::Oif(u32::from_ne_bytes(index))),
            _ => None,
        };
        read.unwrap_or_else(|| Self::Other(kind, value.to_vec()))
    }
}
