//! Follows the cluster that the board has joined, in one task of the agent's thread. The task exists only on a board
//! with credentials of a cluster, and nothing waits for it: pods start, run and end without it.
//!
//! The cluster's pods, and the objects that they refer to, become manifests in a directory of their own
//! (`var/lib/nodlet/cluster`), which is a source as any other. The status that the local API shows of these pods is
//! sent to the cluster. What to do when, what to write and what to send is decided in the crate `nodlet-cluster`.
//!
//! ```text
//! Engine ─► the link ─► this task ─► ClusterCall ─► Engine      link.rs
//! Schedule ─► perform ─► the API server ─► Schedule      connection.rs
//! watch of the cluster ─► step ─► a manifest, or its removal ─► sources ─► the core      pods.rs, objects.rs
//! objects of the local API ─► status_patch ─► the cluster      reports.rs, mirrors.rs
//! Services and EndpointSlices of the cluster ─► the data path      proxy.rs
//! ```

pub(super) mod connection;
mod enrolment;
mod kubelet_server;
pub(super) mod labels;
pub(super) mod link;
mod mirrors;
mod objects;
mod pods;
mod proxy;
mod reports;
mod retirement;
mod status;

use std::cell::Cell;
use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use serde_json::Value;

use nodlet_cluster::api::{self, Api, ApiError, random};
use nodlet_cluster::backoff::Backoff;
use nodlet_cluster::credentials::Credentials;
use nodlet_cluster::followed::{Followed, Reference};
use nodlet_cluster::mirrors::Mirrors;
use nodlet_cluster::objects::Objects;
use nodlet_cluster::rejections::Rejections;
use nodlet_cluster::schedule::{Action, Next, Schedule, Seen};
use nodlet_cluster::watches::{Target, WatchMessage, Watches};
use nodlet_core::error::causes;
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::Uid;

use super::Shell;
use super::config::ServicesOf;
use super::message::{Change, ClusterCall, ClusterManifest, ClusterPodEnd, Message};
use super::network::cluster_network::FollowedNodes;
use super::network::{cluster_network, uplink};
use crate::api::Reply;
use crate::at_rest::AtRest;
use crate::sources::{self, ParseError};
use nodlet_registry::objects::Key;
use nodlet_registry::{Handled, Owner, SourceFile, Status};

/// The longest life of a watch in seconds (client-go: 5 to 10 minutes).
const WATCH_SECONDS: u32 = 480;

/// Why a board that has joined no cluster cannot synchronise.
const NOT_JOINED: &str = "the board has joined no cluster: see `nodlet join --help`";

/// The task's state, which outlives sessions.
struct Follower {
    shell: Rc<Shell>,
    credentials: Credentials,
    requests: Receiver<Reply<&'static str>>,
    /// Requests that the present or the next session answers.
    waiting: Vec<Reply<&'static str>>,
    /// The server's address of the last session.
    address: Option<SocketAddr>,
    /// The client with which Nodes are followed, until that begins.
    nodes_api: Option<Api>,
    /// Follows the Nodes during a session.
    nodes: Option<FollowedNodes>,
    /// With `--services=cluster`.
    proxy: Option<proxy::Proxy>,
    /// The client with which Services are followed, until that begins.
    proxy_api: Option<Api>,
    /// There are no credentials any more.
    has_ended: bool,
    /// Something of a pod was sent or taken, for the length of a visit.
    has_news: Cell<bool>,
    schedule: Schedule,
    followed: Followed,
    mirrors: Mirrors,
    rejections: Rejections,
    objects: Objects,
    /// The objects that are set aside, and why.
    set_aside: SortedMap<Reference, (Handled, String)>,
    /// The cluster serves ClusterTrustBundles as v1beta1.
    has_beta_bundles: bool,
    /// The version of the local API up to which changes were sent.
    version: u64,
    /// The version of the local API whose statuses were all sent.
    sent_at: u64,
    /// The UID of the Node, which is stored.
    node_uid: String,
    /// When it was noticed that the Node was deleted.
    gone_since: Option<Instant>,
    /// The state of the node that was last reported.
    reported: Value,
    /// The status of the Node in the cluster after the last report.
    known_node: Value,
    /// The reason of the last failure, until there is a connection.
    logged: String,
}

/// The reason why a session ends, as the log and `nodlet sync` show it.
struct SessionEnd {
    why: String,
    /// The time for which the server accepts no requests.
    retry_after: Duration,
    /// The server failed at this request (500), and others may succeed: a webhook fails, for example.
    is_of_one_request: bool,
}

impl SessionEnd {
    fn new(why: impl Into<String>) -> SessionEnd {
        SessionEnd { why: why.into(), retry_after: Duration::ZERO, is_of_one_request: false }
    }

    fn of(error: &(dyn Error + 'static)) -> SessionEnd {
        SessionEnd::new(causes(error))
    }
}

impl From<ApiError> for SessionEnd {
    fn from(error: ApiError) -> SessionEnd {
        SessionEnd {
            why: causes(&error),
            retry_after: error.retry_after(),
            is_of_one_request: error.code() == Some(500),
        }
    }
}

async fn follow(shell: Rc<Shell>, requests: Receiver<Reply<&'static str>>) {
    shell.publication.events_sent(u64::MAX);
    let path = shell.paths.cluster_credentials();
    let is_proxy = shell.config.services.of == ServicesOf::Cluster;
    let has_joined = shell.stores.storage.run(move || path.exists()).await;
    if !(is_proxy && has_joined) {
        proxy::remove(&shell);
    }
    if !has_joined {
        cluster_network::apply(&shell, None);
        shell.machine.cluster_labels.borrow_mut().clear();
        shell.machine.unstored_labels.set(false);
        shell.tasks.send(Message::NodeChanged).await;
    }
    let Some(credentials) = enrolment::credentials(&shell).await else {
        // It has just left.
        while let Ok(reply) = requests.try_recv() {
            let _ = reply.try_send(Err(Status::bad_request(NOT_JOINED)));
        }
        return;
    };
    if credentials.node != shell.config.node_name {
        return log::error!(
            "the board is not connected to its cluster: it joined as {}, and its node is {}; run `nodlet leave` and `nodlet join`, or use --node-name",
            credentials.node,
            shell.config.node_name
        );
    }
    log::info!("this board is node {} of the cluster at {}", credentials.node, credentials.server);
    shell.tasks.send(Message::Cluster(ClusterCall::Serve)).await;
    cluster_network::restore(&shell).await;
    // Events wait for a connection from now on.
    shell.publication.events_sent(0);
    let node_uid = retirement::stored(&shell.stores.storage, shell.paths.cluster_node()).await;
    let schedule = Schedule::new(Instant::now(), shell.config.sync, shell.config.reporting);
    let proxy = is_proxy.then(|| proxy::Proxy::new(&credentials.node));
    let follower = Follower {
        shell,
        credentials,
        requests,
        waiting: Vec::new(),
        address: None,
        nodes_api: None,
        nodes: None,
        proxy,
        proxy_api: None,
        has_ended: false,
        has_news: Cell::new(false),
        schedule,
        followed: Followed::default(),
        mirrors: Mirrors::default(),
        rejections: Rejections::default(),
        objects: Objects::default(),
        set_aside: SortedMap::new(),
        has_beta_bundles: false,
        version: 0,
        sent_at: 0,
        node_uid,
        gone_since: None,
        reported: Value::Null,
        known_node: Value::Null,
        logged: String::new(),
    };
    if matches!(*follower.shell.stores.at_rest, AtRest::Encrypted(_)) {
        // `nodlet join` has no key.
        let path = follower.shell.paths.cluster_credentials();
        follower.write(path, follower.credentials.to_json().into_bytes()).await;
    }
    follower.follow().await;
}

impl Follower {
    async fn follow(mut self) {
        let (mut api, mut watches) = (None, Watches::default());
        loop {
            let seen = match self.turn(&mut api, &mut watches).await {
                Ok(seen) => seen,
                Err(SessionEnd { why, retry_after, .. }) => {
                    self.answer(Err(&why));
                    // Each reason once: a board may be without its cluster for weeks.
                    if self.logged != why {
                        log::warn!("no connection to the cluster at {}: {why}", self.credentials.server);
                        self.logged = why;
                    }
                    Some(if retry_after.is_zero() { Seen::Failed } else { Seen::Busy(retry_after) })
                }
            };
            let now = Instant::now();
            if self.has_news.replace(false) {
                self.schedule.observe(now, 0, Seen::News);
            }
            if self.has_ended {
                return;
            }
            if let Some(seen) = seen {
                self.schedule.observe(now, random(), seen);
            }
            if !self.schedule.is_up() && api.is_some() {
                (api, watches) = (None, Watches::default());
                (self.nodes_api, self.nodes, self.proxy_api) = (None, None, None);
                self.proxy.iter_mut().for_each(proxy::Proxy::end);
                self.objects.disconnected(now);
            }
        }
    }

    /// Answers all requests to synchronise.
    fn answer(&mut self, result: Result<&'static str, &str>) {
        for reply in self.waiting.drain(..) {
            let _ = reply.try_send(result.map_err(|why| Status::internal(why.to_owned())));
        }
    }

    /// Does the next thing, or waits for it.
    async fn turn(
        &mut self,
        api: &mut Option<Api>,
        watches: &mut Watches,
    ) -> Result<Option<Seen>, SessionEnd> {
        let now = Instant::now();
        let is_periodic = self.shell.config.sync.is_some();
        let mut next = self.schedule.next(now, self.seconds());
        // Objects come after all else, but before a visit ends.
        let is_idle = match &next {
            Next::Wait { .. } => self.schedule.is_watching(),
            Next::Do(Action::Watch { .. }) => is_periodic,
            Next::Do(action) => *action == Action::Leave,
        };
        if let (Some(api), true) = (&mut *api, is_idle) {
            if self.followed.release_at().is_some_and(|at| at <= now) {
                self.release(api).await?;
                return Ok(None);
            }
            if let Some(need) = self.objects.next(watches.has_many() && !is_periodic, now) {
                self.satisfy(api, watches, need).await?;
                return Ok(None);
            }
            self.answer(Ok(""));
            if let Next::Wait { until, .. } = &mut next {
                let wakes = [self.objects.wake_at(), self.followed.release_at()];
                *until = wakes.into_iter().flatten().fold(*until, Instant::min);
            }
        }
        match (next, api) {
            (Next::Wait { until, .. }, None) => self.rest(until).await,
            (Next::Wait { until, reads, changes }, Some(api)) => {
                self.wait(api, watches, until, (reads, changes)).await
            }
            (Next::Do(Action::Connect), api) => self.connect(api).await.map(Some),
            (Next::Do(action), Some(api)) => self.perform(api, watches, action).await.map(Some),
            (Next::Do(_), None) => Ok(Some(Seen::Failed)),
        }
    }

    /// Waits until the next session, which begins at `until`, when a link comes up, or on request.
    async fn rest(&mut self, until: Instant) -> Result<Option<Seen>, SessionEnd> {
        let ours = self.shell.machine.network.borrow().bridge().to_owned();
        let request = async { self.requests.recv().await.ok().map(Some) };
        let link = async {
            uplink::comes_up(self.address, &ours).await;
            Some(None)
        };
        let due = async {
            smol::Timer::at(until).await;
            None
        };
        let woken = smol::future::or(request, smol::future::or(due, link)).await;
        Ok(woken.map(|reply| {
            self.waiting.extend(reply);
            Seen::ConnectNow
        }))
    }

    /// Waits for an event of a watch, a change on the board (if these are read), or the next action.
    async fn wait(
        &mut self,
        api: &mut Api,
        watches: &mut Watches,
        until: Instant,
        (reads, changes): (bool, bool),
    ) -> Result<Option<Seen>, SessionEnd> {
        enum Woken {
            News((Target, WatchMessage)),
            Asked(Option<Reply<&'static str>>),
            Deleted,
            Due,
        }
        let event = async {
            if reads { watches.next().await.map(Woken::News) } else { smol::future::pending().await }
        };
        let changed = async {
            if changes {
                self.shell.publication.objects.changed_since(self.version).await
            } else {
                smol::future::pending().await
            }
            Ok(Woken::Due)
        };
        let due = async {
            smol::Timer::at(until).await;
            Ok(Woken::Due)
        };
        let asked = async { Ok(Woken::Asked(self.requests.recv().await.ok())) };
        let deleted = async {
            match &self.nodes {
                Some(nodes) => nodes.own_is_deleted().await,
                None => smol::future::pending().await,
            }
            Ok(Woken::Deleted)
        };
        let own = smol::future::or(smol::future::or(due, asked), deleted);
        let woken = smol::future::or(own, smol::future::or(event, changed)).await;
        let woken = woken.map_err(|error| SessionEnd::new(format!("the watches: {}", causes(&error))))?;
        let (target, news) = match woken {
            Woken::News(news) => news,
            Woken::Asked(reply) => {
                self.waiting.extend(reply);
                return Ok(Some(Seen::ConnectNow));
            }
            Woken::Deleted => return Ok(Some(Seen::NodeGone)),
            Woken::Due => {
                let is_changed = self.shell.publication.objects.version() > self.version;
                return Ok(is_changed.then_some(Seen::BoardChanged));
            }
        };
        if let Some(reference) = target {
            return self.object_news(api, watches, &reference, news).await;
        }
        let line = match news {
            WatchMessage::Event(line) => line,
            WatchMessage::Ended => return Ok(Some(Seen::WatchEnded)),
            WatchMessage::Rejected(error) if error.code() == Some(410) => {
                return Ok(Some(Seen::WatchExpired));
            }
            WatchMessage::Rejected(error) => return Err(error.into()),
        };
        let event = api::object(&line)?;
        if event["type"] == "ERROR" {
            watches.stop(&None).await?;
            let code = event["object"]["code"].as_u64().and_then(|code| u16::try_from(code).ok());
            return match code {
                Some(410) => Ok(Some(Seen::WatchExpired)),
                code => Err(ApiError::of_status(code.unwrap_or(500), &event["object"]).into()),
            };
        }
        let version = event["object"]["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        self.event(api, event).await?;
        Ok(Some(Seen::Event { length: line.len(), version }))
    }

    async fn perform(
        &mut self,
        api: &mut Api,
        watches: &mut Watches,
        action: Action,
    ) -> Result<Seen, SessionEnd> {
        match action {
            Action::Connect => Ok(Seen::Failed),
            Action::Leave => Ok(Seen::Synchronised),
            Action::Register => self.register(api).await,
            Action::RenewLease { create } => self.renew_lease(api, create).await,
            Action::List => {
                if let Some(api) = self.nodes_api.take() {
                    let (node, uid) = (&self.credentials.node, &self.node_uid);
                    self.nodes = Some(cluster_network::follow(&self.shell, node, uid, api).await);
                }
                if let (Some(proxy), Some(api)) = (&mut self.proxy, self.proxy_api.take()) {
                    proxy.begin(&self.shell, api);
                }
                self.list(api).await
            }
            Action::SendStatuses => {
                self.send_all(api).await?;
                if !self.logged.is_empty() {
                    log::info!("connected to the cluster at {}", self.credentials.server);
                    self.logged.clear();
                }
                Ok(Seen::Sent)
            }
            Action::SendChanges => self.send_changed(api).await,
            Action::ReportNode => self.report_node(api).await,
            Action::Refresh => self.refresh(api).await,
            Action::Watch { version } => {
                let target = format!(
                    "{}&watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={}",
                    self.selector(),
                    WATCH_SECONDS + u32::from(random()) % 120
                );
                watches.start(api, None, &target).await?;
                Ok(Seen::WatchOpened)
            }
            Action::GiveUp => Err(SessionEnd::new("the watch of pods is silent")),
            Action::Rotate => Ok(Seen::Rotated(self.rotate(api).await)),
        }
    }

    /// The path of the list of this node's pods.
    fn selector(&self) -> String {
        format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.credentials.node)
    }

    /// The object of a pod in the local API.
    fn local_pod(&self, uid: &str, namespace: &str, name: &str) -> Option<Value> {
        let object = self.shell.publication.objects.get(&Key::new("pods", namespace, name))?;
        let object: Value = serde_json::from_str(&object.json).ok()?;
        (object["metadata"]["uid"] == uid).then_some(object)
    }

    /// The wall time in seconds since 1970.
    fn seconds(&self) -> i64 {
        self.now().0.div_euclid(1_000_000_000)
    }

    fn now(&self) -> nodlet_core::time::Timestamp {
        self.shell.machine.anchor().timestamp(nodlet_host::clock::instant())
    }

    /// Writes a file durably, if it differs. Returns whether the file is there; a failure is logged.
    async fn write(&self, path: PathBuf, bytes: Vec<u8>) -> bool {
        let written = self.shell.stores.replace_sealed(path.clone(), bytes).await;
        if let Err(error) = &written {
            log::error!("failed to write {}: {error}", path.display());
        }
        written.is_ok()
    }

    /// Parses a manifest that is made of an object of the cluster.
    fn parse(&self, path: &Path, text: &[u8]) -> Result<SourceFile, ParseError> {
        sources::parse(path, Owner::Cluster, text, &self.credentials.node, &self.shell.handling)
    }

    /// Has the loop write a manifest durably, if it differs, and want its objects. Returns whether the file is there; a
    /// failure is logged.
    async fn write_manifest(
        &self,
        path: PathBuf,
        text: Vec<u8>,
        contents: Result<SourceFile, ParseError>,
    ) -> bool {
        let manifest = |reply| Box::new(ClusterManifest { path, text, contents, reply });
        let written = self.ask(|reply| ClusterCall::Change(Change::ClusterManifest(manifest(reply))));
        written.await == Some(true)
    }

    /// Has the loop remove manifests, and not want their objects.
    async fn remove_manifests(&self, paths: Vec<PathBuf>) {
        if !paths.is_empty() {
            self.ask(|reply| ClusterCall::Change(Change::ClusterRemoval { paths, reply })).await;
        }
    }

    /// Ends a pod whose manifest is this file. Returns whether the manifest is gone; if not, its removal is repeated.
    async fn end_pod(&self, uid: Uid, path: PathBuf, grace: Option<Duration>) -> bool {
        let end =
            |removed| ClusterPodEnd { uid, path, grace, backoff: Backoff::default(), removed: Some(removed) };
        self.ask(|reply| ClusterCall::Change(Change::End(end(reply)))).await == Some(true)
    }

    /// Has the loop do something.
    async fn call(&self, call: ClusterCall) {
        self.shell.tasks.send(Message::Cluster(call)).await;
    }

    /// Asks the loop, and returns its answer; `None` if the agent ends.
    async fn ask<T>(&self, call: impl FnOnce(Sender<T>) -> ClusterCall) -> Option<T> {
        let (reply, answer) = async_channel::bounded(1);
        self.call(call(reply)).await;
        answer.recv().await.ok()
    }
}

/// Ends the session only if the connection failed or the server is overloaded: a rejected change is logged, and the
/// next change is sent anyway.
fn tolerate(result: Result<Value, ApiError>) -> Result<(), SessionEnd> {
    match result {
        Ok(_) => Ok(()),
        // Another pod has the name, or the pod is gone.
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
        Err(error) if matches!(error.code(), Some(400 | 403 | 422)) => {
            log::warn!("the cluster rejects a report: {}", causes(&error));
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
