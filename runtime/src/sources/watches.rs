//! The watches of the manifest directories, of the ways to them, and of what links in them lead through.

use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, WatchDescriptor};
use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_host::watches::{News, Watcher, Watches};

use super::RESCAN_INTERVAL;

/// The number of links that the kernel follows in a path.
const LINKS: usize = 40;

/// The watches, which each scan makes anew and the kernel keeps meanwhile.
pub(super) struct DirectoryWatches {
    /// The agent's instance of inotify.
    pub(super) all: Watches,
    /// `None` while the kernel provides no instance.
    watcher: Option<Watcher>,
    /// The directory of each watch.
    directories: SortedMap<WatchDescriptor, PathBuf>,
    /// The watches that the present scan needs.
    needed: SortedSet<WatchDescriptor>,
    /// The links through which manifests were reached.
    links: SortedSet<PathBuf>,
    /// Whether the last scan could not watch or read something.
    is_incomplete: bool,
    /// Whether the failure to watch has been logged.
    is_logged: bool,
}

impl DirectoryWatches {
    pub(super) fn new(all: Watches) -> DirectoryWatches {
        DirectoryWatches {
            all,
            watcher: None,
            directories: SortedMap::new(),
            needed: SortedSet::new(),
            links: SortedSet::new(),
            is_incomplete: false,
            is_logged: false,
        }
    }

    /// Begins a scan.
    pub(super) fn begin(&mut self) {
        self.is_incomplete = false;
        (self.links, self.needed) = (SortedSet::new(), SortedSet::new());
        if self.watcher.is_none() {
            match self.all.watcher() {
                Ok(watcher) => self.watcher = Some(watcher),
                Err(error) => self.cannot_watch(&error.to_string()),
            }
        }
    }

    /// Ends a scan: removes watches that are not needed any more.
    pub(super) fn end(&mut self) {
        self.directories.retain(|watch, _| {
            let is_needed = self.needed.contains(watch);
            if !is_needed && let Some(watcher) = &self.watcher {
                watcher.remove(*watch);
            }
            is_needed
        });
        self.is_logged &= self.is_incomplete;
    }

    /// Waits for an event; `None` while there is no instance of inotify.
    pub(super) fn changed(&self) -> Option<impl Future<Output = ()> + use<>> {
        self.watcher.as_ref().map(Watcher::changed)
    }

    /// Takes the events; `None` while there is no instance of inotify.
    pub(super) fn take(&self) -> Option<News> {
        self.watcher.as_ref().map(Watcher::take)
    }

    /// The directory of a watch; `None` of one that was removed, which sends a last event (IN_IGNORED).
    pub(super) fn directory(&self, watch: WatchDescriptor) -> Option<&PathBuf> {
        self.directories.get(&watch)
    }

    /// Whether a manifest was reached through this link.
    pub(super) fn is_link(&self, path: &Path) -> bool {
        self.links.contains(path)
    }

    /// Records that something could not be read.
    pub(super) fn cannot_read(&mut self) {
        self.is_incomplete = true;
    }

    /// Whether something could not be watched or read.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Watches a directory. Returns whether it exists.
    pub(super) fn watch(&mut self, directory: &Path) -> bool {
        let Some(watcher) = &self.watcher else { return directory.is_dir() };
        let what = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        match watcher.add(directory, what) {
            Ok(watch) => {
                self.needed.insert(watch);
                self.directories.insert(watch, directory.to_owned());
                true
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => false,
            Err(error @ (Errno::ENOSPC | Errno::ENOMEM)) => {
                self.cannot_watch(&format!("{}: {}", directory.display(), error.desc()));
                // The directory exists, though its changes are not reported.
                true
            }
            Err(error) => {
                log::warn!("failed to watch {}: {}", directory.display(), error.desc());
                false
            }
        }
    }

    /// Watches a directory, which need not exist, and the way to it.
    pub(super) fn watch_way_to(&mut self, path: &Path) {
        watch_way_to(path, |directory| self.watch(directory));
    }

    /// Watches all that a link in a manifest directory leads through: each further link on its way, and the file at its
    /// end, may change without an event for the manifest directory.
    pub(super) fn watch_links(&mut self, mut path: PathBuf) {
        for _ in 0..LINKS {
            let mut ways: Vec<&Path> = path.ancestors().collect();
            ways.reverse();
            let link = ways.into_iter().find_map(|way| Some((way, fs::read_link(way).ok()?)));
            let at = link.as_ref().map_or(&*path, |(link, _)| link);
            // By this path the directory is known, however the link names it.
            let Some(parent) = at.parent().and_then(|parent| fs::canonicalize(parent).ok()) else { return };
            self.watch(&parent);
            let Some((link, target)) = link else { return };
            self.links.extend(link.file_name().map(|name| parent.join(name)));
            let mut next = parent.join(target);
            next.extend(path.strip_prefix(link).into_iter().flatten());
            path = next;
        }
    }

    /// Records that something cannot be watched, and logs it unless the previous scan did.
    fn cannot_watch(&mut self, why: &str) {
        if !self.is_logged {
            log::warn!(
                "failed to watch the manifest directories: {why} (see fs.inotify.max_user_instances and \
                 fs.inotify.max_user_watches); until that is possible they are read every {} s",
                RESCAN_INTERVAL.as_secs()
            );
        }
        (self.is_incomplete, self.is_logged) = (true, true);
    }
}

/// Watches `path` and its nearest existing parent, so that the creation, removal and replacement of the directory
/// are noticed. `watch` returns whether a directory exists.
pub(super) fn watch_way_to(path: &Path, mut watch: impl FnMut(&Path) -> bool) {
    // At most one attempt for each directory of the path, so that the loop ends.
    for _ in path.ancestors() {
        let Some(nearest) = path.ancestors().skip(1).find(|parent| watch(parent)) else { return };
        if watch(path) {
            return;
        }
        // A directory that was created before its parent was watched causes no event.
        let next = path.ancestors().find(|above| above.parent() == Some(nearest));
        if !next.is_some_and(Path::is_dir) {
            return;
        }
    }
}
