//! The time between two attempts to reach the cluster: it doubles up to a cap, and is random within a fifth, so that
//! boards that lost the same link do not return at the same moment.

use std::time::Duration;

/// The first wait.
const FIRST: Duration = Duration::from_millis(800);

/// The longest wait, without its random part (client-go's reflector).
const LONGEST: Duration = Duration::from_secs(30);

/// The state of the waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Records a failure. Returns the time to wait; `random` is any number.
    pub fn failed(&mut self, random: u16) -> Duration {
        let wait = FIRST.saturating_mul(1u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(LONGEST);
        self.failures = (self.failures + 1).min(16);
        wait + jitter(wait / 5, random)
    }

    /// Records a success: the next wait is the first.
    pub fn succeeded(&mut self) {
        self.failures = 0;
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
        backoff.succeeded();
        assert_eq!(backoff.failed(u16::MAX).as_millis(), 960);
    }
}
