//! Loop devices, for kernels that cannot mount EROFS from a file, and for files on file systems that do not
//! support it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nodlet_kernel::file::open;
use nodlet_kernel::ioctl;

use super::error::AssembleError;

pub(super) const FEATURE: &str = "loop devices";

/// How often another free device is requested, because other processes may take a free one first.
const ATTEMPTS: usize = 64;

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
    let Ok(control) = open("/dev/loop-control", OFlag::O_RDWR) else {
        return Err(unsupported);
    };
    let direct_flag = if direct { OFlag::O_DIRECT } else { OFlag::empty() };
    let backing = open(file, OFlag::O_RDONLY | direct_flag).map_err(failed)?;
    for _ in 0..ATTEMPTS {
        let number = ioctl::free_loop_device(&control).map_err(failed)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path, OFlag::O_RDONLY).map_err(failed)?;
        match ioctl::configure_loop_device(&device, backing.as_fd(), direct) {
            Ok(()) => return Ok(LoopDevice { path, _device: device }),
            Err(Errno::EBUSY) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::EBUSY))
}
