//! The single steps of a durable change. Each is reported to the seam for faults before it is made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::faults::{Decision, Operation, allow, decide};
use crate::own_file;

/// A file that does not have its final name yet.
#[derive(Debug)]
pub struct Staged {
    file: File,
    path: PathBuf,
}

impl Staged {
    /// Creates an empty file with this mode. A file that an interrupted write has left there is emptied.
    ///
    /// # Errors
    /// The file cannot be created, or something else than a regular file is there.
    pub fn create(path: &Path, mode: u32) -> io::Result<Staged> {
        allow(&Operation::Create(path))?;
        let file = own_file::open_with(path, OpenOptions::new().write(true).create(true).mode(mode))?;
        file.set_len(0)?;
        Ok(Staged { file, path: path.to_owned() })
    }

    /// Creates a file, which must not exist yet, to write and to read it.
    ///
    /// # Errors
    /// The file exists, or cannot be created.
    pub fn create_new(path: &Path) -> io::Result<Staged> {
        allow(&Operation::Create(path))?;
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        Ok(Staged { file, path: path.to_owned() })
    }

    /// Opens a spare file, to overwrite it.
    pub(super) fn take(path: &Path) -> io::Result<Staged> {
        allow(&Operation::Take(path))?;
        let file = own_file::open_with(path, OpenOptions::new().write(true))?;
        Ok(Staged { file, path: path.to_owned() })
    }

    /// The open file.
    pub(super) fn as_file(&self) -> &File {
        &self.file
    }

    /// The present path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes bytes at `offset`.
    ///
    /// # Errors
    /// Not all bytes could be written.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        write(&self.path, bytes, |bytes| self.file.write_all_at(bytes, offset))
    }

    /// Makes `bytes` the whole content of a file that is not shorter, without need for a block.
    pub(super) fn overwrite(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.rewind()?;
        self.write_all(bytes)?;
        self.file.set_len(bytes.len() as u64)
    }

    /// Sets the length in bytes.
    ///
    /// # Errors
    /// The file system cannot do that.
    pub fn set_len(&self, length: u64) -> io::Result<()> {
        allow(&Operation::SetLength(&self.path))?;
        self.file.set_len(length)
    }

    /// Makes the content durable.
    ///
    /// # Errors
    /// The medium failed, or the disk is full.
    pub fn sync(&self) -> io::Result<()> {
        allow(&Operation::Sync(&self.path))?;
        self.file.sync_all()
    }

    /// Makes the content durable, gives the file its final name, and makes that durable.
    ///
    /// # Errors
    /// A step failed.
    pub fn commit(self, to: &Path) -> io::Result<()> {
        self.sync()?;
        rename(&self.path, to)?;
        sync_directory(to.parent().ok_or(io::ErrorKind::InvalidInput)?)
    }
}

/// Writes bytes behind those written before.
impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = &mut self.file;
        write(&self.path, bytes, |bytes| file.write_all(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Staged {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn write(path: &Path, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
    match decide(&Operation::Write { path, bytes: bytes.len() }) {
        Decision::Proceed => write(bytes),
        Decision::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
        Decision::Short(length, errno) => {
            write(bytes.get(..length).unwrap_or(bytes))?;
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Renames a file or a directory. [`sync_directory`] makes that durable.
///
/// # Errors
/// It cannot be renamed.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    allow(&Operation::Rename { from, to })?;
    fs::rename(from, to)
}

/// Removes a file if it exists. A power cut may bring it back: see [`super::remove`].
///
/// # Errors
/// The file cannot be removed.
pub fn discard(path: &Path) -> io::Result<()> {
    allow(&Operation::Remove(path))?;
    own_file::if_exists(fs::remove_file(path)).map(drop)
}

/// Makes the names in a directory durable.
///
/// # Errors
/// It cannot be opened, or the sync failed.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    allow(&Operation::SyncDirectory(directory))?;
    own_file::open_directory(directory)?.sync_all()
}

/// Creates a directory with this mode, and its missing parents with mode 0755, durably.
///
/// # Errors
/// A directory cannot be created or synced.
pub fn create_directories(directory: &Path, mode: u32) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        create_directories(parent, 0o755)?;
    }
    allow(&Operation::CreateDirectory(directory))?;
    match fs::DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    directory.parent().map_or(Ok(()), sync_directory)
}

/// Whether files below this directory, which need not exist yet, are in memory and so lost at the next boot.
pub fn is_in_memory(directory: &Path) -> bool {
    /// The magic number from linux/magic.h, which `nix` lacks.
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    let kind = directory.ancestors().find_map(|path| statfs(path).ok()).map(|stat| stat.filesystem_type());
    // Compared as numbers, because the type differs between libcs.
    kind.is_some_and(|kind| kind == TMPFS_MAGIC || kind.0 as u32 == RAMFS_MAGIC)
}
