//! The acceptance of a pod by the node: whether the node has decided on its admission, and when the pod was
//! accepted, which its deadline and its conditions count from.

use std::time::Duration;

use crate::time::{Instant, Moment};

/// The acceptance of a pod.
#[derive(Debug)]
pub(super) struct Acceptance {
    admission: Admission,
    start_time: Moment,
    /// When the active deadline began to count, in this boot.
    active_since: Instant,
}

/// The progress of a pod's admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// The node has not decided yet.
    Open,
    /// The pod is admitted, and waits for preempted pods to end.
    WaitsForRoom,
    /// The pod is admitted or rejected.
    Decided,
}

impl Acceptance {
    /// A pod that is accepted now, and whose admission is not decided yet.
    pub(super) fn new(now: Instant) -> Self {
        Acceptance { admission: Admission::Open, start_time: Moment::ThisBoot(now), active_since: now }
    }

    /// Records that the pod counts as accepted only now.
    pub(super) fn accept(&mut self, now: Instant) {
        (self.start_time, self.active_since) = (Moment::ThisBoot(now), now);
    }

    /// Restores when a previous agent accepted the pod, and since when the deadline counts.
    pub(super) fn restore(&mut self, start_time: Moment, active_since: Instant, now: Instant) {
        (self.start_time, self.active_since) = (start_time, active_since.min(now));
    }

    /// Restores when the pod was accepted. Without a clock nobody knows how long ago an earlier boot was: the
    /// deadline starts to count again.
    pub(super) fn restore_start_time(&mut self, start_time: Moment, now: Instant) {
        match start_time {
            Moment::ThisBoot(at) => self.restore(start_time, at, now),
            Moment::Earlier(_) => self.start_time = start_time,
        }
    }

    pub(super) fn start_time(&self) -> Moment {
        self.start_time
    }

    pub(super) fn active_since(&self) -> Instant {
        self.active_since
    }

    /// The time at which a pod with this `activeDeadlineSeconds` fails.
    pub(super) fn deadline(&self, active_deadline: Option<Duration>) -> Option<Instant> {
        active_deadline.map(|deadline| self.active_since + deadline)
    }

    /// Records that the node has admitted or rejected the pod, which happens once.
    pub(super) fn decide(&mut self) {
        if self.admission == Admission::Open {
            self.admission = Admission::Decided;
        }
    }

    /// Whether the decision on the admission is final: it was made, and no preempted pod is waited for.
    pub(super) fn is_decided(&self) -> bool {
        self.admission == Admission::Decided
    }

    /// Records that the pod is admitted, and that preempted pods have to end before it starts.
    pub(super) fn wait_for_room(&mut self) {
        self.admission = Admission::WaitsForRoom;
    }

    /// Whether the pod waits for preempted pods to end.
    pub(super) fn waits_for_room(&self) -> bool {
        self.admission == Admission::WaitsForRoom
    }

    /// Records that the pod begins. Returns whether it waited for room until now.
    pub(super) fn begin(&mut self) -> bool {
        let waited = self.waits_for_room();
        if waited {
            self.admission = Admission::Decided;
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::*;
    use crate::time::Timestamp;

    #[test]
    fn admission_is_final_when_no_preempted_pod_is_left() {
        let mut acceptance = Acceptance::new(at(0));
        assert!(!acceptance.is_decided() && !acceptance.begin());
        acceptance.decide();
        acceptance.wait_for_room();
        acceptance.decide();
        assert!(acceptance.waits_for_room() && !acceptance.is_decided());
        assert!(acceptance.begin() && acceptance.is_decided() && !acceptance.begin());
    }

    #[test]
    fn the_deadline_counts_from_a_known_time_of_this_boot() {
        let mut acceptance = Acceptance::new(at(50));
        let deadline = |acceptance: &Acceptance| acceptance.deadline(Some(secs(100)));
        acceptance.restore_start_time(Moment::Earlier(Timestamp(7)), at(60));
        assert_eq!(deadline(&acceptance), Some(at(150)));
        acceptance.restore_start_time(Moment::ThisBoot(at(20)), at(60));
        assert_eq!(
            (deadline(&acceptance), acceptance.start_time()),
            (Some(at(120)), Moment::ThisBoot(at(20)))
        );
        acceptance.restore(Moment::ThisBoot(at(20)), at(99), at(60));
        assert_eq!(acceptance.active_since(), at(60));
        acceptance.accept(at(70));
        assert_eq!((deadline(&acceptance), acceptance.deadline(None)), (Some(at(170)), None));
    }
}
