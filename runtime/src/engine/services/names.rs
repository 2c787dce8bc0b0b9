//! The name server of the pods (`dns.rs`): which pods use it, and its life. It runs as long as a sandbox of such a pod
//! exists, and listens at the bridge's addresses alone. Which name servers a pod has is decided with its sandbox, and kept:
//! a pod of an agent that had no name server keeps those of the machine.
//!
//! The sockets outlive the agent: the supervisors of these pods keep them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_core::spec::Uid;
use nodlet_host::error::chain;
use nodlet_host::network::NetworkError;
use nodlet_registry::{NodeEvent, Owner, Wanted};
use nodlet_services::catalog::Catalog;
use nodlet_supervisor::client::Supervisor;

use crate::dns::{Resolver, Settings, Sockets};
use crate::engine::Shell;
use crate::pod_files::{self, ClusterDns, NodeFiles};
use crate::sources;

/// The end of the domain of a board's Services while the board is in a cluster, behind the name of the node. No name on the
/// Internet ends in `internal`, which is for private networks.
const BOARD_DOMAIN: &str = "board.internal";

/// What follows if the sockets do not outlive the agent.
const MAY_LOSE: &str = "queries of pods may be lost while the agent is replaced";

/// The name server of the pods, and the pods that use it.
#[derive(Default)]
pub(in crate::engine) struct Names {
    /// The pods with a sandbox that use the name server.
    users: RefCell<SortedMap<Uid, User>>,
    running: RefCell<Option<Running>>,
    /// Sockets of an earlier agent.
    held: RefCell<Vec<OwnedFd>>,
    /// The name servers of the machine, once they are known.
    upstreams: RefCell<Option<Vec<SocketAddr>>>,
    /// What the name server last answered from.
    known: RefCell<Known>,
    /// The last failure to begin, which was reported.
    failure: RefCell<Option<String>>,
}

/// A pod that uses the name server.
struct User {
    /// The address by which it does.
    address: Ipv4Addr,
    /// Whether it is in the network of the machine. The bridge keeps an earlier address for pods that have addresses of
    /// its range, which this one has not: it uses the present one.
    has_host_network: bool,
}

/// The Services, and the addresses of pods with their namespaces.
type Known = (Rc<Catalog>, BTreeSet<(IpAddr, Box<str>)>);

/// The name server that runs.
struct Running {
    resolver: Resolver,
    addresses: SortedSet<Ipv4Addr>,
    domain: String,
    /// Ends with this value.
    _task: smol::Task<()>,
}

/// The reason why the name server cannot run.
#[derive(Debug, thiserror::Error)]
enum NameServerError {
    #[error(transparent)]
    Bridge(NetworkError),
    #[error("keep the sockets of the name server")]
    Keep(#[source] io::Error),
    #[error("listen at port 53 of {addresses}")]
    Listen { addresses: String, source: io::Error },
    #[error("get queries of pods: {0}")]
    Firewall(String),
}

/// The DNS of a pod with the policy `ClusterFirst`, which asks the board at the address `name_server`, or the name servers
/// of the cluster.
pub(in crate::engine) fn dns_of(shell: &Shell, uid: &Uid) -> ClusterDns {
    match shell.services.names.users.borrow().get(uid) {
        Some(user) => ClusterDns { servers: vec![user.address.to_string()], domain: domain(shell) },
        None => shell.config.dns.clone(),
    }
}

/// The domain of the names of the board's Services: `--cluster-domain`, or one of the board's own while the board is in a
/// cluster, whose names it does not shadow.
fn domain(shell: &Shell) -> String {
    if shell.paths.cluster_credentials().exists() {
        format!("{}.{BOARD_DOMAIN}", shell.config.node_name)
    } else {
        shell.config.dns.domain.clone()
    }
}

impl Names {
    /// Decides which name server a pod has whose sandbox is being made: returns the address of the board's, which runs from
    /// now on.
    pub(in crate::engine) async fn join(&self, shell: &Rc<Shell>, wanted: &Wanted) -> Option<Ipv4Addr> {
        let is_of_board = || sources::owner_of(&shell.paths, &wanted.source) != Some(Owner::Cluster);
        // Name servers of the configuration are those of the operator.
        let uses_board = shell.services.are_served()
            && shell.config.dns.servers.is_empty()
            && pod_files::wants_cluster_dns(&wanted.pod.spec)
            && is_of_board();
        if !uses_board {
            return None;
        }
        if self.upstreams.borrow().is_none() {
            self.read_upstreams(shell).await;
        }
        let address = shell.machine.network.borrow().gateway();
        self.adopt(shell, wanted, address);
        let is_listening =
            self.running.borrow().as_ref().is_some_and(|running| running.resolver.is_at(address.into()));
        // A firewall may have been changed since the name server began.
        let began =
            self.make_reachable(shell).and_then(|()| if is_listening { Ok(()) } else { self.run(shell) });
        match began {
            Ok(()) => {
                self.failure.take();
                Some(address)
            }
            Err(error) => {
                let why = chain(&error);
                self.users.borrow_mut().remove(&wanted.pod.uid);
                if self.failure.borrow().as_ref() != Some(&why) {
                    let text = format!(
                        "pods resolve no names of Services, and use the name servers of the machine: failed to {why}"
                    );
                    shell.publication.emit_of_node(NodeEvent::Machine("NameServerFailed", &text));
                }
                *self.failure.borrow_mut() = Some(why);
                None
            }
        }
    }

    /// Makes the bridge at whose address pods ask.
    ///
    /// # Errors
    /// Queries would not arrive.
    fn make_reachable(&self, shell: &Shell) -> Result<(), NameServerError> {
        let mut network = shell.machine.network.borrow_mut();
        network.ensure_bridge().map_err(NameServerError::Bridge)?;
        network.input_dropped().map_or(Ok(()), |why| Err(NameServerError::Firewall(why)))
    }

    /// Records that the sandbox of a pod uses the name server, at this address when it was made.
    pub(in crate::engine) fn adopt(&self, shell: &Shell, wanted: &Wanted, address: Ipv4Addr) {
        let has_host_network = wanted.pod.spec.host_network;
        let present = shell.machine.network.borrow().gateway();
        let user = User { address: if has_host_network { present } else { address }, has_host_network };
        self.users.borrow_mut().insert(wanted.pod.uid.clone(), user);
    }

    /// Takes the sockets that a supervisor has kept for the name server, unless some are known.
    pub(in crate::engine) async fn take_sockets(&self, supervisor: &Supervisor) {
        if !self.held.borrow().is_empty() {
            return;
        }
        match supervisor.held_sockets().await {
            Ok(sockets) => self.held.borrow_mut().extend(sockets),
            Err(error) => log::warn!("{MAY_LOSE}: {}", chain(&error)),
        }
    }

    /// Runs the name server for the pods that earlier agents have left.
    pub(in crate::engine) fn resume(&self, shell: &Rc<Shell>) {
        if self.users.borrow().is_empty() {
            // No pod uses them, but supervisors of other pods have them.
            self.held.borrow_mut().clear();
            keep(shell, &[]);
            return;
        }
        if self.users.borrow().values().any(|user| user.has_host_network) {
            // Its address may be another one than that of the earlier agent.
            self.make_bridge(shell);
        }
        if let Err(error) = self.run(shell) {
            log::error!("pods resolve no names: failed to {}", chain(&error));
        } else if let Some(why) = shell.machine.network.borrow().input_dropped() {
            shell.publication.emit_of_node(NodeEvent::Machine("FirewallDropsPackets", &why));
        }
    }

    /// Records that the sandbox of a pod is gone. The name server ends with the last one.
    pub(in crate::engine) fn leave(&self, shell: &Shell, uid: &Uid) {
        let mut users = self.users.borrow_mut();
        if users.remove(uid).is_some() && users.is_empty() {
            keep(shell, &[]);
            self.running.take();
        }
    }

    /// Gives the pods in the network of the machine the present address of the bridge, if that has changed. Returns
    /// whether it has: their files change with it.
    pub(in crate::engine) fn follow_range(&self, shell: &Rc<Shell>) -> bool {
        let address = shell.machine.network.borrow().gateway();
        let is_earlier = |user: &User| user.has_host_network && user.address != address;
        if !self.users.borrow().values().any(is_earlier) || !self.make_bridge(shell) {
            return false;
        }
        for user in self.users.borrow_mut().values_mut().filter(|user| is_earlier(user)) {
            user.address = address;
        }
        let is_running = self.running.borrow().is_some();
        if is_running && let Err(error) = self.run(shell) {
            log::error!("pods resolve no names: failed to {}", chain(&error));
        }
        true
    }

    /// Makes the bridge with its present address, which a pod in the network of the machine uses. Returns whether it is
    /// there.
    fn make_bridge(&self, shell: &Shell) -> bool {
        let made = shell.machine.network.borrow_mut().ensure_bridge();
        if let Err(error) = &made {
            log::error!("pods with hostNetwork resolve no names: failed to {}", chain(error));
        }
        made.is_ok()
    }

    /// Runs the name server at the addresses that pods use, under the present domain.
    fn run(&self, shell: &Rc<Shell>) -> Result<(), NameServerError> {
        let addresses: SortedSet<Ipv4Addr> = self.users.borrow().values().map(|user| user.address).collect();
        let domain = domain(shell);
        let mut running = self.running.borrow_mut();
        if running.as_ref().is_some_and(|running| running.addresses == addresses && running.domain == domain)
        {
            return Ok(());
        }
        // Duplicates: after a failure the next attempt needs those that are held.
        let held: io::Result<Vec<OwnedFd>> = self.held.borrow().iter().map(OwnedFd::try_clone).collect();
        let mut held = held.map_err(NameServerError::Keep)?;
        if let Some(running) = &*running {
            held.extend(running.resolver.descriptors().map_err(NameServerError::Keep)?);
        }
        let of_family: Vec<IpAddr> = addresses.iter().copied().map(IpAddr::V4).collect();
        let sockets = Sockets::open(&of_family, held)
            .map_err(|source| NameServerError::Listen { addresses: listed(&of_family), source })?;
        self.held.take();
        let pod_ranges = shell.machine.network.borrow().pod_ranges();
        let (resolver, answers) = Resolver::begin(sockets, Settings { domain: domain.clone(), pod_ranges });
        // Before the first answer.
        resolver.set_upstreams(self.upstreams.borrow().clone().unwrap_or_default());
        let (catalog, pods) = self.known.borrow().clone();
        resolver.update(catalog, pods);
        let descriptors = resolver.descriptors();
        *running = Some(Running { resolver, addresses, domain, _task: shell.tasks.start(answers) });
        match descriptors {
            Ok(descriptors) => keep(shell, &descriptors),
            Err(error) => log::warn!("{MAY_LOSE}: {error}"),
        }
        Ok(())
    }

    /// Has the supervisor of a new sandbox keep the sockets.
    pub(in crate::engine) fn keep_sockets(&self, supervisor: &Supervisor) {
        let descriptors = match self.running.borrow().as_ref().map(|running| running.resolver.descriptors()) {
            None => return,
            Some(Ok(descriptors)) => descriptors,
            Some(Err(error)) => return log::warn!("{MAY_LOSE}: {error}"),
        };
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        if let Err(error) = supervisor.hold_sockets(&descriptors) {
            log::warn!("{MAY_LOSE}: {}", chain(&error));
        }
    }

    /// Uses the name servers of the machine's file from now on.
    pub(in crate::engine) async fn read_upstreams(&self, shell: &Shell) {
        let file = shell.config.resolv_conf.clone();
        let node = shell.stores.storage.run(move || NodeFiles::read(file.as_deref())).await;
        self.set_upstreams(node.name_servers());
    }

    /// Uses these name servers of the machine from now on.
    pub(in crate::engine) fn set_upstreams(&self, servers: Vec<SocketAddr>) {
        if self.upstreams.borrow().as_ref() == Some(&servers) {
            return;
        }
        if let Some(running) = &*self.running.borrow() {
            running.resolver.set_upstreams(servers.clone());
        }
        *self.upstreams.borrow_mut() = Some(servers);
    }

    /// Answers from these Services, and from the addresses of the pods, from now on.
    pub(super) fn update(&self, catalog: Rc<Catalog>, pods: impl FnOnce() -> BTreeSet<(IpAddr, Box<str>)>) {
        if self.users.borrow().is_empty() && catalog.services.is_empty() {
            self.known.take();
            return;
        }
        let pods = pods();
        let mut known = self.known.borrow_mut();
        if known.0 == catalog && known.1 == pods {
            return;
        }
        *known = (catalog, pods);
        if let Some(running) = &*self.running.borrow() {
            running.resolver.update(known.0.clone(), known.1.clone());
        }
    }

    /// Follows a change of the domain: the board has joined a cluster, or left it. Returns whether it has changed.
    pub(in crate::engine) fn follow_domain(&self, shell: &Rc<Shell>) -> bool {
        let domain = domain(shell);
        if self.running.borrow().as_ref().is_none_or(|running| running.domain == domain) {
            return false;
        }
        if let Err(error) = self.run(shell) {
            log::error!("pods resolve no names: failed to {}", chain(&error));
        }
        true
    }
}

/// Has the supervisors of all sandboxes keep these sockets, and no others.
fn keep(shell: &Shell, sockets: &[OwnedFd]) {
    let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    let sandboxes: Vec<_> = shell.pods.borrow().values().filter_map(|pod| pod.sandbox.clone()).collect();
    for sandbox in sandboxes {
        // One that hung up has lost its pod.
        let _ = sandbox.supervisor.hold_sockets(&sockets);
    }
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}
