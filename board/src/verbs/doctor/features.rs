//! The kernel features that pods need, as one table. By this table a running kernel is probed (`kernel.rs`)
//! and the configuration of another kernel is judged (`judge.rs`).

use super::config::Version;
use super::probe::Probe;
use super::report::Area;

/// Whether pods depend on a kernel feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Without the feature no pods or only some pods run, or a common field of pods does not work.
    Needed,
    /// Without the feature pods run, with a disadvantage.
    Useful,
}

/// A feature that a kernel has or lacks.
#[derive(Debug)]
pub(super) struct Feature {
    pub(super) area: Area,
    pub(super) name: &'static str,
    pub(super) need: Need,
    /// The alternatives by which kernels provide the feature, the best first.
    pub(super) ways: &'static [Way],
    /// The module that provides the feature if an option is set to `m`; empty if it cannot be a module.
    pub(super) module: &'static str,
    /// The consequence of the missing feature for pods, as a sentence.
    pub(super) without: &'static str,
    /// How a running kernel is probed for the feature.
    pub(super) probe: Probe,
}

/// Options that together provide a feature.
#[derive(Debug)]
pub(super) struct Way {
    /// The options, without `CONFIG_`.
    pub(super) options: &'static [&'static str],
    /// The first kernel version in which the options suffice; `None` for any version.
    pub(super) since: Option<Version>,
    /// The disadvantage against the preceding ways; empty if there is none.
    pub(super) worse: &'static str,
}

/// A way that needs all of these options, in any kernel version.
const fn all(options: &'static [&'static str]) -> Way {
    Way { options, since: None, worse: "" }
}

/// The oldest kernel that nodlet runs on.
pub(super) const OLDEST: Version = Version(5, 14);

/// The oldest kernel that mounts EROFS from a file.
const FILES_MOUNTED: Version = Version(6, 12);

/// The oldest kernel that runs eBPF programs on a link without a classifier (tcx).
const TCX: Version = Version(6, 6);

/// The table of all kernel features.
pub(super) const FEATURES: &[Feature] = &[
    Feature {
        area: Area::Kernel,
        name: "mount namespaces",
        need: Need::Needed,
        ways: &[all(&["NAMESPACES"])],
        module: "",
        without: "No container starts.",
        probe: Probe::Namespace("mnt", libc::CLONE_NEWNS),
    },
    Feature {
        area: Area::Kernel,
        name: "network namespaces",
        need: Need::Needed,
        ways: &[all(&["NET_NS"])],
        module: "",
        without: "No pod starts without hostNetwork.",
        probe: Probe::Namespace("net", libc::CLONE_NEWNET),
    },
    Feature {
        area: Area::Kernel,
        name: "IPC namespaces",
        need: Need::Needed,
        ways: &[all(&["IPC_NS"])],
        module: "",
        without: "No pod starts without hostIPC.",
        probe: Probe::Namespace("ipc", libc::CLONE_NEWIPC),
    },
    Feature {
        area: Area::Kernel,
        name: "UTS namespaces",
        need: Need::Needed,
        ways: &[all(&["UTS_NS"])],
        module: "",
        without: "No pod can have a host name of its own, so none starts without hostNetwork.",
        probe: Probe::Namespace("uts", libc::CLONE_NEWUTS),
    },
    Feature {
        area: Area::Kernel,
        name: "PID namespaces",
        need: Need::Needed,
        ways: &[all(&["PID_NS"])],
        module: "",
        without: "No container starts without hostPID.",
        probe: Probe::Namespace("pid", libc::CLONE_NEWPID),
    },
    Feature {
        area: Area::Kernel,
        name: "user namespaces",
        need: Need::Useful,
        ways: &[all(&["USER_NS"])],
        module: "",
        without: "Pods run; programs that make a sandbox for themselves, such as browsers, cannot do so.",
        probe: Probe::Namespace("user", libc::CLONE_NEWUSER),
    },
    Feature {
        area: Area::Kernel,
        name: "system calls",
        need: Need::Needed,
        ways: &[all(&[
            "EPOLL",
            "EVENTFD",
            "SIGNALFD",
            "TIMERFD",
            "INOTIFY_USER",
            "FILE_LOCKING",
            "FUTEX",
            "UNIX",
            "INET",
        ])],
        module: "",
        without: "The agent and the supervisors of pods do not start.",
        probe: Probe::SystemCalls,
    },
    Feature {
        area: Area::Kernel,
        name: "overlayfs",
        need: Need::Needed,
        ways: &[all(&["OVERLAY_FS"])],
        module: "overlay",
        without: "No container starts: its writable layer needs overlayfs.",
        probe: Probe::Overlay,
    },
    Feature {
        area: Area::Kernel,
        name: "EROFS",
        need: Need::Needed,
        ways: &[all(&["EROFS_FS", "EROFS_FS_XATTR"])],
        module: "erofs",
        without: "No container starts: image layers are EROFS file systems with extended attributes.",
        probe: Probe::Erofs,
    },
    Feature {
        area: Area::Kernel,
        name: "layer mounts",
        need: Need::Needed,
        ways: &[
            Way { options: &["EROFS_FS_BACKED_BY_FILE"], since: Some(FILES_MOUNTED), worse: "" },
            all(&["BLK_DEV_LOOP"]),
        ],
        module: "loop",
        without: "No container starts: an image layer is a file, which the kernel cannot mount.",
        probe: Probe::LayerMount,
    },
    Feature {
        area: Area::Kernel,
        name: "file capabilities",
        need: Need::Useful,
        ways: &[all(&["EROFS_FS_SECURITY"])],
        module: "",
        without: "Pods run; programs of an image that have file capabilities (often ping) run without them.",
        probe: Probe::FileAlone,
    },
    Feature {
        area: Area::Kernel,
        name: "tmpfs",
        need: Need::Needed,
        ways: &[all(&["SHMEM", "TMPFS"])],
        module: "",
        without: "No container starts: its /dev and its secrets are on a tmpfs.",
        probe: Probe::Mount("tmpfs"),
    },
    Feature {
        area: Area::Kernel,
        name: "tmpfs attributes",
        need: Need::Useful,
        ways: &[all(&["TMPFS_XATTR"])],
        module: "",
        without: "Pods run if the data directory is on a disk; on a tmpfs, containers cannot replace directories of their image.",
        probe: Probe::TmpfsAttributes,
    },
    Feature {
        area: Area::Kernel,
        name: "proc",
        need: Need::Needed,
        ways: &[all(&["PROC_FS"])],
        module: "",
        without: "No container starts.",
        probe: Probe::Mount("proc"),
    },
    Feature {
        area: Area::Kernel,
        name: "sysfs",
        need: Need::Needed,
        ways: &[all(&["SYSFS"])],
        module: "",
        without: "No container starts.",
        probe: Probe::Mount("sysfs"),
    },
    Feature {
        area: Area::Kernel,
        name: "devpts",
        need: Need::Needed,
        ways: &[all(&["UNIX98_PTYS"])],
        module: "",
        without: "No container starts: its /dev/pts is a devpts.",
        probe: Probe::Mount("devpts"),
    },
    Feature {
        area: Area::Kernel,
        name: "message queues",
        need: Need::Needed,
        ways: &[all(&["POSIX_MQUEUE"])],
        module: "",
        without: "No container starts: its /dev/mqueue cannot be mounted.",
        probe: Probe::Mount("mqueue"),
    },
    Feature {
        area: Area::Kernel,
        name: "seccomp",
        need: Need::Useful,
        ways: &[all(&["SECCOMP", "SECCOMP_FILTER"])],
        module: "",
        without: "Pods run; image archives are unpacked with less protection, and programs that filter their own system calls fail.",
        probe: Probe::Seccomp,
    },
    Feature {
        area: Area::Kernel,
        name: "keyrings",
        need: Need::Useful,
        ways: &[all(&["KEYS"])],
        module: "",
        without: "Pods run; programs in them that keep keys in the kernel fail.",
        probe: Probe::Keyring,
    },
    Feature {
        area: Area::Kernel,
        name: "Landlock",
        need: Need::Useful,
        ways: &[all(&["SECURITY_LANDLOCK"])],
        module: "",
        without: "Pods run; image archives that a user other than root loads are unpacked with less protection.",
        probe: Probe::Landlock,
    },
    Feature {
        area: Area::Kernel,
        name: "AppArmor",
        need: Need::Useful,
        ways: &[all(&["SECURITY_APPARMOR"])],
        module: "",
        without: "Pods run without AppArmor; a pod whose appArmorProfile is RuntimeDefault or Localhost is rejected.",
        probe: Probe::AppArmor,
    },
    Feature {
        area: Area::Cgroups,
        name: "cgroup v2",
        need: Need::Needed,
        ways: &[all(&["CGROUPS"])],
        module: "",
        without: "The agent does not start.",
        probe: Probe::CgroupV2,
    },
    Feature {
        area: Area::Cgroups,
        name: "cpu controller",
        need: Need::Needed,
        ways: &[all(&["CGROUP_SCHED", "FAIR_GROUP_SCHED"])],
        module: "",
        without: "A pod with a cpu request or limit waits; processors are not shared by the requests of pods.",
        probe: Probe::Controller("cpu"),
    },
    Feature {
        area: Area::Cgroups,
        name: "cpu limits",
        need: Need::Needed,
        ways: &[all(&["CFS_BANDWIDTH"])],
        module: "",
        without: "A pod with a cpu limit waits.",
        probe: Probe::CpuLimits,
    },
    Feature {
        area: Area::Cgroups,
        name: "memory controller",
        need: Need::Needed,
        ways: &[all(&["MEMCG"])],
        module: "",
        without: "A pod with a memory limit waits; others run, and any of them can use up all memory.",
        probe: Probe::Controller("memory"),
    },
    Feature {
        area: Area::Cgroups,
        name: "pids controller",
        need: Need::Needed,
        ways: &[all(&["CGROUP_PIDS"])],
        module: "",
        without: "A fork bomb in one pod uses up all processes of the machine.",
        probe: Probe::Controller("pids"),
    },
    Feature {
        area: Area::Cgroups,
        name: "io controller",
        need: Need::Useful,
        ways: &[all(&["BLK_CGROUP"])],
        module: "",
        without: "Pods run; nodlet sets no limits of disks, and other programs of the board cannot set any.",
        probe: Probe::Controller("io"),
    },
    Feature {
        area: Area::Cgroups,
        name: "cpuset controller",
        need: Need::Useful,
        ways: &[all(&["CPUSETS"])],
        module: "",
        without: "Pods run, except those with exclusive cpus, and other programs of the board cannot be pinned to processors.",
        probe: Probe::Controller("cpuset"),
    },
    Feature {
        area: Area::Cgroups,
        name: "device filter",
        need: Need::Needed,
        ways: &[
            all(&["BPF_SYSCALL", "CGROUP_BPF"]),
            Way {
                options: &["CGROUP_DEVICE"],
                since: None,
                worse: "Pods run where the devices controller of cgroup v1 is mounted, and no container starts with cgroup v2 alone.",
            },
        ],
        module: "",
        without: "No container starts: nothing keeps it from the devices of the board.",
        probe: Probe::DeviceFilter,
    },
    Feature {
        area: Area::Cgroups,
        name: "pressure (PSI)",
        need: Need::Useful,
        ways: &[all(&["PSI"])],
        module: "",
        without: "Pods run; tools that read pressure stall information get none.",
        probe: Probe::Pressure,
    },
    Feature {
        area: Area::Network,
        name: "veth",
        need: Need::Needed,
        ways: &[all(&["VETH"])],
        module: "veth",
        without: "No pod starts without hostNetwork.",
        probe: Probe::Veth,
    },
    Feature {
        area: Area::Network,
        name: "bridge",
        need: Need::Needed,
        ways: &[all(&["BRIDGE"])],
        module: "bridge",
        without: "No pod starts without hostNetwork.",
        probe: Probe::Bridge,
    },
    Feature {
        area: Area::Network,
        name: "sender filter",
        need: Need::Useful,
        ways: &[
            all(&["BPF_SYSCALL", "NET_SCH_INGRESS", "NET_CLS_BPF"]),
            Way { options: &["BPF_SYSCALL"], since: Some(TCX), worse: "" },
        ],
        module: "cls_bpf",
        without: "Pods run; a pod with CAP_NET_RAW, a default, can send under the IPv4 address of another.",
        probe: Probe::SenderFilter,
    },
    Feature {
        area: Area::Machine,
        name: "watchdog",
        need: Need::Useful,
        ways: &[all(&["WATCHDOG"])],
        module: "",
        without: "Pods run; a board that hangs is not restarted.",
        probe: Probe::FileAlone,
    },
    Feature {
        area: Area::Machine,
        name: "real-time clock",
        need: Need::Useful,
        ways: &[all(&["RTC_CLASS", "RTC_HCTOSYS"])],
        module: "",
        without: "Pods run; after a power cut, times are wrong until the network sets the clock.",
        probe: Probe::FileAlone,
    },
];
