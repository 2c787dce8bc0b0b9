//! Objects that the pods of the cluster refer to: ConfigMaps, Secrets and tokens.

use std::time::{Duration, Instant};

use serde_json::Value;

use nodlet_cluster::api::random;
use nodlet_cluster::api::{self, Api, ApiError, JSON};
use nodlet_cluster::followed::{Known, Reference, file, path};
use nodlet_cluster::objects::Need;
use nodlet_cluster::pods;
use nodlet_cluster::schedule::{REFRESH_EVERY, Seen};
use nodlet_cluster::services::{self, SERVICES};
use nodlet_cluster::trust::{self, BUNDLES};
use nodlet_cluster::watches::{WatchMessage, Watches};
use nodlet_core::error::causes;
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::is_object_name;
use nodlet_wire::http::HttpError;

use super::{Follower, SessionEnd, labels};
use crate::sources::ParseError;

/// The shortest time limit of the watch of an object in seconds. A watch that ends costs a request, and often a list:
/// without events, its version is too old by then.
const WATCH_SECONDS: u32 = 3000;

impl Follower {
    /// Does what an object needs.
    pub(super) async fn satisfy(
        &mut self,
        api: &mut Api,
        watches: &mut Watches,
        need: Need,
    ) -> Result<(), SessionEnd> {
        match need {
            Need::Read(reference) => {
                self.fetch(api, watches.has_many(), &reference).await?;
            }
            Need::Watch(reference, version) => {
                let target = format!(
                    "{}&watch=1&resourceVersion={version}&timeoutSeconds={}",
                    self.path_of(&reference),
                    WATCH_SECONDS + u32::from(random()) % 600
                );
                watches.start(api, Some(reference.clone()), &target).await?;
                self.objects.watched(&reference, Instant::now());
            }
            Need::Stop(reference) => {
                watches.stop(&Some(reference.clone())).await?;
                self.objects.stopped(&reference);
                self.keep(&reference, None).await;
            }
        }
        Ok(())
    }

    /// Acts on news of the watch of an object.
    pub(super) async fn object_news(
        &mut self,
        api: &mut Api,
        watches: &mut Watches,
        reference: &Reference,
        news: WatchMessage,
    ) -> Result<Option<Seen>, SessionEnd> {
        let line = match news {
            WatchMessage::Event(line) => line,
            WatchMessage::Ended => {
                self.objects.ended(reference, Instant::now(), random());
                return Ok(None);
            }
            WatchMessage::Rejected(_) => {
                self.objects.rejected(reference, Instant::now(), random());
                return Ok(None);
            }
        };
        let event = api::object(&line)?;
        let object = &event["object"];
        match event["type"].as_str() {
            // One change of many objects: all are read again.
            Some("ADDED" | "MODIFIED" | "DELETED") if matches!(reference.0, SERVICES | BUNDLES) => {
                watches.stop(&Some(reference.clone())).await?;
                self.objects.rejected(reference, Instant::now(), random());
            }
            Some("ADDED" | "MODIFIED" | "DELETED") => {
                if self.objects.changed(reference, object["metadata"]["resourceVersion"].as_str()) {
                    let object = (event["type"] != "DELETED").then_some(object);
                    let local = object.map(|object| pods::local_object(object, reference.0));
                    self.keep(reference, local).await;
                    self.report_object(api, reference).await?;
                }
            }
            _ => {
                watches.stop(&Some(reference.clone())).await?;
                self.objects.rejected(reference, Instant::now(), random());
            }
        }
        Ok(Some(Seen::Event { length: line.len(), version: None }))
    }

    /// Reads an object, and writes it down. `can_watch` is whether it can be watched. Returns whether it is known now, or
    /// that there is none.
    pub(super) async fn fetch(
        &mut self,
        api: &mut Api,
        can_watch: bool,
        reference: &Reference,
    ) -> Result<bool, SessionEnd> {
        // A visit watches none, and would read it without end.
        let can_watch = can_watch && self.shell.config.sync.is_none();
        let target = self.path_of(reference);
        match api.call("GET", &target, None).await {
            // The version of the API is not served, and perhaps the one before is.
            Err(error) if error.code() == Some(404) && reference.0 == BUNDLES && !self.has_beta_bundles => {
                self.has_beta_bundles = true;
                return Box::pin(self.fetch(api, can_watch, reference)).await;
            }
            Err(error) if error.code() == Some(404) && reference.0 == BUNDLES => {
                let map = trust::config_map(&reference.1, &reference.2, None);
                self.keep(reference, Some(map)).await;
                self.has_beta_bundles = false;
                self.objects.rejected(reference, Instant::now(), random());
                Ok(true)
            }
            Ok(mut list) => {
                let items = api::items(&mut list)?;
                let (resource, namespace, name) = reference;
                let local = match *resource {
                    SERVICES => Some(services::config_map(namespace, name, &Value::Array(items))),
                    BUNDLES => Some(trust::config_map(namespace, name, Some(&Value::Array(items)))),
                    _ => items.first().map(|object| pods::local_object(object, resource)),
                };
                self.keep(reference, local).await;
                let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                self.objects.read(reference, version, can_watch, Instant::now());
                self.report_object(api, reference).await?;
                Ok(true)
            }
            Err(ApiError::Http(HttpError::TooLarge)) => {
                log::error!("{} of the namespace {} are too large", reference.0, reference.1);
                self.objects.rejected(reference, Instant::now(), random());
                Ok(true)
            }
            // Of this object alone: the node authorizer learns of a new pod a moment later, and the server may be unable
            // to decrypt it.
            Err(error) if matches!(error.code(), Some(400 | 403 | 404 | 500)) => {
                self.objects.rejected(reference, Instant::now(), random());
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The path of the list of what a reference is to.
    fn path_of(&self, reference: &Reference) -> String {
        let path = path(reference);
        if reference.0 == BUNDLES && self.has_beta_bundles { trust::beta(&path) } else { path }
    }

    /// Writes down an object, or that there is none. Notes whether the board sets it aside.
    async fn keep(&mut self, reference: &Reference, object: Option<Value>) {
        let path = self.shell.paths.cluster_manifests().join(file(reference));
        self.set_aside.remove(reference);
        let Some(object) = object else {
            // Volumes keep their files, as with a kubelet.
            return self.remove_manifests(vec![path]).await;
        };
        let text = format!("{object:#}\n").into_bytes();
        let parsed = self.parse(&path, &text);
        if let Err(ParseError::SetAside { handled, why, .. }) = &parsed {
            let (resource, _, name) = reference;
            let kind = Kind::of_resource(resource).map_or(*resource, Kind::as_str);
            self.set_aside.insert(reference.clone(), (*handled, format!("{kind} {name:?} {why}")));
        }
        self.write_manifest(path, text, parsed).await;
    }

    /// Reports to each pod that refers to this object that the object is set aside, if it is. A container that has started
    /// runs on, and one that needs the object waits for it.
    async fn report_object(&self, api: &mut Api, reference: &Reference) -> Result<(), SessionEnd> {
        let Some((handled, why)) = self.set_aside.get(reference) else { return Ok(()) };
        for known in self.followed.that_need(reference) {
            self.report_set_aside(api, known, *handled, why).await?;
        }
        Ok(())
    }

    /// Reports to a pod which of the objects that it refers to are set aside.
    pub(super) async fn report_objects_of(
        &self,
        api: &mut Api,
        known: &Known,
        objects: &[(&'static str, String)],
    ) -> Result<(), SessionEnd> {
        for (resource, name) in objects {
            if let Some((handled, why)) = self.set_aside.get(&known.reference(resource, name)) {
                self.report_set_aside(api, known, *handled, why).await?;
            }
        }
        Ok(())
    }

    /// Reads the claims of a pod and their volumes, until all are bound: they stay bound. Returns why the pod
    /// cannot run if this node does not support a volume.
    pub(super) async fn fetch_volumes(
        &self,
        api: &mut Api,
        known: &mut Known,
        claims: &[String],
    ) -> Result<Result<(), String>, SessionEnd> {
        let directory = self.shell.paths.cluster_manifests();
        let mut found = Vec::new();
        for name in claims {
            let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims/{name}", known.namespace);
            // Of a claim that does not exist or is not bound, the board shows the pod waiting.
            let Some(claim) = self.read_volume(api, Kind::PersistentVolumeClaim, &path).await? else {
                continue;
            };
            // Whoever makes a claim may write any text there.
            let volume = claim["spec"]["volumeName"].as_str().filter(|name| is_object_name(name));
            let Some(volume) = volume else { continue };
            let path = format!("/api/v1/persistentvolumes/{volume}");
            let Some(volume) = self.read_volume(api, Kind::PersistentVolume, &path).await? else { continue };
            for (object, kind) in [(claim, Kind::PersistentVolumeClaim), (volume, Kind::PersistentVolume)] {
                let local = pods::local_volume(&object, kind.as_str());
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let name = text(&local["metadata"]["name"]);
                let path = directory.join(kind.row().file(&text(&local["metadata"]["namespace"]), &name));
                let text = format!("{local:#}\n").into_bytes();
                let parsed = match self.parse(&path, &text) {
                    Ok(parsed) => parsed,
                    // The pod waits for its claim.
                    Err(ParseError::SetAside { handled, why, .. }) => {
                        let why = format!("{} {name:?} {why}", kind.as_str());
                        self.report_set_aside(api, known, handled, &why).await?;
                        continue;
                    }
                    Err(ParseError::Invalid(error)) => {
                        return Ok(Err(format!("{} {name:?}: {error}", kind.as_str())));
                    }
                };
                if kind == Kind::PersistentVolume {
                    found.push(name);
                }
                self.write_manifest(path, text, Ok(parsed)).await;
            }
        }
        known.volumes = found;
        Ok(Ok(()))
    }

    /// Reads a claim or volume, if there is one.
    async fn read_volume(&self, api: &mut Api, kind: Kind, path: &str) -> Result<Option<Value>, SessionEnd> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            return match api.call("GET", path, None).await {
                Ok(object) if object["kind"] == kind.as_str() => Ok(Some(object)),
                Ok(_) => Err(ApiError::Unexpected(kind.as_str()).into()),
                // The node authorizer learns of a new pod a moment later.
                Err(error) if error.code() == Some(403) && attempts < 5 => {
                    smol::Timer::after(Duration::from_millis(500)).await;
                    continue;
                }
                Err(error) if matches!(error.code(), Some(403 | 404 | 500)) => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Requests the tokens of a pod, if it has any and they are new or nearly expired.
    pub(super) async fn renew_tokens(&self, api: &mut Api, known: &mut Known) -> Result<(), SessionEnd> {
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
                    let value = made["status"]["token"].as_str();
                    let value = value.ok_or(ApiError::Unexpected("a token"))?;
                    let secret = pods::token_secret(namespace, token, value);
                    // Not on flash: a token lives for an hour, and is of no use without the cluster.
                    let file = Kind::Secret.row().file(namespace, &token.secret);
                    let (path, text) = (self.shell.paths.run_manifests().join(file), secret.to_string());
                    let parsed = self.parse(&path, text.as_bytes());
                    self.write_manifest(path, text.into_bytes(), parsed).await;
                    shortest = shortest.min(pods::token_renewal(token, &made));
                }
                Err(error) if error.code().is_some() => {
                    log::warn!(
                        "{namespace}/{}: no token of service account {account}: {}",
                        known.name,
                        causes(&error)
                    );
                    shortest = shortest.min(REFRESH_EVERY.as_secs());
                }
                Err(error) => return Err(error.into()),
            }
        }
        known.tokens_until = Some(Instant::now() + Duration::from_secs(shortest));
        Ok(())
    }

    async fn renew(&self, api: &mut Api, known: &mut Known) -> Result<(), SessionEnd> {
        let claims = known.needs.as_ref().map(|needs| needs.claims.clone()).unwrap_or_default();
        if known.volumes.len() < claims.len()
            && let Err(why) = self.fetch_volumes(api, known, &claims).await?
        {
            log::error!("{}/{}: {why}", known.namespace, known.name);
        }
        self.renew_tokens(api, known).await
    }

    /// Renews tokens that expire, reads claims that were not bound, sends reports and mirror pods again that were not
    /// accepted, and stores labels that could not be stored.
    pub(super) async fn refresh(&mut self, api: &mut Api) -> Result<Seen, SessionEnd> {
        labels::store_again(&self.shell).await;
        for uid in self.followed.uids() {
            let Some(mut known) = self.followed.remove(&uid) else { continue };
            let is_unreported = known.is_unreported;
            let renewed = if known.has_manifest { self.renew(api, &mut known).await } else { Ok(()) };
            let renewed = match (renewed, is_unreported) {
                (Ok(()), true) => self.report_again(api, &uid, &mut known).await,
                (renewed, _) => renewed,
            };
            self.followed.insert(uid, known);
            renewed?;
        }
        for name in self.mirrors.due(Instant::now()) {
            self.mirror_again(api, &name).await?;
        }
        Ok(Seen::Refreshed)
    }
}
