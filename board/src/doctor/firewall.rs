//! The chains of the machine's firewall that drop forwarded packets by their policy, of nftables (and
//! iptables on top of it) and of legacy iptables. This module only reads, and loads no kernel module: a table
//! that does not exist is not queried. It reads no rules, so it misses a chain with policy `accept` whose
//! last rule drops. Numbers are those of Linux: `linux/netfilter/nf_tables.h`,
//! `linux/netfilter_ipv4/ip_tables.h`.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::probe::owned;

/// A chain that every forwarded packet passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// The table with its family: `ip filter`.
    pub(super) table: String,
    pub(super) name: String,
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// NF_INET_FORWARD; tables of bridges use the same number.
const FORWARD: u32 = 2;
const DROP: u32 = 0;

/// Every chain whose policy drops the forwarded packets that no rule accepts.
pub(super) fn dropping_chains() -> io::Result<Vec<Chain>> {
    let mut chains = nftables()?;
    match fs::read_to_string("/proc/net/ip_tables_names") {
        Ok(tables) if tables.lines().any(|table| table == "filter") => {
            if iptables_drops()? {
                chains.push(Chain { table: "iptables filter".to_owned(), name: "FORWARD".to_owned() });
            }
        }
        Ok(_) => {}
        // The kernel has no legacy iptables.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(chains)
}

const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_GETCHAIN: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_HOOK_HOOKNUM: u16 = 1;

fn nftables() -> io::Result<Vec<Chain>> {
    // SAFETY: takes numbers only.
    let socket = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER)
    };
    let socket = match owned(socket) {
        Ok(socket) => socket,
        // The kernel has no netfilter.
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    send_request(&socket)?;
    let (mut chains, mut buffer) = (Vec::new(), vec![0_u8; 64 * 1024]);
    loop {
        // SAFETY: an open descriptor; the kernel writes no more than the buffer's length.
        let length = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let Ok(length) = usize::try_from(length) else { return Err(io::Error::last_os_error()) };
        match read_messages(&buffer[..length], &mut chains) {
            Ok(true) => return Ok(chains),
            Ok(false) => {}
            // The kernel has netfilter but no nftables.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Requests all chains of all families.
fn send_request(socket: &OwnedFd) -> io::Result<()> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut request = 20_u32.to_ne_bytes().to_vec();
    request.extend((NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN).to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // The sequence number and the port; then family, version and resource.
    request.extend([0; 12]);
    // SAFETY: an open descriptor and a buffer of this length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Parses the messages of one receive call. Returns whether they end the list.
fn read_messages(mut bytes: &[u8], chains: &mut Vec<Chain>) -> io::Result<bool> {
    const HEAD: usize = 16;
    while let (Some(length), Some(kind)) = (word(bytes, 0, u32::from_ne_bytes), half(bytes, 4)) {
        let length = length as usize;
        let (Some(message), true) = (bytes.get(..length), length >= HEAD) else { break };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let errno = word(message, HEAD, i32::from_ne_bytes).unwrap_or(-libc::EBADMSG);
                return Err(io::Error::from_raw_os_error(-errno));
            }
            kind if kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN => {
                chains.extend(dropping(&message[HEAD..]));
            }
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The chain in this message, if its policy drops forwarded packets.
fn dropping(message: &[u8]) -> Option<Chain> {
    let family = match *message.first()? {
        1 => "inet",
        2 => "ip",
        7 => "bridge",
        // Pods have IPv4 addresses only.
        _ => return None,
    };
    let attributes = attributes(message.get(4..)?);
    let find = |kind: u16| attributes.iter().find(|(own, _)| *own == kind).map(|(_, value)| *value);
    let hook = self::attributes(find(NFTA_CHAIN_HOOK)?);
    let (_, hook) = hook.iter().find(|(kind, _)| *kind == NFTA_HOOK_HOOKNUM)?;
    let is_dropping = word(hook, 0, u32::from_be_bytes) == Some(FORWARD)
        && word(find(NFTA_CHAIN_POLICY)?, 0, u32::from_be_bytes) == Some(DROP);
    let text = |value: &[u8]| String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
    is_dropping.then_some(Chain {
        table: format!("{family} {}", text(find(NFTA_CHAIN_TABLE)?)),
        name: text(find(NFTA_CHAIN_NAME)?),
    })
}

/// Splits netlink attributes into kinds and values.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    const FLAGS: u16 = 0xc000;
    let mut found = Vec::new();
    while let (Some(length), Some(kind)) = (half(bytes, 0), half(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else { break };
        found.push((kind & !FLAGS, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word<T>(bytes: &[u8], at: usize, read: impl Fn([u8; 4]) -> T) -> Option<T> {
    Some(read(bytes.get(at..at + 4)?.try_into().ok()?))
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
/// Offset in `struct ipt_entry` of the field that says where the rule's target begins.
const TARGET_OFFSET: usize = 88;
/// Size of `struct xt_entry_target`, which a verdict follows.
const TARGET: usize = 32;
/// The verdict DROP as a rule stores it: -NF_DROP - 1.
const VERDICT_DROP: i32 = -1;
/// The most bytes of rules that are read. No board has as many.
const ENTRIES_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// Whether the policy of the chain FORWARD in the existing table `filter` drops packets.
fn iptables_drops() -> io::Result<bool> {
    // SAFETY: takes numbers only.
    let socket = owned(unsafe {
        libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW)
    })?;
    let mut name = [0_u8; 32];
    name[..6].copy_from_slice(b"filter");
    let mut info = Info { name, valid_hooks: 0, hook_entry: [0; 5], underflow: [0; 5], entries: 0, size: 0 };
    // SAFETY: the kernel reads and writes one `ipt_getinfo`, which this is.
    unsafe { option(&socket, IPT_SO_GET_INFO, (&raw mut info).cast(), size_of::<Info>()) }?;
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
    unsafe { option(&socket, IPT_SO_GET_ENTRIES, entries.as_mut_ptr().cast(), length) }?;
    Ok(policy(&entries[HEAD..], info.underflow[FORWARD as usize] as usize) == Some(VERDICT_DROP))
}

/// The verdict of the rule at `at`. The last rule of a chain is its policy.
fn policy(entries: &[u8], at: usize) -> Option<i32> {
    let entry = entries.get(at..)?;
    let target = usize::from(half(entry, TARGET_OFFSET)?);
    word(entry, target + TARGET, i32::from_ne_bytes)
}

/// # Safety
/// `value` must point to `length` bytes that the kernel may write to.
unsafe fn option(
    socket: &OwnedFd,
    option: libc::c_int,
    value: *mut libc::c_void,
    length: usize,
) -> io::Result<()> {
    let mut length = length as libc::socklen_t;
    // SAFETY: an open descriptor; the caller guarantees the rest.
    let got =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, option, value, &raw mut length) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
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

    fn chain(family: u8, hook: u32, policy: u32) -> Vec<u8> {
        let mut payload = vec![family, 0, 0, 0];
        payload.extend(attribute(NFTA_CHAIN_TABLE, b"filter\0"));
        payload.extend(attribute(NFTA_CHAIN_NAME, b"FORWARD\0"));
        payload
            .extend(attribute(NFTA_CHAIN_HOOK | 0x8000, &attribute(NFTA_HOOK_HOOKNUM, &hook.to_be_bytes())));
        payload.extend(attribute(NFTA_CHAIN_POLICY, &policy.to_be_bytes()));
        message(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN, &payload)
    }

    #[test]
    fn chains_that_drop_forwarded_ipv4_packets_are_found() {
        for (family, hook, policy, found) in [
            (2, 2, 0, true),
            (1, 2, 0, true),
            (7, 2, 0, true),
            (2, 2, 1, false),
            (2, 1, 0, false),
            (10, 2, 0, false),
        ] {
            let mut bytes = chain(family, hook, policy);
            bytes.extend(message(NLMSG_DONE, &[0; 4]));
            let mut chains = Vec::new();
            assert!(read_messages(&bytes, &mut chains).unwrap());
            assert_eq!(chains.len(), usize::from(found), "family {family}, hook {hook}, policy {policy}");
        }
        let mut chains = Vec::new();
        assert!(!read_messages(&chain(2, 2, 0), &mut chains).unwrap(), "more follows");
        assert_eq!(chains[0].to_string(), "ip filter FORWARD");
    }

    #[test]
    fn a_netlink_error_is_reported_and_a_truncated_message_ignored() {
        let refused = message(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes());
        let error = read_messages(&refused, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let whole = chain(2, 2, 0);
        for length in 0..whole.len() {
            let mut chains = Vec::new();
            assert!(!read_messages(&whole[..length], &mut chains).unwrap());
            assert!(chains.is_empty());
        }
    }

    #[test]
    fn the_policy_of_an_iptables_chain_is_its_last_rules_verdict() {
        let mut entry = vec![0_u8; 112 + 40];
        entry[TARGET_OFFSET..TARGET_OFFSET + 2].copy_from_slice(&112_u16.to_ne_bytes());
        entry[144..148].copy_from_slice(&VERDICT_DROP.to_ne_bytes());
        assert_eq!(policy(&entry, 0), Some(VERDICT_DROP));
        assert_eq!(policy(&entry, 200), None);
        assert_eq!(policy(&entry[..100], 0), None);
    }
}
