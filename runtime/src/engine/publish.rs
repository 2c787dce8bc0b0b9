//! Publishes Pod objects: each as it was admitted, with its present status.

use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use serde_json::Value;

use nodlet_core::facts::{Observation, PodIndex, Record};

use nodlet_core::facts::IMAGE_UPDATE_PENDING;
use nodlet_core::node::Successor;
use nodlet_core::pod::PodState;
use nodlet_core::status;
use nodlet_core::time::Moment;
use nodlet_registry::objects::Key;
use nodlet_registry::{Seen, Wanted, without_ephemeral};

use super::Engine;
use super::on_tmpfs::{self, LeftBehind};
use super::pods::PodShell;

impl Engine {
    /// Publishes a pod as it is now, if its name shows it.
    pub(super) fn publish(&mut self, pod: PodIndex) {
        let (Some(object), Some(wanted)) = (self.object(pod), self.shell.pods.wanted(pod)) else { return };
        self.leave_behind(pod, &wanted);
        if self.shown(&wanted.pod.namespace, &wanted.pod.name) == Some(pod) {
            self.shell.publication.objects.put(key(&wanted), object);
        }
    }

    /// Withdraws a pod that is gone, and publishes its successor.
    pub(super) fn withdraw(&mut self, pod: PodIndex, was_hidden: bool, again: Option<Successor>) {
        let Some(gone) = self.shell.pods.borrow_mut().remove(&pod) else { return };
        self.release_claims(pod);
        on_tmpfs::remove_status(&self.shell.paths, &gone.wanted.pod.uid.0);
        if !was_hidden {
            self.shell.publication.objects.delete(&key(&gone.wanted));
        }
        if let Some(again) = again {
            let new = PodShell::new(self.wanted_of(again, &gone.wanted), created(None));
            self.shell.pods.borrow_mut().insert(again.index, new);
        }
        self.publish_successor(&gone.wanted);
        self.collect_images();
    }

    /// The admitted pod of a successor that has the UID of `gone`.
    fn wanted_of(&self, successor: Successor, gone: &Rc<Wanted>) -> Rc<Wanted> {
        if successor.resumes {
            return gone.clone();
        }
        let pod = self.node.pod(successor.index).map(PodState::pod);
        let name = pod.map(|pod| (pod.namespace.clone(), pod.name.clone()));
        let desired = name.and_then(|name| self.registry.desired(&name));
        without_ephemeral(desired.filter(|desired| desired.pod.uid == gone.pod.uid).unwrap_or(gone))
    }

    /// Withdraws a pod whose processes still end, and publishes its successor.
    pub(super) fn hide(&mut self, pod: PodIndex) {
        let Some(wanted) = self.shell.pods.wanted(pod) else { return };
        self.observe(Observation::Hidden { uid: wanted.pod.uid.clone() });
        // Before it is shown no more: the next agent does not show it either.
        self.leave_behind(pod, &wanted);
        self.shell.publication.objects.delete(&key(&wanted));
        self.publish_successor(&wanted);
    }

    fn publish_successor(&mut self, gone: &Wanted) {
        if let Some(successor) = self.shown(&gone.pod.namespace, &gone.pod.name) {
            self.publish(successor);
        }
    }

    /// Writes the published status of a pod for the next agent, if it has changed.
    fn leave_behind(&self, pod: PodIndex, wanted: &Wanted) {
        let Some(state) = self.node.pod(pod) else { return };
        let mut pods = self.shell.pods.borrow_mut();
        let Some(entry) = pods.get_mut(&pod) else { return };
        let waits = self.registry.held_updates.waits_of(&wanted.pod.uid).cloned();
        let left = LeftBehind::new(
            self.shell.stores.records.boot_id(),
            entry.published.created,
            state.handover(),
            waits,
        );
        let written = left.bytes().and_then(|bytes| {
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes);
            let digest = hasher.finish();
            if entry.published.digest != digest {
                on_tmpfs::write_status(&self.shell.paths, &wanted.pod.uid.0, &bytes)?;
                entry.published.digest = digest;
            }
            Ok(())
        });
        if let Err(error) = written {
            log::warn!("failed to save the status of {}: {error}", wanted.pod.uid);
        }
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
        if let Some(waits) = self.registry.held_updates.waits_of(&wanted.pod.uid)
            && let Some(conditions) = status["conditions"].as_array_mut()
        {
            let since = Moment::ThisBoot(waits.since);
            // Of the two changes that wait, the one that replaces the pod.
            conditions.retain(|condition| condition["type"] != IMAGE_UPDATE_PENDING);
            conditions.push(status::image_update_pending(state, anchor, since, &waits.missing));
        }
        let timestamp = |at| self.shell.machine.timestamp(at);
        self.registry.published(
            &wanted,
            Seen {
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
