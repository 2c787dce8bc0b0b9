//! Loop devices, for kernels that cannot mount EROFS from a file, and for files on file systems that do not
//! support it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::error::AssembleError;
use super::kernel;

pub(super) const FEATURE: &str = "loop devices";

/// How often another free device is requested, because other processes may take a free one first.
const ATTEMPTS: usize = 64;

// linux/loop.h
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82_u32 as libc::Ioctl;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a_u32 as libc::Ioctl;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// The kernel's `struct loop_info64`.
#[repr(C)]
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
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// The kernel's `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// A loop device that the kernel frees when nothing uses it any more.
pub(super) struct LoopDevice {
    path: PathBuf,
    /// Keeps the device until it is mounted.
    _device: OwnedFd,
}

impl LoopDevice {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Attaches the file to a read-only block device.
pub(super) fn attach(file: &Path, direct: bool) -> Result<LoopDevice, AssembleError> {
    let failed =
        |errno: Errno| AssembleError::MountLayer { path: file.to_owned(), source: io::Error::from(errno) };
    let unsupported =
        AssembleError::NoKernelSupport { feature: FEATURE, option: "CONFIG_BLK_DEV_LOOP", module: "loop" };
    let Ok(control) = kernel::open(Path::new("/dev/loop-control"), OFlag::O_RDWR | OFlag::O_CLOEXEC) else {
        return Err(unsupported);
    };
    let direct_flag = if direct { OFlag::O_DIRECT } else { OFlag::empty() };
    let backing = kernel::open(file, OFlag::O_RDONLY | OFlag::O_CLOEXEC | direct_flag).map_err(failed)?;
    for _ in 0..ATTEMPTS {
        // SAFETY: this request takes no argument.
        let number =
            Errno::result(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) }).map_err(failed)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = kernel::open(&path, OFlag::O_RDONLY | OFlag::O_CLOEXEC).map_err(failed)?;
        // SAFETY: the structure is plain numbers, for which zero is a valid value.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.fd = backing.as_fd().as_raw_fd().cast_unsigned();
        config.info.flags =
            LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR | if direct { LO_FLAGS_DIRECT_IO } else { 0 };
        // SAFETY: the request reads a loop_config, which this is, and nothing else.
        match Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) }) {
            Ok(_) => return Ok(LoopDevice { path, _device: device }),
            Err(Errno::EBUSY) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::EBUSY))
}
