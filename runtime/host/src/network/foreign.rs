//! The chains of the machine's firewall that drop forwarded packets by their policy, of nftables (and
//! iptables on top of it) and of legacy iptables, and the chain of firewalld, whose last rule rejects them. This
//! module only reads, and loads no kernel module: a table that does not exist is not queried. It evaluates no rules,
//! so it misses other chains with policy `accept` whose last rule drops. Numbers are those of Linux:
//! `linux/netfilter/nf_tables.h`, `linux/netfilter_ipv4/ip_tables.h`.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::netlink::netfilter::{self, Object};
use crate::netlink::nftables::{
    GETCHAIN, GETRULE, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CMP_DATA, NFTA_DATA_VALUE,
    NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_HOOK_HOOKNUM, NFTA_LIST_ELEM, NFTA_RULE_EXPRESSIONS, NFTA_TABLE,
};
use crate::netlink::{attributes, find, read_text};

/// A chain that every forwarded packet passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The table with its family: `ip filter`.
    pub table: String,
    /// The name of the chain.
    pub name: String,
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// NF_INET_LOCAL_IN and NF_INET_FORWARD; tables of bridges use the same numbers.
const INPUT: usize = 1;
const FORWARD: usize = 2;
const NF_DROP: u32 = 0;
/// NFPROTO_IPV4 and NFPROTO_IPV6.
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;

impl Chain {
    /// Whether packets of IPv4 and of IPv6 pass the chain.
    fn versions(&self) -> [bool; 2] {
        match self.table.split(' ').next() {
            Some("ip" | "iptables") => [true, false],
            Some("ip6" | "ip6tables") => [false, true],
            Some(_) | None => [true, true],
        }
    }
}

/// A warning about the chains that drop packets of pods, with `ipv6` also those of IPv6. `None` if there are none, or if
/// some rule names the bridge of the pods: then the owner of the machine has made an exception, for IPv4 or for IPv6.
pub(super) fn warning(bridge: &str, ipv6: bool) -> Option<String> {
    let mut chains = dropping_chains(ipv6).ok()?;
    if chains.is_empty() {
        return None;
    }
    let named = rules_naming(bridge, ipv6).unwrap_or_default();
    chains.retain(|chain| is_unexpected(chain.versions(), named, ipv6));
    if chains.is_empty() {
        return None;
    }
    let chains: Vec<String> = chains.iter().map(Chain::to_string).collect();
    Some(format!(
        "the firewall of the machine drops forwarded packets that no rule accepts ({}), and no rule names {bridge}: pods \
         reach no other machine, or are not reached by their hostPorts; docs/firewalls.md has the rules that allow it",
        chains.join(", ")
    ))
}

/// The most rules that are searched for the name of the bridge: the agent waits meanwhile.
const RULES_MAX: usize = 10_000;

/// Whether a chain drops packets of an IP version for which no rule makes an exception. `named`: whether a rule for IPv4
/// and one for IPv6 name the bridge.
fn is_unexpected(chain: [bool; 2], named: [bool; 2], ipv6: bool) -> bool {
    (chain[0] && !named[0]) || (ipv6 && chain[1] && !named[1])
}

/// Whether one of the first [`RULES_MAX`] rules of nftables for IPv4, and one for IPv6 if that matters, matches the link
/// by its name or the beginning of it.
fn rules_naming(link: &str, ipv6: bool) -> io::Result<[bool; 2]> {
    let (mut found, mut count) = ([false, !ipv6], 0);
    list(GETRULE, &mut |rule| {
        if matches_link(rule, link) {
            found[0] |= rule.family != FAMILY_IPV6;
            found[1] |= rule.family != FAMILY_IPV4;
        }
        count += 1;
        found != [true; 2] && count < RULES_MAX
    })?;
    Ok(found)
}

/// Whether a rule of a table that is not nodlet's compares something with the name of the link, or with its beginning,
/// which is the value without an end. A comment is no comparison.
fn matches_link(rule: Object, link: &str) -> bool {
    if rule.find(NFTA_TABLE).is_none_or(|table| table.starts_with(b"nodlet-")) {
        return false;
    }
    let names = |value: &[u8]| match value.iter().position(|byte| *byte == 0) {
        Some(end) => value[..end] == *link.as_bytes(),
        None => {
            let begins = link.get(..2).is_some_and(|begin| value.starts_with(begin.as_bytes()));
            begins && link.as_bytes().starts_with(value)
        }
    };
    let compares = |expression: &[u8]| {
        let compared = find(expression, NFTA_EXPR_DATA).and_then(|data| find(data, NFTA_CMP_DATA));
        find(expression, NFTA_EXPR_NAME) == Some(b"cmp\0")
            && compared.and_then(|data| find(data, NFTA_DATA_VALUE)).is_some_and(names)
    };
    let expressions = rule.find(NFTA_RULE_EXPRESSIONS).unwrap_or_default();
    attributes(expressions).any(|(kind, expression)| kind == NFTA_LIST_ELEM && compares(expression))
}

/// Every chain whose policy drops the forwarded packets that no rule accepts, and firewalld's chain, which rejects them.
/// Chains that only packets of IPv6 pass are among them with `ipv6`, after the others.
pub fn dropping_chains(ipv6: bool) -> io::Result<Vec<Chain>> {
    dropping_at(FORWARD, ipv6)
}

/// The chains that drop what pods send to the board itself, such as queries to its name server, with the exceptions of
/// [`warning`], and what that means.
pub(super) fn input_dropped(bridge: &str, ipv6: bool) -> Option<String> {
    let mut chains = dropping_at(INPUT, ipv6).ok()?;
    let named = if chains.is_empty() { [true; 2] } else { rules_naming(bridge, ipv6).unwrap_or_default() };
    chains.retain(|chain| is_unexpected(chain.versions(), named, ipv6));
    if chains.is_empty() {
        return None;
    }
    let chains: Vec<String> = chains.iter().map(Chain::to_string).collect();
    Some(format!(
        "the firewall of the machine drops packets to it that no rule accepts ({}), and no rule names {bridge}: \
         docs/firewalls.md has the rules that allow it",
        chains.join(", ")
    ))
}

/// The chains at a hook that drop packets as those of [`dropping_chains`] do.
fn dropping_at(hook: usize, ipv6: bool) -> io::Result<Vec<Chain>> {
    let mut chains = Vec::new();
    list(GETCHAIN, &mut |chain| {
        chains.extend(dropping(chain, hook));
        true
    })?;
    let name = if hook == INPUT { "INPUT" } else { "FORWARD" };
    for legacy in if ipv6 { &LEGACY[..] } else { &LEGACY[..1] } {
        match fs::read_to_string(legacy.tables) {
            Ok(tables) if tables.lines().any(|table| table == "filter") => {
                if legacy.drops(hook)? {
                    chains.push(Chain { table: format!("{} filter", legacy.name), name: name.to_owned() });
                }
            }
            Ok(_) => {}
            // The kernel has no legacy iptables.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    chains.retain(|chain| ipv6 || chain.versions()[0]);
    chains.sort_by_key(|chain| !chain.versions()[0]);
    Ok(chains)
}

/// Passes each object to `each`, which returns whether it needs another one: all chains or rules of all families.
fn list(request: u16, each: &mut dyn FnMut(Object) -> bool) -> io::Result<()> {
    match netfilter::list(request, each) {
        // The kernel has no netfilter, or netfilter but no nftables.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EPROTONOSUPPORT | libc::EINVAL | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        listed => listed,
    }
}

/// The chain, if it drops packets at `wanted`, the number of a hook.
fn dropping(chain: Object, wanted: usize) -> Option<Chain> {
    let family = match chain.family {
        1 => "inet",
        FAMILY_IPV4 => "ip",
        7 => "bridge",
        FAMILY_IPV6 => "ip6",
        // No packet of a pod passes a table of ARP or of a device.
        _ => return None,
    };
    let number = |value: &[u8]| value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let hook = number(find(chain.find(NFTA_CHAIN_HOOK)?, NFTA_HOOK_HOOKNUM)?);
    let (table, policy) = (chain.find(NFTA_TABLE)?, number(chain.find(NFTA_CHAIN_POLICY)?));
    let is_dropping = hook == Some(wanted as u32) && (policy == Some(NF_DROP) || table == b"firewalld\0");
    is_dropping.then_some(Chain {
        table: format!("{family} {}", read_text(table)),
        name: read_text(chain.find(NFTA_CHAIN_NAME)?),
    })
}

/// Bytes of the kernel's `struct ipt_getinfo`, which begins with the name of the table, and where in it are the places of
/// the last rules of the chains, and the bytes of all rules.
const INFO: usize = 84;
const INFO_UNDERFLOW: usize = 56;
const INFO_SIZE: usize = 80;

/// Bytes of `struct ipt_get_entries` before the rules: the name of the table, the bytes of the rules, and padding.
const ENTRIES: usize = 40;
const ENTRIES_SIZE: usize = 32;

const IPT_SO_GET_INFO: libc::c_int = 64;
const IPT_SO_GET_ENTRIES: libc::c_int = 65;

/// Legacy iptables of one IP version: IPv6 has the same structures and options, but a longer entry.
struct Legacy {
    name: &'static str,
    /// The file with the names of the existing tables.
    tables: &'static str,
    domain: AddressFamily,
    level: libc::c_int,
    /// Offset in `struct ipt_entry` or `ip6t_entry` of the field that says where the rule's target begins.
    target_offset: usize,
}

const LEGACY: [Legacy; 2] = [
    Legacy {
        name: "iptables",
        tables: "/proc/net/ip_tables_names",
        domain: AddressFamily::Inet,
        level: libc::IPPROTO_IP,
        target_offset: 88,
    },
    Legacy {
        name: "ip6tables",
        tables: "/proc/net/ip6_tables_names",
        domain: AddressFamily::Inet6,
        level: libc::IPPROTO_IPV6,
        target_offset: 140,
    },
];

/// Size of `struct xt_entry_target`, which a verdict follows.
const TARGET: usize = 32;
/// The verdict DROP as a rule stores it: -NF_DROP - 1.
const VERDICT_DROP: u32 = u32::MAX;
/// The most bytes of rules that are read. No board has as many.
const ENTRIES_BYTES_MAX: usize = 16 * 1024 * 1024;

impl Legacy {
    /// Whether the policy of the chain at a hook in the existing table `filter` drops packets.
    fn drops(&self, hook: usize) -> io::Result<bool> {
        let socket = socket(self.domain, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
        let mut info = [0; INFO];
        info[..6].copy_from_slice(b"filter");
        self.option(&socket, IPT_SO_GET_INFO, &mut info)?;
        let (size, last) = (word(&info, INFO_SIZE), word(&info, INFO_UNDERFLOW + 4 * hook));
        let (size, last) = (size.unwrap_or_default() as usize, last.unwrap_or_default() as usize);
        if size > ENTRIES_BYTES_MAX {
            return Err(io::Error::other("the firewall has more rules than nodlet reads"));
        }
        let mut entries = vec![0_u8; ENTRIES + size];
        entries[..6].copy_from_slice(b"filter");
        entries[ENTRIES_SIZE..][..4].copy_from_slice(&info[INFO_SIZE..]);
        self.option(&socket, IPT_SO_GET_ENTRIES, &mut entries)?;
        Ok(self.policy(&entries[ENTRIES..], last) == Some(VERDICT_DROP))
    }

    /// The verdict of the rule at `at`. The last rule of a chain is its policy.
    fn policy(&self, entries: &[u8], at: usize) -> Option<u32> {
        let entry = entries.get(at..)?;
        let target =
            entry.get(self.target_offset..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))?;
        word(entry, usize::from(target) + TARGET)
    }

    /// Reads an option of a socket into `value`, whose beginning says what is asked for.
    fn option(&self, socket: &OwnedFd, option: libc::c_int, value: &mut [u8]) -> io::Result<()> {
        let mut length = libc::socklen_t::try_from(value.len()).unwrap_or_default();
        let (socket, bytes) = (socket.as_raw_fd(), value.as_mut_ptr().cast());
        // SAFETY: an open descriptor; the kernel reads and writes no more than the length of the value.
        let got = unsafe { libc::getsockopt(socket, self.level, option, bytes, &raw mut length) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The number at an offset.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attribute, nested, text};

    fn chain(table: &str, hook: u32, policy: u32) -> Vec<u8> {
        let attributes = [
            text(NFTA_TABLE, table),
            text(NFTA_CHAIN_NAME, "FORWARD"),
            nested(NFTA_CHAIN_HOOK, &[attribute(NFTA_HOOK_HOOKNUM, &hook.to_be_bytes())]),
            attribute(NFTA_CHAIN_POLICY, &policy.to_be_bytes()),
        ];
        attributes.concat()
    }

    #[test]
    fn chains_that_drop_forwarded_packets_are_found() {
        for (family, table, hook, policy, found) in [
            (2, "filter", 2, 0, true),
            (1, "filter", 2, 0, true),
            (7, "filter", 2, 0, true),
            (2, "filter", 2, 1, false),
            (1, "firewalld", 2, 1, true),
            (1, "firewalld", 1, 1, false),
            (2, "filter", 1, 0, false),
            (10, "filter", 2, 0, true),
            (10, "filter", 2, 1, false),
            (3, "filter", 2, 0, false),
        ] {
            let chain = dropping(Object { family, attributes: &chain(table, hook, policy) }, FORWARD);
            assert_eq!(chain.is_some(), found, "family {family}, hook {hook}, policy {policy}");
        }
        let whole = chain("filter", 2, 0);
        let read = |attributes: &[u8]| dropping(Object { family: 2, attributes }, FORWARD);
        assert_eq!(read(&whole).unwrap().to_string(), "ip filter FORWARD");
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_rule_is_about_a_link_if_it_compares_with_its_name_or_the_beginning_of_it() {
        let link = "nl0a1b2c3d";
        let mut whole = [0; 16];
        whole[..link.len()].copy_from_slice(link.as_bytes());
        let mut longer = whole;
        longer[link.len()] = b'x';
        for (table, value, expected) in [
            ("filter", &whole[..], true),
            ("filter", b"nl", true),
            ("filter", b"nl0a", true),
            ("filter", b"nlx", false),
            ("filter", b"nl\0", false),
            ("filter", &longer, false),
            ("filter", b"eth0\0", false),
            ("nodlet-0a1b2c3d", &whole, false),
        ] {
            let rule = |name: &str| {
                let data = nested(NFTA_CMP_DATA, &[attribute(NFTA_DATA_VALUE, value)]);
                let expression = [text(NFTA_EXPR_NAME, name), nested(NFTA_EXPR_DATA, &[data])];
                let expressions = nested(NFTA_RULE_EXPRESSIONS, &[nested(NFTA_LIST_ELEM, &expression)]);
                [text(NFTA_TABLE, table), expressions].concat()
            };
            let matches = |attributes: &[u8]| matches_link(Object { family: 2, attributes }, link);
            assert!(!matches(&rule("lookup")), "{table} {value:?}");
            assert_eq!(matches(&rule("cmp")), expected, "{table} {value:?}");
            for length in 0..rule("cmp").len() {
                matches(&rule("cmp")[..length]);
            }
        }
    }

    #[test]
    fn a_comment_with_the_name_of_the_link_is_no_comparison() {
        let link = "nl0a1b2c3d";
        let comment = [b"\0\x0b", link.as_bytes(), b"\0"].concat();
        let rule = [text(NFTA_TABLE, "filter"), attribute(7, &comment)].concat();
        assert!(!matches_link(Object { family: 2, attributes: &rule }, link));
    }

    #[test]
    fn the_policy_of_an_iptables_chain_is_its_last_rules_verdict() {
        for (legacy, size) in LEGACY.iter().zip([112_u16, 168]) {
            let end = usize::from(size) + 40;
            let mut entry = vec![0_u8; end];
            entry[legacy.target_offset..legacy.target_offset + 2].copy_from_slice(&size.to_ne_bytes());
            entry[end - 8..end - 4].copy_from_slice(&VERDICT_DROP.to_ne_bytes());
            assert_eq!(legacy.policy(&entry, 0), Some(VERDICT_DROP));
            assert_eq!(legacy.policy(&entry, 200), None);
            assert_eq!(legacy.policy(&entry[..100], 0), None);
        }
    }

    #[test]
    fn a_rule_for_one_ip_version_is_no_exception_for_the_other() {
        let versions =
            |table: &str| Chain { table: format!("{table} filter"), name: String::new() }.versions();
        for (table, named, ipv6, expected) in [
            ("ip", [false, false], false, true),
            ("ip", [true, false], true, false),
            ("ip6", [true, false], true, true),
            ("ip6tables", [true, false], true, true),
            ("ip6", [true, true], true, false),
            ("ip6", [false, false], false, false),
            ("inet", [true, false], true, true),
            ("inet", [true, false], false, false),
            ("bridge", [false, true], true, true),
            ("iptables", [false, true], true, true),
        ] {
            assert_eq!(is_unexpected(versions(table), named, ipv6), expected, "{table} {named:?} {ipv6}");
        }
    }
}
