//! Publishes Pod objects: each as it was admitted, with its present status.

use std::hash::{DefaultHasher, Hasher};

use serde_json::Value;

use nodlet_core::facts::{Observation, PodIndex, Record};

use nodlet_core::node::Successor;
use nodlet_core::pod::PodState;
use nodlet_core::status;
use nodlet_core::time::Moment;
use nodlet_registry::objects::Key;
use nodlet_registry::{LiveFields, Present, Wanted, names};

use super::Engine;
use super::handover_files::{self, StatusFile};
use super::pods::PodShell;

impl Engine {
    /// Publishes a pod as it is now, if its name shows it.
    pub(super) fn publish(&mut self, pod: PodIndex) {
        let Some(wanted) = self.shell.pods.wanted(pod) else { return };
        let file = self.registry.sources.handled(&wanted.source);
        let _mark = file.map(|file| self.shell.handling.in_loop(file));
        let Some(object) = self.object(pod) else { return };
        self.write_status_or_warn(pod, &wanted);
        let objects = &self.shell.publication.objects;
        let is_between_runs = self.node.pod(pod).is_some_and(PodState::is_replacing_a_run);
        if is_between_runs && objects.get(&key(&wanted)).is_some() {
            return;
        }
        if self.shown(&wanted.pod.namespace, &wanted.pod.name) == Some(pod) {
            objects.put(key(&wanted), object);
        }
    }

    /// Withdraws a pod that is gone, and publishes its successor.
    pub(super) fn withdraw(&mut self, pod: PodIndex, was_hidden: bool, again: Option<Successor>) {
        let Some(gone) = self.shell.pods.borrow_mut().remove(&pod) else { return };
        self.release_claims(pod);
        self.cluster.forget_pod(pod);
        handover_files::remove_status(&self.shell.paths, &gone.wanted.pod.uid.0);
        if !was_hidden {
            self.shell.publication.objects.delete(&key(&gone.wanted));
        }
        if let Some(again) = again {
            let pod = self.node.pod(again.index).map(|state| &**state.pod());
            let wanted = self.registry.successor_of(&gone.wanted, pod, again.resumes);
            let new = PodShell::new(wanted, created(None));
            self.shell.pods.borrow_mut().insert(again.index, new);
        }
        self.publish_successor(&gone.wanted);
        self.collect_images();
    }

    /// Withdraws a pod whose processes still end, and publishes its successor.
    pub(super) fn hide(&mut self, pod: PodIndex) {
        let Some(wanted) = self.shell.pods.wanted(pod) else { return };
        self.observe(Observation::Hidden { uid: wanted.pod.uid.clone() });
        // Before it is shown no more: the next agent does not show it either.
        self.write_status_or_warn(pod, &wanted);
        self.shell.publication.objects.delete(&key(&wanted));
        self.publish_successor(&wanted);
    }

    fn publish_successor(&mut self, gone: &Wanted) {
        if let Some(successor) = self.shown(&gone.pod.namespace, &gone.pod.name) {
            self.publish(successor);
        }
    }

    fn write_status_or_warn(&self, pod: PodIndex, wanted: &Wanted) {
        if let Err(error) = self.write_status(pod, wanted) {
            log::warn!("failed to save the status of {}: {error}", wanted.pod.uid);
        }
    }

    /// Writes the published status of a pod for the next agent, if it has changed.
    ///
    /// # Errors
    /// The file cannot be written: the next agent would continue with an earlier status.
    pub(super) fn write_status(&self, pod: PodIndex, wanted: &Wanted) -> std::io::Result<()> {
        let Some(state) = self.node.pod(pod) else { return Ok(()) };
        let mut pods = self.shell.pods.borrow_mut();
        let Some(entry) = pods.get_mut(&pod) else { return Ok(()) };
        let waits = self.registry.held_updates.waits_of(&wanted.pod.uid).cloned();
        let left = StatusFile::new(
            self.shell.stores.records.boot_id(),
            entry.published.created,
            state.handover(),
            waits,
        );
        let bytes = left.bytes()?;
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let digest = hasher.finish();
        if entry.published.digest != digest {
            handover_files::write_status(&self.shell.paths, &wanted.pod.uid.0, &bytes)?;
            entry.published.digest = digest;
        }
        Ok(())
    }

    /// The pod that is published under a name, see [`names::shown`].
    pub(super) fn shown(&self, namespace: &str, name: &str) -> Option<PodIndex> {
        let pods = self.shell.pods.borrow();
        let all = pods.iter().map(|(index, entry)| (*index, &*entry.wanted.pod));
        names::shown((namespace, name), all, |index| self.node.pod(index).is_some_and(PodState::is_hidden))
    }

    /// Collects what the registry needs to know of a published pod, for a request that changes it.
    pub(super) fn present(&self, index: PodIndex) -> Option<Present> {
        let object = self.object(index)?;
        let state = self.node.pod(index)?;
        let pods = self.shell.pods.borrow();
        let entry = pods.get(&index)?;
        let waiting = self.registry.held_updates.of(&entry.wanted.pod.uid).map(|held| held.new.clone());
        Some(Present {
            wanted: entry.wanted.clone(),
            object,
            is_unwanted: state.is_unwanted(),
            has_terminal_phase: state.has_terminal_phase(),
            waiting,
            client_conditions: state.client_conditions().clone(),
        })
    }

    /// The object of a pod with its present status; `None` if the core has dropped the pod.
    pub(super) fn object(&self, pod: PodIndex) -> Option<Value> {
        let state = self.node.pod(pod)?;
        let (wanted, created) = {
            let pods = self.shell.pods.borrow();
            let entry = pods.get(&pod)?;
            (entry.wanted.clone(), entry.published.created)
        };
        let anchor = self.shell.machine.anchor();
        let network = self.shell.machine.network.borrow();
        let mut status = status::of(state, anchor, network.host_ip());
        status::add_ipv6(&mut status, state, network.ipv6_of(&wanted.pod.uid), network.host_ipv6());
        drop(network);
        self.registry.add_awaited_images(&mut status, state, anchor);
        let timestamp = |at| self.shell.machine.timestamp(at);
        self.registry.published(
            &wanted,
            LiveFields {
                created: created.timestamp(anchor).to_string(),
                generation: state.generation(),
                deletion: state.deletion().map(|deletion| (timestamp(deletion.at), deletion.grace)),
                status,
            },
        )
    }
}

/// The key of a pod's object in the store.
pub(super) fn key(wanted: &Wanted) -> Key {
    Key::new("pods", &wanted.pod.namespace, &wanted.pod.name)
}

/// `metadata.creationTimestamp` of a pod from a file: when the pod was first seen, as far as known.
pub(super) fn created(record: Option<&Record>) -> Moment {
    record.and_then(|record| record.start_time).unwrap_or(Moment::ThisBoot(nodlet_host::clock::instant()))
}
