//! The page through which the agent proves to process 1 that its loop makes progress.
//!
//! Process 1 of a board ([`Progress::create`]) feeds the hardware watchdog only while the agent
//! stores the time into this page. The agent ([`Progress::of_this_process`]) stores it from its
//! loop, as often as the page requests. No message is sent and nobody is woken: both look at their
//! own clock, at the same multiples of the interval, so that an idle processor wakes up once for
//! both. Read next: `board/src/init/watchdog.rs`, which decides what a missing store means.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nodlet_core::time::Instant;
use nodlet_kernel::memory::Mapping;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// The environment variable that names the page to an agent.
pub const VARIABLE: &str = "NODLET_PROGRESS";

/// The size of the mapping: the smallest page there is.
const BYTES: u64 = 4096;

nodlet_kernel::shared! {
    /// The header of the page.
    struct Page {
        /// Nanoseconds of CLOCK_MONOTONIC of the latest progress; 0 before the first.
        latest: AtomicU64,
        /// Milliseconds between two stores.
        every: AtomicU32,
    }
}

/// One mapping of the page.
pub struct Progress {
    page: Mapping<Page>,
    descriptor: OwnedFd,
}

impl Progress {
    /// Creates the page, in memory that nobody can shrink: a process that truncated it would end
    /// process 1 by SIGBUS. Allocates nothing.
    ///
    /// # Errors
    /// If the kernel has no memory or no descriptor left.
    pub fn create(every: Duration) -> io::Result<Progress> {
        let descriptor = memfd_create(c"progress", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&descriptor, BYTES)?;
        fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let progress = Progress::map(descriptor)?;
        progress.set_every(every);
        Ok(progress)
    }

    /// The page that [`VARIABLE`] names, if whoever started this agent wants to see progress.
    ///
    /// # Errors
    /// If that is no such page.
    pub(crate) fn of_this_process() -> io::Result<Option<Progress>> {
        match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Progress::open(&path).map(Some),
            None => Ok(None),
        }
    }

    fn open(path: &OsStr) -> io::Result<Progress> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path)?;
        if file.metadata()?.len() != BYTES {
            return Err(io::Error::other(format!("{} is not a file of {BYTES} bytes", path.display())));
        }
        Progress::map(File::into(file))
    }

    fn map(descriptor: OwnedFd) -> io::Result<Progress> {
        Ok(Progress { page: Mapping::of(descriptor.as_fd())?, descriptor })
    }

    /// The descriptor of the page, by which others find it in `/proc/PID/fd`.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Changes how often progress is to be stored.
    pub fn set_every(&self, every: Duration) {
        self.page.every.store(u32::try_from(every.as_millis()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// How often to store progress.
    fn every(&self) -> Duration {
        Duration::from_millis(self.page.every.load(Ordering::Relaxed).max(1).into())
    }

    /// Stores that the loop made progress.
    pub fn store(&self, now: Instant) {
        self.page.latest.store(now.0, Ordering::Relaxed);
    }

    /// When the loop last made progress; `None` before the first time.
    pub fn latest(&self) -> Option<Instant> {
        Some(self.page.latest.load(Ordering::Relaxed)).filter(|&latest| latest > 0).map(Instant)
    }

    /// The time until the next multiple of the interval.
    pub fn until_next(&self, now: Instant) -> Duration {
        until_next(now, self.every())
    }
}

/// The time from `now` until the next multiple of `every` since the boot: processes that wait for
/// the same interval wake up together.
pub fn until_next(now: Instant, every: Duration) -> Duration {
    let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
    Duration::from_nanos(every - now.0 % every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_seen_by_another_mapping_of_the_page() {
        let first = Progress::create(Duration::from_secs(30)).expect("the kernel has memory");
        let path = format!("/proc/self/fd/{}", first.descriptor());
        let second = Progress::open(OsStr::new(&path)).expect("it is a page");
        assert_eq!((second.every(), first.latest()), (Duration::from_secs(30), None));
        second.store(Instant(7));
        assert_eq!(first.latest(), Some(Instant(7)));
    }

    #[test]
    fn a_page_cannot_be_shrunk_and_another_file_is_rejected() {
        let page = Progress::create(Duration::from_secs(1)).expect("the kernel has memory");
        let path = format!("/proc/self/fd/{}", page.descriptor());
        assert!(OpenOptions::new().write(true).truncate(true).open(path).is_err());
        assert!(Progress::open(OsStr::new("/dev/null")).is_err());
        assert!(Progress::open(OsStr::new("/no/such/file")).is_err());
    }

    #[test]
    fn processes_that_wait_for_the_same_interval_wake_up_at_the_same_time() {
        let every = Duration::from_secs(30);
        let second = 1_000_000_000;
        for (now, seconds) in [(0, 30), (second, 29), (29 * second, 1), (30 * second, 30), (61 * second, 29)]
        {
            assert_eq!(until_next(Instant(now), every), Duration::from_secs(seconds));
        }
        assert_eq!(until_next(Instant(5), Duration::ZERO), Duration::from_nanos(1));
    }
}
