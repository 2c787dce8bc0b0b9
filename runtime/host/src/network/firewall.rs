//! nodlet's own nftables table, `inet nodlet-<hash of the root>`: source NAT for pods that reach beyond the board, and
//! `hostPort`.
//!
//! The table is replaced as a whole, in one atomic change. So it never matters what an earlier agent or somebody else
//! left in it, and connections keep their translation. No other table is ever changed. The kernel must forward packets
//! for both; `network/forwarding.rs` switches that on, and this table makes the links concerned forward nothing else.
//! If somebody else changes the table, [`Watch`] reports it, and the table is replaced.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use super::BRIDGES;
use super::cluster::{Cluster, Peer};
use crate::netlink::News;
use crate::netlink::nftables::expressions::{self as nft, Side};
use crate::netlink::nftables::{self, Batch, Hook, Nft};
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
                    batch.add_rule("forward", &[from.clone(), to_no_pods, nft::drop_packet()]);
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
        // A pod would answer another one of its bridge directly, from an address that the other did not connect to; and
        // drop what seems to come from itself. With br_netfilter the bridge forwards such a packet, and there is no link
        // by which it came in.
        for (base, prefix) in &self.ranges {
            let from_range = nft::range(Side::Source, *base, *prefix);
            let translated = nft::connection(nft::CT_STATUS, true, nft::DNAT);
            batch.add_rule("postrouting", &[from_range, to_pods.clone(), translated, nft::masquerade()]);
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
            ports: SortedMap::new(),
        };
        Firewall { table, socket: None }
    }

    fn socket(&mut self) -> io::Result<&mut Nft> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            socket => Ok(socket.insert(Nft::open()?)),
        }
    }

    /// Puts the table into the kernel as it is to be.
    pub(super) fn apply(&mut self) -> io::Result<()> {
        self.socket()?;
        let Some(socket) = &mut self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        socket.change(&self.table.name, |batch| self.table.replace(batch))
    }

    /// Removes the table from the kernel, if there is one.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        let name = self.table.name.clone();
        match self.socket()?.change(&name, Batch::delete_table) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) || is_unsupported(&error) => Ok(()),
            removed => removed,
        }
    }

    /// Whether this kernel tracks SCTP connections, which is known as soon as there is a table.
    pub(super) fn tracks_sctp() -> bool {
        std::path::Path::new(SCTP).exists()
    }

    /// Watches the table and what the links of the machine need to forward.
    pub(super) fn watch(&mut self) -> io::Result<Watch> {
        let port = self.socket()?.port();
        let links = News::open(libc::NETLINK_ROUTE, &LINK_GROUPS)?;
        Ok(Watch { table: self.table.name.clone(), port, tables: nftables::news()?, links })
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
    table: String,
    port: u32,
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
        let mut news = TableNews::default();
        let _ = self.tables.read(|bytes| match bytes {
            Some(bytes) => {
                news.is_foreign |= nftables::changes_table(bytes, &self.table, self.port);
                news.has_foreign_chains |= nftables::adds_chain(bytes, self.port);
            }
            None => news.is_incomplete = true,
        });
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
    /// The kernel had more news than the socket could hold, such as those of a large change by nodlet itself.
    pub is_incomplete: bool,
}

#[cfg(test)]
mod tests;
