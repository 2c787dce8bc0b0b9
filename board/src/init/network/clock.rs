//! The board's wall clock. nodlet never waits for it: it is for display, logs and certificates.
//!
//! A board without a battery boots in 1970. [`begin`] sets its clock to the latest time that is certainly
//! past: that of the image, or of the last write to the data partition. This causes no writes while the board
//! runs: when the agent replaces a record, the directory gets the time of that write anyway. Only at
//! shutdown, [`stamp`] writes the time once.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};
use nodlet_kernel::own_file;
use nodlet_kernel::time::adjust_clock;

use super::sntp::{Correction, WallTime};
use crate::boot::console::say;

/// The file whose modification time is the time of the last shutdown.
const STAMP: &str = "/var/lib/nodlet/clock";

/// The directory whose modification time is the time of the agent's last write.
const RECORDS: &str = "/var/lib/nodlet/records";

/// Sets the clock forward if it is earlier than a time that is certainly past: `built`, in seconds, and the
/// stamp.
pub(in crate::init) fn begin(built: u64) {
    let floor = floor(Duration::from_secs(built), &[Path::new(STAMP), Path::new(RECORDS)]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if now >= floor {
        return;
    }
    match clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from_duration(floor)) {
        Ok(()) => say(format_args!("the clock was behind; it begins at {} s since 1970", floor.as_secs())),
        Err(error) => say(format_args!("failed to set the clock: {error}")),
    }
}

/// The latest of these times, all of which are past. What a link leads to was not written by nodlet, and may be of any
/// time.
fn floor(built: Duration, files: &[&Path]) -> Duration {
    let modified = |path: &&Path| {
        let modified = own_file::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
        modified.duration_since(SystemTime::UNIX_EPOCH).ok()
    };
    files.iter().filter_map(modified).fold(built, Duration::max)
}

/// Records the time of this shutdown.
pub(in crate::init) fn stamp() {
    stamp_at(Path::new(STAMP));
}

fn stamp_at(file: &Path) {
    // Without a data partition no file would survive the shutdown.
    if file.parent().is_some_and(Path::is_dir) {
        let stamped = own_file::open_with(file, File::options().write(true).create(true))
            .and_then(|stamp| stamp.set_modified(SystemTime::now()));
        if let Err(error) = stamped {
            say(format_args!("failed to write the time of the shutdown: {error}"));
        }
    }
}

/// The time of the wall clock.
pub(super) fn now() -> WallTime {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from).unwrap_or_default();
    WallTime { seconds: now.as_secs(), micros: now.subsec_micros() }
}

/// Corrects the clock, and tells the kernel that the clock is right, so that it updates a battery-backed
/// clock.
pub(super) fn correct(correction: Correction) -> io::Result<()> {
    match correction {
        Correction::Step(micros) => {
            let now = clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from)?;
            let by = Duration::from_micros(micros.unsigned_abs());
            let then = if micros < 0 { now.saturating_sub(by) } else { now + by };
            clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from_duration(then))?;
        }
        Correction::Slew(micros) => adjust_clock(|change| {
            change.modes = libc::ADJ_OFFSET_SINGLESHOT;
            change.offset = micros as _;
        })?,
    }
    // Error bounds in microseconds, which the kernel increases until the next response.
    Ok(adjust_clock(|right| {
        right.modes = libc::ADJ_STATUS | libc::ADJ_MAXERROR | libc::ADJ_ESTERROR;
        right.maxerror = 500_000;
        right.esterror = 100_000;
    })?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_stamp_is_not_written_through_what_is_in_its_place() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path();
        let (stamp, target) = (directory.join("clock"), directory.join("target"));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &stamp).unwrap();
        stamp_at(&stamp);
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        fs::remove_file(&stamp).unwrap();
        nix::unistd::mkfifo(&stamp, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let of = stamp.clone();
        std::thread::spawn(move || {
            stamp_at(&of);
            sender.send(()).unwrap();
        });
        receiver.recv_timeout(Duration::from_secs(10)).expect("it waits for no reader");
    }

    #[test]
    fn the_clock_begins_after_the_image_the_last_record_and_the_last_shutdown() {
        let directory = std::env::temp_dir().join(format!("nodlet-clock-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let (stamp, records) = (directory.join("clock"), directory.join("records"));
        let at = |seconds: u64| Duration::from_secs(seconds);
        assert_eq!(floor(at(1_700_000_000), &[&stamp, &records]), at(1_700_000_000));
        // Without a data partition nothing is written.
        stamp_at(&stamp);
        assert!(!directory.exists());
        fs::create_dir_all(&records).unwrap();
        let set = |path: &Path, seconds: u64| {
            File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH + at(seconds)).unwrap();
        };
        set(&records, 1_800_000_000);
        assert_eq!(floor(at(1_700_000_000), &[&stamp, &records]), at(1_800_000_000));
        assert_eq!(floor(at(1_900_000_000), &[&stamp, &records]), at(1_900_000_000));
        let before = SystemTime::now();
        stamp_at(&stamp);
        let stamped = fs::metadata(&stamp).unwrap().modified().unwrap();
        assert!(stamped + at(1) > before, "{stamped:?}");
        set(&stamp, 1_850_000_000);
        assert_eq!(floor(at(1_700_000_000), &[&stamp, &records]), at(1_850_000_000));
        // The target of a link may have a time that is not past.
        let (link, target) = (directory.join("link"), directory.join("target"));
        fs::write(&target, "").unwrap();
        set(&target, 2_000_000_000);
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(floor(at(1_700_000_000), &[&stamp, &link]), at(1_850_000_000));
        // Replacing a record sets the directory's time.
        fs::write(records.join("new"), "").unwrap();
        fs::rename(records.join("new"), records.join("record")).unwrap();
        let replaced = fs::metadata(&records).unwrap().modified().unwrap();
        assert!(replaced + at(1) > before);
        fs::remove_dir_all(&directory).unwrap();
    }
}
