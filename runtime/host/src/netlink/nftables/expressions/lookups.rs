//! Expressions that look something up in sets and maps, and what Services need besides: random numbers, marks, refusals.

use std::net::IpAddr;
use std::ops::Range;

use super::{
    EQUAL, META_L4PROTO, META_NFPROTO, NETWORK_HEADER, NOT_EQUAL, REGISTER, TRANSPORT_HEADER,
    VERDICT_REGISTER, attribute, compare, dnat_to, expression, load, mask, nested, octets, text, value, word,
};
use nodlet_services::service::Family;

const META_MARK: u32 = 3;
/// The registers of 4 bytes, of which [`REGISTER`] has the first four.
const WORD_REGISTERS: u32 = 8;
/// The register after [`REGISTER`].
const SECOND_REGISTER: u32 = 2;

const DYNSET_UPDATE: u32 = 1;
const NUMGEN_RANDOM: u32 = 1;
const HASH_SYMMETRIC: u32 = 1;
const REJECT_TCP_RESET: u32 = 1;
const REJECT_ICMPX: u32 = 2;
const ICMPX_PORT_UNREACHABLE: u8 = 1;

/// How a rule chooses one of several endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// At random, by `numgen`.
    Random,
    /// By a hash of the connection, `symhash`.
    Hash,
    /// Always the first one.
    First,
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// The address of any packet of a family, for functions that need only the family.
fn any(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    }
}

/// Matches packets of an IP version.
pub(crate) fn version(family: Family) -> Vec<u8> {
    [load("meta", META_NFPROTO), compare(EQUAL, &[number(family)])].concat()
}

/// Matches packets of a transport protocol.
pub(crate) fn protocol(number: u8) -> Vec<u8> {
    [load("meta", META_L4PROTO), compare(EQUAL, &[number])].concat()
}

/// Loads bytes of a packet into a register.
fn payload_into(register: u32, (base, offset, length): (u32, u32, u32)) -> Vec<u8> {
    expression("payload", &[word(1, register), word(2, base), word(3, offset), word(4, length)])
}

fn destination(family: Family) -> (u32, u32, u32) {
    match family {
        Family::V4 => (NETWORK_HEADER, 16, 4),
        Family::V6 => (NETWORK_HEADER, 24, 16),
    }
}

fn source(family: Family) -> (u32, u32, u32) {
    match family {
        Family::V4 => (NETWORK_HEADER, 12, 4),
        Family::V6 => (NETWORK_HEADER, 8, 16),
    }
}

fn load_into(register: u32, key: u32) -> Vec<u8> {
    expression("meta", &[word(2, key), word(1, register)])
}

/// The register of the value after an address in [`REGISTER`], and the one after that.
fn after_address(family: Family) -> (u32, u32) {
    match family {
        Family::V4 => (WORD_REGISTERS + 1, WORD_REGISTERS + 2),
        Family::V6 => (SECOND_REGISTER, WORD_REGISTERS + 5),
    }
}

/// Continues with the chain of a map from destination, protocol and destination port; with the next rule if the map has
/// none.
pub(crate) fn vmap_destination(family: Family, map: &str) -> Vec<u8> {
    let (second, third) = after_address(family);
    [
        version(family),
        payload_into(REGISTER, destination(family)),
        load_into(second, META_L4PROTO),
        payload_into(third, (TRANSPORT_HEADER, 2, 2)),
        lookup(map, VERDICT_REGISTER),
    ]
    .concat()
}

/// Continues with the chain of a map from protocol and destination port.
pub(crate) fn vmap_port(map: &str) -> Vec<u8> {
    [
        load_into(REGISTER, META_L4PROTO),
        payload_into(WORD_REGISTERS + 1, (TRANSPORT_HEADER, 2, 2)),
        lookup(map, VERDICT_REGISTER),
    ]
    .concat()
}

/// Matches packets of a family whose destination is in a set.
pub(crate) fn destination_in(family: Family, set: &str) -> Vec<u8> {
    [version(family), payload_into(REGISTER, destination(family)), matches(set)].concat()
}

/// Matches packets of a family whose source is in a set.
pub(crate) fn source_in(family: Family, set: &str) -> Vec<u8> {
    [version(family), payload_into(REGISTER, source(family)), matches(set)].concat()
}

/// Matches packets of a family whose source and destination, one after the other, are in a set.
pub(crate) fn both_in(family: Family, set: &str) -> Vec<u8> {
    let (second, _) = after_address(family);
    let loaded = [payload_into(REGISTER, source(family)), payload_into(second, destination(family))].concat();
    [version(family), loaded, matches(set)].concat()
}

/// Matches packets of a family to no loopback address.
pub(crate) fn not_to_loopback(family: Family) -> Vec<u8> {
    let (loaded, loopback) = match family {
        Family::V4 => (payload_into(REGISTER, (NETWORK_HEADER, 16, 1)), vec![127]),
        Family::V6 => {
            let loopback = octets(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST));
            (payload_into(REGISTER, destination(family)), loopback)
        }
    };
    [version(family), loaded, compare(NOT_EQUAL, &loopback)].concat()
}

/// Adds the source of the packet to a dynamic set, or begins its time again. Ends the rule if the set is full.
pub(crate) fn remember_source(family: Family, set: &str) -> Vec<u8> {
    let update = [text(1, set), word(3, DYNSET_UPDATE), word(4, REGISTER)];
    [version(family), payload_into(REGISTER, source(family)), expression("dynset", &update)].concat()
}

fn matches(set: &str) -> Vec<u8> {
    expression("lookup", &[text(1, set), word(2, REGISTER)])
}

fn lookup(map: &str, into: u32) -> Vec<u8> {
    expression("lookup", &[text(1, map), word(2, REGISTER), word(3, into)])
}

/// Loads one of the numbers into the register.
fn choose(choice: Choice, numbers: &Range<u32>) -> Vec<u8> {
    let (first, count) = (numbers.start, numbers.end - numbers.start);
    match choice {
        Choice::Random => {
            let from = [word(1, REGISTER), word(2, count), word(3, NUMGEN_RANDOM), word(4, first)];
            expression("numgen", &from)
        }
        Choice::Hash => {
            let from = [word(2, REGISTER), word(4, count), word(6, first), word(7, HASH_SYMMETRIC)];
            expression("hash", &from)
        }
        Choice::First => super::immediate(REGISTER, value(&first.to_ne_bytes())),
    }
}

/// Sends the connection to the address with port that a map has for one of the numbers.
pub(crate) fn dnat_to_one(choice: Choice, family: Family, map: &str, numbers: &Range<u32>) -> Vec<u8> {
    let (port_register, _) = after_address(family);
    [choose(choice, numbers), lookup(map, REGISTER), dnat_to(any(family), port_register)].concat()
}

/// Continues with the chain that a map has for one of the numbers.
pub(crate) fn goto_one(choice: Choice, map: &str, numbers: &Range<u32>) -> Vec<u8> {
    [choose(choice, numbers), lookup(map, VERDICT_REGISTER)].concat()
}

/// Whether a kernel has the expression of a choice is seen by whether it accepts this one.
pub(crate) fn only_choose(choice: Choice) -> Vec<u8> {
    choose(choice, &(0..2))
}

/// Refuses the connection: the client gets an error at once.
pub(crate) fn reject(is_tcp: bool) -> Vec<u8> {
    let attributes = if is_tcp {
        vec![word(1, REJECT_TCP_RESET)]
    } else {
        vec![word(1, REJECT_ICMPX), attribute(2, &[ICMPX_PORT_UNREACHABLE])]
    };
    expression("reject", &attributes)
}

/// Sets a bit of the packet's mark.
pub(crate) fn set_mark(bit: u32) -> Vec<u8> {
    [load("meta", META_MARK), bitwise(!bit, bit), store_mark()].concat()
}

/// Clears a bit of the packet's mark.
pub(crate) fn clear_mark(bit: u32) -> Vec<u8> {
    [load("meta", META_MARK), bitwise(!bit, 0), store_mark()].concat()
}

/// Matches packets whose mark has a bit.
pub(crate) fn has_mark(bit: u32) -> Vec<u8> {
    [load("meta", META_MARK), mask(&bit.to_ne_bytes()), compare(NOT_EQUAL, &[0; 4])].concat()
}

fn bitwise(keep: u32, flip: u32) -> Vec<u8> {
    let (keep, flip) = (value(&keep.to_ne_bytes()), value(&flip.to_ne_bytes()));
    let words = [word(1, REGISTER), word(2, REGISTER), word(3, 4)];
    expression("bitwise", &[words.concat(), nested(4, &[keep]), nested(5, &[flip])])
}

fn store_mark() -> Vec<u8> {
    expression("meta", &[word(2, META_MARK), word(3, REGISTER)])
}
