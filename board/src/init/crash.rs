//! Crash loops: an agent that fails again and again leads to a reboot, later each time, and after
//! some of them to safe mode: network and SSH, no agent.
//!
//! [`FILE`] has the number of consecutive crash loops. It is written when a crash loop ends, and removed
//! after an agent ran for [`HEALTHY`]. A board whose agent keeps running never writes it. [`HANG`] exists
//! while the agent hangs. If it exists when the board boots, the watchdog has reset the board, which counts
//! as a crash loop. Children of process 1 read and write both files. [`judge`] makes the decision.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{config, identity, say};

/// The file with the number of consecutive crash loops.
pub(crate) const FILE: &str = "/var/lib/nodlet/init/crash-loops";

/// The file that exists while the agent hangs.
const HANG: &str = "/var/lib/nodlet/init/agent-hangs";

/// Exit code of [`hang`] if an update on trial hung and is given up. Process 1 must kill the agent then.
pub(super) const AGENT_IS_TO_END: u8 = 114;

/// The file that exists in safe mode. Its one line tells people the reason and how to leave safe mode.
const SAFE_MODE: &str = "/run/nodlet-init/safe-mode";

/// How to leave safe mode, for people.
const LEAVE: &str = "`nodlet safe-mode --leave` reboots into normal mode";

/// The kernel argument for one boot in safe mode.
pub(crate) const ARGUMENT: &str = "nodlet.safe";

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
pub(super) enum Verdict {
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
pub(super) fn judge(failures: Failures, after: Duration) -> Verdict {
    let factor = 1u32.checked_shl(failures.crash_loops).unwrap_or(u32::MAX);
    let lasts = if failures.is_kept { after.saturating_mul(factor).min(LONGEST) } else { LONGEST };
    match failures.count >= FAILURES && failures.lasting >= lasts {
        true => Verdict::Reboot,
        false => Verdict::Restart,
    }
}

/// The reason for safe mode and how to leave it, for people; `None` if the board is not in safe mode.
pub(crate) fn is_safe() -> Option<String> {
    fs::read_to_string(SAFE_MODE).ok().map(|text| text.trim_end().to_owned())
}

/// The file that the SSH server shows before a login, in safe mode.
pub(super) fn banner() -> Option<&'static str> {
    Path::new(SAFE_MODE).exists().then_some(SAFE_MODE)
}

/// Why the board must boot into safe mode; `None` if it must not.
fn safe_mode(crash_loops: u32, reboots: u32, command_line: &str) -> Option<String> {
    if has_argument(command_line) {
        return Some(format!("the kernel argument {ARGUMENT} asks for it"));
    }
    let times =
        if crash_loops == 1 { "one boot".to_owned() } else { format!("{crash_loops} boots in a row") };
    (crash_loops >= reboots).then(|| format!("the agent kept failing in {times}"))
}

fn has_argument(command_line: &str) -> bool {
    command_line.split_ascii_whitespace().any(|word| word == ARGUMENT)
}

/// Whether the kernel's command line requests safe mode.
pub(crate) fn is_argued() -> bool {
    has_argument(&fs::read_to_string("/proc/cmdline").unwrap_or_default())
}

/// Reads the count and decides on safe mode, in the child that sets up the machine. Returns the number of
/// crash loops, whether the count survives a reboot, and whether the board is in safe mode.
pub(super) fn look(limits: Option<&config::CrashLoop>) -> (u32, bool, bool) {
    let count = count_hang(Path::new("/"), read());
    let reboots = limits.map_or(DEFAULT_REBOOTS, |limits| limits.reboots);
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let why = safe_mode(count, reboots, &command_line);
    if let Some(why) = &why {
        let text = format!("this board is in safe mode, without agent and pods, since {why}; {LEAVE}");
        let directory = Path::new(SAFE_MODE).parent().unwrap_or(Path::new("/"));
        let written = fs::create_dir_all(directory).and_then(|()| fs::write(SAFE_MODE, format!("{text}\n")));
        if let Err(error) = written {
            say(format_args!("failed to write {SAFE_MODE}: {error}"));
        }
        say(format_args!("{text}"));
    }
    (count, is_kept(), why.is_some())
}

/// Reads the count of crash loops. A file without a number counts as 0, so that the board tries a normal
/// boot.
fn read() -> u32 {
    match identity::read(FILE) {
        Ok(Some(text)) => text.trim().parse().unwrap_or_else(|_| {
            say(format_args!("{FILE} holds no number; it is ignored"));
            0
        }),
        Ok(None) => 0,
        Err(error) => {
            say(format_args!("failed to read {FILE}: {error}"));
            0
        }
    }
}

/// Whether the previous boot of this root ended with a crash loop, and no agent has run well since.
pub(crate) fn is_counted(root: &Path) -> bool {
    let text = fs::read_to_string(below(root, FILE)).unwrap_or_default();
    text.trim().parse::<u32>().is_ok_and(|count| count > 0)
}

/// Whether files in /var/lib/nodlet survive a reboot, and there is space for more.
fn is_kept() -> bool {
    use nix::sys::statfs::{TMPFS_MAGIC, statfs};
    use nix::sys::statvfs::{FsFlags, statvfs};
    const RAMFS: u32 = 0x8584_58f6;
    const PLACE: &str = "/var/lib/nodlet";
    let in_ram = statfs(PLACE).is_ok_and(|found| {
        found.filesystem_type() == TMPFS_MAGIC || found.filesystem_type().0 as u32 == RAMFS
    });
    // The count needs a file and a block of its own.
    !in_ram
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
    let counted = write(root, count).and_then(|()| remove_durably(&hang));
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
    report("note that the agent hangs", write_durably(Path::new(HANG), "").map(drop))
}

/// Removes the record of a hang because the agent continues, or the board goes down in an orderly way. Runs
/// in a child of process 1.
pub(super) fn hang_is_over() -> u8 {
    report("note that the agent goes on", remove_durably(Path::new(HANG)))
}

/// Resets the count of crash loops, in a child of process 1.
pub(super) fn forget() -> u8 {
    report("forget the crash loops", remove())
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

fn write(root: &Path, count: u32) -> io::Result<()> {
    write_durably(&below(root, FILE), &format!("{count}\n"))
}

/// Replaces a file durably: after a power cut it has either the old or the new content.
fn write_durably(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_extension("new");
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(&new, text)?;
    File::open(&new)?.sync_all()?;
    fs::rename(&new, file)?;
    sync_directory(file)
}

/// Removes a file durably. Writes nothing if the file does not exist.
fn remove_durably(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Ok(()) => sync_directory(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Syncs the directory of a file.
fn sync_directory(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Resets the count of crash loops, so that the next boot is not into safe mode.
pub(crate) fn remove() -> io::Result<()> {
    remove_durably(Path::new(FILE))
}

#[cfg(test)]
mod tests {
    use super::super::services::{Kind, Service};
    use super::*;
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
            if judge(failures, Duration::from_secs(60)) == Verdict::Reboot {
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
        assert_eq!(judge(failures(FAILURES - 1), Duration::ZERO), Verdict::Restart);
        assert_eq!(judge(failures(FAILURES), Duration::ZERO), Verdict::Reboot);
    }

    #[test]
    fn a_hang_counts_at_the_next_boot_unless_it_was_over_before() {
        let root = std::env::temp_dir().join(format!("nodlet-hang-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let hang = below(&root, HANG);
        assert_eq!(count_hang(&root, 1), 1, "the board did not hang");
        assert!(!is_counted(&root));
        write_durably(&hang, "").expect("it can be written");
        assert!(!is_counted(&root), "nothing is counted while the agent may go on");
        remove_durably(&hang).expect("it can be removed");
        assert_eq!(count_hang(&root, 1), 1, "the agent went on");
        write_durably(&hang, "").expect("it can be written");
        assert_eq!(count_hang(&root, 1), 2);
        assert!(is_counted(&root) && !hang.exists());
        assert_eq!(fs::read_to_string(below(&root, FILE)).expect("it was written"), "2\n");
        assert_eq!(count_hang(&root, 2), 2, "it is counted once");
        let _ = fs::remove_dir_all(&root);
    }

    #[test]
    fn safe_mode_is_for_crash_loops_and_for_the_kernel_argument() {
        let argument = "console=ttyS0 nodlet.safe panic=10";
        assert_eq!(safe_mode(2, 3, "console=ttyS0 nodlet.safety"), None);
        assert_eq!(safe_mode(3, 3, "").as_deref(), Some("the agent kept failing in 3 boots in a row"));
        assert_eq!(safe_mode(1, 1, "").as_deref(), Some("the agent kept failing in one boot"));
        assert_eq!(safe_mode(0, 3, argument).as_deref(), Some("the kernel argument nodlet.safe asks for it"));
    }
}
