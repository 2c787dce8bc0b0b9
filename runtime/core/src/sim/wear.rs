//! How often the record of one pod is written to flash.

use std::collections::VecDeque;

use super::secs;
use crate::time::Instant;

/// Maximum of writes of one pod's record within an hour without outside changes: twelve for counts and exits,
/// and some for changes that must be on flash at once, such as the start of a run of a container that runs
/// once.
const MAX_WRITES_PER_HOUR: usize = 24;

/// The writes within the last hour, since the latest outside change.
#[derive(Clone, Debug, Default)]
pub(super) struct Wear {
    writes: VecDeque<Instant>,
}

impl Wear {
    /// Records an outside change: another demand by a source, or a disaster.
    pub(super) fn forget(&mut self) {
        self.writes.clear();
    }

    /// Records a write.
    pub(super) fn writes(&mut self, now: Instant, log: &str) {
        self.writes.retain(|at| now.since(*at) < secs(3600));
        self.writes.push_back(now);
        let count = self.writes.len();
        assert!(count <= MAX_WRITES_PER_HOUR, "{count} writes of a record in an hour\n{log}");
    }
}
