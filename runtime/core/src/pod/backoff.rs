//! Delays before a retry: the kubelet's back-off of crashing containers, and the plain retry of operations
//! that failed on this machine.
//!
//! All delays are in memory only: an agent that restarts retries at once.

use std::time::Duration;

use crate::time::Instant;

/// The first and shortest delay.
const INITIAL: Duration = Duration::from_secs(10);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_secs(300);
/// A run that ends this long after its start resets the back-off.
const RESET_AFTER: Duration = Duration::from_secs(600);

/// The back-off of one container, which is empty before its first restart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CrashBackoff {
    entry: Option<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: Duration,
    updated: Instant,
}

/// Why a container may not be restarted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartDelay {
    /// The delay, as the message names it.
    pub(crate) delay: Duration,
    /// When the container may be restarted.
    pub(crate) until: Instant,
}

impl CrashBackoff {
    /// Whether a container that ended at `finished` may start again at `now`.
    pub(crate) fn check(&self, now: Instant, finished: Instant) -> Result<(), RestartDelay> {
        match self.live_entry(finished) {
            Some(entry) if now < finished + entry.delay => {
                Err(RestartDelay { delay: entry.delay, until: finished + entry.delay })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Records that the container restarts at `now`, which makes the next delay longer.
    pub(crate) fn advance(&mut self, now: Instant, finished: Instant) {
        let delay = match self.live_entry(finished) {
            Some(entry) => (entry.delay * 2).min(MAX_DELAY),
            None => INITIAL,
        };
        self.entry = Some(Entry { delay, updated: now });
    }

    fn live_entry(&self, finished: Instant) -> Option<Entry> {
        self.entry.filter(|entry| finished.since(entry.updated) <= RESET_AFTER)
    }
}

/// A retry of an operation that failed on this machine: after 10 s, then after ever longer delays, so that a
/// permanent failure costs next to nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    delay: Duration,
    /// When to try again.
    pub(crate) at: Instant,
}

impl Retry {
    /// The retry after a first failure.
    pub(crate) fn first(now: Instant) -> Self {
        Retry { delay: INITIAL, at: now + INITIAL }
    }

    /// The retry after one more failure; `earlier` is the retry before it.
    pub(crate) fn after(earlier: Option<Retry>, now: Instant) -> Self {
        match earlier {
            None => Retry::first(now),
            Some(earlier) => {
                let delay = (earlier.delay * 2).min(MAX_DELAY);
                Retry { delay, at: now + delay }
            }
        }
    }
}

/// The pulls of the images for one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pulls {
    /// The last of the failed pulls in a row.
    back_off: Option<Retry>,
    /// Whether the newest pull succeeded, and no run has begun since.
    pulled: bool,
}

impl Pulls {
    /// The state after a pull that succeeded.
    pub(crate) fn succeeded() -> Pulls {
        Pulls { back_off: None, pulled: true }
    }

    /// Whether an image was pulled for the next run.
    pub(crate) fn is_pulled(self) -> bool {
        self.pulled
    }

    /// Records that a run has begun. Returns whether its image was pulled for it.
    pub(crate) fn run_began(&mut self) -> bool {
        std::mem::take(self).pulled
    }

    /// Records a failed pull, and returns when to try again.
    pub(crate) fn failed(&mut self, now: Instant) -> Instant {
        let retry = Retry::after(self.back_off, now);
        *self = Pulls { back_off: Some(retry), pulled: false };
        retry.at
    }
}

/// A duration as Go prints it: `10s`, `2m40s`, `5m0s`.
pub(crate) fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn waits_double_from_ten_seconds_to_five_minutes() {
        let mut backoff = CrashBackoff::default();
        let mut now = at(1000);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let finished = now;
            let wait = backoff.check(now, finished).err().map(|held| held.delay.as_secs());
            waits.push(wait.unwrap_or(0));
            now = finished + Duration::from_secs(wait.unwrap_or(0));
            assert_eq!(backoff.check(now, finished), Ok(()));
            backoff.advance(now, finished);
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_run_of_more_than_ten_minutes_makes_the_next_restart_immediate() {
        let mut backoff = CrashBackoff::default();
        backoff.advance(at(0), at(0));
        assert!(backoff.check(at(600), at(600)).is_err());
        assert!(backoff.check(at(601), at(601)).is_ok());
        backoff.advance(at(601), at(601));
        assert_eq!(backoff.check(at(602), at(602)).err().map(|held| held.until), Some(at(612)));
    }

    #[test]
    fn durations_are_printed_as_go_does() {
        for (seconds, text) in [(10, "10s"), (160, "2m40s"), (300, "5m0s"), (3600, "1h0m0s")] {
            assert_eq!(go_duration(Duration::from_secs(seconds)), text);
        }
    }
}
