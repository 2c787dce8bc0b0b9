//! `hostPath`: a path of the machine itself. It is checked, and created if requested, but its owner is never
//! changed and it is never removed.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, mkdirat};

use nodlet_core::spec::volume::HostPathType;
use nodlet_kernel::file::{open, open_at};

use super::{VolumeError, ownership};

/// Modes that Kubernetes promises; the agent's umask does not change them.
const DIRECTORY_MODE: Mode = Mode::from_bits_truncate(0o755);
const FILE_MODE: u32 = 0o644;

/// Checks `path` against `hostPath.type`, and creates it if the type says so.
pub(super) fn check(path: &Path, kind: HostPathType) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Create { path: path.to_owned(), source };
    let found = fs::metadata(path).ok().map(|metadata| metadata.file_type());
    let right = |right: bool, wanted| {
        if right { Ok(()) } else { Err(VolumeError::HostPathType { path: path.to_owned(), wanted }) }
    };
    match kind {
        // A kubelet does not check, and the container runtimes create a directory.
        HostPathType::Unset if found.is_some() => Ok(()),
        HostPathType::Unset | HostPathType::DirectoryOrCreate => match found {
            Some(found) => right(found.is_dir(), "a directory"),
            None => make_directory(path).map_err(failed),
        },
        HostPathType::FileOrCreate => match found {
            Some(found) => right(found.is_file(), "a file"),
            None => {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(FILE_MODE).open(path).map(drop).map_err(failed)
            }
        },
        HostPathType::Directory => right(found.is_some_and(|found| found.is_dir()), "a directory"),
        HostPathType::File => right(found.is_some_and(|found| found.is_file()), "a file"),
        HostPathType::Socket => right(found.is_some_and(|found| found.is_socket()), "a socket file"),
        HostPathType::CharDevice => {
            right(found.is_some_and(|found| found.is_char_device()), "a character device")
        }
        HostPathType::BlockDevice => {
            right(found.is_some_and(|found| found.is_block_device()), "a block device")
        }
    }
}

/// Checks the path of a local PersistentVolume, which is never created, and gives its files to the group of a pod:
/// always, or only if its root does not belong to the group.
pub(super) fn check_local(path: &Path, fs_group: Option<(u32, bool)>) -> Result<(), VolumeError> {
    if fs::symlink_metadata(path).is_err() {
        return Err(VolumeError::Missing { path: path.to_owned() });
    }
    check(path, HostPathType::Directory)?;
    fs_group.map_or(Ok(()), |(group, always)| ownership::give_to(path, group, always))
}

/// Finds the block device at `path`: its major and minor number.
pub(super) fn block_device(path: &Path) -> Result<(u32, u32), VolumeError> {
    let missing = |_| VolumeError::Missing { path: path.to_owned() };
    let found = fs::metadata(path).map_err(missing)?;
    if !found.file_type().is_block_device() {
        return Err(VolumeError::HostPathType { path: path.to_owned(), wanted: "a block device" });
    }
    // The kernel's numbers have at most 20 bits.
    let number = found.rdev();
    Ok((nix::sys::stat::major(number) as u32, nix::sys::stat::minor(number) as u32))
}

/// Makes a directory and its missing parents. Another pod may be able to write there and replace a directory
/// that was just made by a link. Therefore no link is followed, and no mode is set afterwards, since that
/// might change another file.
fn make_directory(path: &Path) -> io::Result<()> {
    let (mut there, mut missing) = (path, Vec::new());
    let mut directory = loop {
        // As written in the manifest: links in the existing part are followed.
        match open(there, OFlag::O_DIRECTORY) {
            Err(Errno::ENOENT) => {}
            opened => break opened?,
        }
        let (Some(above), Some(name)) = (there.parent(), there.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        missing.push(name);
        there = above;
    };
    for name in missing.iter().rev() {
        match mkdirat(Some(directory.as_raw_fd()), *name, DIRECTORY_MODE) {
            // Another pod names the same path.
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        directory = open_at(&directory, *name, OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW)?;
    }
    Ok(())
}
