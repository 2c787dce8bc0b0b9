//! Services: gives the registry what it decides by (pods, ports and addresses of the board), saves what it allocates, and
//! puts its decisions into effect, in the kernel (`host/src/network/services.rs`) and in the name server of the pods
//! (`services/names.rs`). Without a Service there is no table, no route and no file, and nothing here costs anything but
//! names, and the list of listening sockets when the agent starts.

mod names;
mod ports;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use nodlet_cluster::api::random;
use nodlet_cluster::backoff::Backoff;
use nodlet_core::facts::NodePort;
use nodlet_core::pod::PodState;
use nodlet_core::spec::Pod;
use nodlet_host::error::chain;
use nodlet_host::network::NetworkError;
use nodlet_host::paths::Paths;
use nodlet_kernel::own_file;
use nodlet_registry::{NodeEvent, Owner, ServiceView, Wanted};
use nodlet_services::allocation::ReservedPort;
use nodlet_services::catalog::Catalog;
use nodlet_services::data_path::DataPath;
use nodlet_services::environment;
use nodlet_services::service::{Protocol, ServiceType};
use nodlet_services::slices::PodEndpoint;
use smol::Task;

use super::config::ServicesOf;
use super::machine::Machine;
use super::message::Message;
use super::publication::Publication;
use super::{Engine, Shell};
use crate::sources;
use names::Names;
pub(super) use names::dns_of;

pub(in crate::engine) use ports::listening;

/// The most bytes of saved allocations: far more than there are Services in manifests.
const MAX_BYTES: u64 = 4 << 20;

/// Services, as far as the agent has put them into effect.
pub(super) struct Services {
    of: ServicesOf,
    /// The ranges of the addresses of Services.
    ranges: Vec<(IpAddr, u8)>,
    machine: Rc<Machine>,
    publication: Rc<Publication>,
    /// The name server of the pods.
    pub(super) names: Names,
    /// The Services with their endpoints, as they were published last.
    catalog: RefCell<Rc<Catalog>>,
    /// Where the kernel leads connections, as soon as it has the rest of the table.
    applied: RefCell<DataPath>,
    /// Sends the rest of a large table.
    rest: RefCell<Option<Task<()>>>,
    /// Whether the kernel may have a table of an earlier agent.
    may_have_table: Cell<bool>,
    /// The last failure to change the table, which was reported.
    failure: RefCell<Option<String>>,
    /// The waits between the attempts after a failure, and the timer of the next one.
    backoff: Cell<Backoff>,
    retry: RefCell<Option<Task<()>>>,
    /// The ports on which processes of the board listen, as they were read last.
    listening: RefCell<Vec<ReservedPort>>,
}

impl Services {
    /// Reads the ranges of the configuration.
    ///
    /// # Errors
    /// The text of a range is wrong.
    pub(super) fn new(
        configured: &super::config::Services,
        paths: &Paths,
        machine: Rc<Machine>,
        publication: Rc<Publication>,
    ) -> Result<Services, NetworkError> {
        let ranges = match configured.of {
            ServicesOf::Nobody => Vec::new(),
            ServicesOf::Board | ServicesOf::Cluster => {
                machine.network.borrow().service_ranges(paths, configured.cidr.as_deref())?
            }
        };
        Ok(Services {
            of: configured.of,
            ranges,
            machine,
            publication,
            names: Names::default(),
            catalog: RefCell::default(),
            applied: RefCell::default(),
            rest: RefCell::default(),
            may_have_table: Cell::new(paths.service_allocations().exists()),
            failure: RefCell::default(),
            backoff: Cell::default(),
            retry: RefCell::default(),
            listening: RefCell::default(),
        })
    }

    /// Whether the board serves Services.
    pub(super) fn are_served(&self) -> bool {
        self.of != ServicesOf::Nobody
    }

    /// The variables of the Services of a pod's namespace. Pods of a cluster have those of their cluster.
    pub(super) fn variables(&self, paths: &Paths, wanted: &Wanted) -> Vec<(String, String)> {
        let catalog = self.catalog.borrow();
        if catalog.services.is_empty()
            || !wanted.pod.spec.service_links
            || sources::owner_of(paths, &wanted.source) == Some(Owner::Cluster)
        {
            return Vec::new();
        }
        let of_namespace = catalog.services.iter().filter(|((of, _), _)| **of == *wanted.pod.namespace);
        environment::variables(of_namespace.map(|(_, entry)| &entry.service))
    }

    /// Makes the kernel lead connections to the endpoints of these Services.
    fn apply(&self, shell: &Rc<Shell>, catalog: Rc<Catalog>) {
        let may_differ = self.failure.borrow().is_some() || self.may_have_table.get();
        if Rc::ptr_eq(&self.catalog.borrow(), &catalog) && !may_differ {
            return;
        }
        let path = DataPath::of(&catalog, &shell.config.node_name);
        *self.catalog.borrow_mut() = catalog;
        let is_applied = *self.applied.borrow() == path && self.failure.borrow().is_none();
        if is_applied && !(path.ports.is_empty() && self.may_have_table.take()) {
            return;
        }
        let applied = self.apply_path(shell, path);
        self.report(shell, applied);
    }

    /// Reports a failure to change the table, and tries again after a while.
    fn report(&self, shell: &Shell, applied: Result<(), NetworkError>) {
        let failure = applied.err().map(|error| chain(&error));
        let mut reported = self.failure.borrow_mut();
        if let Some(why) = failure.as_ref().filter(|_| *reported != failure) {
            let text =
                format!("connections to Services go nowhere, or where they went before: failed to {why}");
            self.publication.emit_of_node(NodeEvent::Machine("ServicesFailed", &text));
        }
        *reported = failure;
        *self.retry.borrow_mut() = self.wait_before_retry(reported.is_some()).map(|wait| {
            let tasks = shell.tasks.clone();
            shell.tasks.start(async move {
                smol::Timer::after(wait).await;
                tasks.send(Message::AddressesChanged).await;
            })
        });
    }

    /// The time until the next attempt, if the last one has failed.
    fn wait_before_retry(&self, has_failed: bool) -> Option<Duration> {
        let mut backoff = self.backoff.take();
        let wait = has_failed.then(|| backoff.failed(random()))?;
        self.backoff.set(backoff);
        Some(wait)
    }

    fn apply_path(&self, shell: &Rc<Shell>, path: DataPath) -> Result<(), NetworkError> {
        self.rest.take();
        let mut network = self.machine.network.borrow_mut();
        let changes = network.apply_services(&path, &self.ranges)?;
        if path.ports.is_empty() {
            network.unroute_services();
        } else {
            network.route_services(&self.ranges)?;
        }
        let warning = network.services_warning();
        drop(network);
        *self.applied.borrow_mut() = path;
        self.may_have_table.set(false);
        shell.firewall.follow(warning);
        if changes.has_more {
            let sends = shell.clone();
            let rest = shell.tasks.start(async move { sends.services.send_rest(&sends).await });
            *self.rest.borrow_mut() = Some(rest);
        }
        Ok(())
    }

    /// Sends the rest of a large table in parts, between which the loop runs.
    async fn send_rest(&self, shell: &Shell) {
        loop {
            smol::future::yield_now().await;
            let sent = self.machine.network.borrow_mut().proceed_with_services();
            if !sent.as_ref().is_ok_and(|changes| changes.has_more) {
                return self.report(shell, sent.map(drop));
            }
        }
    }

    /// Makes the routes again that the kernel has removed with the bridge or its address.
    pub(super) fn repair_routes(&self) {
        if self.have_addresses()
            && let Err(error) = self.machine.network.borrow_mut().route_services(&self.ranges)
        {
            let text = chain(&error);
            log::error!("failed to {text}");
            // The next call of `apply` tries again.
            *self.failure.borrow_mut() = Some(text);
        }
    }

    /// Removes what an earlier agent left in the kernel that served Services.
    fn remove_left(&self) {
        if !self.may_have_table.take() {
            return;
        }
        let mut network = self.machine.network.borrow_mut();
        if let Err(error) = network.apply_services(&DataPath::default(), &[]) {
            log::error!("connections to Services of an earlier agent go on: failed to {}", chain(&error));
        }
        network.unroute_services();
    }

    /// Whether there are Services.
    pub(super) fn are_there(&self) -> bool {
        !self.catalog.borrow().services.is_empty()
    }

    /// Whether there are Services with addresses.
    fn have_addresses(&self) -> bool {
        !self.applied.borrow().ports.is_empty()
    }
}

impl Engine {
    /// Serves Services from now on: reports ranges that the machine uses otherwise, and restores what an earlier agent
    /// allocated. Call this before the first file is read.
    pub(super) fn begin_services(&mut self) {
        let services = self.shell.services.clone();
        if self.shell.config.down {
            return;
        }
        if !services.are_served() {
            return services.remove_left();
        }
        match self.shell.machine.network.borrow().service_overlap(&services.ranges) {
            Ok(None) => {}
            Ok(Some(overlap)) => {
                let text = overlap.to_string();
                self.shell.publication.emit_of_node(NodeEvent::Machine("ServiceRangeOverlaps", &text));
            }
            Err(error) => log::warn!("failed to {}", chain(&error)),
        }
        let configured = &self.shell.config.services;
        self.registry.serve_ranges(
            &services.ranges,
            configured.node_ports.clone(),
            configured.external_ips.clone(),
        );
        let path = self.shell.paths.service_allocations();
        let restored = match read_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => Err(error.to_string()),
            Ok(bytes) => self.registry.restore_allocations(&bytes).map_err(|error| chain(&error)),
        };
        if let Err(why) = restored {
            log::error!(
                "Services without addresses of their own may get others: failed to read {}: {why}",
                path.display()
            );
        }
    }

    /// Runs the name server for the pods that an earlier agent has left, now that the Services are known, and as soon as the
    /// name servers of the machine are: until then, queries wait.
    pub(super) fn resume_names(&self) {
        let shell = self.shell.clone();
        self.shell.tasks.spawn(async move {
            shell.services.names.read_upstreams(&shell).await;
            shell.services.names.resume(&shell);
        });
    }

    /// Publishes the endpoints of Services as the pods are now, and puts them into effect.
    pub(super) fn serve_services(&mut self) {
        let services = self.shell.services.clone();
        if self.shell.config.down || !services.are_served() {
            return;
        }
        let (catalog, taken) = if self.registry.has_services() || services.are_there() {
            self.publish_services()
        } else {
            // Names of pods need no Service.
            let namespaces = self.node.pods().map(|state| (*state.pod().namespace).into()).collect();
            (Rc::new(Catalog { namespaces, ..Catalog::default() }), Vec::new())
        };
        self.save_allocations();
        services.apply(&self.shell, catalog.clone());
        self.set_node_ports(taken);
        services.names.update(catalog, || self.pod_addresses());
    }

    /// Publishes Services. Returns them, and the ports of the board that they have. None of these is new and one on which
    /// a process listens.
    fn publish_services(&mut self) -> (Rc<Catalog>, Vec<NodePort>) {
        let now = self.shell.machine.timestamp(nodlet_host::clock::instant());
        let view = ServiceView { pods: self.pod_endpoints(), board: self.board_addresses(), now: &now };
        self.reserve_host_ports();
        let catalog = self.registry.publish_services(&view);
        let taken = node_ports(&catalog, &view.board);
        let has_new = has_new_port(&taken, &self.shell.machine.node_ports.borrow());
        if !has_new || !self.reserve_ports() {
            return (catalog, taken);
        }
        let catalog = self.registry.publish_services(&view);
        let taken = node_ports(&catalog, &view.board);
        (catalog, taken)
    }

    /// Saves what the registry has allocated, in a task; [`Engine::write`] waits for it.
    pub(super) fn save_allocations(&mut self) {
        match self.registry.allocations() {
            Some(bytes) => self.shell.stores.set_allocations(bytes),
            None if self.shell.stores.take_failed_allocations() => {}
            None => return,
        }
        let shell = self.shell.clone();
        let saved = async move { shell.stores.save_allocations(&shell.paths).await };
        self.shell.tasks.log_failure(saved, |error| {
            format!("failed to save the addresses of Services: {error}; after a reboot they may be others")
        });
    }

    /// The addresses of the board, under which other machines reach it.
    fn board_addresses(&self) -> Vec<IpAddr> {
        self.shell.machine.network.borrow().board_addresses().unwrap_or_else(|error| {
            log::error!("load balancers have no address: failed to list the board's addresses: {error}");
            Vec::new()
        })
    }

    fn set_node_ports(&mut self, taken: Vec<NodePort>) {
        if *self.shell.machine.node_ports.borrow() != taken {
            *self.shell.machine.node_ports.borrow_mut() = taken;
            self.observe_node();
        }
    }

    /// The pods that are shown, as endpoints.
    fn pod_endpoints(&self) -> Vec<PodEndpoint> {
        self.node.pods().filter(|state| !state.is_hidden()).map(|state| self.pod_endpoint(state)).collect()
    }

    fn pod_endpoint(&self, state: &PodState) -> PodEndpoint {
        let pod = state.pod();
        let text = |text: &Option<String>| text.as_deref().map(Box::from);
        PodEndpoint {
            namespace: (*pod.namespace).into(),
            name: (*pod.name).into(),
            uid: (*pod.uid.0).into(),
            labels: pod.labels.iter().map(|(key, value)| ((**key).into(), (**value).into())).collect(),
            addresses: self.addresses_of(state),
            is_ready: state.is_ready(),
            is_terminating: state.deletion().is_some(),
            has_ended: state.phase().is_terminal(),
            hostname: text(&pod.spec.hostname),
            subdomain: text(&pod.spec.subdomain),
            node: (*self.shell.config.node_name).into(),
            ports: named_ports(pod).collect(),
        }
    }

    /// `status.podIPs` of a pod.
    fn addresses_of(&self, state: &PodState) -> Vec<IpAddr> {
        let (pod, network) = (state.pod(), self.shell.machine.network.borrow());
        if pod.spec.host_network {
            let ipv6 = network.host_ipv6().map(IpAddr::V6);
            let addresses = network.host_ip().map(IpAddr::V4).into_iter().chain(ipv6);
            return if state.has_run() { addresses.collect() } else { Vec::new() };
        }
        let ipv4 = state.ip().map(IpAddr::V4);
        ipv4.into_iter().chain(network.ipv6_of(&pod.uid).map(IpAddr::V6)).collect()
    }

    /// The addresses of all pods that have one of their own, with the namespaces of the pods.
    fn pod_addresses(&self) -> BTreeSet<(IpAddr, Box<str>)> {
        let has_own = |state: &&PodState| {
            !state.is_hidden() && !state.phase().is_terminal() && !state.pod().spec.host_network
        };
        let pods = self.node.pods().filter(has_own);
        pods.flat_map(|state| {
            let namespace: &str = &state.pod().namespace;
            self.addresses_of(state).into_iter().map(move |address| (address, namespace.into()))
        })
        .collect()
    }
}

/// The named ports of containers and of sidecars.
fn named_ports(pod: &Pod) -> impl Iterator<Item = (Box<str>, Protocol, u16)> {
    let sidecars = pod.spec.init_containers.iter().filter(|container| container.sidecar);
    let ports = pod.spec.containers.iter().chain(sidecars).flat_map(|container| &container.ports);
    ports.filter_map(|port| {
        let name = port.name.as_deref()?;
        Some((name.into(), Protocol::named(&port.protocol)?, port.container_port))
    })
}

/// The ports of the board that Services have: node ports, also those of health checks, and those of load balancers that have
/// one of the board's addresses.
fn node_ports(catalog: &Catalog, board: &[IpAddr]) -> Vec<NodePort> {
    let mut taken = Vec::new();
    for entry in catalog.services.values() {
        let service = &entry.service;
        let is_at_board = service.kind == ServiceType::LoadBalancer
            && service.external_ips.iter().any(|address| board.contains(address));
        let taken_by = |number: u16, protocol: Protocol| NodePort {
            port: number,
            protocol: protocol.as_str().to_owned(),
            service: format!("{}/{}", service.namespace, service.name),
        };
        for port in &service.ports {
            let balanced = is_at_board.then_some(port.port);
            let numbers = port.node_port.into_iter().chain(balanced);
            taken.extend(numbers.map(|number| taken_by(number, port.protocol)));
        }
        taken.extend(service.health_check_port.map(|number| taken_by(number, Protocol::Tcp)));
    }
    taken
}

/// Whether a port is taken that was not before.
fn has_new_port(taken: &[NodePort], before: &[NodePort]) -> bool {
    let is_same = |one: &NodePort, other: &NodePort| one.port == other.port && one.protocol == other.protocol;
    taken.iter().any(|port| !before.iter().any(|other| is_same(port, other)))
}

/// Reads a file of at most [`MAX_BYTES`].
fn read_file(path: &std::path::Path) -> io::Result<Vec<u8>> {
    let found = std::fs::symlink_metadata(path)?;
    if !found.is_file() {
        // Reading a pipe would never end.
        return Err(io::Error::other("it is not a file"));
    }
    if found.len() > MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
    }
    own_file::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_health_check_is_taken_although_nobody_serves_it() {
        let service = nodlet_services::service::Service::parse(&serde_json::json!({
            "metadata": {"namespace": "default", "name": "a"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.86.0.9", "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 30900, "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053}],
            },
        }));
        let service = service.expect("it is valid");
        let name = (service.namespace.clone(), service.name.clone());
        let entry = nodlet_services::catalog::Entry { service, slices: Vec::new() };
        let catalog = Catalog { services: [(name, entry)].into(), ..Catalog::default() };
        let taken = node_ports(&catalog, &[]);
        let taken: Vec<(u16, &str)> = taken.iter().map(|one| (one.port, &*one.protocol)).collect();
        assert_eq!(taken, [(30053, "UDP"), (30900, "TCP")]);
    }

    #[test]
    fn a_port_is_new_that_no_service_had() {
        let port = |port, protocol: &str, service: &str| NodePort {
            port,
            protocol: protocol.to_owned(),
            service: service.to_owned(),
        };
        let before = [port(22, "TCP", "default/a")];
        assert!(!has_new_port(&[], &before));
        assert!(!has_new_port(&[port(22, "TCP", "default/b")], &before));
        assert!(has_new_port(&[port(22, "UDP", "default/a")], &before));
        assert!(has_new_port(&[port(22, "TCP", "default/a"), port(80, "TCP", "default/a")], &before));
    }
}
