//! The engine's data of each pod that the core has: the admitted object, the sandbox, and the work under way on the
//! files of the pod. The state of a pod that the core keeps is not here.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use crate::api::{Accepted, Change, FieldValidation, Reply};
use nodlet_core::facts::PodIndex;
use nodlet_core::pod::PodState;
use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_core::spec::Uid;
use nodlet_core::time::Moment;
use nodlet_registry::Wanted;

use super::handles::Sandbox;

/// All pods, by their index in the core.
#[derive(Default)]
pub(super) struct Pods(RefCell<SortedMap<PodIndex, PodShell>>);

/// The engine's data of one pod.
pub(super) struct PodShell {
    /// The pod as it was admitted, which the core knows in part.
    pub(super) wanted: Rc<Wanted>,
    pub(super) sandbox: Option<Rc<Sandbox>>,
    pub(super) published: Published,
    pub(super) ephemeral: EphemeralWrites,
    pub(super) manifest: ManifestWork,
}

/// The engine's data of the publication of a pod.
pub(super) struct Published {
    /// `metadata.creationTimestamp` of a pod from a file.
    pub(super) created: Moment,
    /// A hash of the status that was last written for a later agent.
    pub(super) digest: u64,
}

impl Published {
    fn new(created: Moment) -> Published {
        Published { created, digest: 0 }
    }
}

/// The writes of a pod's ephemeral containers, one at a time.
#[derive(Default)]
pub(super) struct EphemeralWrites {
    /// A write is under way.
    pub(super) writing: bool,
    /// Requests that wait for that write.
    pub(super) waiting: Vec<EphemeralRequest>,
}

/// A request to change the ephemeral containers of a pod.
pub(super) struct EphemeralRequest {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) change: Change,
    pub(super) validation: FieldValidation,
    pub(super) dry_run: bool,
    pub(super) reply: Reply<Accepted>,
}

/// The work under way on the manifest of a pod that came through the API.
#[derive(Default)]
pub(super) struct ManifestWork {
    /// A change in place is being written. The next change has to see it.
    pub(super) updating: bool,
    pub(super) removal: Option<ManifestRemoval>,
}

/// Why the manifest of a pod is being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManifestRemoval {
    /// A client deletes the pod. The request stops the pod itself when the manifest is gone, with its own grace
    /// period.
    Deleted,
    /// More pods have finished than are kept.
    Collected,
}

impl PodShell {
    /// A pod of which nothing exists yet.
    pub(super) fn new(wanted: Rc<Wanted>, created: Moment) -> PodShell {
        PodShell {
            wanted,
            sandbox: None,
            published: Published::new(created),
            ephemeral: EphemeralWrites::default(),
            manifest: ManifestWork::default(),
        }
    }
}

impl Pods {
    /// The pod as it was admitted, with the amounts that are allocated to it: `state` is that of the core.
    pub(super) fn allocated(&self, index: PodIndex, state: Option<&PodState>) -> Option<Rc<Wanted>> {
        let mut pods = self.borrow_mut();
        let wanted = &mut pods.get_mut(&index)?.wanted;
        if let Some(pod) = state.map(PodState::pod)
            && !pod.has_amounts_of(&wanted.pod)
        {
            *wanted = Rc::new(wanted.with_pod(pod.clone()));
        }
        Some(wanted.clone())
    }

    pub(super) fn borrow(&self) -> Ref<'_, SortedMap<PodIndex, PodShell>> {
        self.0.borrow()
    }

    pub(super) fn borrow_mut(&self) -> RefMut<'_, SortedMap<PodIndex, PodShell>> {
        self.0.borrow_mut()
    }

    pub(super) fn wanted(&self, pod: PodIndex) -> Option<Rc<Wanted>> {
        Some(self.borrow().get(&pod)?.wanted.clone())
    }

    pub(super) fn uid(&self, pod: PodIndex) -> Option<Uid> {
        Some(self.wanted(pod)?.pod.uid.clone())
    }

    pub(super) fn sandbox(&self, pod: PodIndex) -> Option<Rc<Sandbox>> {
        self.borrow().get(&pod)?.sandbox.clone()
    }

    /// The number of runs that were requested from supervisors, and not reported as started yet.
    pub(super) fn unconfirmed_runs(&self) -> usize {
        let pods = self.borrow();
        let sandboxes = pods.values().filter_map(|pod| pod.sandbox.as_ref());
        sandboxes
            .map(|sandbox| sandbox.runs.borrow().values().filter(|run| run.started.is_none()).count())
            .sum()
    }

    /// The pods that clients delete, and whose manifests are being removed.
    pub(super) fn deleted(&self) -> SortedSet<Uid> {
        let pods = self.borrow();
        let deleted = pods.values().filter(|pod| pod.manifest.removal == Some(ManifestRemoval::Deleted));
        deleted.map(|pod| pod.wanted.pod.uid.clone()).collect()
    }

    /// Records whether a change in place of a pod is being written.
    pub(super) fn set_updating(&self, uid: &Uid, updating: bool) {
        self.with_uid(uid, |work| work.updating = updating);
    }

    /// Records whether a client deletes a pod.
    pub(super) fn set_deleted(&self, uid: &Uid, deleted: bool) {
        self.with_uid(uid, |work| work.set(ManifestRemoval::Deleted, deleted));
    }

    fn with_uid(&self, uid: &Uid, change: impl Fn(&mut ManifestWork)) {
        let mut pods = self.borrow_mut();
        pods.values_mut().filter(|pod| pod.wanted.pod.uid == *uid).for_each(|pod| change(&mut pod.manifest));
    }
}

impl ManifestWork {
    /// Records that a removal begins, or has ended.
    pub(super) fn set(&mut self, removal: ManifestRemoval, is_under_way: bool) {
        match is_under_way {
            true => self.removal = Some(removal),
            false => drop(self.removal.take_if(|present| *present == removal)),
        }
    }
}
