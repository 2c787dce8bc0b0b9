//! `struct ndmsg` and `NDA_*`.

use std::net::Ipv4Addr;

use crate::AddressFamily;
use crate::attribute::{Attribute, Message, number};

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// The hardware address of a neighbour, or a forwarding entry of a bridge: `RTM_NEWNEIGH`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct NeighbourMessage {
    pub header: NeighbourHeader,
    pub attributes: Vec<NeighbourAttribute>,
}

/// `struct ndmsg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct NeighbourHeader {
    pub family: AddressFamily,
    pub ifindex: u32,
    pub state: NeighbourState,
    pub flags: NeighbourFlags,
}

/// `NUD_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the state of that name")]
pub enum NeighbourState {
    #[default]
    None,
    Noarp,
    Permanent,
    Other(u16),
}

bitflags::bitflags! {
    /// `NTF_*`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct NeighbourFlags: u8 {
        /// `NTF_MASTER`: an entry of the bridge that the link is a port of.
        const Controller = 4;
        /// `NTF_STICKY`: the entry stays where it is, whatever port its address is seen at.
        const Sticky = 64;
        const _ = !0;
    }
}

/// `NDA_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the attribute of that name")]
pub enum NeighbourAttribute {
    Destination(Ipv4Addr),
    LinkLayerAddress(Vec<u8>),
    Other(u16, Vec<u8>),
}

impl Message for NeighbourMessage {
    const HEADER: usize = 12;
    type Attribute = NeighbourAttribute;

    fn write_header(&self, out: &mut Vec<u8>) {
        let NeighbourHeader { family, ifindex, state, flags } = self.header;
        let state: u16 = match state {
            NeighbourState::None => 0,
            NeighbourState::Noarp => 0x40,
            NeighbourState::Permanent => 0x80,
            NeighbourState::Other(other) => other,
        };
        out.extend([family.into(), 0, 0, 0]);
        out.extend(ifindex.to_ne_bytes());
        out.extend(state.to_ne_bytes());
        out.extend([flags.bits(), 0]);
    }

    fn attributes(&self) -> &[NeighbourAttribute] {
        &self.attributes
    }

    fn from_parts(header: &[u8], attributes: Vec<NeighbourAttribute>) -> Self {
        let state = match u16::from_ne_bytes([header[8], header[9]]) {
            0 => NeighbourState::None,
            0x40 => NeighbourState::Noarp,
            0x80 => NeighbourState::Permanent,
            other => NeighbourState::Other(other),
        };
        let header = NeighbourHeader {
            family: header[0].into(),
            ifindex: number(header, 4),
            state,
            flags: NeighbourFlags::from_bits_retain(header[10]),
        };
        Self { header, attributes }
    }
}

impl Attribute for NeighbourAttribute {
    fn kind(&self) -> u16 {
        match self {
            Self::Destination(_) => NDA_DST,
            Self::LinkLayerAddress(_) => NDA_LLADDR,
            Self::Other(kind, _) => *kind,
        }
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        match self {
            Self::Destination(address) => out.extend(address.octets()),
            Self::LinkLayerAddress(value) | Self::Other(_, value) => out.extend(value),
        }
    }

    fn read(kind: u16, value: &[u8]) -> Self {
        match (kind, <[u8; 4]>::try_from(value)) {
            (NDA_DST, Ok(octets)) => Self::Destination(octets.into()),
            (NDA_LLADDR, _) => Self::LinkLayerAddress(value.to_vec()),
            (kind, _) => Self::Other(kind, value.to_vec()),
        }
    }
}
