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
}

/// One port of one Service in one family of addresses: kube-proxy has a proxier for each family, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPath {
    /// `NAMESPACE/NAME:PORT/PROTOCOL/FAMILY`, which identifies it for as long as it exists.
    pub id: Box<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The cluster's address of the Service with the port.
    pub cluster: SocketAddr,
    /// External addresses of the family, with the port.
    pub external: Vec<SocketAddr>,
    /// The port of the board's own addresses.
    pub node_port: Option<u16>,
    /// The time in seconds for which a client stays on one endpoint.
    pub affinity_seconds: Option<u32>,
    /// `internalTrafficPolicy`, by which connections to [`Self::cluster`] go.
    pub internal_policy: TrafficPolicy,
    /// `externalTrafficPolicy`, by which connections to [`Self::external`] and [`Self::node_port`] go that come from outside
    /// of the board. Those from the board and its pods go as with `Cluster`: to them, such an address is a load balancer
    /// outside of the cluster (kube-proxy short-circuits them). `Cluster` without such addresses.
    pub external_policy: TrafficPolicy,
    /// Where connections go under the policy `Cluster`, if any go so.
    pub everywhere: Vec<SocketAddr>,
    /// Where connections go under the policy `Local`, if any go so.
    pub here: Vec<SocketAddr>,
    /// Whether any endpoint of the Service is usable, on whatever node.
    pub has_usable: bool,
    /// The endpoints on which a UDP sender that goes on may stay: all that serve, whatever the policies, since a change of
    /// the Service must not affect connections (`pkg/proxy/conntrack`); if none serves, all that there are. Empty for
    /// other protocols, and without endpoints.
    pub may_stay: Vec<SocketAddr>,
}

/// Where connections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets<'a> {
    /// To one of these, at random; there is at least one.
    To(&'a [SocketAddr]),
    /// There is no usable endpoint at all: they are refused.
    Refused,
    /// There is a usable endpoint, but none that this board may use: they are dropped (kube-proxy does so for `Local`).
    Dropped,
}

impl PortPath {
    /// The family of its addresses.
    pub fn family(&self) -> Family {
        Family::of(self.cluster.ip())
    }

    /// Whether it has other addresses than that of the cluster (`ExternallyAccessible`).
    pub fn is_external(&self) -> bool {
        self.node_port.is_some() || !self.external.is_empty()
    }

    /// Whether connections go by this policy (`UsesClusterEndpoints`, `UsesLocalEndpoints`).
    pub fn uses(&self, policy: TrafficPolicy) -> bool {
        let is_short_circuited = policy == TrafficPolicy::Cluster && self.is_external();
        is_short_circuited
            || policy == self.internal_policy
            || policy == self.external_policy && self.is_external()
    }

    /// Where connections go by a policy that [is used](Self::uses).
    pub fn targets(&self, policy: TrafficPolicy) -> Targets<'_> {
        let endpoints = match policy {
            TrafficPolicy::Cluster => &self.everywhere,
            TrafficPolicy::Local => &self.here,
        };
        match (endpoints.is_empty(), self.has_usable) {
            (false, _) => Targets::To(endpoints),
            (true, true) => Targets::Dropped,
            (true, false) => Targets::Refused,
        }
    }
}

/// An endpoint of one port and one family.
#[derive(Clone, Copy)]
struct Candidate {
    address: SocketAddr,
    conditions: Conditions,
    is_local: bool,
}

impl Candidate {
    fn is_serving_while_terminating(&self) -> bool {
        self.conditions.serving && self.conditions.terminating
    }

    fn is_usable(&self) -> bool {
        self.conditions.ready || self.is_serving_while_terminating()
    }
}

impl DataPath {
    /// Where the connections to all Services go on the node of this name.
    pub fn of(catalog: &Catalog, node: &str) -> DataPath {
        let mut ports: Vec<PortPath> = Vec::new();
        for Entry { service, slices } in catalog.services.values() {
            for address in &service.cluster_ips {
                ports.extend(
                    service.ports.iter().map(|port| port_path(service, *address, port, slices, node)),
                );
            }
        }
        ports.sort_by(|one, other| one.id.cmp(&other.id));
        ports.dedup_by(|one, other| one.id == other.id);
        DataPath { ports }
    }
}

fn port_path(
    service: &Service,
    address: IpAddr,
    port: &ServicePort,
    slices: &[EndpointSlice],
    node: &str,
) -> PortPath {
    let family = Family::of(address);
    let with_port = |address: &IpAddr| SocketAddr::new(*address, port.port);
    let external = service.external_ips.iter().filter(|address| Family::of(**address) == family);
    let candidates = candidates(port, slices, family, node);
    let mut path = PortPath {
        id: format!(
            "{}/{}:{}/{}/{}",
            service.namespace,
            service.name,
            port.port,
            port.protocol.as_str(),
            family.as_str()
        )
        .into(),
        protocol: port.protocol,
        cluster: with_port(&address),
        external: external.map(with_port).collect(),
        node_port: port.node_port,
        affinity_seconds: service.affinity_seconds,
        internal_policy: service.internal_policy,
        external_policy: TrafficPolicy::Cluster,
        everywhere: Vec::new(),
        here: Vec::new(),
        has_usable: candidates.iter().any(Candidate::is_usable),
        may_stay: Vec::new(),
    };
    if path.is_external() {
        path.external_policy = service.external_policy;
    }
    if path.uses(TrafficPolicy::Cluster) {
        path.everywhere = usable(&candidates, |_| true);
    }
    if path.uses(TrafficPolicy::Local) {
        path.here = usable(&candidates, |one| one.is_local);
    }
    if port.protocol == Protocol::Udp {
        // An endpoint of a Service that publishes what is not ready is used, although it does not serve.
        let serves = |one: &Candidate| one.conditions.serving || one.conditions.ready;
        path.may_stay = addresses(&candidates, serves);
        if path.may_stay.is_empty() {
            path.may_stay = addresses(&candidates, |_| true);
        }
    }
    path
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

/// The usable endpoints among some (`CategorizeEndpoints`): the ready ones; if there are none, those that still serve while
/// they terminate.
fn usable(candidates: &[Candidate], is_among: impl Fn(&Candidate) -> bool) -> Vec<SocketAddr> {
    let ready = addresses(candidates, |one| is_among(one) && one.conditions.ready);
    if !ready.is_empty() {
        return ready;
    }
    addresses(candidates, |one| is_among(one) && one.is_serving_while_terminating())
}

fn addresses(candidates: &[Candidate], is_among: impl Fn(&Candidate) -> bool) -> Vec<SocketAddr> {
    candidates.iter().filter(|one| is_among(one)).map(|one| one.address).collect()
}

#[cfg(test)]
mod tests;
