//! The removal of a pod: whether any source wants the pod, the deletion that its object shows, and the pod
//! that follows under the same uid.
//!
//! The published deletion (`deletionTimestamp` and `deletionGracePeriodSeconds`) is fixed when the pod begins
//! to stop for its deletion. A later request with a shorter grace period moves the time earlier by the
//! difference, as in an API server; nothing moves it later. An agent of the same boot that stops the pod with
//! the whole grace period again continues to publish the same time.

use std::rc::Rc;
use std::time::Duration;

use crate::facts::Deletion;
use crate::spec::Pod;

use super::Stage;

/// Whether any source wants the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// The pod was found, and not every source has reported yet.
    Unknown,
    /// A source wants the pod.
    Wanted,
    /// No source wants the pod.
    Unwanted,
}

/// The state of a pod's removal. A pod that is unwanted once stays so: if it is wanted again, another pod
/// follows.
#[derive(Debug)]
pub(super) struct Removal {
    demand: Demand,
    /// The deletion that the pod's object shows.
    deletion: Option<Deletion>,
    /// The pod that follows under the same uid when this one is dropped.
    again: Option<Rc<Pod>>,
    is_hidden: bool,
    is_dropped: bool,
}

impl Removal {
    /// A pod that is not being removed, unless no source wants it.
    pub(super) fn new(demand: Demand) -> Self {
        Removal { demand, deletion: None, again: None, is_hidden: false, is_dropped: false }
    }

    pub(super) fn demand(&self) -> Demand {
        self.demand
    }

    /// Whether a source wants the pod.
    pub(super) fn is_wanted(&self) -> bool {
        self.demand == Demand::Wanted
    }

    /// Whether no source wants the pod, so that it is being removed.
    pub(super) fn is_unwanted(&self) -> bool {
        self.demand == Demand::Unwanted
    }

    /// Records that a source wants the pod as it is, unless it is being removed already.
    pub(super) fn want(&mut self) {
        if !self.is_unwanted() {
            self.demand = Demand::Wanted;
        }
    }

    /// Records that no source wants the pod any more.
    pub(super) fn begin(&mut self) {
        self.again = None;
        self.demand = Demand::Unwanted;
    }

    /// Resumes the removal that a previous agent had begun. If the pod is wanted, it starts again afterwards.
    pub(super) fn resume(&mut self, pod: &Pod) {
        if self.is_wanted() {
            self.restore_demand(pod);
        }
        self.demand = Demand::Unwanted;
    }

    /// Records that `pod` is wanted when this one is forgotten.
    pub(super) fn restore_demand(&mut self, pod: &Pod) {
        self.again = Some(Rc::new(Pod::clone(pod).without_ephemeral()));
    }

    /// The deletion to publish; `None` for a pod that is wanted, or that had ended before it was deleted.
    pub(super) fn deletion(&self) -> Option<Deletion> {
        self.deletion
    }

    /// Records the grace period of a pod that is stopping because no source wants it.
    pub(super) fn note_grace(&mut self, stage: Stage) {
        let (true, Stage::Stopping { grace, grace_end }) = (self.is_unwanted(), stage) else { return };
        match &mut self.deletion {
            None => self.deletion = Some(Deletion { at: grace_end, grace }),
            Some(deletion) => deletion.shorten(grace),
        }
    }

    /// The grace period of a pod that is being deleted; `whole` is that of its spec.
    pub(super) fn grace(&self, stage: Stage, whole: Duration) -> Option<Duration> {
        match (self.demand, stage) {
            (Demand::Wanted | Demand::Unknown, _) => None,
            (Demand::Unwanted, Stage::Stopping { grace, .. }) => Some(grace),
            (Demand::Unwanted, _) => Some(self.deletion.map_or(whole, |deletion| deletion.grace)),
        }
    }

    /// Restores what a previous agent of this boot published.
    pub(super) fn restore(&mut self, deletion: Option<Deletion>, is_hidden: bool) {
        self.deletion = deletion;
        self.is_hidden = is_hidden;
    }

    /// Records that the pod was deleted by force. Returns whether the pod is being removed; otherwise nothing
    /// changes.
    pub(super) fn hide(&mut self) -> bool {
        self.is_hidden |= self.is_unwanted();
        self.is_unwanted()
    }

    /// Whether the pod was deleted by force.
    pub(super) fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Records that the core is done with the pod and drops it.
    pub(super) fn drop_pod(&mut self) {
        self.is_dropped = true;
    }

    /// Records that the core drops the pod, and that `again` follows, unchanged.
    pub(super) fn drop_for(&mut self, again: Rc<Pod>) {
        self.again = Some(again);
        self.is_dropped = true;
    }

    /// Whether the core is done with the pod and drops it.
    pub(super) fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// Removes and returns the pod that follows.
    pub(super) fn take_successor(&mut self) -> Option<Rc<Pod>> {
        self.again.take()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sim::*;
    use crate::spec::RestartPolicy;

    fn stopping(grace: u64) -> Stage {
        Stage::Stopping { grace: Duration::from_secs(grace), grace_end: at(grace) }
    }

    #[test]
    fn only_the_grace_period_of_an_unwanted_pod_is_published_and_it_only_shrinks() {
        let mut removal = Removal::new(Demand::Wanted);
        removal.note_grace(stopping(30));
        assert_eq!(removal.deletion(), None);
        removal.begin();
        for (requested, published) in [(30, 30), (5, 5), (20, 5)] {
            removal.note_grace(stopping(requested));
            let published = Deletion { at: at(published), grace: Duration::from_secs(published) };
            assert_eq!(removal.deletion(), Some(published));
        }
    }

    #[test]
    fn an_unwanted_pod_stays_unwanted_and_only_such_a_pod_is_hidden() {
        let mut removal = Removal::new(Demand::Unknown);
        assert!(!removal.hide() && !removal.is_hidden());
        removal.want();
        removal.resume(&pod(RestartPolicy::Always));
        removal.want();
        assert!(removal.is_unwanted() && removal.take_successor().is_some());
        assert!(removal.hide() && removal.is_hidden());
    }
}
