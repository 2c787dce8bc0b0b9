//! Reads the manifest directories, and tells the registry what their files hold.
//! inotify says when to look again: an idle directory costs nothing. Only what the
//! kernel has no watch for, and what cannot be read, is looked at from time to time.
//!
//! [`ManifestDirectories::look`] waits for flash and is called on the storage thread.
//! [`ManifestDirectories::tell`] parses what was read and is called in the loop.
//!
//! Nothing here decides about objects: [`nodlet_registry`] owns them. Read next:
//! `registry/src/sources.rs`, whose word counts; `engine/manifests.rs`, which has the
//! directories looked at; `engine/reconcile.rs`, which tells the core of the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use nodlet_core::time::Instant;
use nodlet_kube::manifest::{self, Validation};
use nodlet_registry::{MAX_BYTES, MAX_FILES, Size, Sources};

/// How often what cannot be watched is looked at.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How long a file that was moved to `NAME~` is taken for one that is written anew:
/// so vim and emacs save, and the pod is not to end for it.
pub(crate) const SAVED_WITHIN: Duration = Duration::from_secs(1);

/// Bytes of manifests after which one part of a look ends: they are in memory until the loop parses them.
const PART_BYTES: usize = 64 << 10;

/// Time after which one part of a look ends, so that writes do not wait for a whole look on a slow card.
const PART_TIME: Duration = Duration::from_millis(50);

/// The file's first [`MAX_BYTES`] and one more. What `stat` says holds no longer by now, or
/// never did: a link may lead to a file of /proc that has no end, or that waits for its news.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The manifest directories, and what was found of their files when they were last read.
pub(crate) struct ManifestDirectories {
    /// `None` while the kernel gives none.
    inotify: Option<Inotify>,
    /// Something could not be watched the last time.
    blind: bool,
    /// And that is in the log.
    said_blind: bool,
    /// What each watch is for: a directory whose entries matter.
    watches: BTreeMap<WatchDescriptor, PathBuf>,
    directories: Vec<Directory>,
    /// The look that is under way.
    look: Option<Look>,
    node: String,
    /// Of whose files the warnings were shown to somebody else.
    warned: Option<PathBuf>,
}

struct Directory {
    path: PathBuf,
    files: BTreeMap<OsString, ReadFile>,
}

#[derive(Default)]
struct ReadFile {
    /// Device, inode, size and change time: what differs when it was written.
    stamp: Option<Stamp>,
    /// When it was found to be moved to its `NAME~`.
    aside: Option<Instant>,
    /// It is there and could not be read, which nobody tells when it can be.
    unread: bool,
    /// The last look found the file.
    is_there: bool,
}

/// A look that has begun.
#[derive(Default)]
struct Look {
    /// The directory that is being read.
    index: usize,
    /// Files of the directory that are not read yet, in descending order; `None` before it was listed.
    names: Option<Vec<OsString>>,
    /// The watches that are still needed.
    kept: BTreeSet<WatchDescriptor>,
}

/// What a look found, in the order in which the registry is to be told.
pub(crate) enum Found {
    /// A directory, and why it cannot be read, if so.
    Directory(usize, Option<String>),
    /// A file of a directory.
    File(usize, OsString, FoundFile),
}

/// What a look found of a file.
pub(crate) enum FoundFile {
    /// It was moved to its `NAME~`, and may come back.
    Aside,
    /// It came back as it was.
    Present,
    /// It is gone.
    Gone,
    /// It is new, or changed.
    Contents(Vec<u8>),
    /// Why its contents cannot be had.
    Unread(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl ManifestDirectories {
    /// Watches `directories` from the first [`ManifestDirectories::look`] on; none needs to exist.
    pub(crate) fn new(directories: Vec<PathBuf>, node: &str) -> ManifestDirectories {
        let directories = directories.into_iter().map(|path| Directory { path, files: BTreeMap::new() });
        ManifestDirectories {
            inotify: None,
            blind: false,
            said_blind: false,
            watches: BTreeMap::new(),
            directories: directories.collect(),
            look: None,
            node: node.to_owned(),
            warned: None,
        }
    }

    /// Leaves warnings about the files of `directory` out of the log: they hold
    /// what was applied, with its defaults, and whoever applied it was warned.
    pub(crate) fn without_warnings_of(self, directory: PathBuf) -> ManifestDirectories {
        ManifestDirectories { warned: Some(directory), ..self }
    }

    /// Readable when something may have changed; `None` while the kernel gives nothing that tells.
    ///
    /// # Errors
    /// If this process has no descriptor to spare.
    pub(crate) fn watch_descriptor(&self) -> io::Result<Option<OwnedFd>> {
        self.inotify.as_ref().map(|inotify| inotify.as_fd().try_clone_to_owned()).transpose()
    }

    /// Whether something changes that nobody tells, for the kernel has no watch to spare: it is
    /// to be read again from time to time, which also tries to watch it again.
    pub(crate) fn is_blind(&self) -> bool {
        self.blind
    }

    /// Takes the kernel's news. `true` if [`ManifestDirectories::look`] is worth its while.
    pub(crate) fn drain(&mut self) -> bool {
        let mut changed = false;
        let Some(inotify) = &self.inotify else { return true };
        loop {
            match inotify.read_events() {
                Ok(events) => {
                    changed |= events.iter().any(|event| {
                        event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)
                            || self.concerns_us(event.wd, event.name.as_deref())
                                && !self.is_being_written(event)
                    });
                }
                Err(Errno::EAGAIN) => return changed,
                Err(error) => {
                    log::warn!("failed to read inotify events: {error}");
                    return true;
                }
            }
        }
    }

    /// In a directory above ours, only the way to ours matters; elsewhere, every manifest.
    fn concerns_us(&self, watch: WatchDescriptor, name: Option<&OsStr>) -> bool {
        // A watch that is not ours any more has its last word to say (IN_IGNORED).
        let Some(directory) = self.watches.get(&watch) else { return false };
        let Some(name) = name else { return true };
        let below = |path: &Path| path != directory && path.starts_with(directory);
        if self.directories.iter().any(|ours| below(&ours.path)) {
            let path = directory.join(name);
            return self.directories.iter().any(|ours| ours.path.starts_with(&path));
        }
        // `..data` is what an atomic writer of a mounted volume replaces.
        is_manifest_name(name) || name == "..data"
    }

    /// A file that was just made is read when it is closed; until then its text is not all
    /// there. Links and directories are whole at once, and a second name of a file too.
    fn is_being_written(&self, event: &InotifyEvent) -> bool {
        use std::os::unix::fs::MetadataExt;
        if !event.mask.contains(AddWatchFlags::IN_CREATE) {
            return false;
        }
        let (Some(directory), Some(name)) = (self.watches.get(&event.wd), &event.name) else { return false };
        fs::symlink_metadata(directory.join(name))
            .is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
    }

    /// Reads what changed since the last look, one part of it: other jobs run between two parts. Pass `found`
    /// to [`ManifestDirectories::tell`]. `true` if another part follows.
    pub(crate) fn look(&mut self, now: Instant, found: &mut Vec<Found>) -> bool {
        let (begun, mut bytes) = (nodlet_host::clock::instant(), 0);
        let mut look = self.look.take().unwrap_or_else(|| {
            self.blind = false;
            self.open();
            Look::default()
        });
        while let Some(directory) = self.directories.get_mut(look.index) {
            if bytes >= PART_BYTES || nodlet_host::clock::instant().since(begun) >= PART_TIME {
                self.look = Some(look);
                return true;
            }
            if let Some(name) = look.names.as_mut().and_then(Vec::pop) {
                let file = self.read_file(look.index, &name, &mut look.kept);
                if let Some(FoundFile::Contents(contents)) = &file {
                    bytes += contents.len();
                }
                found.extend(file.map(|file| Found::File(look.index, name, file)));
                continue;
            }
            let unread = if look.names.is_some() {
                directory.end(look.index, now, found);
                None
            } else {
                let path = directory.path.clone();
                watch_way_to(&path, |directory| self.watch(directory, &mut look.kept));
                match self.directories[look.index].begin(look.index, found) {
                    Ok(names) => {
                        look.names = Some(names);
                        continue;
                    }
                    Err(error) => Some(format!("failed to read {}: {error}", path.display())),
                }
            };
            let files = &self.directories[look.index].files;
            self.blind |= unread.is_some() || files.values().any(|file| file.unread);
            found.push(Found::Directory(look.index, unread));
            (look.index, look.names) = (look.index + 1, None);
        }
        self.watches.retain(|watch, _| {
            let keep = look.kept.contains(watch);
            if !keep && let Some(inotify) = &self.inotify {
                // A watch whose directory is gone was dropped by the kernel already.
                let _ = inotify.rm_watch(*watch);
            }
            keep
        });
        self.said_blind &= self.blind;
        false
    }

    /// Whether a look has begun of which another part follows.
    pub(crate) fn is_looking(&self) -> bool {
        self.look.is_some()
    }

    /// Whether another look is needed [`SAVED_WITHIN`] after this one, to see whether a file came back.
    pub(crate) fn is_any_aside(&self) -> bool {
        let mut files = self.directories.iter().flat_map(|directory| directory.files.values());
        files.any(|file| file.aside.is_some())
    }

    /// Parses the files that one part of a look has read, and tells the registry the result.
    pub(crate) fn tell(&mut self, found: Vec<Found>, sources: &mut Sources) {
        let mut used: Option<(usize, Size)> = None;
        for found in found {
            match found {
                Found::Directory(index, message) => {
                    // Told once for each reason.
                    if let Some(refusal) = sources.set_unreadable(index, message) {
                        log::error!("{}; its pods stay unchanged", refusal.message);
                    }
                }
                Found::File(index, name, FoundFile::Gone) => sources.remove(index, &name),
                Found::File(index, name, FoundFile::Aside) => sources.set_aside(index, &name, true),
                Found::File(index, name, FoundFile::Present) => sources.set_aside(index, &name, false),
                Found::File(index, name, FoundFile::Unread(message)) => {
                    sources.set_aside(index, &name, false);
                    refuse(sources, (index, &name), message);
                }
                Found::File(index, name, FoundFile::Contents(bytes)) => {
                    // What goes with this look has given its room back already.
                    let used = match &mut used {
                        Some((of, used)) if *of == index => used,
                        other => &mut other.insert((index, sources.used(index))).1,
                    };
                    sources.set_aside(index, &name, false);
                    self.tell_contents((index, &name), &bytes, sources, used);
                }
            }
        }
    }

    fn tell_contents(
        &mut self,
        (index, name): (usize, &OsStr),
        bytes: &[u8],
        sources: &mut Sources,
        used: &mut Size,
    ) {
        let path = self.directories[index].path.join(name);
        let contents = manifest::contents(&path.to_string_lossy(), bytes, Validation::Strict, &self.node);
        let put = contents.map_err(|error| error.to_string()).and_then(|contents| {
            sources.put(index, name, contents, used).map_err(|why| {
                // Looked at again whenever something changed: then there may be room.
                if let Some(file) = self.directories[index].files.get_mut(name) {
                    file.stamp = None;
                }
                format!("{}: {why}; remove some files", path.display())
            })
        });
        match put {
            Ok(()) => {
                let warned = self.warned.as_ref().is_some_and(|directory| path.starts_with(directory));
                for warning in sources.warnings(index, name).filter(|_| !warned) {
                    log::warn!("{}: {warning}", path.display());
                }
            }
            // An empty file is one that somebody is about to write.
            Err(message) if bytes.is_empty() => drop(sources.refuse(index, name, message)),
            Err(message) => refuse(sources, (index, name), message),
        }
    }

    fn open(&mut self) {
        if self.inotify.is_some() || self.directories.is_empty() {
            return;
        }
        match Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC) {
            Ok(inotify) => self.inotify = Some(inotify),
            Err(error) => self.cannot_watch(error.desc()),
        }
    }

    fn watch(&mut self, directory: &Path, kept: &mut BTreeSet<WatchDescriptor>) -> bool {
        let Some(inotify) = &self.inotify else { return directory.is_dir() };
        let what = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        match inotify.add_watch(directory, what) {
            Ok(watch) => {
                kept.insert(watch);
                self.watches.insert(watch, directory.to_owned());
                true
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => false,
            Err(error @ (Errno::ENOSPC | Errno::ENOMEM)) => {
                self.cannot_watch(&format!("{}: {}", directory.display(), error.desc()));
                // It is there, though nobody tells what becomes of it.
                true
            }
            Err(error) => {
                log::warn!("failed to watch {}: {}", directory.display(), error.desc());
                false
            }
        }
    }

    /// Said when it begins, and not at each look.
    fn cannot_watch(&mut self, why: &str) {
        if !self.said_blind {
            log::warn!(
                "failed to watch the manifest directories: {why} (see fs.inotify.max_user_instances and \
                 fs.inotify.max_user_watches); until that is possible they are read every {} s",
                LOOK_AGAIN.as_secs()
            );
        }
        (self.blind, self.said_blind) = (true, true);
    }

    /// Reads a file if it changed.
    fn read_file(
        &mut self,
        index: usize,
        name: &OsStr,
        kept: &mut BTreeSet<WatchDescriptor>,
    ) -> Option<FoundFile> {
        let directory = self.directories[index].path.clone();
        let path = directory.join(name);
        if let Ok(target) = fs::read_link(&path) {
            // What the link leads to may change without a word from this directory.
            let target = directory.join(target);
            if let Some(parent) = target.parent() {
                self.watch(parent, kept);
            }
            if let Some(parent) = fs::canonicalize(&path).ok().as_deref().and_then(Path::parent) {
                self.watch(parent, kept);
            }
        }
        let metadata = fs::metadata(&path);
        match &metadata {
            Ok(metadata) if !metadata.is_file() => return None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Ok(_) | Err(_) => {}
        }
        let file = self.directories[index].files.entry(name.to_owned()).or_default();
        file.is_there = true;
        let before = file.stamp;
        let read = metadata.and_then(|metadata| {
            let came_back = file.aside.take().map(|_| FoundFile::Present);
            file.unread = false;
            let stamp = Stamp::of(&metadata);
            if file.stamp == Some(stamp) {
                return Ok(came_back);
            }
            file.stamp = Some(stamp);
            let bytes = if stamp.size > MAX_BYTES { None } else { Some(read(&path)?) };
            Ok(Some(match bytes.filter(|bytes| bytes.len() as u64 <= MAX_BYTES) {
                Some(bytes) => FoundFile::Contents(bytes),
                None => FoundFile::Unread(format!(
                    "{}: is larger than 1 MiB, which no manifest needs: split it",
                    path.display()
                )),
            }))
        });
        read.unwrap_or_else(|error| file.could_not_be_read(before, &path, &error))
    }
}

impl Directory {
    /// Starts a look at this directory. Returns the names of its files in descending order.
    ///
    /// # Errors
    /// It cannot be read. What is known of its files stays.
    fn begin(&mut self, index: usize, found: &mut Vec<Found>) -> io::Result<Vec<OsString>> {
        // No more of them are kept than are read, whatever else lies there.
        let (mut names, mut passed_over) = (BTreeSet::new(), 0_usize);
        match fs::read_dir(&self.path) {
            Ok(entries) => {
                for entry in entries {
                    let name = entry?.file_name();
                    if !is_manifest_name(&name) {
                        continue;
                    }
                    names.insert(name);
                    if names.len() > MAX_FILES {
                        names.pop_last();
                        passed_over += 1;
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Not "gone": its pods stay until it can be read again.
            Err(error) => return Err(error),
        }
        if passed_over > 0 {
            log::warn!(
                "{} has {} files; only the first {MAX_FILES} are read",
                self.path.display(),
                MAX_FILES + passed_over
            );
        }
        for (name, file) in &mut self.files {
            file.is_there = false;
            if !names.contains(name) {
                found.push(Found::File(index, name.clone(), FoundFile::Aside));
            }
        }
        Ok(names.into_iter().rev().collect())
    }

    /// Ends a look at this directory: forgets removed files, except those that may come back.
    fn end(&mut self, index: usize, now: Instant, found: &mut Vec<Found>) {
        let Directory { path, files } = self;
        files.retain(|name, file| {
            if file.is_there {
                return true;
            }
            let since = *file.aside.get_or_insert(now);
            let may_return = now.since(since) < SAVED_WITHIN && file.is_aside(path, name);
            if !may_return {
                found.push(Found::File(index, name.clone(), FoundFile::Gone));
            }
            may_return
        });
    }
}

/// Tells the registry why a file is refused, and the log if that is new.
fn refuse(sources: &mut Sources, (index, name): (usize, &OsStr), message: String) {
    if let Some(refusal) = sources.refuse(index, name, message) {
        log::error!("{}", refusal.message);
    }
}

impl ReadFile {
    /// Records that the file could not be read. A file that was removed after `stat` found it is gone, which is no
    /// error; `before` is the stamp of the contents that were read last.
    fn could_not_be_read(
        &mut self,
        before: Option<Stamp>,
        path: &Path,
        error: &io::Error,
    ) -> Option<FoundFile> {
        if error.kind() == io::ErrorKind::NotFound {
            (self.stamp, self.is_there) = (before, false);
            return None;
        }
        (self.stamp, self.unread) = (None, true);
        Some(FoundFile::Unread(format!("failed to read {}: {error}", path.display())))
    }

    /// Whether it is `NAME~` now, and not merely an older backup that is so called.
    fn is_aside(&self, directory: &Path, name: &OsStr) -> bool {
        let mut backup = name.to_owned();
        backup.push("~");
        let found = fs::metadata(directory.join(backup)).map(|metadata| Stamp::of(&metadata));
        matches!((self.stamp, found), (Some(read), Ok(found))
            if (read.device, read.inode) == (found.device, found.inode))
    }
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Stamp {
        use std::os::unix::fs::MetadataExt;
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Watches `path` and its nearest parent that exists, so that a directory that appears,
/// vanishes or is replaced is noticed. `watch` says whether there is such a directory.
fn watch_way_to(path: &Path, mut watch: impl FnMut(&Path) -> bool) {
    // Once for each directory on the way at most: one that cannot be watched is not asked for ever.
    for _ in path.ancestors() {
        let Some(nearest) = path.ancestors().skip(1).find(|parent| watch(parent)) else { return };
        if watch(path) {
            return;
        }
        // What was made below the nearest parent before that was watched is told by nobody.
        let next = path.ancestors().find(|above| above.parent() == Some(nearest));
        if !next.is_some_and(Path::is_dir) {
            return;
        }
    }
}

/// Any extension will do, as under a kubelet; hidden files and what editors
/// leave beside a file while they write it are passed over.
fn is_manifest_name(name: &OsStr) -> bool {
    let name = name.as_bytes();
    !(name.starts_with(b".") || name.ends_with(b"~") || (name.starts_with(b"#") && name.ends_with(b"#")))
}

#[cfg(test)]
mod tests;
