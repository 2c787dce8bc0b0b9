//! The part of rtnetlink that libcontainer and nodlet speak: links, addresses,
//! routes and neighbours, with the attributes that either of them reads or writes. Any other
//! attribute is kept as bytes; any other message is an error. `Cargo.toml` gives the reason
//! for which this is not the published crate.

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkPayload, NetlinkSerializable,
};

use crate::address::AddressMessage;
use crate::attribute::Message;
use crate::link::LinkMessage;
use crate::neighbour::NeighbourMessage;
use crate::route::RouteMessage;

pub mod address;
mod attribute;
pub mod link;
pub mod neighbour;
pub mod route;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;

/// `AF_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the family of that name")]
pub enum AddressFamily {
    #[default]
    Unspec,
    Inet,
    Inet6,
    Other(u8),
}

impl From<u8> for AddressFamily {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Unspec,
            2 => Self::Inet,
            10 => Self::Inet6,
            other => Self::Other(other),
        }
    }
}

impl From<AddressFamily> for u8 {
    fn from(family: AddressFamily) -> Self {
        match family {
            AddressFamily::Unspec => 0,
            AddressFamily::Inet => 2,
            AddressFamily::Inet6 => 10,
            AddressFamily::Other(other) => other,
        }
    }
}

/// `RTM_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the message of that name")]
pub enum RouteNetlinkMessage {
    NewLink(LinkMessage),
    DelLink(LinkMessage),
    GetLink(LinkMessage),
    SetLink(LinkMessage),
    NewAddress(AddressMessage),
    GetAddress(AddressMessage),
    NewRoute(RouteMessage),
    GetRoute(RouteMessage),
    NewNeighbour(NeighbourMessage),
}

impl RouteNetlinkMessage {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::NewLink(link) | Self::DelLink(link) | Self::GetLink(link) | Self::SetLink(link) => {
                link.bytes()
            }
            Self::NewAddress(address) | Self::GetAddress(address) => address.bytes(),
            Self::NewRoute(route) | Self::GetRoute(route) => route.bytes(),
            Self::NewNeighbour(neighbour) => neighbour.bytes(),
        }
    }
}

impl NetlinkSerializable for RouteNetlinkMessage {
    fn message_type(&self) -> u16 {
        match self {
            Self::NewLink(_) => RTM_NEWLINK,
            Self::DelLink(_) => RTM_DELLINK,
            Self::GetLink(_) => RTM_GETLINK,
            Self::SetLink(_) => RTM_SETLINK,
            Self::NewAddress(_) => RTM_NEWADDR,
            Self::GetAddress(_) => RTM_GETADDR,
            Self::NewRoute(_) => RTM_NEWROUTE,
            Self::GetRoute(_) => RTM_GETROUTE,
            Self::NewNeighbour(_) => RTM_NEWNEIGH,
        }
    }

    fn buffer_len(&self) -> usize {
        self.bytes().len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let bytes = self.bytes();
        buffer[..bytes.len()].copy_from_slice(&bytes);
    }
}

impl NetlinkDeserializable for RouteNetlinkMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        match header.message_type {
            RTM_NEWLINK => LinkMessage::parse(payload).map(Self::NewLink),
            RTM_DELLINK => LinkMessage::parse(payload).map(Self::DelLink),
            RTM_GETLINK => LinkMessage::parse(payload).map(Self::GetLink),
            RTM_SETLINK => LinkMessage::parse(payload).map(Self::SetLink),
            RTM_NEWADDR => AddressMessage::parse(payload).map(Self::NewAddress),
            RTM_GETADDR => AddressMessage::parse(payload).map(Self::GetAddress),
            RTM_NEWROUTE => RouteMessage::parse(payload).map(Self::NewRoute),
            RTM_GETROUTE => RouteMessage::parse(payload).map(Self::GetRoute),
            RTM_NEWNEIGH => NeighbourMessage::parse(payload).map(Self::NewNeighbour),
            _ => Err("unsupported rtnetlink message".into()),
        }
    }
}

impl From<RouteNetlinkMessage> for NetlinkPayload<RouteNetlinkMessage> {
    fn from(message: RouteNetlinkMessage) -> Self {
        Self::InnerMessage(message)
    }
}

#[cfg(test)]
mod tests;
