//! `struct ifinfomsg` and `IFLA_*`.

use std::os::fd::RawFd;

use crate::AddressFamily;
use crate::attribute::{Attribute, Message, number, read_all, write_all, write_one};

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

/// A network interface: `RTM_NEWLINK` and the like.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct LinkMessage {
    pub header: LinkHeader,
    pub attributes: Vec<LinkAttribute>,
}

/// `struct ifinfomsg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct LinkHeader {
    pub interface_family: AddressFamily,
    pub index: u32,
    /// `ARPHRD_*`.
    pub link_layer_type: u16,
    pub flags: LinkFlags,
    pub change_mask: LinkFlags,
}

bitflags::bitflags! {
    /// `IFF_*`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct LinkFlags: u32 {
        /// `IFF_UP`.
        const Up = 1;
        const _ = !0;
    }
}

/// `IFLA_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the attribute of that name")]
pub enum LinkAttribute {
    Address(Vec<u8>),
    IfName(String),
    Controller(u32),
    LinkInfo(Vec<LinkInfo>),
    NetNsFd(RawFd),
    Other(u16, Vec<u8>),
}

/// `IFLA_INFO_*`, the attributes in `IFLA_LINKINFO`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the attribute of that name")]
pub enum LinkInfo {
    Kind(InfoKind),
    Data(InfoData),
    Other(u16, Vec<u8>),
}

/// The driver that makes a link, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the driver of that name")]
pub enum InfoKind {
    Bridge,
    Veth,
    Other(String),
}

/// Written only: what the kernel tells of a link stays bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the driver of that name")]
pub enum InfoData {
    Veth(InfoVeth),
}

/// `VETH_INFO_*`, the attributes in `IFLA_INFO_DATA` of a veth.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the attribute of that name")]
pub enum InfoVeth {
    Peer(LinkMessage),
}

impl Message for LinkMessage {
    const HEADER: usize = 16;
    type Attribute = LinkAttribute;

    fn write_header(&self, out: &mut Vec<u8>) {
        let LinkHeader { interface_family, index, link_layer_type, flags, change_mask } = self.header;
        out.extend([interface_family.into(), 0]);
        out.extend(link_layer_type.to_ne_bytes());
        out.extend(index.to_ne_bytes());
        out.extend(flags.bits().to_ne_bytes());
        out.extend(change_mask.bits().to_ne_bytes());
    }

    fn attributes(&self) -> &[LinkAttribute] {
        &self.attributes
    }

    fn from_parts(header: &[u8], attributes: Vec<LinkAttribute>) -> Self {
        let header = LinkHeader {
            interface_family: header[0].into(),
            index: number(header, 4),
            link_layer_type: u16::from_ne_bytes([header[2], header[3]]),
            flags: LinkFlags::from_bits_retain(number(header, 8)),
            change_mask: LinkFlags::from_bits_retain(number(header, 12)),
        };
        Self { header, attributes }
    }
}

impl Attribute for LinkAttribute {
    fn kind(&self) -> u16 {
        match self {
            Self::Address(_) => IFLA_ADDRESS,
            Self::IfName(_) => IFLA_IFNAME,
            Self::Controller(_) => IFLA_MASTER,
            Self::LinkInfo(_) => IFLA_LINKINFO,
            Self::NetNsFd(_) => IFLA_NET_NS_FD,
            Self::Other(kind, _) => *kind,
        }
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        match self {
            Self::Address(value) | Self::Other(_, value) => out.extend(value),
            Self::IfName(name) => write_string(name, out),
            Self::Controller(index) => out.extend(index.to_ne_bytes()),
            Self::LinkInfo(infos) => write_all(infos, out),
            Self::NetNsFd(fd) => out.extend(fd.to_ne_bytes()),
        }
    }

    fn read(kind: u16, value: &[u8]) -> Self {
        let other = || Self::Other(kind, value.to_vec());
        let four = <[u8; 4]>::try_from(value);
        match kind {
            IFLA_ADDRESS => Self::Address(value.to_vec()),
            IFLA_IFNAME => read_string(value).map_or_else(other, Self::IfName),
            IFLA_MASTER => four.map_or_else(|_| other(), |index| Self::Controller(u32::from_ne_bytes(index))),
            IFLA_LINKINFO => read_all(value).map_or_else(|_| other(), Self::LinkInfo),
            IFLA_NET_NS_FD => four.map_or_else(|_| other(), |fd| Self::NetNsFd(RawFd::from_ne_bytes(fd))),
            _ => other(),
        }
    }
}

impl Attribute for LinkInfo {
    fn kind(&self) -> u16 {
        match self {
            Self::Kind(_) => IFLA_INFO_KIND,
            Self::Data(_) => IFLA_INFO_DATA,
            Self::Other(kind, _) => *kind,
        }
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        match self {
            Self::Kind(InfoKind::Bridge) => write_string("bridge", out),
            Self::Kind(InfoKind::Veth) => write_string("veth", out),
            Self::Kind(InfoKind::Other(name)) => write_string(name, out),
            Self::Data(InfoData::Veth(InfoVeth::Peer(peer))) => {
                write_one(VETH_INFO_PEER, out, |out| out.extend(peer.bytes()));
            }
            Self::Other(_, value) => out.extend(value),
        }
    }

    fn read(kind: u16, value: &[u8]) -> Self {
        match (kind, read_string(value)) {
            (IFLA_INFO_KIND, Some(name)) => Self::Kind(match name.as_str() {
                "bridge" => InfoKind::Bridge,
                "veth" => InfoKind::Veth,
                _ => InfoKind::Other(name),
            }),
            (kind, _) => Self::Other(kind, value.to_vec()),
        }
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    out.extend(text.as_bytes());
    out.push(0);
}

fn read_string(value: &[u8]) -> Option<String> {
    let text = value.strip_suffix(&[0]).unwrap_or(value);
    std::str::from_utf8(text).ok().map(str::to_owned)
}
