//! Writes and removes files that survive a power cut: after one, a file is either the old or the new one. What must
//! survive one is changed through this module, so that tests can let each step of each change fail ([`observe`]).
//!
//! | change | function | after a power cut |
//! | --- | --- | --- |
//! | a file on flash | [`replace`] | the old or the new content; the new one if the function has returned |
//! | a large file, written piece by piece | [`Staged`], [`Staged::commit`] | as above |
//! | a file on tmpfs | [`replace_in_memory`] | no file; after the death of the writer, the old or the new content |
//! | removal of a file | [`remove`] | no file if the function has returned |
//! | removal of a leftover | [`discard`] | the file, or none |
//!
//! Nothing is appended durably: logs and the parts of a push are whole up to some byte, and read that way.
//!
//! Unchanged files are not written. In the agent, only the storage thread calls the functions that sync. On a full file
//! system, a file is written in a spare file of the [`Reserve`], if its writer may use that.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

mod faults;
mod file;
mod reserve;

use crate::own_file;
use faults::allow;

pub use faults::{Decision, Observed, Operation, observe};
pub use file::{Staged, create_directories, discard, is_in_memory, rename, sync_directory};
pub use reserve::{Headroom, Reserve, SLACK_PREFIX, is_full};

/// Replaces the contents of `path` with `bytes`, atomically: after a power cut at any moment, the file is the old or
/// the new one. Writes nothing if the file is already the new one. The file and its directory, if they do not exist, are
/// made such that only their owner may read them. While it is written, the new file has the name `.NAME.new`.
///
/// # Errors
/// A step failed. Either the old file still exists, or the new one exists and may not survive a power cut; another
/// call makes it durable.
pub fn replace(path: &Path, bytes: &[u8], reserve: Option<(&Reserve, Headroom)>) -> io::Result<()> {
    replace_identified(path, bytes, reserve, |_| Ok(()))
}

/// Replaces the contents of `path` as [`replace`] does. Returns what `identify` returns of the file with these contents:
/// of the open file, as soon as it has its name, so that what another program puts in its place is not taken for it.
///
/// # Errors
/// Those of [`replace`] and of `identify`.
pub fn replace_identified<T>(
    path: &Path,
    bytes: &[u8],
    reserve: Option<(&Reserve, Headroom)>,
    identify: impl Fn(&File) -> io::Result<T>,
) -> io::Result<T> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let is_current = |mut file: File| {
        let (identity, mut old) = (identify(&file)?, Vec::new());
        file.read_to_end(&mut old)?;
        Ok((old == bytes).then_some(identity))
    };
    if let Ok(Some(identity)) = own_file::open(path).and_then(is_current) {
        // An earlier attempt that failed, or an agent that was killed, may have renamed the file without making
        // that durable. If it is durable, this writes nothing.
        return sync_directory(directory).map(|()| identity);
    }
    // Only root may read records and applied objects, even if the directory was removed meanwhile.
    create_directories(directory, 0o700)?;
    let written = replace_by_new(path, bytes, 0o600, Staged::sync, &identify);
    let (full, (reserve, left)) = match (written, reserve) {
        (Err(full), Some(reserve)) if is_full(&full) => (full, reserve),
        (written, _) => return written.and_then(|identity| sync_directory(directory).map(|()| identity)),
    };
    let Some(mut spare) = reserve.take(bytes.len(), left)? else { return Err(full) };
    // If that fails, the spare file stays in the reserve.
    spare.file.overwrite(bytes)?;
    spare.file.sync()?;
    reserve.rename(spare.file.path(), path)?;
    let identity = identify(spare.file.as_file())?;
    sync_directory(directory).map(|()| identity)
}

/// Replaces a file on tmpfs atomically: readers, also after the death of the writer, find the old or the new one. Nothing
/// is synced, since all files of tmpfs are lost at a power cut. Everybody may read a file that did not exist. While it is
/// written, the new file has the name `.NAME.new`.
///
/// # Errors
/// The file cannot be written; the old one still exists.
pub fn replace_in_memory(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    replace_by_new(path, bytes.as_ref(), 0o666, |_| Ok(()), |_| Ok(()))
}

/// Writes a new file beside `path`, and renames it over `path`.
fn replace_by_new<T>(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    sync: impl FnOnce(&Staged) -> io::Result<()>,
    identify: impl FnOnce(&File) -> io::Result<T>,
) -> io::Result<T> {
    // Readers of the directory ignore a dot file.
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(".new");
    let new = path.with_file_name(name);
    let written = Staged::create(&new, mode).and_then(|mut file| {
        file.write_all(bytes)?;
        sync(&file)?;
        rename(&new, path)?;
        identify(file.as_file())
    });
    if written.is_err() {
        // Best effort: the next write of this file truncates it anyway.
        let _ = discard(&new);
    }
    written
}

/// Removes `path` durably. The file need not exist.
///
/// # Errors
/// A step failed.
pub fn remove(path: &Path) -> io::Result<()> {
    discard(path)?;
    // An earlier removal may not be durable yet: see `replace`.
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if directory.is_dir() { sync_directory(directory) } else { Ok(()) }
}

/// Makes a file or directory durable that another program has written, unless it is gone.
///
/// # Errors
/// The file cannot be opened, or its sync failed.
pub fn sync(path: &Path) -> io::Result<()> {
    allow(&Operation::Sync(path))?;
    // Another program may have put a pipe there, which must not block.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let synced =
        OpenOptions::new().read(true).custom_flags(flags).open(path).and_then(|file| file.sync_all());
    match synced {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Read-only file systems and special files have nothing to sync.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EROFS)) => Ok(()),
        other => other,
    }
}
