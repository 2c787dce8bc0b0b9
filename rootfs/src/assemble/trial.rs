//! Tries whether this kernel mounts layers, and whether a file system supports a container's changes, with a
//! layer of one directory and a small overlay. For `nodlet doctor`; no pod depends on it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nix::errno::Errno;

use super::error::AssembleError;
use super::layers::{Backing, mount_layer_by};
use super::overlay::{Overlay, open_directory};
use crate::content;
use crate::erofs::{ErofsError, Writer};
use crate::reference::Digest;
use crate::tree::{Bounds, Place, ROOT, Tree};

/// Bounds that suffice for the few names of the trial layer.
const BOUNDS: Bounds = Bounds { entries: 8, directories: 8, name_bytes: 256, steps: 64 };
/// More bytes than the trial layer needs.
const LAYER_BYTES: u64 = 64 * 1024;
/// The attribute that marks the directory of the trial layer.
const OPAQUE: &std::ffi::CStr = c"trusted.overlay.opaque";

/// The result of mounting a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerTrial {
    /// The best way in which the kernel reads the layer.
    pub backing: Backing,
    /// Whether the layer's extended attributes can be read (CONFIG_EROFS_FS_XATTR).
    pub has_attributes: bool,
}

/// Why a trial could not be carried out, or what it found missing.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The layer could not be written.
    #[error("write files there")]
    Write(#[source] io::Error),
    /// The kernel did not mount the layer.
    #[error(transparent)]
    Mount(AssembleError),
    /// The kernel has no overlayfs.
    #[error("mount an overlay: this kernel has no overlayfs")]
    NoOverlay,
    /// The kernel rejected an overlay with its changes on this file system.
    #[error("mount an overlay with its changes there")]
    Overlay(#[source] io::Error),
    /// A file of a lower layer could not be changed or removed.
    #[error("change and remove files of an image")]
    Change(#[source] io::Error),
    /// A removed file of a lower layer is still listed: the file system does not report the types of
    /// directory entries.
    #[error("hide removed files: the file system does not report the types of directory entries (d_type)")]
    Listed,
    /// A directory could not replace one of a lower layer: the file system lacks extended attributes.
    #[error("replace a directory of an image: the file system has no extended attributes")]
    Replace(#[source] io::Error),
}

/// Writes a layer into `directory` and mounts it, detached.
pub fn try_layer(directory: &Path) -> Result<LayerTrial, TrialError> {
    let path = directory.join("layer.erofs");
    write_layer(&path).map_err(TrialError::Write)?;
    let mut first = None;
    for backing in Backing::ALL {
        match mount_layer_by(&path, backing) {
            Ok(mount) => {
                let marked = format!("/proc/self/fd/{}/marked", mount.as_raw_fd());
                let length = rustix::fs::getxattr(marked, OPAQUE, &mut [0_u8; 8][..]);
                return Ok(LayerTrial { backing, has_attributes: length == Ok(1) });
            }
            // Without EROFS no other backing can work.
            Err(error @ AssembleError::NoKernelSupport { feature: "EROFS", .. }) => {
                return Err(TrialError::Mount(error));
            }
            Err(error) => {
                // "Block device required": the lack of loop devices is a better explanation.
                let lacks_loop = matches!(error, AssembleError::NoKernelSupport { .. });
                if lacks_loop || first.is_none() {
                    first = Some(error);
                }
            }
        }
    }
    Err(first.map_or(TrialError::Write(io::ErrorKind::Unsupported.into()), TrialError::Mount))
}

/// Writes a layer of one directory, `marked`, which hides its contents in lower layers.
fn write_layer(path: &Path) -> io::Result<()> {
    let failed = |error: ErofsError| match error {
        ErofsError::Read(source) => source,
        ErofsError::Write(error) => io::Error::other(error),
        ErofsError::Refused(problem) => io::Error::other(problem),
    };
    let mut tree = Tree::new(BOUNDS);
    match tree.place(b"marked/.wh..wh..opq").map_err(io::Error::other)? {
        Place::Opaque(directory) => tree.directories[directory].opaque = true,
        Place::In(..) | Place::Root | Place::Whiteout(..) | Place::Ignored => {
            tree.directories[ROOT].opaque = true;
        }
    }
    tree.settle().map_err(io::Error::other)?;
    let file = content::create(path).map_err(io::Error::other)?;
    Writer::new(file, LAYER_BYTES).finish(&tree, &Digest::of(b"nodlet doctor")).map_err(failed)?;
    Ok(())
}

/// Mounts an overlay whose changes go to `directory`, and does what containers do: changes, removes and
/// replaces files of an image. Must be called in a process with a mount namespace of its own, in which the
/// overlay stays mounted. `directory` must be empty.
pub fn try_overlay(directory: &Path) -> Result<(), TrialError> {
    let [lower, upper, work, target] = ["lower", "upper", "work", "target"].map(|name| directory.join(name));
    for path in [&lower, &upper, &work, &target] {
        fs::create_dir(path).map_err(TrialError::Write)?;
    }
    fs::write(lower.join("changed"), "image").map_err(TrialError::Write)?;
    fs::write(lower.join("removed"), "image").map_err(TrialError::Write)?;
    fs::create_dir(lower.join("replaced")).map_err(TrialError::Write)?;
    fs::write(lower.join("replaced/inner"), "image").map_err(TrialError::Write)?;
    let opened =
        |path: &Path| open_directory(path).map_err(|error| TrialError::Write(io::Error::other(error)));
    let (lower, upper, work_fd) = (opened(&lower)?, opened(&upper)?, opened(&work)?);
    let overlay = Overlay {
        upper: upper.as_fd(),
        work: work_fd.as_fd(),
        work_path: &work,
        target: &target,
        read_only: false,
    };
    overlay.mount(&[lower.as_fd()]).map_err(|errno| match errno {
        Errno::ENODEV => TrialError::NoOverlay,
        errno => TrialError::Overlay(errno.into()),
    })?;
    fs::write(target.join("changed"), "container").map_err(TrialError::Change)?;
    fs::remove_file(target.join("removed")).map_err(TrialError::Change)?;
    let names = fs::read_dir(&target).map_err(TrialError::Change)?;
    if names.flatten().any(|entry| entry.file_name() == "removed") {
        return Err(TrialError::Listed);
    }
    fs::remove_dir_all(target.join("replaced"))
        .and_then(|()| fs::create_dir(target.join("replaced")))
        .map_err(TrialError::Replace)?;
    match fs::read_dir(target.join("replaced")).map(Iterator::count) {
        Ok(0) => Ok(()),
        Ok(_) => Err(TrialError::Replace(Errno::EOPNOTSUPP.into())),
        Err(error) => Err(TrialError::Replace(error)),
    }
}
