//! Failures of cgroups.

use std::io;
use std::path::{Path, PathBuf};

/// An operation on a cgroup that failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No v2 hierarchy is mounted.
    #[error(
        "find a cgroup v2 hierarchy: mount one (`mount -t cgroup2 cgroup2 /sys/fs/cgroup`, or at \
         /sys/fs/cgroup/unified beside v1); the kernel needs CONFIG_CGROUPS"
    )]
    NoUnified,
    /// A uid that cannot name a directory.
    #[error("name a cgroup after the pod: metadata.uid {uid:?} must be a name without '/'")]
    Uid {
        /// The uid.
        uid: String,
    },
    /// An operation on a file or directory of a cgroup.
    #[error("{operation} {path}")]
    File {
        /// The operation.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refused the value of a limit.
    #[error("{operation} {path} to {value}")]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The cgroup.
        path: PathBuf,
        /// The value, as it was written.
        value: String,
        /// The cause.
        source: io::Error,
    },
    /// The kernel has no controller for a limit that the pod asks for.
    #[error(
        "set {limit}: the kernel cannot ({option}), or its controller is not mounted or not delegated; remove the limit \
         or change the kernel"
    )]
    Missing {
        /// The limit.
        limit: &'static str,
        /// The kernel option that the limit needs.
        option: &'static str,
    },
    /// The kernel reports another value than the one that was written.
    #[error("set the {limit} of {path}: wrote {wanted}, but the kernel has {actual}")]
    NotApplied {
        /// The cgroup.
        path: PathBuf,
        /// The name of the limit.
        limit: &'static str,
        /// The value that was written.
        wanted: String,
        /// The value that was read back.
        actual: String,
    },
    /// A memory limit that is below what is used already. The text is the kubelet's, without a verb before it.
    #[error("cannot decrease memory limits: {texts}")]
    BelowUsage {
        /// Which limits, and how much is used.
        texts: String,
    },
    /// Loading or attaching the eBPF program that filters devices.
    #[error("filter the devices of {path} (CONFIG_CGROUP_BPF)")]
    DeviceFilter {
        /// The cgroup.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl CgroupError {
    pub(super) fn file(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
        move |source| CgroupError::File { operation, path: path.to_owned(), source }
    }

    /// Whether the operation failed because a process is in the cgroup.
    pub(super) fn is_busy(&self) -> bool {
        self.raw_os_error() == Some(libc::EBUSY)
    }

    /// Whether the operation failed because the cgroup does not exist, or did not for a moment.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            CgroupError::File { path, .. }
            | CgroupError::Refused { path, .. }
            | CgroupError::DeviceFilter { path, .. } => {
                matches!(self.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) || !path.exists()
            }
            CgroupError::NoUnified
            | CgroupError::Uid { .. }
            | CgroupError::Missing { .. }
            | CgroupError::BelowUsage { .. }
            | CgroupError::NotApplied { .. } => false,
        }
    }

    pub(super) fn raw_os_error(&self) -> Option<i32> {
        match self {
            CgroupError::File { source, .. } | CgroupError::Refused { source, .. } => source.raw_os_error(),
            CgroupError::NoUnified
            | CgroupError::Uid { .. }
            | CgroupError::Missing { .. }
            | CgroupError::BelowUsage { .. }
            | CgroupError::NotApplied { .. }
            | CgroupError::DeviceFilter { .. } => None,
        }
    }
}
