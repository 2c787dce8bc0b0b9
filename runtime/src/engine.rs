//! The one loop: wait, observe, plan, perform.
//!
//! The core decides about pods, and the registry about the desired state. The engine carries out their decisions,
//! mostly in small tasks on the same thread, and reports the results to the core. Nothing here waits for flash
//! (`storage` does) or for the network: a card that takes seconds for a read delays what needs the read, and no
//! probe. Starting up is not special: `recover` finds what exists, and then the loop starts.
//!
//! The loop and its tasks share a `Shell`, which only joins its parts: `engine/tasks.rs`, `engine/stores.rs` (flash),
//! `engine/machine.rs`, `engine/publication.rs`, `engine/pods.rs` and a few smaller ones. Each part owns its state
//! and has its methods; functions elsewhere take the parts that they need.
//!
//! Read next: `engine/sandbox.rs` and `engine/run.rs`, which perform actions; `engine/publish.rs`, which publishes
//! the pods.

mod claims;
mod cleanup;
mod cluster;
mod cluster_network;
mod cores;
mod descriptors;
mod devices;
mod enrolment;
mod ephemeral;
mod error;
mod exec;
mod firewall;
mod handles;
mod held_updates;
mod hook;
mod host_paths;
mod image_collection;
mod images;
mod kernel_news;
mod kubelet_server;
mod machine;
mod manifests;
mod netns;
mod on_tmpfs;
mod pods;
mod publication;
mod publish;
mod pull;
mod reconcile;
mod recover;
mod reports;
mod requests;
mod resolver;
mod root;
mod run;
mod sandbox;
mod shutdown;
mod stats;
mod stores;
mod tasks;
mod terminated;
#[cfg(test)]
mod tests;
mod this_node;
mod uplink;
mod volumes;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use nodlet_core::sorted::SortedMap;
use nodlet_rootfs::Store as Images;
use smol::Async;

use crate::api::{self, Request};
use crate::container_config::LogLimits;
use crate::progress::Progress;
use crate::ring::SharedRing;
use crate::service::Service;
use crate::sources::ManifestDirectories;
use crate::storage::Storage;
use crate::store::Records;
use nodlet_cluster::sync::Periodic;
use nodlet_core::facts::{
    Action, Amounts, Attempt, Observation, PodIndex, PodObservation, Shutdown, ShutdownGroup, ShutdownScope,
};
use nodlet_core::node::{Node, NodeChange};
use nodlet_core::spec::Taint;
use nodlet_core::time::Instant;
use nodlet_host::cgroup::{CgroupError, Cgroups, PodPidsLimit};
use nodlet_host::network::Network;
use nodlet_host::paths::Paths;
use nodlet_registry::objects::Objects;
use nodlet_registry::{Events, NodeEvent, Registry, Wanted, reserved_in_vain};

pub use crate::pod_files::ClusterDns;
pub use error::EngineError;
use exec::Execs;
use host_paths::HostPaths;
pub use image_collection::{ImageCollection, ImageLimitError, image_store_limit};
use machine::Machine;
pub use nodlet_registry::EVENTS;
use pods::Pods;
use publication::Publication;
pub use pull::{LOOK, PULL};
use run::Layers;
use stores::Stores;
use tasks::{NEWS, News, Tasks};

/// Requests of the API that may wait for the loop.
const REQUESTS: usize = 64;

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that contains all files of the agent.
    pub root: PathBuf,
    /// Name of the node, as `spec.nodeName` and in uids.
    pub node_name: String,
    /// The range of the pods' addresses; `None` for the root's file or the default.
    pub pod_cidr: Option<String>,
    /// Ranges of the pods of the whole cluster, besides those of its Nodes: the `--cluster-cidr` of a cluster.
    pub cluster_cidrs: Vec<(IpAddr, u8)>,
    /// Whether pods of other nodes are reached over routes to the addresses of these.
    pub node_routes: bool,
    /// The DNS of the cluster.
    pub dns: ClusterDns,
    /// Whether pods reach other machines under the address of this one.
    pub masquerade: bool,
    /// Processes that each pod may have.
    pub pod_pids_limit: PodPidsLimit,
    /// Kernel parameters, and patterns of them, that pods may set besides the safe ones.
    pub allowed_sysctls: Vec<String>,
    /// Whether containers of burstable pods may swap: the kubelet's `memorySwap.swapBehavior: LimitedSwap`.
    pub limited_swap: bool,
    /// The number of finished applied pods that are kept; `None` to keep all. The control plane's
    /// `--terminated-pod-gc-threshold`.
    pub terminated_pod_gc_threshold: Option<usize>,
    /// Pods at a time, at most [`nodlet_core::facts::MAX_PODS`]. The kubelet's `--max-pods`.
    pub max_pods: usize,
    /// Events that are kept, of all objects.
    pub max_events: usize,
    /// Clients of the API at a time, and half as many of the kubelet's server.
    pub max_connections: usize,
    /// The port of the kubelet's server, which the board has once it has joined a cluster; 0 for none. The kubelet's
    /// `--port`.
    pub kubelet_port: u16,
    /// The thresholds at which unused images are removed; `None` to remove none.
    pub image_collection: Option<ImageCollection>,
    /// Labels of the node besides its own. The kubelet's `--node-labels`.
    pub node_labels: SortedMap<String, String>,
    /// Taints of the node. The kubelet's `--register-with-taints`.
    pub taints: Vec<Taint>,
    /// How much of each container's log is kept.
    pub logs: LogLimits,
    /// Resources that are reserved from pods: the kubelet's `--kube-reserved` and `--system-reserved` together.
    pub reserved: Amounts,
    /// When the board connects to its cluster; `None` for a permanent connection.
    pub sync: Option<Periodic>,
    /// For tests: die, as by SIGKILL, when this many actions have been begun.
    pub stop_after: Option<u64>,
    /// Stop every pod, remove what is left of them, and end (`nodlet down`).
    pub down: bool,
    /// The groups of pods, by priority, in which pods end when the machine shuts down; empty to delay no shutdown.
    pub shutdown_groups: Vec<ShutdownGroup>,
    /// Reason and message of a `Warning` event of the node about the machine, to publish at the start.
    pub warning: Option<(String, String)>,
}

/// The parts of the agent that the loop and its tasks share, on one thread.
struct Shell {
    config: Config,
    paths: Paths,
    tasks: Tasks,
    stores: Stores,
    machine: Rc<Machine>,
    publication: Publication,
    pods: Pods,
    layers: RefCell<Layers>,
    execs: Execs,
    host_paths: HostPaths,
    /// The locks of the PersistentVolumes of pods with a sandbox.
    volume_locks: RefCell<SortedMap<PodIndex, nodlet_host::volume::VolumeLock>>,
    beginning: descriptors::Beginning,
    devices: devices::Devices,
    cores: cores::Cores,
    pulls: pull::Pulls,
    /// Whether changes of nodlet's nftables table are watched.
    watches_table: Cell<bool>,
}

impl Shell {
    /// What serves requests of so many clients.
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
    inbox: Receiver<News>,
    requests: Receiver<Request>,
    /// The API and its socket, until it is served. Clients that connect earlier wait.
    unserved_api: Option<(api::Api, Async<UnixListener>)>,
    registry: Registry,
    manifest_reads: manifests::ManifestReads,
    image_use: image_collection::ImageUse,
    /// The task that follows the cluster, if the board has joined one.
    cluster: Option<cluster::Following>,
    /// The task of the kubelet's server, if the board has joined a cluster.
    kubelet_server: Option<smol::Task<()>>,
    /// The sender of the API's requests.
    request_sender: async_channel::Sender<Request>,
    /// The files of earlier boots were removed.
    swept: bool,
    /// Actions begun, for `Config::stop_after`.
    begun: u64,
    _lock: nix::fcntl::Flock<std::fs::File>,
}

impl Engine {
    /// Locks the root, reads what exists below it, and opens the API.
    ///
    /// # Errors
    /// Another agent uses the root, or the machine lacks something that pods need.
    pub fn start(config: Config) -> Result<Engine, EngineError> {
        let paths = Paths::new(&config.root);
        kernel_news::block_ends()?;
        let lock = root::take_root(&paths)?;
        let storage = Storage::start().map_err(|source| EngineError::Kernel { what: "a thread", source })?;
        let images = Arc::new(Images::open(&config.root).map_err(EngineError::Images)?);
        // A disk that rejects this now is no reason to run no pods.
        if let Err(error) = images.tidy() {
            log::warn!("failed to {}", nodlet_host::error::chain(&error));
        }
        let network = if config.down {
            Network::without_range(&paths)
        } else {
            let network = Network::new(&paths, config.pod_cidr.as_deref(), config.masquerade)
                .map_err(EngineError::Network)?;
            // Pods with hostNetwork run nevertheless, and the machine's addresses may have changed when another pod needs
            // one.
            if let Err(error) = network.check_range() {
                log::warn!(
                    "no pod with a network of its own will start: failed to {}",
                    nodlet_host::error::chain(&error)
                );
            }
            network
        };
        // After what may be wrong with the flags: nothing is left of an agent that does not start.
        let cgroups = Cgroups::open(&paths, config.pod_pids_limit).map_err(EngineError::Cgroups)?;
        let sources = crate::sources::list(&paths);
        let directories = if config.down { &[][..] } else { &sources };
        let devices = (!config.down).then(|| paths.device_files());
        let directories = ManifestDirectories::new(directories, &config.node_name).with_device_files(devices);
        let (news, inbox) = async_channel::bounded(NEWS);
        let (request_sender, requests) = async_channel::bounded(REQUESTS);
        // Versions never go back while the boot lasts: the clock ticks faster than objects change.
        let ring = SharedRing::begin();
        let objects = Rc::new(Objects::new(nodlet_host::clock::instant().0 / 1000));
        let registry = Registry::new(sources, &config.node_name, objects.clone());
        let capacity = root::capacity_of_the_machine(&paths, config.max_pods);
        let has_swap = root::swap_of_the_machine() > 0;
        let why = match has_swap {
            false => "the machine has no swap",
            true => "the memory controller is not cgroup v2's",
        };
        if config.limited_swap && !(has_swap && cgroups.limits_swap()) {
            log::warn!("--memory-swap-behavior LimitedSwap has no effect: {why}");
        }
        let machine = Rc::new(Machine::new(capacity, cgroups, network));
        let events = Events::new(objects.clone(), &config.node_name, config.max_events);
        let shell = Rc::new(Shell {
            stores: Stores::new(storage, images, Records::new(paths.records())),
            paths,
            tasks: Tasks::new(news),
            publication: Publication::new(objects.clone(), events, machine.clone()),
            machine,
            pods: Pods::default(),
            layers: RefCell::new(Layers::default()),
            execs: Execs::default(),
            host_paths: HostPaths::default(),
            volume_locks: RefCell::default(),
            beginning: descriptors::Beginning::default(),
            devices: devices::Devices::default(),
            cores: cores::Cores::default(),
            pulls: pull::Pulls::default(),
            watches_table: Cell::new(false),
            config,
        });
        this_node::keep_memory(&shell.config, &shell.machine);
        for warning in reserved_in_vain(&this_node::facts(&shell.config, &shell.machine)) {
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
            image_use: image_collection::ImageUse::default(),
            cluster: None,
            kubelet_server: None,
            request_sender,
            swept: false,
            begun: 0,
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
            kernel_news::watch(&self.shell)?;
            self.publish_node();
            self.observe_node();
            self.shell.publication.emit_of_node(NodeEvent::Starting);
            if let Some((reason, message)) = &self.shell.config.warning {
                self.shell.publication.emit_of_node(NodeEvent::Machine(reason, message));
            }
            // Before pods are found: whether a file of theirs is refused decides if they stay.
            self.read_bindings();
            self.first_read().await;
            self.read_definitions();
            for found in recover::look(&self.shell).await? {
                self.observe_found(found);
            }
            // An agent that ends all pods has read no device files.
            if !self.shell.config.down {
                devices::resume(&self.shell);
            }
            cores::resume(&self.shell);
            firewall::restore(&self.shell);
            if self.shell.config.down {
                let groups = self.shell.config.shutdown_groups.clone();
                self.observe(Observation::Shutdown(Shutdown { scope: ShutdownScope::Agent, groups }));
            } else {
                let kept = self.kept();
                self.look_up_first(kept).await;
                self.reconcile();
            }
            self.observe(Observation::SourcesSeen);
            self.sweep();
            self.publish_changed();
            self.open_api();
            self.collect_images();
            resolver::follow(&self.shell);
            let paths = &self.shell.paths;
            let has_cluster = [paths.cluster_credentials(), paths.bootstrap_kubeconfig()];
            if !self.shell.config.down && has_cluster.iter().any(|path| path.exists()) {
                self.follow_cluster();
            }
            if !self.shell.config.down && !self.shell.config.shutdown_groups.is_empty() {
                self.shell.tasks.spawn(shutdown::follow(self.shell.clone()));
            }
            let service = self.report_to_service();
            self.report_progress();
            self.turn().await;
            if let Some(service) = service {
                service.ends();
            }
            if self.shell.config.down { cleanup::clean_up(&self.shell).await } else { Ok(()) }
        });
        smol::block_on(shell.tasks.executor.run(run))
    }

    /// Starts to serve the API. Called when all pods are published: clients would take a missing pod for one that is
    /// gone.
    fn open_api(&mut self) {
        let Some((api, listener)) = self.unserved_api.take() else { return };
        let config = &self.shell.config;
        log::info!(
            "nodlet {} runs the pods of node {} below {}; its API is on {}",
            env!("CARGO_PKG_VERSION"),
            config.node_name,
            config.root.display(),
            self.shell.paths.api_socket().display()
        );
        self.shell.tasks.spawn(async move {
            if let Err(error) = api::serve(api, listener).await {
                log::error!("the API has ended: {error}");
            }
        });
    }

    /// Reports to the service manager that the API answers, and from then on that the loop runs.
    fn report_to_service(&self) -> Option<Rc<Service>> {
        let service = Rc::new(Service::of_this_process().filter(|_| !self.shell.config.down)?);
        service.is_ready();
        if let Some(every) = service.every() {
            let (service, news) = (service.clone(), self.shell.tasks.news.clone());
            self.shell.tasks.spawn(async move {
                loop {
                    smol::Timer::after(every).await;
                    let service = service.clone();
                    // Sent by the loop itself: a timer also fires in a loop that hangs.
                    let lives = News::Then(Box::new(move |_| service.lives()));
                    if news.send(lives).await.is_err() {
                        return;
                    }
                }
            });
        }
        Some(service)
    }

    /// Reports to process 1 of a board that the loop runs, if that process started this agent.
    fn report_progress(&self) {
        let progress = match Progress::of_this_process() {
            Ok(Some(progress)) if !self.shell.config.down => progress,
            Ok(_) => return,
            Err(error) => return log::error!("failed to report progress to process 1: {error}"),
        };
        progress.store(nodlet_host::clock::instant());
        let (progress, news) = (Rc::new(progress), self.shell.tasks.news.clone());
        self.shell.tasks.spawn(async move {
            loop {
                smol::Timer::after(progress.until_next(nodlet_host::clock::instant())).await;
                let progress = progress.clone();
                // Stored by the loop itself: a timer also fires in a loop that hangs.
                let turns = News::Then(Box::new(move |_| progress.store(nodlet_host::clock::instant())));
                if news.send(turns).await.is_err() {
                    return;
                }
            }
        });
    }

    async fn turn(&mut self) {
        loop {
            let wake_at = self.plan_and_perform();
            if self.shell.config.down && self.node.is_empty() {
                return;
            }
            if !self.wait(wake_at).await {
                return;
            }
        }
    }

    /// Plans and performs until there is nothing more to do now. Returns when there will be.
    fn plan_and_perform(&mut self) -> Option<Instant> {
        loop {
            let now = nodlet_host::clock::instant();
            let plan = self.node.plan(now);
            self.ring.planned(now, &self.node, &plan);
            for (pod, action) in plan.actions {
                self.perform(pod, action);
            }
            self.publish_changed();
            self.release_shutdown();
            if !plan.more {
                return plan.wake_at;
            }
        }
    }

    /// Waits for something to observe. Returns `false` if the agent is to end.
    async fn wait(&mut self, wake_at: Option<Instant>) -> bool {
        enum Woken {
            News(News),
            Request(Request),
            Due,
        }
        // A channel that is closed has no news for ever: `down` opens no API.
        let news = async {
            match self.inbox.recv().await {
                Ok(news) => Woken::News(news),
                Err(_) => smol::future::pending().await,
            }
        };
        let request = async {
            match self.requests.recv().await {
                Ok(request) => Woken::Request(request),
                Err(_) => smol::future::pending().await,
            }
        };
        let due = async {
            match wake_at {
                Some(at) => smol::Timer::after(at - nodlet_host::clock::instant()).await,
                None => smol::future::pending().await,
            };
            Woken::Due
        };
        let mut woken = smol::future::or(news, smol::future::or(request, due)).await;
        loop {
            match woken {
                Woken::News(News::Terminate) => return false,
                Woken::News(News::Seen(pod, seen)) => self.observe(Observation::Of(pod, seen)),
                Woken::News(News::ImagesChanged) => {
                    self.observe(Observation::ImagesChanged);
                    self.images_changed();
                    self.collect_images();
                }
                Woken::News(News::ClockSet) => self.clock_was_set(),
                Woken::News(News::Then(go_on)) => go_on(self),
                Woken::Request(request) => self.answer(request),
                Woken::Due => {}
            }
            woken = match (self.inbox.try_recv(), self.requests.is_empty()) {
                (Ok(news), _) => Woken::News(news),
                (Err(_), false) => match self.requests.try_recv() {
                    Ok(request) => Woken::Request(request),
                    Err(_) => return true,
                },
                (Err(_), true) => return true,
            };
        }
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
            run::forget_what_ended(&self.shell.pods, *pod, seen);
            cores::settle(&self.shell);
            let is_over = matches!(
                seen,
                PodObservation::SandboxFailed { remains: false, .. } | PodObservation::SandboxRemoved
            );
            is_without_sandbox = is_over.then_some(*pod);
        }
        self.node.observe(now, seen);
        let node = &self.node;
        self.shell.pulls.end(|pod| node.pod(pod).is_some_and(|state| !state.is_unwanted()));
        if let Some(pod) = is_without_sandbox {
            self.release_claims(pod);
        }
    }

    /// Carries out an action. Its result has a type of its own, and is converted to an observation only here. What a
    /// supervisor reports by itself becomes an observation where it is received, in `run` and `sandbox`.
    fn perform(&mut self, pod: PodIndex, action: Action) {
        use PodObservation as Seen;
        self.count();
        let shell = &self.shell;
        // Actions of a removed pod are ignored.
        let Some(wanted) = shell.pods.allocated(pod, self.node.pod(pod)) else { return };
        let shared = || shell.clone();
        match action {
            Action::CreateSandbox => {
                let (shell, objects) = (shared(), self.registry.config_objects(&wanted.pod));
                let claims = self.take_claims(pod, &wanted);
                let made = sandbox::create(shell, pod, wanted, objects, claims);
                self.shell.tasks.answer(pod, made, |made| match made {
                    Ok(sandbox::Made { ip, at }) => Some(Seen::SandboxReady { ip, at }),
                    Err(sandbox::Failure { reason, remains, message }) => {
                        Some(Seen::SandboxFailed { reason, remains, message: message.into() })
                    }
                });
            }
            Action::UpdateVolumes => {
                let objects = self.registry.config_objects(&wanted.pod);
                let updated = volumes::write_files(shared(), wanted, objects);
                shell.tasks.answer(pod, updated, |updated| match updated {
                    Ok(()) => Some(Seen::VolumesUpdated),
                    Err((reason, message)) => {
                        Some(Seen::VolumesUpdateFailed { reason, message: message.into() })
                    }
                });
            }
            Action::MeasureStorage(scope) => {
                let measured = volumes::measure(shared(), wanted, scope);
                shell.tasks.answer(pod, measured, |usage| Some(Seen::StorageMeasured(Box::new(usage))));
            }
            Action::Resize { generation } => {
                // Which amounts are in effect is stored before that changes.
                let saved = self.leave_behind(pod, &wanted);
                let saved = saved.map_err(|error| format!("failed to save the status of the pod: {error}"));
                let failure = saved.and_then(|()| {
                    run::resize(shell, pod, &wanted).map_err(|error| match error {
                        CgroupError::BelowUsage { .. } => error.to_string(),
                        error => format!("failed to {}", nodlet_host::error::chain(&error)),
                    })
                });
                let failure = failure.err().map(Into::into);
                shell.tasks.answer(pod, async move { failure }, move |failure| {
                    Some(Seen::Resized { generation, failure })
                });
            }
            Action::Start { attempt, fallback } => {
                let objects = self.registry.config_objects(&wanted.pod);
                // The supervisor reports the start.
                shell.tasks.answer(
                    pod,
                    run::start(shared(), pod, wanted, attempt, fallback, objects),
                    move |asked| asked.err().map(|failure| Seen::StartFailed { attempt, failure }),
                );
            }
            Action::CheckImage(attempt) => {
                shell.tasks.answer(pod, run::check_image(shared(), wanted, attempt), move |checked| {
                    Some(Seen::ImageChecked { attempt, failure: checked.err() })
                });
            }
            Action::PullImage { attempt, image } => {
                let secrets = pull::secrets(&wanted, &self.registry.config_objects(&wanted.pod));
                shell.tasks.answer(pod, pull::pull(shared(), pod, image, secrets), move |result| {
                    Some(Seen::ImagePulled { attempt, result })
                });
            }
            Action::Probe(attempt, kind) => {
                shell.tasks.answer(pod, exec::probe(shared(), pod, wanted, attempt, kind), move |result| {
                    Some(Seen::Probed { attempt, kind, result })
                });
            }
            Action::Hook(attempt, kind) => {
                shell.tasks.answer(pod, hook::run(shared(), pod, wanted, attempt, kind), move |ended| {
                    Some(Seen::Hooked { attempt, kind, failure: ended.err().map(String::into_boxed_str) })
                });
            }
            Action::Terminate(attempt) => {
                let asked = run::terminate(&shell.pods, pod, attempt);
                shell.tasks.answer(pod, std::future::ready(asked), move |asked| stop_failed(attempt, asked));
            }
            Action::Kill(attempt) => {
                let asked = run::kill(&shell.pods, pod, attempt);
                shell.tasks.answer(pod, std::future::ready(asked), move |asked| stop_failed(attempt, asked));
            }
            Action::Discard(attempt) => run::discard(shell, pod, &wanted, attempt),
            Action::RemoveSandbox => {
                shell.tasks.answer(pod, sandbox::remove(shared(), pod, wanted), |removed| match removed {
                    Ok(()) => Some(Seen::SandboxRemoved),
                    Err(error) => Some(Seen::SandboxRemoveFailed { message: error.message().into() }),
                });
            }
            Action::RemoveVolumes => {
                let removed = shell.stores.remove_tree(shell.paths.pod(&wanted.pod.uid.0));
                shell.tasks.answer(pod, removed, |removed| match removed {
                    Ok(()) => Some(Seen::VolumesRemoved),
                    Err(error) => Some(Seen::VolumesRemoveFailed {
                        message: format!("failed to remove its volumes: {error}").into(),
                    }),
                });
            }
            Action::Save { record, generation } => {
                shell.tasks.answer(
                    pod,
                    shell.stores.save(&wanted, &record, shell.machine.anchor()),
                    move |saved| match saved {
                        Ok(()) => Some(Seen::Saved { generation }),
                        Err(error) => Some(Seen::SaveFailed { message: error.to_string().into() }),
                    },
                );
            }
            Action::Forget => {
                shell.tasks.answer(pod, sandbox::forget(shared(), wanted), |forgotten| match forgotten {
                    Ok(()) => Some(Seen::Forgotten),
                    Err(error) => {
                        let message = nodlet_host::error::causes(&error).into();
                        Some(Seen::ForgetFailed { message })
                    }
                });
            }
            Action::Emit(event) => shell.publication.emit(&wanted, &event),
        }
    }

    /// Counts an action, and kills the agent after `Config::stop_after` actions.
    fn count(&mut self) {
        self.begun += 1;
        if self.shell.config.stop_after == Some(self.begun) {
            // What was begun before goes on in no task: this is SIGKILL.
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }

    fn publish_changed(&mut self) {
        let mut any_is_over = false;
        for change in self.node.take_changed() {
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
        let shell = &self.shell;
        this_node::publish(&shell.config, &shell.machine, &shell.publication.objects);
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

/// The observation if a signal or kill could not be delivered. Its success needs none: the run ends.
fn stop_failed(attempt: Attempt, asked: Result<(), run::StopError>) -> Option<PodObservation> {
    let message = nodlet_host::error::chain(&asked.err()?).into();
    Some(PodObservation::StopFailed { attempt, message })
}

/// How long a stopped supervisor may take to end before it is killed.
const SUPERVISOR_END: Duration = Duration::from_secs(10);

/// The name of a run for the log, such as `default/web/app#2`.
fn log_name(wanted: &Wanted, attempt: Attempt) -> String {
    let container = wanted.pod.spec.container(attempt.container);
    format!("{}/{}/{}#{}", wanted.pod.namespace, wanted.pod.name, container.name, attempt.number)
}
