//! Reads the manifest directories, and tells the registry what their files hold.
//! inotify says when to look again: an idle directory costs nothing. Only what the
//! kernel has no watch for, and what cannot be read, is looked at from time to time.
//!
//! It decides nothing about objects: [`nodlet_registry`] owns them. Read next:
//! `registry/sources.rs`, whose word counts; `engine/wants.rs`, which tells the core
//! of the difference between two readings.

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
pub const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How long a file that was moved to `NAME~` is taken for one that is written anew:
/// so vim and emacs save, and the pod is not to end for it.
pub const SAVED_WITHIN: Duration = Duration::from_secs(1);

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
pub struct ManifestDirectories {
    /// `None` while the kernel gives none.
    inotify: Option<Inotify>,
    /// Somebody waits for it.
    heard: bool,
    /// Something could not be watched the last time.
    blind: bool,
    /// And that is in the log.
    said_blind: bool,
    /// What each watch is for: a directory whose entries matter.
    watches: BTreeMap<WatchDescriptor, PathBuf>,
    directories: Vec<Directory>,
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
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl ManifestDirectories {
    /// Watches `directories` from the first [`ManifestDirectories::read`] on; none needs to exist.
    pub fn new(directories: Vec<PathBuf>, node: &str) -> ManifestDirectories {
        let directories = directories.into_iter().map(|path| Directory { path, files: BTreeMap::new() });
        ManifestDirectories {
            inotify: None,
            heard: false,
            blind: false,
            said_blind: false,
            watches: BTreeMap::new(),
            directories: directories.collect(),
            node: node.to_owned(),
            warned: None,
        }
    }

    /// Leaves warnings about the files of `directory` out of the log: they hold
    /// what was applied, with its defaults, and whoever applied it was warned.
    pub fn without_warnings_of(self, directory: PathBuf) -> ManifestDirectories {
        ManifestDirectories { warned: Some(directory), ..self }
    }

    /// Readable when something may have changed: given until somebody waits for it.
    ///
    /// # Errors
    /// If this process has no descriptor to spare.
    pub fn unheard(&mut self) -> io::Result<Option<OwnedFd>> {
        let inotify = self.inotify.as_ref().filter(|_| !self.heard);
        inotify.map(|inotify| inotify.as_fd().try_clone_to_owned()).transpose()
    }

    /// Somebody waits for what [`ManifestDirectories::unheard`] gave.
    pub fn is_heard(&mut self) {
        self.heard = true;
    }

    /// Whether something changes that nobody tells, for the kernel has no watch to spare: it is
    /// to be read again from time to time, which also tries to watch it again.
    pub fn is_blind(&self) -> bool {
        self.blind
    }

    /// Takes the kernel's news. `true` if [`ManifestDirectories::read`] is worth its while.
    pub fn drain(&mut self) -> bool {
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

    /// Reads what changed since the last time into `sources`, which has the same directories. `true`
    /// if it is to be called again [`SAVED_WITHIN`] from `now`, to see whether a file came back.
    pub fn read(&mut self, now: Instant, sources: &mut Sources) -> bool {
        let mut kept = BTreeSet::new();
        self.blind = false;
        self.open();
        for index in 0..self.directories.len() {
            let path = self.directories[index].path.clone();
            watch_way_to(&path, |directory| self.watch(directory, &mut kept));
            let unread = self.read_directory(index, now, &mut kept, sources).err();
            let message = unread.map(|error| format!("failed to read {}: {error}", path.display()));
            self.blind |= message.is_some() || self.directories[index].files.values().any(|file| file.unread);
            // Told once for each reason.
            if let Some(refusal) = sources.set_unread(index, message) {
                log::error!("{}; its pods stay as they are", refusal.message);
            }
        }
        self.watches.retain(|watch, _| {
            let keep = kept.contains(watch);
            if !keep && let Some(inotify) = &self.inotify {
                // A watch whose directory is gone was dropped by the kernel already.
                let _ = inotify.rm_watch(*watch);
            }
            keep
        });
        self.said_blind &= self.blind;
        self.directories
            .iter()
            .flat_map(|directory| directory.files.values())
            .any(|file| file.aside.is_some())
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

    /// # Errors
    /// It cannot be read. What is known of its files stays.
    fn read_directory(
        &mut self,
        index: usize,
        now: Instant,
        kept: &mut BTreeSet<WatchDescriptor>,
        sources: &mut Sources,
    ) -> io::Result<()> {
        let directory = &self.directories[index].path.clone();
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                for name in std::mem::take(&mut self.directories[index].files).into_keys() {
                    sources.remove(index, &name);
                }
                return Ok(());
            }
            // Not "gone": its pods stay until it can be read again.
            Err(error) => return Err(error),
        };
        // No more of them are kept than are read, whatever else lies there.
        let (mut names, mut passed_over) = (BTreeSet::new(), 0_usize);
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
        if passed_over > 0 {
            log::warn!(
                "{} holds {} files; only the first {MAX_FILES} are read",
                directory.display(),
                MAX_FILES + passed_over
            );
        }
        let (mut before, mut after) = (std::mem::take(&mut self.directories[index].files), BTreeMap::new());
        // What goes with this reading has given its room back already.
        for name in before.keys().filter(|name| !names.contains(*name)) {
            sources.set_aside(index, name, true);
        }
        let mut used = sources.used(index);
        for name in names {
            let path = directory.join(&name);
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
            let mut file = before.remove(&name).unwrap_or_default();
            match self.read_file((index, &name), &mut file, sources, &mut used) {
                true => after.insert(name, file),
                false => before.insert(name, file),
            };
        }
        for (name, mut file) in before {
            let since = *file.aside.get_or_insert(now);
            if now.since(since) < SAVED_WITHIN && file.is_aside(directory, &name) {
                after.insert(name, file);
            } else {
                sources.remove(index, &name);
            }
        }
        self.directories[index].files = after;
        Ok(())
    }

    /// Reads a file if it changed; `false`, with nothing changed, if it is not a file, or gone.
    fn read_file(
        &self,
        (index, name): (usize, &OsStr),
        file: &mut ReadFile,
        sources: &mut Sources,
        used: &mut Size,
    ) -> bool {
        let path = &self.directories[index].path.join(name);
        let metadata = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => metadata,
            Ok(_) => return false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
            Err(error) => {
                file.unread = true;
                let message = format!("failed to read {}: {error}", path.display());
                refuse(sources, (index, name), file, message);
                return true;
            }
        };
        (file.aside, file.unread) = (None, false);
        sources.set_aside(index, name, false);
        let stamp = Stamp::of(&metadata);
        if file.stamp == Some(stamp) {
            return true;
        }
        file.stamp = Some(stamp);
        if let Err(message) = self.read_contents((index, name), file, sources, used) {
            refuse(sources, (index, name), file, message);
            return true;
        }
        let warned = self.warned.as_ref().is_some_and(|directory| path.starts_with(directory));
        for warning in sources.warnings(index, name).filter(|_| !warned) {
            log::warn!("{}: {warning}", path.display());
        }
        true
    }

    /// Reads a file that changed.
    ///
    /// # Errors
    /// Why it is refused.
    fn read_contents(
        &self,
        (index, name): (usize, &OsStr),
        file: &mut ReadFile,
        sources: &mut Sources,
        used: &mut Size,
    ) -> Result<(), String> {
        let path = &self.directories[index].path.join(name);
        let too_large =
            || format!("{}: is larger than 1 MiB, which no manifest needs: split it", path.display());
        if file.stamp.is_some_and(|stamp| stamp.size > MAX_BYTES) {
            return Err(too_large());
        }
        let bytes = match read(path) {
            Ok(bytes) if bytes.len() as u64 > MAX_BYTES => return Err(too_large()),
            Ok(bytes) => bytes,
            Err(error) => {
                (file.stamp, file.unread) = (None, true);
                return Err(format!("failed to read {}: {error}", path.display()));
            }
        };
        let contents = manifest::contents(&path.to_string_lossy(), &bytes, Validation::Strict, &self.node);
        let contents = contents.map_err(|error| error.to_string())?;
        sources.put(index, name, contents, used).map_err(|why| {
            // Looked at again whenever something changed: then there may be room.
            file.stamp = None;
            format!("{}: {why}; take some away", path.display())
        })
    }
}

/// Tells the registry why a file is refused, and the log if that is new.
fn refuse(sources: &mut Sources, (index, name): (usize, &OsStr), file: &ReadFile, message: String) {
    let refusal = sources.refuse(index, name, message);
    // An empty file is one that somebody is about to write.
    if let Some(refusal) = refusal
        && file.stamp.is_none_or(|stamp| stamp.size > 0)
    {
        log::error!("{}", refusal.message);
    }
}

impl ReadFile {
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
