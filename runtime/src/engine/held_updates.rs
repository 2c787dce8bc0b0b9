//! Performs what the registry decides about changes that wait for images (`registry/src/held_updates.rs`): events,
//! look-ups of images, and the `*.kept` files on flash.

use std::rc::Rc;

use nodlet_core::node::Node;
use nodlet_core::spec::{Pod, Uid};
use nodlet_registry::held_updates::{Activity, Effect, LookUp, NodePods, kept_bytes};
use nodlet_registry::{AdmittedPods, AwaitedImage, DuePods, PodName, Wanted, WantedByName};

use super::message::Message;
use super::pods::Pods;
use super::{Engine, images};

/// The pods of the core and of the engine, for the registry.
struct View<'a> {
    node: &'a Node,
    pods: &'a Pods,
}

impl NodePods for View<'_> {
    fn activity(&self, uid: &Uid) -> Activity {
        Activity::of(self.node.index_of(uid).and_then(|index| self.node.pod(index)))
    }

    fn named(&self, name: &PodName) -> Vec<Rc<Wanted>> {
        let pods = self.pods.borrow();
        let named = pods.values().map(|entry| &entry.wanted);
        named
            .filter(|wanted| (&wanted.pod.namespace, &wanted.pod.name) == (&name.0, &name.1))
            .cloned()
            .collect()
    }
}

impl Engine {
    /// Holds back changes whose images are not on the board, and performs what follows from it. After look-ups of images,
    /// the loop decides again.
    pub(super) fn hold_back(&mut self, admitted: AdmittedPods) -> DuePods {
        let view = View { node: &self.node, pods: &self.shell.pods };
        let (due, effects) = self.registry.hold_back(admitted, &view, nodlet_host::clock::instant());
        for effect in effects {
            match effect {
                Effect::Emit(pod, event) => self.shell.publication.emit(&pod, &event),
                Effect::KeepOnFlash(pod) => self.keep_on_flash(&pod),
                Effect::RemoveKept(uid) => self.remove_kept(&uid),
                Effect::LookUp(look_up) => self.look_up(look_up),
                Effect::Publish(uid) => {
                    if let Some(index) = self.node.index_of(&uid) {
                        self.publish(index);
                    }
                }
            }
        }
        due
    }

    /// Looks up the images of a change that is held back.
    fn look_up(&self, look_up: LookUp) {
        let present = images::are_present(&self.shell.stores, look_up.images.clone());
        self.shell.tasks.then(present, move |present| Message::ImagesLookedUp { look_up, present });
    }

    /// Looks up the images of changes, before the registry first decides about them.
    pub(super) async fn look_up_first(&mut self, kept: WantedByName) {
        let view = View { node: &self.node, pods: &self.shell.pods };
        let look_up = self.registry.begin_held_updates(kept, &view);
        if !look_up.images.is_empty() {
            let present = images::are_present(&self.shell.stores, look_up.images.clone()).await;
            self.registry.held_updates.looked_up(look_up, present);
        }
    }

    /// Whether a change that is held back need not wait any more, since the running pod has ended.
    pub(super) fn is_any_hold_over(&self) -> bool {
        self.registry.held_updates.is_any_over(&View { node: &self.node, pods: &self.shell.pods })
    }

    /// The images that a change to `new` waits for if they are not on the board.
    pub(super) fn awaited_images(&self, new: &Pod) -> Vec<AwaitedImage> {
        let view = View { node: &self.node, pods: &self.shell.pods };
        let published = self.shown(&new.namespace, &new.name).and_then(|index| self.node.pod(index));
        self.registry.held_updates.awaited_images(new, published, &view)
    }

    fn keep_on_flash(&self, old: &Wanted) {
        let path = self.shell.stores.records.kept_path_of(&old.pod.uid.0);
        let Some(bytes) = kept_bytes(old) else { return };
        let label = old.pod.uid.clone();
        let written = self.shell.stores.replace(path, bytes);
        let failed = move |error| format!("failed to save the running manifest of {label}: {error}");
        self.shell.tasks.log_failure(written, failed);
    }

    fn remove_kept(&self, uid: &Uid) {
        let path = self.shell.stores.records.kept_path_of(&uid.0);
        let removed = self.shell.stores.remove(path);
        self.shell.tasks.log_failure(removed, |error| format!("failed to remove a kept manifest: {error}"));
    }
}
