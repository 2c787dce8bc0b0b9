//! The agent: one loop of wait, observe, plan and perform (`engine/main_loop.rs`).
//!
//! The core decides about pods, and the registry about the desired state. The engine carries out their decisions,
//! mostly in small tasks on the same thread, and reports the results to the core. Nothing here waits for flash
//! (`storage_thread` does) or for the network: a card that takes seconds for a read delays what needs the read, and no
//! probe. Starting up is not special: `recover` finds what exists, and then the loop starts.
//!
//! The loop and its tasks share a `Shell`, which only joins its parts: `engine/tasks.rs`, `engine/flash.rs` (flash),
//! `engine/machine.rs`, `engine/publication.rs`, `engine/pods.rs` and a few smaller ones. Each part owns its state
//! and has its methods; functions elsewhere take the parts that they need.
//!
//! Read next: `engine/sandbox.rs` and `engine/run.rs`, which perform actions; `engine/pod_objects.rs`, which publishes
//! the pods.

mod changes;
mod claims;
mod cleanup;
mod cluster;
mod config;
mod cores;
mod descriptors;
mod devices;
mod ephemeral;
mod error;
mod exec;
mod fencing;
mod flash;
mod handles;
mod handover_files;
mod heartbeat;
mod held_updates;
mod images;
mod kernel_events;
mod lifecycle;
mod machine;
mod main_loop;
mod manifests;
mod message;
mod network;
mod perform;
mod pod_objects;
mod pods;
mod pressure;
mod publication;
mod reconcile;
mod recover;
mod reports;
mod requests;
mod root;
mod run;
mod sandbox;
mod services;
mod shutdown;
mod stats;
mod stop;
mod stored;
mod tasks;
#[cfg(test)]
mod tests;
mod this_node;
mod turns;
mod volumes;

use std::cell::RefCell;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use nodlet_rootfs::Store as Images;
use smol::Async;

use crate::api::{self, Request};
use crate::at_rest::AtRest;
use crate::handling::Handling;
use crate::records::Records;
use crate::ring::SharedRing;
use crate::sources::ManifestDirectories;
use crate::storage_thread::Storage;
use nodlet_core::facts::{Attempt, Observation, PodIndex, PodObservation, Shutdown, ShutdownScope};
use nodlet_core::node::{Node, NodeChange};
use nodlet_host::cgroup::Cgroups;
use nodlet_host::error::chain;
use nodlet_host::network::Network;
use nodlet_host::paths::Paths;
use nodlet_host::watches::Watches;
use nodlet_registry::objects::Objects;
use nodlet_registry::{Events, NodeEvent, Registry, Wanted, excessive_reservations};

pub use crate::pod_files::{ClusterDns, RESOLV_CONF};
use changes::Changes;
use cluster::link::ClusterLink;
pub use config::{Config, Services, ServicesOf};
use cores::Cores;
use devices::{DeviceParts, Devices};
pub use error::EngineError;
use exec::Execs;
use flash::Flash;
use images::collection::ImageUse;
use images::pull::Pulls;
pub use images::{CHECK_REGISTRY, ImageCollection, ImageLimitError, PULL, image_store_limit};
pub use machine::Eviction;
use machine::Machine;
use message::Message;
use network::firewall::Firewall;
use network::resolver;
pub use nodlet_registry::EVENTS;
use pods::Pods;
use publication::Publication;
use run::Layers;
use tasks::{MESSAGES, Tasks};
use volumes::Volumes;

/// Requests of the API that may wait for the loop.
const REQUESTS: usize = 64;

/// The parts of the agent that the loop and its tasks share, on one thread.
struct Shell {
    config: Config,
    paths: Paths,
    tasks: Rc<Tasks>,
    stores: Rc<Flash>,
    machine: Rc<Machine>,
    handling: Handling,
    publication: Rc<Publication>,
    pods: Rc<Pods>,
    layers: RefCell<Layers>,
    execs: Rc<Execs>,
    volumes: Volumes,
    start_reservations: descriptors::StartReservations,
    start_turns: turns::Turns,
    devices: Rc<Devices>,
    cores: Rc<Cores>,
    pulls: Rc<Pulls>,
    firewall: Rc<Firewall>,
    services: Rc<services::Services>,
    /// With a fencing period.
    fences: Option<fencing::Fences>,
    /// The instance of inotify of the agent.
    watches: Watches,
}

impl Shell {
    /// The server of the API; its clients are bounded.
    fn api(
        &self,
        requests: &async_channel::Sender<Request>,
        ring: &Rc<SharedRing>,
        clients: usize,
    ) -> api::Api {
        api::Api {
            objects: self.publication.objects.clone(),
            requests: requests.clone(),
            root: self.config.root.clone(),
            storage: self.stores.storage.clone(),
            node_name: self.config.node_name.clone(),
            watches: self.watches.clone(),
            ring: ring.clone(),
            places: api::Places::new(clients),
        }
    }
}

/// The agent.
pub struct Engine {
    node: Node,
    ring: Rc<SharedRing>,
    shell: Rc<Shell>,
    inbox: Receiver<Message>,
    requests: Receiver<Request>,
    /// The API and its socket, until it is served. Clients that connect earlier wait.
    unserved_api: Option<(api::Api, Option<Async<UnixListener>>)>,
    registry: Registry,
    manifest_reads: manifests::ManifestReads,
    changes: Changes,
    image_use: ImageUse,
    cluster: ClusterLink,
    /// The sender of the API's requests.
    request_sender: async_channel::Sender<Request>,
    /// The files of earlier boots were removed.
    swept: bool,
    _lock: nix::fcntl::Flock<std::fs::File>,
}

impl Engine {
    /// Locks the root, reads what exists below it, and opens the API.
    ///
    /// # Errors
    /// Another agent uses the root, or the machine lacks something that pods need.
    pub fn start(config: Config) -> Result<Engine, EngineError> {
        let paths = Paths::new(&config.root);
        kernel_events::block_ends()?;
        let lock = root::take_root(&paths)?;
        let storage = Storage::start().map_err(|source| EngineError::Kernel { what: "a thread", source })?;
        let images = Arc::new(Images::open(&config.root).map_err(EngineError::Images)?);
        // A disk that rejects this now is no reason to run no pods.
        if let Err(error) = images.tidy() {
            log::warn!("failed to {}", chain(&error));
        }
        let network = if config.down {
            Network::without_range(&paths)
        } else {
            let network = Network::new(&paths, config.pod_cidr.as_deref(), config.masquerade)
                .map_err(EngineError::Network)?;
            // Pods with hostNetwork run nevertheless, and the machine's addresses may have changed when another pod needs
            // one.
            if let Err(error) = network.check_range() {
                log::warn!("no pod with a network of its own will start: failed to {}", chain(&error));
            }
            network
        };
        // After what may be wrong with the flags: nothing is left of an agent that does not start.
        let cgroups = Cgroups::open(&paths, config.pod_pids_limit).map_err(EngineError::Cgroups)?;
        let sources = crate::sources::list(&paths);
        let directories = if config.down { &[][..] } else { &sources };
        let devices = (!config.down).then(|| paths.device_files());
        let watches = Watches::default();
        let at_rest = Arc::new(AtRest::of(config.encryption_key_file.clone()));
        let (node, of_sources) = (&config.node_name, at_rest.clone());
        let directories =
            ManifestDirectories::new(directories, devices.as_deref(), node, of_sources, watches.clone());
        let (messages, inbox) = async_channel::bounded(MESSAGES);
        let (request_sender, requests) = async_channel::bounded(REQUESTS);
        // Versions never go back while the boot lasts: the clock ticks faster than objects change.
        let ring = SharedRing::begin();
        let objects = Rc::new(Objects::new(nodlet_host::clock::instant().0 / 1000));
        let mut registry = Registry::new(sources, &config.node_name, objects.clone());
        registry.allowed_annotations = config.allowed_annotations.clone();
        let capacity = root::capacity_of_the_machine(&paths, config.max_pods);
        let has_swap = root::swap_of_the_machine() > 0;
        let why =
            if has_swap { "the memory controller is not cgroup v2's" } else { "the machine has no swap" };
        if config.limited_swap && !(has_swap && cgroups.limits_swap()) {
            log::warn!("--memory-swap-behavior LimitedSwap has no effect: {why}");
        }
        let machine = Rc::new(Machine::new(capacity, cgroups, network, &config.eviction));
        *machine.cluster_labels.borrow_mut() = cluster::labels::stored(&paths);
        let events = Events::new(objects.clone(), &config.node_name, config.max_events);
        let fencing_period = config.fencing_period.filter(|_| !config.down);
        let reserve = paths.reserve();
        let fences = fencing_period.map(|period| fencing::Fences::begin(period, &paths));
        let records = Records::new(paths.records());
        let (tasks, pods) = (Rc::new(Tasks::new(messages)), Rc::new(Pods::default()));
        let publication = Rc::new(Publication::new(objects, events, machine.clone()));
        let mut configured = config.services.clone();
        if config.down {
            configured.of = ServicesOf::Nobody;
        }
        let services = services::Services::new(&configured, &paths, machine.clone(), publication.clone());
        let services = Rc::new(services.map_err(EngineError::Network)?);
        let execs = Rc::new(Execs::new(pods.clone()));
        let volumes = Volumes::new(paths.clone(), storage.clone());
        let pulls = Rc::new(Pulls::new(paths.root(), storage.clone(), images.clone()));
        let handling = Handling::begin(&paths, records.boot_id());
        let stores = Rc::new(Flash::new(storage, images, records, reserve, at_rest));
        let shell = Rc::new(Shell {
            fences,
            volumes,
            handling,
            devices: Devices::new(DeviceParts {
                paths: paths.clone(),
                watches: watches.clone(),
                machine: machine.clone(),
                pods: pods.clone(),
                execs: execs.clone(),
                publication: publication.clone(),
                tasks: tasks.clone(),
            }),
            cores: Cores::new(machine.clone(), pods.clone(), &paths),
            firewall: Firewall::new(machine.clone(), publication.clone(), services.clone(), tasks.clone()),
            services,
            stores,
            paths,
            tasks,
            publication,
            machine,
            pods,
            layers: RefCell::new(Layers::default()),
            execs,
            start_reservations: descriptors::StartReservations::default(),
            start_turns: turns::Turns::default(),
            pulls,
            watches,
            config,
        });
        this_node::keep_memory(&shell.config, &shell.machine);
        for warning in excessive_reservations(&this_node::facts(&shell.config, &shell.machine)) {
            log::warn!(
                "--kube-reserved and --system-reserved: {warning} Pods that request this resource will not start"
            );
        }
        let unserved_api = if shell.config.down {
            None
        } else {
            let api = shell.api(&request_sender, &ring, shell.config.max_connections);
            let listener = root::listen(&shell.paths)?;
            api::push::finish(&shell.config.root);
            Some((api, listener))
        };
        Ok(Engine {
            node: Node::new(),
            ring,
            shell,
            inbox,
            requests,
            unserved_api,
            registry,
            manifest_reads: manifests::ManifestReads::new(directories),
            changes: Changes::default(),
            image_use: ImageUse::default(),
            cluster: ClusterLink::default(),
            request_sender,
            swept: false,
            _lock: lock,
        })
    }

    /// Runs until SIGTERM, which leaves the pods as they are; with `down`, until no pod is left.
    ///
    /// # Errors
    /// The kernel no longer provides a facility that the loop needs.
    pub fn run(mut self) -> Result<(), EngineError> {
        let shell = self.shell.clone();
        // Boxed, so that the loop is no part of this function: its stack would stay in memory below that of
        // `start`.
        let run: Pin<Box<dyn Future<Output = Result<(), EngineError>>>> = Box::pin(async move {
            let down = self.shell.config.down;
            kernel_events::watch(&self.shell.tasks, &self.shell.watches, &self.shell.stores, down)?;
            fencing::watch(&self.shell)?;
            self.publish_node();
            self.observe_node();
            self.shell.publication.emit_of_node(NodeEvent::Starting);
            if let Some((reason, message)) = &self.shell.config.warning {
                self.shell.publication.emit_of_node(NodeEvent::Machine(reason, message));
            }
            // Before pods are found: whether a file of theirs is refused decides if they stay.
            self.read_bindings();
            self.begin_services();
            self.first_read().await;
            if self.shell.services.are_served() {
                self.reserve_ports();
            }
            self.read_definitions();
            for found in recover::find_pods(&self.shell).await? {
                self.observe_found(found);
            }
            // An agent that ends all pods has read no device files.
            if !self.shell.config.down {
                self.shell.devices.resume();
                self.shell.firewall.restore();
            }
            self.shell.cores.resume();
            if self.shell.config.down {
                let groups = self.shell.config.shutdown_groups.clone();
                self.observe(Observation::Shutdown(Shutdown { scope: ShutdownScope::Agent, groups }));
            } else {
                let kept = self.kept();
                self.look_up_first(kept).await;
                self.reconcile();
                self.resume_names();
            }
            self.observe(Observation::SourcesSeen);
            self.report_fence();
            // An agent that ends all pods knows no sources: it would take the records of wanted pods for remains.
            if !self.shell.config.down {
                self.sweep();
            }
            self.publish_changed();
            let paths = &self.shell.paths;
            let of_cluster = [paths.cluster_credentials(), paths.bootstrap_kubeconfig()];
            let has_cluster = of_cluster.iter().any(|path| path.exists());
            self.open_api();
            self.collect_images();
            if !self.shell.config.down {
                // After the jobs of the first pods: they need not wait for it.
                self.shell.stores.replenish();
                pressure::watch_stalls(self.shell.tasks.clone());
            }
            resolver::follow(&self.shell);
            if !self.shell.config.down && has_cluster {
                self.follow_cluster();
            }
            if !self.shell.config.down && !self.shell.config.shutdown_groups.is_empty() {
                let needed = self.shell.config.shutdown_groups.iter().map(|group| group.grace).sum();
                let (state, tasks) = (self.shell.machine.shutdown.clone(), self.shell.tasks.clone());
                self.shell.tasks.spawn(shutdown::follow(needed, state, tasks));
            }
            let service = self.report_to_service();
            self.report_progress();
            self.run_loop().await;
            if let Some(service) = service {
                service.ends();
            }
            let pods = self.shell.pods.borrow().len();
            if !self.shell.config.down {
                log::info!(
                    "the agent ends, and leaves its pods ({pods}) to the next agent or to nodlet down"
                );
                return Ok(());
            }
            if pods > 0 {
                return Err(EngineError::Interrupted { pods });
            }
            cleanup::clean_up(&self.shell.machine, &self.shell.stores, &self.shell.paths).await
        });
        smol::block_on(shell.tasks.executor.run(run))
    }

    /// Starts to serve the API. Called when all pods are published: clients would take a missing pod for one that is
    /// gone.
    fn open_api(&mut self) {
        let Some((api, listener)) = self.unserved_api.take() else { return };
        let shell = self.shell.clone();
        self.shell.tasks.spawn(async move {
            let listener = match listener {
                Some(listener) => Ok(listener),
                None => root::listen_when_there_is_room(&shell.paths).await,
            };
            let listener = match listener {
                Ok(listener) => listener,
                Err(error) => return log::error!("no API: {}", chain(&error)),
            };
            log::info!(
                "nodlet {} runs the pods of node {} below {}; its API is on {}",
                crate::built_from::version(env!("CARGO_PKG_VERSION")),
                shell.config.node_name,
                shell.config.root.display(),
                shell.paths.api_socket().display()
            );
            if let Err(error) = api::serve(api, listener).await {
                log::error!("the API has ended: {error}");
            }
        });
    }

    fn observe(&mut self, seen: Observation) {
        self.observe_with(seen, None);
    }

    /// Reports an observation to the core; `wanted` is the admitted pod of one that contains a whole pod.
    fn observe_with(&mut self, seen: Observation, wanted: Option<&Wanted>) {
        let now = nodlet_host::clock::instant();
        self.ring.observed(now, &self.node, &seen, wanted.map(|wanted| &wanted.object));
        let mut is_without_sandbox = None;
        if let Observation::Of(pod, seen) = &seen {
            stop::forget_what_ended(&self.shell.pods, *pod, seen);
            self.shell.cores.settle();
            let is_over = matches!(
                seen,
                PodObservation::SandboxFailed { remains: false, .. } | PodObservation::SandboxRemoved
            );
            is_without_sandbox = is_over.then_some(*pod);
            if let PodObservation::Probed { attempt, kind, result } = seen {
                self.cluster.probed(*pod, *attempt, *kind, result);
            }
        }
        self.node.observe(now, seen);
        let node = &self.node;
        self.shell.pulls.end(|pod| node.pod(pod).is_some_and(|state| !state.is_unwanted()));
        if let Some(pod) = is_without_sandbox {
            self.release_claims(pod);
        }
    }

    fn publish_changed(&mut self) {
        let (mut any, mut any_is_over) = (false, false);
        for change in self.node.take_changed() {
            any = true;
            match change {
                NodeChange::Status(pod) => {
                    self.publish(pod);
                    any_is_over |= self.node.pod(pod).is_some_and(|pod| pod.phase().is_terminal());
                }
                NodeChange::Gone { index, was_hidden, again, .. } => self.withdraw(index, was_hidden, again),
            }
        }
        if any_is_over {
            self.collect_terminated();
        }
        if any {
            self.serve_services();
        }
        if self.is_any_hold_over() {
            self.reconcile();
        }
    }

    /// Reports to the core what the node has.
    fn observe_node(&mut self) {
        let info = this_node::info(&self.shell.config, &self.shell.machine);
        self.observe(Observation::Node(Box::new(info)));
    }

    /// Publishes the Node object.
    fn publish_node(&self) {
        this_node::publish(&self.shell);
    }

    fn clock_was_set(&mut self) {
        self.shell.machine.clock_was_set();
        self.publish_node();
        self.shell.publication.clock_was_set();
        let pods: Vec<PodIndex> = self.shell.pods.borrow().keys().copied().collect();
        for pod in pods {
            self.publish(pod);
        }
    }
}

/// How long a stopped supervisor may take to end before it is killed.
const SUPERVISOR_END: Duration = Duration::from_secs(10);

/// The name of a run for the log, such as `default/web/app#2`.
fn log_name(wanted: &Wanted, attempt: Attempt) -> String {
    let container = wanted.pod.spec.container(attempt.container);
    format!("{}/{}/{}#{}", wanted.pod.namespace, wanted.pod.name, container.name, attempt.number)
}
