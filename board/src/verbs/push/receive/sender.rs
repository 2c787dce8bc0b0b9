//! The limits for senders of pushes: how many at a time, and the least rate of each.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nodlet_kernel::own_file;

/// The most processes at a time that receive, or reject a sender. One of them carries out a push.
const AT_A_TIME: usize = 8;

/// Takes one of [`AT_A_TIME`] places, until it is dropped; `None` if all are taken. The places are files in
/// `directory`, which does not survive a reboot.
pub(super) fn place(directory: &Path) -> Option<Flock<File>> {
    (0..AT_A_TIME).find_map(|number| {
        let path = directory.join(format!("push.{number}"));
        let file = own_file::open_with(&path, File::options().create(true).append(true)).ok()?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
    })
}

/// The span of waiting for a sender in which at least [`LEAST`] bytes must arrive.
const SPAN: Duration = Duration::from_secs(300);

/// Bytes that must arrive in each [`SPAN`]: a line of 2 kbit/s is fast enough. A sender that only keeps the
/// line open would prevent others from pushing.
const LEAST: u64 = 64 * 1024;

/// A reader that fails with [`io::ErrorKind::TimedOut`] if the sender is too slow.
pub(super) struct Paced<R> {
    from: R,
    rate: Rate,
}

impl<R> Paced<R> {
    pub(super) fn new(from: R) -> Paced<R> {
        Paced { from, rate: Rate::default() }
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let length = self.from.read(buffer)?;
        if self.rate.is_enough(length as u64, begun.elapsed()) {
            Ok(length)
        } else {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the sender is too slow: less than {} KiB arrived in {SPAN:?}", LEAST / 1024),
            ))
        }
    }
}

/// The waiting time and the bytes of the current span.
#[derive(Default)]
struct Rate {
    waited: Duration,
    bytes: u64,
}

impl Rate {
    /// Counts bytes and the time waited for them. Returns `false` at the end of a span with too few bytes.
    fn is_enough(&mut self, bytes: u64, waited: Duration) -> bool {
        self.bytes += bytes;
        self.waited += waited;
        if self.waited < SPAN {
            return true;
        }
        std::mem::take(self).bytes >= LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_sender_of_a_byte_now_and_then_is_too_slow_and_a_slow_line_is_not() {
        let lasts = |bytes: u64, every: Duration| {
            let mut rate = Rate::default();
            (1..10_000).find(|_| !rate.is_enough(bytes, every))
        };
        assert_eq!(lasts(1, SECOND * 59), Some(6));
        assert_eq!(lasts(250, SECOND), None, "2 kbit/s");
        assert_eq!(lasts(100, SECOND), Some(300));
        // A long pause after many bytes, as while the sender compares blocks.
        let mut rate = Rate::default();
        assert!(rate.is_enough(LEAST, SECOND) && rate.is_enough(1, SPAN));
        assert!(!rate.is_enough(1, SPAN));
    }

    #[test]
    fn places_are_bounded_and_free_again_when_their_process_ends() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = scratch.path();
        let mut taken: Vec<_> = (0..AT_A_TIME).map(|_| place(directory)).collect();
        assert!(taken.iter().all(Option::is_some) && place(directory).is_none());
        taken.pop();
        assert!(place(directory).is_some());
    }
}
