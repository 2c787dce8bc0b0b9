//! The ranges of the pods' addresses: parsed from text, and what can be computed from them.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The default range.
pub(super) const DEFAULT_RANGE: Range = Range { base: Ipv4Addr::new(10, 85, 0, 0), prefix: 24 };

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

impl Ipv6Range {
    pub(super) fn parse(text: &str) -> Result<Ipv6Range, String> {
        let example = "write it as fd00:10:85::/64";
        let (base, prefix) = text.split_once('/').ok_or(example)?;
        let base: Ipv6Addr = base.parse().map_err(|_| format!("not an IPv6 range; {example}"))?;
        let prefix: u8 = prefix.parse().map_err(|_| example)?;
        if !(16..=104).contains(&prefix) {
            return Err("an IPv6 range must have from /16 to /104".to_owned());
        }
        let first = Ipv6Addr::from_bits(base.to_bits() & u128::MAX << (128 - u32::from(prefix)));
        if first != base {
            return Err(format!("its first address is {first}: write {first}/{prefix}"));
        }
        if base.octets()[0] == 0 || base.octets()[0] >= 0xfe {
            return Err(
                "hosts cannot have these addresses; take a private range such as fd00:10:85::/64".to_owned()
            );
        }
        Ok(Ipv6Range { base, prefix })
    }

    /// The bridge's address.
    pub(super) fn gateway(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.base.to_bits() | 1)
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
        let example = "write it as 10.85.0.0/24";
        let Some((base, prefix)) = text.split_once('/') else {
            let address = text.parse::<Ipv4Addr>().map(|address| address.octets());
            return Err(
                address.map_or(example.to_owned(), |[a, b, c, _]| format!("write it as {a}.{b}.{c}.0/24"))
            );
        };
        let base: Ipv4Addr = base.parse().map_err(|_| format!("not an IPv4 range; {example}"))?;
        let prefix: u8 = prefix.parse().map_err(|_| example)?;
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

    /// The range whose gateway has this address; `None` if no range has it.
    pub(super) fn of_gateway(gateway: Ipv4Addr, prefix: u8) -> Option<Range> {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
        let range = Range { base: Ipv4Addr::from_bits(gateway.to_bits() & mask), prefix };
        ((8..=29).contains(&prefix) && range.gateway() == gateway).then_some(range)
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
