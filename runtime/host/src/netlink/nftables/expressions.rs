//! Expressions of the rules of nftables, as `nft` encodes them: `network/firewall/tests.rs` compares the bytes. Each
//! function returns the attributes of one match or statement, which a rule joins.

use std::net::IpAddr;

use super::{
    NF_ACCEPT, NFTA_CMP_DATA, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME,
    NFTA_LIST_ELEM, word,
};

pub(crate) mod lookups;
use crate::netlink::{attribute, nested, text};

/// The register of all values but the port of a new destination.
const REGISTER: u32 = 1;
/// The register of the port of a new destination.
const PORT_REGISTER: u32 = 2;
const VERDICT_REGISTER: u32 = 0;

/// Key of `meta`: the name of the link by which a packet comes in.
pub(crate) const IIFNAME: u32 = 6;
/// Key of `meta`: the name of the link by which a packet goes out.
pub(crate) const OIFNAME: u32 = 7;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;

/// Key of `ct`: a bit for each state of a connection.
pub(crate) const CT_STATE: u32 = 0;
/// Key of `ct`: `IPS_*` bits of a connection.
pub(crate) const CT_STATUS: u32 = 2;
/// Bits of [`CT_STATE`].
pub(crate) const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
/// IPS_DST_NAT of [`CT_STATUS`].
pub(crate) const DNAT: u32 = 0x20;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
pub(super) const NF_DROP: u32 = 0;
const NFT_JUMP: u32 = (-3_i32).cast_unsigned();
pub(super) const NFT_GOTO: u32 = (-4_i32).cast_unsigned();
const FIB_SADDR: u32 = 1;
const FIB_DADDR: u32 = 2;
const FIB_ADDRTYPE: u32 = 3;
const RTN_LOCAL: u32 = 2;
const NAT_DNAT: u32 = 1;
/// NF_NAT_RANGE_PROTO_SPECIFIED
const WITH_PORT: u32 = 2;

/// Matches packets by the name of a link: `key` is [`IIFNAME`] or [`OIFNAME`].
pub(crate) fn link(key: u32, is: bool, name: &str) -> Vec<u8> {
    let mut value = name.as_bytes().to_vec();
    value.resize(16, 0);
    links(key, is, &value)
}

/// Matches packets by the beginning of the name of a link: `key` is [`IIFNAME`] or [`OIFNAME`].
pub(crate) fn links(key: u32, is: bool, beginning: &[u8]) -> Vec<u8> {
    let operation = if is { EQUAL } else { NOT_EQUAL };
    [load("meta", key), compare(operation, beginning)].concat()
}

/// Matches packets of the IP version of `address`.
pub(crate) fn family(address: IpAddr) -> Vec<u8> {
    [load("meta", META_NFPROTO), compare(EQUAL, &[family_number(address)])].concat()
}

/// The address of a packet that a rule matches.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// Matches packets with an address in the range `base`/`prefix`.
pub(crate) fn range(side: Side, base: IpAddr, prefix: u8) -> Vec<u8> {
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
    found.extend(payload(NETWORK_HEADER, offset, length));
    found.extend(masked);
    found.extend(compare(EQUAL, &value));
    found
}

/// Matches packets of a transport protocol with a destination port.
pub(crate) fn destination_port(protocol: u8, port: u16) -> Vec<u8> {
    [
        load("meta", META_L4PROTO),
        compare(EQUAL, &[protocol]),
        payload(TRANSPORT_HEADER, 2, 2),
        compare(EQUAL, &port.to_be_bytes()),
    ]
    .concat()
}

/// Matches packets to an address of this machine.
pub(crate) fn to_this_machine() -> Vec<u8> {
    of_this_machine(FIB_DADDR)
}

/// Matches packets from an address of this machine.
pub(crate) fn from_this_machine() -> Vec<u8> {
    of_this_machine(FIB_SADDR)
}

fn of_this_machine(address: u32) -> Vec<u8> {
    let lookup = expression("fib", &[word(3, address), word(2, FIB_ADDRTYPE), word(1, REGISTER)]);
    [lookup, compare(EQUAL, &RTN_LOCAL.to_ne_bytes())].concat()
}

/// Matches packets of connections that have one of the `bits`, or none of them.
pub(crate) fn connection(key: u32, has: bool, bits: u32) -> Vec<u8> {
    let operation = if has { NOT_EQUAL } else { EQUAL };
    [load("ct", key), mask(&bits.to_ne_bytes()), compare(operation, &[0; 4])].concat()
}

/// Drops the packet.
pub(crate) fn drop_packet() -> Vec<u8> {
    verdict(&[word(1, NF_DROP)])
}

/// Ends the evaluation of the chain; the packet stays as it is.
pub(crate) fn accept() -> Vec<u8> {
    verdict(&[word(1, NF_ACCEPT)])
}

/// Evaluates the rules of another chain.
pub(crate) fn jump(chain: &str) -> Vec<u8> {
    verdict(&[word(1, NFT_JUMP), text(2, chain)])
}

/// Evaluates the rules of another chain, and none after that.
pub(crate) fn goto(chain: &str) -> Vec<u8> {
    verdict(&[word(1, NFT_GOTO), text(2, chain)])
}

/// Sends the connection to another address and port.
pub(crate) fn dnat(address: IpAddr, port: u16) -> Vec<u8> {
    [
        immediate(REGISTER, value(&octets(address))),
        immediate(PORT_REGISTER, value(&port.to_be_bytes())),
        dnat_to(address, PORT_REGISTER),
    ]
    .concat()
}

/// Sends the connection to the address in [`REGISTER`] and the port in `port_register`. The family is that of `of`.
fn dnat_to(of: IpAddr, port_register: u32) -> Vec<u8> {
    let family = u32::from(family_number(of));
    let registers = [word(3, REGISTER), word(5, port_register)];
    expression("nat", &[word(1, NAT_DNAT), word(2, family), registers.concat(), word(7, WITH_PORT)])
}

/// Gives the connection the address of the link by which it leaves.
pub(crate) fn masquerade() -> Vec<u8> {
    expression("masq", &[])
}

// Attributes are numbered as `NFTA_META_*`, `NFTA_CT_*` and so on number those of their expression.

pub(super) fn expression(name: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    nested(NFTA_LIST_ELEM, &[text(NFTA_EXPR_NAME, name), nested(NFTA_EXPR_DATA, attributes)])
}

/// Loads a value by its key: the expressions `meta` and `ct` have the same attributes.
pub(super) fn load(name: &str, key: u32) -> Vec<u8> {
    expression(name, &[word(2, key), word(1, REGISTER)])
}

fn payload(base: u32, offset: u32, length: u32) -> Vec<u8> {
    expression("payload", &[word(1, REGISTER), word(2, base), word(3, offset), word(4, length)])
}

fn mask(mask: &[u8]) -> Vec<u8> {
    let length = u32::try_from(mask.len()).unwrap_or_default();
    let (mask, zeros) = (nested(4, &[value(mask)]), nested(5, &[value(&vec![0; mask.len()])]));
    expression("bitwise", &[word(1, REGISTER), word(2, REGISTER), word(3, length), mask, zeros])
}

fn compare(operation: u32, with: &[u8]) -> Vec<u8> {
    expression("cmp", &[word(1, REGISTER), word(2, operation), nested(NFTA_CMP_DATA, &[value(with)])])
}

fn verdict(attributes: &[Vec<u8>]) -> Vec<u8> {
    immediate(VERDICT_REGISTER, nested(NFTA_DATA_VERDICT, attributes))
}

fn immediate(register: u32, data: Vec<u8>) -> Vec<u8> {
    expression("immediate", &[word(1, register), nested(2, &[data])])
}

fn value(bytes: &[u8]) -> Vec<u8> {
    attribute(NFTA_DATA_VALUE, bytes)
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
