//! Removing what containers wrote, without following a link of theirs.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Directories within one another that are entered; deeper ones are met again
/// from their parent, which is moved up first.
const DEPTH: usize = 64;

/// Removes `path` and all below it. What is not there is removed.
///
/// # Errors
/// The first thing that stays.
pub(super) fn tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match open(None, parent) {
        Ok(parent) => parent,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    Ok(remove(&parent, Path::new(name), &parent, 0)?)
}

fn open(at: Option<RawFd>, path: &Path) -> nix::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let descriptor = nix::fcntl::openat(at, path, flags, Mode::empty())?;
    // SAFETY: openat has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Removes `name` in `at`. A tree that is too deep is moved to `top` and removed from there.
fn remove(at: &OwnedFd, name: &Path, top: &OwnedFd, depth: usize) -> nix::Result<()> {
    match unlinkat(Some(at.as_raw_fd()), name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(errno) => return Err(errno),
    }
    let stat = fstatat(Some(at.as_raw_fd()), name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFDIR {
        // Immutable or append-only: said by the first error.
        return Err(Errno::EPERM);
    }
    if depth == DEPTH {
        let shallow = format!(".deep-{}-{}", stat.st_ino, stat.st_dev);
        nix::fcntl::renameat(Some(at.as_raw_fd()), name, Some(top.as_raw_fd()), shallow.as_str())?;
        return remove(top, Path::new(&shallow), top, 0);
    }
    let directory = open(Some(at.as_raw_fd()), name)?;
    loop {
        // Read anew until it is empty: removing while reading may skip entries.
        let names = entries(&directory)?;
        if names.is_empty() {
            break;
        }
        for entry in names {
            remove(&directory, Path::new(&entry), top, depth + 1)?;
        }
    }
    match unlinkat(Some(at.as_raw_fd()), name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Names read at a time: memory does not grow with the directory.
const ENTRIES: usize = 1024;

fn entries(directory: &OwnedFd) -> nix::Result<Vec<std::ffi::OsString>> {
    use std::os::unix::ffi::OsStrExt;
    // A descriptor of its own, so that reading begins at the first entry.
    let own = open(Some(directory.as_raw_fd()), Path::new("."))?;
    let mut reader = Dir::from_fd(std::os::fd::IntoRawFd::into_raw_fd(own))?;
    let mut names = Vec::new();
    for entry in reader.iter().take(ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(std::ffi::OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}
