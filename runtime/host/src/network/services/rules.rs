//! The rules of the table of Services: those that it always has, and those of a port.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use nodlet_services::data_path::{PortPath, Targets};
use nodlet_services::service::{Family, Protocol, TrafficPolicy};

use super::FAMILIES;
use super::numbers::{Chosen, Leads, Numbers, chain, kind};
use crate::netlink::nftables::expressions::lookups::{self, Choice};
use crate::netlink::nftables::expressions::{self as nft, Side};
use crate::netlink::nftables::sets::{Data, Kind};
use crate::netlink::nftables::{Batch, Hook, Nft};
use crate::network::firewall::{is_unsupported, keep_queries};

/// The chain of new connections from other machines and from pods.
pub(super) const PREROUTING_CHAIN: &str = "prerouting";
/// The chain that finds the chain of a port.
pub(super) const SERVICES_CHAIN: &str = "services";
/// The chain that refuses connections to addresses of Services that have no such port.
const CLOSED_CHAIN: &str = "closed";

// From linux/netfilter.h and linux/netfilter_ipv4.h: hooks, and the usual priority of the last one.
const PREROUTING: u32 = 0;
const OUTPUT: u32 = 3;
const POSTROUTING: Hook = (4, 100);

/// The priority with which the board's Services change destinations: behind `hostPort`s, which have the usual one (-100).
/// The kernel asks chains of equal priorities in the order in which they were made, which changes whenever one is made anew.
pub(in crate::network) const BOARD_PRIORITY: i32 = -99;
/// The priority with which the Services of the cluster change destinations: behind those of the board.
pub(in crate::network) const CLUSTER_PRIORITY: i32 = -98;

/// The bit of a packet's mark for connections that get an address of the board if they leave it. Not kube-proxy's (bit 14),
/// which has every such packet masqueraded, also one to a pod of the board, which is to see the client's address; nor that
/// of the portmap plugin (bit 13), nor one of those above, which Calico, Cilium and Tailscale use.
pub(super) const MASQUERADE: u32 = 1 << 12;

/// The policies, each of which has endpoints of its own.
const POLICIES: [TrafficPolicy; 2] = [TrafficPolicy::Cluster, TrafficPolicy::Local];

/// The most endpoints of a port and family to which connections go.
const ENDPOINTS_MAX: usize = 1000;

/// The most clients of an endpoint that the kernel remembers for the affinity of sessions. Others go to any endpoint.
const CLIENTS_MAX: u32 = 4096;

/// The map to the chains of addresses with ports.
pub(super) fn ports(family: Family) -> &'static str {
    match family {
        Family::V4 => "ports4",
        Family::V6 => "ports6",
    }
}

/// The map to the chains of node ports.
pub(super) fn node_ports(family: Family) -> &'static str {
    match family {
        Family::V4 => "node-ports4",
        Family::V6 => "node-ports6",
    }
}

/// The set of addresses of the cluster.
pub(super) fn cluster(family: Family) -> &'static str {
    match family {
        Family::V4 => "cluster4",
        Family::V6 => "cluster6",
    }
}

/// The set of the pods that may connect to themselves, each of which has its address twice.
pub(super) fn hairpin(family: Family) -> &'static str {
    match family {
        Family::V4 => "hairpin4",
        Family::V6 => "hairpin6",
    }
}

/// The name of the set of the clients that the chain with a number has served.
fn clients(number: u32) -> String {
    format!("clients{number}")
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// What the kernel can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) choice: Choice,
    /// Connections can be refused before they are routed, which needs Linux 5.9.
    pub(super) rejects: bool,
    pub(super) is_reported: bool,
}

impl Abilities {
    /// Finds out what the kernel can do, with a table for a moment.
    ///
    /// # Errors
    /// The kernel has no nf_tables with NAT.
    pub(super) fn probe(socket: &mut Nft, name: &str) -> io::Result<Abilities> {
        let name = format!("{name}-probe");
        let mut accepts = |expression: Vec<u8>| {
            let added = socket.change(&name, |batch| {
                batch.add_table();
                batch.add_chain("probe", Some(("nat", (PREROUTING, BOARD_PRIORITY))));
                batch.add_rule("probe", &[nft::link(nft::IIFNAME, true, "nodlet-probe"), expression]);
            });
            if added.is_ok() {
                socket.change(&name, Batch::delete_table)?;
            }
            match added {
                Err(error) if is_unsupported(&error) => Ok(Err(error)),
                added => added.map(Ok),
            }
        };
        accepts(nft::accept())??;
        let choice = if accepts(lookups::only_choose(Choice::Random))?.is_ok() {
            Choice::Random
        } else if accepts(lookups::only_choose(Choice::Hash))?.is_ok() {
            Choice::Hash
        } else {
            Choice::First
        };
        let rejects = accepts(lookups::reject(false))?.is_ok();
        Ok(Abilities { choice, rejects, is_reported: false })
    }

    /// A warning about what the kernel lacks, once.
    pub(super) fn warning(&mut self) -> Option<String> {
        if std::mem::replace(&mut self.is_reported, true) {
            return None;
        }
        let numgen = match self.choice {
            Choice::Random => None,
            Choice::Hash => Some("connections to Services are spread by a hash of their addresses and ports"),
            Choice::First => Some("all connections to a Service go to its first endpoint"),
        };
        let numgen = numgen.map(|what| {
            format!("{what}, because the kernel has no nft_numgen (module nft_numgen, CONFIG_NFT_NUMGEN)")
        });
        let rejects = (!self.rejects).then(|| {
            "connections to Services without endpoints wait until they time out, because the kernel cannot refuse them: \
             that needs Linux 5.9 with nft_reject_inet (module nft_reject_inet, CONFIG_NFT_REJECT_INET)"
                .to_owned()
        });
        let all: Vec<String> = numgen.into_iter().chain(rejects).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Refuses a connection, or drops it if the kernel cannot refuse it.
    fn refuse(self, is_tcp: bool) -> Vec<u8> {
        if self.rejects { lookups::reject(is_tcp) } else { nft::drop_packet() }
    }
}

/// The pods that reach the addresses of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::network) struct Pods {
    /// The ranges of the board's pods.
    pub(super) ranges: Vec<(IpAddr, u8)>,
    /// The kernel translates what a pod answers another one of its bridge.
    pub(super) bridges_translate: bool,
    /// The ranges of the pods of other nodes.
    pub(super) elsewhere: Vec<(IpAddr, u8)>,
}

/// What the rules that the table always has depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) bridge: String,
    /// The priority with which the table changes destinations.
    pub(super) priority: i32,
    pub(super) pods: Pods,
    /// The ranges of the addresses of Services.
    pub(super) services: Vec<(IpAddr, u8)>,
}

impl Frame {
    /// Adds maps and chains without hooks.
    pub(super) fn add(&self, batch: &mut Batch, abilities: Abilities) {
        batch.add_chain(SERVICES_CHAIN, None);
        keep_queries(batch, SERVICES_CHAIN, &self.pods.ranges);
        batch.add_chain(CLOSED_CHAIN, None);
        batch.add_rule(CLOSED_CHAIN, &[lookups::protocol(Protocol::Tcp as u8), abilities.refuse(true)]);
        batch.add_rule(CLOSED_CHAIN, &[abilities.refuse(false)]);
        let port = Kind::PROTOCOL.then(Kind::PORT);
        for family in FAMILIES {
            batch.add_map(ports(family), kind(family).then(Kind::PROTOCOL).then(Kind::PORT), None);
            batch.add_map(node_ports(family), port, None);
            batch.add_set(cluster(family), kind(family));
            batch.add_set(hairpin(family), kind(family).then(kind(family)));
            batch.add_rule(SERVICES_CHAIN, &[lookups::vmap_destination(family, ports(family))]);
        }
        for family in FAMILIES {
            let to_board = [lookups::not_to_loopback(family), nft::to_this_machine()].concat();
            batch.add_rule(SERVICES_CHAIN, &[to_board, lookups::vmap_port(node_ports(family))]);
        }
        for family in FAMILIES {
            let to_cluster = lookups::destination_in(family, cluster(family));
            batch.add_rule(SERVICES_CHAIN, &[to_cluster, nft::goto(CLOSED_CHAIN)]);
        }
        for (base, prefix) in &self.services {
            let unallocated = nft::range(Side::Destination, *base, *prefix);
            batch.add_rule(SERVICES_CHAIN, &[unallocated, nft::drop_packet()]);
        }
    }

    /// Adds the chains with hooks, which put the table into effect.
    pub(super) fn add_hooks(&self, batch: &mut Batch) {
        batch.add_chain(PREROUTING_CHAIN, Some(("nat", (PREROUTING, self.priority))));
        // Other machines reach external addresses and node ports only.
        let from_pods = nft::link(nft::IIFNAME, true, &self.bridge);
        batch.add_rule(PREROUTING_CHAIN, &[from_pods, nft::goto(SERVICES_CHAIN)]);
        for (base, prefix) in &self.pods.elsewhere {
            let from_pods = nft::range(Side::Source, *base, *prefix);
            batch.add_rule(PREROUTING_CHAIN, &[from_pods, nft::goto(SERVICES_CHAIN)]);
        }
        for family in FAMILIES {
            let to_cluster = lookups::destination_in(family, cluster(family));
            batch.add_rule(PREROUTING_CHAIN, &[to_cluster, nft::drop_packet()]);
        }
        batch.add_rule(PREROUTING_CHAIN, &[nft::jump(SERVICES_CHAIN)]);
        batch.add_chain("output", Some(("nat", (OUTPUT, self.priority))));
        for family in FAMILIES {
            // The address of the route to the Service is not always one that an endpoint on another machine can reach.
            let to_cluster = lookups::destination_in(family, cluster(family));
            batch.add_rule("output", &[to_cluster, lookups::set_mark(MASQUERADE)]);
        }
        batch.add_rule("output", &[nft::jump(SERVICES_CHAIN)]);
        batch.add_chain("postrouting", Some(("nat", POSTROUTING)));
        let translated = nft::connection(nft::CT_STATUS, true, nft::DNAT);
        let elsewhere = nft::link(nft::OIFNAME, false, &self.bridge);
        let marked = [lookups::has_mark(MASQUERADE), lookups::clear_mark(MASQUERADE)].concat();
        batch.add_rule("postrouting", &[elsewhere, translated.clone(), marked, nft::masquerade()]);
        if self.pods.bridges_translate {
            // A pod would drop what seems to come from itself.
            for family in FAMILIES {
                let itself = lookups::both_in(family, hairpin(family));
                batch.add_rule("postrouting", &[translated.clone(), itself, nft::masquerade()]);
            }
            return;
        }
        // A pod would answer another one of its bridge directly, from an address that the other did not connect to; and
        // drop what seems to come from itself.
        for (base, prefix) in &self.pods.ranges {
            let from_pods = nft::range(Side::Source, *base, *prefix);
            let to_pods = nft::link(nft::OIFNAME, true, &self.bridge);
            batch.add_rule("postrouting", &[from_pods, to_pods, translated.clone(), nft::masquerade()]);
        }
    }

    /// The pods of the board among the endpoints of a port, if that matters.
    pub(super) fn pods_of(&self, port: &PortPath) -> BTreeSet<IpAddr> {
        if !self.pods.bridges_translate {
            return BTreeSet::new();
        }
        let is_pod = |address: &IpAddr| self.pods.ranges.iter().any(|range| contains(*range, *address));
        let used = POLICIES.into_iter().flat_map(|policy| endpoints(port.targets(policy)));
        used.map(|endpoint| endpoint.ip()).filter(is_pod).collect()
    }
}

/// Whether an address is in a range.
fn contains((base, prefix): (IpAddr, u8), address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    let differing = bits(base) ^ bits(address);
    base.is_ipv4() == address.is_ipv4()
        && differing.checked_shr(128 - u32::from(prefix)).unwrap_or_default() == 0
}

/// The chains of a port, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Chains {
    /// The chain that leads to the endpoints of the policy `Cluster`.
    everywhere: Option<u32>,
    /// The chain that leads to the endpoints of the policy `Local`.
    here: Option<u32>,
    /// The chain of connections to external addresses and node ports, which leads to the other ones.
    pub(super) outside: Option<u32>,
    /// The chains of endpoints that clients stay with, each of which has a set of its clients.
    sticky: Vec<(SocketAddr, u32)>,
    /// The elements of maps from numbers.
    chosen: Vec<Chosen>,
}

impl Chains {
    /// The chain that leads to the endpoints of a policy.
    pub(super) fn of(&self, policy: TrafficPolicy) -> Option<u32> {
        match policy {
            TrafficPolicy::Cluster => self.everywhere,
            TrafficPolicy::Local => self.here,
        }
    }

    /// Writes the rules of a port, in place of `old` ones.
    pub(super) fn write(
        batch: &mut Batch,
        numbers: &mut Numbers,
        abilities: Abilities,
        port: &PortPath,
        old: Option<Chains>,
        keeps_sticky: bool,
        bridge: &str,
    ) -> Chains {
        let Chains { everywhere, here, outside, sticky, chosen } = old.unwrap_or_default();
        numbers.drop_all(chosen);
        for number in [everywhere, here, outside].into_iter().flatten() {
            batch.flush_chain(&chain(number));
        }
        let mut chains = Chains {
            everywhere: numbers.keep(batch, everywhere, port.uses(TrafficPolicy::Cluster)),
            here: numbers.keep(batch, here, port.uses(TrafficPolicy::Local)),
            outside: numbers.keep(batch, outside, port.is_external()),
            ..Chains::default()
        };
        chains.sticky = match port.affinity_seconds {
            Some(seconds) => remember(batch, numbers, port, seconds, sticky, keeps_sticky),
            None => {
                forget(batch, numbers, &sticky);
                Vec::new()
            }
        };
        for policy in POLICIES {
            if let Some(number) = chains.of(policy) {
                chains.spread((batch, numbers), abilities, port, number, port.targets(policy));
            }
        }
        if let (Some(outside), Some(everywhere)) = (chains.outside, chains.everywhere) {
            let (name, everywhere) = (chain(outside), nft::goto(&chain(everywhere)));
            let mark = lookups::set_mark(MASQUERADE);
            match chains.here.filter(|_| port.external_policy == TrafficPolicy::Local) {
                None => batch.add_rule_with_comment(&name, &[mark, everywhere], &port.id),
                Some(here) => {
                    let from_pods = nft::link(nft::IIFNAME, true, bridge);
                    batch.add_rule(&name, &[from_pods, everywhere.clone()]);
                    batch.add_rule(&name, &[nft::from_this_machine(), mark, everywhere]);
                    // Servers see the address of the client: no endpoint is on another machine.
                    batch.add_rule_with_comment(&name, &[nft::goto(&chain(here))], &port.id);
                }
            }
        }
        chains
    }

    /// Adds rules to the chain `number` that send connections to one of the `targets`.
    fn spread(
        &mut self,
        (batch, numbers): (&mut Batch, &mut Numbers),
        abilities: Abilities,
        port: &PortPath,
        number: u32,
        targets: Targets<'_>,
    ) {
        let (name, family, endpoints) = (chain(number), port.family(), endpoints(targets));
        let rule = if targets == Targets::Dropped {
            nft::drop_packet()
        } else if endpoints.is_empty() {
            abilities.refuse(port.protocol == Protocol::Tcp)
        } else if !self.sticky.is_empty() {
            let sticky = |endpoint: &SocketAddr| self.sticky.iter().find(|(known, _)| known == endpoint);
            let chains: Vec<u32> = endpoints.iter().filter_map(sticky).map(|(_, number)| *number).collect();
            for number in &chains {
                let known = lookups::source_in(family, &clients(*number));
                batch.add_rule(&name, &[known, nft::goto(&chain(*number))]);
            }
            let names: Vec<String> = chains.into_iter().map(chain).collect();
            let data: Vec<Data> = names.iter().map(|name| Data::Goto(name)).collect();
            let chosen = numbers.assign(batch, Leads::ToChains, &data);
            let rule = lookups::goto_one(abilities.choice, &chosen.map(), &chosen.numbers);
            self.chosen.push(chosen);
            rule
        } else if let [only] = endpoints {
            nft::dnat(only.ip(), only.port())
        } else {
            let values: Vec<Vec<u8>> = endpoints.iter().map(value).collect();
            let data: Vec<Data> = values.iter().map(|value| Data::Value(value)).collect();
            let chosen = numbers.assign(batch, Leads::To(family), &data);
            let rule = lookups::dnat_to_one(abilities.choice, family, &chosen.map(), &chosen.numbers);
            self.chosen.push(chosen);
            rule
        };
        batch.add_rule_with_comment(&name, &[rule], &port.id);
    }

    /// Empties the chains, which other ports get.
    pub(super) fn remove(self, batch: &mut Batch, numbers: &mut Numbers) {
        numbers.drop_all(self.chosen);
        for number in [self.everywhere, self.here, self.outside].into_iter().flatten() {
            batch.flush_chain(&chain(number));
            numbers.release(number);
        }
        forget(batch, numbers, &self.sticky);
    }
}

/// The chains of the endpoints of a port, each of which remembers its clients for some seconds. Those of `earlier` stay,
/// with their clients, if `keeps`.
fn remember(
    batch: &mut Batch,
    numbers: &mut Numbers,
    port: &PortPath,
    seconds: u32,
    mut earlier: Vec<(SocketAddr, u32)>,
    keeps: bool,
) -> Vec<(SocketAddr, u32)> {
    let used = POLICIES.into_iter().flat_map(|policy| endpoints(port.targets(policy)));
    let mut wanted: Vec<SocketAddr> = used.copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut sticky = earlier.clone();
    sticky.retain(|(endpoint, _)| keeps && wanted.contains(endpoint));
    earlier.retain(|old| !sticky.contains(old));
    forget(batch, numbers, &earlier);
    wanted.retain(|endpoint| !sticky.iter().any(|(known, _)| known == endpoint));
    for endpoint in wanted {
        let number = numbers.take(batch);
        let (name, clients) = (chain(number), clients(number));
        batch.add_dynamic_set(&clients, kind(port.family()), seconds, CLIENTS_MAX);
        batch.add_rule(&name, &[lookups::remember_source(port.family(), &clients)]);
        batch.add_rule(&name, &[nft::dnat(endpoint.ip(), endpoint.port())]);
        sticky.push((endpoint, number));
    }
    sticky
}

/// Empties the chains of endpoints, and deletes the sets of their clients.
fn forget(batch: &mut Batch, numbers: &mut Numbers, sticky: &[(SocketAddr, u32)]) {
    for (_, number) in sticky {
        batch.flush_chain(&chain(*number));
        batch.delete_set(&clients(*number));
        numbers.release(*number);
    }
}

/// The endpoints to which connections go.
fn endpoints(targets: Targets<'_>) -> &[SocketAddr] {
    match targets {
        Targets::To(targets) => &targets[..targets.len().min(ENDPOINTS_MAX)],
        Targets::Refused | Targets::Dropped => &[],
    }
}

/// An address with its port as an element of a map has them.
fn value(endpoint: &SocketAddr) -> Vec<u8> {
    let mut bytes = octets(endpoint.ip());
    bytes.extend(endpoint.port().to_be_bytes());
    bytes.extend([0; 2]);
    bytes
}
