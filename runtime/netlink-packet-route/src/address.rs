//! `struct ifaddrmsg` and `IFA_*`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::AddressFamily;
use crate::attribute::{Attribute, Message, number};

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_MULTICAST: u16 = 7;

/// An address of a link: `RTM_NEWADDR`, `RTM_GETADDR`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct AddressMessage {
    pub header: AddressHeader,
    pub attributes: Vec<AddressAttribute>,
}

/// `struct ifaddrmsg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct AddressHeader {
    pub family: AddressFamily,
    pub prefix_len: u8,
    pub flags: AddressHeaderFlags,
    pub scope: AddressScope,
    pub index: u32,
}

bitflags::bitflags! {
    /// `IFA_F_*`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AddressHeaderFlags: u8 {
        /// `IFA_F_PERMANENT`.
        const Permanent = 0x80;
        const _ = !0;
    }
}

/// `RT_SCOPE_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the scope of that name")]
pub enum AddressScope {
    #[default]
    Universe,
    Other(u8),
}

/// `IFA_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the attribute of that name")]
pub enum AddressAttribute {
    Address(IpAddr),
    Local(IpAddr),
    Broadcast(Ipv4Addr),
    Multicast(Ipv6Addr),
    Other(u16, Vec<u8>),
}

impl Message for AddressMessage {
    const HEADER: usize = 8;
    type Attribute = AddressAttribute;

    fn write_header(&self, out: &mut Vec<u8>) {
        let AddressHeader { family, prefix_len, flags, scope, index } = self.header;
        let scope = match scope {
            AddressScope::Universe => 0,
            AddressScope::Other(other) => other,
        };
        out.extend([family.into(), prefix_len, flags.bits(), scope]);
        out.extend(index.to_ne_bytes());
    }

    fn attributes(&self) -> &[AddressAttribute] {
        &self.attributes
    }

    fn from_parts(header: &[u8], attributes: Vec<AddressAttribute>) -> Self {
        let scope = match header[3] {
            0 => AddressScope::Universe,
            other => AddressScope::Other(other),
        };
        let header = AddressHeader {
            family: header[0].into(),
            prefix_len: header[1],
            flags: AddressHeaderFlags::from_bits_retain(header[2]),
            scope,
            index: number(header, 4),
        };
        Self { header, attributes }
    }
}

impl Attribute for AddressAttribute {
    fn kind(&self) -> u16 {
        match self {
            Self::Address(_) => IFA_ADDRESS,
            Self::Local(_) => IFA_LOCAL,
            Self::Broadcast(_) => IFA_BROADCAST,
            Self::Multicast(_) => IFA_MULTICAST,
            Self::Other(kind, _) => *kind,
        }
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        match self {
            Self::Address(IpAddr::V4(address))
            | Self::Local(IpAddr::V4(address))
            | Self::Broadcast(address) => {
                out.extend(address.octets());
            }
            Self::Address(IpAddr::V6(address))
            | Self::Local(IpAddr::V6(address))
            | Self::Multicast(address) => {
                out.extend(address.octets());
            }
            Self::Other(_, value) => out.extend(value),
        }
    }

    fn read(kind: u16, value: &[u8]) -> Self {
        let (v4, v6) = (<[u8; 4]>::try_from(value), <[u8; 16]>::try_from(value));
        match (kind, v4, v6) {
            (IFA_ADDRESS, Ok(octets), _) => Self::Address(IpAddr::from(octets)),
            (IFA_ADDRESS, _, Ok(octets)) => Self::Address(IpAddr::from(octets)),
            (IFA_LOCAL, Ok(octets), _) => Self::Local(IpAddr::from(octets)),
            (IFA_LOCAL, _, Ok(octets)) => Self::Local(IpAddr::from(octets)),
            (IFA_BROADCAST, Ok(octets), _) => Self::Broadcast(octets.into()),
            (IFA_MULTICAST, _, Ok(octets)) => Self::Multicast(octets.into()),
            (kind, _, _) => Self::Other(kind, value.to_vec()),
        }
    }
}
