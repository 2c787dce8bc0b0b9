//! The nfnetlink messages of nf_tables that nodlet's table needs: `linux/netfilter/nf_tables.h` without a program or
//! library. An expression is encoded as `nft` encodes it; `network/firewall/tests.rs` compares the bytes.
//!
//! This module knows no pod. It must never send a message that names another table than the one it is given.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

use super::netlink::attribute;
use super::nfnetlink::NLMSG_ERROR;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NEWTABLE: u16 = NFNL_SUBSYS_NFTABLES << 8;
const DELTABLE: u16 = NEWTABLE | 2;
const NEWCHAIN: u16 = NEWTABLE | 3;
const NEWRULE: u16 = NEWTABLE | 6;
const NFNLGRP_NFTABLES: u32 = 7;
const NFPROTO_INET: u8 = 1;
const NESTED: u16 = 0x8000;

/// The register of all values but the port of a new destination.
const REGISTER: u32 = 1;
/// The register of the port of a new destination.
const PORT_REGISTER: u32 = 2;
const VERDICT_REGISTER: u32 = 0;

/// Key of `meta`: the name of the link by which a packet comes in.
pub(super) const IIFNAME: u32 = 6;
/// Key of `meta`: the name of the link by which a packet goes out.
pub(super) const OIFNAME: u32 = 7;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;

/// Key of `ct`: a bit for each state of a connection.
pub(super) const CT_STATE: u32 = 0;
/// Key of `ct`: `IPS_*` bits of a connection.
pub(super) const CT_STATUS: u32 = 2;
/// Bits of [`CT_STATE`].
pub(super) const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
/// IPS_DST_NAT of [`CT_STATUS`].
pub(super) const DNAT: u32 = 0x20;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NFT_JUMP: u32 = (-3_i32).cast_unsigned();
const FIB_DADDR: u32 = 2;
const FIB_ADDRTYPE: u32 = 3;
const RTN_LOCAL: u32 = 2;
const NAT_DNAT: u32 = 1;
/// NF_NAT_RANGE_PROTO_SPECIFIED
const WITH_PORT: u32 = 2;

/// A hook of a base chain: number and priority.
pub(super) type Hook = (u32, i32);

fn word(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    bytes.push(0);
    attribute(kind, &bytes)
}

fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &attributes.concat())
}

fn expression(name: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, attributes)])
}

fn compare(register: u32, operation: u32, value: &[u8]) -> Vec<u8> {
    expression("cmp", &[word(1, register), word(2, operation), nested(3, &[attribute(1, value)])])
}

fn mask(mask: &[u8]) -> Vec<u8> {
    let zeros = vec![0; mask.len()];
    let length = u32::try_from(mask.len()).unwrap_or_default();
    let (mask, zeros) = (nested(4, &[attribute(1, mask)]), nested(5, &[attribute(1, &zeros)]));
    expression("bitwise", &[word(1, REGISTER), word(2, REGISTER), word(3, length), mask, zeros])
}

fn payload(register: u32, base: u32, offset: u32, length: u32) -> Vec<u8> {
    expression("payload", &[word(1, register), word(2, base), word(3, offset), word(4, length)])
}

fn immediate(register: u32, value: &[u8]) -> Vec<u8> {
    expression("immediate", &[word(1, register), nested(2, &[attribute(1, value)])])
}

fn family_number(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Matches packets by the name of a link: `key` is [`IIFNAME`] or [`OIFNAME`].
pub(super) fn link(key: u32, is: bool, name: &str) -> Vec<u8> {
    let mut value = name.as_bytes().to_vec();
    value.resize(16, 0);
    links(key, is, &value)
}

/// Matches packets by the beginning of the name of a link: `key` is [`IIFNAME`] or [`OIFNAME`].
pub(super) fn links(key: u32, is: bool, beginning: &[u8]) -> Vec<u8> {
    let operation = if is { EQUAL } else { NOT_EQUAL };
    [expression("meta", &[word(2, key), word(1, REGISTER)]), compare(REGISTER, operation, beginning)].concat()
}

/// Matches packets of the IP version of `address`.
pub(super) fn family(address: IpAddr) -> Vec<u8> {
    let load = expression("meta", &[word(2, META_NFPROTO), word(1, REGISTER)]);
    [load, compare(REGISTER, EQUAL, &[family_number(address)])].concat()
}

/// The address of a packet that a rule matches.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Matches packets with an address in the range `base`/`prefix`.
pub(super) fn range(side: Side, base: IpAddr, prefix: u8) -> Vec<u8> {
    let (mut value, offset) = match (base, side) {
        (IpAddr::V4(_), Side::Source) => (octets(base), 12),
        (IpAddr::V4(_), Side::Destination) => (octets(base), 16),
        (IpAddr::V6(_), Side::Source) => (octets(base), 8),
        (IpAddr::V6(_), Side::Destination) => (octets(base), 24),
    };
    let mut found = family(base);
    let prefix = usize::from(prefix);
    let masked = if prefix.is_multiple_of(8) {
        value.truncate(prefix / 8);
        Vec::new()
    } else {
        let bits = |byte: usize| 0xff_u8.checked_shl((8 * (byte + 1)).saturating_sub(prefix) as u32);
        mask(&(0..value.len()).map(|byte| bits(byte).unwrap_or(0)).collect::<Vec<_>>())
    };
    let length = u32::try_from(value.len()).unwrap_or_default();
    found.extend(payload(REGISTER, NETWORK_HEADER, offset, length));
    found.extend(masked);
    found.extend(compare(REGISTER, EQUAL, &value));
    found
}

/// Matches packets of a transport protocol with a destination port.
pub(super) fn destination_port(protocol: u8, port: u16) -> Vec<u8> {
    [
        expression("meta", &[word(2, META_L4PROTO), word(1, REGISTER)]),
        compare(REGISTER, EQUAL, &[protocol]),
        payload(REGISTER, TRANSPORT_HEADER, 2, 2),
        compare(REGISTER, EQUAL, &port.to_be_bytes()),
    ]
    .concat()
}

/// Matches packets to an address of this machine.
pub(super) fn to_this_machine() -> Vec<u8> {
    let lookup = expression("fib", &[word(3, FIB_DADDR), word(2, FIB_ADDRTYPE), word(1, REGISTER)]);
    [lookup, compare(REGISTER, EQUAL, &RTN_LOCAL.to_ne_bytes())].concat()
}

/// Matches packets of connections that have one of the `bits`, or none of them.
pub(super) fn connection(key: u32, has: bool, bits: u32) -> Vec<u8> {
    let load = expression("ct", &[word(2, key), word(1, REGISTER)]);
    let operation = if has { NOT_EQUAL } else { EQUAL };
    [load, mask(&bits.to_ne_bytes()), compare(REGISTER, operation, &[0; 4])].concat()
}

fn verdict(attributes: &[Vec<u8>]) -> Vec<u8> {
    expression("immediate", &[word(1, VERDICT_REGISTER), nested(2, &[nested(2, attributes)])])
}

/// Drops the packet.
pub(super) fn drop_packet() -> Vec<u8> {
    verdict(&[word(1, NF_DROP)])
}

/// Ends the evaluation of the chain; the packet stays as it is.
pub(super) fn accept() -> Vec<u8> {
    verdict(&[word(1, NF_ACCEPT)])
}

/// Evaluates the rules of another chain.
pub(super) fn jump(chain: &str) -> Vec<u8> {
    verdict(&[word(1, NFT_JUMP), text(2, chain)])
}

/// Sends the connection to another address and port.
pub(super) fn dnat(address: IpAddr, port: u16) -> Vec<u8> {
    let family = u32::from(family_number(address));
    [
        immediate(REGISTER, &octets(address)),
        immediate(PORT_REGISTER, &port.to_be_bytes()),
        expression(
            "nat",
            &[
                word(1, NAT_DNAT),
                word(2, family),
                word(3, REGISTER),
                word(5, PORT_REGISTER),
                word(7, WITH_PORT),
            ],
        ),
    ]
    .concat()
}

/// Gives the connection the address of the link by which it leaves.
pub(super) fn masquerade() -> Vec<u8> {
    expression("masq", &[])
}

/// The messages of one atomic change of one table of the family `inet`.
pub(super) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    table: String,
    /// Where the latest message begins.
    latest: usize,
}

impl Batch {
    fn begin(table: &str, sequence: u32) -> Batch {
        let mut batch = Batch { bytes: Vec::new(), sequence, table: table.to_owned(), latest: 0 };
        batch.message(BATCH_BEGIN, 0, NFNL_SUBSYS_NFTABLES, &[]);
        batch
    }

    fn message(&mut self, kind: u16, flags: u16, resource: u16, attributes: &[Vec<u8>]) {
        let attributes = attributes.concat();
        let length = u32::try_from(20 + attributes.len()).unwrap_or(u32::MAX);
        let is_of_table = kind >= NEWTABLE;
        self.latest = self.bytes.len();
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend([if is_of_table { NFPROTO_INET } else { 0 }, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.bytes.extend(attributes);
    }

    /// Makes the table, unless it exists.
    pub(super) fn add_table(&mut self) {
        let attributes = [text(1, &self.table), word(2, 0)];
        self.message(NEWTABLE, 0, 0, &attributes);
    }

    /// Deletes the table and everything in it.
    pub(super) fn delete_table(&mut self) {
        let attributes = [text(1, &self.table)];
        self.message(DELTABLE, 0, 0, &attributes);
    }

    /// Adds a chain: a base chain of `kind` (`filter` or `nat`) at a hook, which accepts what no rule drops, or a
    /// chain for [`jump`].
    pub(super) fn add_chain(&mut self, name: &str, hook: Option<(&str, Hook)>) {
        let mut attributes = vec![text(1, &self.table), text(3, name)];
        if let Some((kind, (number, priority))) = hook {
            let hook = nested(4, &[word(1, number), word(2, priority.cast_unsigned())]);
            attributes.extend([text(7, kind), word(5, 1), hook]);
        }
        self.message(NEWCHAIN, NLM_F_CREATE, 0, &attributes);
    }

    /// Adds a rule to a chain.
    pub(super) fn add_rule(&mut self, chain: &str, expressions: &[Vec<u8>]) {
        let attributes = [text(1, &self.table), text(2, chain), nested(4, expressions)];
        self.message(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, 0, &attributes);
    }

    /// Ends the batch. The kernel acknowledges the latest message.
    fn end(mut self) -> Vec<u8> {
        if let Some(flags) = self.bytes.get_mut(self.latest + 6..self.latest + 8) {
            flags.copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK | flag_bits(flags)).to_ne_bytes());
        }
        self.message(BATCH_END, 0, NFNL_SUBSYS_NFTABLES, &[]);
        self.bytes
    }
}

fn flag_bits(flags: &[u8]) -> u16 {
    flags.try_into().map_or(0, u16::from_ne_bytes)
}

/// A socket to the kernel's nf_tables, in the network namespace in which it was opened.
pub(super) struct Nft {
    socket: Socket,
    /// The port of the socket, which the kernel names in the news of its changes.
    port: u32,
    sequence: u32,
}

impl std::fmt::Debug for Nft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nft").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Nft {
    pub(super) fn open() -> io::Result<Nft> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Nft { socket, port, sequence: 0 })
    }

    pub(super) fn port(&self) -> u32 {
        self.port
    }

    /// Makes one atomic change to `table`: all of it takes effect, or nothing.
    pub(super) fn change(&mut self, table: &str, fill: impl FnOnce(&mut Batch)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut batch = Batch::begin(table, self.sequence);
        fill(&mut batch);
        let bytes = batch.end();
        self.enlarge(bytes.len());
        self.socket.send(&bytes, 0)?;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            for (kind, _, sequence, body) in messages(&bytes) {
                let code = body.first_chunk().map(|code| i32::from_ne_bytes(*code));
                match code {
                    _ if kind != NLMSG_ERROR || sequence != self.sequence => {}
                    Some(0) => return Ok(()),
                    Some(code) => return Err(io::Error::from_raw_os_error(code.saturating_abs())),
                    None => return Err(io::ErrorKind::InvalidData.into()),
                }
            }
        }
    }

    /// Lets the socket send a batch of this length at once.
    fn enlarge(&self, length: usize) {
        use std::os::fd::AsRawFd;
        // What every socket has by default.
        if length < 100 << 10 {
            return;
        }
        let size = libc::c_int::try_from(length * 2).unwrap_or(libc::c_int::MAX);
        // SAFETY: an open descriptor, and a number of the length that is passed. If the kernel refuses, the batch fails.
        unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_SNDBUFFORCE,
                (&raw const size).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
    }
}

/// The messages in bytes of the kernel: kind, port, sequence number and body.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, u32, &[u8])> {
    std::iter::from_fn(move || {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let length = word(0)? as usize;
        let kind = (word(4)? & 0xffff) as u16;
        let (sequence, port) = (word(8)?, word(12)?);
        let body = bytes.get(16..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, port, sequence, body))
    })
}

/// A socket that receives the changes of all tables in its network namespace.
pub(super) fn news() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.add_membership(NFNLGRP_NFTABLES)?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Whether one of the news in `bytes` is a change of `table` by another socket than that with `port`.
pub(super) fn changes_table(bytes: &[u8], table: &str, port: u32) -> bool {
    let name = text(1, table);
    messages(bytes).any(|(kind, by, _, body)| {
        // After family, version and resource; the name of the table is the first attribute of each message but those
        // that end a change.
        kind & 0xff00 == NEWTABLE
            && by != port
            && body.first() == Some(&NFPROTO_INET)
            && body.get(4..).is_some_and(|attributes| attributes.starts_with(&name))
    })
}

/// Whether one of the news in `bytes` is a new or changed chain by another socket than that with `port`.
pub(super) fn adds_chain(bytes: &[u8], port: u32) -> bool {
    messages(bytes).any(|(kind, by, ..)| kind == NEWCHAIN && by != port)
}

/// The bytes of a change, for tests.
#[cfg(test)]
pub(super) fn encoded(table: &str, fill: impl FnOnce(&mut Batch)) -> Vec<u8> {
    let mut batch = Batch::begin(table, 1);
    fill(&mut batch);
    batch.end()
}
