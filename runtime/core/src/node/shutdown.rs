//! The order in which all pods of a node end, and how long each may take: groups of priorities, from the
//! lowest to the highest; the pods of one group end side by side.
//!
//! The next group begins when no process of the earlier groups is left, or when their time is over. Without
//! configured groups each priority is a group, which may take as long as its pods' own grace periods.

use std::time::Duration;

use crate::facts::{EndCause, EndRequest, Shutdown, Wake};
use crate::pod::PodState;
use crate::spec::Pod;
use crate::time::Instant;

impl Shutdown {
    /// The rank of a pod; ranks end from the lowest to the highest.
    fn rank(&self, pod: &Pod) -> i64 {
        if self.groups.is_empty() { i64::from(pod.priority) } else { self.place(pod) as i64 }
    }

    fn place(&self, pod: &Pod) -> usize {
        let begun = self.groups.iter().filter(|group| group.priority <= pod.priority).count();
        begun.saturating_sub(1)
    }

    /// The longest grace period of a pod, if its group limits it.
    fn grace(&self, pod: &Pod) -> Option<Duration> {
        let group = self.groups.get(self.place(pod))?;
        Some(group.grace.min(pod.spec.termination_grace_period))
    }
}

/// A shutdown under way.
#[derive(Debug)]
pub(super) struct ShutdownProgress {
    pub(super) shutdown: Shutdown,
    /// The rank whose pods end now, and when its time ends.
    turn: Option<(i64, Option<Instant>)>,
}

impl ShutdownProgress {
    pub(super) fn new(shutdown: Shutdown) -> ShutdownProgress {
        ShutdownProgress { shutdown, turn: None }
    }

    /// The request to end for a pod, if its rank's turn has come.
    pub(super) fn end_of(&self, pod: &Pod) -> Option<EndRequest> {
        let (turn, _) = self.turn?;
        (self.shutdown.rank(pod) <= turn).then(|| EndRequest {
            cause: EndCause::Shutdown(self.shutdown.scope),
            grace: self.shutdown.grace(pod),
        })
    }

    /// Proceeds to the next rank while no pod of the earlier ranks has to be waited for. Returns whether it
    /// proceeded.
    pub(super) fn advance(&mut self, now: Instant, pods: &[PodState]) -> bool {
        let mut passed = false;
        loop {
            let left = || pods.iter().filter(|pod| !pod.has_ended()).map(|pod| self.shutdown.rank(pod.pod()));
            let next = match self.turn {
                None => left().min(),
                Some((rank, until)) => {
                    let waits = until.is_none_or(|until| now < until) && left().any(|other| other <= rank);
                    if waits { None } else { left().filter(|other| *other > rank).min() }
                }
            };
            let Some(rank) = next else { return passed };
            let place = usize::try_from(rank).ok().filter(|_| !self.shutdown.groups.is_empty());
            let group = place.and_then(|place| self.shutdown.groups.get(place));
            self.turn = Some((rank, group.map(|group| now + group.grace)));
            passed = true;
        }
    }

    /// Records the latest time at which the next group's turn comes.
    pub(super) fn wake(&self, wake: &mut Wake, pods: &[PodState]) {
        if let Some((rank, Some(until))) = self.turn
            && pods.iter().any(|pod| !pod.has_ended() && self.shutdown.rank(pod.pod()) > rank)
        {
            wake.note(until);
        }
    }
}
