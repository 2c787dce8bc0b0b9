//! The hardware watchdog, which resets the board unless process 1 feeds it.
//!
//! Process 1 feeds the watchdog only while the agent's loop makes progress, or while no agent runs and
//! process 1 is about to start one. The agent reports progress in a page that both processes map
//! ([`nodlet_runtime::progress`]). So the watchdog resets a board whose agent hangs, as well as one whose
//! process 1 hangs. Each half of the watchdog's timeout begins with one wake-up of process 1 and one of the
//! agent. [`judge`] makes the decision.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nodlet_core::time::Instant;
use nodlet_kernel::ioctl;
use nodlet_runtime::progress::{Progress, VARIABLE, until_next};

use crate::boot::console::say;

/// How long an agent may take from its start to the first turn of its loop, unless the watchdog's timeout is
/// longer: before that, the agent inspects every pod.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// Descriptor of the progress page in process 1, for the agent's environment; -1 without a watchdog.
static PAGE: AtomicI32 = AtomicI32::new(-1);

/// The environment variable by which the agent finds the progress page. For children of process 1.
pub(super) fn variable() -> Option<(&'static str, String)> {
    let page = PAGE.load(Ordering::Relaxed);
    (page >= 0).then(|| (VARIABLE, format!("/proc/1/fd/{page}")))
}

/// The state of the agent's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopState {
    /// The loop makes progress, or no agent runs: feed the watchdog.
    Turns,
    /// The loop makes no progress: do not feed the watchdog.
    Hangs,
}

/// Decides whether to feed a watchdog that resets the board `timeout` after it was last fed. `started` is
/// when the running agent started, or `None` if none runs; `latest` is the time of the latest progress.
///
/// An agent stores progress every half of `timeout`, and counts as hung when it is late by a quarter of
/// `timeout`. The watchdog was last fed at least half of `timeout` ago, so the agent has up to that long
/// again to recover before the reset.
fn judge(now: Instant, started: Option<Instant>, latest: Option<Instant>, timeout: Duration) -> LoopState {
    let Some(started) = started else { return LoopState::Turns };
    let (since, within) = match latest {
        Some(latest) if latest >= started => (latest, timeout / 4 * 3),
        Some(_) | None => (started, timeout.max(STARTS_WITHIN)),
    };
    if now.since(since) < within { LoopState::Turns } else { LoopState::Hangs }
}

/// A change in the state of the agent's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HangChange {
    /// The agent hangs, unlike at the previous check.
    Hangs,
    /// An agent that hung makes progress again, or has ended.
    Recovers,
}

/// The armed watchdog.
pub(super) struct Watchdog {
    device: File,
    timeout: Duration,
    progress: Progress,
    next: Instant,
    /// Whether the current hang has been reported on the console.
    reported: bool,
}

impl Watchdog {
    /// Opens the device, which arms the watchdog, and sets its timeout. The driver may choose another
    /// timeout, which is then used.
    pub(super) fn open(path: &CStr, seconds: u32, now: Instant) -> io::Result<Watchdog> {
        let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
        // First, because closing the armed device without disarming it resets the board.
        let progress = Progress::create(Duration::from_secs(u64::from(seconds)))?;
        let device = OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(path)?;
        let wanted = i32::try_from(seconds).unwrap_or(i32::MAX);
        let set = ioctl::set_watchdog_timeout(&device, wanted);
        let got = ioctl::watchdog_timeout(&device);
        let timeout = got.unwrap_or(wanted);
        if let (Err(error), _) | (_, Err(error)) = (set, got) {
            say(format_args!("failed to set the watchdog's timeout: {error}; it has its driver's"));
        }
        let timeout = Duration::from_secs(u64::try_from(timeout).unwrap_or(1).max(1));
        progress.set_every(timeout / 2);
        PAGE.store(progress.descriptor(), Ordering::Relaxed);
        Ok(Watchdog { device, timeout, progress, next: now, reported: false })
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When to inspect the agent next.
    pub(super) fn next_check(&self) -> Instant {
        self.next
    }

    /// Feeds the watchdog if that is due and the agent makes progress. `started` is when the running agent
    /// started. Returns `None` if nothing changed.
    pub(super) fn check(&mut self, now: Instant, started: Option<Instant>) -> Option<HangChange> {
        if now < self.next {
            return None;
        }
        match judge(now, started, self.progress.latest(), self.timeout) {
            LoopState::Turns => {
                self.feed();
                self.next = now + until_next(now, self.timeout / 2);
                std::mem::replace(&mut self.reported, false).then_some(HangChange::Recovers)
            }
            LoopState::Hangs => {
                // The agent may still recover; then the watchdog must be fed before the timeout.
                self.next = now + (self.timeout / 16).max(Duration::from_millis(500));
                (!std::mem::replace(&mut self.reported, true)).then_some(HangChange::Hangs)
            }
        }
    }

    pub(super) fn feed(&mut self) {
        // If the device fails, the watchdog resets the board, which is the best outcome.
        let _ = self.device.write(b"\0");
    }

    /// Disarms the watchdog, unless the kernel forbids it (`nowayout`): a board that is down but cannot cut
    /// its own power must not be reset.
    pub(super) fn disarm(mut self) {
        // The kernel disarms the watchdog when it is closed after this letter.
        let _ = self.device.write(b"V");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Instant {
        Instant(0) + Duration::from_secs(seconds)
    }

    /// When the watchdog resets a board whose agent starts at 10 s, makes progress at each of `turns`, and
    /// then hangs.
    fn reset_after(turns: &[u64]) -> u64 {
        let (mut next, mut fed) = (0, 0);
        for now in 0.. {
            if now == fed + TIMEOUT.as_secs() {
                return now;
            }
            if now < next {
                continue;
            }
            let latest = turns.iter().rev().find(|&&turn| turn <= now).map(|&turn| at(turn));
            match judge(at(now), (now >= 10).then(|| at(10)), latest, TIMEOUT) {
                LoopState::Turns => (fed, next) = (now, now + until_next(at(now), TIMEOUT / 2).as_secs()),
                LoopState::Hangs => next = now + TIMEOUT.as_secs() / 16,
            }
        }
        unreachable!("time has no end")
    }

    #[test]
    fn an_agent_that_hangs_resets_the_board_within_one_and_a_half_timeouts() {
        for hang in [30, 60, 90, 3000] {
            let turns: Vec<u64> = (20..=hang).filter(|now| now % 30 == 0 || *now == 20).collect();
            let reset = reset_after(&turns);
            assert!((hang + 60..=hang + 90).contains(&reset), "hung after {hang}, reset at {reset}");
        }
    }

    #[test]
    fn an_agent_whose_loop_is_late_but_progresses_keeps_the_watchdog_fed() {
        // The agent skips two turns; both times it makes progress again before the timeout.
        let turns = [20, 30, 60, 119, 150, 180, 210, 268, 270];
        assert!(reset_after(&turns) > 270 + 60);
    }

    #[test]
    fn an_agent_whose_loop_never_runs_lets_the_watchdog_reset_the_board() {
        let reset = reset_after(&[]);
        assert!((130..=10 + 120 + 60).contains(&reset), "{reset}");
    }

    #[test]
    fn progress_of_an_earlier_agent_is_none_of_this_one() {
        let judge = |now, started, latest| judge(at(now), Some(at(started)), Some(at(latest)), TIMEOUT);
        assert_eq!(judge(1000, 990, 500), LoopState::Turns);
        assert_eq!(judge(1120, 990, 500), LoopState::Hangs);
        assert_eq!(judge(1120, 990, 1100), LoopState::Turns);
    }

    #[test]
    fn a_board_without_a_running_agent_is_not_reset() {
        assert_eq!(judge(at(9000), None, Some(at(5)), TIMEOUT), LoopState::Turns);
    }
}
