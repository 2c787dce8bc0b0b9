//! Reports to the cluster: changed statuses of pods, events, and the end of a deleted pod.

use std::time::Instant;

use serde_json::{Value, json};

use nodlet_cluster::api::{Api, ApiError, JSON, STRATEGIC};
use nodlet_cluster::followed::Known;
use nodlet_cluster::pods::{self, NotRun, Step};
use nodlet_cluster::schedule::Seen;
use nodlet_cluster::{gates, mirrors, node, rejections};
use nodlet_registry::Handled;
use nodlet_registry::objects::{ChangeKind, ObjectChange};

use super::super::message::{self, ClusterCall};
use super::{Follower, SessionEnd, tolerate};
use crate::api::{Change, EphemeralRequest, FieldValidation, PatchKind, Request};

/// What a report about a pod came to. An error of the API server about it alone keeps no other pod from being reported:
/// the report is sent again by [`Follower::refresh`].
pub(super) fn postpone(known: &mut Known, reported: Result<(), SessionEnd>) -> Result<(), SessionEnd> {
    known.is_unreported = false;
    match reported {
        Err(failure) if failure.is_of_one_request => {
            known.is_unreported = true;
            let Known { namespace, name, .. } = &*known;
            log::warn!("{namespace}/{name}: the cluster cannot take a report: {}", failure.why);
            Ok(())
        }
        reported => reported,
    }
}

/// What sending an event came to. An event that the API server fails at is dropped, as by client-go's recorder.
fn accept_event(sent: Result<Value, ApiError>) -> Result<(), SessionEnd> {
    match tolerate(sent) {
        Err(failure) if failure.is_of_one_request => {
            log::warn!("the cluster cannot take an event: {}", failure.why);
            Ok(())
        }
        sent => sent,
    }
}

/// Changes of the local API that are looked at together.
const CHANGES: usize = 64;

impl Follower {
    /// Sends the status of all pods whose status differs, and deletes those that ended meanwhile.
    pub(super) async fn send_all(&mut self, api: &mut Api) -> Result<(), SessionEnd> {
        self.compare_node();
        let version = self.shell.publication.objects.version();
        for uid in self.followed.uids() {
            let Some(mut known) = self.followed.remove(&uid) else { continue };
            let sent = self.report_again(api, &uid, &mut known).await;
            self.followed.insert(uid, known);
            sent?;
        }
        self.mirror_all(api).await?;
        self.sent_at = version;
        Ok(())
    }

    /// Sends the status of a pod if it differs, or deletes the pod if it ended meanwhile.
    pub(super) async fn report_again(
        &mut self,
        api: &mut Api,
        uid: &str,
        known: &mut Known,
    ) -> Result<(), SessionEnd> {
        let reported = match self.local_pod(uid, &known.namespace, &known.name) {
            Some(local) => self.report(api, known, &local).await,
            None => match (pods::step(&known.object, known.has_manifest, false), known.rejection.take()) {
                (Step::Delete, _) => self.finish(api, uid, known).await,
                (Step::Run, Some(why)) => self.reject(api, known, &why).await,
                (Step::Nothing | Step::Run | Step::End(_), _) => Ok(()),
            },
        };
        postpone(known, reported)
    }

    /// Reports the rejections that were held back until now.
    pub(super) async fn release(&mut self, api: &mut Api) -> Result<(), SessionEnd> {
        let now = Instant::now();
        for uid in self.followed.uids() {
            if self.followed.get(&uid).is_none_or(|known| known.held.is_none_or(|until| now < until)) {
                continue;
            }
            let Some(mut known) = self.followed.remove(&uid) else { continue };
            let sent = self.report_again(api, &uid, &mut known).await;
            // It runs or ends now, if there was nothing to report.
            known.held = known.held.filter(|until| now < *until);
            self.followed.insert(uid, known);
            sent?;
        }
        Ok(())
    }

    /// Sends what changed in the local API.
    pub(super) async fn send_changed(&mut self, api: &mut Api) -> Result<Seen, SessionEnd> {
        let objects = self.shell.publication.objects.clone();
        let Ok(changes) = objects.changes_since(self.version, CHANGES) else {
            let version = objects.version();
            self.send_all(api).await?;
            // The events of a time without the cluster, the oldest first.
            let (mut events, _) = objects.list("events", None);
            events.retain(|(_, event)| event.version > self.version);
            events.sort_by_key(|(_, event)| event.version);
            let is_last = events.len() <= CHANGES;
            for (_, event) in events.into_iter().take(CHANGES) {
                self.send_event(api, serde_json::from_str(&event.json).unwrap_or_default()).await?;
                self.version = event.version;
            }
            if is_last {
                self.version = version;
            }
            self.count_dropped();
            return Ok(Seen::Sent);
        };
        let last = changes.last().map_or(self.version, |change| change.object.version);
        if changes.iter().any(|change| change.key.resource == "nodes") {
            self.compare_node();
        }
        // Of several changes of an object, the last one matters, and those of a pod that the cluster is to see before it.
        // Statuses come first, then events.
        let next_of = |place: usize| {
            let (change, later) = (&changes[place], &changes[place + 1..]);
            later.iter().find(|later| later.key == change.key)
        };
        let sends_all = self.shell.config.sync.is_none() && !self.shell.config.reporting.waits_for_lease();
        for (place, change) in changes.iter().enumerate().filter(|(_, change)| change.key.resource == "pods")
        {
            let is_deleted = matches!(change.kind, ChangeKind::Deleted);
            if !is_deleted && change.object.version <= self.sent_at {
                continue;
            }
            let object = |change: &ObjectChange| -> Value {
                serde_json::from_str(&change.object.json).unwrap_or_default()
            };
            let pod = object(change);
            let is_due = |next| sends_all && pods::is_sent_before(&pod, &object(next));
            if is_deleted || next_of(place).is_none_or(is_due) {
                self.send_pod(api, pod, is_deleted).await?;
            }
        }
        for (place, change) in changes.iter().enumerate() {
            let is_deleted = matches!(change.kind, ChangeKind::Deleted);
            if change.key.resource == "events" && !is_deleted && next_of(place).is_none() {
                self.send_event(api, serde_json::from_str(&change.object.json).unwrap_or_default()).await?;
            }
        }
        self.version = last;
        self.count_dropped();
        Ok(Seen::Sent)
    }

    /// Sends what a change of a pod of the local API means to the cluster.
    async fn send_pod(&mut self, api: &mut Api, object: Value, is_deleted: bool) -> Result<(), SessionEnd> {
        if let Some(name) = mirrors::name_of(&object, &self.credentials.node) {
            return self.mirror(api, &name, (!is_deleted).then_some(&object)).await;
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let Some(mut known) = self.followed.remove(&uid) else { return Ok(()) };
        let is_wanted = known.object["metadata"]["deletionTimestamp"].is_null();
        let mut sent = if !is_deleted {
            self.report(api, &mut known, &object).await
        } else if is_wanted && pods::runs_again(&object) {
            // Another one of this UID follows.
            Ok(())
        } else {
            Self::send(api, &self.has_news, &mut known, &object).await
        };
        if sent.is_ok() && is_deleted && !is_wanted {
            sent = self.finish(api, &uid, &mut known).await;
        }
        sent = postpone(&mut known, sent);
        self.followed.insert(uid, known);
        sent
    }

    /// Events up to the version need not wait for the cluster any more.
    fn count_dropped(&self) {
        let dropped = self.shell.publication.events_sent(self.version);
        if dropped > 0 {
            log::warn!("{dropped} events of a time without the cluster were dropped");
        }
    }

    /// Notices a state of the node that is to be reported.
    fn compare_node(&mut self) {
        if node::comparable(&self.local_node()) != self.reported {
            self.schedule.observe(Instant::now(), 0, Seen::NodeChanged);
        }
    }

    /// Sends the status of a pod of the cluster, and adds its new ephemeral containers.
    pub(super) async fn report(
        &mut self,
        api: &mut Api,
        known: &mut Known,
        local: &Value,
    ) -> Result<(), SessionEnd> {
        let ephemeral = pods::ephemeral(&known.object).len();
        if ephemeral > known.ephemeral && known.has_manifest {
            known.ephemeral = ephemeral;
            let new = pods::new_ephemeral(&known.object, local);
            if !new.is_empty() {
                self.add_ephemeral(api, known, &new).await?;
            }
        }
        if gates::types(local).next().is_some() {
            let (local, status) = (local.clone(), known.object["status"].clone());
            self.call(ClusterCall::TakeConditions { local, status }).await;
        }
        if pods::is_held_back(local, self.shell.machine.shutdown.goes_down()) {
            if local["metadata"]["deletionTimestamp"].is_string() {
                return Ok(());
            }
            let shown = pods::unready(local, &known.object["status"]);
            return Self::send(api, &self.has_news, known, &shown).await;
        }
        if rejections::is_rejected(local) && known.holds_rejection(&mut self.rejections, Instant::now()) {
            return Self::send(api, &self.has_news, known, &rejections::waiting(local)).await;
        }
        Self::send(api, &self.has_news, known, local).await
    }

    /// Adds ephemeral containers to a pod on this board, beside those that it has. A rejection becomes an event, and
    /// the pod runs on.
    async fn add_ephemeral(
        &mut self,
        api: &mut Api,
        known: &Known,
        new: &[&Value],
    ) -> Result<(), SessionEnd> {
        let (reply, answer) = crate::api::Reply::new();
        let mut list = json!({ "spec": { "ephemeralContainers": new } });
        pods::deny_own_objects(&mut list, "");
        let request = EphemeralRequest {
            namespace: known.namespace.clone(),
            name: known.name.clone(),
            change: Change::Patch(PatchKind::Strategic, list),
            validation: FieldValidation::Strict,
            dry_run: false,
            reply,
        };
        let request = Box::new(Request::Ephemeral(request));
        self.call(ClusterCall::Change(message::Change::Request(request))).await;
        match answer.recv().await {
            Ok(Err(status)) => {
                self.send_warning(api, known, &self.suffix(), (NotRun::Unsupported, &status.message)).await
            }
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
    }

    /// Tells the cluster that this node does not run a pod, and why: with an event, and in the status, whose phase may
    /// have to wait.
    pub(super) async fn reject(
        &mut self,
        api: &mut Api,
        known: &mut Known,
        why: &str,
    ) -> Result<(), SessionEnd> {
        known.rejection = Some(why.to_owned());
        let is_held = known.holds_rejection(&mut self.rejections, Instant::now());
        let patch = pods::rejection(&known.object["metadata"]["uid"], why, is_held);
        let was_shown = known.object["status"]["reason"] == patch["status"]["reason"];
        if !(is_held && was_shown) {
            Self::patch_status(api, &self.has_news, known, &patch).await?;
        }
        if !is_held {
            known.rejection = None;
        }
        if was_shown {
            return Ok(());
        }
        self.send_warning(api, known, &self.suffix(), (NotRun::Unsupported, why)).await
    }

    /// The end of the name of an event, as of client-go's recorder: the time.
    fn suffix(&self) -> String {
        format!("{:x}", self.now().0)
    }

    /// Says once for each content that a pod is set aside. The pod is not rejected: its controller would make the next one
    /// at once.
    pub(super) async fn report_set_aside(
        &self,
        api: &mut Api,
        known: &Known,
        handled: Handled,
        why: &str,
    ) -> Result<(), SessionEnd> {
        log::error!("{}/{}: {why}", known.namespace, known.name);
        let suffix = format!("{:x}", handled.content);
        self.send_warning(api, known, &suffix, (NotRun::SetAside, why)).await
    }

    /// Sends an event about a pod that this node does not run, unless there is one with this suffix.
    async fn send_warning(
        &self,
        api: &mut Api,
        known: &Known,
        suffix: &str,
        why: (NotRun, &str),
    ) -> Result<(), SessionEnd> {
        let now = self.now().to_string();
        let event = pods::rejection_event(&known.object, &self.credentials.node, suffix, why, &now);
        let events = format!("/api/v1/namespaces/{}/events", known.namespace);
        accept_event(api.call("POST", &events, Some((JSON, &event))).await)
    }

    /// Sends an event of a pod of the cluster, or of the node.
    async fn send_event(&self, api: &mut Api, mut event: Value) -> Result<(), SessionEnd> {
        if !self.shell.config.reporting.sends(&event) {
            return Ok(());
        }
        self.name_the_rejected(&mut event["involvedObject"]);
        let involved = &event["involvedObject"];
        let uid = involved["uid"].as_str().unwrap_or_default();
        if !(self.followed.get(uid).is_some() || involved["kind"] == "Node") {
            let Some(about) = self.about_mirror(involved) else { return Ok(()) };
            event["involvedObject"] = about;
        }
        let metadata = &event["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        event["metadata"] = json!({ "name": name, "namespace": namespace });
        let path = format!("/api/v1/namespaces/{namespace}/events");
        // One that was counted up is probably known.
        if event["count"].as_u64().unwrap_or(1) > 1 {
            let changed = json!({ "count": event["count"], "lastTimestamp": event["lastTimestamp"], "message": event["message"] });
            match api.call("PATCH", &format!("{path}/{name}"), Some((STRATEGIC, &changed))).await {
                Err(error) if error.code() == Some(404) => {}
                sent => return accept_event(sent),
            }
        }
        accept_event(api.call("POST", &path, Some((JSON, &event))).await)
    }

    /// Adds the UID of the pod of the cluster to what an event is about whose manifest this board rejects.
    fn name_the_rejected(&self, involved: &mut Value) {
        let text = |field: &str| involved[field].as_str().unwrap_or_default();
        if text("kind") != "Pod" || !text("uid").is_empty() {
            return;
        }
        let (namespace, name) = (text("namespace"), text("name"));
        if let Some(uid) = self.followed.predecessor("", namespace, name)
            && self.local_pod(&uid, namespace, name).is_none()
        {
            involved["uid"] = uid.into();
        }
    }

    /// Deletes a pod that has ended here from the cluster, after its last status was sent.
    pub(super) async fn finish(&self, api: &mut Api, uid: &str, known: &mut Known) -> Result<(), SessionEnd> {
        if !pods::has_terminal_phase(&known.object) {
            let changes = self.shell.publication.objects.changes_since(self.version, usize::MAX);
            let mut changes = changes.unwrap_or_default().into_iter().rev();
            let last = changes.find_map(|change| {
                let is_pod = change.key.resource == "pods" && *change.key.name == *known.name;
                let pod: Value = serde_json::from_str(&change.object.json).ok().filter(|_| is_pod)?;
                (pod["metadata"]["uid"] == uid).then_some(pod)
            });
            if let Some(last) = last {
                Self::send(api, &self.has_news, known, &last).await?;
            }
        }
        if !pods::has_terminal_phase(&known.object) {
            Self::patch_status(api, &self.has_news, known, &pods::ended(uid)).await?;
        }
        let options = pods::final_deletion(uid);
        tolerate(api.call("DELETE", &known.path(), Some((JSON, &options))).await)
    }
}
