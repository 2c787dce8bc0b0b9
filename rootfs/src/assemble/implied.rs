//! Handles directories that a layer uses but does not describe, such as `tmp` in a layer that has only
//! `tmp/file`. They must look as lower layers describe them, as if the layers were unpacked over each other.
//! But overlayfs uses the attributes of the upper layer, which does not know them. So the container's own
//! layer, the topmost, repeats the descriptions of lower layers.
//!
//! Layers have marks on the way to such directories ([`MARK`]); a layer without marks costs a single look. No
//! links are followed: layers are hostile, and a link in one would lead into the host.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::fcntl::{OFlag, ResolveFlag};
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nodlet_kernel::file::open_in;
use rustix::io::Errno;

use crate::tree::{IMPLIED, MARK};

/// The most undescribed directories of all layers together: each is created again for every container.
const DIRECTORIES_MAX: usize = 4096;

/// Describes in `upper`, which is empty, the directories that layers above the lowest leave undescribed.
pub(super) fn describe(layers: &[BorrowedFd<'_>], upper: BorrowedFd<'_>) -> io::Result<()> {
    let implied = layers.iter().map(|layer| undescribed(*layer)).collect::<io::Result<Vec<_>>>()?;
    // Directories that the lowest layer leaves undescribed have no other description.
    let above = implied.iter().skip(1);
    let cut_off = above.clone().any(|layer| layer.cut_off);
    let wanted: BTreeSet<&PathBuf> = above.flat_map(|layer| &layer.directories).collect();
    if cut_off || wanted.len() > DIRECTORIES_MAX {
        let message = format!("its layers leave more than {DIRECTORIES_MAX} directories undescribed");
        return Err(io::Error::other(message));
    }
    let upper = PathBuf::from(format!("/proc/self/fd/{}", upper.as_raw_fd()));
    let mut made = Vec::new();
    for path in wanted {
        // Parent directories come first; they need a description, too.
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
            // Both are 32 bits wide on 32-bit ARM, even in the standard library.
            made.push((there, TimeSpec::new(below.mtime() as _, below.mtime_nsec() as _)));
        }
    }
    // Creating entries in a directory changes its mtime, so the times are set last.
    for (path, time) in made.iter().rev() {
        utimensat(None, path, time, time, UtimensatFlags::NoFollowSymlink)?;
    }
    Ok(())
}

/// The directories that a layer uses but does not describe.
struct Undescribed {
    directories: BTreeSet<PathBuf>,
    /// Whether the list is incomplete, because there are more than [`DIRECTORIES_MAX`].
    cut_off: bool,
}

/// Finds the undescribed directories of a layer. Opens few directories at a time, however deep the layer is.
fn undescribed(layer: BorrowedFd<'_>) -> io::Result<Undescribed> {
    let mark = trusted(MARK);
    let mut found = BTreeSet::new();
    // Each of these contains at least one undescribed directory, or is one.
    let mut todo = vec![PathBuf::from(".")];
    while let Some(path) = todo.pop() {
        let Some(directory) = open(layer, &path)? else { continue };
        let Some(value) = attribute(&directory, &mark)? else { continue };
        if value == IMPLIED {
            found.insert(path.strip_prefix(".").unwrap_or(&path).to_owned());
        }
        let mut entries = Dir::from(OwnedFd::from(directory.try_clone()?))?;
        for entry in entries.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type() != Some(Type::Directory) || [c".", c".."].contains(&name) {
                continue;
            }
            let name = Path::new(OsStr::from_bytes(name.to_bytes()));
            let Some(child) = open(directory.as_fd(), name)? else { continue };
            if attribute(&child, &mark)?.is_some() {
                todo.push(path.join(name));
            }
            if found.len() + todo.len() > DIRECTORIES_MAX {
                return Ok(Undescribed { directories: found, cut_off: true });
            }
        }
    }
    Ok(Undescribed { directories: found, cut_off: false })
}

/// Opens the directory in the topmost layer that describes it, unless a higher layer hides it.
fn described(layers: &[BorrowedFd<'_>], implied: &[Undescribed], path: &Path) -> io::Result<Option<File>> {
    for (layer, implied) in layers.iter().zip(implied).rev() {
        if !implied.directories.contains(path) {
            match open(*layer, path) {
                Ok(Some(directory)) => return Ok(Some(directory)),
                Ok(None) => {}
                // The layer has a file, a link or a whiteout at this path or above.
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

/// Opens the directory at `path` below `at` without following links; `None` if nothing exists there.
fn open(at: BorrowedFd<'_>, path: &Path) -> io::Result<Option<File>> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    match open_in(at, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, resolve) {
        Ok(directory) => Ok(Some(directory.into())),
        Err(nix::Error::ENOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn trusted(name: &[u8]) -> CString {
    CString::new([b"trusted.", name].concat()).unwrap_or_default()
}

/// Reads up to eight bytes of an extended attribute.
fn attribute(file: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; 8];
    match rustix::fs::fgetxattr(file, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
