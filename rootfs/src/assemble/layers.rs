//! Mounts of layers, and copies of them.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nodlet_kernel::mount::FileSystemContext;

use super::error::AssembleError;
use super::{loop_device, share};
use nodlet_kernel::own_file;

/// How the kernel reads a layer's file, best first. The page cache of a small board matters: with
/// [`Backing::File`] every byte that is read of a layer is cached twice, as the file's page and as the file
/// system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Directly from the file, bypassing its page cache (Linux 6.15 or so).
    DirectFile,
    /// Through a loop device with direct I/O.
    DirectLoop,
    /// From the file, through its page cache (Linux 6.12).
    File,
    /// Through a loop device and the file's page cache: on a tmpfs, which does not support direct I/O.
    Loop,
}

impl Backing {
    pub(super) const ALL: [Backing; 4] =
        [Backing::DirectFile, Backing::DirectLoop, Backing::File, Backing::Loop];
}

/// Mounts a layer read-only, as the source of [`copy_layer`]. The mount exists as long as the descriptor and
/// the copies.
pub fn mount_layer(path: &Path) -> Result<OwnedFd, AssembleError> {
    let mount = mount_layer_somehow(path)?;
    share::shared(mount).map_err(|errno| AssembleError::ShareLayer { source: errno.into() })
}

/// Copies a mounted layer to a detached mount. The calling thread must not share its root and working
/// directory with any other: it may have to leave its mount namespace for a moment.
pub fn copy_layer(layer: BorrowedFd<'_>) -> Result<OwnedFd, AssembleError> {
    share::copy(layer).map_err(|errno| AssembleError::ShareLayer { source: errno.into() })
}

fn mount_layer_somehow(path: &Path) -> Result<OwnedFd, AssembleError> {
    let mut failures = Vec::with_capacity(Backing::ALL.len());
    for backing in Backing::ALL {
        match mount_layer_by(path, backing) {
            Ok(mount) => return Ok(mount),
            // This kernel, or the file system beneath, does not support this backing.
            Err(
                error @ (AssembleError::MountLayer { .. }
                | AssembleError::NoKernelSupport { feature: loop_device::FEATURE, .. }),
            ) => failures.push(error),
            Err(error) => return Err(error),
        }
    }
    // "Block device required": a loop device would have helped.
    let wants_device = failures.iter().any(|failure| match failure {
        AssembleError::MountLayer { source, .. } => source.raw_os_error() == Some(libc::ENOTBLK),
        _ => false,
    });
    let telling = failures
        .iter()
        .position(|failure| wants_device && matches!(failure, AssembleError::NoKernelSupport { .. }))
        .unwrap_or(0);
    Err(failures.swap_remove(telling))
}

/// Mounts a layer, detached, with this backing, for [`mount_layer`] and trials of one backing.
pub(super) fn mount_layer_by(path: &Path, backing: Backing) -> Result<OwnedFd, AssembleError> {
    let failed = |source: io::Error| AssembleError::MountLayer { path: path.to_owned(), source };
    // The kernel would wait for the other end of a FIFO.
    own_file::open(path).map_err(failed)?;
    let context = FileSystemContext::open(c"erofs").map_err(|errno| match errno {
        Errno::ENODEV => {
            AssembleError::NoKernelSupport { feature: "EROFS", option: "CONFIG_EROFS_FS", module: "erofs" }
        }
        errno => failed(errno.into()),
    })?;
    let device = match backing {
        Backing::DirectFile | Backing::File => None,
        Backing::DirectLoop => Some(loop_device::attach(path, true)?),
        Backing::Loop => Some(loop_device::attach(path, false)?),
    };
    let source = device.as_ref().map_or(path, |device| device.path());
    context
        .set_path(c"source", source)
        .and_then(|()| context.set_flag(c"ro"))
        .and_then(|()| match backing {
            Backing::DirectFile => context.set_flag(c"directio"),
            Backing::DirectLoop | Backing::File | Backing::Loop => Ok(()),
        })
        .and_then(|()| context.mount_read_only())
        .map_err(|errno| failed(errno.into()))
}
