//! Directories that a layer uses and does not describe, as `tmp` in a layer of
//! nothing but `tmp/file`. They are what the layers below say they are, as where
//! layers are unpacked over each other; overlayfs would believe the upper layer,
//! which knows nothing of them. So the container's own layer, which is above all,
//! repeats what is said below.
//!
//! A layer carries marks on the way to such directories ([`MARK`]); one without
//! costs a single look. Follows no link: layers are hostile, and a link in one
//! would lead into the host.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;

use super::kernel;
use crate::tree::{IMPLIED, MARK};

/// Such directories of all layers together: each is made again for every container.
const DIRECTORIES_MAX: usize = 4096;

/// Describes in `upper`, which is empty, what layers above the lowest leave to those below.
pub(super) fn describe(layers: &[BorrowedFd<'_>], upper: BorrowedFd<'_>) -> io::Result<()> {
    let mut implied: Vec<BTreeSet<PathBuf>> = Vec::with_capacity(layers.len());
    for layer in layers {
        let mut found = BTreeSet::new();
        if let Some(root) = open(*layer, Path::new("."))? {
            collect(root, Path::new(""), &mut found)?;
        }
        implied.push(found);
    }
    let wanted: BTreeSet<&PathBuf> = implied.iter().skip(1).flatten().collect();
    if wanted.len() > DIRECTORIES_MAX {
        let message = format!("its layers leave more than {DIRECTORIES_MAX} directories undescribed");
        return Err(io::Error::other(message));
    }
    let upper = PathBuf::from(format!("/proc/self/fd/{}", upper.as_raw_fd()));
    let mut made = Vec::new();
    for path in wanted {
        // Those above it are described where they are said to be something, too.
        let way: Vec<&Path> = path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        for path in way.into_iter().rev() {
            let there = upper.join(path);
            if there.is_dir() {
                continue;
            }
            let Some(below) = described(layers, &implied, path)? else { break };
            let below = below.metadata()?;
            fs::create_dir(&there)?;
            std::os::unix::fs::chown(&there, Some(below.uid()), Some(below.gid()))?;
            fs::set_permissions(&there, Permissions::from_mode(below.mode() & 0o7777))?;
            made.push((there, TimeSpec::new(below.mtime(), below.mtime_nsec())));
        }
    }
    // What is made in a directory changes its time.
    for (path, time) in made.iter().rev() {
        utimensat(None, path, time, time, UtimensatFlags::NoFollowSymlink)?;
    }
    Ok(())
}

/// Adds the marked directories in `directory`, which is at `path`.
fn collect(directory: File, path: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let Some(mark) = attribute(&directory, &trusted(MARK))? else { return Ok(()) };
    if mark == IMPLIED {
        found.insert(path.to_owned());
    }
    if found.len() > DIRECTORIES_MAX {
        return Ok(());
    }
    let mut entries = Dir::from(OwnedFd::from(directory.try_clone()?))?;
    for entry in entries.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() != Some(Type::Directory) || [c".", c".."].contains(&name) {
            continue;
        }
        let name = Path::new(OsStr::from_bytes(name.to_bytes()));
        if let Some(child) = open(directory.as_fd(), name)? {
            collect(child, &path.join(name), found)?;
        }
    }
    Ok(())
}

/// The directory of the topmost layer that describes it, if no layer above that hides it.
fn described(
    layers: &[BorrowedFd<'_>],
    implied: &[BTreeSet<PathBuf>],
    path: &Path,
) -> io::Result<Option<File>> {
    for (layer, implied) in layers.iter().zip(implied).rev() {
        if !implied.contains(path) {
            match open(*layer, path) {
                Ok(Some(directory)) => return Ok(Some(directory)),
                Ok(None) => {}
                // A file, a link or a whiteout is there, or above.
                Err(error) if [Some(libc::ENOTDIR), Some(libc::ELOOP)].contains(&error.raw_os_error()) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        for above in path.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()) {
            let opaque = match open(*layer, above)? {
                Some(directory) => attribute(&directory, c"trusted.overlay.opaque")?.is_some(),
                None => false,
            };
            if opaque {
                return Ok(None);
            }
        }
    }
    Ok(None)
}

/// The directory at `path` below `at`, without following a link; `None` if there is nothing.
fn open(at: BorrowedFd<'_>, path: &Path) -> io::Result<Option<File>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    match kernel::open_directory_beneath(at, &path) {
        Ok(directory) => Ok(Some(directory.into())),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn trusted(name: &[u8]) -> CString {
    CString::new([b"trusted.", name].concat()).unwrap_or_default()
}

/// Up to eight bytes of an extended attribute.
fn attribute(file: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; 8];
    // SAFETY: name and buffer outlive the call, and the length is the buffer's.
    let length =
        unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    match Errno::result(length) {
        Ok(length) => {
            value.truncate(length as usize);
            Ok(Some(value))
        }
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
