//! What people see: the Pod object as it was admitted, with today's status.

use serde_json::{Map, Value};

use crate::node::{Health, ORPHAN_GRACE, PodIndex, PodState, Record};
use crate::objects::Key;
use crate::sources::Wanted;
use crate::status;
use crate::time::{Instant, Moment};

use super::{Deletion, Engine, PodShell, Shell, ephemeral, on_tmpfs};

impl Engine {
    /// Shows a pod as it is now.
    pub(super) fn publish(&mut self, pod: PodIndex) {
        let (Some(object), Some(wanted)) = (self.object(pod), self.shell.wanted(pod)) else { return };
        self.keep_healths(pod, &wanted);
        self.keep_status(pod, &wanted);
        self.keep_deletion(pod, &wanted);
        let is_hidden = self.shell.pods.borrow().get(&pod).is_some_and(|entry| entry.forced);
        if !is_hidden && !self.has_predecessor(pod, &wanted) {
            self.shell.objects.put(key(&wanted), object);
        }
    }

    /// Takes away a pod that is gone, and shows the one that waited for its end.
    pub(super) fn withdraw(&mut self, pod: PodIndex, again: Option<PodIndex>) {
        let Some(gone) = self.shell.pods.borrow_mut().remove(&pod) else { return };
        if !gone.forced {
            self.shell.objects.delete(&key(&gone.wanted));
        }
        if let Some(again) = again {
            let wanted = gone.again.unwrap_or_else(|| ephemeral::without(&gone.wanted));
            let new = PodShell::new(wanted, self.shell.created(None));
            self.shell.pods.borrow_mut().insert(again, new);
        }
        self.publish_successor(&gone.wanted);
    }

    /// Takes away a pod that still ends, and shows the one that waits for its name.
    pub(super) fn hide(&mut self, pod: PodIndex) {
        let wanted = {
            let mut pods = self.shell.pods.borrow_mut();
            let Some(entry) = pods.get_mut(&pod) else { return };
            entry.forced = true;
            entry.noted_grace = None;
            entry.wanted.clone()
        };
        self.shell.objects.delete(&key(&wanted));
        self.publish_successor(&wanted);
    }

    fn publish_successor(&mut self, gone: &Wanted) {
        let successor = {
            let pods = self.shell.pods.borrow();
            let mut others = pods.iter().filter(|(_, other)| !other.forced);
            others.find(|(_, other)| key(&other.wanted) == key(gone)).map(|(index, _)| *index)
        };
        if let Some(successor) = successor {
            self.publish(successor);
        }
    }

    /// Writes down for a later agent what probes have found, if it changed.
    fn keep_healths(&self, pod: PodIndex, wanted: &Wanted) {
        let Some(state) = self.node.pod(pod) else { return };
        let healths: Vec<Health> =
            wanted.pod.spec.container_indexes().map(|index| state.health(index)).collect();
        let mut pods = self.shell.pods.borrow_mut();
        let Some(entry) =
            pods.get_mut(&pod).filter(|entry| entry.sandbox.is_some() && entry.healths != healths)
        else {
            return;
        };
        match on_tmpfs::write_healths(&self.shell.paths.run_pod(&wanted.pod.uid.0), &healths) {
            Ok(()) => entry.healths = healths,
            Err(error) => log::warn!("failed to write down what probes found of {}: {error}", wanted.pod.uid),
        }
    }

    /// Writes down for a later agent since when conditions are as they are, and what others say.
    fn keep_status(&self, pod: PodIndex, wanted: &Wanted) {
        let Some(state) = self.node.pod(pod) else { return };
        let status = state.left_behind();
        let mut pods = self.shell.pods.borrow_mut();
        let Some(entry) =
            pods.get_mut(&pod).filter(|entry| entry.sandbox.is_some() && entry.status != status)
        else {
            return;
        };
        match on_tmpfs::write_status(&self.shell.paths.run_pod(&wanted.pod.uid.0), &status) {
            Ok(()) => entry.status = status,
            Err(error) => log::warn!("failed to write down the status of {}: {error}", wanted.pod.uid),
        }
    }

    /// Writes down for a later agent that the pod is being deleted: it gives the whole grace again.
    fn keep_deletion(&self, pod: PodIndex, wanted: &Wanted) {
        let grace =
            self.node.pod(pod).filter(|state| state.is_unwanted()).and_then(PodState::termination_grace);
        let mut pods = self.shell.pods.borrow_mut();
        let Some(entry) =
            pods.get_mut(&pod).filter(|entry| entry.sandbox.is_some() && entry.noted_grace != grace)
        else {
            return;
        };
        let Some(grace) = grace else { return };
        // What nobody knows of any more is an orphan to the next.
        let left = if entry.forced { grace.min(ORPHAN_GRACE) } else { grace };
        match on_tmpfs::write_deletion(&self.shell.paths.run_pod(&wanted.pod.uid.0), left) {
            Ok(()) => entry.noted_grace = Some(grace),
            Err(error) => log::warn!("failed to write down the deletion of {}: {error}", wanted.pod.uid),
        }
    }

    /// One name shows one pod: the older, until it is gone.
    fn has_predecessor(&self, pod: PodIndex, wanted: &Wanted) -> bool {
        let pods = self.shell.pods.borrow();
        pods.range(..pod).any(|(_, older)| key(&older.wanted) == key(wanted) && !older.forced)
    }

    /// The object of a pod; `None` if the core has dropped it.
    pub(super) fn object(&self, pod: PodIndex) -> Option<Value> {
        let state = self.node.pod(pod)?;
        let (wanted, created, deletion) = {
            let mut pods = self.shell.pods.borrow_mut();
            let entry = pods.get_mut(&pod)?;
            if let Some(grace) = state.termination_grace()
                && entry.deletion.is_none_or(|deletion| deletion.grace != grace)
            {
                entry.deletion = Some(Deletion { at: Instant::now() + grace, grace });
            }
            (entry.wanted.clone(), entry.created, entry.deletion)
        };
        let anchor = self.shell.anchor.get();
        let mut object: Value = serde_json::from_str(wanted.object.get()).ok()?;
        let metadata = &mut object["metadata"];
        if metadata.get("creationTimestamp").is_none_or(Value::is_null) {
            metadata["creationTimestamp"] = created.timestamp(anchor).to_string().into();
        }
        metadata["generation"] = state.generation().into();
        let is_applied = wanted.source == self.applied_path(&wanted.pod.namespace, &wanted.pod.name);
        let annotations = &mut metadata["annotations"];
        annotations[CONFIG_SEEN] = created.timestamp(anchor).to_string().into();
        annotations[CONFIG_SOURCE] = if is_applied { "api" } else { "file" }.into();
        if !is_applied {
            annotations[CONFIG_HASH] = (*wanted.pod.uid.0).into();
        }
        if let Some(deletion) = deletion.filter(|_| state.is_unwanted()) {
            metadata["deletionTimestamp"] = anchor.timestamp(deletion.at).to_string().into();
            metadata["deletionGracePeriodSeconds"] = deletion.grace.as_secs().into();
        }
        if !wanted.pod.is_gated() {
            object["spec"]["nodeName"] = self.shell.config.node_name.as_str().into();
        }
        let host_ip = self.shell.network.borrow().host_ip();
        object["status"] = status::of(state, anchor, host_ip);
        if let Some(held) = self.holds.of(&wanted.pod.uid).filter(|held| !held.missing.is_empty())
            && let Some(conditions) = object["status"]["conditions"].as_array_mut()
        {
            let since = Moment::ThisBoot(held.since);
            conditions.push(status::image_update_pending(state, anchor, since, &held.missing));
        }
        Some(object)
    }
}

/// What a kubelet says of where it has a pod from, and since when. It is said of what is shown
/// alone: it is in no file of ours, and nobody else can say it.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Takes it from what a client has read here and sends back.
pub(super) fn strip_config(metadata: &mut Map<String, Value>) {
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    let known = annotations.len();
    annotations.retain(|key, _| ![CONFIG_SOURCE, CONFIG_SEEN, CONFIG_HASH].contains(&key.as_str()));
    if known > 0 && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// The place of a pod's object in the store.
pub(super) fn key(wanted: &Wanted) -> Key {
    Key::new("pods", &wanted.pod.namespace, &wanted.pod.name)
}

impl Shell {
    /// `metadata.creationTimestamp` of a pod from a file: when it was first seen, as far as that is known.
    pub(super) fn created(&self, record: Option<&Record>) -> Moment {
        record.and_then(|record| record.start_time).unwrap_or(Moment::ThisBoot(Instant::now()))
    }
}
