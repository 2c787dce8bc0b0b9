//! The deletion of a pod, as its object shows it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Instant;

/// The deletion of a pod, as its object shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: when the grace period ends.
    pub at: Instant,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace: Duration,
}

impl Deletion {
    /// Shortens the grace period to `grace`, counted from the same beginning; a longer one changes nothing.
    pub(crate) fn shorten(&mut self, grace: Duration) {
        let by = self.grace.saturating_sub(grace);
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        (self.at, self.grace) = (Instant(self.at.0.saturating_sub(nanos)), self.grace - by);
    }
}
