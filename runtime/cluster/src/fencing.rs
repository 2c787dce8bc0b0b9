//! Fencing: a node that cannot renew its Lease for a declared time (`--fencing-period`) ends the pods of the cluster
//! itself, so that whoever has waited for this time may start them elsewhere. Pure.
//!
//! ```text
//!                   the Lease was not renewed for 3/4 of the period
//!          ┌──────────────────────────────────────────────────────────┐
//! Open ────┘      ┌──────── the cluster has listed the pods ──────────┼──── Closed
//!   ▲             │                                                   │
//!   └─────────────┴──────────────────── Held (first in a boot) ───────┘
//! ```
//!
//! Times are those since the boot, with the time of a suspended machine (CLOCK_BOOTTIME): no setting of a clock changes
//! them. Nothing of an earlier boot counts. A renewal counts from the moment when its request was sent.

use std::time::Duration;

use nodlet_core::facts::Fence;

/// The shortest period: `leaseDurationSeconds` of the Lease, before which no cluster takes its node for lost.
pub const SHORTEST: Duration = Duration::from_secs(40);

/// The part of the last quarter of the period that is left for the kill of what outlasts its grace period.
const KILL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Pods run.
    Open,
    /// Running pods go on, and no pod begins, since the cluster has confirmed none in this boot.
    Held,
    /// Pods end.
    Closed,
}

/// The decision whether pods of the cluster may run.
#[derive(Debug)]
pub struct Fencing {
    period: Duration,
    /// The last renewal that counts; while nothing was confirmed in this boot, when that began.
    renewed: Duration,
    /// A renewal after which the cluster has not yet listed the pods.
    unconfirmed: Option<Duration>,
    state: State,
}

impl Fencing {
    /// Begins to decide. `stored` is the last renewal that counted for an earlier agent of this boot, if there was one.
    pub fn new(period: Duration, stored: Option<Duration>, now: Duration) -> Fencing {
        let state = if stored.is_some() { State::Open } else { State::Held };
        // A time after `now` is none of this boot.
        let renewed = stored.map_or(now, |stored| stored.min(now));
        Fencing { period, renewed, unconfirmed: None, state }
    }

    /// Records that the Lease was renewed by a request that was sent at `sent`. Returns whether this counts at once.
    pub fn renewed(&mut self, sent: Duration) -> bool {
        // Pods may have been taken from a node that was late, even if nobody has noticed yet here.
        let counts = self.state == State::Open && sent < self.closes_at();
        if counts {
            self.renewed = self.renewed.max(sent);
        } else {
            self.unconfirmed = Some(sent);
        }
        counts
    }

    /// Records that the cluster has listed the pods of this node after the last renewal. Returns whether the fence is
    /// open now and was not before.
    pub fn listed(&mut self) -> bool {
        let Some(sent) = self.unconfirmed.take() else { return false };
        self.renewed = sent;
        std::mem::replace(&mut self.state, State::Open) != State::Open
    }

    /// Closes the fence if it is time to. Returns whether it was closed now.
    pub fn close(&mut self, now: Duration) -> bool {
        let closes = self.state != State::Closed && now >= self.closes_at();
        if closes {
            (self.state, self.unconfirmed) = (State::Closed, None);
        }
        closes
    }

    /// When the fence closes next.
    pub fn wake_at(&self) -> Option<Duration> {
        (self.state != State::Closed).then(|| self.closes_at())
    }

    /// The last renewal that counts, for the next agent; `None` if none does.
    pub fn to_store(&self) -> Option<Duration> {
        (self.state == State::Open).then_some(self.renewed)
    }

    /// The fence of all pods of the cluster.
    pub fn fence(&self, now: Duration) -> Fence {
        match self.state {
            State::Open => Fence::Open,
            State::Held => Fence::Held,
            State::Closed => {
                let end = self.renewed + self.period;
                Fence::Closed { grace: end.saturating_sub(KILL).saturating_sub(now) }
            }
        }
    }

    fn closes_at(&self) -> Duration {
        self.renewed + self.period / 4 * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A node that was confirmed at 100 s, with a period of 60 s.
    fn open() -> Fencing {
        let mut fencing = Fencing::new(secs(60), None, secs(99));
        assert!(!fencing.renewed(secs(100)) && fencing.listed());
        assert_eq!(fencing.fence(secs(100)), Fence::Open);
        fencing
    }

    #[test]
    fn pods_end_before_the_period_is_over_and_return_only_after_a_list() {
        let mut fencing = open();
        for renewal in [110, 120, 130] {
            assert!(fencing.renewed(secs(renewal)) && !fencing.close(secs(renewal)));
        }
        assert_eq!(fencing.wake_at(), Some(secs(175)));
        assert!(!fencing.close(secs(174)) && fencing.close(secs(175)) && !fencing.close(secs(176)));
        // 130 + 60, without the time of the kill.
        assert_eq!(fencing.fence(secs(175)), Fence::Closed { grace: secs(13) });
        assert_eq!(fencing.fence(secs(400)), Fence::Closed { grace: secs(0) });
        assert_eq!((fencing.wake_at(), fencing.to_store()), (None, None));
        // A list of an earlier session confirms nothing.
        assert!(!fencing.listed() && !fencing.renewed(secs(500)));
        assert_eq!(fencing.fence(secs(500)), Fence::Closed { grace: secs(0) });
        assert!(fencing.listed());
        assert_eq!((fencing.fence(secs(501)), fencing.wake_at()), (Fence::Open, Some(secs(545))));
    }

    #[test]
    fn a_renewal_counts_from_its_request_and_late_ones_confirm_nothing() {
        let mut fencing = open();
        // A response after 14 s, and an older one after that.
        assert!(fencing.renewed(secs(130)) && fencing.renewed(secs(120)));
        assert_eq!(fencing.wake_at(), Some(secs(175)));
        // The machine was suspended, and nothing had the time to close the fence.
        assert!(!fencing.renewed(secs(9000)));
        assert!(fencing.close(secs(9000)));
        assert_eq!(fencing.fence(secs(9000)), Fence::Closed { grace: secs(0) });
    }

    #[test]
    fn the_next_agent_of_a_boot_continues_and_a_new_boot_begins_nothing() {
        let stored = open().to_store();
        assert_eq!(stored, Some(secs(100)));
        let mut next = Fencing::new(secs(60), stored, secs(144));
        assert_eq!((next.fence(secs(144)), next.close(secs(144))), (Fence::Open, false));
        assert!(next.close(secs(145)));
        assert!(Fencing::new(secs(60), stored, secs(900)).close(secs(900)));

        // After a boot, or with the first agent that has a period.
        let mut first = Fencing::new(secs(60), None, secs(5));
        assert_eq!((first.fence(secs(5)), first.to_store()), (Fence::Held, None));
        assert!(!first.close(secs(49)) && first.close(secs(50)));
        // A time that only another boot can have stored ends pods no later.
        assert_eq!(Fencing::new(secs(60), Some(secs(900)), secs(5)).wake_at(), Some(secs(50)));
    }

    /// The control plane sees only renewals, and starts a pod elsewhere when it has seen none for the period.
    #[test]
    fn whatever_happens_no_pod_outlasts_the_period_after_a_renewal() {
        let mut seed = 7u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let (mut now, mut seen) = (secs(1000), None);
            let mut fencing = Fencing::new(secs(60), None, now);
            // When the last process is killed at the latest.
            let mut killed_at = Some(now);
            for _ in 0..200 {
                match random(8) {
                    0 => now += secs(random(300)),
                    1 => {
                        fencing = Fencing::new(secs(60), fencing.to_store(), now);
                    }
                    2 => drop(fencing.listed()),
                    _ => {
                        let sent = now;
                        now += secs(random(15));
                        fencing.renewed(sent);
                        seen = Some(sent);
                    }
                }
                let due = fencing.wake_at().filter(|due| *due <= now);
                // The agent wakes up in time, except from a suspended machine, in which no process runs either.
                fencing.close(due.unwrap_or(now));
                match fencing.fence(due.unwrap_or(now)) {
                    Fence::Closed { grace } => {
                        killed_at.get_or_insert(due.unwrap_or(now) + grace + KILL);
                    }
                    Fence::Open => killed_at = None,
                    Fence::Held => {}
                }
                if let (Some(killed_at), Some(seen)) = (killed_at, seen) {
                    assert!(killed_at <= now.max(seen + secs(60)) + KILL, "{killed_at:?} {seen:?} {now:?}");
                }
                now += secs(random(12));
            }
        }
    }
}
