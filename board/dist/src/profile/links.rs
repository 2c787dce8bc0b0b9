//! The network and the time servers of a profile. `board/src/init/network` reads them on the board.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// A link, or all links that a pattern matches, for the profile and for `board.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Link {
    /// The kernel's name of the link, or the beginning of such names followed by `*`.
    link: String,
    /// Whether a DHCP server assigns the address.
    #[serde(default)]
    dhcp: bool,
    /// A fixed address.
    #[serde(default)]
    address: Option<Ipv4Addr>,
    /// The prefix length of the fixed address, in bits.
    #[serde(default)]
    prefix: Option<u8>,
    #[serde(default)]
    gateway: Option<Ipv4Addr>,
    /// Name servers, in addition to those that DHCP names.
    #[serde(default)]
    dns: Vec<Ipv4Addr>,
    /// Whether IPv6 routers configure the link; without this key, the kernel's default applies.
    #[serde(default)]
    accept_ra: Option<bool>,
}

/// Checks the links and time servers of a profile. The error uses the names of its keys.
pub(super) fn check(links: &[Link], ntp: Option<&[String]>) -> Result<(), String> {
    for link in links {
        let name = &link.link;
        // The kernel's limit of a name is 15 bytes.
        if name.is_empty()
            || name.len() > 15
            || name.contains(|sign: char| sign == '/' || sign.is_whitespace())
        {
            return Err(format!("network: link {name:?} is not a name of a link, as `eth0` or `eth*`"));
        }
        if name.trim_end_matches('*').contains('*') || name.matches('*').count() > 1 {
            return Err(format!("network: link {name:?} has a `*` elsewhere than at its end"));
        }
        let wrong = match (link.dhcp, link.address, link.prefix) {
            (_, _, Some(prefix @ 33..)) => format!("prefix {prefix} of {name} is more than 32"),
            (true, Some(_), _) => format!("{name} has both `dhcp = true` and `address`; remove one of them"),
            (true, None, _) if link.gateway.is_some() => {
                format!("{name} has `gateway`, which its DHCP server names; remove it")
            }
            (_, None, Some(_)) => format!("{name} has `prefix` without `address`"),
            (false, Some(_), None) => format!("{name} has `address` without `prefix`, as `prefix = 24`"),
            (false, None, None) if link.accept_ra.is_none() => {
                format!("{name} has neither `address` and `prefix` nor `dhcp = true` nor `accept-ra`")
            }
            (false, None, None) if link.gateway.is_some() => {
                format!("{name} has `gateway` without `address`")
            }
            (false, Some(_), Some(_)) if name.ends_with('*') => {
                format!("{name} may be several links, which cannot all have one `address`")
            }
            _ => continue,
        };
        return Err(format!("network: {wrong}"));
    }
    for server in ntp.unwrap_or_default() {
        let is_name =
            |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '.' | '-' | ':' | '[' | ']');
        if server.is_empty() || !server.chars().all(is_name) {
            return Err(format!(
                "ntp: {server:?} is not a time server: must be an address, an address with a port, or a name"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Keys {
        #[serde(default)]
        network: Vec<Link>,
        ntp: Option<Vec<String>>,
    }

    #[test]
    fn network_keys_of_a_profile_are_accepted_or_rejected_with_the_reason() {
        for (text, wrong) in [
            (
                "network = [{ link = 'eth*', dhcp = true }]\nntp = ['10.0.0.1', '[::1]:123', 'pool.ntp.org']",
                None,
            ),
            (
                "network = [{ link = 'eth0', address = '10.0.0.2', prefix = 24, gateway = '10.0.0.1', dns = ['9.9.9.9'] }]",
                None,
            ),
            ("network = [{ link = 'eth0', accept-ra = true }]\nntp = []", None),
            ("network = [{ link = '', dhcp = true }]", Some("is not a name of a link")),
            ("network = [{ link = 'e*h0', dhcp = true }]", Some("elsewhere than at its end")),
            (
                "network = [{ link = 'a-name-that-is-too-long', dhcp = true }]",
                Some("is not a name of a link"),
            ),
            ("network = [{ link = 'eth0' }]", Some("has neither `address` and `prefix` nor `dhcp = true`")),
            ("network = [{ link = 'eth0', address = '10.0.0.2' }]", Some("`address` without `prefix`")),
            ("network = [{ link = 'eth0', prefix = 24 }]", Some("`prefix` without `address`")),
            ("network = [{ link = 'eth0', address = '10.0.0.2', prefix = 40 }]", Some("prefix 40 of eth0")),
            (
                "network = [{ link = 'eth*', address = '10.0.0.2', prefix = 24 }]",
                Some("may be several links"),
            ),
            (
                "network = [{ link = 'eth0', address = '10.0.0.2', prefix = 24, dhcp = true }]",
                Some("has both `dhcp = true` and `address`"),
            ),
            ("network = [{ link = 'eth0', dhcp = true, gateway = '10.0.0.1' }]", Some("has `gateway`")),
            ("ntp = ['a b']", Some("ntp: \"a b\" is not a time server")),
        ] {
            let keys: Keys = toml::from_str(text).expect("its keys are known");
            let found = check(&keys.network, keys.ntp.as_deref()).err();
            match wrong {
                None => assert_eq!(found, None, "{text}"),
                Some(wrong) => {
                    assert!(found.as_ref().is_some_and(|found| found.contains(wrong)), "{text}: {found:?}")
                }
            }
        }
        let Err(unknown) = toml::from_str::<Keys>("network = [{ link = 'a', dhpc = true }]") else {
            panic!("an unknown key is accepted")
        };
        assert!(
            unknown.to_string().contains("unknown field `dhpc`, expected one of `link`, `dhcp`"),
            "{unknown}"
        );
    }
}
