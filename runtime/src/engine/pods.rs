//! The engine's data of each pod that the core has: the admitted object, the sandbox, and the work under way on the
//! files of the pod. The state of a pod that the core keeps is not here.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use nodlet_core::facts::PodIndex;
use nodlet_core::pod::PodState;
use nodlet_core::sorted::SortedMap;
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

impl PodShell {
    /// A pod of which nothing exists yet.
    pub(super) fn new(wanted: Rc<Wanted>, created: Moment) -> PodShell {
        PodShell { wanted, sandbox: None, published: Published::new(created) }
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
}
