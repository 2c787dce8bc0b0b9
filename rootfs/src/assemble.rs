//! Makes a root file system of layers: mounts, an overlay, and the image's user.
//!
//! A layer is mounted once and kept by a descriptor ([`mount_layer`]). Every container's overlay is mounted
//! over copies of it ([`copy_layer`], [`mount_root`]), in the helper process that starts the container. This
//! module faces the kernel, decides nothing, and knows no store.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::MsFlags;

mod implied;
mod kernel;
mod loop_device;
mod share;
mod trial;
mod user;

pub(crate) use kernel::{open_in_root, open_tree_clone};
pub use trial::{LayerTrial, TrialError, try_layer, try_overlay};
pub use user::{ProcessUser, UserError, user};

/// Why a root file system could not be made.
#[derive(Debug)]
pub enum AssembleError {
    /// The kernel lacks a feature, or its module is not loaded.
    NoKernelSupport {
        /// The missing feature.
        feature: &'static str,
        /// The kernel option that enables it.
        option: &'static str,
        /// The module that provides it, if the option is set to `m`.
        module: &'static str,
    },
    /// A layer could not be mounted.
    MountLayer {
        /// The layer's file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A mounted layer could not be copied, or kept for copying.
    ShareLayer {
        /// The kernel's error.
        source: io::Error,
    },
    /// A path could not be opened.
    Open {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Directories that lower layers describe could not be described in the container's own layer.
    Describe {
        /// The container's own layer.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The overlay could not be mounted.
    MountOverlay {
        /// The mount point.
        target: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The image's `/dev` is no directory, so it could redirect device nodes elsewhere.
    DevIsNoDirectory {
        /// The type of the file at `/dev`.
        what: String,
    },
}

impl fmt::Display for AssembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AssembleError::NoKernelSupport { feature, option, module } => write!(
                f,
                "mount the image: this kernel has no {feature}; load the module {module}, or use a kernel with {option}"
            ),
            AssembleError::MountLayer { path, .. } => write!(f, "mount layer {}", path.display()),
            AssembleError::ShareLayer { .. } => f.write_str("copy the mount of a layer"),
            AssembleError::Open { path, .. } => write!(f, "open {}", path.display()),
            AssembleError::Describe { path, .. } => {
                write!(f, "describe the image's directories in {}", path.display())
            }
            AssembleError::MountOverlay { target, .. } => {
                write!(f, "mount the image at {}", target.display())
            }
            AssembleError::DevIsNoDirectory { what } => {
                write!(f, "use the image: its /dev is {what}; it must be a directory or missing")
            }
        }
    }
}

impl std::error::Error for AssembleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AssembleError::MountLayer { source, .. }
            | AssembleError::ShareLayer { source }
            | AssembleError::Open { source, .. }
            | AssembleError::Describe { source, .. }
            | AssembleError::MountOverlay { source, .. } => Some(source),
            AssembleError::NoKernelSupport { .. } | AssembleError::DevIsNoDirectory { .. } => None,
        }
    }
}

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
    const ALL: [Backing; 4] = [Backing::DirectFile, Backing::DirectLoop, Backing::File, Backing::Loop];
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

/// Mounts a layer, detached, with this backing. For measurements; otherwise use [`mount_layer`].
pub fn mount_layer_by(path: &Path, backing: Backing) -> Result<OwnedFd, AssembleError> {
    let failed = |source: io::Error| AssembleError::MountLayer { path: path.to_owned(), source };
    let context = kernel::fsopen(c"erofs").map_err(|errno| match errno {
        Errno::ENODEV => {
            AssembleError::NoKernelSupport { feature: "EROFS", option: "CONFIG_EROFS_FS", module: "erofs" }
        }
        errno => failed(errno.into()),
    })?;
    let context = context.as_fd();
    let device = match backing {
        Backing::DirectFile | Backing::File => None,
        Backing::DirectLoop => Some(loop_device::attach(path, true)?),
        Backing::Loop => Some(loop_device::attach(path, false)?),
    };
    let source = device.as_ref().map_or(path, |device| device.path());
    kernel::set_path(context, c"source", source)
        .and_then(|()| kernel::set_flag(context, c"ro"))
        .and_then(|()| match backing {
            Backing::DirectFile => kernel::set_flag(context, c"directio"),
            Backing::DirectLoop | Backing::File | Backing::Loop => Ok(()),
        })
        .and_then(|()| kernel::create(context))
        .and_then(|()| kernel::fsmount(context))
        .map_err(|errno| failed(errno.into()))
}

/// Mounts the overlay of these layers (copies, see [`copy_layer`]), lowest first, at `target`. All changes go
/// to `upper`, which like `work` must be empty, and must be on the same file system.
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

struct Overlay<'a> {
    upper: BorrowedFd<'a>,
    work: BorrowedFd<'a>,
    work_path: &'a Path,
    target: &'a Path,
    read_only: bool,
}

impl Overlay<'_> {
    /// Paths are passed as descriptors: these are short, and need no escaping.
    fn mount(&self, layers: &[BorrowedFd<'_>]) -> Result<(), Errno> {
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

    fn mount_attached(&self, layers: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        for layer in layers {
            kernel::move_mount(*layer, self.target)?;
        }
        self.mount(layers)
    }
}

/// Rejects an image whose `/dev` is not a directory: filling it by path would follow a symbolic link to a
/// target that the image chooses.
pub fn check_dev(root: &Path) -> Result<(), AssembleError> {
    let path = root.join("dev");
    match std::fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(metadata) if metadata.is_symlink() => {
            let target = std::fs::read_link(&path).unwrap_or_default();
            let what = format!("a symbolic link to {}", target.display());
            Err(AssembleError::DevIsNoDirectory { what })
        }
        Ok(_) => Err(AssembleError::DevIsNoDirectory { what: "a file".to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(AssembleError::Open { path, source }),
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, AssembleError> {
    kernel::open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .map_err(|errno| AssembleError::Open { path: path.to_owned(), source: errno.into() })
}

#[cfg(test)]
mod tests;
