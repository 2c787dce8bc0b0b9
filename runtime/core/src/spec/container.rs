//! A container of a pod.

use std::rc::Rc;
use std::time::Duration;

pub use super::reference::PullPolicy;
use super::reference::{ObjectReference, ResourceField};
use super::volume::VolumeDevice;
use super::{Lifecycle, OwnRestart, Probe, ProbeKind, Quantity, VolumeMount};

/// Upper bound of the containers of one pod: as many as [`ContainerIndex`] has values.
pub const MAX_CONTAINERS: usize = 256;

/// A container's place among all containers of a pod: first those of `spec.containers`, then those of
/// `spec.initContainers`, each in the order of the manifest, then those of `spec.ephemeralContainers` in the
/// order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ContainerIndex(pub u8);

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One of `spec.containers`: the pod exists to run it.
    Regular,
    /// An init container: it ends before the next containers start.
    Init,
    /// An init container with `restartPolicy: Always`: it has started before the next containers start, runs
    /// beside them, and ends last.
    Sidecar,
    /// One of `spec.ephemeralContainers`: it inspects a running pod. It runs at most once, and does not
    /// affect the rest of the pod.
    Ephemeral,
}

impl Role {
    /// Whether the container is one of `spec.initContainers`.
    pub fn is_init(self) -> bool {
        match self {
            Role::Init | Role::Sidecar => true,
            Role::Regular | Role::Ephemeral => false,
        }
    }
}

/// One entry of `spec.containers`, `spec.initContainers` or `spec.ephemeralContainers`, with
/// defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    /// `name`, a DNS label, unique in the pod.
    pub name: String,
    /// `image`, as written.
    pub image: String,
    /// `imagePullPolicy`.
    pub image_pull_policy: PullPolicy,
    /// Whether an init container has `restartPolicy: Always`.
    pub sidecar: bool,
    /// `targetContainerName` of an ephemeral container, which sees the processes of that container.
    pub target: Option<String>,
    /// `restartPolicy` and `restartPolicyRules` of the container itself.
    pub restart: Option<Rc<OwnRestart>>,
    /// `command`; `None` if it was not given, which means the image's entrypoint.
    pub command: Option<Vec<String>>,
    /// `args`; `None` if it was not given.
    pub args: Option<Vec<String>>,
    /// `workingDir`.
    pub working_dir: Option<String>,
    /// `env`, in order, unexpanded.
    pub env: Vec<EnvVar>,
    /// `envFrom`, in order.
    pub env_from: Vec<EnvFrom>,
    /// `ports`.
    pub ports: Vec<ContainerPort>,
    /// `resources`, requests defaulted from limits.
    pub resources: ResourceRequirements,
    /// `volumeDevices`.
    pub volume_devices: Vec<VolumeDevice>,
    /// `volumeMounts`.
    pub volume_mounts: Vec<VolumeMount>,
    /// `livenessProbe`.
    pub liveness_probe: Option<Probe>,
    /// `readinessProbe`.
    pub readiness_probe: Option<Probe>,
    /// `startupProbe`.
    pub startup_probe: Option<Probe>,
    /// `lifecycle`.
    pub lifecycle: Lifecycle,
    /// `terminationMessagePath`; `/dev/termination-log` by default.
    pub termination_message_path: String,
    /// `terminationMessagePolicy` is `FallbackToLogsOnError`.
    pub termination_message_fallback_to_logs: bool,
    /// `stdin`: input comes from clients that attach, and not from /dev/null.
    pub stdin: bool,
    /// `stdinOnce`: the input ends with that of the first client that attaches.
    pub stdin_once: bool,
    /// `tty`.
    pub tty: bool,
    /// `securityContext`.
    pub security_context: SecurityContext,
}

impl Container {
    /// The probe of `kind`, if there is one.
    pub fn probe(&self, kind: ProbeKind) -> Option<&Probe> {
        match kind {
            ProbeKind::Liveness => self.liveness_probe.as_ref(),
            ProbeKind::Readiness => self.readiness_probe.as_ref(),
            ProbeKind::Startup => self.startup_probe.as_ref(),
        }
    }

    /// The grace period of a kill after a failed probe of `kind`, if the probe has one of its own.
    pub(crate) fn probe_grace(&self, kind: ProbeKind) -> Option<Duration> {
        self.probe(kind).and_then(|probe| probe.termination_grace_period)
    }
}

/// One entry of `env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvVar {
    /// `name`.
    pub name: String,
    /// The source of the value.
    pub value: EnvSource,
}

/// `value` or `valueFrom` of an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvSource {
    /// `value`, in which `$(VAR)` is expanded.
    Value(String),
    /// `valueFrom.fieldRef.fieldPath`.
    Field(String),
    /// `valueFrom.resourceFieldRef`.
    Resource(ResourceField),
    /// `valueFrom.fileKeyRef`.
    File {
        /// `volumeName`, an emptyDir on disk.
        volume: String,
        /// `path`, relative, without `..`.
        path: String,
        /// `key`.
        key: String,
        /// `optional`.
        optional: bool,
    },
    /// `valueFrom.configMapKeyRef` or `valueFrom.secretKeyRef`.
    Key {
        /// The object.
        object: ObjectReference,
        /// The key in the object's data.
        key: String,
    },
}

/// One entry of `envFrom`: every key of an object's data becomes a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFrom {
    /// `prefix`, put before each key.
    pub prefix: String,
    /// The object.
    pub object: ObjectReference,
}

/// One entry of `ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPort {
    /// `name`.
    pub name: Option<String>,
    /// `containerPort`.
    pub container_port: u16,
    /// `protocol`: `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `hostPort`; 0 for none.
    pub host_port: u16,
    /// `hostIP`; empty for all.
    pub host_ip: String,
}

/// `resources`, as far as nodlet acts on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceRequirements {
    /// `limits.cpu`.
    pub cpu_limit: Option<Quantity>,
    /// `requests.cpu`.
    pub cpu_request: Option<Quantity>,
    /// `limits.memory`.
    pub memory_limit: Option<Quantity>,
    /// `requests.memory`.
    pub memory_request: Option<Quantity>,
    /// `requests.ephemeral-storage`.
    pub ephemeral_storage_request: Option<Quantity>,
    /// `limits.ephemeral-storage`.
    pub ephemeral_storage_limit: Option<Quantity>,
    /// Whether a change of cpu restarts the container (`resizePolicy`).
    pub cpu_resize_restarts: bool,
    /// Whether a change of memory restarts the container (`resizePolicy`).
    pub memory_resize_restarts: bool,
    /// `limits.nodlet.dev/<name>`: devices of the board, by the part of the name behind the slash. Amounts are
    /// above zero.
    pub devices: Vec<(Box<str>, i64)>,
    /// `limits.hugepages-<size>` in bytes, by the size of the pages as written. Amounts are above zero.
    pub huge_pages: Vec<(Box<str>, i64)>,
    /// The annotation `exclusive-cpus.nodlet.dev/<container>`: how many cpus the container has for itself, under the name
    /// [`EXCLUSIVE_CPUS`]; empty without any.
    pub exclusive_cpus: Vec<(Box<str>, i64)>,
    /// The annotation `rtprio.nodlet.dev/<container>`: the highest real-time priority that processes of the container may
    /// choose; 0 for none.
    pub rtprio: u32,
}

impl ResourceRequirements {
    /// The bytes in huge pages of this size.
    pub fn huge_pages_of(&self, size: &str) -> Option<i64> {
        self.huge_pages.iter().find(|(known, _)| **known == *size).map(|(_, bytes)| *bytes)
    }

    /// The amounts that a resize may change: request and limit of cpu, request and limit of memory.
    pub(crate) fn resizable(&self) -> [&Option<Quantity>; 4] {
        [&self.cpu_request, &self.cpu_limit, &self.memory_request, &self.memory_limit]
    }

    /// Replaces the amounts that a resize may change, in the order of [`ResourceRequirements::resizable`].
    pub(crate) fn set_resizable(&mut self, amounts: [Option<Quantity>; 4]) {
        [self.cpu_request, self.cpu_limit, self.memory_request, self.memory_limit] = amounts;
    }
}

/// The domain of resources that stand for devices of the board, with the slash.
pub const DEVICE_DOMAIN: &str = "nodlet.dev/";

/// The name of exclusive cpus where amounts of resources are compared.
pub const EXCLUSIVE_CPUS: &str = "exclusive-cpus";

/// The prefix of resources that stand for huge pages; the size of the pages follows it.
pub const HUGE_PAGES: &str = "hugepages-";

/// `securityContext` of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityContext {
    /// `runAsUser`.
    pub run_as_user: Option<u32>,
    /// `runAsGroup`.
    pub run_as_group: Option<u32>,
    /// `runAsNonRoot`.
    pub run_as_non_root: Option<bool>,
    /// `privileged`.
    pub privileged: bool,
    /// `readOnlyRootFilesystem`.
    pub read_only_root_filesystem: bool,
    /// `allowPrivilegeEscalation` is `false`, which sets `no_new_privs`.
    pub no_new_privileges: bool,
    /// `capabilities.add`, without `CAP_`.
    pub capabilities_add: Vec<String>,
    /// `capabilities.drop`, without `CAP_`.
    pub capabilities_drop: Vec<String>,
    /// `seccompProfile`.
    pub seccomp: Option<SeccompProfile>,
    /// `appArmorProfile`.
    pub app_armor: Option<AppArmorProfile>,
    /// `procMount` is `Unmasked`.
    pub unmasked: bool,
}

/// `appArmorProfile`: the AppArmor profile that confines a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppArmorProfile {
    /// None.
    Unconfined,
    /// The profile of the runtime.
    RuntimeDefault,
    /// A profile that the kernel has loaded: `localhostProfile`.
    Localhost(Box<str>),
}

/// `seccompProfile`: which system calls a process may make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeccompProfile {
    /// All of them.
    Unconfined,
    /// The system calls of containerd's default profile.
    RuntimeDefault,
    /// The system calls of a profile in a file of the node: `localhostProfile`.
    Localhost(String),
}

/// All capabilities that Linux has, in the order of their numbers, without `CAP_`.
pub const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
