//! Follows the cluster that the board has joined, in one task of the agent's thread. The task exists only on a board
//! with credentials of a cluster, and nothing waits for it: pods start, run and end without it.
//!
//! The cluster's pods, and the objects that they refer to, become manifests in a directory of their own
//! (`var/lib/nodlet/cluster`), which is a source as any other. The status that the local API shows of these pods is
//! sent to the cluster. What to write and what to send is decided in the crate `nodlet-cluster`.
//!
//! ```text
//! watch of the cluster ─► step ─► a manifest, or its removal ─► sources ─► the core
//! objects of the local API ─► status_patch ─► the cluster
//! ```
//!
//! A failed request ends the session; the next one lists all pods, and sends all statuses that differ.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use nodlet_cluster::api::{self, Api, ApiError, EVENT, JSON, MERGE, STRATEGIC, Verification};
use nodlet_cluster::backoff::{Backoff, Rate, jitter, random};
use nodlet_cluster::credentials::{Credentials, rotation};
use nodlet_cluster::pods::{self, LocalPod, Step, TOKEN_PREFIX};
use nodlet_cluster::{enrol, node};
use nodlet_core::facts::Observation;
use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_core::spec::Uid;
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::{self, Validation};
use nodlet_registry::objects::{ChangeKind, Key};
use nodlet_wire::http::{Connection, HttpError};

use super::{Engine, Shell};
use crate::prober::lookup;

/// Pods in one page of a list.
const PAGE: usize = 50;

/// Requests of one list. A list in pages of one pod each may take [`MAX_PODS`] more.
const MAX_REQUESTS: usize = 64;

/// Pods of this node that are followed. More are ignored with a message: the node admits fewer.
const MAX_PODS: usize = 512;

/// Changes of the local API that are looked at together.
const CHANGES: usize = 64;

/// Maximum size of the file with the credentials in bytes.
const MAX_CREDENTIALS: u64 = 1 << 20;

/// The interval at which ConfigMaps and Secrets that pods refer to are read again.
const REFRESH_EVERY: Duration = Duration::from_secs(60);

/// The time for which a new certificate is awaited, during which the Lease is not renewed.
const CERTIFICATE_WITHIN: Duration = Duration::from_secs(10);

/// The interval of attempts to get a new certificate.
const ROTATE_AGAIN: Duration = Duration::from_secs(300);

/// The longest life of a watch in seconds (client-go: 5 to 10 minutes).
const WATCH_SECONDS: u32 = 480;

/// A pod of the cluster.
struct Known {
    namespace: String,
    name: String,
    /// The pod as the cluster has it, with the status that was last sent.
    object: Value,
    /// What its manifest needs.
    needs: Option<LocalPod>,
    /// Its manifest is on this board.
    has_manifest: bool,
    /// When its tokens must be renewed.
    tokens_until: Option<Instant>,
}

/// The task's state, which outlives sessions.
struct Follower {
    shell: Rc<Shell>,
    credentials: Credentials,
    /// The pods, by UID.
    known: SortedMap<String, Known>,
    /// When the certificate is to be replaced, in seconds since 1970.
    rotate_at: i64,
    /// The next attempt to replace it, after a failure.
    rotate_again: Option<Instant>,
}

/// Why a session ends.
enum End {
    /// A request failed.
    Failed(String),
    /// The certificate was replaced.
    Rotated,
}

impl From<ApiError> for End {
    fn from(error: ApiError) -> End {
        End::Failed(error.to_string())
    }
}

impl Engine {
    /// Follows the cluster whose credentials are on the board, and no longer another one. The task ends at once if
    /// there are none.
    pub(super) fn follow_cluster(&mut self) {
        let task = follow(self.shell.clone());
        let task: std::pin::Pin<Box<dyn Future<Output = ()>>> = Box::pin(task);
        self.cluster = Some(self.shell.tasks.executor.spawn(task));
        self.serve_cluster();
    }

    /// Ends a pod of the cluster: removes its manifest, and then stops it within `grace`.
    fn end_cluster_pod(&mut self, uid: Uid, path: PathBuf, grace: Option<Duration>) {
        // Gone from flash before it is stopped: a power cut does not bring it back.
        self.shell.pods.set_deleted(&uid, true);
        let removed = self.shell.stores.remove(path.clone());
        self.shell.tasks.then(removed, move |engine, removed| {
            if let Err(error) = removed {
                engine.shell.pods.set_deleted(&uid, false);
                log::error!("failed to remove {}: {error}", path.display());
                return;
            }
            engine.read_sources_then(move |engine| {
                engine.shell.pods.set_deleted(&uid, false);
                engine.observe(Observation::Unwanted { uid, grace });
                engine.publish_changed();
            });
        });
    }
}

async fn follow(shell: Rc<Shell>) {
    let credentials = match credentials(&shell).await {
        Some(Ok(credentials)) => credentials,
        Some(Err(why)) => return log::error!("the board takes part in no cluster: {why}"),
        None => return,
    };
    log::info!("this board is node {} of the cluster at {}", credentials.node, credentials.server);
    let mut follower =
        Follower { shell, credentials, known: SortedMap::new(), rotate_at: i64::MAX, rotate_again: None };
    let (mut backoff, mut told) = (Backoff::default(), String::new());
    loop {
        let began = Instant::now();
        match follower.session(&mut told).await {
            End::Rotated => continue,
            End::Failed(why) => {
                // Each reason once: a board may be without its cluster for weeks.
                if told != why {
                    log::warn!("no connection to the cluster at {}: {why}", follower.credentials.server);
                    told = why;
                }
            }
        }
        smol::Timer::after(backoff.ended(began.elapsed(), random())).await;
    }
}

/// Reads the credentials of the cluster that the board has joined, or what is wrong with them. `None` if it has joined
/// none.
pub(super) async fn credentials(shell: &Shell) -> Option<Result<Credentials, String>> {
    let path = shell.paths.cluster_credentials();
    let read = shell.stores.storage.run(move || read_credentials(&path)).await;
    if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return None;
    }
    let read = read.map_err(|error| error.to_string()).and_then(|text| Credentials::from_json(&text));
    let read = read.map_err(|why| format!("its cluster.json: {why}"));
    Some(read.and_then(|credentials| match credentials.node == shell.config.node_name {
        true => Ok(credentials),
        false => Err(format!(
            "it joined as {}, and its node is {}; run `nodlet leave` and `nodlet join`, or use --node-name",
            credentials.node, shell.config.node_name
        )),
    }))
}

/// A client of the API server with these credentials.
pub(super) async fn client(credentials: &Credentials) -> Result<Api, String> {
    let server = &credentials.server;
    let addresses = match server.host.parse() {
        Ok(ip) => vec![SocketAddr::new(ip, server.port)],
        Err(_) => {
            let found = lookup::lookup(&server.host).await.unwrap_or_default();
            found.into_iter().map(|ip| SocketAddr::new(ip, server.port)).collect()
        }
    };
    if addresses.is_empty() {
        return Err(format!("no such host: {}", server.host));
    }
    let trust = credentials.trust().map_err(|error| error.to_string())?;
    Ok(Api::new(&server.host, addresses, Verification::By(trust), None))
}

/// The Node of the local API, as the cluster is told of it.
pub(super) fn local_node(shell: &Shell, name: &str) -> Value {
    let object = shell.publication.objects.get(&Key::new("nodes", "", name));
    let mut node: Value =
        object.and_then(|object| serde_json::from_str(&object.json).ok()).unwrap_or_default();
    let port = shell.config.kubelet_port;
    if port != 0 && node.is_object() {
        node["status"]["daemonEndpoints"] = json!({ "kubeletEndpoint": { "Port": port } });
        // The API server passes WebSockets on, instead of making SPDY of them.
        node["status"]["declaredFeatures"] = json!(["ExtendWebSocketsToKubelet"]);
    }
    node
}

/// Reads the file with the credentials. Whatever else has its name must neither block the thread nor fill the memory.
pub(super) fn read_credentials(path: &Path) -> io::Result<String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    if file.take(MAX_CREDENTIALS + 1).read_to_string(&mut text)? as u64 > MAX_CREDENTIALS {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

impl Follower {
    /// One session: from a connection to the first failure. `told` is the reason of the last failure.
    async fn session(&mut self, told: &mut String) -> End {
        match self.follow(told).await {
            Ok(end) | Err(end) => end,
        }
    }

    async fn follow(&mut self, told: &mut String) -> Result<End, End> {
        if let Some(validity) = self.credentials.validity() {
            let now = self.seconds();
            if now >= validity.1 {
                let why = "the client certificate has expired: run `nodlet leave`, then `nodlet join` with a new token";
                return Err(End::Failed(why.to_owned()));
            }
            self.rotate_at = rotation(validity, random());
        }
        let server = self.credentials.server.clone();
        let mut api = client(&self.credentials).await.map_err(End::Failed)?;
        let uid = self.register(&mut api).await?;
        self.renew_lease(&mut api, Some(&uid)).await?;
        let mut version = self.shell.publication.objects.version();
        let mut resource_version = self.list(&mut api).await?;
        self.send_all(&mut api).await?;
        if !told.is_empty() {
            log::info!("connected to the cluster at {server}");
            told.clear();
        }
        let mut watch: Option<Connection> = None;
        // The next watch, or the next event, waits until `read_at`; everything else goes on.
        let (mut watched, mut rate) = (Backoff::default(), Rate::new(Instant::now()));
        let (mut began, mut read_at) = (Instant::now(), Instant::now());
        let mut reported = (node::comparable(&self.local_node()), Instant::now());
        let (mut lease_at, mut refresh_at) = (next_lease(), Instant::now() + REFRESH_EVERY);
        loop {
            let connection = match &mut watch {
                None if Instant::now() < read_at => None,
                Some(connection) => Some(connection),
                None => {
                    began = Instant::now();
                    let target = format!(
                        "{}&watch=1&allowWatchBookmarks=true&resourceVersion={resource_version}&timeoutSeconds={}",
                        self.selector(),
                        WATCH_SECONDS + u32::from(random()) % 120
                    );
                    match api.watch(&target).await {
                        Ok(connection) => Some(watch.insert(connection)),
                        Err(error) if error.code() == Some(410) => {
                            resource_version = self.list(&mut api).await?;
                            read_at = Instant::now() + watched.ended(began.elapsed(), random());
                            None
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            };
            enum Woken {
                Event(Option<Vec<u8>>),
                Changed,
                Due,
            }
            let event = async {
                if read_at > Instant::now() {
                    smol::Timer::at(read_at).await;
                }
                match connection {
                    Some(connection) => connection.line(EVENT).await.map(Woken::Event),
                    None => Ok(Woken::Due),
                }
            };
            let changed = async {
                self.shell.publication.objects.changed_since(version).await;
                Ok(Woken::Changed)
            };
            let due = async {
                smol::Timer::at(lease_at.min(refresh_at)).await;
                Ok(Woken::Due)
            };
            let woken = smol::future::or(due, smol::future::or(event, changed)).await;
            match woken.map_err(|error| End::Failed(format!("the watch of pods: {error}")))? {
                Woken::Event(None) => {
                    watch = None;
                    read_at = Instant::now() + watched.ended(began.elapsed(), random());
                }
                Woken::Event(Some(line)) => {
                    read_at = rate.read(line.len(), Instant::now());
                    let event = api::object(&line)?;
                    if event["type"] == "ERROR" {
                        let code = event["object"]["code"].as_u64().and_then(|code| u16::try_from(code).ok());
                        if code != Some(410) {
                            return Err(ApiError::of_status(code.unwrap_or(500), &event["object"]).into());
                        }
                        watch = None;
                        resource_version = self.list(&mut api).await?;
                        read_at = Instant::now() + watched.ended(began.elapsed(), random());
                    } else {
                        if let Some(version) = event["object"]["metadata"]["resourceVersion"].as_str() {
                            version.clone_into(&mut resource_version);
                        }
                        self.event(&mut api, event).await?;
                    }
                }
                Woken::Changed => version = self.send_changed(&mut api, version).await?,
                Woken::Due => {}
            }
            let now = Instant::now();
            if now >= lease_at {
                if !self.renew_lease(&mut api, None).await? {
                    // The cluster removes a Lease with its Node: a running machine registers again.
                    let uid = self.register(&mut api).await?;
                    self.renew_lease(&mut api, Some(&uid)).await?;
                }
                lease_at = next_lease();
            }
            let state = node::comparable(&self.local_node());
            if state != reported.0 || now.duration_since(reported.1) >= node::REPORT_EVERY {
                if !self.report_node(&mut api).await? {
                    self.register(&mut api).await?;
                }
                reported = (state, now);
            }
            if now >= refresh_at {
                self.refresh(&mut api).await?;
                refresh_at = Instant::now() + REFRESH_EVERY + jitter(REFRESH_EVERY / 10, random());
            }
            if self.seconds() >= self.rotate_at
                && self.rotate_again.is_none_or(|again| now >= again)
                && self.rotate(&mut api).await
            {
                return Ok(End::Rotated);
            }
        }
    }

    /// The wall time in seconds since 1970.
    fn seconds(&self) -> i64 {
        self.now().0.div_euclid(1_000_000_000)
    }

    fn now(&self) -> nodlet_core::time::Timestamp {
        self.shell.machine.anchor().timestamp(nodlet_host::clock::instant())
    }

    /// The Node of the local API.
    fn local_node(&self) -> Value {
        local_node(&self.shell, &self.credentials.node)
    }

    fn selector(&self) -> String {
        format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.credentials.node)
    }

    /// Makes the Node, or updates an existing one. Returns its UID.
    async fn register(&mut self, api: &mut Api) -> Result<String, End> {
        let local = self.local_node();
        let now = self.now().to_string();
        let made = api.call("POST", "/api/v1/nodes", Some((JSON, &node::registration(&local, &now)))).await;
        let object = match made {
            Ok(made) => {
                log::info!("registered node {} in the cluster", self.credentials.node);
                made
            }
            Err(error) if matches!(error.code(), Some(403 | 409)) => {
                let path = format!("/api/v1/nodes/{}", self.credentials.node);
                // Without a Node, the first error is the reason.
                let Ok(found) = api.call("GET", &path, None).await else { return Err(error.into()) };
                let machine_id = local["status"]["nodeInfo"]["machineID"].as_str().unwrap_or_default();
                enrol::check_name(&found, &self.credentials.node, machine_id).map_err(End::Failed)?;
                self.report_node(api).await?;
                found
            }
            Err(error) => return Err(error.into()),
        };
        Ok(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    }

    /// Reports the state of the node. Returns `false` if there is no Node.
    async fn report_node(&mut self, api: &mut Api) -> Result<bool, End> {
        let patch = node::status_patch(&self.local_node(), &self.now().to_string());
        let path = format!("/api/v1/nodes/{}/status", self.credentials.node);
        match api.call("PATCH", &path, Some((STRATEGIC, &patch))).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(404) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Renews the Lease, or makes it for the Node with this UID. Returns `false` if there is no Lease.
    async fn renew_lease(&mut self, api: &mut Api, uid: Option<&str>) -> Result<bool, End> {
        // `metav1.MicroTime` has six digits.
        let now = self.now().nanos().to_string();
        let now = format!("{}Z", now.get(..26).unwrap_or_default());
        let name = &self.credentials.node;
        let renewal = node::renewal(name, &now);
        match (api.call("PATCH", &node::lease_path(name), Some((MERGE, &renewal))).await, uid) {
            (Ok(_), _) => Ok(true),
            (Err(error), Some(uid)) if error.code() == Some(404) => {
                api.call("POST", node::LEASES, Some((JSON, &node::lease(name, uid, &now)))).await?;
                Ok(true)
            }
            (Err(error), None) if error.code() == Some(404) => Ok(false),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Lists all pods of this node, and acts on the difference to what is here. Returns the version of the list.
    async fn list(&mut self, api: &mut Api) -> Result<String, End> {
        let mut seen = SortedSet::new();
        let (mut more, mut limit) = (String::new(), PAGE);
        let mut requests = 0;
        let version = loop {
            requests += 1;
            if requests > if limit == 1 { MAX_REQUESTS + MAX_PODS } else { MAX_REQUESTS } {
                return Err(End::Failed(format!(
                    "the list of pods has no end after {} requests",
                    requests - 1
                )));
            }
            let target = format!("{}&limit={limit}&continue={more}", self.selector());
            let mut page = match api.call("GET", &target, None).await {
                Ok(page) => page,
                // Pods may be large: one fits in any case.
                Err(ApiError::Http(HttpError::TooLarge)) if limit > 1 => {
                    limit = 1;
                    continue;
                }
                // The rest of the list has expired.
                Err(error) if error.code() == Some(410) && !more.is_empty() => {
                    more.clear();
                    seen = SortedSet::new();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for pod in page["items"].as_array_mut().into_iter().flatten() {
                let pod = pod.take();
                if let Some(uid) = pod["metadata"]["uid"].as_str() {
                    seen.insert(uid.to_owned());
                }
                self.see(api, pod).await?;
            }
            let metadata = &page["metadata"];
            more = metadata["continue"].as_str().unwrap_or_default().to_owned();
            if more.is_empty() {
                break metadata["resourceVersion"].as_str().unwrap_or_default().to_owned();
            }
        };
        // Only a complete list shows that a pod is gone.
        let gone: Vec<String> = self.known.keys().filter(|uid| !seen.contains(*uid)).cloned().collect();
        for uid in gone {
            self.forget(&uid, None).await;
        }
        self.remove_leftovers(seen).await;
        Ok(version)
    }

    /// Ends pods of the cluster's manifests that the cluster does not list, and removes objects that no pod refers to.
    async fn remove_leftovers(&mut self, listed: SortedSet<String>) {
        let directory = self.shell.paths.cluster_manifests();
        let in_loop = directory.clone();
        let stale = self
            .in_loop(move |engine| {
                let (wanted, _) = engine.registry.sources.wanted();
                let of_cluster = wanted.values().filter(|one| one.source.parent() == Some(&*in_loop));
                let stale = of_cluster.filter(|one| !listed.contains(&*one.pod.uid.0));
                stale.map(|one| (one.pod.uid.clone(), one.source.clone())).collect::<Vec<_>>()
            })
            .await;
        for (uid, path) in stale.unwrap_or_default() {
            self.in_loop(move |engine| engine.end_cluster_pod(uid, path, None)).await;
        }
        let mut kept: SortedSet<String> = SortedSet::new();
        let mut kept_tokens: SortedSet<String> = SortedSet::new();
        for known in self.known.values().filter(|known| known.has_manifest) {
            kept.insert(Kind::Pod.row().file(&known.namespace, &known.name));
            if let Some(needs) = &known.needs {
                for (resource, name) in &needs.objects {
                    kept.insert(kind_of(resource).row().file(&known.namespace, name));
                }
                kept.extend(
                    needs.class.as_ref().and_then(|class| class["metadata"]["name"].as_str()).map(class_file),
                );
                for token in &needs.tokens {
                    kept_tokens.insert(Kind::Secret.row().file(&known.namespace, &token.secret));
                }
            }
        }
        let tokens = self.shell.paths.run_manifests();
        let removed = self.shell.stores.storage.run(move || {
            let remove = |directory: &PathBuf, is_stale: &dyn Fn(&str) -> bool| {
                for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                    if entry.file_name().to_str().is_some_and(is_stale) {
                        let _ = std::fs::remove_file(entry.path());
                    }
                }
            };
            // Pods end by `end_cluster_pod`, which also removes their manifests.
            let is_object = |name: &str| {
                ["configmap_", "secret_", "priorityclass_"].iter().any(|kind| name.starts_with(kind))
            };
            remove(&directory, &|name| is_object(name) && !kept.contains(name));
            remove(&tokens, &|name| name.contains(TOKEN_PREFIX) && !kept_tokens.contains(name));
        });
        removed.await;
    }

    async fn event(&mut self, api: &mut Api, mut event: Value) -> Result<(), End> {
        let pod = event["object"].take();
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => self.see(api, pod).await,
            Some("DELETED") => {
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64();
                self.forget(&uid, grace.map(|seconds| Duration::from_secs(seconds.max(1)))).await;
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The cluster has a pod in this state.
    async fn see(&mut self, api: &mut Api, pod: Value) -> Result<(), End> {
        if !pod.is_object() {
            return Err(ApiError::NoObject.into());
        }
        let metadata = &pod["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let (uid, namespace, name) = (text("uid"), text("namespace"), text("name"));
        // The pod of a file, which the cluster would only show.
        if metadata["annotations"]["kubernetes.io/config.mirror"].is_string() {
            return Ok(());
        }
        if !self.known.contains_key(&uid) && self.known.len() >= MAX_PODS {
            log::error!("{namespace}/{name}: ignored: this node follows {MAX_PODS} pods of the cluster");
            return Ok(());
        }
        let has_manifest = match self.known.get(&uid) {
            Some(known) => known.has_manifest,
            None => self.desires(&uid).await,
        };
        let old = self.known.remove(&uid);
        let step = pods::step(&pod, has_manifest, self.local_pod(&uid, &namespace, &name).is_some());
        let mut known = match old {
            // The status here is the one that was sent last.
            Some(old) => Known { object: pod, ..old },
            None => Known { namespace, name, object: pod, needs: None, has_manifest, tokens_until: None },
        };
        match step {
            Step::Nothing => {}
            Step::Run => self.run(api, &uid, &mut known).await?,
            Step::End(grace) => {
                known.has_manifest = false;
                self.end(&uid, &known, grace).await;
            }
            Step::Delete => self.delete(api, &uid, &known).await?,
        }
        self.known.insert(uid, known);
        Ok(())
    }

    /// The cluster has a pod no more.
    async fn forget(&mut self, uid: &str, grace: Option<Duration>) {
        if let Some(known) = self.known.remove(uid)
            && known.has_manifest
        {
            self.end(uid, &known, grace).await;
        }
    }

    async fn end(&mut self, uid: &str, known: &Known, grace: Option<Duration>) {
        let path = self.pod_path(known);
        let uid = Uid::from(uid);
        self.in_loop(move |engine| engine.end_cluster_pod(uid, path, grace)).await;
    }

    /// Writes the manifest of a pod, and before it what the pod needs.
    async fn run(&mut self, api: &mut Api, uid: &str, known: &mut Known) -> Result<(), End> {
        let needs = pods::local(&known.object);
        if known.has_manifest && known.needs.as_ref() == Some(&needs) {
            return Ok(());
        }
        let path = self.pod_path(known);
        let text = format!("{:#}\n", needs.manifest).into_bytes();
        let name = path.to_string_lossy();
        if let Err(error) = manifest::parse(&name, &text, Validation::Strict, &self.credentials.node) {
            // A running pod keeps its last valid spec, as one from a file.
            let why = error.to_string();
            // Without the file and its lines, which nobody wrote.
            let why =
                why.strip_prefix(&*name).and_then(|why| why.split_once(": ")).map_or(&*why, |(_, why)| why);
            log::error!("{}/{}: {why}", known.namespace, known.name);
            return if known.has_manifest { Ok(()) } else { self.reject(api, known, why).await };
        }
        if let Some(why) = self.name_is_taken(uid, known).await {
            return self.reject(api, known, &why).await;
        }
        for (resource, name) in &needs.objects {
            self.fetch(api, resource, &known.namespace, name).await?;
        }
        if let Some(class) = &needs.class {
            let name = class["metadata"]["name"].as_str().unwrap_or_default();
            let path = self.shell.paths.cluster_manifests().join(class_file(name));
            self.write(path, format!("{class:#}\n").into_bytes()).await;
        }
        known.needs = Some(needs);
        self.renew_tokens(api, known).await?;
        known.has_manifest = self.write(path, text).await;
        self.in_loop(Engine::read_sources).await;
        Ok(())
    }

    /// Why a pod cannot run: a file of this board defines a pod of its name.
    async fn name_is_taken(&self, uid: &str, known: &Known) -> Option<String> {
        let key = (known.namespace.as_str().into(), known.name.as_str().into());
        let (directory, uid) = (self.shell.paths.cluster_manifests(), uid.to_owned());
        let found = self.in_loop(move |engine| {
            let (wanted, _) = engine.registry.sources.wanted();
            let other = wanted.get(&key)?;
            let is_other = *other.pod.uid.0 != *uid && other.source.parent() != Some(&directory);
            is_other.then(|| other.source.clone())
        });
        let file = found.await.flatten()?;
        Some(format!("{} of this board defines a pod of the same name", file.display()))
    }

    /// Tells the cluster that this node does not run a pod, and why.
    async fn reject(&mut self, api: &mut Api, known: &mut Known, why: &str) -> Result<(), End> {
        let path = format!("{}/status", api_path(known));
        let patch = pods::rejection(&known.object["metadata"]["uid"], why);
        self.patch(api, known, &path, &patch).await?;
        let suffix = format!("{:x}", self.now().0);
        let now = self.now().to_string();
        let event = pods::rejection_event(&known.object, &self.credentials.node, &suffix, why, &now);
        let events = format!("/api/v1/namespaces/{}/events", known.namespace);
        tolerate(api.call("POST", &events, Some((JSON, &event))).await)
    }

    /// Reads a ConfigMap or Secret, and writes it down.
    async fn fetch(&mut self, api: &mut Api, resource: &str, namespace: &str, name: &str) -> Result<(), End> {
        let kind = kind_of(resource);
        let path = self.shell.paths.cluster_manifests().join(kind.row().file(namespace, name));
        match api.call("GET", &format!("/api/v1/namespaces/{namespace}/{resource}/{name}"), None).await {
            Ok(object) => {
                let local = pods::local_object(&object, kind.as_str());
                self.write(path, format!("{local:#}\n").into_bytes()).await;
                Ok(())
            }
            Err(error) if error.code() == Some(404) => {
                // Volumes keep their files, as with a kubelet.
                let removed = self.shell.stores.storage.run(move || std::fs::remove_file(path)).await;
                drop(removed);
                Ok(())
            }
            // The node authorizer learns of a new pod a moment later.
            Err(error) if error.code() == Some(403) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Requests the tokens of a pod, if it has any and they are new or nearly expired.
    async fn renew_tokens(&mut self, api: &mut Api, known: &mut Known) -> Result<(), End> {
        let Some(needs) = &known.needs else { return Ok(()) };
        if needs.tokens.is_empty() || known.tokens_until.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        let mut shortest = u64::MAX;
        for token in &needs.tokens {
            let (namespace, account) = (&known.namespace, &token.account);
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
            let request = pods::token_request(&known.object, token);
            match api.call("POST", &path, Some((JSON, &request))).await {
                Ok(made) => {
                    let value = made["status"]["token"].as_str().unwrap_or_default();
                    let secret = pods::token_secret(namespace, token, value);
                    // Not on flash: a token lives for an hour, and is of no use without the cluster.
                    let file = Kind::Secret.row().file(namespace, &token.secret);
                    self.write(self.shell.paths.run_manifests().join(file), secret.to_string().into_bytes())
                        .await;
                    // A kubelet renews at 80 % of the life, and a token that lives longer after a day.
                    shortest = shortest.min(token.seconds / 5 * 4).min(24 * 60 * 60);
                }
                Err(error) if error.code().is_some() => {
                    log::warn!("{namespace}/{}: no token of service account {account}: {error}", known.name);
                    shortest = shortest.min(REFRESH_EVERY.as_secs());
                }
                Err(error) => return Err(error.into()),
            }
        }
        known.tokens_until = Some(Instant::now() + Duration::from_secs(shortest));
        Ok(())
    }

    /// Reads again what pods need: ConfigMaps, Secrets, and tokens that expire.
    async fn refresh(&mut self, api: &mut Api) -> Result<(), End> {
        let mut all = SortedSet::new();
        for known in self.known.values().filter(|known| known.has_manifest) {
            for (resource, name) in known.needs.iter().flat_map(|needs| &needs.objects) {
                all.insert((*resource, known.namespace.clone(), name.clone()));
            }
        }
        for (resource, namespace, name) in &all {
            self.fetch(api, resource, namespace, name).await?;
        }
        let uids: Vec<String> = self.known.keys().cloned().collect();
        for uid in uids {
            if let Some(mut known) = self.known.remove(&uid) {
                let renewed =
                    if known.has_manifest { self.renew_tokens(api, &mut known).await } else { Ok(()) };
                self.known.insert(uid, known);
                renewed?;
            }
        }
        Ok(())
    }

    /// Sends the status of all pods whose status differs, and deletes those that ended meanwhile.
    async fn send_all(&mut self, api: &mut Api) -> Result<(), End> {
        let uids: Vec<String> = self.known.keys().cloned().collect();
        for uid in uids {
            let Some(mut known) = self.known.remove(&uid) else { continue };
            let sent = match self.local_pod(&uid, &known.namespace, &known.name) {
                Some(local) => self.send(api, &mut known, &local).await,
                None => Ok(()),
            };
            self.known.insert(uid, known);
            sent?;
        }
        Ok(())
    }

    /// Sends what changed in the local API after `version`. Returns the version up to which everything was sent.
    async fn send_changed(&mut self, api: &mut Api, version: u64) -> Result<u64, End> {
        let objects = self.shell.publication.objects.clone();
        let Ok(changes) = objects.changes_since(version, CHANGES) else {
            let version = objects.version();
            self.send_all(api).await?;
            return Ok(version);
        };
        let last = changes.last().map_or(version, |change| change.object.version);
        for (place, change) in changes.iter().enumerate() {
            // Of several changes of an object, only the last one matters.
            let is_last = !changes[place + 1..].iter().any(|later| later.key == change.key);
            let is_pod = change.key.resource == "pods";
            let is_deleted = matches!(change.kind, ChangeKind::Deleted);
            let is_event = change.key.resource == "events" && !is_deleted;
            if !(is_pod && (is_last || is_deleted) || is_event && is_last) {
                continue;
            }
            let object: Value = serde_json::from_str(&change.object.json).unwrap_or_default();
            if is_event {
                self.send_event(api, object).await?;
                continue;
            }
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let Some(mut known) = self.known.remove(&uid) else { continue };
            let mut sent = self.send(api, &mut known, &object).await;
            if sent.is_ok() && is_deleted && known.object["metadata"]["deletionTimestamp"].is_string() {
                sent = self.delete(api, &uid, &known).await;
            }
            self.known.insert(uid, known);
            sent?;
        }
        Ok(last)
    }

    /// Sends the status of a pod, as far as it differs.
    async fn send(&mut self, api: &mut Api, known: &mut Known, local: &Value) -> Result<(), End> {
        match pods::status_patch(local, &known.object["status"]) {
            Some(patch) => self.patch(api, known, &format!("{}/status", api_path(known)), &patch).await,
            None => Ok(()),
        }
    }

    /// Patches a pod, and remembers the result.
    async fn patch(&self, api: &mut Api, known: &mut Known, path: &str, patch: &Value) -> Result<(), End> {
        match api.call("PATCH", path, Some((STRATEGIC, patch))).await {
            Ok(mut changed) => {
                known.object["status"] = changed["status"].take();
                Ok(())
            }
            failed => tolerate(failed),
        }
    }

    /// Sends an event of a pod of the cluster, or of the node.
    async fn send_event(&self, api: &mut Api, mut event: Value) -> Result<(), End> {
        let involved = &event["involvedObject"];
        let uid = involved["uid"].as_str().unwrap_or_default();
        if !(self.known.contains_key(uid) || involved["kind"] == "Node") {
            return Ok(());
        }
        let metadata = &event["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        event["metadata"] = json!({ "name": name, "namespace": namespace });
        let path = format!("/api/v1/namespaces/{namespace}/events");
        match api.call("POST", &path, Some((JSON, &event))).await {
            Err(error) if error.code() == Some(409) => {
                let changed = json!({ "count": event["count"], "lastTimestamp": event["lastTimestamp"], "message": event["message"] });
                tolerate(api.call("PATCH", &format!("{path}/{name}"), Some((STRATEGIC, &changed))).await)
            }
            sent => tolerate(sent),
        }
    }

    /// Deletes a pod that has ended here from the cluster.
    async fn delete(&self, api: &mut Api, uid: &str, known: &Known) -> Result<(), End> {
        let options = pods::final_deletion(uid);
        tolerate(api.call("DELETE", &api_path(known), Some((JSON, &options))).await)
    }

    /// Gets a certificate for a new key. Returns whether there is one.
    async fn rotate(&mut self, api: &mut Api) -> bool {
        self.rotate_again = Some(Instant::now() + ROTATE_AGAIN);
        let requested = enrol::request_certificate(api, &self.credentials.node, CERTIFICATE_WITHIN).await;
        let (key, certificates) = match requested {
            Ok(made) => made,
            Err(why) => {
                log::warn!("the client certificate of the cluster could not be replaced: {why}");
                return false;
            }
        };
        let new = Credentials { key, certificates, ..self.credentials.clone() };
        if !self.write(self.shell.paths.cluster_credentials(), new.to_json().into_bytes()).await {
            return false;
        }
        log::info!("the client certificate of the cluster was replaced");
        // `rotate_again` stays: a server that signs for moments must not wear out the flash.
        self.credentials = new;
        true
    }

    /// Writes a file durably. Returns whether it was written; a failure is logged.
    async fn write(&self, path: PathBuf, bytes: Vec<u8>) -> bool {
        let written = self.shell.stores.replace(path.clone(), bytes).await;
        if let Err(error) = &written {
            log::error!("failed to write {}: {error}", path.display());
        }
        written.is_ok()
    }

    /// The object of a pod in the local API.
    fn local_pod(&self, uid: &str, namespace: &str, name: &str) -> Option<Value> {
        let object = self.shell.publication.objects.get(&Key::new("pods", namespace, name))?;
        let object: Value = serde_json::from_str(&object.json).ok()?;
        (object["metadata"]["uid"] == uid).then_some(object)
    }

    fn pod_path(&self, known: &Known) -> PathBuf {
        self.shell.paths.cluster_manifests().join(Kind::Pod.row().file(&known.namespace, &known.name))
    }

    /// Whether the cluster's manifests contain a pod with this UID.
    async fn desires(&self, uid: &str) -> bool {
        let (directory, uid) = (self.shell.paths.cluster_manifests(), uid.to_owned());
        let found = self.in_loop(move |engine| {
            let (wanted, _) = engine.registry.sources.wanted();
            wanted.values().any(|one| *one.pod.uid.0 == *uid && one.source.parent() == Some(&directory))
        });
        found.await.unwrap_or_default()
    }

    /// Calls a function in the loop, and returns its value; `None` if the agent ends.
    async fn in_loop<T: 'static>(&self, call: impl FnOnce(&mut Engine) -> T + 'static) -> Option<T> {
        let (done, value) = async_channel::bounded(1);
        self.shell.tasks.then_loop(move |engine| drop(done.try_send(call(engine)))).await;
        value.recv().await.ok()
    }
}

fn next_lease() -> Instant {
    Instant::now() + node::RENEW_EVERY + jitter(node::RENEW_EVERY / 25, random())
}

/// The path of a pod in the cluster's API.
fn api_path(known: &Known) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", known.namespace, known.name)
}

fn class_file(name: &str) -> String {
    Kind::PriorityClass.row().file("", name)
}

fn kind_of(resource: &str) -> Kind {
    if resource == "secrets" { Kind::Secret } else { Kind::ConfigMap }
}

/// Ends the session only if the connection failed or the server is overloaded: a rejected change is logged, and the
/// next change is sent anyway.
fn tolerate(result: Result<Value, ApiError>) -> Result<(), End> {
    match result {
        Ok(_) => Ok(()),
        // Another pod has the name, or the pod is gone.
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
        Err(error) if matches!(error.code(), Some(400 | 403 | 422)) => {
            log::warn!("the cluster rejects a report: {error}");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn credentials_are_read_from_a_regular_file_of_bounded_size_only() {
        let directory = std::env::temp_dir().join(format!("nodlet-credentials-{}", std::process::id()));
        fs::create_dir(&directory).expect("a directory");
        let (path, file) = (directory.join("cluster.json"), directory.join("file"));
        let read = || read_credentials(&path).map_err(|error| error.to_string());
        assert_eq!(read_credentials(&path).expect_err("nothing").kind(), io::ErrorKind::NotFound);
        fs::write(&path, "{}").expect("a file");
        assert_eq!(read(), Ok("{}".to_owned()));
        fs::rename(&path, &file).expect("another name");
        std::os::unix::fs::symlink(&file, &path).expect("a link");
        read().expect_err("a link");
        fs::remove_file(&path).expect("removed");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        assert_eq!(read(), Err("it is no regular file".to_owned()));
        fs::remove_file(&path).expect("removed");
        fs::File::create(&path).and_then(|file| file.set_len(3 << 30)).expect("a large file");
        assert_eq!(read(), Err("it is larger than 1 MiB".to_owned()));
        fs::remove_dir_all(&directory).expect("removed");
    }
}
