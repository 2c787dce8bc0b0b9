//! Changes that replace a running pod and name an image that is not on the board: they
//! are held back, and the pod runs on as it was, until all their images are there.
//!
//! The change is durable already: it is a manifest. What runs instead is written beside its record
//! (`*.kept`), so that it runs again after a power cut, too. A change in place is not held back:
//! there the core waits for the image itself (`pod/update.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use nodlet_core::facts::Event;
use nodlet_core::spec::{Pod, Uid};
use nodlet_core::time::Instant;
use nodlet_kube::manifest::{self, Validation};
use nodlet_registry::{PodName, Wanted, WantedByName, without_ephemeral};

use super::{Engine, images};

/// A change that is held back.
pub(super) struct HeldUpdate {
    /// The pod that is to follow.
    pub(super) new: Rc<Wanted>,
    /// The pod that runs on.
    old: Rc<Wanted>,
    waits: Waits,
}

/// What a change waits for. Left behind for the next agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waits {
    /// Since when images are known to be missing.
    pub(super) since: Instant,
    /// Images that are not on the board; none while that is being looked up.
    pub(super) missing: Vec<String>,
}

/// All changes that are held back, and what is known of their images.
#[derive(Default)]
pub(super) struct HeldUpdates {
    held: BTreeMap<PodName, HeldUpdate>,
    /// Whether an image is on the board; `None` while that is being looked up.
    presence: BTreeMap<String, Option<bool>>,
    /// Counts changes of the board's images: an answer of before one is out of date.
    generation: u64,
    /// The pods that an earlier boot kept running, until they are looked at.
    kept: WantedByName,
    /// The pods of that which run again.
    restored: BTreeSet<Uid>,
    /// What changes of these pods waited for when an agent before ended, until they are looked at.
    left: BTreeMap<Uid, Waits>,
}

/// What is known of the images of a pod.
#[derive(Debug, PartialEq, Eq)]
enum Images {
    /// All are on the board.
    Present,
    /// These are not.
    Missing(Vec<String>),
    /// Of some nothing is known yet.
    Unknown,
}

impl HeldUpdates {
    /// The pods that are to follow.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.held.values().map(|held| &*held.new.pod)
    }

    /// The change of the pod that has this uid now.
    pub(super) fn of(&self, uid: &Uid) -> Option<&HeldUpdate> {
        self.held.values().find(|held| held.old.pod.uid == *uid)
    }

    /// What is known to be missing for that change.
    pub(super) fn waits_of(&self, uid: &Uid) -> Option<&Waits> {
        let waits = self.of(uid).map(|held| &held.waits).or_else(|| self.left.get(uid));
        waits.filter(|waits| !waits.missing.is_empty())
    }

    /// An agent before left this behind of a pod that was found.
    pub(super) fn adopt(&mut self, uid: Uid, waits: Waits) {
        self.left.insert(uid, waits);
    }

    /// The pod of a name that was wanted last, if it is held back.
    pub(super) fn newest(&self, name: &PodName) -> Option<&Rc<Wanted>> {
        self.held.get(name).map(|held| &held.new)
    }

    fn images(&self, pod: &Pod) -> Images {
        let mut missing = Vec::new();
        for image in images_of(pod) {
            match self.presence.get(image) {
                Some(Some(true)) => {}
                Some(Some(false)) => missing.push(image.to_owned()),
                Some(None) | None => return Images::Unknown,
            }
        }
        if missing.is_empty() { Images::Present } else { Images::Missing(missing) }
    }
}

impl Engine {
    /// Leaves pods that run what they are, for which `wanted` has others whose images are not on the
    /// board.
    pub(super) fn hold_back(&mut self, wanted: &mut WantedByName) {
        let kept = std::mem::take(&mut self.held_updates.kept);
        let mut before = std::mem::take(&mut self.held_updates.held);
        let mut changed = Vec::new();
        for (name, new) in wanted.iter_mut() {
            let Some(old) = self.predecessor(name, new, &kept) else { continue };
            let known = before.remove(name).filter(|known| known.new.is_same_as(new));
            let left = self.held_updates.left.remove(&old.pod.uid);
            let known = known.map(|known| known.waits).or(left);
            let waits = match (self.held_updates.images(&new.pod), known) {
                (Images::Present, _) => continue,
                (Images::Unknown, Some(known)) => known,
                (Images::Unknown, None) => {
                    Waits { since: nodlet_host::clock::instant(), missing: Vec::new() }
                }
                (Images::Missing(missing), Some(known)) if known.missing == missing => known,
                (Images::Missing(missing), _) => {
                    self.tell_missing(&old, &missing);
                    self.keep_on_flash(&old);
                    changed.push(old.pod.uid.clone());
                    Waits { since: nodlet_host::clock::instant(), missing }
                }
            };
            if kept.get(name).is_some_and(|kept| kept.pod.uid == old.pod.uid) {
                self.held_updates.restored.insert(old.pod.uid.clone());
            }
            let new = std::mem::replace(new, old.clone());
            self.held_updates.held.insert(name.clone(), HeldUpdate { new, old, waits });
        }
        self.look_up_images();
        // Of these no change waits any more.
        changed.extend(std::mem::take(&mut self.held_updates.left).into_keys());
        for old in kept.values().filter(|old| self.held_updates.of(&old.pod.uid).is_none()) {
            self.remove_kept(&old.pod.uid);
        }
        let ended = before.into_values().filter(|held| self.held_updates.of(&held.old.pod.uid).is_none());
        let ended: Vec<Rc<Wanted>> = ended.map(|held| held.old).collect();
        for old in ended {
            self.remove_kept(&old.pod.uid);
            changed.push(old.pod.uid.clone());
        }
        for index in changed.iter().filter_map(|uid| self.node.index_of(uid)).collect::<Vec<_>>() {
            self.publish(index);
        }
    }

    /// Looks up the images of changes that an agent finds when it begins, before anything of their
    /// pods is decided. Of a pod that an earlier boot kept nothing runs: what need not be held back
    /// begins at once. A pod that still runs may have been asked to end by the agent before this one:
    /// while an answer was waited for, containers of it that have ended would start again.
    pub(super) async fn look_at_images_first(&mut self) {
        let kept = self.kept();
        let (wanted, _) = self.registry.sources.wanted();
        let differs = |(name, new): &(&PodName, &Rc<Wanted>)| {
            let old = self.registry.desired(name).cloned().or_else(|| self.found(name));
            kept.contains_key(*name) || old.is_some_and(|old| !old.is_same_as(new))
        };
        let changed = wanted.iter().filter(differs);
        let images: BTreeSet<String> =
            changed.flat_map(|(_, new)| images_of(&new.pod)).map(str::to_owned).collect();
        self.held_updates.kept = kept;
        if !images.is_empty() {
            let images: Vec<String> = images.into_iter().collect();
            let present = images::are_present(&self.shell.stores, images.clone()).await;
            self.held_updates.presence.extend(images.into_iter().zip(present.into_iter().map(Some)));
        }
    }

    /// Images were added or removed.
    pub(super) fn look_at_held(&mut self) {
        self.held_updates.generation += 1;
        self.held_updates.presence.clear();
        if !self.held_updates.held.is_empty() {
            self.reconcile();
        }
    }

    /// A pod that a change waits beside has ended, or is being deleted.
    pub(super) fn any_hold_is_over(&self) -> bool {
        self.held_updates.held.values().any(|held| !self.works(&held.old.pod.uid))
    }

    /// Whether a change to `new` replaces a pod that works.
    pub(super) fn replaces(&self, old: &Pod, new: &Pod) -> bool {
        is_another(old, new) && self.works(&old.uid)
    }

    /// The pod that works in the place of `new`, if `new` is another one.
    fn predecessor(&self, name: &PodName, new: &Wanted, kept: &WantedByName) -> Option<Rc<Wanted>> {
        if let Some(old) = self.registry.desired(name).cloned().or_else(|| self.found(name)) {
            return self.replaces(&old.pod, &new.pod).then_some(old);
        }
        kept.get(name).filter(|old| is_another(&old.pod, &new.pod)).cloned()
    }

    /// A pod that this agent found.
    fn found(&self, name: &PodName) -> Option<Rc<Wanted>> {
        let pods = self.shell.pods.borrow();
        let of_name = |wanted: &Wanted| (&wanted.pod.namespace, &wanted.pod.name) == (&name.0, &name.1);
        let mut found = pods.values().map(|entry| &entry.wanted).filter(|wanted| of_name(wanted));
        found.find(|wanted| self.works(&wanted.pod.uid)).map(without_ephemeral)
    }

    /// The pod is wanted, and containers of it run or are to run again.
    fn works(&self, uid: &Uid) -> bool {
        match self.node.index_of(uid).and_then(|index| self.node.pod(index)) {
            Some(state) => {
                let is_restored = self.held_updates.restored.contains(uid);
                state.is_active() && !state.is_unwanted() && (is_restored || state.has_run())
            }
            None => false,
        }
    }

    /// Asks the store for the images of which nothing is known.
    fn look_up_images(&mut self) {
        let held_updates = &mut self.held_updates;
        let needed: BTreeSet<&str> =
            held_updates.held.values().flat_map(|held| images_of(&held.new.pod)).collect();
        held_updates.presence.retain(|image, _| needed.contains(&**image));
        let unknown: Vec<String> = needed
            .into_iter()
            .filter(|image| !held_updates.presence.contains_key(*image))
            .map(str::to_owned)
            .collect();
        if unknown.is_empty() {
            return;
        }
        held_updates.presence.extend(unknown.iter().map(|image| (image.clone(), None)));
        let generation = held_updates.generation;
        self.shell.tasks.then(
            images::are_present(&self.shell.stores, unknown.clone()),
            move |engine, present| {
                if engine.held_updates.generation == generation {
                    let present = present.into_iter().map(Some);
                    engine.held_updates.presence.extend(unknown.into_iter().zip(present));
                    engine.reconcile();
                }
            },
        );
    }

    fn tell_missing(&self, old: &Wanted, missing: &[String]) {
        let warn = |reason, message: String| {
            let event = Event { warning: true, reason, message: message.into(), container: None };
            self.shell.publication.emit(old, &event);
        };
        for image in missing {
            warn(
                "Failed",
                format!(
                    "Failed to pull image \"{image}\": it is not on this node, and nodlet pulls from no registry: \
                     load it with 'nodlet image load FILE'"
                ),
            );
            warn("Failed", "Error: ErrImagePull".to_owned());
            let name = &old.pod.name;
            warn(
                "BackOff",
                format!(
                    "Back-off pulling image \"{image}\": pod {name} stays unchanged until that image is loaded"
                ),
            );
        }
    }

    fn keep_on_flash(&self, old: &Wanted) {
        let path = self.shell.stores.records.kept_path_of(&old.pod.uid.0);
        let Ok(object) = serde_json::from_str(old.as_written().get()) else { return };
        let kept = Kept { source: old.source.clone(), object };
        let Ok(bytes) = serde_json::to_vec(&kept) else { return };
        let label = old.pod.uid.clone();
        let written = self.shell.stores.replace(path, bytes);
        self.shell.tasks.spawn(async move {
            if let Err(error) = written.await {
                log::error!("failed to write what {label} runs, for after a power cut: {error}");
            }
        });
    }

    fn remove_kept(&self, uid: &Uid) {
        let path = self.shell.stores.records.kept_path_of(&uid.0);
        let removed = self.shell.stores.remove(path);
        self.shell.tasks.spawn(async move {
            if let Err(error) = removed.await {
                log::error!("failed to remove what is kept of a pod: {error}");
            }
        });
    }

    /// The pods that an earlier boot kept running.
    fn kept(&self) -> WantedByName {
        let read = |bytes: Option<&[u8]>| {
            let kept: Kept = serde_json::from_slice(bytes?).ok()?;
            let manifest =
                manifest::admit(kept.object, Validation::Ignore, &self.shell.config.node_name).ok()?;
            let wanted = Rc::new(Wanted::new(manifest, &kept.source));
            let wanted = self.admit(self.base_of(&wanted), &wanted)?;
            Some(((wanted.pod.namespace.clone(), wanted.pod.name.clone()), wanted))
        };
        let recorded = self.shell.stores.recorded.borrow();
        let kept = recorded.kept().filter_map(|(path, bytes)| {
            let kept = read(bytes);
            if kept.is_none() {
                log::error!("{} is damaged: the pod of it does not run again", path.display());
            }
            kept
        });
        kept.collect()
    }
}

/// What is written of a pod that runs on.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The file that it came from.
    source: PathBuf,
    /// As it was admitted.
    object: Value,
}

fn is_another(old: &Pod, new: &Pod) -> bool {
    new.uid != old.uid || !new.is_update_of(old)
}

fn images_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    containers.map(|container| &*container.image)
}
