//! Crash loops: an agent that fails again and again leads to a reboot, later each time, and after
//! some of them to safe mode: network and SSH, no agent.
//!
//! [`crate::boot::crash_count`] keeps the number of consecutive crash loops in a file. The file is written when a
//! crash loop ends, and removed after an agent ran for [`HEALTHY`]. A board whose agent keeps running never
//! writes it. [`HANG`] exists while the agent hangs. If it exists when the board boots, the watchdog has
//! reset the board, which counts as a crash loop. Children of process 1 read and write both files. [`judge`]
//! makes the decision.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use nodlet_kernel::durable;

use crate::boot::console::say;
use crate::boot::crash_count::{below, read, remove, replace, write};
use crate::boot::{config, safe_mode};

/// The file that exists while the agent hangs.
const HANG: &str = "/var/lib/nodlet/init/agent-hangs";

/// Exit code of [`hang`] if an update on trial hung and is given up. Process 1 must kill the agent then.
pub(super) const AGENT_IS_TO_END: u8 = 114;

/// For how many seconds the first crash loop lasts if the profile does not set it.
pub(super) const DEFAULT_AFTER: u32 = 60;

/// How many crash loops end with a reboot before safe mode if the profile does not set it.
pub(super) const DEFAULT_REBOOTS: u32 = 3;

/// The fewest consecutive failures that are a crash loop, however long they take.
const FAILURES: u32 = 4;

/// The longest duration of a crash loop.
const LONGEST: Duration = Duration::from_secs(3600);

/// An agent that has run for this long resets the count.
pub(super) const HEALTHY: Duration = Duration::from_secs(600);

/// The decision about an agent that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Start the agent again, after the delay that all services have.
    Restart,
    /// Count a crash loop, and reboot.
    Reboot,
}

/// The recent failures of the agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failures {
    /// Number of consecutive failures, without a longer run between them.
    pub(super) count: u32,
    /// The time from the first of these failures to the latest.
    pub(super) lasting: Duration,
    /// Number of consecutive crash loops that ended earlier boots.
    pub(super) crash_loops: u32,
    /// Whether the count of crash loops survives a reboot.
    pub(super) is_kept: bool,
}

/// Decides about an agent that failed. `after` is the duration of the first crash loop; each later one lasts
/// twice as long as the one before. A board that keeps everything in RAM cannot count crash loops. Its crash
/// loops always have the longest duration, because it must not reboot every minute for ever.
pub(super) fn judge(failures: Failures, after: Duration) -> Recovery {
    let factor = 1u32.checked_shl(failures.crash_loops).unwrap_or(u32::MAX);
    let lasts = if failures.is_kept { after.saturating_mul(factor).min(LONGEST) } else { LONGEST };
    if failures.count >= FAILURES && failures.lasting >= lasts { Recovery::Reboot } else { Recovery::Restart }
}

/// Reads the count and decides on safe mode, in the child that sets up the machine. Returns the number of
/// crash loops, whether the count survives a reboot, and whether the board is in safe mode.
pub(super) fn load(limits: Option<&config::CrashLoop>) -> (u32, bool, bool) {
    let count = count_hang(Path::new("/"), read());
    let reboots = limits.map_or(DEFAULT_REBOOTS, |limits| limits.reboots);
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let why = safe_mode::reason(count, reboots, &command_line);
    if let Some(why) = &why {
        safe_mode::enter(why);
    }
    (count, is_kept(), why.is_some())
}

/// Whether files in /var/lib/nodlet survive a reboot, and there is space for more.
fn is_kept() -> bool {
    use nix::sys::statvfs::{FsFlags, statvfs};
    const PLACE: &str = "/var/lib/nodlet";
    // The count needs a file and a block of its own.
    !durable::is_in_memory(Path::new(PLACE))
        && statvfs(PLACE).is_ok_and(|found| {
            !found.flags().contains(FsFlags::ST_RDONLY)
                && found.blocks_available() > 0
                && found.files_available() > 0
        })
}

/// Counts a hang that ended the previous boot. Returns the number of crash loops.
fn count_hang(root: &Path, count: u32) -> u32 {
    let hang = below(root, HANG);
    if !hang.exists() {
        return count;
    }
    let count = count.saturating_add(1);
    let counted = write(root, count).and_then(|()| durable::remove(&hang));
    report("count the hang before this boot as a crash loop", counted);
    count
}

/// Counts one more crash loop, in a child of process 1.
pub(super) fn count() -> u8 {
    report("count this crash loop", write(Path::new("/"), read().saturating_add(1)))
}

/// Records that the agent hangs, in a child of process 1. If the agent is an update on trial, gives up the
/// update, so that the previous nodlet starts. Otherwise the next boot counts the hang, unless the agent
/// continues before.
pub(super) fn hang() -> u8 {
    if crate::system::give_up_trial(Path::new("/"), "its agent hung") {
        return AGENT_IS_TO_END;
    }
    if !is_kept() {
        return 0;
    }
    report("note that the agent hangs", replace(Path::new("/"), HANG, b""))
}

/// Removes the record of a hang because the agent continues, or the board goes down in an orderly way. Runs
/// in a child of process 1.
pub(super) fn clear_hang() -> u8 {
    report("record that the agent continues", durable::remove(Path::new(HANG)))
}

/// Resets the count of crash loops, in a child of process 1.
pub(super) fn forget() -> u8 {
    report("clear the crash loops", remove())
}

fn report(what: &str, done: io::Result<()>) -> u8 {
    match done {
        Ok(()) => 0,
        Err(error) => {
            say(format_args!("failed to {what}: {error}"));
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::services::{Kind, Service};
    use super::*;
    use crate::boot::crash_count::{FILE, is_counted};
    use nix::unistd::Pid;
    use nodlet_core::time::Instant;

    /// When a board reboots whose agent fails `runs` seconds after each start; `None` if not within a day.
    fn reboots_after(runs: u64, crash_loops: u32, is_kept: bool) -> Option<u64> {
        let at = |seconds: u64| Instant(0) + Duration::from_secs(seconds);
        let mut agent = Service::new(Kind::TEST, at(0));
        let mut now = 0;
        while now < 24 * 3600 {
            now = agent.next_start().map_or(now, |next| now.max(next.0 / 1_000_000_000));
            agent.started(Some(Pid::from_raw(7)), at(now));
            now += runs;
            agent.ended(1, at(now));
            let (count, lasting) = agent.failing()?;
            let failures = Failures { count, lasting, crash_loops, is_kept };
            if judge(failures, Duration::from_secs(60)) == Recovery::Reboot {
                return Some(now);
            }
        }
        None
    }

    #[test]
    fn a_board_whose_agent_keeps_failing_reboots_later_each_time() {
        let times: Vec<_> = (0..9).map(|crash_loops| reboots_after(0, crash_loops, true)).collect();
        let minute = |minutes: u64| 60 * minutes;
        assert_eq!(times[0], Some(63));
        for (time, least) in times.iter().zip([1, 2, 4, 8, 16, 32, 60, 60, 60]) {
            let time = time.expect("it reboots");
            assert!((minute(least)..=minute(least) + 63).contains(&time), "{times:?}");
        }
    }

    #[test]
    fn a_board_that_cannot_count_reboots_hourly_at_most() {
        assert!(reboots_after(0, 0, false).is_some_and(|time| (3600..3700).contains(&time)));
    }

    #[test]
    fn an_agent_that_runs_well_in_between_reboots_no_board() {
        assert_eq!(reboots_after(61, 0, true), None);
        // An agent that fails every half minute does.
        assert!(reboots_after(30, 0, true).is_some_and(|time| time < 200));
    }

    #[test]
    fn a_few_failures_are_no_crash_loop_however_long_they_take() {
        let failures = |count| Failures { count, lasting: LONGEST * 2, crash_loops: 0, is_kept: true };
        assert_eq!(judge(failures(FAILURES - 1), Duration::ZERO), Recovery::Restart);
        assert_eq!(judge(failures(FAILURES), Duration::ZERO), Recovery::Reboot);
    }

    #[test]
    fn a_hang_counts_at_the_next_boot_unless_it_was_over_before() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let root = scratch.path();
        let hang = below(root, HANG);
        assert_eq!(count_hang(root, 1), 1, "the board did not hang");
        assert!(!is_counted(root));
        durable::replace(&hang, b"", None).expect("it can be written");
        assert!(!is_counted(root), "nothing is counted while the agent may go on");
        durable::remove(&hang).expect("it can be removed");
        assert_eq!(count_hang(root, 1), 1, "the agent went on");
        durable::replace(&hang, b"", None).expect("it can be written");
        assert_eq!(count_hang(root, 1), 2);
        assert!(is_counted(root) && !hang.exists());
        assert_eq!(fs::read_to_string(below(root, FILE)).expect("it was written"), "2\n");
        assert_eq!(count_hang(root, 2), 2, "it is counted once");
    }
}
