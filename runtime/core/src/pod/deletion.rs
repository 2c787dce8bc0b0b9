//! The published deletion of a pod: `deletionTimestamp` and `deletionGracePeriodSeconds`. Both are fixed when
//! the pod begins to stop for its deletion. A later request with a shorter grace period moves the time earlier
//! by the difference, as in an API server; nothing moves it later. An agent of the same boot that stops the pod
//! with the whole grace period again continues to publish the same time.

use crate::facts::Deletion;

use super::{PodState, Stage};

impl PodState {
    /// The deletion to publish; `None` for a pod that is wanted, or that had ended before it was deleted.
    pub fn deletion(&self) -> Option<Deletion> {
        self.deletion
    }

    /// Records the grace period of a pod that is stopping because no source wants it.
    pub(super) fn note_deletion(&mut self) {
        let Stage::Stopping { grace, grace_end } = self.stage else { return };
        match &mut self.deletion {
            None => self.deletion = Some(Deletion { at: grace_end, grace }),
            Some(deletion) => deletion.shorten(grace),
        }
    }
}
