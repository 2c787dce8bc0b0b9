//! Why a root file system could not be made.

use std::io;
use std::path::PathBuf;

/// Why a root file system could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// The kernel lacks a feature, or its module is not loaded.
    #[error(
        "mount the image: this kernel has no {feature}; load the module {module}, or use a kernel with {option}"
    )]
    NoKernelSupport {
        /// The missing feature.
        feature: &'static str,
        /// The kernel option that enables it.
        option: &'static str,
        /// The module that provides it, if the option is set to `m`.
        module: &'static str,
    },
    /// A layer could not be mounted.
    #[error("mount layer {path}")]
    MountLayer {
        /// The layer's file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A mounted layer could not be copied, or kept for copying.
    #[error("copy the mount of a layer")]
    ShareLayer {
        /// The kernel's error.
        source: io::Error,
    },
    /// A path could not be opened.
    #[error("open {path}")]
    Open {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Directories that lower layers describe could not be described in the container's own layer.
    #[error("describe the image's directories in {path}")]
    Describe {
        /// The container's own layer.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The overlay could not be mounted.
    #[error("mount the image at {target}")]
    MountOverlay {
        /// The mount point.
        target: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The image's `/dev` is no directory, so it could redirect device nodes elsewhere.
    #[error("use the image: its /dev is {what}; it must be a directory or missing")]
    DevIsNoDirectory {
        /// The type of the file at `/dev`.
        what: String,
    },
}
