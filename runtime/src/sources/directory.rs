//! One manifest directory, and the state of its files at the last scan.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_core::time::Instant;
use nodlet_kernel::own_file;
use nodlet_registry::{MAX_BYTES, MAX_FILES, Owner};

use super::SAVED_WITHIN;

/// A manifest directory.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    /// The owner of the manifests; `None` for the directory of device files.
    pub(super) owner: Option<Owner>,
    pub(super) files: SortedMap<OsString, ReadFile>,
}

#[derive(Default)]
pub(super) struct ReadFile {
    /// Identifies the contents that were read last.
    pub(super) stamp: Option<Stamp>,
    /// The time at which the file was found moved to `NAME~`.
    pub(super) renamed_at: Option<Instant>,
    /// The file exists and could not be read. inotify does not report when it becomes readable.
    pub(super) unread: bool,
    /// The last scan found the file.
    pub(super) is_there: bool,
}

/// A result of a scan, with what each file contains. Results are reported to the registry in their order.
pub(crate) enum ScanEntry<C = Vec<u8>> {
    /// A directory, and the error if it cannot be read.
    Directory(usize, Option<String>),
    /// A file in the directory with this index.
    File(usize, OsString, FoundFile<C>),
}

/// The result of a scan for one file.
pub(crate) enum FoundFile<C = Vec<u8>> {
    /// The file was removed.
    Gone,
    /// The contents of a new or changed file.
    Contents(C),
    /// The file is wrong or cannot be read.
    Refused { message: String, is_logged: bool },
}

impl<C> FoundFile<C> {
    /// A file that cannot be read.
    pub(super) fn unread(message: String) -> FoundFile<C> {
        FoundFile::Refused { message, is_logged: true }
    }

    /// Converts the contents of a new or changed file.
    pub(super) fn and_then<D>(self, convert: impl FnOnce(C) -> FoundFile<D>) -> FoundFile<D> {
        match self {
            FoundFile::Gone => FoundFile::Gone,
            FoundFile::Contents(contents) => convert(contents),
            FoundFile::Refused { message, is_logged } => FoundFile::Refused { message, is_logged },
        }
    }
}

/// The metadata that changes when a file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    pub(super) size: u64,
    changed: (i64, i64),
}

/// Reads at most [`MAX_BYTES`] and one more byte of a file. The size from `stat` may be outdated or wrong: a link
/// may lead to a file of /proc that has no end, or that blocks its readers.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    own_file::open_linked(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Directory {
    pub(super) fn new(path: &Path, owner: Option<Owner>) -> Directory {
        Directory { path: path.to_owned(), owner, files: SortedMap::new() }
    }

    /// Starts a scan at this directory. Returns the names of its files in descending order.
    ///
    /// # Errors
    /// The directory cannot be read. The state of its files stays.
    pub(super) fn begin(&mut self) -> io::Result<Vec<OsString>> {
        // The list is limited to the files that are read, so that memory does not depend on the directory.
        let (mut names, mut passed_over) = (SortedSet::new(), 0_usize);
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
            // The files do not count as removed: their pods stay until the directory can be read again.
            Err(error) => return Err(error),
        }
        if passed_over > 0 {
            log::warn!(
                "{} has {} files; only the first {MAX_FILES} are read",
                self.path.display(),
                MAX_FILES + passed_over
            );
        }
        self.files.values_mut().for_each(|file| file.is_there = false);
        Ok(names.into_iter().rev().collect())
    }

    /// Whether a directory with this name is in the place of a manifest: others, such as lost+found, define nothing.
    pub(super) fn has_place_of(&self, name: &OsStr) -> bool {
        let extension = Path::new(name).extension().and_then(OsStr::to_str);
        self.files.contains_key(name) || matches!(extension, Some("yaml" | "yml" | "json"))
    }

    /// Ends a scan at this directory: forgets removed files, except those that may come back.
    pub(super) fn end(&mut self, index: usize, now: Instant, found: &mut Vec<ScanEntry>) {
        let Directory { path, files, .. } = self;
        files.retain(|name, file| {
            if file.is_there {
                return true;
            }
            let since = *file.renamed_at.get_or_insert(now);
            let may_return = now.since(since) < SAVED_WITHIN && file.has_backup(path, name);
            if !may_return {
                found.push(ScanEntry::File(index, name.clone(), FoundFile::Gone));
            }
            may_return
        });
    }
}

impl ReadFile {
    /// Records that the file could not be read. A file that was removed after `stat` found it is gone, which is no
    /// error; `before` is the stamp of the contents that were read last.
    pub(super) fn could_not_be_read(
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
        Some(FoundFile::unread(format!("failed to read {}: {error}", path.display())))
    }

    /// Whether `NAME~` is this very file, and not an older backup.
    pub(super) fn has_backup(&self, directory: &Path, name: &OsStr) -> bool {
        let mut backup = name.to_owned();
        backup.push("~");
        let found = fs::metadata(directory.join(backup)).map(|metadata| Stamp::of(&metadata));
        matches!((self.stamp, found), (Some(read), Ok(found))
            if (read.device, read.inode) == (found.device, found.inode))
    }
}

impl Stamp {
    /// The stamp of an open file.
    ///
    /// # Errors
    /// The kernel cannot report it.
    pub(crate) fn of_file(file: &fs::File) -> io::Result<Stamp> {
        file.metadata().map(|metadata| Stamp::of(&metadata))
    }

    pub(super) fn of(metadata: &fs::Metadata) -> Stamp {
        use std::os::unix::fs::MetadataExt;
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Whether a file with this name is read. Any extension is accepted, as by a kubelet; hidden files and temporary
/// files of editors are not.
pub(super) fn is_manifest_name(name: &OsStr) -> bool {
    let name = name.as_bytes();
    !(name.starts_with(b".")
        || name.ends_with(b"~")
        || (name.starts_with(b"#") && name.ends_with(b"#"))
        || is_of_sed(name))
}

/// Whether `sed -i` has such a file beside the one that it edits: `sedXXXXXX`, and with busybox `web.yamlXXXXXX`.
fn is_of_sed(name: &[u8]) -> bool {
    name.split_last_chunk::<6>().is_some_and(|(stem, random)| {
        let is_edited = [&b".yaml"[..], b".yml", b".json"].iter().any(|end| stem.ends_with(end));
        let is_random =
            random.iter().all(u8::is_ascii_alphanumeric) && !random.iter().all(u8::is_ascii_lowercase);
        (stem == b"sed" || is_edited) && is_random
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_removed_before_it_is_opened_is_gone_and_no_error() {
        let directory = std::env::temp_dir();
        let path = directory.join(format!("nodlet-vanished-{}", std::process::id()));
        fs::write(&path, "").expect("a file");
        let stamp = Stamp::of(&fs::metadata(&path).expect("it is there"));
        fs::remove_file(&path).expect("it is there");
        let gone = read(&path).expect_err("it is gone");
        let mut file = ReadFile { stamp: None, is_there: true, ..ReadFile::default() };
        assert!(file.could_not_be_read(Some(stamp), &path, &gone).is_none());
        assert!(!file.is_there && !file.unread && file.stamp == Some(stamp));

        let unreadable = read(&directory).expect_err("it is a directory");
        let mut file = ReadFile { stamp: Some(stamp), is_there: true, ..ReadFile::default() };
        assert!(matches!(
            file.could_not_be_read(Some(stamp), &directory, &unreadable),
            Some(FoundFile::Refused { message, .. }) if message.starts_with("failed to read ")
        ));
        assert!(file.is_there && file.unread && file.stamp.is_none());
    }

    #[test]
    fn the_temporary_file_of_sed_is_no_manifest() {
        for (name, is_read) in [
            ("web.yaml", true),
            ("web", true),
            ("web.yaml.bak", true),
            ("sedative", true),
            ("sedentary", true),
            ("sedAb3dEf", false),
            ("web.yamlAb3dEf", false),
            ("web.jsonAb3dEf", false),
            ("web.yaml~", false),
            (".web.yaml", false),
        ] {
            assert_eq!(is_manifest_name(OsStr::new(name)), is_read, "{name}");
        }
    }
}
