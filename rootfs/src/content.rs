//! Changes to the files of the image store, by [`nodlet_kernel::durable`], with errors that name the file.
//!
//! This module does not know what the files mean. `load` and `store` decide the order of operations by which
//! each file is always the old or the new one.

use std::borrow::Cow;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use nodlet_kernel::durable::{self, Staged};

/// An operation on the store that failed.
#[derive(Debug, thiserror::Error)]
#[error("{verb} {}", path.display())]
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
#[derive(Debug, thiserror::Error)]
#[error("no space is left for it")]
struct LimitReached;

/// Creates the directory and its missing ancestors, each durably.
pub(crate) fn create_directories(path: &Path) -> Result<(), ContentError> {
    durable::create_directories(path, 0o755)
        .map_err(|source| ContentError::new("create directory", path, source))
}

/// Creates a file, which must not exist yet.
pub(crate) fn create(path: &Path) -> Result<File, ContentError> {
    let file = Staged::create_new(path).map_err(|source| ContentError::new("create", path, source))?;
    Ok(File { file, written: 0, limit: u64::MAX })
}

/// Replaces a small file at `path` atomically: it is written at `staged`, synced, and renamed. The rename
/// is durable when [`sync_directory`] of its directory has returned.
pub(crate) fn replace(staged: &Path, path: &Path, bytes: &[u8]) -> Result<(), ContentError> {
    let mut file = create(staged)?;
    file.write_at(bytes, 0)?;
    file.sync()?;
    rename(staged, path)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), ContentError> {
    durable::rename(from, to).map_err(|source| ContentError::new("rename into place", to, source))
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), ContentError> {
    durable::sync_directory(path).map_err(|source| ContentError::new("sync directory", path, source))
}

/// Removes a file if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), ContentError> {
    durable::discard(path).map_err(|source| ContentError::new("remove", path, source))
}

/// Free bytes for files below `path`.
pub(crate) fn free_space(path: &Path) -> Result<u64, ContentError> {
    let stat =
        statvfs(path).map_err(|errno| ContentError::new("measure the free space of", path, errno.into()))?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size() as u64))
}

/// A new file of the store.
#[derive(Debug)]
pub(crate) struct File {
    file: Staged,
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
        let written = self.written.saturating_add(bytes.len() as u64);
        let result = if written > self.limit {
            Err(io::Error::other(LimitReached))
        } else {
            self.written = written;
            self.file.write_all_at(bytes, offset)
        };
        result.map_err(|source| ContentError::new("write", self.file.path(), source))
    }

    pub(crate) fn set_length(&mut self, length: u64) -> Result<(), ContentError> {
        let set = self.file.set_len(length);
        set.map_err(|source| ContentError::new("set the length of", self.file.path(), source))
    }

    /// Syncs the file and drops its pages from the cache: it is next read when a pod starts, and until then
    /// the memory is better used elsewhere.
    pub(crate) fn sync(&mut self) -> Result<(), ContentError> {
        self.file.sync().map_err(|source| ContentError::new("sync", self.file.path(), source))?;
        let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        // This is only advice: nothing is lost if a file system ignores it.
        let _ = nix::fcntl::posix_fadvise(self.file.as_fd().as_raw_fd(), 0, 0, advice);
        Ok(())
    }
}

/// Fills the block, or reads until the content ends.
pub(crate) fn read_block(content: &mut dyn Read, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match content.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_file_is_never_created_over_another() {
        let scratch = Scratch::new();
        let path = scratch.path().join("file");
        create(&path).unwrap();
        assert_eq!(create(&path).unwrap_err().to_string(), format!("create {}", path.display()));
    }
}
