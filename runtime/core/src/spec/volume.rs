//! Volumes of a pod and where its containers mount them.

use super::Quantity;

/// One entry of `spec.volumes`.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// `name`, a DNS label, unique in the pod.
    pub name: String,
    /// The source of the volume; there is exactly one.
    pub source: VolumeSource,
}

/// The source of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeSource {
    /// `emptyDir`.
    EmptyDir {
        /// Whether `medium` is `Memory`.
        memory: bool,
        /// `sizeLimit`.
        size_limit: Option<Quantity>,
    },
    /// `hostPath`.
    HostPath {
        /// `path`, absolute, without `..`.
        path: String,
        /// `type`.
        kind: HostPathType,
    },
}

/// `hostPath.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPathType {
    /// `""`: no check.
    #[default]
    Unset,
    /// `DirectoryOrCreate`, made with mode 0755.
    DirectoryOrCreate,
    /// `Directory`.
    Directory,
    /// `FileOrCreate`, made with mode 0644; the parent must exist.
    FileOrCreate,
    /// `File`.
    File,
    /// `Socket`.
    Socket,
    /// `CharDevice`.
    CharDevice,
    /// `BlockDevice`.
    BlockDevice,
}

/// One entry of `volumeMounts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeMount {
    /// `name` of the volume.
    pub name: String,
    /// `mountPath`, absolute in the container.
    pub mount_path: String,
    /// `subPath`, relative, without `..`.
    pub sub_path: Option<String>,
    /// `readOnly`.
    pub read_only: bool,
    /// `mountPropagation`.
    pub propagation: MountPropagation,
}

/// `mountPropagation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountPropagation {
    /// Private: neither side sees later mounts of the other.
    #[default]
    None,
    /// The container sees mounts that are made on the host later.
    HostToContainer,
    /// Each side sees mounts of the other; privileged containers only.
    Bidirectional,
}
