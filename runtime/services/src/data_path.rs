//! Where the connections to Services go: what the kernel's tables must hold, decided as kube-proxy decides it
//! (`pkg/proxy/topology.go`, `pkg/proxy/nftables/proxier.go`).

use core::net::{IpAddr, SocketAddr};

use crate::catalog::{Catalog, Entry};
use crate::service::{
    Conditions, EndpointPort, EndpointSlice, Family, Protocol, Service, ServicePort, TrafficPolicy,
};

/// Where connections go to which the board translates addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPath {
    /// The ports of all Services, ordered by their [`PortPath::id`], each of which is there once.
    pub ports: Vec<PortPath>,
    /// The addresses at which node ports are served; empty for all of the board's.
    pub node_addresses: Vec<IpAddr>,
}

/// One port of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPath {
    /// `NAMESPACE/NAME:PORT/PROTOCOL`, which identifies it for as long as it exists.
    pub id: Box<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The cluster's addresses of the Service with the port, at most one of each family.
    pub cluster: Vec<SocketAddr>,
    /// External addresses, with the port.
    pub external: Vec<SocketAddr>,
    /// The port of the board's own addresses.
    pub node_port: Option<u16>,
    /// The time in seconds for which a client stays on one endpoint.
    pub affinity_seconds: Option<u32>,
    /// Where connections to [`Self::cluster`] go.
    pub internal: Targets,
    /// Where connections to [`Self::external`] and [`Self::node_port`] go that come from outside of the board. Those
    /// from the board and its pods go where [`Self::internal`] goes if the policy is `Local` (kube-proxy
    /// short-circuits them).
    pub outside: Targets,
    /// Whether servers see the client's address also if it is outside of the board (`externalTrafficPolicy: Local`).
    pub keeps_outside_address: bool,
}

/// Where connections go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// To one of these, at random; none is empty, each is of one of the families of the Service.
    To(Vec<SocketAddr>),
    /// There is no endpoint at all: they are refused.
    Refused,
    /// There is an endpoint, but none that this board may use: they are dropped (kube-proxy does so for `Local`).
    Dropped,
}

/// An endpoint of one port and one family.
#[derive(Clone, Copy)]
struct Candidate {
    address: SocketAddr,
    conditions: Conditions,
    is_local: bool,
}

impl Candidate {
    fn is_serving_while_terminating(self) -> bool {
        self.conditions.serving && self.conditions.terminating
    }
}

impl DataPath {
    /// Where the connections to all Services go on the node of this name, whose own addresses are `board`.
    pub fn of(catalog: &Catalog, node: &str, board: &[IpAddr]) -> DataPath {
        let mut ports: Vec<PortPath> = Vec::new();
        for Entry { service, slices } in
            catalog.services.values().filter(|entry| !entry.service.cluster_ips.is_empty())
        {
            ports.extend(service.ports.iter().map(|port| port_path(service, port, slices, node)));
        }
        ports.sort_by(|one, other| one.id.cmp(&other.id));
        ports.dedup_by(|one, other| one.id == other.id);
        let mut node_addresses = board.to_vec();
        node_addresses.sort_unstable();
        node_addresses.dedup();
        DataPath { ports, node_addresses }
    }
}

fn port_path(service: &Service, port: &ServicePort, slices: &[EndpointSlice], node: &str) -> PortPath {
    let with_port = |addresses: &[IpAddr]| -> Vec<SocketAddr> {
        addresses.iter().map(|address| SocketAddr::new(*address, port.port)).collect()
    };
    let families = service.cluster_ips.iter().copied().map(Family::of);
    let candidates: Vec<Vec<Candidate>> =
        families.map(|family| candidates(port, slices, family, node)).collect();
    let targets = |policy| together(candidates.iter().map(|candidates| targets(candidates, policy)));
    PortPath {
        id: format!("{}/{}:{}/{}", service.namespace, service.name, port.port, port.protocol.as_str()).into(),
        protocol: port.protocol,
        cluster: with_port(&service.cluster_ips),
        external: with_port(&service.external_ips),
        node_port: port.node_port,
        affinity_seconds: service.affinity_seconds,
        internal: targets(service.internal_policy),
        outside: targets(service.external_policy),
        keeps_outside_address: service.external_policy == TrafficPolicy::Local,
    }
}

/// The endpoints of a port in one family, each address once, in the order of addresses.
fn candidates(port: &ServicePort, slices: &[EndpointSlice], family: Family, node: &str) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == Some(family)) {
        let of_port = |one: &&EndpointPort| one.name == port.name && one.protocol == port.protocol;
        let numbers = slice.ports.iter().filter(of_port).filter_map(|one| one.port);
        for number in numbers {
            found.extend(slice.endpoints.iter().filter_map(|endpoint| {
                Some(Candidate {
                    address: SocketAddr::new(*endpoint.addresses.first()?, number),
                    conditions: endpoint.conditions,
                    is_local: endpoint.node.as_deref() == Some(node),
                })
            }));
        }
    }
    // Of an address that is in two slices, as while an endpoint moves between them, the usable one counts.
    let rank = |one: &Candidate| (one.address, !one.conditions.ready, !one.conditions.serving, !one.is_local);
    found.sort_by_key(rank);
    found.dedup_by_key(|one| one.address);
    found
}

/// The usable endpoints under a policy (`CategorizeEndpoints`): the ready ones; if there are none, those that still
/// serve while they terminate.
fn targets(candidates: &[Candidate], policy: TrafficPolicy) -> Targets {
    let usable = |is_usable: &dyn Fn(&Candidate) -> bool| -> Vec<SocketAddr> {
        candidates.iter().filter(|one| is_usable(one)).map(|one| one.address).collect()
    };
    let is_here = |one: &Candidate| policy == TrafficPolicy::Cluster || one.is_local;
    let ready = usable(&|one| is_here(one) && one.conditions.ready);
    if !ready.is_empty() {
        return Targets::To(ready);
    }
    let terminating = usable(&|one| is_here(one) && one.is_serving_while_terminating());
    if !terminating.is_empty() {
        return Targets::To(terminating);
    }
    let exists = candidates.iter().any(|one| one.conditions.ready || one.is_serving_while_terminating());
    if exists { Targets::Dropped } else { Targets::Refused }
}

/// The targets of all families of a port.
fn together(families: impl Iterator<Item = Targets>) -> Targets {
    families.fold(Targets::Refused, |all, one| match (all, one) {
        (Targets::To(mut all), Targets::To(one)) => {
            all.extend(one);
            Targets::To(all)
        }
        (Targets::To(all), _) | (_, Targets::To(all)) => Targets::To(all),
        (Targets::Refused, Targets::Refused) => Targets::Refused,
        (Targets::Dropped, _) | (_, Targets::Dropped) => Targets::Dropped,
    })
}

#[cfg(test)]
mod tests;
