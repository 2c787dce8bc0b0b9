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
    let implied = layers.iter().map(|layer| undescribed(*layer)).collect::<io::Result<Vec<_>>>()?;
    // What the lowest leaves undescribed is what it is.
    let above = implied.iter().skip(1);
    let cut_off = above.clone().any(|layer| layer.cut_off);
    let wanted: BTreeSet<&PathBuf> = above.flat_map(|layer| &layer.found).collect();
    if cut_off || wanted.len() > DIRECTORIES_MAX {
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
            // Both have 32 bits on 32-bit ARM, in what the standard library reads as well.
            made.push((there, TimeSpec::new(below.mtime() as _, below.mtime_nsec() as _)));
        }
    }
    // What is made in a directory changes its time.
    for (path, time) in made.iter().rev() {
        utimensat(None, path, time, time, UtimensatFlags::NoFollowSymlink)?;
    }
    Ok(())
}

/// The directories of a layer that it uses and does not describe.
struct Undescribed {
    found: BTreeSet<PathBuf>,
    /// Not all of them: they are more than [`DIRECTORIES_MAX`].
    cut_off: bool,
}

/// However deep a layer is, few of its directories are open at a time.
fn undescribed(layer: BorrowedFd<'_>) -> io::Result<Undescribed> {
    let mark = trusted(MARK);
    let mut found = BTreeSet::new();
    // Each of these has at least one in it, or is one itself.
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
                return Ok(Undescribed { found, cut_off: true });
            }
        }
    }
    Ok(Undescribed { found, cut_off: false })
}

/// The directory of the topmost layer that describes it, if no layer above that hides it.
fn described(layers: &[BorrowedFd<'_>], implied: &[Undescribed], path: &Path) -> io::Result<Option<File>> {
    for (layer, implied) in layers.iter().zip(implied).rev() {
        if !implied.found.contains(path) {
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
