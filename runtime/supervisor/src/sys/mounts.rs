//! Mounts without a path.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::{c_path, check, owned};

/// `open_tree(2)`: makes a detached copy of the mount at `path`, with the mounts below it if `recursive`.
pub(crate) fn clone_mount(
    directory: Option<BorrowedFd>,
    path: &CStr,
    recursive: bool,
) -> io::Result<OwnedFd> {
    let mut flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    if recursive {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    let directory = directory.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: the path is a C string, and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, directory, path.as_ptr(), flags) })
}

/// `move_mount(2)`: attaches a detached mount at `target`.
pub(crate) fn attach_mount(mount: BorrowedFd, target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
    // SAFETY: both paths are C strings, and outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// `move_mount(2)`: attaches a detached mount at an open directory or file.
pub(crate) fn attach_mount_at(mount: BorrowedFd, target: BorrowedFd) -> io::Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: both paths are empty C strings.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
pub(crate) struct MountAttributes {
    pub(crate) set: u64,
    pub(crate) clear: u64,
    pub(crate) propagation: u64,
    pub(crate) userns: u64,
}

/// `mount_setattr(2)` on a mount descriptor.
pub(crate) fn set_mount_attributes(
    mount: BorrowedFd,
    attributes: &MountAttributes,
    recursive: bool,
) -> io::Result<()> {
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the structure is the kernel's own, with its size given.
    check(unsafe {
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

/// Maps the IDs of files by a user namespace (`MOUNT_ATTR_IDMAP`) on a detached mount that nobody has used yet; with
/// `recursive`, also on the mounts below it whose file systems can.
pub(crate) fn map_ids(mount: BorrowedFd, users: BorrowedFd, recursive: bool) -> io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let attributes = MountAttributes { set: IDMAP, userns: users.as_raw_fd() as u64, ..Default::default() };
    let mapped = match set_mount_attributes(mount, &attributes, recursive) {
        // All or none: without the mounts below it, whose files then belong to nobody.
        Err(_) if recursive => set_mount_attributes(mount, &attributes, false),
        mapped => mapped,
    };
    mapped.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENOSYS) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel cannot map the IDs of its file system, as hostUsers: false needs (tmpfs: Linux 6.3; /proc, /sys and devices: never)",
        ),
        _ => error,
    })
}
