//! ioctl(2) of files and block devices, and quotactl_fd(2), by which a directory's quota is read.
//!
//! The numbers of the requests are the same on all processors for which nodlet is built.
//!
//! `unsafe`: these requests are in no crate; the kernel reads or writes a structure of the caller.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// # Safety
/// The kernel reads or writes at most a `T` for this request.
unsafe fn ioctl<T>(file: BorrowedFd<'_>, request: u32, argument: *mut T) -> nix::Result<i32> {
    // SAFETY: the caller's promise.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) })
}

/// `LOOP_CTL_GET_FREE` of `/dev/loop-control`: the number of a free loop device, which another process may take first.
///
/// # Errors
/// The kernel's.
pub fn free_loop_device(control: impl AsFd) -> nix::Result<i32> {
    // SAFETY: this request takes no argument.
    unsafe { ioctl(control.as_fd(), 0x4c82, std::ptr::null_mut::<()>()) }
}

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Default)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [[u64; 8]; 2],
    encrypt_key: [u64; 4],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
#[derive(Default)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `LOOP_CONFIGURE`: attaches a file to a loop device, read-only, which the kernel frees when nothing uses it any more; with
/// `direct`, without the page cache of the file.
///
/// # Errors
/// EBUSY: another process has taken the device.
pub fn configure_loop_device(device: impl AsFd, file: BorrowedFd<'_>, direct: bool) -> nix::Result<()> {
    const LO_FLAGS_READ_ONLY: u32 = 1;
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    const LO_FLAGS_DIRECT_IO: u32 = 16;
    let flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR | if direct { LO_FLAGS_DIRECT_IO } else { 0 };
    let info = LoopInfo { flags, ..LoopInfo::default() };
    let mut config = LoopConfig { fd: file.as_raw_fd().cast_unsigned(), info, ..LoopConfig::default() };
    // SAFETY: the request reads a loop_config, and nothing else.
    unsafe { ioctl(device.as_fd(), 0x4c0a, &raw mut config) }.map(drop)
}

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FileAttributes {
    /// `FS_XFLAG_*`.
    pub flags: u32,
    _extent_size: u32,
    _extents: u32,
    /// The project whose quota counts the file.
    pub project: u32,
    _cow_extent_size: u32,
    _padding: [u8; 8],
}

/// `FS_IOC_FSGETXATTR`.
///
/// # Errors
/// ENOTTY: the file system has no such attributes.
pub fn file_attributes(file: impl AsFd) -> nix::Result<FileAttributes> {
    let mut attributes = FileAttributes::default();
    // SAFETY: the kernel writes one structure.
    unsafe { ioctl(file.as_fd(), 0x801c_581f, &raw mut attributes) }.map(|_| attributes)
}

/// `FS_IOC_FSSETXATTR`.
///
/// # Errors
/// The kernel's.
pub fn set_file_attributes(file: impl AsFd, mut attributes: FileAttributes) -> nix::Result<()> {
    // SAFETY: the kernel reads one structure.
    unsafe { ioctl(file.as_fd(), 0x401c_5820, &raw mut attributes) }.map(drop)
}

/// `struct if_dqblk` of linux/quota.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Quota {
    _limits: [u64; 2],
    /// The bytes in use.
    pub bytes: u64,
    _inode_limits: [u64; 2],
    /// The inodes in use.
    pub inodes: u64,
    _times: [u64; 2],
    _valid: u32,
}

/// quotactl_fd(2) with `Q_GETQUOTA`: what the files of a project use on the file system of `directory`.
///
/// # Errors
/// ENOSYS before Linux 5.14. ENOENT: XFS has no record of a project that never had a file.
pub fn project_quota(directory: impl AsFd, project: u32) -> nix::Result<Quota> {
    /// The number is the same on all processors; the C library lacks it on some.
    const QUOTACTL_FD: libc::c_long = 443;
    /// `QCMD(Q_GETQUOTA, PRJQUOTA)`.
    const GET_QUOTA_OF_PROJECT: u32 = 0x80_0007 << 8 | 2;
    let mut quota = Quota::default();
    let directory = directory.as_fd().as_raw_fd();
    // SAFETY: the kernel writes one structure.
    Errno::result(unsafe {
        libc::syscall(QUOTACTL_FD, directory, GET_QUOTA_OF_PROJECT, project, &raw mut quota)
    })
    .map(|_| quota)
}

/// `EXT4_IOC_RESIZE_FS`: grows a mounted ext4 to this number of its blocks. The kernel does this in the journal.
///
/// # Errors
/// The kernel's.
pub fn resize_ext4(root: impl AsFd, mut blocks: u64) -> nix::Result<()> {
    // SAFETY: the kernel reads one number.
    unsafe { ioctl(root.as_fd(), 0x4008_6610, &raw mut blocks) }.map(drop)
}

/// A change of a partition that the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionChange {
    /// `BLKPG_ADD_PARTITION`: the kernel does not know the partition yet.
    Add = 1,
    /// `BLKPG_RESIZE_PARTITION`, also while the partition is mounted.
    Resize = 3,
}

/// `BLKPG`: changes the partition `number` of a disk that is in use. `start` and `length` are in bytes.
///
/// # Errors
/// The kernel's.
pub fn change_partition(
    disk: impl AsFd,
    change: PartitionChange,
    number: i32,
    start: u64,
    length: u64,
) -> nix::Result<()> {
    /// `struct blkpg_partition` of linux/blkpg.h.
    #[repr(C)]
    struct BlkpgPartition {
        start: i64,
        length: i64,
        number: libc::c_int,
        names: [u8; 128],
    }
    /// `struct blkpg_ioctl_arg` of linux/blkpg.h.
    #[repr(C)]
    struct BlkpgArgument {
        operation: libc::c_int,
        flags: libc::c_int,
        length: libc::c_int,
        data: *const BlkpgPartition,
    }
    let (start, length) = (start.cast_signed(), length.cast_signed());
    let data = BlkpgPartition { start, length, number, names: [0; 128] };
    let length = size_of::<BlkpgPartition>() as libc::c_int;
    let mut argument =
        BlkpgArgument { operation: change as libc::c_int, flags: 0, length, data: &raw const data };
    // SAFETY: structures as in linux/blkpg.h that outlive the call.
    unsafe { ioctl(disk.as_fd(), 0x1269, &raw mut argument) }.map(drop)
}

/// `WDIOC_SETTIMEOUT`: sets the timeout of a watchdog in seconds, or another that its driver chooses.
///
/// # Errors
/// The kernel's.
pub fn set_watchdog_timeout(device: impl AsFd, mut seconds: i32) -> nix::Result<()> {
    // SAFETY: the kernel reads and writes one int.
    unsafe { ioctl(device.as_fd(), 0xc004_5706, &raw mut seconds) }.map(drop)
}

/// `WDIOC_GETTIMEOUT`: the timeout of a watchdog in seconds.
///
/// # Errors
/// The kernel's.
pub fn watchdog_timeout(device: impl AsFd) -> nix::Result<i32> {
    let mut seconds = 0;
    // SAFETY: the kernel writes one int.
    unsafe { ioctl(device.as_fd(), 0x8004_5707, &raw mut seconds) }.map(|_| seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_large_as_those_of_the_kernel() {
        assert_eq!((size_of::<FileAttributes>(), size_of::<Quota>()), (28, 72));
        assert_eq!((size_of::<LoopInfo>(), size_of::<LoopConfig>()), (232, 304));
    }
}
