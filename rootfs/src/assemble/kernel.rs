//! The system calls for detached mounts that `nix` lacks.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_int, c_long, c_uint};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::undisturbed;

// linux/mount.h
const FSOPEN_CLOEXEC: c_uint = 1;
const FSCONFIG_SET_FLAG: c_uint = 0;
const FSCONFIG_SET_STRING: c_uint = 1;
const FSCONFIG_CMD_CREATE: c_uint = 6;
const FSMOUNT_CLOEXEC: c_uint = 1;
const MOUNT_ATTR_RDONLY: c_uint = 1;
const OPEN_TREE_CLONE: c_uint = 1;
const MOVE_MOUNT_F_EMPTY_PATH: c_uint = 4;

pub(super) fn open(path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let fd = nix::fcntl::open(path, flags, Mode::empty())?;
    // SAFETY: open succeeded, so the descriptor is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn descriptor(result: c_long) -> Result<OwnedFd, Errno> {
    let fd = Errno::result(result)?;
    // SAFETY: the call succeeded, so it returned a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn c_path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

pub(super) fn fsopen(kind: &CStr) -> Result<OwnedFd, Errno> {
    // SAFETY: `kind` ends in NUL and outlives the call.
    descriptor(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })
}

fn fsconfig(
    context: BorrowedFd<'_>,
    command: c_uint,
    key: Option<&CStr>,
    value: Option<&CStr>,
) -> Result<(), Errno> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    let none: c_int = 0;
    // SAFETY: key and value are null or end in NUL, and outlive the call.
    let result = unsafe {
        libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, pointer(key), pointer(value), none)
    };
    Errno::result(result).map(drop)
}

pub(super) fn set_flag(context: BorrowedFd<'_>, key: &CStr) -> Result<(), Errno> {
    fsconfig(context, FSCONFIG_SET_FLAG, Some(key), None)
}

pub(super) fn set_path(context: BorrowedFd<'_>, key: &CStr, path: &Path) -> Result<(), Errno> {
    let value = c_path(path)?;
    // The kernel accepts 255 bytes here. A longer path is replaced by one that leads to the same file.
    if value.as_bytes().len() < 256 {
        return fsconfig(context, FSCONFIG_SET_STRING, Some(key), Some(&value));
    }
    let file = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC)?;
    let value = c_path(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?;
    fsconfig(context, FSCONFIG_SET_STRING, Some(key), Some(&value))
}

pub(super) fn create(context: BorrowedFd<'_>) -> Result<(), Errno> {
    fsconfig(context, FSCONFIG_CMD_CREATE, None, None)
}

pub(super) fn fsmount(context: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: takes numbers only.
    descriptor(unsafe {
        libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY)
    })
}

/// Copies the mount that shows this directory, to a detached mount.
pub(crate) fn open_tree_clone(mount: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as c_uint | libc::AT_EMPTY_PATH as c_uint;
    // SAFETY: the empty path ends in NUL and outlives the call.
    descriptor(unsafe { libc::syscall(libc::SYS_open_tree, mount.as_raw_fd(), c"".as_ptr(), flags) })
}

pub(super) fn move_mount(mount: BorrowedFd<'_>, target: &Path) -> Result<(), Errno> {
    let target = c_path(target)?;
    // SAFETY: both paths end in NUL and outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    Errno::result(result).map(drop)
}

/// Opens a directory below `at` without following links.
pub(super) fn open_directory_beneath(at: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    openat2(at, path, flags, libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS)
}

/// Opens a path below `root` for reading as if `root` were `/`, so that no link leads out.
pub(crate) fn open_in_root(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    // Without O_NONBLOCK, opening a fifo would wait for a writer.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    openat2(root, path, flags, libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS)
}

fn openat2(at: BorrowedFd<'_>, path: &CStr, flags: c_int, resolve: u64) -> Result<OwnedFd, Errno> {
    // SAFETY: open_how is plain numbers, for which zero is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags as u64;
    how.resolve = resolve;
    undisturbed(|| {
        // SAFETY: the path ends in NUL, and the size is that of `how`.
        descriptor(unsafe {
            libc::syscall(libc::SYS_openat2, at.as_raw_fd(), path.as_ptr(), &how, size_of::<libc::open_how>())
        })
    })
}
