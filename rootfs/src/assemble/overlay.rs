//! The overlay of layers that is a container's root.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::MsFlags;
use nodlet_kernel::file::open;
use nodlet_kernel::mount::attach_mount;

use super::error::AssembleError;
use super::implied;

/// Mounts the overlay of these layers (copies, see [`copy_layer`](super::copy_layer)), lowest first, at
/// `target`. All changes go to `upper`, which like `work` must be empty, and must be on the same file system.
///
/// Must be called in a process with a mount namespace of its own: if the kernel's overlayfs does not accept
/// detached mounts, the layers are attached at `target` beneath the overlay, and disappear with the
/// namespace.
pub fn mount_root(
    layers: &[BorrowedFd<'_>],
    upper: &Path,
    work: &Path,
    target: &Path,
    read_only: bool,
) -> Result<(), AssembleError> {
    let (upper_fd, work_fd) = (open_directory(upper)?, open_directory(work)?);
    implied::describe(layers, upper_fd.as_fd())
        .map_err(|source| AssembleError::Describe { path: upper.to_owned(), source })?;
    let (upper_fd, work_fd) = (upper_fd.as_fd(), work_fd.as_fd());
    let overlay = Overlay { upper: upper_fd, work: work_fd, work_path: work, target, read_only };
    match overlay.mount(layers) {
        // Linux 5.14 to 6.14 require lower mounts to be in the caller's namespace.
        Err(Errno::EINVAL) => overlay.mount_attached(layers),
        result => result,
    }
    .map_err(|errno| match errno {
        Errno::ENODEV => AssembleError::NoKernelSupport {
            feature: "overlayfs",
            option: "CONFIG_OVERLAY_FS",
            module: "overlay",
        },
        errno => AssembleError::MountOverlay { target: target.to_owned(), source: errno.into() },
    })
}

/// An overlay to mount.
pub(super) struct Overlay<'a> {
    pub(super) upper: BorrowedFd<'a>,
    pub(super) work: BorrowedFd<'a>,
    pub(super) work_path: &'a Path,
    pub(super) target: &'a Path,
    pub(super) read_only: bool,
}

impl Overlay<'_> {
    /// Paths are passed as descriptors: these are short, and need no escaping.
    pub(super) fn mount(&self, layers: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let lower: Vec<String> =
            layers.iter().rev().map(|layer| format!("/proc/self/fd/{}", layer.as_raw_fd())).collect();
        let options = format!(
            "lowerdir={},upperdir=/proc/self/fd/{},workdir=/proc/self/fd/{}",
            lower.join(":"),
            self.upper.as_raw_fd(),
            self.work.as_raw_fd()
        );
        let flags = if self.read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        let mount = |options: &str| {
            // A failed attempt may have left its mark of `volatile`, with which the kernel does not mount an
            // overlay again.
            let _ = std::fs::remove_dir_all(self.work_path.join("work"));
            nix::mount::mount(Some("overlay"), self.target, Some("overlay"), flags, Some(options))
        };
        // A container's own files do not outlive it, so they need no sync (Linux 5.10).
        match mount(&format!("{options},volatile")) {
            Err(Errno::EINVAL) => mount(&options),
            result => result,
        }
    }

    pub(super) fn mount_attached(&self, layers: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        for layer in layers {
            attach_mount(*layer, self.target)?;
        }
        self.mount(layers)
    }
}

pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, AssembleError> {
    open(path, OFlag::O_PATH | OFlag::O_DIRECTORY)
        .map_err(|errno| AssembleError::Open { path: path.to_owned(), source: errno.into() })
}
