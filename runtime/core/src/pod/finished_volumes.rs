//! The removal of the volumes and writable layers of a finished pod, as a kubelet does. Its status, its record and its
//! logs stay; the logs of a pod that was evicted for want of disk space are removed, too, as a kubelet removes those of
//! finished containers before it evicts another pod (`DeleteAllUnusedContainers`).
//!
//! ```text
//!  Kept ──► Removing ──► Removed
//!             ▲   │
//!       retry │   ▼
//!           RemoveFailed
//! ```

use crate::facts::{Action, Draft, PodIndex, Wake};
use crate::time::Instant;

use super::backoff::Retry;

/// Whether the volumes of a finished pod are removed. Another agent removes them again, because the earlier one may have
/// been killed before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum FinishedVolumes {
    /// The pod has not finished, or this agent has removed nothing yet.
    #[default]
    Kept,
    /// `RemoveVolumes` is in flight.
    Removing {
        /// The retry that is in flight, unless it is the first try.
        earlier: Option<Retry>,
    },
    /// Some files still exist.
    RemoveFailed {
        /// When to retry.
        retry: Retry,
    },
    /// The volumes are removed.
    Removed,
}

impl FinishedVolumes {
    /// Whether `RemoveVolumes` is in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self, FinishedVolumes::Removing { .. })
    }

    /// Whether this agent has removed the volumes.
    pub(super) fn are_removed(&self) -> bool {
        matches!(self, FinishedVolumes::Removed)
    }

    /// Plans to remove the volumes of a pod that has finished, and its logs if these are to go, too.
    pub(super) fn plan(&mut self, pod: PodIndex, now: Instant, logs: bool, draft: &mut Draft) {
        let earlier = match *self {
            FinishedVolumes::Kept => None,
            FinishedVolumes::RemoveFailed { retry } if retry.at <= now => Some(retry),
            FinishedVolumes::RemoveFailed { .. } => return,
            FinishedVolumes::Removing { .. } | FinishedVolumes::Removed => return,
        };
        if draft.push(pod, Action::RemoveVolumes { logs }) {
            *self = FinishedVolumes::Removing { earlier };
        }
    }

    /// Records that the volumes were removed.
    pub(super) fn removed(&mut self) {
        if self.is_in_flight() {
            *self = FinishedVolumes::Removed;
        }
    }

    /// Records that some files could not be removed. Returns whether the removal was in flight.
    pub(super) fn removal_failed(&mut self, now: Instant) -> bool {
        let FinishedVolumes::Removing { earlier } = *self else { return false };
        *self = FinishedVolumes::RemoveFailed { retry: Retry::after(earlier, now) };
        true
    }

    /// Records when the removal is retried.
    pub(super) fn wake(&self, wake: &mut Wake) {
        if let FinishedVolumes::RemoveFailed { retry } = self {
            wake.note(retry.at);
        }
    }
}
