//! Follows the Nodes of the cluster while a session with it lasts: the range of this node's pods, and the routes to
//! those of other nodes, and that this node's was deleted. What follows from a Node is decided in `nodlet-cluster`, and put into effect by
//! `host/src/network/cluster.rs`.
//!
//! A cluster lets a node read its own Node only, unless its administrator grants more. Then, and with
//! `--node-routes=false`, only that one is watched.

use std::rc::Rc;
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use nodlet_cluster::api::random;
use nodlet_cluster::api::{self, Api, ApiError, EVENT};
use nodlet_cluster::backoff::{Backoff, Rate};
use nodlet_cluster::pod_cidrs::Nodes;
use nodlet_core::error::causes;
use nodlet_core::spec::Pod;
use nodlet_host::error::chain;
use nodlet_registry::{Owner, Wanted};
use nodlet_wire::timeout::within;
use serde_json::Value;

use crate::engine::Shell;
use crate::engine::network::resolver;
use crate::{pod_files, sources};

/// The time in which a cluster that assigns ranges to its nodes does so.
const RANGE_WITHIN: Duration = Duration::from_secs(5);

/// The longest life of a watch in seconds (client-go: 5 to 10 minutes).
const WATCH_SECONDS: u32 = 480;

/// Nodes in one page of a list.
const PAGE: usize = 20;

/// Requests of one list: more nodes than a cluster may have.
const MAX_REQUESTS: usize = 512;

/// Uses the network of the cluster from now on, or that of the configuration without a text.
pub(in crate::engine) fn apply(shell: &Rc<Shell>, text: Option<&str>) {
    let followed = {
        let mut network = shell.machine.network.borrow_mut();
        network.follow_cluster(text, &shell.config.cluster_cidrs)
    };
    match followed {
        Ok(()) => shell.firewall.follow(None),
        Err(error) => log::error!("failed to {}", chain(&error)),
    }
    if shell.services.names.follow_range(shell) {
        let task = shell.clone();
        shell.tasks.spawn(async move { resolver::renew_resolv_confs(&task).await });
    }
}

/// Uses the network that is stored, which a board has without a connection, too. Returns its text.
pub(in crate::engine) async fn restore(shell: &Rc<Shell>) -> String {
    let path = shell.paths.cluster_network();
    let stored = shell.stores.storage.run(move || nodlet_kernel::own_file::read_to_string(&path));
    let stored = stored.await.unwrap_or_default();
    apply(shell, Some(&stored));
    stored
}

/// Forgets the stored range of this node, which a Node that was deleted had: pods wait for that of the next one.
pub(in crate::engine) async fn forget_range(shell: &Rc<Shell>) {
    let path = shell.paths.cluster_network();
    let of_path = path.clone();
    let read = shell.stores.storage.run(move || nodlet_kernel::own_file::read_to_string(&of_path)).await;
    let stored = read.unwrap_or_default();
    let peers = stored.split_once('\n').map_or("", |(_, peers)| peers);
    if let Err(error) = shell.stores.replace(path.clone(), format!("\n{peers}").into_bytes()).await {
        log::error!("failed to write {}: {error}", path.display());
    }
}

/// Reports that a pod of the cluster wants the DNS of the cluster, of which the configuration has no address. Other pods
/// have the board's.
pub(in crate::engine) fn missing_dns(shell: &Shell, wanted: &Wanted) -> Option<String> {
    let Pod { name, namespace, uid, spec, .. } = &*wanted.pod;
    let is_missing = shell.config.dns.servers.is_empty()
        && pod_files::wants_cluster_dns(spec)
        && sources::owner_of(&shell.paths, &wanted.source) == Some(Owner::Cluster);
    is_missing.then(|| {
        format!(
            "pod: \"{name}_{namespace}({uid})\". kubelet does not have ClusterDNS IP configured and cannot create Pod \
             using \"ClusterFirst\" policy. Falling back to \"Default\" policy."
        )
    })
}

/// The Nodes, which are followed until this is dropped.
pub(in crate::engine) struct FollowedNodes {
    _task: smol::Task<()>,
    deleted: Receiver<()>,
}

impl FollowedNodes {
    /// Waits until the Node of this board is deleted, which is reported once.
    pub(in crate::engine) async fn own_is_deleted(&self) {
        if self.deleted.recv().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Starts to follow the Nodes; `node` is the name of this board's, and `uid` its UID. Waits for the range of this node, if
/// none is known: pods of the cluster that start before would get addresses which other nodes do not know. A cluster may
/// assign none.
pub(in crate::engine) async fn follow(shell: &Rc<Shell>, node: &str, uid: &str, api: Api) -> FollowedNodes {
    let stored = restore(shell).await;
    let has_range = !stored.lines().next().unwrap_or_default().is_empty();
    let (known, is_known) = async_channel::bounded(1);
    let (tells_deleted, deleted) = async_channel::bounded(1);
    let follower = Follower {
        shell: shell.clone(),
        nodes: Nodes::new(node, uid),
        stored,
        known,
        deleted: Some(tells_deleted),
    };
    let task = shell.tasks.start(follower.run(api));
    if !has_range {
        let _ = within(RANGE_WITHIN, is_known.recv()).await;
    }
    FollowedNodes { _task: task, deleted }
}

struct Follower {
    shell: Rc<Shell>,
    nodes: Nodes,
    /// The network as it is stored.
    stored: String,
    /// Receives a message when the range of this node is in use.
    known: Sender<()>,
    /// Receives a message when this node was deleted, once.
    deleted: Option<Sender<()>>,
}

impl Follower {
    async fn run(mut self, mut api: Api) {
        let own = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{}&", self.nodes.own());
        let wants_all = self.shell.config.node_routes;
        let (mut backoff, mut logged) = (Backoff::default(), false);
        loop {
            let began = Instant::now();
            let mut ended = Err(ApiError::Timeout);
            if wants_all {
                ended = self.session(&mut api, "/api/v1/nodes?", false).await;
                let is_forbidden = ended.as_ref().is_err_and(|error| error.code() == Some(403));
                if is_forbidden && !std::mem::replace(&mut logged, true) {
                    log::info!(
                        "pods of other nodes are reached only over routes of your own: the cluster does not let this \
                         node read other Nodes (see docs/cluster.md; --node-routes=false does not try)"
                    );
                }
                if !is_forbidden {
                    logged = false;
                }
            }
            if logged || !wants_all {
                // After each watch, the right to read all Nodes may have been granted.
                ended = self.session(&mut api, &own, wants_all).await;
            }
            if let Err(error) = ended {
                log::debug!("the watch of nodes: {}", causes(&error));
            }
            smol::Timer::after(backoff.ended(began.elapsed(), random())).await;
        }
    }

    /// Lists the Nodes, and follows them until a request fails, or a watch ends if that is to be `once`.
    async fn session(&mut self, api: &mut Api, target: &str, once: bool) -> Result<(), ApiError> {
        let mut version = self.list(api, target).await?;
        api.close();
        self.publish().await;
        let (mut backoff, mut rate) = (Backoff::default(), Rate::new(Instant::now()));
        loop {
            let began = Instant::now();
            let mut watch = api
                .watch(&format!(
                    "{target}watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={}",
                    WATCH_SECONDS + u32::from(random()) % 120
                ))
                .await?;
            while let Some(line) = watch.line(EVENT).await.map_err(ApiError::Http)? {
                let read_at = rate.read(line.len(), Instant::now());
                let event = api::object(&line)?;
                let object = &event["object"];
                match event["type"].as_str() {
                    Some("ADDED" | "MODIFIED") => self.see(object),
                    Some("DELETED") => self.nodes.forget(name(object)),
                    Some("ERROR") => return Err(ApiError::of_status(500, object)),
                    Some(_) | None => {}
                }
                if let Some(new) = object["metadata"]["resourceVersion"].as_str() {
                    new.clone_into(&mut version);
                }
                self.publish().await;
                if read_at > Instant::now() {
                    smol::Timer::at(read_at).await;
                }
            }
            if once {
                return Ok(());
            }
            smol::Timer::after(backoff.ended(began.elapsed(), random())).await;
        }
    }

    /// Lists the Nodes, and returns the version of the list.
    async fn list(&mut self, api: &mut Api, target: &str) -> Result<String, ApiError> {
        let (mut names, mut more) = (Vec::new(), String::new());
        for _ in 0..MAX_REQUESTS {
            let mut page = api.call("GET", &format!("{target}limit={PAGE}&continue={more}"), None).await?;
            for node in api::items(&mut page)? {
                names.push(name(&node).to_owned());
                self.see(&node);
            }
            let text = |field: &str| page["metadata"][field].as_str().unwrap_or_default().to_owned();
            more = text("continue");
            if more.is_empty() {
                self.nodes.keep(&names);
                return Ok(text("resourceVersion"));
            }
        }
        Err(ApiError::Timeout)
    }

    fn see(&mut self, node: &Value) {
        if let Err(error) = self.nodes.see(node) {
            log::warn!("{}", nodlet_cluster::api::text(&error.to_string().into()));
        }
    }

    /// Stores the network and puts it into effect, if it has changed.
    async fn publish(&mut self) {
        let text = self.nodes.text();
        if text != self.stored {
            let path = self.shell.paths.cluster_network();
            if let Err(error) = self.shell.stores.replace(path.clone(), text.clone().into_bytes()).await {
                log::error!("failed to write {}: {error}", path.display());
            }
            apply(&self.shell, Some(&text));
            self.stored = text;
        }
        if self.nodes.has_range() {
            let _ = self.known.try_send(());
        }
        if let Some(deleted) = self.deleted.take_if(|_| self.nodes.is_deleted()) {
            let _ = deleted.try_send(());
        }
    }
}

fn name(node: &Value) -> &str {
    node["metadata"]["name"].as_str().unwrap_or_default()
}
