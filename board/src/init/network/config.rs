//! The network configuration in `board.json`.

use std::net::Ipv4Addr;

pub(in crate::init) use crate::board_json::Link;

impl Link {
    /// Whether this entry matches the kernel's link `name`. A pattern matches only hardware: no bridge, and
    /// no pod's link.
    pub(super) fn means(&self, name: &str, is_hardware: impl FnOnce() -> bool) -> bool {
        match self.link.strip_suffix('*') {
            Some(begin) => name.starts_with(begin) && is_hardware(),
            None => self.link == name,
        }
    }

    /// The fixed address with its prefix length.
    pub(super) fn fixed(&self) -> Option<(Ipv4Addr, u8)> {
        self.address.zip(self.prefix)
    }

    /// Why the entry cannot be configured, in the words of its keys; `None` if it can.
    pub(super) fn wrong(&self) -> Option<&'static str> {
        match (self.dhcp, self.address, self.prefix) {
            (true, Some(_), _) => Some("has both `dhcp = true` and `address`"),
            (false, Some(_), None) => Some("has `address` without `prefix`"),
            (_, _, Some(33..)) => Some("has a `prefix` of more than 32"),
            (false, None, _) if self.accept_ra.is_none() => Some("has neither `address` nor `dhcp = true`"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_pattern_matches_hardware_only_and_a_link_name_matches_exactly() {
        let link = |name: &str| Link { link: name.to_owned(), ..Link::default() };
        assert!(link("eth0").means("eth0", || false) && !link("eth0").means("eth01", || true));
        assert!(link("eth*").means("eth12", || true) && !link("eth*").means("eth12", || false));
        assert!(!link("eth*").means("end0", || true));
    }

    #[test]
    fn a_link_that_cannot_be_configured_has_a_reason() {
        for (text, why) in [
            (r#"{"link": "a", "dhcp": true}"#, None),
            (r#"{"link": "a", "address": "10.0.0.1", "prefix": 24, "gateway": "10.0.0.2"}"#, None),
            (r#"{"link": "a", "accept-ra": true}"#, None),
            (r#"{"link": "a"}"#, Some("has neither `address` nor `dhcp = true`")),
            (r#"{"link": "a", "address": "10.0.0.1"}"#, Some("has `address` without `prefix`")),
            (r#"{"link": "a", "address": "10.0.0.1", "prefix": 33}"#, Some("has a `prefix` of more than 32")),
            (
                r#"{"link": "a", "dhcp": true, "address": "10.0.0.1", "prefix": 24}"#,
                Some("has both `dhcp = true` and `address`"),
            ),
        ] {
            let link: Link = serde_json::from_str(text).expect("its keys are known");
            assert_eq!(link.wrong(), why, "{text}");
        }
        assert!(serde_json::from_str::<Link>(r#"{"link": "a", "dhpc": true}"#).is_err());
    }
}
