//! Pods of the cluster: their list, the events of their watch, and their manifests on the board.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use nodlet_cluster::api::{self, Api, ApiError};
use nodlet_cluster::followed::{Known, MAX_PODS, class_file};
use nodlet_cluster::pods::{self, Step, TOKEN_PREFIX};
use nodlet_cluster::schedule::Seen;
use nodlet_cluster::sync;
use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::Uid;
use nodlet_kube::kinds;
use nodlet_wire::http::HttpError;

use super::super::cleanup::names;
use super::super::message::{ClusterCall, Named};
use super::reports::postpone;
use super::{Follower, SessionEnd, labels};
use crate::sources::ParseError;

/// Pods in one page of a list.
const PAGE: usize = 50;

/// Requests of one list. A list in pages of one pod each may take [`MAX_PODS`] more.
const MAX_REQUESTS: usize = 64;

impl Follower {
    /// Lists all pods of this node, and acts on the difference to what is here.
    pub(super) async fn list(&mut self, api: &mut Api) -> Result<Seen, SessionEnd> {
        let (mut seen, mut confirmed) = (SortedSet::new(), SortedSet::new());
        let (mut more, mut limit) = (String::new(), PAGE);
        let mut requests = 0;
        let version = loop {
            requests += 1;
            if requests > if limit == 1 { MAX_REQUESTS + MAX_PODS } else { MAX_REQUESTS } {
                let why = format!("the list of pods has no end after {} requests", requests - 1);
                return Err(SessionEnd::new(why));
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
                    (seen, confirmed) = (SortedSet::new(), SortedSet::new());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for pod in api::items(&mut page)? {
                if let Some(uid) = pod["metadata"]["uid"].as_str() {
                    seen.insert(uid.to_owned());
                    if pod["metadata"]["deletionTimestamp"].is_null() {
                        confirmed.insert(uid.to_owned());
                    }
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
        for uid in self.followed.uids().into_iter().filter(|uid| !seen.contains(uid)) {
            self.forget(&uid).await;
        }
        self.mirrors.keep(&seen);
        self.remove_leftovers(seen).await;
        self.call(ClusterCall::Confirm(confirmed)).await;
        Ok(Seen::Listed { version })
    }

    /// Ends pods of the cluster's manifests that the cluster does not list, and removes objects that no pod refers to.
    async fn remove_leftovers(&mut self, listed: SortedSet<String>) {
        let directory = self.shell.paths.cluster_manifests();
        for (uid, path) in self.ask(ClusterCall::Pods).await.unwrap_or_default() {
            if !listed.contains(&*uid.0) {
                self.end_pod(uid, path, None).await;
            }
        }
        let (kept, kept_tokens) = self.followed.files();
        let tokens = self.shell.paths.run_manifests();
        let stale = self.shell.stores.storage.run(move || {
            let list = |directory: PathBuf, is_stale: &dyn Fn(&str) -> bool| {
                let stale = names(&directory).into_iter().filter(|name| is_stale(name));
                stale.map(|name| directory.join(name)).collect::<Vec<_>>()
            };
            // The end of a pod also removes its manifest.
            let is_object = |name: &str| kinds::definition_of_file(name).is_some();
            let mut stale = list(directory, &|name| is_object(name) && !kept.contains(name));
            stale.extend(list(tokens, &|name| name.contains(TOKEN_PREFIX) && !kept_tokens.contains(name)));
            stale
        });
        self.remove_manifests(stale.await).await;
    }

    pub(super) async fn event(&mut self, api: &mut Api, mut event: Value) -> Result<(), SessionEnd> {
        let pod = event["object"].take();
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let mirror = match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") if pods::is_mirror(&pod) => Some(self.mirrors.see(pod)),
            Some("ADDED" | "MODIFIED") => return self.see(api, pod).await,
            Some("DELETED") => {
                // Deleted by force, it ends within its own grace period, as with a kubelet.
                self.forget(uid).await;
                self.mirrors.forget(uid)
            }
            Some(_) | None => None,
        };
        match mirror {
            Some(name) => self.mirror_again(api, &name).await,
            None => Ok(()),
        }
    }

    /// The cluster has a pod in this state.
    async fn see(&mut self, api: &mut Api, pod: Value) -> Result<(), SessionEnd> {
        if !pod.is_object() {
            return Err(ApiError::Unexpected("a JSON object").into());
        }
        let metadata = &pod["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let (uid, namespace, name) = (text("uid"), text("namespace"), text("name"));
        if pods::is_mirror(&pod) {
            self.mirrors.see(pod);
            return Ok(());
        }
        if self.followed.get(&uid).is_none() && !self.followed.has_room() {
            log::error!("{namespace}/{name}: ignored: this node follows {MAX_PODS} pods of the cluster");
            return Ok(());
        }
        // No API server renames a pod; whatever was made of the old name would stay.
        let is_other = |known: &Known| known.namespace != namespace || known.name != name;
        if self.followed.get(&uid).is_some_and(is_other) {
            self.forget(&uid).await;
        }
        let mut known = match self.followed.remove(&uid) {
            Some(mut known) => {
                known.see(pod);
                known
            }
            None => {
                self.forget_finished().await;
                if let Some(other) = self.followed.predecessor(&uid, &namespace, &name) {
                    self.forget(&other).await;
                }
                let mut known = Known::new(pod, false);
                match self.named(&uid, &known).await {
                    Named::Itself => known.has_manifest = true,
                    Named::Predecessor(other) => drop(self.end(other, &known, None).await),
                    Named::Nothing | Named::OfFile(_) => {}
                }
                known
            }
        };
        let local = self.local_pod(&uid, &namespace, &name);
        let needed =
            |known: &Known| (known.has_manifest, known.needs.as_ref().map(|needs| needs.manifest.clone()));
        let before = needed(&known);
        let step = pods::step(&known.object, known.has_manifest, local.is_some());
        let is_past = step == Step::Nothing && local.is_none() && pods::has_terminal_phase(&known.object);
        match step {
            Step::Nothing => {}
            Step::Run => {
                let ran = self.run(api, &uid, &mut known).await;
                // The others must not wait until the cluster takes its rejection.
                if known.rejection.is_some() { postpone(&mut known, ran)? } else { ran? }
            }
            Step::End(grace) => {
                known.has_manifest = false;
                let is_gone = self.end(Uid::from(&*uid), &known, grace).await;
                // No end is observed of a pod that this board has rejected. Its manifest goes first: a power cut does not
                // bring it back.
                if local.is_none()
                    && pods::step(&known.object, false, false) == Step::Delete
                    && self.ask(|reply| ClusterCall::IsDesired { uid: Uid::from(&*uid), reply }).await
                        == Some(false)
                {
                    // Only of a desired pod, the loop repeats the removal.
                    known.has_manifest = !is_gone;
                    if is_gone {
                        let finished = self.finish(api, &uid, &mut known).await;
                        postpone(&mut known, finished)?;
                    }
                }
            }
            Step::Delete => {
                let finished = self.finish(api, &uid, &mut known).await;
                postpone(&mut known, finished)?;
            }
        }
        if let Some(local) = local {
            // The cluster may have changed the status, and the pod may have another ephemeral container.
            let reported = self.report(api, &mut known, &local).await;
            postpone(&mut known, reported)?;
        }
        known.trim();
        let is_same = needed(&known) == before;
        // Of a finished pod that is not on this board, only the deletion matters, which needs nothing of the past.
        if known.has_manifest || !is_past {
            self.followed.insert(uid, known);
        } else {
            self.remove_files_of(&known).await;
        }
        if !is_same {
            self.objects.want(&self.followed.references(), Instant::now());
        }
        Ok(())
    }

    /// Removes finished pods that are too many from this board. The cluster keeps them.
    async fn forget_finished(&mut self) {
        let Some(kept) = self.shell.config.terminated_pod_gc_threshold else { return };
        while let Some(uid) = self.followed.surplus(kept) {
            self.forget(&uid).await;
        }
    }

    /// The cluster has a pod no more.
    async fn forget(&mut self, uid: &str) {
        let Some(known) = self.followed.remove(uid) else { return };
        if known.has_manifest {
            self.end(Uid::from(uid), &known, None).await;
        }
        self.remove_files_of(&known).await;
    }

    /// Removes what only this pod needed, which is no longer followed: a list that removes leftovers may be days away.
    async fn remove_files_of(&mut self, known: &Known) {
        self.objects.want(&self.followed.references(), Instant::now());
        let (objects, tokens) = self.followed.unneeded(known);
        let (directory, of_tokens) = (self.shell.paths.cluster_manifests(), self.shell.paths.run_manifests());
        let objects = objects.into_iter().map(|name| directory.join(name));
        let tokens = tokens.into_iter().map(|name| of_tokens.join(name));
        self.remove_manifests(objects.chain(tokens).collect()).await;
    }

    /// Ends a pod. Returns whether its manifest is gone.
    async fn end(&self, uid: Uid, known: &Known, grace: Option<Duration>) -> bool {
        self.has_news.set(true);
        self.end_pod(uid, self.pod_path(known), grace).await
    }

    /// Writes the manifest of a pod, and before it what the pod needs.
    async fn run(&mut self, api: &mut Api, uid: &str, known: &mut Known) -> Result<(), SessionEnd> {
        known.rejection = None;
        if known.object["spec"].is_null() {
            let why = format!("the pod has more than {} values", nodlet_cluster::VALUES);
            log::error!("{}/{}: {why}", known.namespace, known.name);
            return if known.has_manifest { Ok(()) } else { self.reject(api, known, &why).await };
        }
        let mut needs = pods::local(&known.object);
        let manifest = needs.take_manifest();
        if known.has_manifest && known.needs.as_ref() == Some(&needs) {
            return Ok(());
        }
        let path = self.pod_path(known);
        let text = format!("{manifest:#}\n").into_bytes();
        let parsed = match self.parse(&path, &text) {
            Ok(parsed) => parsed,
            Err(ParseError::SetAside { handled, why, .. }) => {
                return self.report_set_aside(api, known, handled, &format!("its manifest {why}")).await;
            }
            Err(ParseError::Invalid(error)) => {
                // A running pod keeps its last valid spec, as one from a file.
                let why = error.to_string();
                // Without the file and its lines, which nobody wrote.
                let line = why.strip_prefix(&*path.to_string_lossy());
                let why = line.and_then(|why| why.split_once(": ")).map_or(&*why, |(_, why)| why);
                log::error!("{}/{}: {why}", known.namespace, known.name);
                return if known.has_manifest { Ok(()) } else { self.reject(api, known, why).await };
            }
        };
        // The label may be newer than the last report (`generalFilter`).
        if parsed.pods().any(|pod| labels::are_missing(&self.shell, pod)) {
            let node = api.call("GET", &format!("/api/v1/nodes/{}", self.credentials.node), None).await?;
            labels::see(&self.shell, &node).await;
        }
        if let Named::OfFile(file) = self.named(uid, known).await {
            let why = format!("{} of this board defines a pod of the same name", file.display());
            return self.reject(api, known, &why).await;
        }
        let mut attempts = 4;
        for (resource, name) in &needs.objects {
            let reference = known.reference(resource, name);
            // Without an optional object that it may not read yet, the pod would start for good.
            while !self.objects.is_current(&reference)
                && !self.fetch(api, true, &reference).await?
                && attempts > 0
            {
                attempts -= 1;
                smol::Timer::after(Duration::from_millis(500)).await;
            }
        }
        self.report_objects_of(api, known, &needs.objects).await?;
        if let Err(why) = self.fetch_volumes(api, known, &needs.claims).await? {
            return if known.has_manifest { Ok(()) } else { self.reject(api, known, &why).await };
        }
        if let Some(class) = &needs.class {
            let name = class["metadata"]["name"].as_str().unwrap_or_default();
            let path = self.shell.paths.cluster_manifests().join(class_file(name));
            let text = format!("{class:#}\n").into_bytes();
            let parsed = self.parse(&path, &text);
            self.write_manifest(path, text, parsed).await;
        }
        for field in &needs.ignored {
            let Known { namespace, name, .. } = &*known;
            log::warn!("{namespace}/{name}: securityContext.{field} has no effect on this board");
        }
        known.needs = Some(needs);
        self.renew_tokens(api, known).await?;
        known.has_manifest = self.write_manifest(path, text, Ok(parsed)).await;
        self.has_news.set(true);
        if self.shell.config.sync.is_some() && !sync::stays_while_unreachable(&known.object) {
            log::warn!(
                "{}/{}: between two synchronisations, the cluster deletes the pod: it has no toleration of \
                 node.kubernetes.io/unreachable:NoExecute without tolerationSeconds",
                known.namespace,
                known.name
            );
        }
        Ok(())
    }

    /// Which pod with the name of `known`, whose UID is `uid`, the manifests of the board contain.
    async fn named(&self, uid: &str, known: &Known) -> Named {
        let (name, uid) = ((known.namespace.as_str().into(), known.name.as_str().into()), Uid::from(uid));
        self.ask(|reply| ClusterCall::Named { name, uid, reply }).await.unwrap_or(Named::Nothing)
    }

    fn pod_path(&self, known: &Known) -> PathBuf {
        self.shell.paths.cluster_manifests().join(known.file())
    }
}
