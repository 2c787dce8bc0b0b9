//! The steps from the current pods of the sources to their difference from the pods that the core was last notified of.
//! Each step takes what the one before returns:
//!
//! ```text
//! read ─► Read ─► admit_all ─► AdmittedPods ─► hold_back ─► DuePods ─► difference ─► Difference ─► the core
//! ```

use std::rc::Rc;

use super::admission::{Base, admit};
use super::held_updates::{Effect, NodePods};
use super::set_aside::Handled;
use super::wanted::{Admitted, Problem};
use super::{DefinitionName, PodName, Refusal, Registry, Wanted, WantedByName};
use nodlet_core::facts::{Record, StatusHandover};
use nodlet_core::spec::Uid;
use nodlet_core::time::Instant;
use nodlet_kube::kinds::Kind;

/// What the sources have now: their definitions are in effect, and their pods are not admitted yet.
#[derive(Debug)]
pub struct Read {
    wanted: WantedByName,
    /// The rejections of files, pods and definitions.
    pub refusals: Vec<Refusal>,
    /// The definitions that were created, changed or deleted.
    pub changed: Vec<DefinitionName>,
}

/// The pods that files want, as they are admitted.
#[derive(Debug)]
pub struct AdmittedPods(WantedByName);

/// The admitted pods that the core is to have now. Of a pod that waits for its images, that is the pod that runs.
#[derive(Debug)]
pub struct DuePods(WantedByName);

#[cfg(test)]
impl AdmittedPods {
    /// All pods, as on a board that has all images.
    pub(crate) fn all_due(self) -> DuePods {
        DuePods(self.0)
    }
}

/// The results of the admission of pods.
#[derive(Debug, Default)]
pub struct Admissions {
    /// All pods that are rejected because of their priority.
    pub refusals: Vec<Refusal>,
    /// The messages of new rejections, for the log.
    pub new_refusals: Vec<String>,
    /// Pods that were admitted without a part of their presets or ephemeral containers.
    pub problems: Vec<(Rc<Wanted>, Problem)>,
}

/// The changes of which the core must be notified.
#[derive(Debug, Default)]
pub struct Difference {
    /// Pods that are no longer in any source.
    pub unwanted: Vec<Uid>,
    /// Pods that are new or changed. Call [`Registry::set_desired`] after each notification of the core.
    pub wanted: Vec<(PodName, Rc<Wanted>)>,
}

impl Registry {
    /// Reads the pods of the sources, and publishes the current definitions. The times are those of
    /// [`Registry::read_definitions`].
    pub fn read(&mut self, now: &str, began: &str) -> Read {
        let (wanted, mut refusals) = self.sources.wanted();
        let (rejected, changed) = self.read_definitions(now, began);
        refusals.extend(rejected);
        Read { wanted, refusals, changed }
    }

    /// The pods that differ from those that the core was notified of, and must be admitted.
    pub fn unadmitted<'a>(&self, read: &'a Read) -> Vec<(PodName, &'a Rc<Wanted>)> {
        let known =
            |name: &PodName, new: &Wanted| self.desired.get(name).is_some_and(|old| old.is_same_as(new));
        let new = read.wanted.iter().filter(|(name, new)| !known(name, new));
        new.map(|(name, new)| (name.clone(), new)).collect()
    }

    /// Admits the pods of `bases`, and removes pods without a priority. Calls `begin` before each pod, and keeps the
    /// result until the pod is admitted.
    pub fn admit_all<T>(
        &mut self,
        read: Read,
        bases: Vec<(PodName, Base)>,
        begin: impl Fn(Option<Handled>) -> T,
    ) -> (AdmittedPods, Admissions) {
        let mut wanted = read.wanted;
        let policy = self.policy();
        let before = std::mem::take(&mut self.without_class);
        let mut admissions = Admissions::default();
        for (name, base) in bases {
            let Some(new) = wanted.get_mut(&name) else { continue };
            let _begun = begin(self.sources.handled(&new.source));
            match admit(base, new, &policy) {
                Ok(Admitted { wanted, problem }) => {
                    *new = wanted.clone();
                    admissions.problems.extend(problem.map(|problem| (wanted, problem)));
                }
                Err(why) => {
                    let message =
                        format!("{}: {}", new.source.display(), forbidden(&name.1, &why.to_string()));
                    let object = Some((Kind::Pod, name.0.clone(), name.1.clone()));
                    let refusal = Refusal { source: new.source.clone(), object, message };
                    if before.get(&name) != Some(&refusal) {
                        admissions.new_refusals.push(refusal.message.clone());
                    }
                    self.without_class.insert(name, refusal);
                }
            }
        }
        wanted.retain(|name, _| !self.without_class.contains_key(name));
        admissions.refusals = self.without_class.values().cloned().collect();
        (AdmittedPods(wanted), admissions)
    }

    /// Replaces pods whose images are not on the board by those that run, see [`HeldUpdates::hold_back`](super::HeldUpdates::hold_back).
    pub fn hold_back(
        &mut self,
        AdmittedPods(mut wanted): AdmittedPods,
        pods: &dyn NodePods,
        now: Instant,
    ) -> (DuePods, Vec<Effect>) {
        let effects = self.held_updates.hold_back(&mut wanted, &self.desired, pods, now);
        (DuePods(wanted), effects)
    }

    /// Whether the file of a running pod exists and is rejected, so that the pod stays unchanged.
    pub fn is_unread(&self, found: &Wanted) -> bool {
        self.sources.is_refused(&found.source) || self.lacks_class(found)
    }

    /// Whether the current content of a running pod's file is rejected because of its priority.
    fn lacks_class(&self, found: &Wanted) -> bool {
        let name = (found.pod.namespace.clone(), found.pod.name.clone());
        let (wanted, _) = self.sources.wanted();
        let new = wanted.get(&name).filter(|new| new.source == found.source);
        // A pod keeps the priority that it was admitted with.
        new.is_some_and(|new| {
            let before = found.priority.as_deref().filter(|_| new.pod.uid == found.pod.uid);
            match serde_json::from_str(new.object.get()) {
                Ok(object) => self.policy().priority(&object, before.cloned()).is_err(),
                Err(_) => true,
            }
        })
    }

    /// Returns the changes of which the core must be notified so that it has these pods. The pod `removing` is left
    /// out, because the removal of its file notifies the core.
    pub fn difference(&mut self, DuePods(wanted): DuePods, removing: Option<&Uid>) -> Difference {
        let mut difference = Difference::default();
        for (name, old) in std::mem::take(&mut self.desired) {
            let stays = wanted.get(&name).is_some_and(|new| new.pod.uid == old.pod.uid);
            let is_unread = !wanted.contains_key(&name)
                && (self.without_class.get(&name).is_some_and(|refused| refused.source == old.source)
                    || self.sources.is_refused(&old.source));
            if stays || is_unread {
                self.desired.insert(name, old);
            } else if removing != Some(&old.pod.uid) {
                difference.unwanted.push(old.pod.uid.clone());
            }
        }
        let desired = &self.desired;
        let is_new =
            |(name, new): &(PodName, Rc<Wanted>)| desired.get(name).is_none_or(|old| !old.is_same_as(new));
        difference.wanted = wanted.into_iter().filter(is_new).collect();
        difference
    }
}

/// Sorts pods to report to the core: those that the node has admitted before come first, so that no new pod is
/// admitted to their room. `known` returns what is known of a pod from before: its record on flash, and the status
/// that the previous agent left behind. The order is otherwise unchanged.
pub fn sort_admitted_first<T>(
    pods: &mut [T],
    known: impl for<'a> Fn(&'a T) -> (Option<&'a Record>, Option<&'a StatusHandover>),
) {
    pods.sort_by_key(|pod| {
        let (record, status) = known(pod);
        let was_admitted = status.is_some_and(StatusHandover::was_admitted);
        !was_admitted && record.is_none_or(|record| !record.is_admission_decided())
    });
}

/// The message about a pod that is rejected because of its priority.
pub(super) fn forbidden(pod: &str, why: &str) -> String {
    format!("pods \"{pod}\" is forbidden: {why}")
}
