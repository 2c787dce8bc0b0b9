//! Services: their allocated fields, and what is published of them. The registry completes each Service before it is
//! stored or published, and makes the EndpointSlices and Endpoints of those with a selector.
//!
//! ```text
//! files, requests ─► adopt ─► complete ─► published Service ─┐
//! pods, addresses of the board ─► slices, Endpoints, load balancers ─┴─► Catalog ─► data path, DNS, variables
//! ```
//!
//! Allocations are saved besides the objects (`restore_allocations`): a Service of a file has its address nowhere else.
//! Read next: `services/publish.rs`, on the published objects.

mod publish;

use core::net::IpAddr;
use core::ops::RangeInclusive;
use std::rc::Rc;

use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::{self, Definition};
use nodlet_services::allocation::{
    AllocationError, Allocations, ReservedPort, SavedError, ServiceName, adopt,
};
use nodlet_services::catalog::Catalog;
use nodlet_services::service::{EndpointSlice, Service};
use nodlet_services::slices::PodEndpoint;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::live_objects::{DefinitionName, key};
use super::request::refused;
use super::{DefinitionsByName, Refusal, Registry, RequestOptions, Status, Write, Written};

/// What the engine knows that Services depend on.
#[derive(Clone, Debug, Default)]
pub struct ServiceView<'a> {
    /// The pods of the board, with their addresses and conditions.
    pub pods: Vec<PodEndpoint>,
    /// The board's own addresses, at which other machines reach it.
    pub board: Vec<IpAddr>,
    /// The current time, in the format of `creationTimestamp`.
    pub now: &'a str,
}

/// The Services of the registry.
#[derive(Debug, Default)]
pub(super) struct Services {
    allocations: Allocations,
    /// The ranges of `externalIPs` that the operator allows: an address and its leading bits.
    external_ips_allowed: Vec<(IpAddr, u8)>,
    completed: SortedMap<DefinitionName, Completed>,
    /// The EndpointSlices of clients and files.
    slices: Vec<EndpointSlice>,
    /// The EndpointSlices and Endpoints that the registry makes.
    published: SortedSet<DefinitionName>,
    /// The addresses of the board as they were published last.
    board: Vec<IpAddr>,
    catalog: Rc<Catalog>,
}

/// A completed Service, and what is published of it.
#[derive(Debug)]
struct Completed {
    /// The definition that it was made of.
    definition: Rc<Definition>,
    /// The object as JSON, which takes a tenth of the memory of a [`Value`].
    json: Box<str>,
    /// The addresses of the board that it has as a load balancer, and the Service with them, once that is published.
    shown: Option<(Vec<IpAddr>, Service)>,
    /// The slices of its pods, and the names of the objects that show them, once these are published.
    endpoints: Option<(Vec<EndpointSlice>, Vec<DefinitionName>)>,
}

impl Completed {
    fn object(&self) -> Value {
        serde_json::from_str(&self.json).expect("it was written from a value")
    }
}

/// Why a Service cannot be completed.
#[derive(Debug, thiserror::Error)]
enum CompletionError {
    #[error(
        "spec.externalIPs[{index}]: Forbidden: the configuration of the board does not allow the external address {ip}"
    )]
    ExternalIp { index: usize, ip: String },
    #[error(transparent)]
    Allocation(#[from] AllocationError),
}

impl Registry {
    /// Serves Services with addresses of these ranges, at most one of each family, the default family first, and with
    /// these node ports. `external_ips_allowed` are the ranges of `externalIPs` that the operator allows.
    pub fn serve_ranges(
        &mut self,
        ranges: &[(IpAddr, u8)],
        node_ports: RangeInclusive<u16>,
        external_ips_allowed: Vec<(IpAddr, u8)>,
    ) {
        self.services.allocations.serve(ranges, node_ports);
        self.services.external_ips_allowed = external_ips_allowed;
    }

    /// Restores the allocations that an earlier agent saved, before the first file is read.
    ///
    /// # Errors
    /// They are damaged. Then Services get the addresses in their objects, and those without get new ones.
    pub fn restore_allocations(&mut self, saved: &[u8]) -> Result<(), SavedError> {
        self.services.allocations.restore(saved)
    }

    /// The allocations for [`Registry::restore_allocations`], if they have changed since the last call. They must be
    /// durable before the reply to the request that changed them.
    pub fn allocations(&mut self) -> Option<Vec<u8>> {
        self.services.allocations.unsaved()
    }

    /// Sets the ports that no Service may have. Returns whether they have changed, so that
    /// [`Registry::publish_services`] must be called.
    pub fn reserve_ports(&mut self, ports: Vec<ReservedPort>) -> bool {
        self.services.allocations.reserve(ports)
    }

    /// Whether there are Services.
    pub fn has_services(&self) -> bool {
        self.definitions.keys().any(|name| name.0 == Kind::Service)
    }

    /// Completes a Service that a client sends.
    ///
    /// # Errors
    /// An immutable field has changed, or what is requested cannot be allocated.
    pub(super) fn complete_request(
        &mut self,
        definition: Definition,
        published: Option<&Value>,
        options: RequestOptions,
    ) -> Result<Definition, Status> {
        let name = definition.key();
        let mut object = definition.object();
        if let Some(old) = published {
            manifest::check_definition_update(Kind::Service, old, &object)
                .map_err(|error| refused(&error))?;
        }
        self.services.check_external_ips(&object).map_err(|error| status(&name.2, error))?;
        let of = service_name(&name);
        let completed = if options.dry_run {
            self.services.allocations.clone().complete(&of, published, &mut object)
        } else {
            self.services.allocations.complete(&of, published, &mut object)
        };
        completed.map_err(|error| status(&name.2, error.into()))?;
        let json = to_raw_value(&object).map_err(Status::internal)?;
        Ok(Definition { json, ..definition })
    }

    /// Takes back what was allocated for a change that could not be written: a Service holds what it is published with.
    pub fn not_written(&mut self, write: &Write) {
        if let Written::Definition(name) = &write.of {
            self.hold_published(name);
        }
    }

    /// See [`Registry::not_written`].
    pub(super) fn hold_published(&mut self, name: &DefinitionName) {
        if name.0 == Kind::Service {
            let published = self.published_definition(name);
            let spec = published.as_ref().map(|object| &object["spec"]);
            self.services.allocations.hold(&service_name(name), spec);
        }
    }

    /// Completes and publishes the Services of these definitions, and releases what no Service has any more.
    pub(super) fn complete_services(
        &mut self,
        definitions: &DefinitionsByName,
        now: &str,
    ) -> (Vec<Refusal>, Vec<DefinitionName>) {
        let (mut refusals, mut changed) = (Vec::new(), Vec::new());
        let gone = |name: &DefinitionName| !definitions.contains_key(name);
        let of_service =
            |(namespace, name): &ServiceName| (Kind::Service, Rc::from(&**namespace), Rc::from(&**name));
        for name in self.services.completed.keys().filter(|name| gone(name)) {
            self.objects.delete(&key(name));
            changed.push(name.clone());
        }
        self.services.completed.retain(|name, _| !gone(name));
        // An EndpointSlice of a file may have come in the place of one that is made, or gone.
        for completed in self.services.completed.values_mut() {
            completed.endpoints = None;
        }
        // An unread file may define what is missing.
        if self.services.allocations.names().any(|name| gone(&of_service(name))) {
            let all_read = self.all_read();
            self.services.allocations.retain(|name| {
                !gone(&of_service(name)) || !(all_read || changed.contains(&of_service(name)))
            });
        }
        let services = definitions.iter().filter(|(name, _)| name.0 == Kind::Service);
        let mut new: Vec<_> = services
            .filter(|(name, (definition, _))| {
                let known = self.services.completed.get(*name);
                known.is_none_or(|known| !Rc::ptr_eq(&known.definition, definition))
            })
            .collect();
        // Those that have or name an address come first, so that no other Service gets it.
        new.sort_by_key(|(name, (definition, _))| {
            let is_held = self.services.allocations.held(&service_name(name)).is_some();
            (!is_held, !definition.json.get().contains("\"clusterIP\""))
        });
        for (name, (definition, source)) in new {
            let object = self.with_creation(definition, now);
            let is_of_client = *source == self.definition_path(name);
            match self.services.complete(name, object, is_of_client) {
                Ok(object) => {
                    let json = object.to_string().into();
                    let completed =
                        Completed { definition: definition.clone(), json, shown: None, endpoints: None };
                    self.services.completed.insert(name.clone(), completed);
                    changed.push(name.clone());
                }
                Err(why) => {
                    let message =
                        format!("{}: The Service \"{}\" is invalid: {why}", source.display(), name.2);
                    refusals.push(Refusal { source: source.clone(), object: Some(name.clone()), message });
                }
            }
        }
        self.services.slices = definitions
            .iter()
            .filter(|(name, _)| name.0 == Kind::EndpointSlice)
            .filter_map(|(_, (definition, _))| EndpointSlice::parse(&definition.object()).ok())
            .collect();
        for (name, conflict) in self.services.lost_node_ports() {
            if let Some((_, source)) = definitions.get(name) {
                let message = format!(
                    "{}: Service {}/{} is not reachable at node port {conflict}",
                    source.display(),
                    name.1,
                    name.2
                );
                refusals.push(Refusal { source: source.clone(), object: Some(name.clone()), message });
            }
        }
        for (name, conflict) in self.services.balancers().conflicts {
            if let Some((_, source)) = definitions.get(name) {
                let message = format!(
                    "{}: Service {}/{} gets no address of the board, since it needs port {conflict}",
                    source.display(),
                    name.1,
                    name.2
                );
                refusals.push(Refusal { source: source.clone(), object: Some(name.clone()), message });
            }
        }
        self.publish_completed();
        (refusals, changed)
    }

    /// The message about a change of an object that the registry makes.
    pub(super) fn refuse_change_of_made(&self, name: &DefinitionName) -> Option<Status> {
        if !self.services.published.contains(name) || self.definitions.contains_key(name) {
            return None;
        }
        let object = self.published_definition(name)?;
        let service = object["metadata"]["labels"]["kubernetes.io/service-name"].as_str().unwrap_or(&name.2);
        Some(Status::forbidden(format!(
            "{} \"{}\" is forbidden: it is made of Service {}/{service}: change the Service or its pods",
            name.0.row().qualified(),
            name.2,
            name.1,
        )))
    }
}

impl Services {
    /// Completes a Service of a file, which is that of a client or of the operator.
    fn complete(
        &mut self,
        name: &DefinitionName,
        mut object: Value,
        is_of_client: bool,
    ) -> Result<Value, CompletionError> {
        self.check_external_ips(&object)?;
        let of = service_name(name);
        let mut old = self.allocations.held(&of).map(|held| json!({"spec": held}));
        // With other ranges than before, it gets other addresses. A client's file still has the earlier ones.
        old.iter_mut().for_each(|old| self.allocations.remove_strange_addresses(old));
        if is_of_client {
            self.allocations.remove_strange_addresses(&mut object);
        }
        adopt(old.as_ref(), &mut object);
        self.allocations.complete(&of, old.as_ref(), &mut object)?;
        Ok(object)
    }

    /// Checks that the operator allows all `externalIPs`.
    fn check_external_ips(&self, object: &Value) -> Result<(), CompletionError> {
        let ips = object["spec"]["externalIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let is_allowed = |ip: &str| {
            let address = ip.parse::<IpAddr>();
            address.is_ok_and(|address| {
                self.external_ips_allowed.iter().any(|range| is_in_range(address, *range))
            })
        };
        match ips.enumerate().find(|(_, ip)| !is_allowed(ip)) {
            Some((index, ip)) => Err(CompletionError::ExternalIp { index, ip: ip.to_owned() }),
            None => Ok(()),
        }
    }
}

/// Whether an address has the leading bits of another one.
fn is_in_range(address: IpAddr, (base, prefix): (IpAddr, u8)) -> bool {
    let same = |address: u128, base: u128, bits: u32| {
        let other = bits.saturating_sub(u32::from(prefix));
        address.checked_shr(other).unwrap_or(0) == base.checked_shr(other).unwrap_or(0)
    };
    match (address, base) {
        (IpAddr::V4(address), IpAddr::V4(base)) => same(address.to_bits().into(), base.to_bits().into(), 32),
        (IpAddr::V6(address), IpAddr::V6(base)) => same(address.to_bits(), base.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// The reply to a Service that cannot have what it requests.
fn status(name: &str, error: CompletionError) -> Status {
    let error = match error {
        CompletionError::ExternalIp { .. } => {
            return Status::forbidden(format!("services \"{name}\" is forbidden: {error}"));
        }
        CompletionError::Allocation(error) => error,
    };
    match error {
        AllocationError::Invalid { field, value, detail } => {
            let body = format!("Invalid value: {value}: {detail}");
            let cause = json!({"reason": "FieldValueInvalid", "message": body, "field": field});
            Status::invalid(
                "Service",
                name,
                format!("Service \"{name}\" is invalid: {field}: {body}"),
                vec![cause],
            )
        }
        AllocationError::Full(_) => Status::internal(error),
        AllocationError::TooMany | AllocationError::NotServed => {
            Status::forbidden(format!("services \"{name}\" is forbidden: {error}"))
        }
    }
}

fn service_name(name: &DefinitionName) -> ServiceName {
    (Box::from(&*name.1), Box::from(&*name.2))
}
