//! Waits for a file to be put into its place, as the agent's socket and the state of updates are: each
//! is renamed, and inotify reports that.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Where there is nothing to watch, and for what nobody reports.
const UNWATCHED: Duration = Duration::from_millis(500);

/// An agent that does not answer is asked again after so long, though no other was started.
const SLOW: Duration = Duration::from_secs(5);

/// Changes of a directory since this value was made.
pub(crate) struct Watch(Option<Inotify>);

impl Watch {
    /// Watches a directory, or the nearest one above it that exists.
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

    /// Waits for an agent to be started, but not for long: one that is only slow reports nothing.
    pub(crate) fn wait_for_agent(self, end: Instant) -> bool {
        self.wait(end.min(Instant::now() + SLOW));
        Instant::now() < end
    }

    /// Waits for a change, or until `end`; whether there is time left.
    pub(crate) fn wait(self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        match &self.0 {
            Some(inotify) => {
                let mut changed = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
                // Rounded up: what ends too early is asked again at once.
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
    fn a_file_that_is_put_into_its_place_ends_the_wait() {
        let directory = std::env::temp_dir().join(format!("nodlet-watch-{}", std::process::id()));
        let inner = directory.join("run/nodlet");
        std::fs::create_dir_all(&directory).expect("a scratch directory");
        let long = || Instant::now() + Duration::from_secs(60);
        // The directory itself is made first.
        let watch = Watch::of(&inner);
        std::fs::create_dir_all(&inner).expect("made");
        assert!(watch.wait(long()));
        // What took place before the wait counts.
        let watch = Watch::of(&inner);
        std::fs::write(directory.join("new"), "x").expect("written");
        std::fs::rename(directory.join("new"), inner.join("file")).expect("renamed");
        assert!(watch.wait(long()));
        // And nothing is nothing.
        let begun = Instant::now();
        assert!(!Watch::of(&inner).wait(begun + Duration::from_millis(80)));
        assert!(begun.elapsed() >= Duration::from_millis(80));
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
