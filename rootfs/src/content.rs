//! The seam beneath the image store: every write, sync, rename and removal goes through [`Content`]. So tests
//! can count the operations, fail the n-th of them, and simulate what a power cut would leave.
//!
//! This module does not know what the files mean. `load` and `store` decide the order of operations by which
//! each file is always the old or the new one.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::statvfs;

/// One change to the disk, reported to the observer before it is made.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests look"))]
pub(crate) enum Operation<'a> {
    CreateDirectory(&'a Path),
    Create(&'a Path),
    Write { path: &'a Path, bytes: usize },
    SetLength(&'a Path),
    Sync(&'a Path),
    SyncDirectory(&'a Path),
    Rename { from: &'a Path, to: &'a Path },
    Remove(&'a Path),
}

/// The decision of a test's observer on an operation.
#[cfg_attr(not(test), allow(dead_code, reason = "only tests object"))]
pub(crate) enum Decision {
    Proceed,
    Fail(Errno),
    /// Write only this many bytes, then fail.
    Short(usize, Errno),
}

/// A function that is called before each operation.
pub(crate) type Observer = Arc<dyn Fn(&Operation<'_>) -> Decision + Send + Sync>;

/// An operation on the store that failed.
#[derive(Debug)]
pub struct ContentError {
    verb: Cow<'static, str>,
    path: PathBuf,
    source: io::Error,
}

impl ContentError {
    pub(crate) fn new(verb: &'static str, path: &Path, source: io::Error) -> ContentError {
        ContentError { verb: verb.into(), path: path.to_owned(), source }
    }

    /// Whether the file reached its limit, rather than the disk being full.
    pub(crate) fn is_limit(&self) -> bool {
        self.source.get_ref().is_some_and(|source| source.is::<LimitReached>())
    }

    /// The error in the form that is sent to another process: verb, file name, error number.
    pub(crate) fn to_wire(&self) -> (String, String, i32) {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let errno = self.source.raw_os_error().unwrap_or(Errno::EIO as i32);
        (self.verb.to_string(), name.unwrap_or_default(), errno)
    }

    /// Restores an error from [`ContentError::to_wire`], of a file in `directory`.
    pub(crate) fn from_wire((verb, name, errno): (String, String, i32), directory: &Path) -> ContentError {
        let source = io::Error::from_raw_os_error(errno);
        ContentError { verb: verb.into(), path: directory.join(name), source }
    }
}

/// The error of a file that has reached its limit.
#[derive(Debug)]
struct LimitReached;

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no space is left for it")
    }
}

impl std::error::Error for LimitReached {}

impl fmt::Display for ContentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.path.display())
    }
}

impl std::error::Error for ContentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Access to the disk, for all changes that the store makes.
#[derive(Clone, Default)]
pub(crate) struct Content {
    observer: Option<Observer>,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("observed", &self.observer.is_some()).finish()
    }
}

impl Content {
    #[cfg(test)]
    pub(crate) fn observed(observer: Observer) -> Content {
        Content { observer: Some(observer) }
    }

    fn allow(&self, operation: &Operation<'_>) -> io::Result<()> {
        match self.decision(operation) {
            Decision::Proceed => Ok(()),
            Decision::Fail(errno) | Decision::Short(_, errno) => Err(errno.into()),
        }
    }

    fn decision(&self, operation: &Operation<'_>) -> Decision {
        match &self.observer {
            Some(observer) => observer(operation),
            None => Decision::Proceed,
        }
    }

    /// Creates the directory and its missing ancestors, each durably.
    pub(crate) fn create_directories(&self, path: &Path) -> Result<(), ContentError> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.create_directories(parent)?;
        }
        self.allow(&Operation::CreateDirectory(path))
            .and_then(|()| match fs::DirBuilder::new().mode(0o755).create(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                result => result,
            })
            .map_err(|source| ContentError::new("create directory", path, source))?;
        match path.parent() {
            Some(parent) => self.sync_directory(parent),
            None => Ok(()),
        }
    }

    /// Creates a file, which must not exist yet.
    pub(crate) fn create(&self, path: &Path) -> Result<File, ContentError> {
        self.allow(&Operation::Create(path))
            .and_then(|()| fs::File::options().read(true).write(true).create_new(true).open(path))
            .map(|file| File {
                file,
                path: path.to_owned(),
                content: self.clone(),
                written: 0,
                limit: u64::MAX,
            })
            .map_err(|source| ContentError::new("create", path, source))
    }

    /// Replaces a small file at `path` atomically: it is written at `staged`, synced, and renamed. The rename
    /// is durable when [`Content::sync_directory`] of its directory has returned.
    pub(crate) fn replace(&self, staged: &Path, path: &Path, bytes: &[u8]) -> Result<(), ContentError> {
        let mut file = self.create(staged)?;
        file.write_at(bytes, 0)?;
        file.sync()?;
        self.rename(staged, path)
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), ContentError> {
        self.allow(&Operation::Rename { from, to })
            .and_then(|()| fs::rename(from, to))
            .map_err(|source| ContentError::new("rename into place", to, source))
    }

    pub(crate) fn sync_directory(&self, path: &Path) -> Result<(), ContentError> {
        self.allow(&Operation::SyncDirectory(path))
            .and_then(|()| crate::own_file::open_directory(path)?.sync_all())
            .map_err(|source| ContentError::new("sync directory", path, source))
    }

    /// Removes a file if it exists.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), ContentError> {
        self.allow(&Operation::Remove(path))
            .and_then(|()| match fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result,
            })
            .map_err(|source| ContentError::new("remove", path, source))
    }

    /// Free bytes for files below `path`.
    pub(crate) fn free_space(&self, path: &Path) -> Result<u64, ContentError> {
        let stat = statvfs(path)
            .map_err(|errno| ContentError::new("measure the free space of", path, errno.into()))?;
        Ok(stat.blocks_available().saturating_mul(stat.fragment_size() as u64))
    }
}

/// Whether files below this directory, which need not exist yet, are in memory.
pub(crate) fn is_in_memory(directory: &Path) -> bool {
    /// The magic number from linux/magic.h, which `nix` lacks.
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    let kind = directory.ancestors().find_map(|path| statfs(path).ok()).map(|stat| stat.filesystem_type());
    // Compared as numbers, because the type differs between libcs.
    kind.is_some_and(|kind| kind == TMPFS_MAGIC || kind.0 as u32 == RAMFS_MAGIC)
}

/// A new file of the store.
#[derive(Debug)]
pub(crate) struct File {
    file: fs::File,
    path: PathBuf,
    content: Content,
    written: u64,
    /// The most bytes that may be written to the file.
    limit: u64,
}

impl File {
    /// Bytes written so far; bytes written twice count twice.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Sets the most bytes that may be written: a compressed stream does not declare its size, and the rest
    /// of the disk is for others.
    pub(crate) fn limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    pub(crate) fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), ContentError> {
        if self.written.saturating_add(bytes.len() as u64) > self.limit {
            return Err(ContentError::new("write", &self.path, io::Error::other(LimitReached)));
        }
        let operation = Operation::Write { path: &self.path, bytes: bytes.len() };
        let result = match self.content.decision(&operation) {
            Decision::Proceed => self.file.write_all_at(bytes, offset),
            Decision::Fail(errno) => Err(errno.into()),
            Decision::Short(length, errno) => self
                .file
                .write_all_at(&bytes[..length.min(bytes.len())], offset)
                .and_then(|()| Err(errno.into())),
        };
        self.written += bytes.len() as u64;
        result.map_err(|source| ContentError::new("write", &self.path, source))
    }

    pub(crate) fn set_length(&mut self, length: u64) -> Result<(), ContentError> {
        self.content
            .allow(&Operation::SetLength(&self.path))
            .and_then(|()| self.file.set_len(length))
            .map_err(|source| ContentError::new("set the length of", &self.path, source))
    }

    /// Syncs the file and drops its pages from the cache: it is next read when a pod starts, and until then
    /// the memory is better used elsewhere.
    pub(crate) fn sync(&mut self) -> Result<(), ContentError> {
        self.content
            .allow(&Operation::Sync(&self.path))
            .and_then(|()| self.file.sync_all())
            .map_err(|source| ContentError::new("sync", &self.path, source))?;
        let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        // This is only advice: nothing is lost if a file system ignores it.
        let _ = nix::fcntl::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&self.file.as_fd()), 0, 0, advice);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn writing_a_file_beyond_its_limit_is_an_error() {
        let scratch = Scratch::new();
        let mut file = Content::default().create(&scratch.path().join("file")).unwrap();
        file.limit(10);
        file.write_at(b"12345", 0).unwrap();
        file.write_at(b"12345", 100).unwrap();
        let error = file.write_at(b"1", 0).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.is_limit());
        assert_eq!(source, "no space is left for it");
    }

    #[test]
    fn a_file_is_never_created_over_another() {
        let scratch = Scratch::new();
        let path = scratch.path().join("file");
        Content::default().create(&path).unwrap();
        assert_eq!(
            Content::default().create(&path).unwrap_err().to_string(),
            format!("create {}", path.display())
        );
    }
}
