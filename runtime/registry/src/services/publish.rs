//! The published objects of Services: the Services with their load balancers' addresses, and the EndpointSlices and
//! Endpoints of those with a selector. Clients cannot change the latter two.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nodlet_core::sorted::SortedSet;
use nodlet_kube::kinds::Kind;
use nodlet_services::catalog::{Catalog, Entry};
use nodlet_services::service::{Endpoint, EndpointPort, EndpointSlice, Family, Protocol, Service};
use nodlet_services::slices::slices_of;
use serde_json::{Map, Value, json};

use super::{ServiceView, Services};
use crate::Registry;
use crate::live_objects::{DefinitionName, key};
use crate::set_aside::hash;

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const SLICE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
const ENDPOINTS_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const ENDPOINTS_CONTROLLER: &str = "endpoint-controller";

/// The load balancers of a board.
#[derive(Default)]
pub(super) struct Balancers<'a> {
    /// The addresses of each, if nobody else has one of its ports.
    addresses: BTreeMap<&'a DefinitionName, Vec<IpAddr>>,
    /// Who has a port of each of the others.
    pub(super) conflicts: Vec<(&'a DefinitionName, String)>,
}

impl Registry {
    /// Publishes Services, their EndpointSlices and their Endpoints, as far as they have changed. Returns all
    /// Services; the same pointer as before if nothing has changed.
    pub fn publish_services(&mut self, view: &ServiceView<'_>) -> Rc<Catalog> {
        self.services.board.clone_from(&view.board);
        self.publish_completed();
        let mut catalog = Catalog { namespaces: self.namespaces(view), ..Catalog::default() };
        let mut published = SortedSet::new();
        let mut all = std::mem::take(&mut self.services.completed);
        for (name, completed) in &mut all {
            let Some((_, service)) = &completed.shown else { continue };
            let mut slices = slices_of(service, &view.pods);
            let names = match completed.endpoints.take() {
                Some((known, names)) if known == slices => names,
                _ => self.publish_endpoints(&completed.object(), service, &slices, view.now),
            };
            for name in &names {
                published.insert(name.clone());
            }
            completed.endpoints = Some((slices.clone(), names));
            let is_of = |slice: &&EndpointSlice| {
                slice.namespace == service.namespace && slice.service == service.name
            };
            slices.extend(self.services.slices.iter().filter(is_of).cloned());
            let service = self.services.without_reserved_ports(service.clone());
            catalog.services.insert((name.1[..].into(), name.2[..].into()), Entry { service, slices });
        }
        self.services.completed = all;
        let before = std::mem::replace(&mut self.services.published, published);
        for name in before.into_iter().filter(|name| !self.services.published.contains(name)) {
            // A definition of this name may have come instead.
            if !self.definitions.contains_key(&name) {
                self.objects.delete(&key(&name));
            }
        }
        if *self.services.catalog != catalog {
            self.services.catalog = Rc::new(catalog);
        }
        self.services.catalog.clone()
    }

    /// Publishes the EndpointSlices and the Endpoints of a Service. Returns their names; `now` is the time of creation of
    /// those that are new.
    fn publish_endpoints(
        &self,
        object: &Value,
        service: &Service,
        slices: &[EndpointSlice],
        now: &str,
    ) -> Vec<DefinitionName> {
        let named =
            |kind, name: &str| -> DefinitionName { (kind, Rc::from(&*service.namespace), Rc::from(name)) };
        let made = slices
            .iter()
            .map(|slice| (named(Kind::EndpointSlice, &slice.name), slice_object(object, service, slice)));
        let endpoints = (!slices.is_empty())
            .then(|| (named(Kind::Endpoints, &service.name), endpoints_object(object, service, slices)));
        let mut names = Vec::new();
        for (name, mut object) in made.chain(endpoints) {
            // A slice of a file has its name.
            if self.definitions.contains_key(&name) {
                continue;
            }
            let before = self.published_definition(&name);
            let created = before.map(|mut before| before["metadata"]["creationTimestamp"].take());
            object["metadata"]["creationTimestamp"] =
                created.filter(Value::is_string).unwrap_or_else(|| now.into());
            self.objects.put(key(&name), object);
            names.push(name);
        }
        names
    }

    /// Publishes the Services that have changed as they are completed, with the addresses of load balancers.
    pub(super) fn publish_completed(&mut self) {
        let balancers = self.services.balancers().addresses;
        let mut balancers: BTreeMap<DefinitionName, Vec<IpAddr>> =
            balancers.into_iter().map(|(name, addresses)| (name.clone(), addresses)).collect();
        for (name, completed) in &mut self.services.completed {
            let addresses = balancers.remove(name).unwrap_or_default();
            if completed.shown.as_ref().is_some_and(|(known, _)| *known == addresses) {
                continue;
            }
            let mut object = completed.object();
            let ingress: Vec<Value> =
                addresses.iter().map(|ip| json!({"ip": ip.to_string(), "ipMode": "VIP"})).collect();
            object["status"] = json!({"loadBalancer": {}});
            if !ingress.is_empty() {
                object["status"]["loadBalancer"]["ingress"] = ingress.into();
            }
            completed.shown = Service::parse(&object).ok().map(|service| (addresses, service));
            self.objects.put(key(name), object);
        }
    }

    /// The namespaces of all objects, and `default`.
    fn namespaces(&self, view: &ServiceView<'_>) -> BTreeSet<Box<str>> {
        let of_definitions = self.definitions.keys().map(|(_, namespace, _)| &**namespace);
        let of_pods = view.pods.iter().map(|pod| &*pod.namespace);
        let all = of_definitions.chain(of_pods).filter(|namespace| !namespace.is_empty());
        all.chain(["default"]).map(Box::from).collect()
    }
}

impl Services {
    /// The addresses of each load balancer. One whose port somebody else has gets none: a process of the board, a pod's
    /// hostPort, a node port, or a load balancer that is older.
    pub(super) fn balancers(&self) -> Balancers<'_> {
        let is_balancer = |object: &Value| {
            object["spec"]["type"] == "LoadBalancer" && object["spec"]["loadBalancerClass"].is_null()
        };
        // Hardly any Service is one, so few are parsed.
        let may_be =
            self.completed.iter().filter(|(_, completed)| completed.json.contains("\"LoadBalancer\""));
        let mut balancers: Vec<(&DefinitionName, Value)> =
            may_be.map(|(name, completed)| (name, completed.object())).collect();
        balancers.retain(|(_, object)| is_balancer(object));
        balancers.sort_by_key(|(name, object)| {
            (object["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned(), *name)
        });
        let mut taken: BTreeMap<(u16, Protocol), &DefinitionName> = BTreeMap::new();
        let mut found = Balancers::default();
        for (name, object) in balancers {
            let Ok(service) = Service::parse(&object) else { continue };
            let ports = || service.ports.iter().map(|port| (port.port, port.protocol));
            let conflict = ports().find_map(|(port, protocol)| {
                let other =
                    taken.get(&(port, protocol)).map(|other| format!("Service {}/{}", other.1, other.2));
                let holder = other
                    .or_else(|| self.allocations.holder(port, protocol).map(str::to_owned))
                    .or_else(|| {
                        let (namespace, name) = self.allocations.node_port_holder(port)?;
                        Some(format!("Service {namespace}/{name}"))
                    })?;
                Some(format!("{port}/{} of the board: {holder} has it", protocol.as_str()))
            });
            if let Some(conflict) = conflict {
                found.conflicts.push((name, conflict));
                continue;
            }
            taken.extend(ports().map(|port| (port, name)));
            let wanted = object["spec"]["loadBalancerIP"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
            let is_served = |ip: &&IpAddr| {
                service.families.contains(&Family::of(**ip)) && wanted.is_none_or(|wanted| wanted == **ip)
            };
            let addresses = self.board.iter().filter(is_served).copied().collect();
            found.addresses.insert(name, addresses);
        }
        found
    }

    /// The node ports that are not served since a process of the board or a pod has them, with the holder.
    pub(super) fn lost_node_ports(&self) -> Vec<(&DefinitionName, String)> {
        let mut lost = Vec::new();
        for (name, completed) in &self.completed {
            if !completed.json.contains("\"nodePort\"") {
                continue;
            }
            let Ok(service) = Service::parse(&completed.object()) else { continue };
            lost.extend(service.ports.iter().filter_map(|port| {
                let number = port.node_port?;
                let holder = self.allocations.holder(number, port.protocol)?;
                Some((name, format!("{number}/{}: {holder} has it", port.protocol.as_str())))
            }));
        }
        lost
    }

    /// The Service without those of its ports that would take one from a process of the board or from a pod.
    fn without_reserved_ports(&self, mut service: Service) -> Service {
        let is_reserved = |port: u16, protocol| self.allocations.holder(port, protocol).is_some();
        for port in &mut service.ports {
            port.node_port = port.node_port.filter(|number| !is_reserved(*number, port.protocol));
        }
        if service.ports.iter().any(|port| is_reserved(port.port, port.protocol)) {
            service.external_ips.retain(|ip| !self.board.contains(ip));
        }
        service
    }
}

fn slice_object(service: &Value, parsed: &Service, slice: &EndpointSlice) -> Value {
    let mut labels = labels(service, parsed);
    labels.insert(MANAGED_BY.to_owned(), SLICE_CONTROLLER.into());
    labels.insert(SERVICE_NAME.to_owned(), (*parsed.name).into());
    let metadata = &service["metadata"];
    json!({
        "apiVersion": Kind::EndpointSlice.version(),
        "kind": Kind::EndpointSlice.as_str(),
        "metadata": {
            "name": &*slice.name, "generateName": format!("{}-", parsed.name), "namespace": &*slice.namespace,
            "uid": uid(metadata, &slice.name), "labels": labels,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"],
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "addressType": slice.family.map_or("FQDN", Family::as_str),
        "ports": slice.ports.iter().map(port_object).collect::<Vec<_>>(),
        "endpoints": slice.endpoints.iter().map(|endpoint| endpoint_object(slice, endpoint)).collect::<Vec<_>>(),
    })
}

fn endpoint_object(slice: &EndpointSlice, endpoint: &Endpoint) -> Value {
    let addresses = endpoint.addresses.iter().take(1).map(|address| address.to_string().into());
    let conditions = endpoint.conditions;
    let mut object = json!({
        "addresses": addresses.collect::<Vec<Value>>(),
        "conditions": {
            "ready": conditions.ready, "serving": conditions.serving, "terminating": conditions.terminating,
        },
    });
    if let Some(hostname) = &endpoint.hostname {
        object["hostname"] = (**hostname).into();
    }
    add_pod(&mut object, &slice.namespace, endpoint);
    object
}

fn port_object(port: &EndpointPort) -> Value {
    let mut object = json!({"name": &*port.name, "protocol": port.protocol.as_str()});
    if let Some(number) = port.port {
        object["port"] = number.into();
    }
    if let Some(protocol) = &port.app_protocol {
        object["appProtocol"] = (**protocol).into();
    }
    object
}

/// The Endpoints of a Service, of its first family, as `pkg/controller/endpoint` makes them.
fn endpoints_object(service: &Value, parsed: &Service, slices: &[EndpointSlice]) -> Value {
    let of_family = slices.iter().filter(|slice| slice.family == parsed.families.first().copied());
    let mut subsets: Vec<(Vec<Value>, Vec<Value>, Vec<Value>)> = Vec::new();
    for slice in of_family.filter(|slice| parsed.ports.is_empty() || !slice.ports.is_empty()) {
        let ports: Vec<Value> = slice.ports.iter().map(subset_port).collect();
        let place = subsets.iter().position(|(known, ..)| *known == ports).unwrap_or_else(|| {
            subsets.push((ports, Vec::new(), Vec::new()));
            subsets.len() - 1
        });
        // A pod that terminates is no address, unless the Service publishes it.
        let endpoints = slice.endpoints.iter();
        for endpoint in endpoints.filter(|one| !one.conditions.terminating || parsed.publishes_not_ready) {
            let mut address = json!({"ip": endpoint.addresses.first().map(ToString::to_string)});
            if let Some(hostname) = &endpoint.hostname {
                address["hostname"] = (**hostname).into();
            }
            add_pod(&mut address, &slice.namespace, endpoint);
            let (_, ready, unready) = &mut subsets[place];
            if endpoint.conditions.ready { ready.push(address) } else { unready.push(address) }
        }
    }
    let subsets = subsets.into_iter().filter(|(_, ready, unready)| !ready.is_empty() || !unready.is_empty());
    let subsets = subsets.map(|(ports, ready, unready)| {
        let fields = [("addresses", ready), ("notReadyAddresses", unready), ("ports", ports)].into_iter();
        let fields = fields.filter(|(_, list)| !list.is_empty());
        Value::Object(fields.map(|(field, list)| (field.to_owned(), list.into())).collect())
    });
    let subsets: Vec<Value> = subsets.collect();
    let mut labels = labels(service, parsed);
    labels.insert(ENDPOINTS_MANAGED_BY.to_owned(), ENDPOINTS_CONTROLLER.into());
    let metadata = &service["metadata"];
    let mut object = json!({
        "apiVersion": "v1", "kind": Kind::Endpoints.as_str(),
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "uid": uid(metadata, "endpoints"),
            "labels": labels,
        },
    });
    if !subsets.is_empty() {
        object["subsets"] = subsets.into();
    }
    object
}

fn subset_port(port: &EndpointPort) -> Value {
    let mut object = port_object(port);
    if port.name.is_empty()
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("name");
    }
    object
}

fn add_pod(object: &mut Value, namespace: &str, endpoint: &Endpoint) {
    if let Some(node) = &endpoint.node {
        object["nodeName"] = (**node).into();
    }
    if let Some((name, uid)) = &endpoint.pod {
        object["targetRef"] = json!({"kind": "Pod", "namespace": namespace, "name": &**name, "uid": &**uid});
    }
}

/// The labels of a Service, which its slices have, too.
fn labels(service: &Value, parsed: &Service) -> Map<String, Value> {
    let mut labels = service["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.remove(HEADLESS);
    if parsed.is_headless {
        labels.insert(HEADLESS.to_owned(), "".into());
    }
    labels
}

/// A UID that is the same under each agent, and another one for another Service.
fn uid(service: &Value, of: &str) -> String {
    let service = service["uid"].as_str().unwrap_or_default();
    format!("{:016x}{:016x}", hash(&(service, of)), hash(&(of, service)))
}
