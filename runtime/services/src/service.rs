//! A Service and an EndpointSlice, as far as the data path, the DNS and the variables of containers need them.

mod parse;

use core::net::IpAddr;
use std::collections::BTreeMap;

pub use parse::ServiceError;

/// A Service whose addresses and ports are allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// `spec.type`.
    pub kind: ServiceType,
    /// `spec.clusterIPs`, at most one of each family; empty if it is headless or of the type ExternalName.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.ipFamilies`; empty for ExternalName.
    pub families: Vec<Family>,
    /// Whether `spec.clusterIP` is `None`.
    pub is_headless: bool,
    /// `spec.ports`
    pub ports: Vec<ServicePort>,
    /// `spec.selector`; empty if somebody else makes its endpoints.
    pub selector: BTreeMap<Box<str>, Box<str>>,
    /// The time in seconds for which a client stays on one endpoint (`sessionAffinity: ClientIP`).
    pub affinity_seconds: Option<u32>,
    /// `spec.internalTrafficPolicy`
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`
    pub external_policy: TrafficPolicy,
    /// `spec.publishNotReadyAddresses`
    pub publishes_not_ready: bool,
    /// `spec.externalIPs`, and the addresses of `status.loadBalancer` whose `ipMode` is not `Proxy`.
    pub external_ips: Vec<IpAddr>,
    /// `spec.healthCheckNodePort`
    pub health_check_port: Option<u16>,
    /// `spec.externalName`
    pub external_name: Option<Box<str>>,
}

/// `spec.type` of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// `ClusterIP`
    #[default]
    ClusterIp,
    /// `NodePort`
    NodePort,
    /// `LoadBalancer`
    LoadBalancer,
    /// `ExternalName`
    ExternalName,
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// All endpoints.
    #[default]
    Cluster,
    /// Those on the node of the connection.
    Local,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty if it is the only one.
    pub name: Box<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// `port`
    pub port: u16,
    /// `targetPort`
    pub target: Target,
    /// `nodePort`, if there is one.
    pub node_port: Option<u16>,
    /// `appProtocol`
    pub app_protocol: Option<Box<str>>,
}

/// A transport protocol, with its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Protocol {
    /// `TCP`
    #[default]
    Tcp = 6,
    /// `UDP`
    Udp = 17,
    /// `SCTP`
    Sctp = 132,
}

/// `targetPort` of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A number.
    Number(u16),
    /// The name of a port of the pod's containers.
    Name(Box<str>),
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// The Service of its label `kubernetes.io/service-name`.
    pub service: Box<str>,
    /// `addressType`; `None` is FQDN, which no proxy uses.
    pub family: Option<Family>,
    /// `ports`
    pub ports: Vec<EndpointPort>,
    /// `endpoints`
    pub endpoints: Vec<Endpoint>,
}

impl Protocol {
    /// Kubernetes' name of the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }

    /// The protocol of this name, as Kubernetes writes it.
    pub fn named(name: &str) -> Option<Protocol> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|protocol| protocol.as_str() == name)
    }
}

impl Family {
    /// The family of an address.
    pub const fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Kubernetes' name of the family, as in `ipFamilies` and `addressType`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// The family of this name.
    pub fn named(name: &str) -> Option<Family> {
        [Family::V4, Family::V6].into_iter().find(|family| family.as_str() == name)
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// `IPv4`
    V4,
    /// `IPv6`
    V6,
}

/// A port of all endpoints of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    /// The name of the Service's port.
    pub name: Box<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The number; `None` means all ports, which no proxy uses.
    pub port: Option<u16>,
    /// `appProtocol`
    pub app_protocol: Option<Box<str>>,
}

/// An endpoint of a slice: nearly always a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The first is the one that is used; all are equal.
    pub addresses: Vec<IpAddr>,
    /// Conditions, as they are with their defaults.
    pub conditions: Conditions,
    /// `hostname`
    pub hostname: Option<Box<str>>,
    /// `nodeName`
    pub node: Option<Box<str>>,
    /// The pod of `targetRef`: its name and its UID.
    pub pod: Option<(Box<str>, Box<str>)>,
}

/// The conditions of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// New connections may go there: it serves and does not terminate, or the Service publishes what is not ready.
    pub ready: bool,
    /// The pod is ready, whether it terminates or not.
    pub serving: bool,
    /// The pod is being deleted.
    pub terminating: bool,
}

#[cfg(test)]
mod tests;
