//! The kernel features that pods need, as one table. By this table a running kernel is probed (`kernel.rs`)
//! and the configuration of another kernel is judged (`judge.rs`).

use libc::{CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS};

use super::config::Version;
use super::probe::Probe;
use super::report::{Area, Verdict};

/// A feature that a kernel has or lacks.
#[derive(Debug)]
pub(super) struct Feature {
    pub(super) name: &'static str,
    /// The verdict on a kernel that lacks the feature.
    pub(super) lack: Verdict,
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

/// A feature without which no pods or only some pods run, or a common field of pods does not work.
const fn needed(name: &'static str, ways: &'static [Way], without: &'static str, probe: Probe) -> Feature {
    Feature { name, lack: Verdict::Missing, ways, module: "", without, probe }
}

/// A feature without which pods run, with a disadvantage.
const fn useful(name: &'static str, ways: &'static [Way], without: &'static str, probe: Probe) -> Feature {
    Feature { name, lack: Verdict::Warning, ways, module: "", without, probe }
}

impl Feature {
    const fn module(self, module: &'static str) -> Feature {
        Feature { module, ..self }
    }
}

/// All kernel features, with their areas.
pub(super) fn features() -> impl Iterator<Item = (Area, &'static Feature)> {
    let areas = [
        (Area::Kernel, KERNEL),
        (Area::Cgroups, CGROUPS),
        (Area::Network, NETWORK),
        (Area::Machine, MACHINE),
    ];
    areas.into_iter().flat_map(|(area, features)| features.iter().map(move |feature| (area, feature)))
}

/// The oldest kernel that nodlet runs on.
pub(super) const OLDEST: Version = Version(5, 14);

/// The oldest kernel that mounts EROFS from a file.
const FILES_MOUNTED: Version = Version(6, 12);

/// The oldest kernel that runs eBPF programs on a link without a classifier (tcx).
const TCX: Version = Version(6, 6);

const KERNEL: &[Feature] = &[
    needed(
        "mount namespaces",
        &[all(&["NAMESPACES"])],
        "No container starts.",
        Probe::Namespace("mnt", CLONE_NEWNS),
    ),
    needed(
        "network namespaces",
        &[all(&["NET_NS"])],
        "No pod starts without hostNetwork.",
        Probe::Namespace("net", CLONE_NEWNET),
    ),
    needed(
        "IPC namespaces",
        &[all(&["IPC_NS"])],
        "No pod starts without hostIPC.",
        Probe::Namespace("ipc", CLONE_NEWIPC),
    ),
    needed(
        "UTS namespaces",
        &[all(&["UTS_NS"])],
        "No pod can have a host name of its own, so none starts without hostNetwork.",
        Probe::Namespace("uts", CLONE_NEWUTS),
    ),
    needed(
        "PID namespaces",
        &[all(&["PID_NS"])],
        "No container starts without hostPID.",
        Probe::Namespace("pid", CLONE_NEWPID),
    ),
    useful(
        "user namespaces",
        &[all(&["USER_NS"])],
        "Pods run; programs that make a sandbox for themselves, such as browsers, cannot do so.",
        Probe::Namespace("user", CLONE_NEWUSER),
    ),
    needed(
        "system calls",
        &[all(&[
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
        "The agent and the supervisors of pods do not start.",
        Probe::SystemCalls,
    ),
    needed(
        "overlayfs",
        &[all(&["OVERLAY_FS"])],
        "No container starts: its writable layer needs overlayfs.",
        Probe::Overlay,
    )
    .module("overlay"),
    needed(
        "EROFS",
        &[all(&["EROFS_FS", "EROFS_FS_XATTR"])],
        "No container starts: image layers are EROFS file systems with extended attributes.",
        Probe::Erofs,
    )
    .module("erofs"),
    needed(
        "layer mounts",
        &[
            Way { options: &["EROFS_FS_BACKED_BY_FILE"], since: Some(FILES_MOUNTED), worse: "" },
            all(&["BLK_DEV_LOOP"]),
        ],
        "No container starts: an image layer is a file, which the kernel cannot mount.",
        Probe::LayerMount,
    )
    .module("loop"),
    useful(
        "file capabilities",
        &[all(&["EROFS_FS_SECURITY"])],
        "Pods run; programs of an image that have file capabilities (often ping) run without them.",
        Probe::FileAlone,
    ),
    needed(
        "tmpfs",
        &[all(&["SHMEM", "TMPFS"])],
        "No container starts: its /dev and its secrets are on a tmpfs.",
        Probe::Mount("tmpfs"),
    ),
    useful(
        "tmpfs attributes",
        &[all(&["TMPFS_XATTR"])],
        "Pods run if the data directory is on a disk; on a tmpfs, containers cannot replace directories of their image.",
        Probe::TmpfsAttributes,
    ),
    needed("proc", &[all(&["PROC_FS"])], "No container starts.", Probe::Mount("proc")),
    needed("sysfs", &[all(&["SYSFS"])], "No container starts.", Probe::Mount("sysfs")),
    needed(
        "devpts",
        &[all(&["UNIX98_PTYS"])],
        "No container starts: its /dev/pts is a devpts.",
        Probe::Mount("devpts"),
    ),
    needed(
        "message queues",
        &[all(&["POSIX_MQUEUE"])],
        "No container starts: its /dev/mqueue cannot be mounted.",
        Probe::Mount("mqueue"),
    ),
    useful(
        "seccomp",
        &[all(&["SECCOMP", "SECCOMP_FILTER"])],
        "Pods run; image archives are unpacked with less protection, and programs that filter their own system calls fail.",
        Probe::Seccomp,
    ),
    useful(
        "keyrings",
        &[all(&["KEYS"])],
        "Pods run; programs in them that keep keys in the kernel fail.",
        Probe::Keyring,
    ),
    useful(
        "Landlock",
        &[all(&["SECURITY_LANDLOCK"])],
        "Pods run; image archives that a user other than root loads are unpacked with less protection.",
        Probe::Landlock,
    ),
    useful(
        "AppArmor",
        &[all(&["SECURITY_APPARMOR"])],
        "Pods run without AppArmor; a pod whose appArmorProfile is RuntimeDefault or Localhost is rejected.",
        Probe::AppArmor,
    ),
];

const CGROUPS: &[Feature] = &[
    needed("cgroup v2", &[all(&["CGROUPS"])], "The agent does not start.", Probe::CgroupV2),
    needed(
        "cpu controller",
        &[all(&["CGROUP_SCHED", "FAIR_GROUP_SCHED"])],
        "A pod with a cpu request or limit waits; processors are not shared by the requests of pods.",
        Probe::Controller("cpu"),
    ),
    needed("cpu limits", &[all(&["CFS_BANDWIDTH"])], "A pod with a cpu limit waits.", Probe::CpuLimits),
    needed(
        "memory controller",
        &[all(&["MEMCG"])],
        "A pod with a memory limit waits; others run, and any of them can use up all memory.",
        Probe::Controller("memory"),
    ),
    needed(
        "pids controller",
        &[all(&["CGROUP_PIDS"])],
        "A fork bomb in one pod uses up all processes of the machine.",
        Probe::Controller("pids"),
    ),
    useful(
        "io controller",
        &[all(&["BLK_CGROUP"])],
        "Pods run; nodlet sets no limits of disks, and other programs of the board cannot set any.",
        Probe::Controller("io"),
    ),
    useful(
        "cpuset controller",
        &[all(&["CPUSETS"])],
        "Pods run, except those with exclusive cpus, and other programs of the board cannot be pinned to processors.",
        Probe::Controller("cpuset"),
    ),
    needed(
        "device filter",
        &[
            all(&["BPF_SYSCALL", "CGROUP_BPF"]),
            Way {
                options: &["CGROUP_DEVICE"],
                since: None,
                worse: "Pods run where the devices controller of cgroup v1 is mounted, and no container starts with cgroup v2 alone.",
            },
        ],
        "No container starts: nothing keeps it from the devices of the board.",
        Probe::DeviceFilter,
    ),
    useful(
        "pressure (PSI)",
        &[all(&["PSI"])],
        "Pods run; tools that read pressure stall information get none.",
        Probe::Pressure,
    ),
];

const NETWORK: &[Feature] = &[
    needed("veth", &[all(&["VETH"])], "No pod starts without hostNetwork.", Probe::Veth).module("veth"),
    needed("bridge", &[all(&["BRIDGE"])], "No pod starts without hostNetwork.", Probe::Bridge)
        .module("bridge"),
    useful(
        "sender filter",
        &[
            all(&["BPF_SYSCALL", "NET_SCH_INGRESS", "NET_CLS_BPF"]),
            Way { options: &["BPF_SYSCALL"], since: Some(TCX), worse: "" },
        ],
        "Pods run; a pod with CAP_NET_RAW, a default, can send under the IPv4 address of another.",
        Probe::SenderFilter,
    )
    .module("cls_bpf"),
];

const MACHINE: &[Feature] = &[
    useful(
        "watchdog",
        &[all(&["WATCHDOG"])],
        "Pods run; a board that hangs is not restarted.",
        Probe::FileAlone,
    ),
    useful(
        "real-time clock",
        &[all(&["RTC_CLASS", "RTC_HCTOSYS"])],
        "Pods run; after a power cut, times are wrong until the network sets the clock.",
        Probe::FileAlone,
    ),
];
