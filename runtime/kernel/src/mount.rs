//! Mounts without a path: detached, copied, attached.
//!
//! `unsafe`: mount_setattr(2) is in no crate; the kernel reads a structure of the caller.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use rustix::fs::CWD;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};
use rustix::path::Arg;

use crate::errno;
use crate::file::open;

/// open_tree(2): makes a detached copy of the mount at `path`, with the mounts below it if `recursive`.
///
/// # Errors
/// The kernel's.
pub fn clone_mount(
    directory: Option<BorrowedFd<'_>>,
    path: impl Arg,
    recursive: bool,
) -> nix::Result<OwnedFd> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(directory.unwrap_or(CWD), path, flags).map_err(errno)
}

/// move_mount(2): attaches a detached mount at `target`.
///
/// # Errors
/// The kernel's.
pub fn attach_mount(mount: impl AsFd, target: &Path) -> nix::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", CWD, target, flags).map_err(errno)
}

/// move_mount(2): attaches a detached mount at an open directory or file.
///
/// # Errors
/// The kernel's.
pub fn attach_mount_at(mount: impl AsFd, target: impl AsFd) -> nix::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", target, c"", flags).map_err(errno)
}

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
pub struct MountAttributes {
    /// `MOUNT_ATTR_*` to set.
    pub set: u64,
    /// `MOUNT_ATTR_*` to clear.
    pub clear: u64,
    /// `MS_PRIVATE` and the like; 0 changes nothing.
    pub propagation: u64,
    /// The descriptor of the user namespace for `MOUNT_ATTR_IDMAP`.
    pub userns: u64,
}

/// mount_setattr(2) on a mount descriptor.
///
/// # Errors
/// The kernel's.
pub fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    attributes: &MountAttributes,
    recursive: bool,
) -> nix::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the structure is the kernel's own, with its size given; the empty path is a C string.
    Errno::result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const *attributes,
            size_of::<MountAttributes>(),
        )
    })
    .map(drop)
}

/// A file system that is being set up (fsopen(2)).
#[derive(Debug)]
pub struct FileSystemContext(OwnedFd);

impl FileSystemContext {
    /// fsopen(2) of this kind of file system.
    ///
    /// # Errors
    /// ENODEV: the kernel does not have it.
    pub fn open(kind: &CStr) -> nix::Result<FileSystemContext> {
        rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map(FileSystemContext).map_err(errno)
    }

    /// fsconfig(2): sets an option without a value.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_flag(&self, key: &CStr) -> nix::Result<()> {
        rustix::mount::fsconfig_set_flag(&self.0, key).map_err(errno)
    }

    /// fsconfig(2): sets an option to a path.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_path(&self, key: &CStr, path: &Path) -> nix::Result<()> {
        // The kernel accepts 255 bytes here. A longer path is replaced by one that leads to the same file.
        if path.as_os_str().len() < 256 {
            return rustix::mount::fsconfig_set_string(&self.0, key, path).map_err(errno);
        }
        let file = open(path, OFlag::O_PATH)?;
        let short = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::mount::fsconfig_set_string(&self.0, key, short.as_str()).map_err(errno)
    }

    /// fsconfig(2) and fsmount(2): makes the file system, mounted read-only and detached.
    ///
    /// # Errors
    /// The kernel's.
    pub fn mount_read_only(&self) -> nix::Result<OwnedFd> {
        rustix::mount::fsconfig_create(&self.0).map_err(errno)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
        rustix::mount::fsmount(&self.0, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(errno)
    }
}
