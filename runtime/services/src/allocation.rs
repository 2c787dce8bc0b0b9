//! The addresses and node ports of Services: which are free, which are held, and what is saved of that. An address
//! that was released is not allocated again while others are free: the search begins behind the latest one.
//!
//! A Service is completed in two steps: [`adopt()`] gives an object the allocated fields that its writer left out, and
//! clears those that its type no longer has; the caller validates the object; [`Allocations::complete`] allocates what
//! is missing, and releases what the Service no longer has (`pkg/registry/core/service/storage/alloc.go`).

mod adopt;
mod family;
mod pool;
mod saved;

use core::net::IpAddr;
use core::ops::RangeInclusive;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::service::{Family, Protocol};
use pool::{AddressRange, PortRange};

pub use adopt::adopt;
pub use saved::SavedError;

/// Upper bound of the Services of one board that have allocated fields.
const MAX_SERVICES: usize = 1000;

/// The node ports of a cluster, unless others are configured (`--service-node-port-range`).
pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// Namespace and name of a Service.
pub type ServiceName = (Box<str>, Box<str>);

/// A port of the board that no Service may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReservedPort {
    /// The number of the port.
    pub port: u16,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Who has it, for messages: `the hostPort of pod default/web`, `a process of the board`.
    pub holder: Box<str>,
}

/// Why a Service cannot have what it needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// A field has a value that cannot be allocated.
    #[error("{field}: Invalid value: {value}: {detail}")]
    Invalid {
        /// The path of the field.
        field: String,
        /// The value as JSON.
        value: String,
        /// The reason.
        detail: String,
    },
    /// All addresses or node ports are held.
    #[error("failed to allocate a {0}: range is full")]
    Full(&'static str),
    /// There are [`MAX_SERVICES`].
    #[error("exceeded quota: a board can have at most {MAX_SERVICES} Services")]
    TooMany,
    /// The agent serves no Services.
    #[error("this agent was started without Services")]
    NotServed,
}

/// All allocations of a board.
#[derive(Clone, Debug, Default)]
pub struct Allocations {
    /// The ranges of addresses, the default family first.
    ranges: Vec<AddressRange>,
    node_ports: Option<PortRange>,
    /// The ports that no Service may have.
    reserved: Vec<ReservedPort>,
    /// The latest allocated address of each family, and the latest node port.
    latest: Latest,
    /// The allocated fields of Services, as they are in `spec`.
    held: BTreeMap<ServiceName, Value>,
    is_unsaved: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Latest {
    addresses: BTreeMap<Family, IpAddr>,
    node_port: Option<u16>,
}

impl Allocations {
    /// Serves these ranges of addresses, at most one of each family, and these node ports.
    pub fn serve(&mut self, ranges: &[(IpAddr, u8)], node_ports: RangeInclusive<u16>) {
        self.ranges.clear();
        for (base, prefix) in ranges {
            let range = AddressRange::new(*base, *prefix);
            if self.range(range.family()).is_none() {
                self.ranges.push(range);
            }
        }
        self.node_ports = Some(PortRange(node_ports));
    }

    /// Whether Services are served.
    pub fn is_served(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Sets the ports that no Service may have. Returns whether they have changed.
    pub fn reserve(&mut self, mut ports: Vec<ReservedPort>) -> bool {
        ports.sort();
        let has_changed = self.reserved != ports;
        self.reserved = ports;
        has_changed
    }

    /// Who has a port of the board.
    pub fn holder(&self, port: u16, protocol: Protocol) -> Option<&str> {
        let mut reserved = self.reserved.iter();
        let found = reserved.find(|one| one.port == port && one.protocol == protocol);
        found.map(|one| &*one.holder)
    }

    /// The Service that holds a node port.
    pub fn node_port_holder(&self, port: u16) -> Option<&ServiceName> {
        self.held.iter().find(|(_, spec)| holds_port(spec, port)).map(|(name, _)| name)
    }

    /// The Services that hold something.
    pub fn names(&self) -> impl Iterator<Item = &ServiceName> {
        self.held.keys()
    }

    /// The allocated fields of a Service, as they are in `spec`.
    pub fn held(&self, name: &ServiceName) -> Option<&Value> {
        self.held.get(name)
    }

    /// Removes the addresses from a Service as it was saved, if the range of one is no longer served, so that it gets
    /// others.
    pub fn remove_strange_addresses(&self, object: &mut Value) {
        let is_strange = |ip: &Value| {
            let address: Option<IpAddr> = ip.as_str().and_then(|ip| ip.parse().ok());
            address.is_some_and(|address| !self.ranges.iter().any(|range| range.contains(address)))
        };
        let spec = &mut object["spec"];
        if list(spec, "clusterIPs").iter().any(is_strange) {
            for field in ["clusterIP", "clusterIPs", "ipFamilies"] {
                remove(spec, field);
            }
        }
    }

    /// Completes the allocated fields of a valid Service. `old` is the existing Service or [`Self::held`]. Nothing
    /// changes if there is an error.
    ///
    /// # Errors
    /// A requested address or port is held or out of range, or none is free.
    pub fn complete(
        &mut self,
        name: &ServiceName,
        old: Option<&Value>,
        object: &mut Value,
    ) -> Result<(), AllocationError> {
        let before = self.held.remove(name);
        let latest = self.latest.clone();
        let mut spec = object["spec"].clone();
        match self.allocate(old, before.as_ref(), &mut spec) {
            Ok(held) => {
                self.is_unsaved |= before != held;
                if let Some(held) = held {
                    self.held.insert(name.clone(), held);
                }
                object["spec"] = spec;
                Ok(())
            }
            Err(error) => {
                self.latest = latest;
                if let Some(before) = before {
                    self.held.insert(name.clone(), before);
                }
                Err(error)
            }
        }
    }

    /// Completes `spec`, whose Service held `before`, which nobody holds now. Returns what it is to hold.
    fn allocate(
        &mut self,
        old: Option<&Value>,
        before: Option<&Value>,
        spec: &mut Value,
    ) -> Result<Option<Value>, AllocationError> {
        if !self.is_served() && spec["type"] != "ExternalName" {
            return Err(AllocationError::NotServed);
        }
        family::complete(&self.ranges, old, spec)?;
        if spec["type"] != "ExternalName" && spec["clusterIP"] != "None" {
            self.allocate_addresses(before, spec)?;
        }
        if matches!(text(spec, "type"), "NodePort" | "LoadBalancer") {
            self.allocate_node_ports(before, spec)?;
        }
        if needs_health_check(spec) {
            self.allocate_health_check(before, spec)?;
        }
        let held = allocated(spec);
        if held.is_some() && before.is_none() && self.held.len() >= MAX_SERVICES {
            return Err(AllocationError::TooMany);
        }
        Ok(held)
    }

    /// Has a Service hold what `spec` has, after a change of it could not be written; without `spec`, nothing.
    pub fn hold(&mut self, name: &ServiceName, spec: Option<&Value>) {
        let held = spec.and_then(allocated);
        self.is_unsaved |= self.held.get(name) != held.as_ref();
        match held {
            Some(held) => self.held.insert(name.clone(), held),
            None => self.held.remove(name),
        };
    }

    /// Releases what these Services do not hold any more.
    pub fn retain(&mut self, exists: impl Fn(&ServiceName) -> bool) {
        let count = self.held.len();
        self.held.retain(|name, _| exists(name));
        self.is_unsaved |= self.held.len() != count;
    }

    fn range(&self, family: Family) -> Option<&AddressRange> {
        self.ranges.iter().find(|range| range.family() == family)
    }

    fn allocate_addresses(
        &mut self,
        before: Option<&Value>,
        spec: &mut Value,
    ) -> Result<(), AllocationError> {
        let own: Vec<IpAddr> = before.into_iter().flat_map(addresses).collect();
        let taken: BTreeSet<IpAddr> = if list(spec, "clusterIPs").is_empty()
            || list(spec, "clusterIPs").len() < list(spec, "ipFamilies").len()
            || addresses(spec).any(|address| !own.contains(&address))
        {
            self.held.values().flat_map(addresses).collect()
        } else {
            // It keeps what it has.
            BTreeSet::new()
        };
        let families: Vec<Family> =
            list(spec, "ipFamilies").iter().filter_map(|one| Family::named(one.as_str()?)).collect();
        let mut ips = list(spec, "clusterIPs").to_vec();
        for (place, family) in families.into_iter().enumerate() {
            let requested = ips.get(place).and_then(Value::as_str).filter(|ip| !ip.is_empty());
            let address = match requested {
                Some(requested) => {
                    let refuse = |why: &str| {
                        let value = spec["clusterIPs"].to_string();
                        let detail = format!("failed to allocate IP {requested}: {why}");
                        AllocationError::Invalid { field: "spec.clusterIPs".to_owned(), value, detail }
                    };
                    let address: IpAddr =
                        requested.parse().map_err(|_| refuse("the provided IP is not valid"))?;
                    match self.range(family) {
                        Some(range) if range.contains(address) => {}
                        Some(range) => {
                            return Err(refuse(&format!(
                                "the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
                            )));
                        }
                        None => {
                            return Err(refuse(&format!(
                                "{} is not configured on this cluster",
                                family.as_str()
                            )));
                        }
                    }
                    if taken.contains(&address) {
                        return Err(refuse("provided IP is already allocated"));
                    }
                    address
                }
                None => {
                    let latest = self.latest.addresses.get(&family).copied();
                    let range = self.range(family).ok_or(AllocationError::Full("serviceIP"))?;
                    let next = range.next(latest, |address| taken.contains(&address));
                    let next = next.ok_or(AllocationError::Full("serviceIP"))?;
                    self.latest.addresses.insert(family, next);
                    next
                }
            };
            if place < ips.len() {
                ips[place] = address.to_string().into();
            } else {
                ips.push(address.to_string().into());
            }
        }
        spec["clusterIP"] = ips.first().cloned().unwrap_or_default();
        spec["clusterIPs"] = ips.into();
        Ok(())
    }

    /// `initNodePorts`: ports of a Service with one number, such as TCP and UDP of a name server, share a node port.
    fn allocate_node_ports(
        &mut self,
        before: Option<&Value>,
        spec: &mut Value,
    ) -> Result<(), AllocationError> {
        let allocates = text(spec, "type") == "NodePort" || spec["allocateLoadBalancerNodePorts"] != false;
        let taken: BTreeSet<u16> = self.held.values().flat_map(node_ports).collect();
        let ports = list(spec, "ports").to_vec();
        let mut own: BTreeSet<u16> = ports.iter().filter_map(node_port).collect();
        let mut by_port: BTreeMap<u64, u16> = BTreeMap::new();
        // The node ports that the Service requests, with their protocols, and the first of each of its ports.
        let (mut requested, mut requested_for) = (BTreeSet::new(), BTreeMap::new());
        for (port, chosen) in ports.iter().filter_map(|port| Some((port, node_port(port)?))) {
            requested.insert((chosen, protocol(port)));
            requested_for.entry(port["port"].as_u64().unwrap_or_default()).or_insert(chosen);
        }
        for (index, port) in ports.iter().enumerate().filter(|(_, port)| port.is_object()) {
            let number = port["port"].as_u64().unwrap_or_default();
            let protocol = protocol(port);
            if let Some(requested) = node_port(port) {
                let field = format!("spec.ports[{index}].nodePort");
                if !before.is_some_and(|before| holds_port(before, requested)) {
                    self.check_requested(requested, protocol, &taken, field)?;
                }
                by_port.entry(number).or_insert(requested);
                continue;
            }
            if !allocates {
                continue;
            }
            let same = requested_for.get(&number).or_else(|| by_port.get(&number)).copied();
            let same = same.filter(|chosen| !requested.contains(&(*chosen, protocol)));
            let chosen = match same {
                Some(chosen) => chosen,
                None => self.next_node_port(|port| taken.contains(&port) || own.contains(&port))?,
            };
            own.insert(chosen);
            by_port.insert(number, chosen);
            spec["ports"][index]["nodePort"] = chosen.into();
        }
        Ok(())
    }

    fn allocate_health_check(
        &mut self,
        before: Option<&Value>,
        spec: &mut Value,
    ) -> Result<(), AllocationError> {
        let taken: BTreeSet<u16> = self
            .held
            .values()
            .flat_map(node_ports)
            .chain(list(spec, "ports").iter().filter_map(node_port))
            .collect();
        match spec["healthCheckNodePort"]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
        {
            // It keeps what it has.
            Some(requested) if before.is_some_and(|before| before["healthCheckNodePort"] == requested) => {
                Ok(())
            }
            Some(requested) => {
                let field = "spec.healthCheckNodePort".to_owned();
                self.check_requested(requested, Protocol::Tcp, &taken, field)
            }
            None => {
                let next = self.next_node_port(|port| taken.contains(&port))?;
                spec["healthCheckNodePort"] = next.into();
                Ok(())
            }
        }
    }

    fn check_requested(
        &self,
        port: u16,
        protocol: Protocol,
        taken: &BTreeSet<u16>,
        field: String,
    ) -> Result<(), AllocationError> {
        let range = self.node_ports.as_ref().ok_or(AllocationError::NotServed)?;
        let detail = if !range.0.contains(&port) {
            format!("provided port is not in the valid range. The range of valid ports is {range}")
        } else if taken.contains(&port) {
            let holder = self
                .node_port_holder(port)
                .map(|(namespace, name)| format!(": Service {namespace}/{name} has it"));
            format!("provided port is already allocated{}", holder.unwrap_or_default())
        } else if let Some(holder) = self.holder(port, protocol) {
            format!("provided port is already allocated: {holder} has it")
        } else {
            return Ok(());
        };
        Err(AllocationError::Invalid { field, value: port.to_string(), detail })
    }

    fn next_node_port(&mut self, is_taken: impl Fn(u16) -> bool) -> Result<u16, AllocationError> {
        let is_reserved = |port: u16| self.reserved.iter().any(|one| one.port == port);
        let range = self.node_ports.as_ref().ok_or(AllocationError::NotServed)?;
        let next = range.next(self.latest.node_port, |port| is_taken(port) || is_reserved(port));
        let next = next.ok_or(AllocationError::Full("nodePort"))?;
        self.latest.node_port = Some(next);
        Ok(next)
    }
}

/// The fields of `spec` that are allocated, with those that they depend on; `None` if nothing is allocated.
fn allocated(spec: &Value) -> Option<Value> {
    let has_address = list(spec, "clusterIPs").iter().any(|ip| *ip != "None");
    if !has_address && node_ports(spec).next().is_none() {
        return None;
    }
    let fields = [
        "type",
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "ipFamilyPolicy",
        "healthCheckNodePort",
        "externalTrafficPolicy",
    ];
    let kept = fields.iter().filter_map(|field| Some(((*field).to_owned(), spec.get(field)?.clone())));
    let mut held: Map<String, Value> = kept.collect();
    let ports = list(spec, "ports").iter().filter(|port| node_port(port).is_some()).map(|port| {
        let fields = ["name", "nodePort"]
            .iter()
            .filter_map(|field| Some(((*field).to_owned(), port.get(field)?.clone())));
        Value::Object(fields.collect())
    });
    let ports: Vec<Value> = ports.collect();
    if !ports.is_empty() {
        held.insert("ports".to_owned(), ports.into());
    }
    Some(Value::Object(held))
}

/// `NeedsHealthCheck`
pub(crate) fn needs_health_check(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

fn addresses(spec: &Value) -> impl Iterator<Item = IpAddr> {
    list(spec, "clusterIPs").iter().filter_map(|ip| ip.as_str()?.parse().ok())
}

/// The node ports of a Service, with that of its health check.
fn node_ports(spec: &Value) -> impl Iterator<Item = u16> {
    let health = spec["healthCheckNodePort"].as_u64().and_then(|port| u16::try_from(port).ok());
    list(spec, "ports").iter().filter_map(node_port).chain(health.filter(|port| *port > 0))
}

fn node_port(port: &Value) -> Option<u16> {
    port["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

fn holds_port(spec: &Value, port: u16) -> bool {
    node_ports(spec).any(|held| held == port)
}

fn protocol(port: &Value) -> Protocol {
    Protocol::named(text(port, "protocol")).unwrap_or_default()
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object[field].as_array().map_or(&[], Vec::as_slice)
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

#[cfg(test)]
mod tests;
