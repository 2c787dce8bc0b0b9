//! The ranges of the pods' addresses: parsed from text, and what can be computed from them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// The default range.
pub(super) const DEFAULT_RANGE: Range = Range { base: Ipv4Addr::new(10, 85, 0, 0), prefix: 24 };

/// The prefixes of a range of IPv6 for pods.
const POD_PREFIXES: RangeInclusive<u8> = 16..=104;

/// An IPv4 range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub(super) base: Ipv4Addr,
    pub(super) prefix: u8,
}

/// An IPv6 range. A pod's address in it has the host part of its IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ipv6Range {
    pub(super) base: Ipv6Addr,
    pub(super) prefix: u8,
}

/// A range of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnyRange {
    V4(Range),
    V6(Ipv6Range),
}

impl AnyRange {
    /// The range with this first address; `None` if pods cannot have it.
    pub(super) fn of_base(base: IpAddr, prefix: u8) -> Option<AnyRange> {
        match base {
            IpAddr::V4(base) => Range::checked(base, prefix).ok().map(AnyRange::V4),
            IpAddr::V6(base) => Ipv6Range::checked(base, prefix, POD_PREFIXES).ok().map(AnyRange::V6),
        }
    }

    /// The range whose gateway has this address; `None` if no range has it.
    pub(super) fn of_gateway(gateway: IpAddr, prefix: u8) -> Option<AnyRange> {
        let base = match gateway {
            IpAddr::V4(gateway) => Ipv4Addr::from_bits(gateway.to_bits().checked_sub(1)?).into(),
            IpAddr::V6(gateway) => Ipv6Addr::from_bits(gateway.to_bits().checked_sub(1)?).into(),
        };
        AnyRange::of_base(base, prefix)
    }

    pub(super) fn base(self) -> IpAddr {
        match self {
            AnyRange::V4(range) => range.base.into(),
            AnyRange::V6(range) => range.base.into(),
        }
    }

    pub(super) fn prefix(self) -> u8 {
        match self {
            AnyRange::V4(range) => range.prefix,
            AnyRange::V6(range) => range.prefix,
        }
    }

    /// The bridge's address.
    pub(super) fn gateway(self) -> IpAddr {
        match self {
            AnyRange::V4(range) => range.gateway().into(),
            AnyRange::V6(range) => range.gateway().into(),
        }
    }
}

impl fmt::Display for AnyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base(), self.prefix())
    }
}

impl Ipv6Range {
    pub(super) fn parse(text: &str) -> Result<Ipv6Range, String> {
        Ipv6Range::parse_within(text, POD_PREFIXES)
    }

    /// Parses a range with one of these prefixes. The error says what is wrong with it.
    pub(super) fn parse_within(text: &str, prefixes: RangeInclusive<u8>) -> Result<Ipv6Range, String> {
        let wrong = "the second one is not an IPv6 range such as fd00:10:85::/64";
        let (base, prefix) = text.split_once('/').ok_or(wrong)?;
        let base: Ipv6Addr = base.parse().map_err(|_| wrong)?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong)?;
        Ipv6Range::checked(base, prefix, prefixes)
    }

    /// The range with this first address. The error says what is wrong with it.
    fn checked(base: Ipv6Addr, prefix: u8, prefixes: RangeInclusive<u8>) -> Result<Ipv6Range, String> {
        if !prefixes.contains(&prefix) {
            let (least, most) = (prefixes.start(), prefixes.end());
            return Err(format!("an IPv6 range must have from /{least} to /{most}"));
        }
        let range = Ipv6Range { base, prefix };
        let first = Ipv6Addr::from_bits(base.to_bits() & range.mask());
        if first != base {
            return Err(format!("its first address is {first}: write {first}/{prefix}"));
        }
        if base.octets()[0] == 0 || base.octets()[0] >= 0xfe {
            return Err(
                "hosts cannot have these addresses; take a private range such as fd00:10:85::/64".to_owned()
            );
        }
        Ok(range)
    }

    fn mask(self) -> u128 {
        u128::MAX << (128 - u32::from(self.prefix))
    }

    /// The bridge's address.
    pub(super) fn gateway(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.base.to_bits() | 1)
    }

    pub(super) fn contains(self, address: Ipv6Addr) -> bool {
        address.to_bits() & self.mask() == self.base.to_bits()
    }
}

impl Range {
    /// Parses an IPv4 range and, after a comma, an IPv6 range. The error says what is wrong.
    pub(super) fn parse_all(text: &str) -> Result<(Range, Option<Ipv6Range>), String> {
        match text.split_once(',') {
            Some((ipv4, ipv6)) => Ok((Range::parse(ipv4)?, Some(Ipv6Range::parse(ipv6)?))),
            None => Ok((Range::parse(text)?, None)),
        }
    }

    /// Parses `a.b.c.d/n`. The error says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Range, String> {
        let wrong = "it is not an IPv4 range such as 10.85.0.0/24";
        let Some((base, prefix)) = text.split_once('/') else {
            let address = text.parse::<Ipv4Addr>().map_err(|_| wrong)?;
            let [a, b, c, _] = address.octets();
            return Err(format!("it is an address and not a range: write {a}.{b}.{c}.0/24"));
        };
        let base: Ipv4Addr = base.parse().map_err(|_| wrong)?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong)?;
        Range::checked(base, prefix)
    }

    /// The range with this first address. The error says what is wrong with it.
    fn checked(base: Ipv4Addr, prefix: u8) -> Result<Range, String> {
        if !(8..=29).contains(&prefix) {
            return Err("it must have from /8 to /29".to_owned());
        }
        let range = Range { base, prefix };
        let first = Ipv4Addr::from_bits(base.to_bits() & range.mask());
        if first != base {
            return Err(format!("its first address is {first}: write {first}/{prefix}"));
        }
        let last = Ipv4Addr::from_bits(base.to_bits() | !range.mask());
        if base.octets()[0] == 0 || [base, last].iter().any(|end| end.is_loopback() || end.octets()[0] >= 224)
        {
            return Err(
                "hosts cannot have these addresses; take a private range such as 10.85.0.0/24".to_owned()
            );
        }
        Ok(range)
    }

    pub(super) fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.prefix))
    }

    /// The bridge's address.
    pub(super) fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base.to_bits() + 1)
    }

    /// The addresses for pods: all but the network's, the bridge's and the broadcast address.
    pub(super) fn pods(self) -> impl Iterator<Item = Ipv4Addr> {
        (self.base.to_bits() + 2..self.base.to_bits() | !self.mask()).map(Ipv4Addr::from_bits)
    }

    pub(super) fn overlaps(self, base: Ipv4Addr, prefix: u8) -> bool {
        let shorter = self.prefix.min(prefix);
        let differing = self.base.to_bits() ^ base.to_bits();
        differing.checked_shr(32 - u32::from(shorter)).unwrap_or(0) == 0
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}
