//! The Services and EndpointSlices of a cluster, as kube-proxy follows them (`cmd/kube-proxy/app/server.go`,
//! `pkg/proxy/config`): which ones, and what is kept of them. Pure.
//!
//! An object is reduced while it is read: what no connection depends on needs no memory. What was seen last stays, so
//! that a time without the cluster changes nothing. It is not stored: after a reboot the pods have other addresses, and
//! connections to endpoints of before would reach other pods.

use std::collections::BTreeMap;

use nodlet_core::sorted::SortedSet;
use nodlet_services::catalog::{Catalog, Entry};
use nodlet_services::service::{EndpointSlice, Service, ServiceType};
use serde_json::Value;

/// The most ports of all Services, each of which counts for one more. Kubernetes is tested with 10 000 Services.
const MAX_PORTS: usize = 30_000;

/// The most endpoints of all EndpointSlices, each of which counts for one more.
const MAX_ENDPOINTS: usize = 100_000;

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
    /// another proxy serves, and headless ones, are left out, and so are their slices, which have the same labels.
    pub fn path(self) -> &'static str {
        match self {
            Resource::Services => {
                "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fheadless%2C\
                 %21service.kubernetes.io%2Fservice-proxy-name&"
            }
            Resource::EndpointSlices => {
                "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fheadless%2C\
                 %21service.kubernetes.io%2Fservice-proxy-name&"
            }
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
        match known {
            Some(known) => known.service = service,
            None => {
                let slices = self.waiting.remove(&key).unwrap_or_default();
                self.catalog.services.insert(key, Entry { service, slices });
            }
        }
        (self.ports, self.is_changed) = (ports, true);
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
        let after = slice.endpoints.len() + 1;
        match known {
            Some(known) => {
                let before = known.endpoints.len() + 1;
                if self.endpoints - before + after > MAX_ENDPOINTS {
                    return Err(Ignored::TooManyEndpoints(name_of(object)));
                }
                // Borrowed anew: the sum was needed in between.
                let slices = self.slices_of(&key).into_iter().flatten();
                for known in slices.filter(|one| one.name == slice.name) {
                    *known = slice.clone();
                }
                self.endpoints = self.endpoints - before + after;
            }
            None => {
                // Its label may have named another Service.
                if is_modified {
                    self.remove_slices(|one| one.namespace == slice.namespace && one.name == slice.name);
                }
                if self.endpoints + after > MAX_ENDPOINTS {
                    return Err(Ignored::TooManyEndpoints(name_of(object)));
                }
                self.endpoints += after;
                match self.catalog.services.get_mut(&key) {
                    Some(entry) => entry.slices.push(slice),
                    None => self.waiting.entry(key).or_default().push(slice),
                }
            }
        }
        self.is_changed = true;
        Ok(())
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
        let Some(Entry { service, slices }) = self.catalog.services.remove(key) else { return };
        self.ports -= weight(&service);
        self.is_changed = true;
        if !slices.is_empty() {
            self.waiting.insert(key.clone(), slices);
        }
    }

    fn remove_slices_of(&mut self, key: &Key, is_gone: impl Fn(&EndpointSlice) -> bool) {
        let mut removed = 0;
        if let Some(slices) = self.slices_of(key) {
            removed = remove(slices, &is_gone);
        }
        self.waiting.retain(|_, slices| !slices.is_empty());
        self.endpoints -= removed;
        self.is_changed |= removed > 0;
    }

    fn remove_slices(&mut self, is_gone: impl Fn(&EndpointSlice) -> bool) {
        let known = self.catalog.services.values_mut().map(|entry| &mut entry.slices);
        let removed: usize =
            known.chain(self.waiting.values_mut()).map(|slices| remove(slices, &is_gone)).sum();
        self.waiting.retain(|_, slices| !slices.is_empty());
        self.endpoints -= removed;
        self.is_changed |= removed > 0;
    }
}

/// Removes slices, and returns what they counted for.
fn remove(slices: &mut Vec<EndpointSlice>, is_gone: &impl Fn(&EndpointSlice) -> bool) -> usize {
    let mut removed = 0;
    slices.retain(|one| {
        let is_gone = is_gone(one);
        removed += if is_gone { one.endpoints.len() + 1 } else { 0 };
        !is_gone
    });
    removed
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

fn invalid(resource: &'static str, object: &Value, why: &impl std::fmt::Display) -> Ignored {
    Ignored::Invalid { resource, name: name_of(object), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, port: u16) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": "shop", "annotations": { "a": "b" } },
            "spec": {
                "type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "selector": { "app": "web" },
                "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
                "ports": [{ "port": port, "protocol": "TCP", "targetPort": 80, "appProtocol": "http" }],
            },
            "status": { "loadBalancer": {} },
        })
    }

    fn slice(name: &str, service: &str, ips: &[&str]) -> Value {
        let endpoints: Vec<Value> = ips
            .iter()
            .map(|ip| {
                json!({
                    "addresses": [ip], "conditions": { "ready": true, "serving": true, "terminating": false },
                    "nodeName": if ip.ends_with('1') { "board" } else { "other" }, "hostname": "h",
                    "targetRef": { "kind": "Pod", "name": "p", "uid": "u" },
                })
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": name, "namespace": "shop", "labels": { SERVICE_NAME: service } },
            "endpoints": endpoints, "ports": [{ "name": "", "port": 80, "protocol": "TCP" }],
        })
    }

    /// Each Service with its port and the addresses of its endpoints; then the counts.
    fn shown(services: &ClusterServices) -> String {
        let mut text = String::new();
        for entry in services.catalog.services.values() {
            let ips = entry
                .slices
                .iter()
                .flat_map(|slice| &slice.endpoints)
                .map(|one| one.addresses[0].to_string());
            let ips: Vec<String> = ips.collect();
            text += &format!("{}:{} {}; ", entry.service.name, entry.service.ports[0].port, ips.join(","));
        }
        text + &format!("{} {}", services.ports, services.endpoints)
    }

    fn see(services: &mut ClusterServices, resource: Resource, object: &Value) {
        services.see(resource, object, true).unwrap_or_else(|why| panic!("{why}"));
    }

    #[test]
    fn services_and_slices_come_together_in_any_order_and_changes_without_effect_are_none() {
        use Resource::{EndpointSlices, Services};

        let mut all = ClusterServices::new("board");
        see(&mut all, EndpointSlices, &slice("web-1", "web", &["10.0.0.1", "10.0.0.2"]));
        assert_eq!(shown(&all), "0 3");
        see(&mut all, Services, &service("web", 80));
        assert_eq!(shown(&all), "web:80 10.0.0.1,10.0.0.2; 2 3");
        let endpoints = &all.catalog.services.values().next().expect("web").slices[0].endpoints;
        assert_eq!((endpoints[0].node.as_deref(), endpoints[1].node.as_deref()), (Some("board"), None));
        assert_eq!((&endpoints[0].pod, &endpoints[0].hostname), (&None, &None));
        assert!(all.take_change() && !all.take_change());

        let mut annotated = service("web", 80);
        annotated["metadata"]["annotations"] = json!({ "other": "1" });
        annotated["spec"]["selector"] = json!({ "other": "1" });
        see(&mut all, Services, &annotated);
        see(&mut all, EndpointSlices, &slice("web-1", "web", &["10.0.0.1", "10.0.0.2"]));
        assert!(!all.take_change());

        see(&mut all, Services, &service("web", 81));
        see(&mut all, EndpointSlices, &slice("web-1", "web", &["10.0.0.1"]));
        see(&mut all, EndpointSlices, &slice("web-2", "web", &["10.0.0.3"]));
        assert_eq!(shown(&all), "web:81 10.0.0.1,10.0.0.3; 2 4");
        assert!(all.take_change());
        // The slices outlive their Service, which may come back.
        all.forget(Services, &service("web", 81));
        assert_eq!(shown(&all), "0 4");
        see(&mut all, Services, &service("web", 82));
        assert_eq!(shown(&all), "web:82 10.0.0.1,10.0.0.3; 2 4");
        all.forget(EndpointSlices, &slice("web-1", "web", &[]));
        assert_eq!(shown(&all), "web:82 10.0.0.3; 2 2");
        // A slice of another Service by now.
        see(&mut all, EndpointSlices, &slice("web-2", "db", &["10.0.0.3"]));
        assert_eq!(shown(&all), "web:82 ; 2 2");
        see(&mut all, Services, &service("db", 1));
        assert_eq!(shown(&all), "db:1 10.0.0.3; web:82 ; 4 2");
        // The label is gone with the slice.
        let mut unlabelled = slice("web-2", "db", &[]);
        unlabelled["metadata"]["labels"] = json!({});
        all.forget(EndpointSlices, &unlabelled);
        assert_eq!(shown(&all), "db:1 ; web:82 ; 4 0");
        assert!(all.waiting.is_empty());
    }

    #[test]
    fn a_refusal_names_the_binding_that_the_administrator_makes() {
        let of = |user: &str| refusal(&format!("x is forbidden: User \"{user}\" cannot list resource \"y\""));
        let begin = "kubectl create clusterrolebinding node-proxier-";
        for (user, expected) in [
            (
                "system:node:b-1",
                "b-1 --clusterrole=system:node-proxier --user=system:node:b-1`, or with --group=system:nodes",
            ),
            (
                "system:serviceaccount:kube-system:p",
                "p --clusterrole=system:node-proxier --serviceaccount=kube-system:p`",
            ),
            ("ann@example", "ann@example --clusterrole=system:node-proxier --user=ann@example`"),
            ("x; rm", "USER --clusterrole=system:node-proxier --user=USER`"),
        ] {
            assert!(of(user).contains(&format!("{begin}{expected}")), "{}", of(user));
        }
        assert!(refusal("no").contains("--user=USER"));
    }

    #[test]
    fn only_a_complete_list_shows_that_objects_are_gone() {
        let mut all = ClusterServices::new("board");
        for name in ["a", "b"] {
            see(&mut all, Resource::Services, &service(name, 1));
            see(&mut all, Resource::EndpointSlices, &slice(&format!("{name}-1"), name, &["10.0.0.1"]));
        }
        all.take_change();
        let (mut services, mut slices) = (Listed::default(), Listed::default());
        all.list(Resource::Services, &service("b", 1), &mut services).expect("it is valid");
        all.list(Resource::EndpointSlices, &slice("b-1", "b", &["10.0.0.1"]), &mut slices)
            .expect("it is valid");
        assert!(!all.take_change());
        all.keep(Resource::Services, &services);
        assert_eq!(shown(&all), "b:1 10.0.0.1; 2 4");
        all.keep(Resource::EndpointSlices, &slices);
        assert_eq!(shown(&all), "b:1 10.0.0.1; 2 2");
        assert!(all.take_change());
        // The slice is one of another Service by now.
        let mut slices = Listed::default();
        all.list(Resource::EndpointSlices, &slice("b-1", "a", &["10.0.0.1"]), &mut slices)
            .expect("it is valid");
        all.keep(Resource::EndpointSlices, &slices);
        assert_eq!(shown(&all), "b:1 ; 2 2");
    }

    #[test]
    fn what_no_proxy_serves_takes_nothing() {
        let mut all = ClusterServices::new("board");
        for (pointer, value) in [
            ("/spec/clusterIPs", json!(["None"])),
            ("/spec/type", json!("ExternalName")),
            ("/spec/clusterIPs", json!([])),
        ] {
            see(&mut all, Resource::Services, &service("web", 80));
            let mut other = service("web", 80);
            other["spec"]["clusterIP"] =
                if pointer == "/spec/clusterIPs" { "None".into() } else { "".into() };
            *other.pointer_mut(pointer).expect(pointer) = value;
            // Whether it is refused or passed over, nothing remains of it.
            let _ = all.see(Resource::Services, &other, true);
            assert_eq!(shown(&all), "0 0", "{pointer}");
        }
        let mut names = slice("web-1", "web", &[]);
        names["addressType"] = "FQDN".into();
        see(&mut all, Resource::EndpointSlices, &names);
        assert_eq!(shown(&all), "0 0");
    }

    #[test]
    fn objects_beyond_the_bounds_are_named_and_ignored() {
        let mut all = ClusterServices::new("board");
        let ips: Vec<String> =
            (0..999).map(|number| format!("10.1.{}.{}", number / 250, number % 250)).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        for number in 0..MAX_ENDPOINTS / 1000 {
            see(&mut all, Resource::EndpointSlices, &slice(&format!("s{number}"), "web", &ips));
        }
        let why = all.see(Resource::EndpointSlices, &slice("more", "web", &[]), false).expect_err("too many");
        assert!(why.to_string().starts_with("EndpointSlice shop/more: ignored"), "{why}");
        assert_eq!(all.endpoints, MAX_ENDPOINTS);
        // One that is known may change, and become less.
        see(&mut all, Resource::EndpointSlices, &slice("s0", "web", &ips[..10]));
        see(&mut all, Resource::EndpointSlices, &slice("more", "web", &ips[..10]));
        let mut large = service("web", 80);
        large["spec"]["ports"] = (0..MAX_PORTS).map(|_| json!({ "port": 1, "protocol": "TCP" })).collect();
        assert!(all.see(Resource::Services, &large, false).is_err());
        assert!(all.catalog.services.is_empty());
    }

    #[test]
    fn an_object_that_is_not_what_it_must_be_is_named_and_ends_its_earlier_state() {
        let mut all = ClusterServices::new("board");
        see(&mut all, Resource::Services, &service("web", 80));
        let mut wrong = service("web", 80);
        wrong["spec"]["clusterIPs"] = json!(["x"]);
        let why = all.see(Resource::Services, &wrong, true).expect_err("no address");
        assert!(why.to_string().starts_with("Service shop/web: "), "{why}");
        assert_eq!(shown(&all), "0 0");
    }
}
