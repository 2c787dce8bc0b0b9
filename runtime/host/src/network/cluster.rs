//! The pods of other nodes of a cluster: routes to them, and what the table allows them. The text that says where they
//! are is written by `runtime/cluster/src/pod_cidrs.rs`, and stored, so that a board that boots without a connection has
//! the same network.
//!
//! A route is made only if the address of the other node is on a link of this machine, which the kernel decides. An
//! existing route to the same range is left as it is: it is the owner's. The routes that nodlet has made are kept in a
//! file below `/run`, for the next agent and `nodlet down`.

use nodlet_kernel::durable::replace_in_memory;
use nodlet_kernel::own_file;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use super::range::{Ipv6Range, Range};
use super::{Network, NetworkError};
use crate::netlink::Netlink;

/// The range of the pods of another node, and the address to which packets for them are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) range: (IpAddr, u8),
    /// The address of the node.
    pub(super) gateway: IpAddr,
}

/// The ranges of a cluster, as input of the nftables table.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    /// The ranges that the cluster has assigned to this node.
    pub(super) own: Vec<(IpAddr, u8)>,
    /// Ranges of the pods of other nodes.
    pub(super) pods: Vec<(IpAddr, u8)>,
    pub(super) peers: Vec<Peer>,
}

impl Peer {
    fn parse(line: &str) -> Option<Peer> {
        let (range, gateway) = line.split_once(' ')?;
        let (base, prefix) = range.split_once('/')?;
        Some(Peer { range: (base.parse().ok()?, prefix.parse().ok()?), gateway: gateway.parse().ok()? })
    }
}

impl Network {
    /// Uses the network of a cluster from now on: its text, and ranges of its pods besides those of the text; `None` to
    /// use that of the configuration again. Pods keep their addresses.
    ///
    /// # Errors
    /// The range of this node cannot be used, and nothing else has changed; or the kernel refused something.
    pub fn follow_cluster(&mut self, text: Option<&str>, pods: &[(IpAddr, u8)]) -> Result<(), NetworkError> {
        if text.is_none() && self.firewall.table.cluster.is_none() {
            return Ok(());
        }
        self.read_cluster(text, pods)?;
        self.follow_ranges();
        if self.table == super::TableState::Installed {
            return self.install();
        }
        self.apply_routes();
        Ok(())
    }

    /// Does the part of [`Network::follow_cluster`] that does not concern the kernel.
    pub(super) fn read_cluster(
        &mut self,
        text: Option<&str>,
        pods: &[(IpAddr, u8)],
    ) -> Result<(), NetworkError> {
        let Some(text) = text else {
            (self.range, self.ipv6) = self.configured;
            self.firewall.table.cluster = None;
            self.guarded = None;
            return Ok(());
        };
        let mut lines = text.lines();
        let ranges = lines.next().unwrap_or_default();
        let mut own = Vec::new();
        if !ranges.is_empty() {
            let (range, ipv6) = Range::parse_all(ranges).map_err(|wrong| NetworkError::Range {
                origin: "spec.podCIDRs of the Node".to_owned(),
                text: ranges.to_owned(),
                wrong,
            })?;
            if (range, ipv6) != (self.range, self.ipv6) {
                log::info!("new pods get addresses of {ranges}, which the cluster assigned to this node");
                (self.range, self.ipv6) = (range, ipv6);
                // The bridge gets another address.
                self.guarded = None;
            }
            own = all(range, ipv6);
        }
        let peers: Vec<Peer> = lines.filter_map(Peer::parse).collect();
        let pods = pods.iter().copied().chain(peers.iter().map(|peer| peer.range)).collect();
        self.firewall.table.cluster = Some(Cluster { own, pods, peers });
        Ok(())
    }

    /// Makes the missing routes to other nodes' pods, and removes those that are no longer wanted.
    pub(super) fn apply_routes(&mut self) {
        let wanted = self.firewall.table.cluster.as_ref().map_or(&[][..], |cluster| &cluster.peers);
        let made = read(&self.routes);
        if wanted.is_empty() && made.is_empty() {
            return;
        }
        let Ok(mut netlink) = Netlink::open() else { return };
        for peer in made.iter().filter(|peer| !wanted.contains(peer)) {
            // It may have gone with its link.
            let _ = netlink.remove_route(peer.range, peer.gateway);
        }
        let mut ours = Vec::new();
        for peer in wanted {
            match netlink.add_route(peer.range, peer.gateway) {
                Ok(()) => ours.push(peer),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    ours.extend(made.contains(peer).then_some(peer));
                }
                // The node is on no link, or not yet.
                Err(error) => log::debug!("no route to {}: {error}", peer.gateway),
            }
        }
        if !ours.iter().copied().eq(&made) {
            let line = |peer: &&Peer| format!("{}/{} {}\n", peer.range.0, peer.range.1, peer.gateway);
            if let Err(error) = replace_in_memory(&self.routes, ours.iter().map(line).collect::<String>()) {
                log::warn!("failed to write {}: {error}", self.routes.display());
            }
        }
    }
}

/// The ranges of pods with their families.
pub(super) fn all(range: Range, ipv6: Option<Ipv6Range>) -> Vec<(IpAddr, u8)> {
    let mut ranges = vec![(range.base.into(), range.prefix)];
    ranges.extend(ipv6.map(|ipv6| (ipv6.base.into(), ipv6.prefix)));
    ranges
}

/// Reads the routes that nodlet has made in this boot.
fn read(file: &Path) -> Vec<Peer> {
    own_file::read_to_string(file).unwrap_or_default().lines().filter_map(Peer::parse).collect()
}
