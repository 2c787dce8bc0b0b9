//! Changes the device nodes of a running container, when a device was unplugged or plugged in again.
//!
//! Called by the exec helper in the container's mount namespace, with all capabilities. The container may have
//! replaced everything in its /dev, so no link is followed, nothing outside of its /dev is reached, and nodes
//! are made only on a tmpfs: not in a volume that is mounted there.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::sys::{self, Resolve};
use super::user::User;
use nodlet_host::launch::{DeviceChange, DeviceNode};

/// Removes the nodes of devices that are gone, and makes those of new ones. `user` has IDs of the host, on which
/// `first` is ID 0 of the container.
///
/// # Errors
/// The path of the first node that could not be removed or made, with the cause.
pub(super) fn apply(change: &DeviceChange, user: &User, first: u32) -> Result<(), (PathBuf, io::Error)> {
    // The mode of a node is its own.
    nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    let failed = |device: &DeviceNode| {
        let path = device.path.clone();
        move |source| (path, source)
    };
    for device in &change.gone {
        remove(device).map_err(failed(device))?;
    }
    change.added.iter().try_for_each(|device| {
        let own = |id: Option<u32>| id.map(|id| first + id);
        let node = DeviceNode { uid: own(device.uid), gid: own(device.gid), ..device.clone() };
        make(&node, user).map_err(failed(device))
    })
}

/// Opens the directory of a node, and makes it if `makes`. Returns it with the node's name.
fn directory(path: &Path, makes: bool) -> io::Result<(File, CString)> {
    let root = sys::open_path(Path::new("/"))?;
    let dev = sys::open_in(root.as_fd(), Path::new("dev"), PATH, Resolve::NoLinks)?;
    directory_below(dev, path, makes)
}

/// How directories are opened.
const PATH: i32 = libc::O_PATH | libc::O_DIRECTORY;

fn directory_below(dev: File, path: &Path, makes: bool) -> io::Result<(File, CString)> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "it is not below /dev");
    let below = path.strip_prefix("/dev").map_err(|_| wrong())?;
    let name = CString::new(below.file_name().ok_or_else(wrong)?.as_bytes())?;
    let (mut directory, flags) = (dev, PATH);
    check(&directory)?;
    for part in below.parent().into_iter().flatten().map(Path::new) {
        directory = match sys::open_in(directory.as_fd(), part, flags, Resolve::NoLinks) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && makes => {
                rustix::fs::mkdirat(&directory, part, 0o755.into())?;
                sys::open_in(directory.as_fd(), part, flags, Resolve::NoLinks)?
            }
            opened => opened?,
        };
        check(&directory)?;
    }
    Ok((directory, name))
}

/// Checks that a directory is on a tmpfs.
fn check(directory: &File) -> io::Result<()> {
    if nix::sys::statfs::fstatfs(directory)?.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC {
        return Ok(());
    }
    Err(io::Error::other("the container has mounted a file system over its directory"))
}

fn remove(device: &DeviceNode) -> io::Result<()> {
    let (directory, name) = match directory(&device.path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let kind = if device.block { libc::S_IFBLK } else { libc::S_IFCHR };
    let at = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
    match nix::sys::stat::fstatat(Some(directory.as_raw_fd()), name.as_c_str(), at) {
        // What the container has put in the node's place stays.
        Ok(found)
            if found.st_mode & libc::S_IFMT == kind
                && found.st_rdev == libc::makedev(device.major, device.minor) =>
        {
            unlink(&directory, &name)
        }
        Ok(_) | Err(nix::Error::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes the nodes of devices in the /dev of a container that is being started.
pub(super) fn make_all(dev: &File, devices: &[DeviceNode], user: &User) -> io::Result<()> {
    let umask = nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    let result = devices.iter().try_for_each(|device| {
        directory_below(dev.try_clone()?, &device.path, true).and_then(|place| make_at(place, device, user))
    });
    nix::sys::stat::umask(umask);
    result
}

fn make(device: &DeviceNode, user: &User) -> io::Result<()> {
    make_at(directory(&device.path, true)?, device, user)
}

fn make_at((directory, name): (File, CString), device: &DeviceNode, user: &User) -> io::Result<()> {
    let kind = if device.block { FileType::BlockDevice } else { FileType::CharacterDevice };
    let (mode, number) = (device.permissions().into(), rustix::fs::makedev(device.major, device.minor));
    let node = || rustix::fs::mknodat(&directory, &name, kind, mode, number);
    match node() {
        Err(Errno::EXIST) => {
            unlink(&directory, &name)?;
            node()?;
        }
        result => result?,
    }
    let (uid, gid) = (device.uid.unwrap_or(user.uid), device.gid.unwrap_or(user.gid));
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(rustix::fs::chownat(&directory, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn unlink(directory: &File, name: &CString) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
}
