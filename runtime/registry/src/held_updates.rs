//! Changes that replace a running pod and name images that are not on the board. Such a change is held back,
//! and the pod runs unchanged, until all its images are on the board.
//!
//! The change is durable: it is a manifest. The pod that runs is written to flash beside its record (`*.kept`),
//! so that it runs again after a power cut. A change in place is not held back: the core waits for its image
//! (`core/src/pod/update.rs`).
//!
//! [`HeldUpdates`] answers with [`Effect`]s; `engine/held_updates.rs` performs them.

use std::path::PathBuf;
use std::rc::Rc;

use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_kube::manifest::{self, Validation};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{PodName, Wanted, WantedByName, without_ephemeral};
use nodlet_core::facts::Event;
use nodlet_core::pod::PodState;
use nodlet_core::spec::{Pod, Uid};
use nodlet_core::time::Instant;

/// A change that is held back.
#[derive(Debug)]
pub struct HeldUpdate {
    /// The pod that replaces `old`.
    pub new: Rc<Wanted>,
    /// The pod that runs unchanged.
    old: Rc<Wanted>,
    waits: Waits,
}

/// The images that a change waits for. An agent leaves it behind for the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Since when images are known to be missing.
    pub since: Instant,
    /// Images that are not on the board; empty during the first look-up.
    pub missing: Vec<String>,
}

/// All changes that are held back, and which of their images are on the board.
#[derive(Debug, Default)]
pub struct HeldUpdates {
    held: SortedMap<PodName, HeldUpdate>,
    /// Whether an image is on the board; `None` during its look-up.
    presence: SortedMap<String, Option<bool>>,
    /// Counts changes of the board's images. The result of a look-up from before a change is out of date.
    generation: u64,
    /// The pods that an earlier boot kept running, until the first decision.
    kept: WantedByName,
    /// Pods of `kept` that run again.
    restored: SortedSet<Uid>,
    /// The images for which changes of these pods waited when the previous agent ended, until the first decision.
    handed_over: SortedMap<Uid, Waits>,
}

/// How far the work of a pod has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// The pod is unknown, has finished, or is being removed.
    Ended,
    /// No container of the pod has run.
    NotStarted,
    /// A container of the pod has run, and runs or is to run again.
    Started,
}

/// The pods of the node.
pub trait NodePods {
    /// How far the work of the pod with this UID has got.
    fn activity(&self, uid: &Uid) -> Activity;

    /// The pods of a name, the oldest first.
    fn named(&self, name: &PodName) -> Vec<Rc<Wanted>>;
}

/// Actions for the engine, to be performed in this order.
#[derive(Debug)]
pub enum Effect {
    /// Publish an event of a pod.
    Emit(Rc<Wanted>, Event),
    /// Write the pod to flash, so that it runs again after a power cut.
    KeepOnFlash(Rc<Wanted>),
    /// Remove that file of the pod with this UID, if there is one.
    RemoveKept(Uid),
    /// Look up images, and pass the result to [`HeldUpdates::looked_up`].
    LookUp(LookUp),
    /// Publish the pod with this UID: the images that it waits for have changed.
    Publish(Uid),
}

/// Images to look up on the board.
#[derive(Debug)]
pub struct LookUp {
    /// The images.
    pub images: Vec<String>,
    generation: u64,
}

/// Which images of a pod are on the board.
#[derive(Debug, PartialEq, Eq)]
enum Images {
    Present,
    Missing(Vec<String>),
    /// At least one was not looked up yet.
    Unknown,
}

/// The content of the `*.kept` file of a pod that runs unchanged.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The manifest file of the pod.
    source: PathBuf,
    /// The object as it was admitted, without presets and priority.
    object: Value,
}

/// The content of the `*.kept` file of a pod that runs unchanged, for [`read_kept`].
pub fn kept_bytes(old: &Wanted) -> Option<Vec<u8>> {
    let object = serde_json::from_str(old.as_written().get()).ok()?;
    serde_json::to_vec(&Kept { source: old.source.clone(), object }).ok()
}

/// The pod that an earlier boot kept running, before its admission; `None` if its file is damaged. `node` is the name of
/// the node.
pub fn read_kept(bytes: &[u8], node: &str) -> Option<Rc<Wanted>> {
    let kept: Kept = serde_json::from_slice(bytes).ok()?;
    let manifest = manifest::read_new(kept.object, Validation::Ignore, node).ok()?;
    Some(Rc::new(Wanted::new(manifest, &kept.source)))
}

impl Activity {
    /// The activity of a pod that the core has; `None` if it has no such pod.
    pub fn of(pod: Option<&PodState>) -> Activity {
        match pod {
            Some(pod) if pod.is_active() && !pod.is_unwanted() => {
                if pod.has_run() {
                    Activity::Started
                } else {
                    Activity::NotStarted
                }
            }
            Some(_) | None => Activity::Ended,
        }
    }
}

impl HeldUpdates {
    /// The pods whose start is held back.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.held.values().map(|held| &*held.new.pod)
    }

    /// The change that is held back for the running pod with this UID.
    pub fn of(&self, uid: &Uid) -> Option<&HeldUpdate> {
        self.held.values().find(|held| held.old.pod.uid == *uid)
    }

    /// The images that are known to be missing for that change.
    pub fn waits_of(&self, uid: &Uid) -> Option<&Waits> {
        let waits = self.of(uid).map(|held| &held.waits).or_else(|| self.handed_over.get(uid));
        waits.filter(|waits| !waits.missing.is_empty())
    }

    /// The pod of a name whose start is held back.
    pub fn newest(&self, name: &PodName) -> Option<&Rc<Wanted>> {
        self.held.get(name).map(|held| &held.new)
    }

    /// Records what the previous agent left behind of a pod that was found.
    pub fn adopt(&mut self, uid: Uid, waits: Waits) {
        self.handed_over.insert(uid, waits);
    }

    /// Records the pods that an earlier boot kept running, and returns the images to look up before the first
    /// decision: those of changes of `kept` pods and of running pods. Otherwise the first decision would hold
    /// back all these changes during the look-up, and old pods would start: a kept pod, of which nothing runs,
    /// and ended containers of a running pod that the previous agent has asked to end.
    pub fn begin(
        &mut self,
        kept: WantedByName,
        wanted: &WantedByName,
        desired: &WantedByName,
        pods: &dyn NodePods,
    ) -> LookUp {
        let mut images = SortedSet::new();
        for (name, new) in wanted {
            let old = desired.get(name).cloned().or_else(|| self.running(name, pods));
            if kept.contains_key(name) || old.is_some_and(|old| !old.is_same_as(new)) {
                images.extend(images_of(&new.pod));
            }
        }
        self.kept = kept;
        LookUp { images: images.into_iter().map(str::to_owned).collect(), generation: self.generation }
    }

    /// Replaces each pod of `wanted` whose start is held back by the pod that runs unchanged.
    pub fn hold_back(
        &mut self,
        wanted: &mut WantedByName,
        desired: &WantedByName,
        pods: &dyn NodePods,
        now: Instant,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let kept = std::mem::take(&mut self.kept);
        let mut before = std::mem::take(&mut self.held);
        let mut changed = Vec::new();
        for (name, new) in wanted.iter_mut() {
            let Some(old) = self.predecessor(name, new, desired, pods, &kept) else { continue };
            let known = before.remove(name).filter(|known| known.new.is_same_as(new));
            let left = self.handed_over.remove(&old.pod.uid);
            let known = known.map(|known| known.waits).or(left);
            let waits = match (self.images(&new.pod), known) {
                (Images::Present, _) => continue,
                (Images::Unknown, Some(known)) => known,
                (Images::Unknown, None) => Waits { since: now, missing: Vec::new() },
                (Images::Missing(missing), Some(known)) if known.missing == missing => known,
                (Images::Missing(missing), _) => {
                    report_missing(&old, &missing, &mut effects);
                    effects.push(Effect::KeepOnFlash(old.clone()));
                    changed.push(old.pod.uid.clone());
                    Waits { since: now, missing }
                }
            };
            if kept.get(name).is_some_and(|kept| kept.pod.uid == old.pod.uid) {
                self.restored.insert(old.pod.uid.clone());
            }
            let new = std::mem::replace(new, old.clone());
            self.held.insert(name.clone(), HeldUpdate { new, old, waits });
        }
        effects.extend(self.look_up().map(Effect::LookUp));
        // No change of these pods waits any more.
        changed.extend(std::mem::take(&mut self.handed_over).into_keys());
        for old in kept.values().filter(|old| self.of(&old.pod.uid).is_none()) {
            effects.push(Effect::RemoveKept(old.pod.uid.clone()));
        }
        for HeldUpdate { old, .. } in before.into_values() {
            if self.of(&old.pod.uid).is_none() {
                effects.push(Effect::RemoveKept(old.pod.uid.clone()));
                changed.push(old.pod.uid.clone());
            }
        }
        effects.extend(changed.into_iter().map(Effect::Publish));
        effects
    }

    /// Records which of the images of a look-up are on the board. Returns whether [`HeldUpdates::hold_back`] is
    /// to decide again: not if the board's images have changed since.
    pub fn looked_up(&mut self, look_up: LookUp, present: Vec<bool>) -> bool {
        let is_current = look_up.generation == self.generation;
        if is_current {
            self.presence.extend(look_up.images.into_iter().zip(present.into_iter().map(Some)));
        }
        is_current
    }

    /// Records that images were added to the board or removed. Returns whether [`HeldUpdates::hold_back`] is to
    /// decide again.
    pub fn images_changed(&mut self) -> bool {
        self.generation += 1;
        self.presence.clear();
        !self.held.is_empty()
    }

    /// Whether a pod that runs unchanged has ended or is being removed, so that its change need not wait.
    pub fn is_any_over(&self, pods: &dyn NodePods) -> bool {
        self.held.values().any(|held| !self.works(&held.old.pod.uid, pods))
    }

    /// Whether a change to `new` ends the running pod `old`.
    pub(crate) fn replaces(&self, old: &Pod, new: &Pod, pods: &dyn NodePods) -> bool {
        is_another(old, new) && self.works(&old.uid, pods)
    }

    /// The running pod that `new` would replace.
    fn predecessor(
        &self,
        name: &PodName,
        new: &Wanted,
        desired: &WantedByName,
        pods: &dyn NodePods,
        kept: &WantedByName,
    ) -> Option<Rc<Wanted>> {
        if let Some(old) = desired.get(name).cloned().or_else(|| self.running(name, pods)) {
            return self.replaces(&old.pod, &new.pod, pods).then_some(old);
        }
        kept.get(name).filter(|old| is_another(&old.pod, &new.pod)).cloned()
    }

    /// The running pod of a name that this agent found when it started.
    fn running(&self, name: &PodName, pods: &dyn NodePods) -> Option<Rc<Wanted>> {
        let named = pods.named(name);
        named.iter().find(|wanted| self.works(&wanted.pod.uid, pods)).map(without_ephemeral)
    }

    /// Whether the pod is wanted, and containers of it run or are to run again.
    fn works(&self, uid: &Uid, pods: &dyn NodePods) -> bool {
        match pods.activity(uid) {
            Activity::Ended => false,
            Activity::NotStarted => self.restored.contains(uid),
            Activity::Started => true,
        }
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

    /// The images of held changes that were not looked up yet.
    fn look_up(&mut self) -> Option<LookUp> {
        let needed: SortedSet<&str> = self.held.values().flat_map(|held| images_of(&held.new.pod)).collect();
        self.presence.retain(|image, _| needed.contains(&**image));
        let unknown = needed.into_iter().filter(|image| !self.presence.contains_key(*image));
        let images: Vec<String> = unknown.map(str::to_owned).collect();
        if images.is_empty() {
            return None;
        }
        self.presence.extend(images.iter().map(|image| (image.clone(), None)));
        Some(LookUp { images, generation: self.generation })
    }
}

/// The events about images that are missing for a change of `old`.
fn report_missing(old: &Rc<Wanted>, missing: &[String], effects: &mut Vec<Effect>) {
    let mut warn = |reason: &'static str, message: String| {
        let event = Event { warning: true, reason: reason.into(), message: message.into(), container: None };
        effects.push(Effect::Emit(old.clone(), event));
    };
    for image in missing {
        warn(
            "Failed",
            format!(
                "Failed to pull image \"{image}\": it is not on this node, and a change of a pod pulls no image: \
                 load it with 'nodlet image load FILE', or pull it with 'nodlet image pull {image}'"
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

/// Whether `new` is another pod than `old`, and not a change of it in place.
fn is_another(old: &Pod, new: &Pod) -> bool {
    new.uid != old.uid || !new.is_update_of(old)
}

fn images_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let of_volumes = pod.spec.image_volumes().map(|(_, image, _)| image);
    containers.map(|container| &*container.image).chain(of_volumes)
}
