//! Waits for a file to be created or replaced, such as the agent's socket or the state of updates. Each is
//! renamed into place, which inotify reports.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// The polling interval if a directory cannot be watched.
const UNWATCHED: Duration = Duration::from_millis(500);

/// How long to wait for the start of another agent before an agent that does not respond is asked again.
const SLOW: Duration = Duration::from_secs(5);

/// A watch of changes of a directory since this value was created.
pub(crate) struct Watch(Option<Inotify>);

impl Watch {
    /// Watches a directory, or its nearest existing ancestor.
    pub(crate) fn of(directory: &Path) -> Watch {
        let watched = || -> nix::Result<Inotify> {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
            let events = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE;
            let nearest =
                directory.ancestors().find(|directory| directory.is_dir()).unwrap_or(Path::new("/"));
            inotify.add_watch(nearest, events)?;
            Ok(inotify)
        };
        Watch(watched().ok())
    }

    /// Waits for the start of an agent, but not for long: an agent that is merely slow causes no event.
    pub(crate) fn wait_for_agent(self, end: Instant) -> bool {
        self.wait(end.min(Instant::now() + SLOW));
        Instant::now() < end
    }

    /// Waits for a change, at most until `end`. Returns whether there is time left.
    pub(crate) fn wait(self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        match &self.0 {
            Some(inotify) => {
                let mut changed = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
                // Rounded up: a caller that is woken too early would ask again at once.
                let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
                let _ = poll(&mut changed, left);
            }
            None => std::thread::sleep(left.min(UNWATCHED)),
        }
        Instant::now() < end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_renamed_to_the_awaited_name_ends_the_wait() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = scratch.path();
        let inner = directory.join("run/nodlet");
        let long = || Instant::now() + Duration::from_secs(60);
        // The directory itself is created first.
        let watch = Watch::of(&inner);
        std::fs::create_dir_all(&inner).expect("made");
        assert!(watch.wait(long()));
        // A change before the wait counts.
        let watch = Watch::of(&inner);
        std::fs::write(directory.join("new"), "x").expect("written");
        std::fs::rename(directory.join("new"), inner.join("file")).expect("renamed");
        assert!(watch.wait(long()));
        // Without a change the wait times out.
        let begun = Instant::now();
        assert!(!Watch::of(&inner).wait(begun + Duration::from_millis(80)));
        assert!(begun.elapsed() >= Duration::from_millis(80));
    }
}
