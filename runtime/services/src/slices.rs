//! The EndpointSlices of Services with a selector, as the controllers make them (`pkg/controller/endpointslice`,
//! `k8s.io/endpointslice`): one slice for each family and each set of port numbers, and for each
//! [`MAX_ENDPOINTS`] endpoints.

use core::net::IpAddr;
use std::collections::BTreeMap;

use crate::service::{
    Conditions, Endpoint, EndpointPort, EndpointSlice, Family, Protocol, Service, ServicePort, Target,
};

/// Upper bound of the endpoints of a slice (`--max-endpoints-per-slice`).
const MAX_ENDPOINTS: usize = 100;

/// The longest name to which a suffix is added (`maxGeneratedNameLength`).
const MAX_GENERATED_NAME: usize = 58;

/// A pod, as far as endpoints need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEndpoint {
    /// `metadata.namespace`
    pub namespace: Box<str>,
    /// `metadata.name`
    pub name: Box<str>,
    /// `metadata.uid`
    pub uid: Box<str>,
    /// `metadata.labels`
    pub labels: BTreeMap<Box<str>, Box<str>>,
    /// `status.podIPs`
    pub addresses: Vec<IpAddr>,
    /// Whether the condition `Ready` is true.
    pub is_ready: bool,
    /// Whether the pod is being deleted.
    pub is_terminating: bool,
    /// Whether the phase is `Succeeded` or `Failed`: such a pod is no endpoint.
    pub has_ended: bool,
    /// `spec.hostname`
    pub hostname: Option<Box<str>>,
    /// `spec.subdomain`
    pub subdomain: Option<Box<str>>,
    /// `spec.nodeName`
    pub node: Box<str>,
    /// The named ports of containers and of sidecars.
    pub ports: Vec<(Box<str>, Protocol, u16)>,
}

/// The slices of a Service with a selector, in a stable order; none without a selector. Each family has at least one
/// slice, which is empty without pods.
pub fn slices_of(service: &Service, pods: &[PodEndpoint]) -> Vec<EndpointSlice> {
    if service.selector.is_empty() {
        return Vec::new();
    }
    let mut selected: Vec<&PodEndpoint> =
        pods.iter().filter(|pod| pod.namespace == service.namespace && is_selected(service, pod)).collect();
    selected.sort_by(|one, other| one.name.cmp(&other.name));
    let mut slices = Vec::new();
    for family in &service.families {
        // The endpoints by the number that each port of the Service has on them, if they have the port.
        let mut groups: BTreeMap<Vec<Option<u16>>, Vec<Endpoint>> = BTreeMap::new();
        for pod in &selected {
            if let Some(endpoint) = endpoint(service, pod, *family) {
                let numbers = service.ports.iter().map(|port| target_of(port, pod)).collect();
                groups.entry(numbers).or_default().push(endpoint);
            }
        }
        let mut chunks: Vec<(Vec<EndpointPort>, &[Endpoint])> = Vec::new();
        for (numbers, endpoints) in &groups {
            chunks.extend(endpoints.chunks(MAX_ENDPOINTS).map(|chunk| (ports_of(service, numbers), chunk)));
        }
        if chunks.is_empty() {
            chunks.push((Vec::new(), &[]));
        }
        for (place, (ports, endpoints)) in chunks.into_iter().enumerate() {
            slices.push(EndpointSlice {
                namespace: service.namespace.clone(),
                name: slice_name(service, *family, place),
                service: service.name.clone(),
                family: Some(*family),
                ports,
                endpoints: endpoints.to_vec(),
            });
        }
    }
    slices
}

fn is_selected(service: &Service, pod: &PodEndpoint) -> bool {
    service.selector.iter().all(|(key, value)| pod.labels.get(key) == Some(value))
}

/// `podToEndpoint`, if `ShouldPodBeInEndpoints`.
fn endpoint(service: &Service, pod: &PodEndpoint, family: Family) -> Option<Endpoint> {
    let addresses: Vec<IpAddr> =
        pod.addresses.iter().copied().filter(|address| Family::of(*address) == family).collect();
    if pod.has_ended || addresses.is_empty() {
        return None;
    }
    let (serving, terminating) = (pod.is_ready, pod.is_terminating);
    let has_hostname = pod.subdomain.as_ref() == Some(&service.name);
    Some(Endpoint {
        addresses,
        conditions: Conditions {
            ready: service.publishes_not_ready || (serving && !terminating),
            serving,
            terminating,
        },
        hostname: pod.hostname.clone().filter(|hostname| has_hostname && !hostname.is_empty()),
        node: Some(pod.node.clone()).filter(|node| !node.is_empty()),
        pod: Some((pod.name.clone(), pod.uid.clone())),
    })
}

/// `getEndpointPorts`: the ports of the Service that pods with these numbers have.
fn ports_of(service: &Service, numbers: &[Option<u16>]) -> Vec<EndpointPort> {
    let ports = service.ports.iter().zip(numbers).filter(|(_, number)| number.is_some());
    let ports = ports.map(|(port, number)| EndpointPort {
        name: port.name.clone(),
        protocol: port.protocol,
        port: *number,
        app_protocol: port.app_protocol.clone(),
    });
    ports.collect()
}

/// `FindPort`
fn target_of(port: &ServicePort, pod: &PodEndpoint) -> Option<u16> {
    match &port.target {
        Target::Number(number) => Some(*number),
        Target::Name(wanted) => {
            let mut ports = pod.ports.iter();
            let found = ports.find(|(name, protocol, _)| name == wanted && *protocol == port.protocol);
            found.map(|(.., number)| *number)
        }
    }
}

/// `NAME-xxxxx`: a slice keeps its name as long as its Service has as many slices, also for the next agent.
fn slice_name(service: &Service, family: Family, place: usize) -> Box<str> {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let place = place.to_string();
    let key = [&*service.namespace, &*service.name, family.as_str(), &*place].join("/");
    // FNV-1a, of 64 bits.
    let mut hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut suffix = String::new();
    for _ in 0..5 {
        let letter = (hash % ALPHABET.len() as u64) as usize;
        suffix.push(char::from(ALPHABET[letter]));
        hash /= ALPHABET.len() as u64;
    }
    let end = service.name.floor_char_boundary(MAX_GENERATED_NAME - 1);
    format!("{}-{suffix}", &service.name[..end.min(service.name.len())]).into()
}

#[cfg(test)]
mod tests;
