//! How often flash is written for one pod.

use std::collections::VecDeque;

use super::secs;
use crate::time::Instant;

/// Writes of one pod's record within an hour in which nobody does anything: twelve for counts and exits,
/// and some for what must be on flash at once, as that a run begins which is the only one.
const MOST_IN_AN_HOUR: usize = 24;

/// The writes of the last hour, since somebody did something.
#[derive(Clone, Debug, Default)]
pub(super) struct Wear {
    writes: VecDeque<Instant>,
}

impl Wear {
    /// Somebody wants something else, or something befell the pod.
    pub(super) fn forget(&mut self) {
        self.writes.clear();
    }

    /// The record is written now.
    pub(super) fn writes(&mut self, now: Instant, log: &str) {
        self.writes.retain(|at| now.since(*at) < secs(3600));
        self.writes.push_back(now);
        let count = self.writes.len();
        assert!(count <= MOST_IN_AN_HOUR, "{count} writes of a record in an hour\n{log}");
    }
}
