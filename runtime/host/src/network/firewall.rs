//! nodlet's own nftables table, `inet nodlet-<hash of the root>`: source NAT for pods that reach beyond the board, and
//! `hostPort`.
//!
//! The table is replaced as a whole, in one atomic change. So it never matters what an earlier agent or somebody else
//! left in it, and connections keep their translation. No other table is ever changed. The kernel must forward packets
//! for both; `network/forwarding.rs` switches that on, and this table makes the links concerned forward nothing else.
//! If somebody else changes the table, [`Watch`] reports it, and the table is replaced.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use super::BRIDGES;
use super::cluster::{Cluster, Peer};
use super::range::AnyRange;
use crate::netlink::News;
use crate::netlink::nftables::expressions::{self as nft, Side};
use crate::netlink::nftables::{self, Batch, Generation, Hook, Nft};
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::{Pod, Uid};

// From linux/netfilter.h and linux/netfilter_ipv4.h: hooks with their usual priorities.
const RAW: Hook = (0, -300);
const PREROUTING: Hook = (0, -100);
const FORWARD: Hook = (2, 0);
const OUTPUT: Hook = (3, -100);
const POSTROUTING: Hook = (4, 100);

/// The news of IPv4 addresses and routes, and of the forwarding of links. With news of the route to its own network, a link
/// reports that it is up: its other routes are gone then.
const LINK_GROUPS: [u32; 3] =
    [libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV4_ROUTE, libc::RTNLGRP_IPV4_NETCONF];

/// The file that shows that this kernel tracks SCTP connections.
const SCTP: &str = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established";

/// The port of the board's name server.
const NAME_SERVER_PORT: u16 = 53;

/// A port of the host that leads to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    /// `hostIP`; unspecified for all addresses of its family.
    pub(super) host: IpAddr,
    /// `hostPort`.
    pub(super) port: u16,
    /// The number of the transport protocol.
    pub(super) protocol: u8,
    /// The pod's address and `containerPort`.
    pub(super) to: (IpAddr, u16),
}

/// The ports of the host that `pod` requests, for the addresses that it has. The error names the field.
pub(super) fn forwards(pod: &Pod, addresses: &[IpAddr]) -> Result<Vec<Forward>, String> {
    let mut found = Vec::new();
    for (container, port) in pod.host_ports() {
        let field = |what: &str, why: &str| {
            let name = &container.name;
            Err(format!(
                "forward hostPort {} ({}) of container {name}: {what}: {why}",
                port.host_port, port.protocol
            ))
        };
        let protocol = match &*port.protocol {
            "UDP" => libc::IPPROTO_UDP,
            "SCTP" => libc::IPPROTO_SCTP,
            _ => libc::IPPROTO_TCP,
        };
        let before = found.len();
        for address in addresses {
            let any = match address {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            let host = match port.host_ip.parse() {
                Err(_) if port.host_ip.is_empty() => any,
                Err(_) => return field(&port.host_ip, "hostIP must be an IP address"),
                Ok(host) => host,
            };
            if host == IpAddr::V6(Ipv6Addr::LOCALHOST) {
                return field("hostIP ::1", "Linux routes nothing from there to a pod; use 127.0.0.1");
            }
            if host.is_ipv4() == address.is_ipv4() {
                found.push(Forward {
                    host,
                    port: port.host_port,
                    protocol: protocol as u8,
                    to: (*address, port.container_port),
                });
            }
        }
        if found.len() == before {
            return field(&format!("hostIP {}", port.host_ip), "the pod has no address of this family");
        }
    }
    Ok(found)
}

/// The desired content of the nftables table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) bridge: String,
    pub(super) masquerade: bool,
    /// The ranges of the pods' addresses.
    pub(super) ranges: Vec<(IpAddr, u8)>,
    /// The network of the cluster that the board has joined.
    pub(super) cluster: Option<Cluster>,
    /// Links that forward only because of nodlet.
    pub(super) uplinks: Vec<String>,
    /// The kernel translates what a pod answers another one of its bridge, so that servers see the address of the client.
    pub(super) bridges_translate: bool,
    /// Services may send what comes in by such a link to another machine.
    pub(super) has_services: bool,
    pub(super) ports: SortedMap<Uid, Vec<Forward>>,
}

impl Table {
    fn forwards(&self) -> impl Iterator<Item = &Forward> {
        self.ports.values().flatten()
    }

    /// The ports of UDP.
    pub(super) fn udp_ports(&self) -> impl Iterator<Item = &Forward> {
        self.forwards().filter(|forward| i32::from(forward.protocol) == libc::IPPROTO_UDP)
    }

    /// Whether packets from 127.0.0.1 must get to pods.
    pub(super) fn serves_loopback(&self) -> bool {
        self.forwards().any(|forward| match forward.host {
            IpAddr::V4(host) => host.is_unspecified() || host.is_loopback(),
            IpAddr::V6(_) => false,
        })
    }

    /// Replaces the table.
    fn replace(&self, batch: &mut Batch) {
        batch.add_table();
        batch.delete_table();
        batch.add_table();
        self.add_chains(batch);
    }

    fn add_chains(&self, batch: &mut Batch) {
        let (from_pods, to_pods) =
            (nft::link(nft::IIFNAME, true, &self.bridge), nft::link(nft::OIFNAME, true, &self.bridge));
        let elsewhere = nft::link(nft::OIFNAME, false, &self.bridge);
        let loopback = (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8);
        let has_ports = self.forwards().next().is_some();
        if let Some(cluster) = &self.cluster {
            // Other nodes and their pods reach pods of this node directly, and are reached by the pods' own addresses.
            batch.add_chain("from-cluster", None);
            batch.add_chain("to-cluster", None);
            let host = |peer: &Peer| (peer.gateway, if peer.gateway.is_ipv4() { 32 } else { 128 });
            for (base, prefix) in cluster.pods.iter().copied().chain(cluster.peers.iter().map(host)) {
                let from = nft::range(Side::Source, base, prefix);
                batch.add_rule("from-cluster", &[from, nft::accept()]);
            }
            for (base, prefix) in &cluster.pods {
                let to = nft::range(Side::Destination, *base, *prefix);
                batch.add_rule("to-cluster", &[to, nft::accept()]);
            }
        }
        if !self.uplinks.is_empty() {
            batch.add_chain("forward", Some(("filter", FORWARD)));
        }
        for uplink in &self.uplinks {
            let from = nft::link(nft::IIFNAME, true, uplink);
            match self.cluster {
                Some(_) => {
                    let to_pods = to_pods.clone();
                    batch.add_rule("forward", &[from.clone(), to_pods, nft::jump("from-cluster")]);
                }
                // In a cluster, kube-proxy may send what comes to a port of this node to a pod of another one.
                // The pods of other agents of the machine get their replies by the same links.
                None => {
                    let to_no_pods = nft::links(nft::OIFNAME, false, BRIDGES.as_bytes());
                    let untranslated = nft::connection(nft::CT_STATUS, false, nft::DNAT);
                    let untranslated = if self.has_services { untranslated } else { Vec::new() };
                    batch.add_rule("forward", &[from.clone(), to_no_pods, untranslated, nft::drop_packet()]);
                }
            }
            let foreign = nft::connection(nft::CT_STATUS, false, nft::DNAT);
            let unexpected = nft::connection(nft::CT_STATE, false, nft::ESTABLISHED_OR_RELATED);
            batch.add_rule("forward", &[from, foreign, unexpected, nft::drop_packet()]);
        }
        batch.add_chain("postrouting", Some(("nat", POSTROUTING)));
        for (base, prefix) in self.cluster.iter().flat_map(|cluster| &cluster.own) {
            let from = nft::range(Side::Source, *base, *prefix);
            batch.add_rule("postrouting", &[from, elsewhere.clone(), nft::jump("to-cluster")]);
        }
        if self.masquerade {
            batch.add_rule("postrouting", &[from_pods.clone(), elsewhere, nft::masquerade()]);
        }
        if !has_ports && self.cluster.is_none() {
            return;
        }
        let translated = nft::connection(nft::CT_STATUS, true, nft::DNAT);
        if self.bridges_translate {
            // A pod would drop what seems to come from itself. For Services of a cluster, kube-proxy has such rules.
            let pods: BTreeSet<IpAddr> = self.forwards().map(|forward| forward.to.0).collect();
            for pod in pods {
                let is_pod = |side| nft::range(side, pod, if pod.is_ipv4() { 32 } else { 128 });
                let itself = [is_pod(Side::Source), is_pod(Side::Destination)].concat();
                batch.add_rule("postrouting", &[itself, translated.clone(), nft::masquerade()]);
            }
        } else {
            // A pod would answer another one of its bridge directly, from an address that the other did not connect to;
            // and drop what seems to come from itself.
            for (base, prefix) in &self.ranges {
                let from_range = nft::range(Side::Source, *base, *prefix);
                let to_pods = to_pods.clone();
                batch.add_rule("postrouting", &[from_range, to_pods, translated.clone(), nft::masquerade()]);
            }
        }
        if !has_ports {
            return;
        }
        if self.serves_loopback() {
            let from_loopback = nft::range(Side::Source, loopback.0, loopback.1);
            batch.add_rule("postrouting", &[from_loopback, to_pods, nft::masquerade()]);
            // The bridge has route_localnet: pods must not reach services of the board that listen on 127.0.0.1.
            batch.add_chain("loopback", Some(("filter", RAW)));
            let to_loopback = nft::range(Side::Destination, loopback.0, loopback.1);
            batch.add_rule("loopback", &[from_pods, to_loopback, nft::drop_packet()]);
        }
        batch.add_chain("ports", None);
        let takes_queries = |forward: &Forward| {
            let is_of_bridge =
                forward.host.is_unspecified() || gateways(&self.ranges).any(|one| one == forward.host);
            forward.port == NAME_SERVER_PORT && is_of_bridge
        };
        if self.forwards().any(takes_queries) {
            keep_queries(batch, "ports", &self.ranges);
        }
        for forward in self.forwards() {
            let to_host = match forward.host {
                any if any.is_unspecified() => nft::family(any),
                host => nft::range(Side::Destination, host, if host.is_ipv4() { 32 } else { 128 }),
            };
            let (address, port) = forward.to;
            let to_port = nft::destination_port(forward.protocol, forward.port);
            batch.add_rule("ports", &[to_host, to_port, nft::dnat(address, port)]);
        }
        let to_here = [nft::to_this_machine(), nft::jump("ports")];
        batch.add_chain("prerouting", Some(("nat", PREROUTING)));
        batch.add_rule("prerouting", &to_here);
        batch.add_chain("output", Some(("nat", OUTPUT)));
        let loopback = nft::range(Side::Destination, IpAddr::V6(Ipv6Addr::LOCALHOST), 128);
        batch.add_rule("output", &[loopback, nft::accept()]);
        batch.add_rule("output", &to_here);
    }
}

/// The addresses that the bridge has for ranges of pods.
fn gateways(ranges: &[(IpAddr, u8)]) -> impl Iterator<Item = IpAddr> {
    ranges.iter().filter_map(|(base, prefix)| Some(AnyRange::of_base(*base, *prefix)?.gateway()))
}

/// Adds rules to a chain that leave the queries of pods alone: the name server at the bridge's address of each of the
/// `ranges` of pods gets them, whatever else the chain does with port 53 of the board.
pub(super) fn keep_queries(batch: &mut Batch, chain: &str, ranges: &[(IpAddr, u8)]) {
    for gateway in gateways(ranges) {
        let to_bridge = nft::range(Side::Destination, gateway, if gateway.is_ipv4() { 32 } else { 128 });
        for protocol in [libc::IPPROTO_UDP, libc::IPPROTO_TCP] {
            let query = nft::destination_port(protocol as u8, NAME_SERVER_PORT);
            batch.add_rule(chain, &[to_bridge.clone(), query, nft::accept()]);
        }
    }
}

/// The table in the kernel.
#[derive(Debug)]
pub(super) struct Firewall {
    pub(super) table: Table,
    socket: Option<Nft>,
}

impl Firewall {
    pub(super) fn new(hash: &str, bridge: &str, masquerade: bool, ranges: &[(IpAddr, u8)]) -> Firewall {
        let table = Table {
            name: format!("nodlet-{hash}"),
            bridge: bridge.to_owned(),
            masquerade,
            ranges: ranges.to_vec(),
            cluster: None,
            uplinks: Vec::new(),
            bridges_translate: false,
            has_services: false,
            ports: SortedMap::new(),
        };
        Firewall { table, socket: None }
    }

    /// The socket with which nodlet changes its tables.
    pub(super) fn socket(&mut self) -> io::Result<&mut Nft> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            socket => Ok(socket.insert(Nft::open()?)),
        }
    }

    /// Puts the table into the kernel as it is to be.
    pub(super) fn apply(&mut self) -> io::Result<()> {
        self.socket()?;
        let Some(socket) = &mut self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        socket.change(&self.table.name, |batch| self.table.replace(batch)).map(drop)
    }

    /// Removes the table from the kernel, if there is one.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        let name = self.table.name.clone();
        remove_table(self.socket()?, &name)
    }

    /// Whether this kernel tracks SCTP connections, which is known as soon as there is a table.
    pub(super) fn tracks_sctp() -> bool {
        std::path::Path::new(SCTP).exists()
    }

    /// Watches the table, `others`, and what the links of the machine need to forward.
    pub(super) fn watch(&mut self, others: &[String]) -> io::Result<Watch> {
        let socket = self.socket()?;
        let (port, own) = (socket.port(), socket.own_generation());
        let links = News::open(libc::NETLINK_ROUTE, &LINK_GROUPS)?;
        let tables = nftables::news()?;
        own.set(socket.generation()?);
        let names = [std::slice::from_ref(&self.table.name), others].concat();
        Ok(Watch { names, port, own, tables, links })
    }
}

/// Removes a table from the kernel, if it is there.
pub(super) fn remove_table(socket: &mut Nft, name: &str) -> io::Result<()> {
    match socket.change(name, Batch::delete_table) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) || is_unsupported(&error) => Ok(()),
        removed => removed.map(drop),
    }
}

/// Whether an error of the kernel means that it was built without a part of nf_tables that the table needs.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    let kinds = [
        libc::EPROTONOSUPPORT,
        libc::EAFNOSUPPORT,
        libc::EOPNOTSUPP,
        libc::ENOENT,
        libc::EINVAL,
        libc::ENOSYS,
    ];
    error.raw_os_error().is_some_and(|number| kinds.contains(&number))
}

/// The reason for an error of the kernel, for people.
pub(super) fn explain(error: io::Error) -> io::Error {
    if !is_unsupported(&error) {
        return error;
    }
    let why = "this kernel has no nf_tables with NAT; load the modules nf_tables, nft_chain_nat, nft_nat, nft_masq, nft_ct and \
               nft_fib_inet, or use a kernel with CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, CONFIG_NFT_NAT, \
               CONFIG_NFT_MASQ, CONFIG_NFT_CT and CONFIG_NFT_FIB_INET";
    io::Error::new(io::ErrorKind::Unsupported, format!("{why} ({error})"))
}

/// News about changes that somebody else made. The sockets are for an executor, and block nobody.
#[derive(Debug)]
pub struct Watch {
    /// The tables of nodlet.
    names: Vec<String>,
    port: u32,
    /// The latest change before which all are by nodlet, or were reported.
    own: Generation,
    tables: News,
    links: News,
}

impl Watch {
    /// The socket that becomes readable when some table changes.
    pub fn tables(&self) -> BorrowedFd<'_> {
        self.tables.as_fd()
    }

    /// The socket that becomes readable when an address or the forwarding of a link changes.
    pub fn links(&self) -> BorrowedFd<'_> {
        self.links.as_fd()
    }

    /// Reads all news about tables.
    pub fn read_tables(&self) -> TableNews {
        let (mut news, mut reported) = (TableNews::default(), None);
        let _ = self.tables.read(|bytes| match bytes {
            Some(bytes) => {
                news.is_foreign |= nftables::changes_tables(bytes, &self.names, self.port);
                news.has_foreign_chains |= nftables::adds_chain(bytes, self.port);
                reported = nftables::latest_generation(bytes).or(reported);
            }
            None => news.is_incomplete = true,
        });
        if news.is_incomplete {
            // News that were dropped are of nodlet's own change of thousands of Services if nobody else has changed
            // anything since the news before them.
            if let Ok(latest) = Nft::open().and_then(|mut socket| socket.generation()) {
                news.is_incomplete = latest.is_none() || latest != self.own.replace(latest);
            }
        } else if let Some(reported) = reported
            && self.own.get().is_none_or(|own| reported.wrapping_sub(own) < u32::MAX / 2)
        {
            self.own.set(Some(reported));
        }
        news
    }

    /// Reads and drops all news about links.
    pub fn read_links(&self) {
        let _ = self.links.read(|_| {});
    }
}

/// A change of nodlet's table, or of tables that affect it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableNews {
    /// Another program changed the table.
    pub is_foreign: bool,
    /// Another program added or changed a chain of any table.
    pub has_foreign_chains: bool,
    /// The kernel had more news than the socket could hold, and not only those of a large change by nodlet itself.
    pub is_incomplete: bool,
}

#[cfg(test)]
mod tests;
