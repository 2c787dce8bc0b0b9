//! The state of a pod's record on flash: what is written, what is being written, and when the next write is
//! due. `record.rs` decides on the content, and on the urgency.

use std::time::Duration;

use crate::facts::{Action, Draft, PodIndex, Record, Wake};
use crate::spec::ContainerIndex;
use crate::time::{Instant, Moment};

use super::backoff::Retry;

/// How long a record must not change before it is written: a start changes it several times within moments.
const WRITE_DELAY: Duration = Duration::from_secs(10);
/// The shortest interval between two writes for a pod that keeps crashing.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(300);

/// The state of one pod's record on flash.
#[derive(Debug, Default)]
pub(super) struct Journal {
    on_flash: Option<Box<Record>>,
    in_flight: Option<(u64, Box<Record>)>,
    generation: u64,
    saved_at: Option<Instant>,
    failed: Option<Retry>,
    need: Need,
}

/// The urgency with which a record is written that differs from the one on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Something waits for the record to be on flash.
    AtOnce,
    /// At once, but at most once in [`WRITE_DELAY`]: a client must not wear out the SD card.
    Soon,
    /// After the record has not changed for [`WRITE_DELAY`], and at most once in [`MIN_WRITE_INTERVAL`].
    Later,
}

/// Whether the record has to be written.
#[derive(Clone, Copy, Debug, Default)]
enum Need {
    /// The record on flash is up to date.
    #[default]
    Clean,
    /// Something changed since the record was last compared.
    Unknown {
        /// When the record began to differ, if it did already.
        since: Option<Instant>,
    },
    /// The record has differed since `since`; it is written at `due`.
    Later { since: Instant, due: Instant },
}

impl Journal {
    /// Records that the record may be out of date.
    pub(super) fn mark_stale(&mut self) {
        match self.need {
            Need::Clean => self.need = Need::Unknown { since: None },
            Need::Later { since, .. } => self.need = Need::Unknown { since: Some(since) },
            Need::Unknown { .. } => {}
        }
    }

    /// Records that a write succeeded. Returns whether that write was in flight.
    pub(super) fn saved(&mut self, now: Instant, generation: u64) -> bool {
        match self.in_flight.take_if(|(awaited, _)| *awaited == generation) {
            Some((_, record)) => {
                self.on_flash = Some(record);
                self.saved_at = Some(now);
                self.failed = None;
                true
            }
            None => false,
        }
    }

    /// Records that a write failed. Returns whether a write was in flight.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let awaited = self.in_flight.take().is_some();
        if awaited {
            self.failed = Some(Retry::after(self.failed, now));
            self.mark_stale();
        }
        awaited
    }

    /// Since when the record has differed, or `now`, if it is to be compared and may be written. `at_once`
    /// means that a write is not delayed.
    pub(super) fn differs_since(&self, now: Instant, at_once: bool) -> Option<Instant> {
        if self.in_flight.is_some() || self.failed.is_some_and(|failed| now < failed.at) {
            return None;
        }
        match self.need {
            Need::Clean => None,
            Need::Later { due, .. } if now < due && !at_once => None,
            Need::Later { since, .. } => Some(since),
            Need::Unknown { since } => Some(since.unwrap_or(now)),
        }
    }

    /// Whether a record that has differed since `since` is written now. If not, it is compared again when its
    /// time comes.
    pub(super) fn is_due(&mut self, now: Instant, since: Instant, urgency: Urgency) -> bool {
        let settled = since + WRITE_DELAY;
        let due = match (urgency, self.saved_at) {
            (Urgency::AtOnce, _) | (Urgency::Soon, None) => now,
            (Urgency::Soon, Some(saved)) => now.max(saved + WRITE_DELAY),
            (Urgency::Later, Some(saved)) => settled.max(saved + MIN_WRITE_INTERVAL),
            (Urgency::Later, None) => settled,
        };
        if now < due {
            self.need = Need::Later { since, due };
        }
        due <= now
    }

    /// Plans to write the record.
    pub(super) fn plan_write(&mut self, record: Record, pod: PodIndex, draft: &mut Draft) {
        let (record, generation) = (Box::new(record), self.generation + 1);
        if draft.push_write(pod, Action::Save { record: record.clone(), generation }) {
            self.generation = generation;
            self.in_flight = Some((generation, record));
            self.need = Need::Clean;
        }
    }

    /// Records that nothing has to be written.
    pub(super) fn settle(&mut self) {
        self.need = Need::Clean;
    }

    /// The record on flash, if there is one.
    pub(super) fn on_flash(&self) -> Option<&Record> {
        self.on_flash.as_deref()
    }

    /// Adopts the record on flash, from which the pod was restored.
    pub(super) fn adopt(&mut self, on_flash: Box<Record>) {
        self.on_flash = Some(on_flash);
    }

    /// Restores what a previous agent had written, and when.
    pub(super) fn restore(&mut self, on_flash: Option<Box<Record>>, saved_at: Option<Instant>) {
        // A record that cannot be read is replaced as soon as there is a first one to write.
        self.saved_at = saved_at.filter(|_| on_flash.is_some());
        self.on_flash = on_flash;
        self.mark_stale();
    }

    pub(super) fn saved_at(&self) -> Option<Instant> {
        self.saved_at
    }

    /// Takes the record on flash, for another pod to restore.
    pub(super) fn take(&mut self) -> Option<Box<Record>> {
        self.on_flash.take()
    }

    /// Whether the record is being written.
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether a record with a terminal phase is on flash and up to date.
    pub(super) fn has_terminal(&self) -> bool {
        self.is_clean() && self.on_flash.as_ref().is_some_and(|record| record.phase.is_terminal())
    }

    /// Whether the latest write failed, and no other is in flight.
    pub(super) fn has_failed_write(&self) -> bool {
        self.failed.is_some() && self.in_flight.is_none()
    }

    /// Whether nothing is left to write.
    pub(super) fn is_clean(&self) -> bool {
        matches!(self.need, Need::Clean) && self.in_flight.is_none()
    }

    /// Whether nothing is left to write, or the latest write failed: what is on flash may be all that will
    /// be.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_clean() || self.has_failed_write()
    }

    /// Whether the start of run `number` is on flash, with this `decided` time, and no write in flight
    /// contradicts that.
    pub(super) fn has_begun(&self, container: ContainerIndex, number: u32, decided: Option<Moment>) -> bool {
        let says = |record: &Record| {
            let known = record.containers.get(usize::from(container.0));
            known.is_some_and(|known| known.attempts > number && known.decided == decided)
        };
        self.on_flash.as_deref().is_some_and(says)
            && self.in_flight.as_ref().is_none_or(|(_, record)| says(record))
    }

    /// Whether these amounts are on flash as those allocated, and no write in flight contradicts that.
    pub(super) fn has_allocation(&self, allocated: &[[String; 4]]) -> bool {
        let says = |record: &Record| record.allocated == allocated;
        self.on_flash.as_deref().is_some_and(says)
            && self.in_flight.as_ref().is_none_or(|(_, record)| says(record))
    }

    pub(super) fn wake(&self, wake: &mut Wake) {
        if self.in_flight.is_some() {
            return;
        }
        let due = match self.need {
            Need::Clean => return,
            Need::Unknown { .. } => None,
            Need::Later { due, .. } => Some(due),
        };
        // After a failed write, a record that may still settle is due later than the retry.
        if let Some(at) = due.max(self.failed.map(|failed| failed.at)) {
            wake.note(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::*;

    fn save(journal: &mut Journal, now: Instant) {
        let mut draft = Draft::new(1, 1);
        journal.plan_write(Record::default(), PodIndex(0), &mut draft);
        assert!(journal.is_in_flight() && draft.actions.len() == 1);
        assert!(!journal.saved(now, 0) && journal.saved(now, journal.generation));
    }

    #[test]
    fn a_change_is_written_late_unless_something_waits_for_it() {
        let mut journal = Journal::default();
        assert_eq!(journal.differs_since(at(0), true), None);
        journal.mark_stale();
        assert_eq!(journal.differs_since(at(0), false), Some(at(0)));
        assert!(
            !journal.is_due(at(0), at(0), Urgency::Later) && journal.is_due(at(0), at(0), Urgency::AtOnce)
        );
        assert_eq!(journal.differs_since(at(9), false), None);
        assert_eq!(journal.differs_since(at(9), true), Some(at(0)));
        assert!(journal.is_due(at(10), at(0), Urgency::Later));
        save(&mut journal, at(10));
        assert!(journal.is_clean() && journal.saved_at() == Some(at(10)));
        assert!(
            !journal.is_due(at(309), at(20), Urgency::Later)
                && journal.is_due(at(310), at(20), Urgency::Later)
        );
        assert!(
            !journal.is_due(at(19), at(19), Urgency::Soon) && journal.is_due(at(20), at(19), Urgency::Soon)
        );
    }

    #[test]
    fn a_write_that_failed_is_retried_later() {
        let mut journal = Journal::default();
        let mut draft = Draft::new(1, 1);
        journal.plan_write(Record::default(), PodIndex(0), &mut draft);
        journal.plan_write(Record::default(), PodIndex(0), &mut draft);
        assert!(draft.actions.len() == 1 && journal.failed(at(0)) && !journal.failed(at(0)));
        assert!(journal.has_failed_write() && !journal.is_clean());
        assert_eq!(
            (journal.differs_since(at(9), true), journal.differs_since(at(10), false)),
            (None, Some(at(10)))
        );
        save(&mut journal, at(10));
        assert!(!journal.has_failed_write() && journal.on_flash().is_some());
    }
}
