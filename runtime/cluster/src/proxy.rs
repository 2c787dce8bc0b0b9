//! The Services and EndpointSlices of a cluster, as kube-proxy follows them (`cmd/kube-proxy/app/server.go`,
//! `pkg/proxy/config`): which ones, and what is kept of them. Pure.
//!
//! An object is reduced while it is read: what no connection depends on needs no memory. What was seen last stays, so
//! that a time without the cluster changes nothing. It is not stored: after a reboot the pods have other addresses, and
//! connections to endpoints of before would reach other pods.

mod own_ports;

use std::collections::BTreeMap;

use nodlet_core::sorted::SortedSet;
use nodlet_services::catalog::{Catalog, Entry};
use nodlet_services::service::{EndpointSlice, Service, ServiceType};
use serde_json::Value;

pub use own_ports::leave_own_ports;

/// The most ports of all Services, each of which counts for one more. Kubernetes is tested with 10 000 Services.
const MAX_PORTS: usize = 30_000;

/// The most endpoints of all EndpointSlices, each of which counts for one more.
const MAX_ENDPOINTS: usize = 100_000;

/// The most targets of connections: for each Service, its ports times its endpoints.
const MAX_TARGETS: usize = 200_000;

/// The fields that are skipped while an object is read, whatever object they are in.
pub const SKIPPED: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deprecatedTopology",
    "finalizers",
    "generateName",
    "hints",
    "managedFields",
    "ownerReferences",
    "selector",
    "targetRef",
    "uid",
    "zone",
];

/// The fields that are skipped in an object of which nothing is used but its name, because the rest is too large.
pub const SKIPPED_IF_LARGE: &[&str] = &[
    "annotations",
    "endpoints",
    "finalizers",
    "labels",
    "managedFields",
    "ownerReferences",
    "ports",
    "spec",
    "status",
];

/// The label that names the Service of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A kind of objects that a proxy follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
}

impl Resource {
    /// Both of them, Services first: an EndpointSlice of an unknown Service has to wait.
    pub const ALL: [Resource; 2] = [Resource::Services, Resource::EndpointSlices];

    /// Its name in a path.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Services => "services",
            Resource::EndpointSlices => "endpointslices",
        }
    }

    /// The path of the list of those that a proxy has to serve, to which further parameters may be added. Services that
    /// another proxy serves, and headless ones, are left out, and so are the slices of headless ones: the selectors are
    /// those of kube-proxy 1.36.
    pub fn path(self) -> &'static str {
        match self {
            Resource::Services => {
                "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&\
                 fieldSelector=spec.clusterIP%21%3DNone&"
            }
            Resource::EndpointSlices => {
                "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fheadless&"
            }
        }
    }

    /// The kind of its objects.
    fn kind(self) -> &'static str {
        match self {
            Resource::Services => "Service",
            Resource::EndpointSlices => "EndpointSlice",
        }
    }
}

/// Why an object has no effect.
#[derive(Debug, thiserror::Error)]
pub enum Ignored {
    /// A Service is one too many.
    #[error("Service {0}: ignored, since the Services of the cluster have more than {MAX_PORTS} ports")]
    TooManyPorts(String),
    /// A slice is one too many.
    #[error(
        "EndpointSlice {0}: ignored, since the EndpointSlices of the cluster have more than {MAX_ENDPOINTS} endpoints"
    )]
    TooManyEndpoints(String),
    /// With the object, a Service has too many endpoints for its number of ports.
    #[error(
        "{kind} {name}: ignored, since the ports of the cluster's Services, each times its endpoints, are more than \
         {MAX_TARGETS}"
    )]
    TooManyTargets {
        /// The kind of the object.
        kind: &'static str,
        /// Namespace and name.
        name: String,
    },
    /// It has more values than are read.
    #[error("{kind} {name}: ignored, since it has more than {} values", crate::VALUES)]
    TooLarge {
        /// The kind of the object.
        kind: &'static str,
        /// Namespace and name.
        name: String,
    },
    /// It is not what it must be.
    #[error("{resource} {name}: {why}")]
    Invalid {
        /// The resource.
        resource: &'static str,
        /// Namespace and name.
        name: String,
        /// The cause.
        why: String,
    },
}

/// The message about a list that the API server rejects with the reason `why`: it names the binding with which the
/// administrator of the cluster allows the list.
pub fn refusal(why: &str) -> String {
    let user = why.split_once("User \"").and_then(|(_, rest)| rest.split_once('"')).map(|(user, _)| user);
    // The server names the user; a person is to copy the command.
    let is_safe = |user: &&str| {
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:@_".contains(&byte);
        !user.is_empty() && user.bytes().all(is_safe)
    };
    let user = user.filter(is_safe).unwrap_or("USER");
    let name = user.rsplit(':').next().unwrap_or_default();
    let (subject, all) =
        match (user.strip_prefix("system:serviceaccount:"), user.strip_prefix("system:node:")) {
            (Some(account), _) => (format!("--serviceaccount={account}"), ""),
            (_, Some(_)) => (format!("--user={user}"), ", or with --group=system:nodes for all nodes"),
            (None, None) => (format!("--user={user}"), ""),
        };
    format!(
        "the Services of the cluster are not followed: {why}; its administrator allows it by `kubectl create \
         clusterrolebinding node-proxier-{name} --clusterrole=system:node-proxier {subject}`{all}"
    )
}

/// Namespace and name.
type Key = (Box<str>, Box<str>);

/// The objects of a list: namespace, name, and the Service of a slice.
#[derive(Debug, Default)]
pub struct Listed(SortedSet<[Box<str>; 3]>);

/// The Services and EndpointSlices of a cluster.
#[derive(Debug, Default)]
pub struct ClusterServices {
    /// The name of this node. Of other nodes, no name is kept.
    node: Box<str>,
    catalog: Catalog,
    /// Slices whose Service is not known, by namespace and name of the Service.
    waiting: BTreeMap<Key, Vec<EndpointSlice>>,
    ports: usize,
    endpoints: usize,
    targets: usize,
    is_changed: bool,
}

impl ClusterServices {
    /// Nothing is known. `node` is the name of this one.
    pub fn new(node: &str) -> ClusterServices {
        ClusterServices { node: node.into(), ..ClusterServices::default() }
    }

    /// All Services with endpoints and without, but not those that a proxy does not serve.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Whether something has changed since this was asked last.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Records an object. `is_modified` is whether it was another one before.
    ///
    /// # Errors
    /// The object has no effect, nor has an earlier state of it.
    pub fn see(&mut self, resource: Resource, object: &Value, is_modified: bool) -> Result<(), Ignored> {
        let seen = match resource {
            Resource::Services => self.see_service(object),
            Resource::EndpointSlices => self.see_slice(object, is_modified),
        };
        if seen.is_err() {
            self.forget(resource, object);
        }
        seen
    }

    fn see_service(&mut self, object: &Value) -> Result<(), Ignored> {
        let mut service = Service::parse(object).map_err(|error| invalid("Service", object, &error))?;
        if service.is_headless || service.kind == ServiceType::ExternalName || service.cluster_ips.is_empty()
        {
            self.forget(Resource::Services, object);
            return Ok(());
        }
        service.selector = BTreeMap::new();
        for port in &mut service.ports {
            port.app_protocol = None;
        }
        service.ports.shrink_to_fit();
        let key = (service.namespace.clone(), service.name.clone());
        let known = self.catalog.services.get_mut(&key);
        if known.as_ref().is_some_and(|known| known.service == service) {
            return Ok(());
        }
        let before = known.as_ref().map_or(0, |known| weight(&known.service));
        let ports = self.ports - before + weight(&service);
        if ports > MAX_PORTS {
            return Err(Ignored::TooManyPorts(name_of(object)));
        }
        let (targets_before, slices) = match &known {
            Some(known) => (targets(known), Some(&known.slices)),
            None => (0, self.waiting.get(&key)),
        };
        let endpoints: usize = slices.into_iter().flatten().map(|slice| slice.endpoints.len()).sum();
        let targets = self.targets - targets_before + service.ports.len() * endpoints;
        if targets > MAX_TARGETS {
            return Err(too_many_targets(Resource::Services, object));
        }
        match known {
            Some(known) => known.service = service,
            None => {
                let slices = self.waiting.remove(&key).unwrap_or_default();
                self.catalog.services.insert(key, Entry { service, slices });
            }
        }
        (self.ports, self.targets, self.is_changed) = (ports, targets, true);
        Ok(())
    }

    fn see_slice(&mut self, object: &Value, is_modified: bool) -> Result<(), Ignored> {
        let mut slice =
            EndpointSlice::parse(object).map_err(|error| invalid("EndpointSlice", object, &error))?;
        if slice.family.is_none() || slice.service.is_empty() {
            self.forget(Resource::EndpointSlices, object);
            return Ok(());
        }
        for port in &mut slice.ports {
            port.app_protocol = None;
        }
        for endpoint in &mut slice.endpoints {
            endpoint.addresses.truncate(1);
            endpoint.addresses.shrink_to_fit();
            (endpoint.hostname, endpoint.pod) = (None, None);
            endpoint.node = endpoint.node.take().filter(|node| *node == self.node);
        }
        slice.endpoints.shrink_to_fit();
        let key = (slice.namespace.clone(), slice.service.clone());
        let known =
            self.slices_of(&key).and_then(|slices| slices.iter_mut().find(|one| one.name == slice.name));
        if known.as_ref().is_some_and(|known| **known == slice) {
            return Ok(());
        }
        let before = known.map(|known| known.endpoints.len() + 1);
        // Its label may have named another Service.
        if before.is_none() && is_modified {
            self.remove_slices(|one| one.namespace == slice.namespace && one.name == slice.name);
        }
        let after = slice.endpoints.len() + 1;
        let endpoints = self.endpoints - before.unwrap_or_default() + after;
        if endpoints > MAX_ENDPOINTS {
            return Err(Ignored::TooManyEndpoints(name_of(object)));
        }
        let ports = self.catalog.services.get(&key).map_or(0, |entry| entry.service.ports.len());
        let targets =
            self.targets + ports * slice.endpoints.len() - ports * before.map_or(0, |before| before - 1);
        if targets > MAX_TARGETS {
            return Err(too_many_targets(Resource::EndpointSlices, object));
        }
        let slices = match self.catalog.services.get_mut(&key) {
            Some(entry) => &mut entry.slices,
            None => self.waiting.entry(key).or_default(),
        };
        match slices.iter_mut().find(|one| one.name == slice.name) {
            Some(known) => *known = slice,
            None => slices.push(slice),
        }
        (self.endpoints, self.targets, self.is_changed) = (endpoints, targets, true);
        Ok(())
    }

    /// Records that an object is too large to be read, of which only the metadata is known. Nothing remains of an earlier
    /// state.
    pub fn ignore_large(&mut self, resource: Resource, object: &Value) -> Ignored {
        self.forget(resource, object);
        Ignored::TooLarge { kind: resource.kind(), name: name_of(object) }
    }

    /// Records that the cluster has an object no more.
    pub fn forget(&mut self, resource: Resource, object: &Value) {
        let metadata = &object["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        match resource {
            Resource::Services => self.remove_service(&(namespace, name)),
            Resource::EndpointSlices => {
                let key = (namespace, text(&metadata["labels"][SERVICE_NAME]));
                let is_known =
                    self.slices_of(&key).is_some_and(|slices| slices.iter().any(|one| one.name == name));
                if is_known {
                    self.remove_slices_of(&key, |one| one.name == name);
                } else {
                    self.remove_slices(|one| one.namespace == key.0 && one.name == name);
                }
            }
        }
    }

    /// Records an object of a list that is not complete yet.
    ///
    /// # Errors
    /// As those of [`ClusterServices::see`].
    pub fn list(&mut self, resource: Resource, object: &Value, listed: &mut Listed) -> Result<(), Ignored> {
        let metadata = &object["metadata"];
        let service = match resource {
            Resource::Services => &Value::Null,
            Resource::EndpointSlices => &metadata["labels"][SERVICE_NAME],
        };
        listed.0.insert([&metadata["namespace"], &metadata["name"], service].map(text));
        self.see(resource, object, false)
    }

    /// Records that the cluster has no others than those of a list.
    pub fn keep(&mut self, resource: Resource, listed: &Listed) {
        match resource {
            Resource::Services => {
                let is_gone = |(namespace, name): &&Key| {
                    !listed.0.contains(&[namespace.clone(), name.clone(), Box::default()])
                };
                let gone: Vec<Key> = self.catalog.services.keys().filter(is_gone).cloned().collect();
                for key in gone {
                    self.remove_service(&key);
                }
            }
            Resource::EndpointSlices => {
                self.remove_slices(|one| {
                    !listed.0.contains(&[one.namespace.clone(), one.name.clone(), one.service.clone()])
                });
            }
        }
    }

    /// The slices of a Service, known or not.
    fn slices_of(&mut self, key: &Key) -> Option<&mut Vec<EndpointSlice>> {
        match self.catalog.services.get_mut(key) {
            Some(entry) => Some(&mut entry.slices),
            None => self.waiting.get_mut(key),
        }
    }

    fn remove_service(&mut self, key: &Key) {
        let Some(entry) = self.catalog.services.remove(key) else { return };
        self.targets -= targets(&entry);
        let Entry { service, slices } = entry;
        self.ports -= weight(&service);
        self.is_changed = true;
        if !slices.is_empty() {
            self.waiting.insert(key.clone(), slices);
        }
    }

    fn remove_slices_of(&mut self, key: &Key, is_gone: impl Fn(&EndpointSlice) -> bool) {
        let mut removed = Removed::default();
        match self.catalog.services.get_mut(key) {
            Some(entry) => removed.remove_of(entry, &is_gone),
            None => self.waiting.get_mut(key).into_iter().for_each(|slices| removed.remove(slices, &is_gone)),
        }
        self.count_removed(removed);
    }

    fn remove_slices(&mut self, is_gone: impl Fn(&EndpointSlice) -> bool) {
        let mut removed = Removed::default();
        self.catalog.services.values_mut().for_each(|entry| removed.remove_of(entry, &is_gone));
        self.waiting.values_mut().for_each(|slices| removed.remove(slices, &is_gone));
        self.count_removed(removed);
    }

    fn count_removed(&mut self, removed: Removed) {
        self.waiting.retain(|_, slices| !slices.is_empty());
        self.endpoints -= removed.endpoints;
        self.targets -= removed.targets;
        self.is_changed |= removed.endpoints > 0;
    }
}

/// What removed slices counted for.
#[derive(Default)]
struct Removed {
    endpoints: usize,
    targets: usize,
}

impl Removed {
    fn remove_of(&mut self, entry: &mut Entry, is_gone: &impl Fn(&EndpointSlice) -> bool) {
        let before = targets(entry);
        self.remove(&mut entry.slices, is_gone);
        self.targets += before - targets(entry);
    }

    fn remove(&mut self, slices: &mut Vec<EndpointSlice>, is_gone: &impl Fn(&EndpointSlice) -> bool) {
        slices.retain(|one| {
            let is_gone = is_gone(one);
            self.endpoints += if is_gone { one.endpoints.len() + 1 } else { 0 };
            !is_gone
        });
    }
}

/// The targets of the connections to a Service.
fn targets(entry: &Entry) -> usize {
    let endpoints: usize = entry.slices.iter().map(|slice| slice.endpoints.len()).sum();
    entry.service.ports.len() * endpoints
}

fn text(value: &Value) -> Box<str> {
    value.as_str().unwrap_or_default().into()
}

/// What a Service counts for.
fn weight(service: &Service) -> usize {
    service.ports.len() + 1
}

/// Namespace and name of an object, for a message.
fn name_of(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

fn too_many_targets(resource: Resource, object: &Value) -> Ignored {
    Ignored::TooManyTargets { kind: resource.kind(), name: name_of(object) }
}

fn invalid(resource: &'static str, object: &Value, why: &impl std::fmt::Display) -> Ignored {
    Ignored::Invalid { resource, name: name_of(object), why: why.to_string() }
}

#[cfg(test)]
mod tests;
