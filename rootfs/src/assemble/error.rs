//! Why a root file system could not be made.

use std::fmt;
use std::io;
use std::path::PathBuf;

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
