//! The chains of the machine's firewall that drop forwarded packets by their policy, of nftables (and
//! iptables on top of it) and of legacy iptables, and the chain of firewalld, whose last rule rejects them. This
//! module only reads, and loads no kernel module: a table that does not exist is not queried. It evaluates no rules,
//! so it misses other chains with policy `accept` whose last rule drops. Numbers are those of Linux:
//! `linux/netfilter/nf_tables.h`, `linux/netfilter_ipv4/ip_tables.h`.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::nfnetlink::{self, attributes, half, owned, word};

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

/// NF_INET_FORWARD; tables of bridges use the same number.
const FORWARD: u32 = 2;
const DROP: u32 = 0;
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
    dump(NFT_MSG_GETRULE, &mut |rule| {
        if matches_link(rule, link) {
            found[0] |= rule[0] != FAMILY_IPV6;
            found[1] |= rule[0] != FAMILY_IPV4;
        }
        count += 1;
        found != [true; 2] && count < RULES_MAX
    })?;
    Ok(found)
}

/// Whether a rule of a table that is not nodlet's compares something with the name of the link, or with its beginning,
/// which is the value without an end. A comment is no comparison.
fn matches_link(rule: &[u8], link: &str) -> bool {
    let Some(named) = rule.get(4..) else { return false };
    // The table is the first attribute.
    if named.get(4..).is_some_and(|table| table.starts_with(b"nodlet-")) {
        return false;
    }
    let all = |bytes: &[u8], wanted: u16, each: &mut dyn FnMut(&[u8]) -> bool| {
        attributes(bytes).into_iter().any(|(kind, value)| kind == wanted && each(value))
    };
    all(named, NFTA_RULE_EXPRESSIONS, &mut |list| {
        all(list, NFTA_LIST_ELEM, &mut |expression| {
            all(expression, NFTA_EXPR_NAME, &mut |name| name == b"cmp\0")
                && all(expression, NFTA_EXPR_DATA, &mut |data| {
                    all(data, NFTA_CMP_DATA, &mut |data| {
                        all(
                            data,
                            NFTA_DATA_VALUE,
                            &mut |value| match value.iter().position(|byte| *byte == 0) {
                                Some(end) => value[..end] == *link.as_bytes(),
                                None => {
                                    link.get(..2).is_some_and(|begin| value.starts_with(begin.as_bytes()))
                                        && link.as_bytes().starts_with(value)
                                }
                            },
                        )
                    })
                })
        })
    })
}

/// Every chain whose policy drops the forwarded packets that no rule accepts, and firewalld's chain, which rejects them.
/// Chains that only packets of IPv6 pass are among them with `ipv6`, after the others.
pub fn dropping_chains(ipv6: bool) -> io::Result<Vec<Chain>> {
    let mut chains = Vec::new();
    dump(NFT_MSG_GETCHAIN, &mut |message| {
        chains.extend(dropping(message));
        true
    })?;
    for legacy in if ipv6 { &LEGACY[..] } else { &LEGACY[..1] } {
        match fs::read_to_string(legacy.tables) {
            Ok(tables) if tables.lines().any(|table| table == "filter") => {
                if legacy.drops()? {
                    chains
                        .push(Chain { table: format!("{} filter", legacy.name), name: "FORWARD".to_owned() });
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

const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFT_MSG_GETRULE: u16 = 7;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_DATA_VALUE: u16 = 1;

/// Passes the payload of each object to `each`, which returns whether it needs another one: all chains or rules of all
/// families.
fn dump(kind: u16, each: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
    match nfnetlink::dump(NFNL_SUBSYS_NFTABLES << 8 | kind, each) {
        // The kernel has no netfilter, or netfilter but no nftables.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EPROTONOSUPPORT | libc::EINVAL | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        dumped => dumped,
    }
}

/// The chain in this message, if it drops forwarded packets.
fn dropping(message: &[u8]) -> Option<Chain> {
    let family = match *message.first()? {
        1 => "inet",
        FAMILY_IPV4 => "ip",
        7 => "bridge",
        FAMILY_IPV6 => "ip6",
        // No packet of a pod passes a table of ARP or of a device.
        _ => return None,
    };
    let found = attributes(message.get(4..)?);
    let find = |kind: u16| found.iter().find(|(own, _)| *own == kind).map(|(_, value)| *value);
    let hook = attributes(find(NFTA_CHAIN_HOOK)?);
    let (_, hook) = hook.iter().find(|(kind, _)| *kind == NFTA_HOOK_HOOKNUM)?;
    let table = find(NFTA_CHAIN_TABLE)?;
    let is_dropping = word(hook, 0, u32::from_be_bytes) == Some(FORWARD)
        && (word(find(NFTA_CHAIN_POLICY)?, 0, u32::from_be_bytes) == Some(DROP) || table == b"firewalld\0");
    let text = |value: &[u8]| String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
    is_dropping
        .then_some(Chain { table: format!("{family} {}", text(table)), name: text(find(NFTA_CHAIN_NAME)?) })
}

/// The kernel's `struct ipt_getinfo`.
#[repr(C)]
struct Info {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    entries: u32,
    size: u32,
}

const IPT_SO_GET_INFO: libc::c_int = 64;
const IPT_SO_GET_ENTRIES: libc::c_int = 65;

/// Legacy iptables of one IP version: IPv6 has the same structures and options, but a longer entry.
struct Legacy {
    name: &'static str,
    /// The file with the names of the existing tables.
    tables: &'static str,
    domain: libc::c_int,
    level: libc::c_int,
    /// Offset in `struct ipt_entry` or `ip6t_entry` of the field that says where the rule's target begins.
    target_offset: usize,
}

const LEGACY: [Legacy; 2] = [
    Legacy {
        name: "iptables",
        tables: "/proc/net/ip_tables_names",
        domain: libc::AF_INET,
        level: libc::IPPROTO_IP,
        target_offset: 88,
    },
    Legacy {
        name: "ip6tables",
        tables: "/proc/net/ip6_tables_names",
        domain: libc::AF_INET6,
        level: libc::IPPROTO_IPV6,
        target_offset: 140,
    },
];

/// Size of `struct xt_entry_target`, which a verdict follows.
const TARGET: usize = 32;
/// The verdict DROP as a rule stores it: -NF_DROP - 1.
const VERDICT_DROP: i32 = -1;
/// The most bytes of rules that are read. No board has as many.
const ENTRIES_BYTES_MAX: u32 = 16 * 1024 * 1024;

impl Legacy {
    /// Whether the policy of the chain FORWARD in the existing table `filter` drops packets.
    fn drops(&self) -> io::Result<bool> {
        // SAFETY: takes numbers only.
        let socket = owned(unsafe {
            libc::socket(self.domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW)
        })?;
        let mut name = [0_u8; 32];
        name[..6].copy_from_slice(b"filter");
        let mut info =
            Info { name, valid_hooks: 0, hook_entry: [0; 5], underflow: [0; 5], entries: 0, size: 0 };
        // SAFETY: the kernel reads and writes one `ipt_getinfo`, which this is.
        unsafe { self.option(&socket, IPT_SO_GET_INFO, (&raw mut info).cast(), size_of::<Info>()) }?;
        if info.size > ENTRIES_BYTES_MAX {
            return Err(io::Error::other("the firewall has more rules than nodlet reads"));
        }
        // `struct ipt_get_entries`: the name, the size, padding to eight bytes, the entries.
        const HEAD: usize = 40;
        let mut entries = vec![0_u8; HEAD + info.size as usize];
        entries[..32].copy_from_slice(&name);
        entries[32..36].copy_from_slice(&info.size.to_ne_bytes());
        let length = entries.len();
        // SAFETY: the buffer is as long as the length passed to the kernel.
        unsafe { self.option(&socket, IPT_SO_GET_ENTRIES, entries.as_mut_ptr().cast(), length) }?;
        Ok(self.policy(&entries[HEAD..], info.underflow[FORWARD as usize] as usize) == Some(VERDICT_DROP))
    }

    /// The verdict of the rule at `at`. The last rule of a chain is its policy.
    fn policy(&self, entries: &[u8], at: usize) -> Option<i32> {
        let entry = entries.get(at..)?;
        let target = usize::from(half(entry, self.target_offset)?);
        word(entry, target + TARGET, i32::from_ne_bytes)
    }

    /// # Safety
    /// `value` must point to `length` bytes that the kernel may write to.
    unsafe fn option(
        &self,
        socket: &OwnedFd,
        option: libc::c_int,
        value: *mut libc::c_void,
        length: usize,
    ) -> io::Result<()> {
        let mut length = length as libc::socklen_t;
        // SAFETY: an open descriptor; the caller guarantees the rest.
        let got = unsafe { libc::getsockopt(socket.as_raw_fd(), self.level, option, value, &raw mut length) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::nfnetlink::{NLMSG_DONE, NLMSG_ERROR, read_messages};
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32 + 16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(payload);
        bytes
    }

    fn chain(family: u8, table: &str, hook: u32, policy: u32) -> Vec<u8> {
        let mut payload = vec![family, 0, 0, 0];
        payload.extend(attribute(NFTA_CHAIN_TABLE, format!("{table}\0").as_bytes()));
        payload.extend(attribute(NFTA_CHAIN_NAME, b"FORWARD\0"));
        payload
            .extend(attribute(NFTA_CHAIN_HOOK | 0x8000, &attribute(NFTA_HOOK_HOOKNUM, &hook.to_be_bytes())));
        payload.extend(attribute(NFTA_CHAIN_POLICY, &policy.to_be_bytes()));
        message(NFNL_SUBSYS_NFTABLES << 8 | (NFT_MSG_GETCHAIN - 1), &payload)
    }

    /// The chains in these messages, and whether the list ends.
    fn read(bytes: &[u8]) -> io::Result<(Vec<Chain>, bool)> {
        let mut chains = Vec::new();
        let ends =
            read_messages(bytes, NFNL_SUBSYS_NFTABLES << 8 | (NFT_MSG_GETCHAIN - 1), &mut |message| {
                chains.extend(dropping(message));
                true
            })?;
        Ok((chains, ends))
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
            let mut bytes = chain(family, table, hook, policy);
            bytes.extend(message(NLMSG_DONE, &[0; 4]));
            let (chains, ends) = read(&bytes).unwrap();
            assert!(ends);
            assert_eq!(chains.len(), usize::from(found), "family {family}, hook {hook}, policy {policy}");
        }
        let (chains, ends) = read(&chain(2, "filter", 2, 0)).unwrap();
        assert!(!ends, "more follows");
        assert_eq!(chains[0].to_string(), "ip filter FORWARD");
    }

    #[test]
    fn a_netlink_error_is_reported_and_a_truncated_message_ignored() {
        let refused = message(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes());
        let error = read(&refused).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let whole = chain(2, "filter", 2, 0);
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]).unwrap(), (Vec::new(), false));
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
            let mut rule = vec![2, 0, 0, 0];
            rule.extend(attribute(1, format!("{table}\0").as_bytes()));
            let data = attribute(NFTA_EXPR_DATA | 0x8000, &attribute(3 | 0x8000, &attribute(1, value)));
            let of = |name: &[u8]| {
                attribute(4 | 0x8000, &attribute(1, &[attribute(1, name), data.clone()].concat()))
            };
            let other = [rule.clone(), of(b"lookup\0")].concat();
            assert!(!matches_link(&other, link), "{table} {value:?}");
            rule.extend(of(b"cmp\0"));
            assert_eq!(matches_link(&rule, link), expected, "{table} {value:?}");
            for length in 0..rule.len() {
                matches_link(&rule[..length], link);
            }
        }
    }

    #[test]
    fn a_comment_with_the_name_of_the_link_is_no_comparison() {
        let link = "nl0a1b2c3d";
        let text = [b"\0\x0b", link.as_bytes(), b"\0"].concat();
        let rule = [vec![2, 0, 0, 0], attribute(1, b"filter\0"), attribute(7, &text)].concat();
        assert!(!matches_link(&rule, link));
    }

    #[test]
    fn a_list_is_read_no_further_than_needed() {
        let mut bytes = [chain(2, "filter", 2, 0), chain(2, "more", 2, 0)].concat();
        bytes.extend(message(NLMSG_DONE, &[0; 4]));
        let mut seen = 0;
        let ends = read_messages(&bytes, NFNL_SUBSYS_NFTABLES << 8 | (NFT_MSG_GETCHAIN - 1), &mut |_| {
            seen += 1;
            false
        });
        assert_eq!((ends.unwrap(), seen), (true, 1));
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
