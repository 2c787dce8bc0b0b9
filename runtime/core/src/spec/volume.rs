//! Volumes of a pod and where its containers mount them.

use serde::{Deserialize, Serialize};

use super::Quantity;
use super::reference::{ObjectReference, PullPolicy, ResourceField};

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
    /// `emptyDir` with a `medium` of huge pages.
    HugePages {
        /// The size of the pages as in `medium`; empty for the only size that the pod requests.
        page_size: String,
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
    /// `persistentVolumeClaim`, or the claim that `ephemeral` makes.
    Claim {
        /// `claimName`; `None` for `ephemeral`, whose claim is named after the pod and the volume.
        claim: Option<String>,
        /// `readOnly`.
        read_only: bool,
    },
    /// `image`.
    Image {
        /// `reference`.
        reference: String,
        /// `pullPolicy`.
        pull_policy: PullPolicy,
    },
    /// `configMap`, `secret`, `downwardAPI` or `projected`: files that the agent writes.
    Projected(Projection),
}

/// The reason for which a pod waits for a `ReadWriteOncePod` volume, in the words of Kubernetes' scheduler.
pub const VOLUME_IN_USE: &str =
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";

/// The PersistentVolume behind a volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedVolume {
    /// The name of the volume in the pod.
    pub volume: String,
    /// The name of the PersistentVolumeClaim, in the namespace of the pod.
    pub claim: String,
    /// The name of the PersistentVolume.
    pub persistent_volume: String,
    /// `hostPath.path` or `local.path`.
    pub path: String,
    /// `hostPath.type`; `None` for `local`.
    pub host_path: Option<HostPathType>,
    /// Whether one pod at a time may use the volume (`ReadWriteOncePod`).
    pub is_exclusive: bool,
    /// Whether `volumeMode` is `Block`.
    pub is_block: bool,
    /// Major and minor number of the block device, once it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
}

/// A volume whose files the agent writes and keeps up to date.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// The kind of volume that the pod names.
    pub kind: ProjectionKind,
    /// `defaultMode`.
    pub default_mode: u32,
    /// The sources of files; later sources overwrite earlier ones.
    pub sources: Vec<ProjectionSource>,
}

/// The kinds of volumes whose files the agent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectionKind {
    /// `configMap`.
    ConfigMap,
    /// `secret`.
    Secret,
    /// `downwardAPI`.
    DownwardApi,
    /// `projected`.
    Projected,
}

/// One source of the files of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum ProjectionSource {
    /// The data of a ConfigMap or Secret.
    Object {
        /// The object.
        object: ObjectReference,
        /// `items`; all keys under their own names if there are none.
        items: Vec<KeyToPath>,
    },
    /// Fields of the pod itself.
    DownwardApi(Vec<DownwardFile>),
}

/// One entry of `items` of a ConfigMap or Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyToPath {
    /// `key`.
    pub key: String,
    /// `path`, relative, without `..`.
    pub path: String,
    /// `mode`; `None` for `defaultMode`.
    pub mode: Option<u32>,
}

/// One entry of `items` of `downwardAPI`.
#[derive(Clone, Debug, PartialEq)]
pub struct DownwardFile {
    /// `path`, relative, without `..`.
    pub path: String,
    /// `mode`; `None` for `defaultMode`.
    pub mode: Option<u32>,
    /// The field.
    pub field: DownwardField,
}

/// `fieldRef` or `resourceFieldRef`.
#[derive(Clone, Debug, PartialEq)]
pub enum DownwardField {
    /// `fieldRef.fieldPath`.
    Field(String),
    /// `resourceFieldRef`.
    Resource(ResourceField),
}

/// `hostPath.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl HostPathType {
    /// The type of this name in a manifest.
    pub fn named(name: &str) -> HostPathType {
        match name {
            "DirectoryOrCreate" => HostPathType::DirectoryOrCreate,
            "Directory" => HostPathType::Directory,
            "FileOrCreate" => HostPathType::FileOrCreate,
            "File" => HostPathType::File,
            "Socket" => HostPathType::Socket,
            "CharDevice" => HostPathType::CharDevice,
            "BlockDevice" => HostPathType::BlockDevice,
            _ => HostPathType::Unset,
        }
    }
}

/// One entry of `volumeDevices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDevice {
    /// `name` of the volume.
    pub name: String,
    /// `devicePath`, below `/dev`.
    pub path: String,
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
    /// `subPathExpr`, in which `$(VAR)` is expanded.
    pub sub_path_expr: Option<String>,
    /// `readOnly`.
    pub read_only: bool,
    /// Whether mounts below it are read-only, too (`recursiveReadOnly` other than `Disabled`).
    pub recursive_read_only: bool,
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
