//! The kernel's entries of tracked connections (`linux/netfilter/nfnetlink_conntrack.h`), as far as ports of UDP need
//! them. A rule translates only the first packet of a connection, and what the entry of that packet has applies to all
//! later ones. A UDP sender that goes on keeps its entry for ever: without the pod, if it began before the pod, or with the
//! address of a pod that is gone. So entries are deleted that contradict the rules; the next packet makes a new one.
//! TCP and SCTP need nothing of the kind: each of their connections begins with a packet that makes a new entry.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use netlink_packet_core::NLA_F_NESTED;

use super::firewall::Forward;
use crate::netlink::netfilter::{self, Object};
use crate::netlink::{Socket, attribute, find};

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// A connection of UDP: where its first packet was sent, and from where replies come, which is where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    sent_to: (IpAddr, u16),
    leads_to: (IpAddr, u16),
}

/// The ports of UDP among the rules before a change and after it, of which the entries of some may contradict the rules.
pub(super) struct Change {
    before: Vec<Forward>,
    after: Vec<Forward>,
}

impl Change {
    /// Compares the rules. `None` if no port of UDP has appeared, changed or gone.
    pub(super) fn between(before: &[Forward], after: &[Forward]) -> Option<Change> {
        let differs = |one: &[Forward], other: &[Forward]| -> Vec<Forward> {
            one.iter().filter(|forward| !other.contains(forward)).cloned().collect()
        };
        (!differs(before, after).is_empty() || !differs(after, before).is_empty())
            .then(|| Change { before: before.to_vec(), after: after.to_vec() })
    }

    /// Whether a connection goes elsewhere than the rules send it now. `is_here` says whether an address is one of this
    /// machine.
    fn contradicts(&self, connection: &Connection, is_here: impl FnOnce(IpAddr) -> bool) -> bool {
        let Connection { sent_to: (address, port), leads_to } = *connection;
        let is_of = |forward: &&Forward| {
            forward.port == port
                && forward.to.0.is_ipv4() == address.is_ipv4()
                && (forward.host.is_unspecified() || forward.host == address)
        };
        match self.after.iter().find(is_of) {
            Some(forward) => leads_to != forward.to && is_here(address),
            // The port is closed: what led to its pod.
            None => self.before.iter().filter(is_of).any(|forward| leads_to == forward.to),
        }
    }

    /// Deletes the entries that contradict the rules. Returns how many. An entry of any other connection stays.
    pub(super) fn delete_outdated(&self) -> io::Result<usize> {
        delete_entries(|connection, is_here| self.contradicts(connection, is_here))
    }
}

/// Addresses and ports of UDP of Services that have changed, and where packets may go that are sent there.
#[derive(Clone, Debug, Default)]
pub(super) struct Reached {
    /// By address and port; by the unspecified address of a family for ports of all addresses of this machine.
    targets: BTreeMap<(IpAddr, u16), Vec<SocketAddr>>,
}

impl Reached {
    /// Packets to `port` of an address, or of this machine if the address is unspecified, may go to `targets` alone: to none
    /// of them, if there are none.
    pub(super) fn restrict(&mut self, address: IpAddr, port: u16, targets: &[SocketAddr]) {
        self.targets.insert((address, port), targets.to_vec());
    }

    fn contradicts(&self, connection: &Connection, is_here: impl FnOnce(IpAddr) -> bool) -> bool {
        let Connection { sent_to: (address, port), leads_to } = *connection;
        let is_target = |targets: &Vec<SocketAddr>| targets.contains(&SocketAddr::from(leads_to));
        match (self.targets.get(&(address, port)), self.targets.get(&(unspecified(address), port))) {
            (Some(targets), _) => !is_target(targets),
            (None, Some(targets)) => !is_target(targets) && !address.is_loopback() && is_here(address),
            (None, None) => false,
        }
    }

    /// Deletes the entries of connections that go elsewhere. Returns how many.
    pub(super) fn delete_outdated(&self) -> io::Result<usize> {
        if self.targets.is_empty() {
            return Ok(0);
        }
        delete_entries(|connection, is_here| self.contradicts(connection, is_here))
    }
}

/// The unspecified address of the family of an address.
pub(super) fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Deletes the entries of UDP connections that are outdated, which is found with whether an address is one of this
/// machine. Returns how many.
fn delete_entries(
    is_outdated: impl Fn(&Connection, &mut dyn FnMut(IpAddr) -> bool) -> bool,
) -> io::Result<usize> {
    let mut deletes = netfilter::open()?;
    let (mut count, mut failed) = (0, None);
    // The address of the latest entry that was looked up: most have the same one.
    let mut latest: Option<(IpAddr, bool)> = None;
    let is_here = &mut |address: IpAddr| match latest {
        Some((known, is_here)) if known == address => is_here,
        Some(_) | None => latest.insert((address, is_of_this_machine(address))).1,
    };
    netfilter::list(NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET, &mut |entry| {
        if parse(entry).is_some_and(|connection| is_outdated(&connection, is_here)) {
            match delete(&mut deletes, entry) {
                Ok(()) => count += 1,
                // Its time was over.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(count), Err)
}

/// Whether an address is one of this machine: only such a one can be bound.
fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The connection of an entry; `None` if it is not of UDP.
fn parse(entry: Object) -> Option<Connection> {
    Some(Connection {
        sent_to: end(entry.find(CTA_TUPLE_ORIG)?, CTA_IP_V4_DST, CTA_IP_V6_DST, CTA_PROTO_DST_PORT)?,
        leads_to: end(entry.find(CTA_TUPLE_REPLY)?, CTA_IP_V4_SRC, CTA_IP_V6_SRC, CTA_PROTO_SRC_PORT)?,
    })
}

/// One end of a tuple of UDP.
fn end(tuple: &[u8], v4: u16, v6: u16, port: u16) -> Option<(IpAddr, u16)> {
    let (addresses, protocol) = (find(tuple, CTA_TUPLE_IP)?, find(tuple, CTA_TUPLE_PROTO)?);
    if find(protocol, CTA_PROTO_NUM)? != [libc::IPPROTO_UDP as u8] {
        return None;
    }
    let address = match (find(addresses, v4), find(addresses, v6)) {
        (Some(v4), _) => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(v4).ok()?)),
        (None, v6) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(v6?).ok()?)),
    };
    Some((address, u16::from_be_bytes(find(protocol, port)?.try_into().ok()?)))
}

/// Deletes an entry as it was listed, and no later one of the same connection.
fn delete(socket: &mut Socket, entry: Object) -> io::Result<()> {
    let kinds = [(CTA_TUPLE_ORIG, NLA_F_NESTED), (CTA_ZONE, 0), (CTA_ID, 0)];
    let listed = kinds.iter().filter_map(|(kind, flags)| Some(attribute(kind | flags, entry.find(*kind)?)));
    let request = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE;
    netfilter::change(socket, request, entry.family, &listed.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::nested;

    fn forward(host: &str, port: u16, to: (&str, u16)) -> Forward {
        Forward {
            host: host.parse().expect("an address"),
            port,
            protocol: libc::IPPROTO_UDP as u8,
            to: (to.0.parse().expect("an address"), to.1),
        }
    }

    #[test]
    fn entries_that_lead_elsewhere_than_the_rules_are_deleted_and_no_others() {
        let here = |address: IpAddr| ["192.0.2.2", "192.0.2.3", "fd00::2"].contains(&&*address.to_string());
        let (old, new) =
            (forward("0.0.0.0", 53, ("10.85.0.2", 5353)), forward("0.0.0.0", 53, ("10.85.0.9", 5353)));
        let one = forward("192.0.2.3", 53, ("10.85.0.4", 5353));
        let six = forward("::", 53, ("fd00:10::2", 5353));
        for (before, after, sent_to, leads_to, is_deleted) in [
            // The port opens: a sender began before the pod, or has an entry of an earlier pod.
            (&[][..], &[&old][..], ("192.0.2.2", 53), ("192.0.2.2", 53), true),
            (&[], &[&old], ("192.0.2.2", 53), ("10.85.0.7", 5353), true),
            (&[], &[&old], ("192.0.2.2", 53), ("10.85.0.2", 5353), false),
            // Other ports, and other machines, which a pod of this one asks.
            (&[], &[&old], ("192.0.2.2", 54), ("192.0.2.2", 54), false),
            (&[], &[&old], ("198.51.100.1", 53), ("198.51.100.1", 53), false),
            // The pod is replaced.
            (&[&old], &[&new], ("192.0.2.2", 53), ("10.85.0.2", 5353), true),
            (&[&old], &[&new], ("192.0.2.2", 53), ("10.85.0.9", 5353), false),
            // The port closes.
            (&[&old], &[], ("192.0.2.2", 53), ("10.85.0.2", 5353), true),
            (&[&old], &[], ("192.0.2.2", 53), ("192.0.2.2", 53), false),
            (&[&old], &[], ("10.96.0.10", 53), ("10.85.0.7", 5353), false),
            // A port at one address.
            (&[], &[&one], ("192.0.2.3", 53), ("192.0.2.3", 53), true),
            (&[], &[&one], ("192.0.2.2", 53), ("192.0.2.2", 53), false),
            // The versions of IP are apart.
            (&[], &[&six], ("fd00::2", 53), ("fd00::2", 53), true),
            (&[], &[&six], ("192.0.2.2", 53), ("192.0.2.2", 53), false),
            (&[], &[&old], ("fd00::2", 53), ("fd00::2", 53), false),
        ] {
            let rules = |list: &[&Forward]| list.iter().map(|forward| (*forward).clone()).collect::<Vec<_>>();
            let change = Change::between(&rules(before), &rules(after)).expect("they differ");
            let end = |(address, port): (&str, u16)| (address.parse().expect("an address"), port);
            let connection = Connection { sent_to: end(sent_to), leads_to: end(leads_to) };
            assert_eq!(
                change.contradicts(&connection, here),
                is_deleted,
                "{before:?} {after:?} {connection:?}"
            );
        }
        assert!(Change::between(&[old.clone(), one.clone()], &[one, old]).is_none());
        assert!(Change::between(&[], &[]).is_none());
    }

    #[test]
    fn entries_to_a_changed_service_that_lead_to_none_of_its_endpoints_are_deleted() {
        let here =
            |address: IpAddr| ["192.0.2.2", "2001:db8::2", "127.0.0.1"].contains(&&*address.to_string());
        let parse = |text: &str| text.parse::<SocketAddr>().expect("an address with a port");
        let mut reached = Reached::default();
        for (to, targets) in [
            ("10.96.0.9:53", &["10.85.0.2:5353"][..]),
            ("10.96.0.8:53", &[]),
            ("0.0.0.0:30053", &["10.85.0.2:5353"]),
            ("[::]:30053", &["[fd00:10::2]:5353"]),
        ] {
            let targets: Vec<SocketAddr> = targets.iter().map(|target| parse(target)).collect();
            reached.restrict(parse(to).ip(), parse(to).port(), &targets);
        }
        for (sent_to, leads_to, is_deleted) in [
            ("10.96.0.9:53", "10.85.0.2:5353", false),
            ("10.96.0.9:53", "10.85.0.3:5353", true),
            // The entry is older than the Service.
            ("10.96.0.9:53", "10.96.0.9:53", true),
            ("10.96.0.9:54", "10.85.0.3:5353", false),
            // The Service is gone.
            ("10.96.0.8:53", "10.85.0.2:5353", true),
            ("192.0.2.2:30053", "10.85.0.2:5353", false),
            ("192.0.2.2:30053", "10.85.0.3:5353", true),
            ("[2001:db8::2]:30053", "[fd00:10::2]:5353", false),
            ("[2001:db8::2]:30053", "[fd00:10::3]:5353", true),
            ("127.0.0.1:30053", "127.0.0.1:30053", false),
            ("198.51.100.1:30053", "198.51.100.1:30053", false),
        ] {
            let end = |text: &str| (parse(text).ip(), parse(text).port());
            let connection = Connection { sent_to: end(sent_to), leads_to: end(leads_to) };
            assert_eq!(reached.contradicts(&connection, here), is_deleted, "{connection:?}");
        }
    }

    #[test]
    fn an_entry_is_read_as_the_kernel_writes_it() {
        let tuple = |kind: u16, protocol: u8, from: ([u8; 4], u16), to: ([u8; 4], u16)| {
            let addresses =
                nested(CTA_TUPLE_IP, &[attribute(CTA_IP_V4_SRC, &from.0), attribute(CTA_IP_V4_DST, &to.0)]);
            let ports = nested(
                CTA_TUPLE_PROTO,
                &[
                    attribute(CTA_PROTO_NUM, &[protocol]),
                    attribute(CTA_PROTO_SRC_PORT, &from.1.to_be_bytes()),
                    attribute(CTA_PROTO_DST_PORT, &to.1.to_be_bytes()),
                ],
            );
            nested(kind, &[addresses, ports])
        };
        let entry = |protocol: u8| {
            let sent = tuple(CTA_TUPLE_ORIG, protocol, ([192, 0, 2, 1], 4000), ([192, 0, 2, 2], 53));
            let replies = tuple(CTA_TUPLE_REPLY, protocol, ([10, 85, 0, 2], 5353), ([192, 0, 2, 1], 4000));
            [sent, attribute(3, &[0; 4]), replies].concat()
        };
        let expected = Connection {
            sent_to: (Ipv4Addr::new(192, 0, 2, 2).into(), 53),
            leads_to: (Ipv4Addr::new(10, 85, 0, 2).into(), 5353),
        };
        let parse = |attributes: &[u8]| super::parse(Object { family: 2, attributes });
        assert_eq!(parse(&entry(17)), Some(expected));
        assert_eq!(parse(&entry(6)), None);
        let whole = entry(17);
        for length in 0..whole.len() {
            let _ = parse(&whole[..length]);
        }
    }
}
