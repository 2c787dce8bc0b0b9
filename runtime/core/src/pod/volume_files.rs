//! The files that the agent writes into the volumes of a pod, and keeps equal to the objects and the fields that they
//! show. The creation of a sandbox writes them first.
//!
//! ```text
//!  Current ──► Due ──► Updating ──► Current
//!               ▲         │ │
//!               └─────────┘ └──► Failed ──► Due
//!           changed meanwhile       retry, or changed
//! ```

use crate::facts::{Action, Draft, PodIndex, Wake};
use crate::spec::PodSpec;
use crate::time::Instant;

use super::backoff::Retry;

/// Whether the files in the volumes of a pod are up to date.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum VolumeFiles {
    /// The files show the present state.
    #[default]
    Current,
    /// Something that the files show may have changed.
    Due {
        /// The latest retry, if an update has failed.
        earlier: Option<Retry>,
    },
    /// `UpdateVolumes` is in flight.
    Updating {
        /// Whether something has changed meanwhile.
        is_outdated: bool,
        /// The retry that is in flight, unless it is the first try.
        earlier: Option<Retry>,
    },
    /// An update has failed: the files show an earlier state.
    Failed {
        /// When to retry.
        retry: Retry,
    },
}

impl VolumeFiles {
    /// Records that something may have changed that the files show.
    pub(super) fn mark_outdated(&mut self, spec: &PodSpec) {
        match self {
            _ if !spec.depends_on_objects() => {}
            VolumeFiles::Current | VolumeFiles::Failed { .. } => *self = VolumeFiles::Due { earlier: None },
            VolumeFiles::Due { .. } => {}
            VolumeFiles::Updating { is_outdated, .. } => *is_outdated = true,
        }
    }

    /// Whether something has changed since the latest update began.
    pub(super) fn is_outdated(&self) -> bool {
        match self {
            VolumeFiles::Due { .. } | VolumeFiles::Updating { is_outdated: true, .. } => true,
            VolumeFiles::Current | VolumeFiles::Failed { .. } => false,
            VolumeFiles::Updating { is_outdated: false, .. } => false,
        }
    }

    /// Whether files are being written, so that the directories of the volumes must stay.
    pub(super) fn is_updating(&self) -> bool {
        matches!(self, VolumeFiles::Updating { .. })
    }

    /// Records that a new sandbox is being created, which writes all files.
    pub(super) fn begin_creation(&mut self) {
        *self = VolumeFiles::Current;
    }

    /// Plans an update that is due.
    pub(super) fn plan(&mut self, pod: PodIndex, now: Instant, draft: &mut Draft) {
        let earlier = match *self {
            VolumeFiles::Due { earlier } => earlier,
            VolumeFiles::Failed { retry } if retry.at <= now => Some(retry),
            VolumeFiles::Failed { .. } | VolumeFiles::Current | VolumeFiles::Updating { .. } => return,
        };
        if draft.push(pod, Action::UpdateVolumes) {
            *self = VolumeFiles::Updating { is_outdated: false, earlier };
        }
    }

    /// Records that an update has succeeded.
    pub(super) fn updated(&mut self) {
        *self = match *self {
            VolumeFiles::Updating { is_outdated: false, .. } => VolumeFiles::Current,
            VolumeFiles::Updating { is_outdated: true, .. } => VolumeFiles::Due { earlier: None },
            VolumeFiles::Current | VolumeFiles::Due { .. } | VolumeFiles::Failed { .. } => return,
        };
    }

    /// Records that an update has failed. If it needs an object that is missing, the next try waits for a change.
    /// Returns whether an update was in flight.
    pub(super) fn update_failed(&mut self, now: Instant, waits_for_object: bool) -> bool {
        *self = match *self {
            VolumeFiles::Updating { is_outdated: true, earlier } => VolumeFiles::Due { earlier },
            VolumeFiles::Updating { is_outdated: false, .. } if waits_for_object => VolumeFiles::Current,
            VolumeFiles::Updating { is_outdated: false, earlier } => {
                VolumeFiles::Failed { retry: Retry::after(earlier, now) }
            }
            VolumeFiles::Current | VolumeFiles::Due { .. } | VolumeFiles::Failed { .. } => return false,
        };
        true
    }

    /// Records when an update is retried.
    pub(super) fn wake(&self, wake: &mut Wake) {
        if let VolumeFiles::Failed { retry } = self {
            wake.note(retry.at);
        }
    }
}
