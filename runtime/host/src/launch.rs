//! The agent's requests to a supervisor, as data: made by pure functions from the Pod and the image, sent in
//! a memfd, and read by the short-lived helpers that the supervisor forks. A supervisor itself keeps only the
//! descriptor.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use nodlet_core::spec::OpenFiles;
use serde::{Deserialize, Serialize};

/// The namespaces and resources that all containers of a pod share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxConfig {
    /// UTS host name, at most 64 bytes.
    pub hostname: String,
    /// The pod's own network namespace and link; `None` for the host's (`hostNetwork`).
    pub network: Option<NetworkConfig>,
    /// The ID of the host that is ID 0 of the pod's user namespace (`hostUsers: false`); `None` for the
    /// host's user namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_id: Option<u32>,
    /// Whether to use the host's IPC namespace and /dev/shm (`hostIPC`).
    pub host_ipc: bool,
    /// Whether to use the host's PID namespace (`hostPID`).
    pub host_pid: bool,
    /// Whether the pod has one PID namespace (`shareProcessNamespace`).
    pub share_process_namespace: bool,
    /// Bytes of the pod's /dev/shm; 64 MiB by default.
    pub shm_size: u64,
    /// Volumes on tmpfs (`emptyDir` with `medium: Memory`), which the supervisor holds as detached mounts as
    /// long as the pod lives.
    pub memory_volumes: Vec<MemoryVolume>,
    /// Kernel parameters of the pod's namespaces: paths below `/proc/sys` and values.
    #[serde(default)]
    pub sysctls: Vec<(String, String)>,
    /// The cgroup of the pod's `pause` process, if the pod has one.
    pub pause_cgroup: CgroupPaths,
}

/// A tmpfs or hugetlbfs of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryVolume {
    /// `name` of the volume.
    pub name: String,
    /// `size=` of the tmpfs in bytes; `None` for all of the machine's memory, where it could not be read.
    pub size: Option<u64>,
    /// The group that owns the volume (`fsGroup`).
    pub fs_group: Option<u32>,
    /// The size of huge pages in bytes, for a hugetlbfs in place of the tmpfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u64>,
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
    /// The pod's IPv6 address, if it has one.
    pub ipv6: Option<Ipv6Config>,
    /// Whether the bridge may send back to the pod what the pod itself sent: a pod with a `hostPort` can
    /// connect to itself through it. With br_netfilter the kernel translates such a packet in the bridge.
    pub hairpin: bool,
    /// Interfaces of the host that the pod gets, until its sandbox is removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
}

/// The IPv6 addresses of the pod's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipv6Config {
    /// The pod's address.
    pub address: Ipv6Addr,
    /// Bits of the range's prefix.
    pub prefix: u8,
    /// The bridge's address, the pod's default gateway.
    pub gateway: Ipv6Addr,
}

/// The cgroup of an attempt's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    /// The leaf in the v2 hierarchy (with or without controllers), used for populated, freeze and kill.
    pub unified: PathBuf,
    /// v1: the `tasks` file of the leaf in each hierarchy with a limit.
    pub v1_tasks: Vec<PathBuf>,
}

/// One run of one container, ready to be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerConfig {
    /// The container ID, 64 hex digits.
    pub id: String,
    /// Name of the container.
    pub name: String,
    /// The process.
    pub process: ProcessConfig,
    /// Names of the image's layers, lowest first; their descriptors come with the request in the same order.
    pub layers: Vec<String>,
    /// The number of layers of each image that is mounted as a volume. They are the last ones of `layers`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_volumes: Vec<usize>,
    /// Writable layer: `upperdir` of the overlay.
    pub upper_dir: PathBuf,
    /// `workdir` of the overlay.
    pub work_dir: PathBuf,
    /// `readOnlyRootFilesystem`.
    pub read_only_root: bool,
    /// Directories of the image that stay writable in a read-only root: its volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable_paths: Vec<PathBuf>,
    /// Volumes and files of the agent, sorted by destination.
    pub mounts: Vec<MountConfig>,
    /// `privileged`: all devices, nothing masked, /sys writable.
    pub privileged: bool,
    /// `procMount: Unmasked`: nothing of /proc and /sys is masked or read-only.
    #[serde(default)]
    pub unmasked: bool,
    /// The sandbox's [`SandboxConfig::first_id`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_id: Option<u32>,
    /// Devices besides those that every container has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceNode>,
    /// The cgroup of this run.
    pub cgroup: CgroupPaths,
    /// /proc/self/oom_score_adj.
    pub oom_score_adj: i32,
    /// The highest real-time priority that processes may choose (`RLIMIT_RTPRIO`); 0 for that of the supervisor.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rtprio: u32,
    /// Whether input stays open for clients that attach (`stdin`).
    #[serde(default)]
    pub stdin: bool,
    /// Whether input is closed with that of the first client (`stdinOnce`).
    #[serde(default)]
    pub stdin_once: bool,
    /// Whether the process has a terminal in place of pipes (`tty`).
    #[serde(default)]
    pub tty: bool,
    /// The container whose PID namespace this one joins (`targetContainerName`), if each container has its
    /// own.
    #[serde(default)]
    pub target: Option<String>,
    /// The log of stdout and stderr.
    pub log: LogConfig,
    /// The file at `terminationMessagePath`, if any; it is mounted unless one of `mounts` has the same
    /// destination.
    pub termination_message: Option<TerminationMessage>,
}

/// A device in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// The path of the node in the container, below /dev.
    pub path: PathBuf,
    /// Whether it is a block device.
    pub block: bool,
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
    /// Whether the container may read from the device.
    pub readable: bool,
    /// Whether the container may write to the device.
    pub writable: bool,
    /// The permissions of the node; `None` for those of `readable` and `writable`, for user and group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The owner of the node; `None` for the user of the container's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group of the node; `None` for the group of the container's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

impl DeviceNode {
    /// The permissions of the node.
    pub fn permissions(&self) -> u32 {
        let letters = if self.readable { 0o440 } else { 0 } | if self.writable { 0o220 } else { 0 };
        self.mode.map_or(letters, |mode| mode & 0o777)
    }
}

/// `terminationMessagePath` and its policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminationMessage {
    /// The file on the host.
    pub file: PathBuf,
    /// The path in the container.
    pub path: PathBuf,
    /// Whether the policy is `FallbackToLogsOnError`.
    pub fallback_to_logs: bool,
}

/// A process: that of the container, or one that is executed in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessConfig {
    /// Command and arguments, expanded; at least one.
    pub args: Vec<String>,
    /// The text that messages show in place of the program in `args`, if the program's name is a value of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_shown: Option<Box<str>>,
    /// `NAME=value`, in order.
    pub env: Vec<String>,
    /// Working directory; it is created if it is missing.
    pub cwd: PathBuf,
    /// User and groups of the process.
    pub user: UserConfig,
    /// Capabilities that are bounding and, for root, permitted and effective; `CAP_` names.
    pub capabilities: Vec<String>,
    /// `no_new_privs`.
    pub no_new_privileges: bool,
    /// The filter of system calls; `None` for all of them.
    #[serde(default)]
    pub seccomp: Option<SeccompConfig>,
    /// The AppArmor profile that the process gets when it is executed; `None` for the profile of the supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_armor: Option<Box<str>>,
    /// How many files each process may have open; `None`, as agents before 2026-11-29 wrote, for the limit of the supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<OpenFilesConfig>,
}

/// The limit of open files of a process (`RLIMIT_NOFILE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFilesConfig {
    /// The limit.
    pub limit: OpenFiles,
    /// Whether the pod requests it: if it cannot be raised that far, nothing starts. Otherwise, the hard limit of the
    /// supervisor bounds it.
    pub is_required: bool,
}

/// A filter of system calls, for seccomp(2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompConfig {
    /// `SECCOMP_FILTER_FLAG_*`.
    pub flags: u32,
    /// The program: each `struct sock_filter` as a little-endian number, as all processors of nodlet have it in memory.
    pub program: Vec<u64>,
}

/// User and groups of a process; the helper looks up a name in the image's /etc/passwd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserConfig {
    /// `User` of the image: "", "name", "uid", "user:group".
    pub image_user: String,
    /// `runAsUser`; overrides the image's user.
    pub run_as_user: Option<u32>,
    /// `runAsGroup`; overrides the image's group.
    pub run_as_group: Option<u32>,
    /// `supplementalGroups` and `fsGroup`.
    pub additional_gids: Vec<u32>,
    /// Whether the groups of the image's user are left out (`supplementalGroupsPolicy: Strict`).
    #[serde(default)]
    pub strict_groups: bool,
}

/// A bind mount into the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountConfig {
    /// The source of the mount.
    pub source: MountSource,
    /// Relative path below the source, which cannot lead out of it.
    pub sub_path: Option<PathBuf>,
    /// The text that messages show in place of `sub_path`, if that contains a value of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path_shown: Option<Box<str>>,
    /// The path in the container.
    pub destination: PathBuf,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// Whether mounts below a read-only mount are read-only, too.
    #[serde(default)]
    pub recursive_read_only: bool,
    /// Mount propagation.
    pub propagation: Propagation,
}

/// The source of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    /// A path of the host.
    Host(PathBuf),
    /// A directory whose files the agent writes, such as those of a ConfigMap.
    Projected(PathBuf),
    /// A [`MemoryVolume`] of the sandbox, by its name.
    Memory(String),
    /// A block device, which is not mounted: see [`ContainerConfig::devices`].
    Device {
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// An image, by its place in [`ContainerConfig::image_volumes`].
    Image(usize),
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
    /// Size in bytes at which the file is rotated (`containerLogMaxSize`).
    pub max_size: u64,
    /// Number of files kept, including the current one (`containerLogMaxFiles`).
    pub max_files: u32,
}

/// A process to execute in a running container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecConfig {
    /// Command and arguments.
    pub args: Vec<String>,
    /// Whether the process gets a terminal; its master side is returned with `ExecStarted`.
    pub tty: bool,
    /// Columns and rows of the terminal, if they are known.
    pub size: Option<(u16, u16)>,
    /// A change of the container's devices. The process then makes this change, and executes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceChange>,
}

/// A change of the device nodes of a running container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceChange {
    /// Devices that are gone; their nodes are removed.
    pub gone: Vec<DeviceNode>,
    /// Devices that appeared; nodes are made of them.
    pub added: Vec<DeviceNode>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
