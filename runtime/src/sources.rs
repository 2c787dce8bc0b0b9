//! Where desired pods come from: directories of manifests, later ones
//! overriding earlier ones by object name. inotify says when to look again:
//! an idle directory costs nothing. Only what the kernel has no watch for, and
//! what cannot be read, is looked at from time to time.
//!
//! A file that is wrong disturbs nobody: the pods of its last good contents stay
//! wanted until the file is right or gone. Read next: `engine.rs`, which tells
//! the core of the difference between two readings; `sources/precedence.rs`,
//! whose word counts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use crate::manifest::{self, Definition, Validation};
use crate::time::Instant;

mod precedence;
mod wanted;

pub use precedence::DefinitionsByName;
pub use wanted::{Wanted, WantedByName};

/// Bytes of a manifest that are read: as many as the API takes, and more than a cluster keeps
/// of an object. A kubelet reads ten times that, on a machine with memory for it.
const MAX_BYTES: u64 = 1 << 20;

/// Files of one directory that are read, the first by name; the rest is counted in the log.
const MAX_FILES: usize = 1024;

/// What is kept of all files together: room for the pods of a node, each with several times
/// the manifest that people write. What is beyond is refused by name and read when there is room.
const ROOM: Size = Size { pods: 1024, bytes: 4 << 20 };

/// How often what cannot be watched is looked at.
pub const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Bytes that are kept of what is said about a file; the rest of a list of a thousand wrong
/// fields helps nobody.
const MESSAGE: usize = 1024;

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

/// A file, or a pod of one, that is not obeyed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file.
    pub source: PathBuf,
    /// Namespace and name of the pod that it would have been, where one is known.
    pub pod: Option<(String, String)>,
    /// What is wrong and what would be right.
    pub message: String,
}

/// The manifest directories and what was last read from them.
pub struct Sources {
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
    /// What files take that are being written, and by how many.
    reserved: BTreeMap<PathBuf, (Size, usize)>,
}

struct Directory {
    path: PathBuf,
    files: BTreeMap<OsString, ReadFile>,
    /// Why what it holds is not known: `files` is what it was.
    unread: Option<Refusal>,
}

type Files = BTreeMap<OsString, ReadFile>;

#[derive(Default)]
struct ReadFile {
    /// Device, inode, size and change time: what differs when it was written.
    stamp: Option<Stamp>,
    wanted: Vec<Rc<Wanted>>,
    definitions: Vec<Rc<Definition>>,
    refusal: Option<Refusal>,
    /// When it was found to be moved to its `NAME~`.
    aside: Option<Instant>,
    /// It is there and could not be read, which nobody tells when it can be.
    unread: bool,
}

/// What pods take.
#[derive(Clone, Copy, Default)]
struct Size {
    pods: usize,
    /// Of their objects as JSON.
    bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Sources {
    /// Watches `directories` from the first [`Sources::read`] on, lowest precedence first; none
    /// needs to exist.
    pub fn new(directories: Vec<PathBuf>, node: &str) -> Sources {
        let directories = directories
            .into_iter()
            .map(|path| Directory { path, files: BTreeMap::new(), unread: None })
            .collect();
        Sources {
            inotify: None,
            heard: false,
            blind: false,
            said_blind: false,
            watches: BTreeMap::new(),
            directories,
            node: node.to_owned(),
            warned: None,
            reserved: BTreeMap::new(),
        }
    }

    /// Leaves warnings about the files of `directory` out of the log: they hold
    /// what was applied, with its defaults, and whoever applied it was warned.
    pub fn without_warnings_of(self, directory: PathBuf) -> Sources {
        Sources { warned: Some(directory), ..self }
    }

    /// Readable when something may have changed: given until somebody waits for it.
    ///
    /// # Errors
    /// If this process has no descriptor to spare.
    pub fn unheard(&mut self) -> io::Result<Option<OwnedFd>> {
        let inotify = self.inotify.as_ref().filter(|_| !self.heard);
        inotify.map(|inotify| inotify.as_fd().try_clone_to_owned()).transpose()
    }

    /// Somebody waits for what [`Sources::unheard`] gave.
    pub fn is_heard(&mut self) {
        self.heard = true;
    }

    /// Whether something changes that nobody tells, for the kernel has no watch to spare: it is
    /// to be read again from time to time, which also tries to watch it again.
    pub fn is_blind(&self) -> bool {
        self.blind
    }

    /// Takes the kernel's news. `true` if [`Sources::read`] is worth its while.
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

    /// Reads what changed since the last time. `true` if it is to be called again
    /// [`SAVED_WITHIN`] from `now`, to see whether a file came back.
    pub fn read(&mut self, now: Instant) -> bool {
        let mut kept = BTreeSet::new();
        self.blind = false;
        self.open();
        for index in 0..self.directories.len() {
            let path = self.directories[index].path.clone();
            watch_way_to(&path, |directory| self.watch(directory, &mut kept));
            let files = std::mem::take(&mut self.directories[index].files);
            let (files, unread) = match self.read_directory(&path, files, now, &mut kept) {
                Ok(files) => (files, None),
                Err((files, error)) => (files, Some(self.not_read(index, error))),
            };
            self.blind |= unread.is_some() || files.values().any(|file| file.unread);
            (self.directories[index].files, self.directories[index].unread) = (files, unread);
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

    fn read_directory(
        &mut self,
        directory: &Path,
        mut before: BTreeMap<OsString, ReadFile>,
        now: Instant,
        kept: &mut BTreeSet<WatchDescriptor>,
    ) -> Result<Files, (Files, io::Error)> {
        let mut after = BTreeMap::new();
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(after),
            // Not "gone": its pods stay until it can be read again.
            Err(error) => return Err((before, error)),
        };
        // No more of them are kept than are read, whatever else lies there.
        let (mut names, mut passed_over) = (BTreeSet::new(), 0_usize);
        for entry in entries {
            let name = match entry {
                Ok(entry) => entry.file_name(),
                Err(error) => return Err((before, error)),
            };
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
        // What goes with this reading has given its room back already. This directory is not among ours.
        let others = self.directories.iter().flat_map(|directory| directory.files.values());
        let stay = before.iter().filter(|(name, _)| names.contains(*name)).map(|(_, file)| file);
        let mut held = others.chain(stay).map(ReadFile::size).sum();
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
            let old = before.remove(&name).unwrap_or_default();
            match self.read_file(&path, old, &mut held) {
                Ok(file) => after.insert(name, file),
                Err(gone) => before.insert(name, *gone),
            };
        }
        for (name, mut file) in before {
            let since = *file.aside.get_or_insert(now);
            if now.since(since) < SAVED_WITHIN && file.is_aside(directory, &name) {
                after.insert(name, file);
            }
        }
        Ok(after)
    }

    /// A directory that cannot be read, told once for each reason.
    fn not_read(&self, index: usize, error: io::Error) -> Refusal {
        let Directory { path, unread, .. } = &self.directories[index];
        let message = format!("failed to read {}: {error}", path.display());
        let refusal = Refusal { source: path.clone(), pod: None, message };
        if unread.as_ref() != Some(&refusal) {
            log::error!("{}; its pods stay as they are", refusal.message);
        }
        refusal
    }

    /// What it holds now; as it was, as an error, if it is not a file, or gone.
    fn read_file(&self, path: &Path, mut file: ReadFile, held: &mut Size) -> Result<ReadFile, Box<ReadFile>> {
        let refuse = |file: ReadFile, message: String| {
            let pod = file
                .wanted
                .first()
                .map(|wanted| (wanted.pod.namespace.to_string(), wanted.pod.name.to_string()));
            let refusal = Refusal { source: path.to_owned(), pod, message: shortened(message) };
            if file.refusal.as_ref() != Some(&refusal) && file.stamp.is_none_or(|stamp| stamp.size > 0) {
                // An empty file is one that somebody is about to write.
                log::error!("{}", refusal.message);
            }
            Ok(ReadFile { refusal: Some(refusal), ..file })
        };
        let metadata = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => metadata,
            Ok(_) => return Err(Box::new(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Box::new(file)),
            Err(error) => {
                file.unread = true;
                return refuse(file, format!("failed to read {}: {error}", path.display()));
            }
        };
        (file.aside, file.unread) = (None, false);
        let stamp = Stamp::of(&metadata);
        if file.stamp == Some(stamp) {
            return Ok(file);
        }
        file.stamp = Some(stamp);
        let too_large =
            || format!("{}: is larger than 1 MiB, which no manifest needs: split it", path.display());
        if stamp.size > MAX_BYTES {
            return refuse(file, too_large());
        }
        let bytes = match read(path) {
            Ok(bytes) if bytes.len() as u64 > MAX_BYTES => return refuse(file, too_large()),
            Ok(bytes) => bytes,
            Err(error) => {
                (file.stamp, file.unread) = (None, true);
                return refuse(file, format!("failed to read {}: {error}", path.display()));
            }
        };
        match manifest::contents(&path.to_string_lossy(), &bytes, Validation::Strict, &self.node) {
            Ok(contents) => {
                let new = |manifest| Rc::new(Wanted::new(manifest, path));
                let read = ReadFile {
                    wanted: contents.pods.into_iter().map(new).collect(),
                    definitions: contents.definitions.into_iter().map(Rc::new).collect(),
                    ..Default::default()
                };
                if !held.replace(file.size(), read.size()) {
                    // Looked at again whenever something changed: then there may be room.
                    file.stamp = None;
                    return refuse(file, format!("{}: {}; take some away", path.display(), no_room()));
                }
                file.refusal = None;
                (file.wanted, file.definitions) = (read.wanted, read.definitions);
                let warned = self.warned.as_ref().is_some_and(|directory| path.starts_with(directory));
                let of_pods = file.wanted.iter().flat_map(|wanted| &wanted.warnings);
                let of_others = file.definitions.iter().flat_map(|other| &other.warnings);
                for warning in of_pods.chain(of_others).filter(|_| !warned) {
                    log::warn!("{}: {warning}", path.display());
                }
                Ok(file)
            }
            Err(error) => refuse(file, error.to_string()),
        }
    }

    /// Takes room for an object of `bytes` that is to be the file `path`, of `text` bytes, until
    /// [`Sources::release`].
    ///
    /// # Errors
    /// It would not be read: there is no room for it beside what is there and what is being written.
    pub fn reserve(&mut self, path: &Path, bytes: usize, text: usize) -> Result<(), String> {
        if text as u64 > MAX_BYTES {
            return Err("its manifest is larger than 1 MiB, which none needs".to_owned());
        }
        let mut files: BTreeMap<PathBuf, Size> = BTreeMap::new();
        for directory in &self.directories {
            let here = directory.files.iter().map(|(name, file)| (directory.path.join(name), file.size()));
            files.extend(here);
        }
        for (path, (size, _)) in &self.reserved {
            let held = files.entry(path.clone()).or_default();
            *held = held.or(*size);
        }
        let old = files.remove(path);
        let beside = files.keys().filter(|other| other.parent() == path.parent()).count();
        if old.is_none() && beside >= MAX_FILES {
            return Err(format!("no room: a directory may have {MAX_FILES} manifests; delete some"));
        }
        let new = Size { pods: 1, bytes };
        if !files.into_values().sum::<Size>().replace(Size::default(), new) {
            return Err(format!("{}; delete some", no_room()));
        }
        let (size, writers) = self.reserved.entry(path.to_owned()).or_default();
        (*size, *writers) = (size.or(new), *writers + 1);
        Ok(())
    }

    /// A file for which room was taken was read, or was not written.
    pub fn release(&mut self, path: &Path) {
        if let Some((_, writers)) = self.reserved.get_mut(path) {
            *writers -= 1;
            if *writers == 0 {
                self.reserved.remove(path);
            }
        }
    }

    /// Whether `source` is a file that is there and cannot be understood: what
    /// it wanted before stays.
    pub fn is_refused(&self, source: &Path) -> bool {
        self.directories.iter().any(|directory| {
            let of_file = || source.file_name().and_then(|name| directory.files.get(name));
            source.parent() == Some(&directory.path)
                && (directory.unread.is_some()
                    || of_file().is_some_and(|file| {
                        file.refusal.is_some() && file.wanted.is_empty() && file.definitions.is_empty()
                    }))
        })
    }
}

impl Size {
    /// Room for the one as well as for the other.
    fn or(self, other: Size) -> Size {
        Size { pods: self.pods.max(other.pods), bytes: self.bytes.max(other.bytes) }
    }

    /// Makes room for `new` in the place of `old`; `false`, with nothing changed, if there is none.
    fn replace(&mut self, old: Size, new: Size) -> bool {
        let with = Size {
            pods: self.pods.saturating_sub(old.pods) + new.pods,
            bytes: self.bytes.saturating_sub(old.bytes) + new.bytes,
        };
        let fits = with.pods <= ROOM.pods && with.bytes <= ROOM.bytes;
        if fits {
            *self = with;
        }
        fits
    }
}

impl std::iter::Sum for Size {
    fn sum<I: Iterator<Item = Size>>(sizes: I) -> Size {
        sizes.fold(Size::default(), |all, one| Size {
            pods: all.pods + one.pods,
            bytes: all.bytes + one.bytes,
        })
    }
}

fn no_room() -> String {
    let (pods, bytes) = (ROOM.pods, ROOM.bytes >> 20);
    format!("no room: all manifests together may ask for {pods} pods and have {bytes} MiB")
}

/// At most [`MESSAGE`] bytes of it.
fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE {
        message.truncate(message.floor_char_boundary(MESSAGE));
        message.push('…');
        message.shrink_to_fit();
    }
    message
}

impl ReadFile {
    fn size(&self) -> Size {
        let of_pods: usize = self.wanted.iter().map(|wanted| wanted.object.get().len()).sum();
        let of_others: usize = self.definitions.iter().map(|other| other.size).sum();
        Size { pods: self.wanted.len() + self.definitions.len(), bytes: of_pods + of_others }
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
