//! Directories of the store: their locks and the names in them.

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::error::StoreError;
use crate::content::ContentError;
use nodlet_kernel::own_file;

/// A lock on a directory, held while its contents are changed exclusively.
pub(crate) type Lock = Flock<fs::File>;

pub(crate) fn lock(directory: &Path) -> Result<Lock, ContentError> {
    let failed = |source: io::Error| ContentError::new("lock", directory, source);
    let file = own_file::open_directory(directory).map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))
}

/// Tries to lock a directory. Returns `None` if it is locked by another process or does not exist.
pub(super) fn try_lock(directory: &Path) -> Option<Lock> {
    let file = own_file::open_directory(directory).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

/// Whether a directory is locked, by this process or another.
pub(super) fn is_locked(directory: &Path) -> bool {
    let Ok(file) = own_file::open_directory(directory) else { return false };
    matches!(Flock::lock(file, FlockArg::LockExclusiveNonblock), Err((_, Errno::EWOULDBLOCK)))
}

/// The names in a directory, sorted; empty if it does not exist. Callers remove what has these names, so
/// that a link is refused.
pub(super) fn names_in(directory: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |source: io::Error| ContentError::new("list", directory, source);
    own_file::is_directory(directory).map_err(failed)?;
    let entries = own_file::if_exists(fs::read_dir(directory)).map_err(failed)?;
    let Some(entries) = entries else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
