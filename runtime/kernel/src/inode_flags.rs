//! The flags of inodes that chattr(1) shows and sets.

use std::os::fd::{AsRawFd, BorrowedFd};

nix::ioctl_read!(
    /// `FS_IOC_GETFLAGS`. The kernel writes an int, whatever the number says.
    get, b'f', 1, libc::c_long
);
nix::ioctl_write_ptr!(
    /// `FS_IOC_SETFLAGS`. The kernel reads an int.
    set, b'f', 2, libc::c_long
);

/// The flags of an open file (`FS_*_FL` of linux/fs.h).
///
/// # Errors
/// The file system has no such flags.
pub fn inode_flags(file: BorrowedFd<'_>) -> nix::Result<libc::c_long> {
    let mut flags = 0;
    // SAFETY: an open descriptor, and the kernel writes an int into what is no smaller.
    unsafe { get(file.as_raw_fd(), &raw mut flags) }.map(|_| flags)
}

/// Sets the flags of an open file.
///
/// # Errors
/// The file system has no such flags, or does not allow these.
pub fn set_inode_flags(file: BorrowedFd<'_>, flags: libc::c_long) -> nix::Result<()> {
    // SAFETY: an open descriptor, and the kernel reads an int of what is no smaller.
    unsafe { set(file.as_raw_fd(), &raw const flags) }.map(drop)
}
