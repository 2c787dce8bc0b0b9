//! What the agent asks of a supervisor, as data: made by pure functions from
//! the Pod and the image, sent in a memfd, read by the short-lived helpers that
//! the supervisor forks. A supervisor itself keeps only the descriptor.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What all containers of a pod share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxConfig {
    /// UTS host name, at most 64 bytes.
    pub hostname: String,
    /// Its own network namespace and link, or the host's (`hostNetwork`).
    pub network: Option<NetworkConfig>,
    /// The host's IPC namespace and /dev/shm (`hostIPC`).
    pub host_ipc: bool,
    /// The host's PID namespace (`hostPID`).
    pub host_pid: bool,
    /// One PID namespace for the pod (`shareProcessNamespace`).
    pub share_process_namespace: bool,
    /// Bytes of the pod's /dev/shm; 64 MiB unless said otherwise.
    pub shm_size: u64,
    /// Volumes on tmpfs (`emptyDir` with `medium: Memory`): held by the
    /// supervisor as detached mounts, for as long as the pod lives.
    pub memory_volumes: Vec<MemoryVolume>,
    /// Cgroup of the pod's `pause` process, if there is one.
    pub pause_cgroup: CgroupPaths,
}

/// A tmpfs of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryVolume {
    /// `name` of the volume.
    pub name: String,
    /// `size=` of the tmpfs in bytes; `None` for half of the machine's memory, the kernel's default.
    pub size: Option<u64>,
    /// Group that owns it (`fsGroup`).
    pub fs_group: Option<u32>,
}

/// The pod's link to the bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkConfig {
    /// Name of the bridge in the host's namespace.
    pub bridge: String,
    /// Name of the host's end of the veth pair, at most 15 bytes.
    pub host_link: String,
    /// The pod's address.
    pub address: Ipv4Addr,
    /// Bits of the pod range's netmask.
    pub prefix: u8,
    /// The bridge's address, the pod's default gateway.
    pub gateway: Ipv4Addr,
}

/// Where an attempt's processes belong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    /// The leaf in the v2 hierarchy (with or without controllers): populated, freeze and kill.
    pub unified: PathBuf,
    /// v1: the `tasks` file of the leaf in each hierarchy that limits.
    pub v1_tasks: Vec<PathBuf>,
}

/// One run of one container, ready to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerConfig {
    /// 64 hex digits.
    pub id: String,
    /// Name of the container.
    pub name: String,
    /// The process.
    pub process: ProcessConfig,
    /// What its layers are called, lowest first; their descriptors come with
    /// the request in the same order.
    pub layers: Vec<String>,
    /// Writable layer: `upperdir` of the overlay.
    pub upper_dir: PathBuf,
    /// `workdir` of the overlay.
    pub work_dir: PathBuf,
    /// `readOnlyRootFilesystem`.
    pub read_only_root: bool,
    /// Volumes and files of the agent, sorted by destination.
    pub mounts: Vec<MountConfig>,
    /// `privileged`: all devices, nothing masked, /sys writable.
    pub privileged: bool,
    /// The leaf.
    pub cgroup: CgroupPaths,
    /// /proc/self/oom_score_adj.
    pub oom_score_adj: i32,
    /// Keep its input open for those who attach (`stdin`).
    #[serde(default)]
    pub stdin: bool,
    /// Close it with the first of them (`stdinOnce`).
    #[serde(default)]
    pub stdin_once: bool,
    /// A terminal in place of pipes (`tty`).
    #[serde(default)]
    pub tty: bool,
    /// The container in whose PID namespace it is (`targetContainerName`), where each has its own.
    #[serde(default)]
    pub target: Option<String>,
    /// Where stdout and stderr go.
    pub log: LogConfig,
    /// The file at `terminationMessagePath`, if any; mounted unless one of `mounts` is there.
    pub termination_message: Option<TerminationMessage>,
}

/// `terminationMessagePath` and its policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminationMessage {
    /// On the host.
    pub file: PathBuf,
    /// In the container.
    pub path: PathBuf,
    /// `FallbackToLogsOnError`.
    pub fallback_to_logs: bool,
}

/// A process: the container's own, or one that is executed beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessConfig {
    /// Command and arguments, expanded; at least one.
    pub args: Vec<String>,
    /// `NAME=value`, in order.
    pub env: Vec<String>,
    /// Working directory; made if missing.
    pub cwd: PathBuf,
    /// Who it is.
    pub user: UserConfig,
    /// Capabilities that are bounding and, for root, permitted and effective; `CAP_` names.
    pub capabilities: Vec<String>,
    /// `no_new_privs`.
    pub no_new_privileges: bool,
}

/// Who a process is; a name is looked up in the image's /etc/passwd by the helper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserConfig {
    /// `User` of the image: "", "name", "uid", "user:group".
    pub image_user: String,
    /// `runAsUser`: overrides the image's.
    pub run_as_user: Option<u32>,
    /// `runAsGroup`: overrides the image's.
    pub run_as_group: Option<u32>,
    /// `supplementalGroups` and `fsGroup`.
    pub additional_gids: Vec<u32>,
}

/// A bind mount into the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountConfig {
    /// What is mounted.
    pub source: MountSource,
    /// Relative path below the source, resolved without leaving it.
    pub sub_path: Option<PathBuf>,
    /// Where, in the container.
    pub destination: PathBuf,
    /// Read-only.
    pub read_only: bool,
    /// Mount propagation.
    pub propagation: Propagation,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    /// A path of the host.
    Host(PathBuf),
    /// A [`MemoryVolume`] of the sandbox, by its name.
    Memory(String),
}

/// `mountPropagation`, in the kernel's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// `None`.
    Private,
    /// `HostToContainer`.
    Slave,
    /// `Bidirectional`.
    Shared,
}

/// A log in CRI format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogConfig {
    /// `/var/log/pods/<ns>_<pod>_<uid>/<container>/<attempt>.log`, below the root.
    pub path: PathBuf,
    /// The link in `/var/log/containers`.
    pub link: PathBuf,
    /// Bytes after which the file is rotated (`containerLogMaxSize`).
    pub max_size: u64,
    /// Files kept, the current one included (`containerLogMaxFiles`).
    pub max_files: u32,
}

/// A process to execute in a running container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecConfig {
    /// Command and arguments.
    pub args: Vec<String>,
    /// Give it a terminal; its master comes back with `ExecStarted`.
    pub tty: bool,
    /// Columns and rows of the terminal, as far as they are known.
    pub size: Option<(u16, u16)>,
}
