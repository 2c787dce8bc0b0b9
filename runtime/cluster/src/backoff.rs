//! The time between two attempts to reach the cluster: it doubles up to a cap, and is random within a fifth, so that
//! boards that lost the same link do not return at the same moment. And the rate at which events of it are read.

use std::time::{Duration, Instant};

/// The first wait.
const FIRST: Duration = Duration::from_millis(800);

/// The longest wait, without its random part (client-go's reflector).
const LONGEST: Duration = Duration::from_secs(30);

/// A connection that lasted this long counts as a success.
const LASTING: Duration = Duration::from_secs(60);

/// The state of the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::up_to(LONGEST)
    }
}

impl Backoff {
    /// No failure yet; the longest wait has this length, without its random part.
    pub fn up_to(longest: Duration) -> Backoff {
        Backoff { failures: 0, longest }
    }

    /// Records a failure. Returns the time to wait; `random` is any number.
    pub fn failed(&mut self, random: u16) -> Duration {
        let wait =
            FIRST.saturating_mul(1u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(self.longest);
        self.failures = (self.failures + 1).min(16);
        wait + jitter(wait / 5, random)
    }

    /// Records the end of a session or watch that took `lasted`. Returns the time to wait before the next: the first
    /// one again after one that lasted. `random` is any number.
    pub fn ended(&mut self, lasted: Duration, random: u16) -> Duration {
        if lasted >= LASTING {
            self.failures = 0;
        }
        self.failed(random)
    }
}

/// The time in which at most [`EVENTS`] are read.
const WINDOW: Duration = Duration::from_secs(1);

/// Events in one window. A node with 512 pods gets fewer, but for moments.
const EVENTS: usize = 100;

/// An event counts once more for each of these bytes.
const WEIGHT: usize = 16 * 1024;

/// Limits the rate at which a watch is read: a server that sends events without end must not keep the board busy.
#[derive(Debug)]
pub struct Rate {
    since: Instant,
    events: usize,
}

impl Rate {
    /// Nothing was read before `now`.
    pub fn new(now: Instant) -> Rate {
        Rate { since: now, events: 0 }
    }

    /// Records an event of `length` bytes. Returns when the next one may be read.
    pub fn read(&mut self, length: usize, now: Instant) -> Instant {
        if now >= self.since + WINDOW {
            *self = Rate::new(now);
        }
        self.events += 1 + length / WEIGHT;
        if self.events >= EVENTS { self.since + WINDOW } else { now }
    }
}

/// A part of `of`; `random` is any number.
pub fn jitter(of: Duration, random: u16) -> Duration {
    of * u32::from(random) / u32::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_cap_with_jitter_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..8).map(|_| backoff.failed(0).as_millis()).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(backoff.failed(u16::MAX).as_millis(), 36_000);
        for _ in 0..100 {
            assert!(backoff.failed(7) >= LONGEST);
        }
        assert!(backoff.ended(Duration::from_secs(59), 0) >= LONGEST);
        assert_eq!(backoff.ended(LASTING, u16::MAX).as_millis(), 960);
        assert_eq!(backoff.ended(Duration::ZERO, 0).as_millis(), 1600);
    }

    #[test]
    fn an_endless_watch_is_read_at_a_limited_rate() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        for _ in 1..EVENTS {
            assert_eq!(rate.read(100, start), start);
        }
        assert_eq!(rate.read(100, start), start + WINDOW);
        let later = start + WINDOW;
        assert_eq!(rate.read(100, later), later);
        assert_eq!(rate.read(2 * 1024 * 1024, later), later + WINDOW);
    }
}
