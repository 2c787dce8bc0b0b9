//! Follows the Services and EndpointSlices of the cluster with `--services=cluster`, in place of kube-proxy. What is kept
//! of them, and which they are, is decided in `nodlet-cluster` (`proxy.rs`); where connections go, in `nodlet-services`;
//! `nodlet-host` has nftables do it.
//!
//! They are followed while a session with the cluster lasts, over a connection of their own, since a node may read
//! Services, but not EndpointSlices: with `--services-kubeconfig`, another user reads both. What was seen last outlives
//! sessions, and so a time without the cluster changes nothing. The next session continues at the version where the last
//! one ended, and reads all again only if that is too old.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{IpAddr, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nodlet_cluster::api::{self, Api, ApiError, Verification, random};
use nodlet_cluster::backoff::{Backoff, Rate};
use nodlet_cluster::kubeconfig::Identity;
use nodlet_cluster::proxy::{self, ClusterServices, Listed, Resource, SKIPPED, SKIPPED_IF_LARGE};
use nodlet_cluster::watches::{Target, WatchMessage, Watches};
use nodlet_core::error::causes;
use nodlet_host::error::chain;
use nodlet_kube::manifest;
use nodlet_registry::NodeEvent;
use nodlet_services::data_path::DataPath;
use nodlet_wire::http::HttpError;
use serde_json::Value;

use super::Shell;
use super::enrolment::{self, EnrolmentError};
use crate::engine::services::listening;

/// The longest life of a watch in seconds (client-go: 5 to 10 minutes).
const WATCH_SECONDS: u32 = 480;

/// Objects in one page of a list; half as many after each page that is too large. API servers compress a response from 128
/// KiB on.
const PAGE: usize = 250;

/// Requests of one list: more objects than are kept.
const MAX_REQUESTS: usize = 4096;

/// The time after which watches without any event are taken for dead: the server sends a bookmark every minute.
const SILENCE: Duration = Duration::from_secs(660);

/// The least time between two changes of the data path (kube-proxy's `minSyncPeriod`).
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The time until the data path that the kernel has rejected is tried again (kube-proxy's `syncPeriod`).
const SYNC_AGAIN: Duration = Duration::from_secs(30);

/// The longest time between two attempts to read what the cluster refuses to show.
const REFUSED_AGAIN: Duration = Duration::from_secs(300);

/// Objects without effect that the log names in one session.
const LOGGED_OBJECTS: usize = 20;

/// The Services of the cluster that the board has joined.
pub(super) struct Proxy {
    known: Rc<Known>,
    /// Follows them during a session.
    task: Option<smol::Task<()>>,
}

/// What outlives sessions.
struct Known {
    services: RefCell<ClusterServices>,
    /// The version up to which each resource is known; `None` if it must be listed.
    versions: RefCell<[Option<String>; 2]>,
    /// The data path is the one that was seen last.
    is_applied: Cell<bool>,
    /// Why the cluster cannot be followed: each reason is reported once.
    reported: RefCell<String>,
    /// The last failure to apply the data path, which was reported; empty if there was none.
    failure: RefCell<String>,
    /// Ports of the board that Services would have, but for processes that listen there. Each was reported once.
    in_use: RefCell<BTreeSet<String>>,
}

impl Proxy {
    /// Nothing is known of the cluster's Services; `node` is the name of this board's Node.
    pub(super) fn new(node: &str) -> Proxy {
        let known = Known {
            services: RefCell::new(ClusterServices::new(node)),
            versions: RefCell::default(),
            is_applied: Cell::new(false),
            reported: RefCell::default(),
            failure: RefCell::default(),
            in_use: RefCell::default(),
        };
        Proxy { known: Rc::new(known), task: None }
    }

    /// Follows the Services from now on, with the node's own identity as `api`, unless the configuration has another one.
    pub(super) fn begin(&mut self, shell: &Rc<Shell>, api: Api) {
        let follower = Follower { shell: shell.clone(), known: self.known.clone(), logged: 0 };
        self.task = Some(shell.tasks.start(follower.run(api)));
    }

    /// Follows them no longer. Connections go where they went.
    pub(super) fn end(&mut self) {
        self.task = None;
    }
}

/// The client of the user that the kubeconfig names.
async fn client(shell: &Shell, path: &std::path::Path) -> Result<Api, EnrolmentError> {
    let file = path.display().to_string();
    let text = match enrolment::read(shell, path.to_owned()).await {
        Ok(Some(text)) => text,
        Ok(None) => return Err(EnrolmentError::Read { file, source: std::io::ErrorKind::NotFound.into() }),
        Err(source) => return Err(EnrolmentError::Read { file, source }),
    };
    let config = manifest::object_of(&file, &text).map_err(EnrolmentError::Syntax)?;
    let identity = Identity::new(&config).map_err(|source| EnrolmentError::Content { file, source })?;
    let addresses = enrolment::addresses(&identity.server).await?;
    let (host, token) = (identity.server.host.clone(), identity.token.clone());
    let trust = identity.trust().map_err(EnrolmentError::Tls)?;
    Ok(Api::new(&host, addresses, Verification::By(trust), token.as_deref()))
}

/// Whether an error is one of the connection, or of a server that starts or has much to do: the node's own connection meets
/// it as well, and the next attempt may succeed.
fn is_transient(error: &ApiError) -> bool {
    match error {
        ApiError::Status { code, .. } => *code == 410 || *code == 429 || *code >= 500,
        ApiError::Unexpected(_) | ApiError::Http(HttpError::TooLarge) => false,
        ApiError::NoAddress(_)
        | ApiError::Connect(..)
        | ApiError::Tls(_)
        | ApiError::Http(_)
        | ApiError::Timeout => true,
    }
}

/// The target of the watch of a resource.
fn of_all(resource: Resource) -> Target {
    Some((resource.name(), String::new(), String::new()))
}

/// The watch of one resource.
struct Watched {
    since: Instant,
    backoff: Backoff,
    /// When it begins; `None` while it lasts.
    begin_at: Option<Instant>,
}

struct Follower {
    shell: Rc<Shell>,
    known: Rc<Known>,
    /// Objects without effect that were logged.
    logged: usize,
}

impl Follower {
    async fn run(mut self, own: Api) {
        let (mut backoff, mut refused) = (Backoff::default(), Backoff::up_to(REFUSED_AGAIN));
        let (file, mut own) = (self.shell.config.services.kubeconfig.clone(), Some(own));
        loop {
            let began = Instant::now();
            self.logged = 0;
            let mut wait = None;
            let api = match &file {
                Some(file) => client(&self.shell, file).await,
                None => own.take().ok_or(EnrolmentError::Key),
            };
            match api {
                Ok(mut api) => {
                    let Err(error) = self.session(&mut api).await;
                    let why = causes(&error);
                    if error.code() == Some(403) {
                        self.report(proxy::refusal(&why));
                        wait = Some(refused.ended(began.elapsed(), random()));
                    } else if is_transient(&error) {
                        log::debug!("the watches of Services: {why}");
                    } else {
                        self.report(format!("the cluster's Services are not followed: {why}"));
                        wait = Some(refused.ended(began.elapsed(), random()));
                    }
                    own = Some(api).filter(|_| file.is_none());
                }
                Err(error) => {
                    self.report(format!("the cluster's Services are not followed: {}", causes(&error)));
                    wait = Some(refused.ended(began.elapsed(), random()));
                }
            }
            smol::Timer::after(wait.unwrap_or_else(|| backoff.ended(began.elapsed(), random()))).await;
        }
    }

    /// Reports why the Services are not followed, once for each reason.
    fn report(&self, why: String) {
        if *self.known.reported.borrow() != why {
            self.shell.publication.emit_of_node(NodeEvent::Machine("ServicesNotFollowed", &why));
            self.known.reported.replace(why);
        }
    }

    /// Lists what is not known, and follows it until a request fails.
    async fn session(&mut self, api: &mut Api) -> Result<Infallible, ApiError> {
        let now = Instant::now();
        let watched = || Watched { since: now, backoff: Backoff::default(), begin_at: Some(now) };
        let mut watched = [watched(), watched()];
        // One connection for both; of a server that has only HTTP/1.1, one for each.
        let (mut watches, mut has_many) = ([Watches::default(), Watches::default()], true);
        let (mut rate, mut read_at, mut heard_at) = (Rate::new(now), now, now);
        let (mut apply_at, mut look_at) = (now, now);
        loop {
            for (place, resource) in Resource::ALL.into_iter().enumerate() {
                if self.known.versions.borrow()[place].is_none() {
                    let version = self.list(api, resource).await?;
                    self.known.versions.borrow_mut()[place] = Some(version);
                }
            }
            api.close();
            for (place, resource) in Resource::ALL.into_iter().enumerate() {
                if watched[place].begin_at.is_none_or(|at| Instant::now() < at) {
                    continue;
                }
                let target = format!(
                    "{}watch=1&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
                    resource.path(),
                    self.known.versions.borrow()[place].as_deref().unwrap_or_default(),
                    WATCH_SECONDS + u32::from(random()) % 120
                );
                let carrier = &mut watches[if has_many { 0 } else { place }];
                carrier.start(api, of_all(resource), &target).await?;
                has_many = has_many && carrier.has_many();
                (watched[place].since, watched[place].begin_at) = (Instant::now(), None);
                heard_at = Instant::now();
            }
            if !self.known.reported.borrow().is_empty() {
                log::info!("the Services of the cluster are followed");
                self.known.reported.take();
            }
            if self.known.services.borrow_mut().take_change() {
                self.known.is_applied.set(false);
            }
            let now = Instant::now();
            if now >= heard_at + SILENCE {
                return Err(ApiError::Timeout);
            }
            if !self.known.is_applied.get() && now >= apply_at {
                let is_applied = self.apply().await;
                self.known.is_applied.set(is_applied);
                apply_at = Instant::now() + if is_applied { SYNC_EVERY } else { SYNC_AGAIN };
                look_at = Instant::now() + SYNC_AGAIN;
                continue;
            }
            // A process may have ended whose port a Service is to have.
            let has_in_use = !self.known.in_use.borrow().is_empty();
            if has_in_use && now >= look_at {
                self.known.is_applied.set(false);
                continue;
            }
            let mut due = heard_at + SILENCE;
            for at in watched.iter().filter_map(|watched| watched.begin_at) {
                due = due.min(at);
            }
            if !self.known.is_applied.get() {
                due = due.min(apply_at);
            } else if has_in_use {
                due = due.min(look_at);
            }
            if now < read_at {
                smol::Timer::at(read_at.min(due)).await;
                continue;
            }
            let [first, second] = &mut watches;
            let first = async { Some((0, first.next().await)) };
            let second = async { Some((1, second.next().await)) };
            let timer = async {
                smol::Timer::at(due).await;
                None
            };
            let Some((carrier, news)) = smol::future::or(smol::future::or(first, second), timer).await else {
                continue;
            };
            let (target, news) = news?;
            // The only watch of a connection of HTTP/1.1 has no name.
            let place = target.map_or(carrier, |(name, ..)| usize::from(name != Resource::Services.name()));
            heard_at = Instant::now();
            let lasted = heard_at - watched[place].since;
            let is_over = match news {
                WatchMessage::Event(line) => {
                    read_at = rate.read(line.len(), heard_at);
                    let goes_on = self.event(place, &line)?;
                    if !goes_on && has_many {
                        watches[0].stop(&of_all(Resource::ALL[place])).await?;
                    } else if !goes_on {
                        watches[place] = Watches::default();
                    }
                    !goes_on
                }
                WatchMessage::Ended => true,
                WatchMessage::Rejected(error) if error.code() == Some(410) => {
                    self.known.versions.borrow_mut()[place] = None;
                    true
                }
                WatchMessage::Rejected(error) => return Err(error),
            };
            if is_over {
                let wait = watched[place].backoff.ended(lasted, random());
                watched[place].begin_at = Some(Instant::now() + wait);
            }
        }
    }

    /// Acts on an event of a watch. Returns whether the watch goes on.
    fn event(&mut self, place: usize, line: &[u8]) -> Result<bool, ApiError> {
        let (event, is_large) = match api::object_without(SKIPPED, line) {
            Err(ApiError::Http(HttpError::TooLarge)) => (api::object_without(SKIPPED_IF_LARGE, line)?, true),
            event => (event?, false),
        };
        let (resource, object) = (Resource::ALL[place], &event["object"]);
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") if is_large => {
                let why = self.known.services.borrow_mut().ignore_large(resource, object);
                self.log(Err(why));
            }
            Some(kind @ ("ADDED" | "MODIFIED")) => {
                let seen = self.known.services.borrow_mut().see(resource, object, kind == "MODIFIED");
                self.log(seen);
            }
            Some("DELETED") => self.known.services.borrow_mut().forget(resource, object),
            Some("ERROR") if object["code"] == 410 => {
                self.known.versions.borrow_mut()[place] = None;
                return Ok(false);
            }
            Some("ERROR") => return Err(ApiError::of_status(500, object)),
            Some(_) | None => {}
        }
        if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
            self.known.versions.borrow_mut()[place] = Some(version.to_owned());
        }
        Ok(true)
    }

    /// Lists a resource, and returns the version of the list.
    async fn list(&mut self, api: &mut Api, resource: Resource) -> Result<String, ApiError> {
        let (mut listed, mut more, mut limit) = (Listed::default(), String::new(), PAGE);
        // Of an object that is too large alone, only the metadata is read.
        let mut is_large = false;
        for _ in 0..MAX_REQUESTS {
            let target = format!("{}limit={limit}&continue={more}", resource.path());
            let skipped = if is_large { SKIPPED_IF_LARGE } else { SKIPPED };
            let mut page = match api.read(&target, skipped).await {
                Ok(page) => page,
                Err(ApiError::Http(HttpError::TooLarge)) if limit > 1 => {
                    limit /= 2;
                    continue;
                }
                Err(ApiError::Http(HttpError::TooLarge)) if !is_large => {
                    is_large = true;
                    continue;
                }
                // The rest of the list has expired.
                Err(error) if error.code() == Some(410) && !more.is_empty() => {
                    (listed, more, is_large) = (Listed::default(), String::new(), false);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for object in api::items(&mut page)? {
                let seen = if is_large {
                    Err(self.known.services.borrow_mut().ignore_large(resource, &object))
                } else {
                    self.known.services.borrow_mut().list(resource, &object, &mut listed)
                };
                self.log(seen);
            }
            (limit, is_large) = (PAGE.min(limit * 2), false);
            let text = |field: &str| page["metadata"][field].as_str().unwrap_or_default().to_owned();
            more = text("continue");
            if more.is_empty() {
                self.known.services.borrow_mut().keep(resource, &listed);
                return Ok(text("resourceVersion"));
            }
        }
        Err(ApiError::Timeout)
    }

    fn log(&mut self, seen: Result<(), proxy::Ignored>) {
        if let Err(why) = seen
            && self.logged < LOGGED_OBJECTS
        {
            log::warn!("{}", api::text(&Value::from(why.to_string())));
            self.logged += 1;
        }
    }

    /// Removes the ports on which processes of the board listen, and reports each once.
    fn leave_own_ports(&self, path: &mut DataPath) {
        if path.ports.iter().all(|port| port.node_port.is_none() && port.external.is_empty()) {
            self.known.in_use.take();
            return;
        }
        let own = self.shell.machine.network.borrow().gateway();
        let in_use = proxy::leave_own_ports(path, &listening(own), is_own);
        for port in in_use.difference(&self.known.in_use.borrow()).take(LOGGED_OBJECTS) {
            let text = format!("{port}: not served, since a process of the board listens there");
            self.shell.publication.emit_of_node(NodeEvent::Machine("ServicePortInUse", &text));
        }
        self.known.in_use.replace(in_use);
    }

    /// Has connections go where the Services have them go, and lets others run between the parts of a large table. Returns
    /// whether they do.
    async fn apply(&self) -> bool {
        let mut path = {
            let services = self.known.services.borrow();
            DataPath::of(services.catalog(), &self.shell.config.node_name)
        };
        self.leave_own_ports(&mut path);
        let network = &self.shell.machine.network;
        let mut applied = network.borrow_mut().apply_cluster_services(&path);
        while applied.as_ref().is_ok_and(|changes| changes.has_more) {
            smol::future::yield_now().await;
            applied = network.borrow_mut().proceed_with_cluster_services();
        }
        let warning = network.borrow_mut().services_warning();
        self.shell.firewall.follow(warning);
        let failure = applied.as_ref().err().map(|error| chain(error)).unwrap_or_default();
        if !failure.is_empty() && *self.known.failure.borrow() != failure {
            let text = format!(
                "connections to Services of the cluster go where they went before: failed to {failure}"
            );
            self.shell.publication.emit_of_node(NodeEvent::Machine("ServicesFailed", &text));
        }
        self.known.failure.replace(failure);
        applied.is_ok()
    }
}

/// Whether an address is one of the board's.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Removes what an earlier agent had the kernel do for the Services of a cluster.
pub(super) fn remove(shell: &Shell) {
    let path = DataPath::default();
    if let Err(error) = shell.machine.network.borrow_mut().apply_cluster_services(&path) {
        log::error!("failed to {}", chain(&error));
    }
}
