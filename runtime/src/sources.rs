//! Reads the manifest directories, and reports the contents of their files to the registry. inotify reports
//! changes, so an idle directory costs nothing. Only directories without a watch and unreadable files are read
//! again from time to time.
//!
//! [`ManifestDirectories::scan`] waits for flash and is called on the storage thread.
//! [`ManifestDirectories::parse`] and [`ManifestDirectories::report`] are called in the loop.
//!
//! This module decides nothing about objects: [`nodlet_registry`] owns them. Read next:
//! `registry/src/sources.rs`, which decides which sources count; `engine/manifests.rs`, which schedules the scans;
//! `engine/reconcile.rs`, which reports the differences to the core.

mod directory;
mod watches;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::AddWatchFlags;
use nodlet_core::sorted::SortedSet;

use crate::at_rest::AtRest;
use crate::devices::DeviceFiles;
use crate::handling::Handling;
pub(crate) use directory::ScanEntry;
pub(crate) use directory::Stamp;
use directory::{Directory, FoundFile, ReadFile, is_manifest_name, read};
use nodlet_core::time::Instant;
use nodlet_host::paths::Paths;
use nodlet_host::watches::{Event, Watches};
use nodlet_kube::manifest::ManifestError;
use nodlet_registry::{Handled, MAX_BYTES, Owner, SourceDirectory, SourceFile, Sources};
use watches::DirectoryWatches;

/// Interval between reads of directories that cannot be watched.
pub(crate) const RESCAN_INTERVAL: Duration = Duration::from_secs(10);

/// Time for which a file that was moved to `NAME~` counts as being saved. vim and emacs save files in this way,
/// which must not end the pod.
pub(crate) const SAVED_WITHIN: Duration = Duration::from_secs(1);

/// Size of manifests after which one part of a scan ends. They are in memory until the loop parses them.
const PART_BYTES: usize = 64 << 10;

/// Time after which one part of a scan ends, so that writes do not wait for a whole scan on a slow card.
const PART_TIME: Duration = Duration::from_millis(50);

/// The sources of desired objects, later ones overriding earlier ones.
pub(crate) fn list(paths: &Paths) -> Vec<SourceDirectory> {
    let row = |path, owner, hint| SourceDirectory { path, owner, hint };
    let of_cluster = "change or delete it in the cluster that this board has joined".to_owned();
    let of_vendor = format!("a pod of the same name in {} overrides it", paths.site_manifests().display());
    vec![
        row(paths.cluster_manifests(), Owner::Cluster, Some(of_cluster)),
        row(paths.vendor_manifests(), Owner::File, Some(of_vendor)),
        row(paths.site_manifests(), Owner::File, None),
        row(paths.applied_manifests(), Owner::Client, None),
        row(paths.run_manifests(), Owner::File, None),
    ]
}

/// The owner of the source that has a file; none if the file is in no source.
pub(crate) fn owner_of(paths: &Paths, file: &Path) -> Option<Owner> {
    let mut all = list(paths).into_iter();
    all.find(|source| file.parent() == Some(&source.path)).map(|source| source.owner)
}

/// The manifest directories, and the state of their files at the last scan.
pub(crate) struct ManifestDirectories {
    watches: DirectoryWatches,
    directories: Vec<Directory>,
    /// The unfinished scan.
    scan: Option<Scan>,
    node: String,
    /// Decrypts manifests of the cluster.
    at_rest: Arc<AtRest>,
    /// Accepted files, and directories in which files appeared or vanished, since the last
    /// [`ManifestDirectories::take_unsynced`]: no more files than the registry has of all directories.
    unsynced: SortedSet<PathBuf>,
}

/// A change of a manifest that the agent itself has made.
#[derive(Clone, Copy)]
pub(crate) enum OwnChange {
    /// It wrote the file. Without a stamp, the file is read again after any change.
    Written(Option<Stamp>),
    /// It removed the file.
    Removed,
}

/// A result of a scan, in whose place a manifest has its objects.
pub(crate) type Parsed = ScanEntry<SourceFile>;

/// The state of an unfinished scan.
#[derive(Default)]
struct Scan {
    /// The index of the directory that is being read.
    index: usize,
    /// Unread files of the directory, in descending order; `None` before it was listed.
    names: Option<Vec<OsString>>,
}

impl ManifestDirectories {
    /// Creates the state for `sources` and the directory of device files, which need not exist. The first scan starts to
    /// watch them.
    pub(crate) fn new(
        sources: &[SourceDirectory],
        devices: Option<&Path>,
        node: &str,
        at_rest: Arc<AtRest>,
        all_watches: Watches,
    ) -> ManifestDirectories {
        let directories = sources.iter().map(|source| Directory::new(&source.path, Some(source.owner)));
        ManifestDirectories {
            watches: DirectoryWatches::new(all_watches),
            directories: directories.chain(devices.map(|path| Directory::new(path, None))).collect(),
            scan: None,
            node: node.to_owned(),
            at_rest,
            unsynced: SortedSet::new(),
        }
    }

    /// Returns the files and directories that the caller must sync: `scp` and `cp` do not make durable what they
    /// write, nor does `rm`, and the pods must run as after a reboot.
    pub(crate) fn take_unsynced(&mut self) -> SortedSet<PathBuf> {
        std::mem::take(&mut self.unsynced)
    }

    /// Records that a file of this directory was accepted, or removed (`None`). The agent writes some directories itself,
    /// durably.
    fn add_unsynced(&mut self, index: usize, accepted: Option<&OsStr>) {
        let Directory { path, owner, .. } = &self.directories[index];
        if !owner.is_some_and(Owner::is_api) {
            self.unsynced.extend(accepted.map(|name| path.join(name)));
            self.unsynced.insert(path.clone());
        }
    }

    /// Waits until something may have changed; `None` while there is no instance of inotify.
    pub(crate) fn changed(&self) -> Option<impl Future<Output = ()> + use<>> {
        self.watches.changed()
    }

    /// Whether changes may go unnoticed, because something could not be watched or read. The caller must scan again
    /// from time to time, which also tries to watch it again.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.watches.is_incomplete()
    }

    /// Takes the events of inotify. Returns whether [`ManifestDirectories::scan`] is needed.
    pub(crate) fn drain(&mut self) -> bool {
        let Some(news) = self.watches.take() else { return true };
        news.lost
            || news.events.iter().any(|event| {
                // A removed watch sends a last event (IN_IGNORED).
                let Some(directory) = self.watches.directory(event.watch) else { return false };
                let Some(name) = &event.name else { return true };
                let path = directory.join(name);
                self.concerns_us(directory, name, &path)
                    && !is_being_written(event, &path)
                    && !self.is_known(directory, name, &path)
            })
    }

    /// Records that the agent has written or removed a file, and that the registry knows its content.
    pub(crate) fn set_own(&mut self, path: &Path, change: OwnChange) {
        let Some(directory) = self.directories.iter_mut().find(|ours| path.parent() == Some(&ours.path))
        else {
            return;
        };
        let Some(name) = path.file_name() else { return };
        match change {
            OwnChange::Written(stamp) => {
                directory.files.insert(name.to_owned(), ReadFile { stamp, ..ReadFile::default() });
            }
            OwnChange::Removed => drop(directory.files.remove(name)),
        }
    }

    /// Whether a file is as it was when it was read last, or when the agent wrote or removed it.
    fn is_known(&self, directory: &Path, name: &OsStr, path: &Path) -> bool {
        let Some(ours) = self.directories.iter().find(|ours| ours.path == *directory) else { return false };
        match (fs::symlink_metadata(path), ours.files.get(name)) {
            (Ok(found), Some(known)) => known.renamed_at.is_none() && known.stamp == Some(Stamp::of(&found)),
            (Err(error), None) => error.kind() == io::ErrorKind::NotFound,
            (Ok(_), None) | (Err(_), Some(_)) => false,
        }
    }

    /// Whether an event is relevant. In a parent of a manifest directory, only the path to that directory is
    /// relevant; in other directories, every manifest.
    fn concerns_us(&self, directory: &Path, name: &OsStr, path: &Path) -> bool {
        if self.watches.is_link(path) {
            return true;
        }
        let below = |path: &Path| path != directory && path.starts_with(directory);
        if self.directories.iter().any(|ours| below(&ours.path)) {
            return self.directories.iter().any(|ours| ours.path.starts_with(path));
        }
        // An atomic writer of a mounted volume replaces `..data`.
        is_manifest_name(name) || name == "..data"
    }

    /// Reads one part of the changes since the last scan; other jobs run between two parts. Pass `found` to
    /// [`ManifestDirectories::parse`]. Returns whether another part follows.
    pub(crate) fn scan(&mut self, now: Instant, found: &mut Vec<ScanEntry>) -> bool {
        let (begun, mut bytes) = (nodlet_host::clock::instant(), 0);
        let mut scan = self.scan.take().unwrap_or_else(|| {
            if !self.directories.is_empty() {
                self.watches.begin();
            }
            Scan::default()
        });
        while let Some(directory) = self.directories.get_mut(scan.index) {
            if bytes >= PART_BYTES || nodlet_host::clock::instant().since(begun) >= PART_TIME {
                self.scan = Some(scan);
                return true;
            }
            if let Some(name) = scan.names.as_mut().and_then(Vec::pop) {
                let file = self.read_file(scan.index, &name);
                if let Some(FoundFile::Contents(contents)) = &file {
                    bytes += contents.len();
                }
                found.extend(file.map(|file| ScanEntry::File(scan.index, name, file)));
                continue;
            }
            let unread = if scan.names.is_some() {
                directory.end(scan.index, now, found);
                None
            } else {
                let path = directory.path.clone();
                self.watches.watch_way_to(&path);
                match self.directories[scan.index].begin() {
                    Ok(names) => {
                        scan.names = Some(names);
                        continue;
                    }
                    Err(error) => Some(format!("failed to read {}: {error}", path.display())),
                }
            };
            let files = &self.directories[scan.index].files;
            if unread.is_some() || files.values().any(|file| file.unread) {
                self.watches.cannot_read();
            }
            found.push(ScanEntry::Directory(scan.index, unread));
            (scan.index, scan.names) = (scan.index + 1, None);
        }
        self.watches.end();
        false
    }

    /// Whether a scan is unfinished.
    pub(crate) fn is_looking(&self) -> bool {
        self.scan.is_some()
    }

    /// Whether another scan is needed after [`SAVED_WITHIN`], to check whether a file came back.
    pub(crate) fn is_any_renamed(&self) -> bool {
        let mut files = self.directories.iter().flat_map(|directory| directory.files.values());
        files.any(|file| file.renamed_at.is_some())
    }

    /// Parses the manifests that one part of a scan has read, and reports the device files. Pass the results of all parts
    /// to [`ManifestDirectories::report`].
    pub(crate) fn parse(
        &mut self,
        found: Vec<ScanEntry>,
        devices: &mut DeviceFiles,
        handling: &Handling,
    ) -> Vec<Parsed> {
        let mut parsed = Vec::new();
        for found in found {
            let (index, name, file) = match found {
                ScanEntry::File(index, name, file) => (index, name, file),
                ScanEntry::Directory(index, unread) if self.directories[index].owner.is_some() => {
                    parsed.push(ScanEntry::Directory(index, unread));
                    continue;
                }
                ScanEntry::Directory(_, message) => {
                    if let Some(message) = message {
                        log::error!("{message}; the devices stay as they were defined");
                    }
                    continue;
                }
            };
            let path = self.directories[index].path.join(&name);
            let Some(owner) = self.directories[index].owner else {
                match file {
                    _ if !DeviceFiles::is_device_file(&name) => {}
                    FoundFile::Gone => {
                        handling.release(Handled::object_of(&path));
                        devices.remove(&name);
                        self.add_unsynced(index, None);
                    }
                    FoundFile::Refused { message, .. } => drop(devices.put(&path, &name, Err(message))),
                    FoundFile::Contents(bytes) => {
                        let mark = handling.read(Handled::file(&path, &bytes));
                        let why = mark.as_ref().err().map(|why| format!("{} {why}", path.display()));
                        if devices.put(&path, &name, why.map_or(Ok(&bytes), Err)) {
                            self.add_unsynced(index, Some(&name));
                        }
                    }
                }
                continue;
            };
            let file = file.and_then(|bytes| match parse(&path, owner, &bytes, &self.node, handling) {
                Ok(objects) => FoundFile::Contents(objects),
                // An empty file is probably about to be written.
                Err(error) => FoundFile::Refused { message: error.to_string(), is_logged: !bytes.is_empty() },
            });
            parsed.push(ScanEntry::File(index, name, file));
        }
        parsed
    }

    /// Reports to the registry what a whole scan has found, except of files that the agent has written or removed since.
    pub(crate) fn report(
        &mut self,
        mut parsed: Vec<Parsed>,
        is_own: impl Fn(&Path) -> bool,
        sources: &mut Sources,
        handling: &Handling,
    ) {
        // Their share of the quota is available to the files that are read in their place.
        parsed.sort_by_key(|one| !matches!(one, ScanEntry::File(_, _, FoundFile::Gone)));
        for one in parsed {
            let (index, name, file) = match one {
                ScanEntry::Directory(index, message) => {
                    // Each reason is logged once.
                    if let Some(refusal) = sources.set_unreadable(index, message) {
                        log::error!("{}; its pods stay unchanged", refusal.message);
                    }
                    continue;
                }
                ScanEntry::File(index, name, file) => (index, name, file),
            };
            let path = self.directories[index].path.join(&name);
            if is_own(&path) {
                continue;
            }
            match file {
                FoundFile::Gone => {
                    handling.release(Handled::object_of(&path));
                    sources.remove(&path);
                    self.add_unsynced(index, None);
                }
                FoundFile::Refused { message, is_logged } => refuse(sources, &path, message, is_logged),
                FoundFile::Contents(objects) => {
                    if put(sources, &path, objects) {
                        self.add_unsynced(index, Some(&name));
                    } else if let Some(file) = self.directories[index].files.get_mut(&name) {
                        file.stamp = None;
                    }
                }
            }
        }
    }

    /// Reads a file if it changed.
    fn read_file(&mut self, index: usize, name: &OsStr) -> Option<FoundFile> {
        let directory = self.directories[index].path.clone();
        let path = directory.join(name);
        if path.is_symlink() {
            self.watches.watch_links(path.clone());
        }
        let metadata = fs::metadata(&path);
        match &metadata {
            Ok(metadata) if metadata.is_dir() && !self.directories[index].has_place_of(name) => return None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Ok(_) | Err(_) => {}
        }
        let file = self.directories[index].files.entry(name.to_owned()).or_default();
        file.is_there = true;
        let before = file.stamp;
        let read = metadata.and_then(|metadata| {
            (file.renamed_at, file.unread) = (None, false);
            let stamp = Stamp::of(&metadata);
            if file.stamp == Some(stamp) {
                return Ok(None);
            }
            file.stamp = Some(stamp);
            if !metadata.is_file() {
                return Ok(Some(FoundFile::unread(format!(
                    "{}: it is not a regular file: replace it by one, or remove it and what it has defined",
                    path.display()
                ))));
            }
            let bytes = if stamp.size > MAX_BYTES { None } else { Some(read(&path)?) };
            Ok(Some(match bytes.filter(|bytes| bytes.len() as u64 <= MAX_BYTES) {
                Some(bytes) => match self.at_rest.open(&path, bytes) {
                    Ok(bytes) => FoundFile::Contents(bytes),
                    Err(why) => FoundFile::unread(format!("{}: {why}", path.display())),
                },
                None => FoundFile::unread(format!(
                    "{}: is larger than 1 MiB, which no manifest needs: split it",
                    path.display()
                )),
            }))
        });
        read.unwrap_or_else(|error| file.could_not_be_read(before, &path, &error))
    }
}

/// The reason why a manifest has no objects.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseError {
    /// It is set aside.
    #[error("{path} {why}")]
    SetAside { path: PathBuf, handled: Handled, why: String },
    #[error(transparent)]
    Invalid(ManifestError),
}

/// Parses a manifest of this owner on the node of this name.
///
/// # Errors
/// The manifest is invalid, or set aside.
pub(crate) fn parse(
    path: &Path,
    owner: Owner,
    bytes: &[u8],
    node: &str,
    handling: &Handling,
) -> Result<SourceFile, ParseError> {
    let handled = Handled::file(path, bytes);
    let set_aside = |why| ParseError::SetAside { path: path.to_owned(), handled, why };
    let _mark = handling.read(handled).map_err(set_aside)?;
    SourceFile::parse(path, owner, bytes, node).map_err(ParseError::Invalid)
}

/// Records the new contents of a manifest in the registry, and logs the warnings, which clients receive about their own
/// objects. Returns `false` if the quota does not suffice: the file must be read again after any change, since other files
/// may have been removed.
pub(crate) fn put(sources: &mut Sources, path: &Path, objects: SourceFile) -> bool {
    if let Err(why) = sources.put(path, objects) {
        refuse(sources, path, format!("{}: {why}; remove some files", path.display()), true);
        return false;
    }
    if sources.owner_of(path) != Some(Owner::Client) {
        sources.warnings(path).for_each(|warning| log::warn!("{}: {warning}", path.display()));
    }
    true
}

/// Records in the registry why the contents of a manifest are refused, and logs each reason once.
pub(crate) fn refuse(sources: &mut Sources, path: &Path, message: String, is_logged: bool) {
    if let Some(refusal) = sources.refuse(path, message).filter(|_| is_logged) {
        log::error!("{}", refusal.message);
    }
}

/// Whether an event reports a file that was created and is not closed yet. Such a file is incomplete, and is read when it
/// is closed. Links, directories and hard links are complete from the start.
fn is_being_written(event: &Event, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    event.what.contains(AddWatchFlags::IN_CREATE)
        && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}

#[cfg(test)]
mod tests;
