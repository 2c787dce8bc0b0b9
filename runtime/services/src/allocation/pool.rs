//! The free addresses of a range, and the free node ports. Both have a lower part for requested ones: what nobody
//! requested is taken from the upper part while that has free ones (`pkg/registry/core/service/ipallocator`,
//! `portallocator`).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::RangeInclusive;

use crate::service::Family;

/// Upper bound of the addresses of a range that are allocated, as in Kubernetes' bitmap.
const MAX_ADDRESSES: u128 = 1 << 16;

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    family: Family,
    first: u128,
    /// The number of all its addresses.
    size: u128,
    prefix: u8,
}

impl AddressRange {
    /// The range with these leading bits of an address.
    pub(super) fn new(address: IpAddr, prefix: u8) -> AddressRange {
        let family = Family::of(address);
        let bits = if family == Family::V4 { 32 } else { 128 };
        let prefix = prefix.min(bits);
        let size = 1_u128.checked_shl(u32::from(bits - prefix)).unwrap_or(MAX_ADDRESSES);
        let first = number(address) & !size.wrapping_sub(1);
        AddressRange { family, first, size, prefix }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// The first offset that can be allocated and the number of such offsets: neither the network's own address nor
    /// that of a broadcast.
    fn usable(&self) -> (u128, u128) {
        let size = self.size.min(MAX_ADDRESSES);
        let broadcast = u128::from(self.family == Family::V4 && self.size <= MAX_ADDRESSES);
        (1, size.saturating_sub(1 + broadcast))
    }

    /// Whether the address can be allocated.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let (first, count) = self.usable();
        let offset = number(address).checked_sub(self.first + first);
        Family::of(address) == self.family && offset.is_some_and(|offset| offset < count)
    }

    /// The next free address behind `latest`.
    pub(super) fn next(&self, latest: Option<IpAddr>, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let (first, count) = self.usable();
        let latest = latest.filter(|latest| self.contains(*latest));
        let latest = latest.map(|latest| number(latest) - self.first - first);
        let address = |offset: u128| self.address(self.first + first + offset);
        let found = next(count, subrange(count, 256, 16), latest, |offset| is_taken(address(offset)));
        found.map(address)
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            Family::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(self.first), self.prefix)
    }
}

/// The range of node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortRange(pub(super) RangeInclusive<u16>);

impl PortRange {
    /// The next free port behind `latest`.
    pub(super) fn next(&self, latest: Option<u16>, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
        let first = u128::from(*self.0.start());
        let count = u128::from(*self.0.end()).saturating_sub(first) + 1;
        let latest = latest.filter(|latest| self.0.contains(latest)).map(|latest| u128::from(latest) - first);
        let port = |offset: u128| u16::try_from(first + offset).unwrap_or(u16::MAX);
        next(count, subrange(count, 128, 32), latest, |offset| is_taken(port(offset))).map(port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

/// `calculateRangeOffset`: the size of the lower part of a range.
fn subrange(count: u128, max: u128, step: u128) -> u128 {
    const MIN: u128 = 16;
    if count <= MIN { 0 } else { (count / step).clamp(MIN, max) }
}

/// The next free offset below `count` behind `latest`: from `lower` on, then below it.
fn next(count: u128, lower: u128, latest: Option<u128>, is_taken: impl Fn(u128) -> bool) -> Option<u128> {
    let begin = latest.map_or(lower, |latest| latest + 1).max(lower);
    let mut offsets = (begin..count).chain(lower..begin.min(count)).chain(0..lower);
    offsets.find(|offset| !is_taken(*offset))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
