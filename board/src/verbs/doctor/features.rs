//! The kernel features that pods need, as one table. By this table a running kernel is probed (`kernel.rs`)
//! and the configuration of another kernel is judged.

use super::config::{Config, Setting, Version};
use super::probe::Probe;
use super::report::{Area, Check, Verdict};

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
        without: "No container starts: its /dev and its secrets lie on a tmpfs.",
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

impl Feature {
    /// The verdict if a kernel lacks the feature.
    pub(super) fn lack(&self) -> Verdict {
        match self.need {
            Need::Needed => Verdict::Missing,
            Need::Useful => Verdict::Warning,
        }
    }

    /// A check that found the feature.
    pub(super) fn works(&self, found: impl Into<String>) -> Check {
        Check::ok(self.area, self.name, found)
    }

    /// A check that could not determine whether the feature exists.
    pub(super) fn unknown(&self, found: impl Into<String>) -> Check {
        Check::unknown(self.area, self.name, found)
    }

    /// A check that found that the feature is missing.
    pub(super) fn lacks(&self, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check::new(self.area, self.name, self.lack(), found).because(self.without, remedy)
    }

    /// The best way in which a kernel of this configuration and version provides the feature. An unknown
    /// version counts as old.
    pub(super) fn way(&self, config: &Config, version: Option<Version>) -> Option<&Way> {
        self.ways.iter().find(|way| way.is_possible(version) && way.lacking(config).is_empty())
    }

    /// Judges the feature by a kernel's configuration.
    pub(super) fn judge(&self, config: &Config, version: Option<Version>) -> Check {
        if let Some(way) = self.way(config, version) {
            let found = way.found(config, self.module);
            if way.worse.is_empty() {
                return self.works(found);
            }
            return Check::new(self.area, self.name, Verdict::Warning, found)
                .because(way.worse, format!("Enable {}.", options(&self.ways[0].lacking(config))));
        }
        let found = self.ways.iter().filter(|way| way.is_possible(version)).map(|way| {
            let lacking = way.lacking(config);
            let is = if lacking.len() == 1 { "is" } else { "are" };
            format!("{} {is} not set", options(&lacking))
        });
        self.lacks(found.collect::<Vec<_>>().join("; "), self.enable(config, version))
    }

    /// The options to enable for the feature, as a sentence.
    pub(super) fn enable(&self, config: &Config, version: Option<Version>) -> String {
        let ways = self.ways.iter().map(|way| {
            let options = options(&way.lacking(config));
            match way.since {
                Some(since) if !way.is_possible(version) && options.is_empty() => {
                    format!("use Linux {since} or later")
                }
                Some(since) if !way.is_possible(version) => {
                    format!("enable {options} with Linux {since} or later")
                }
                Some(_) | None => format!("enable {options}"),
            }
        });
        sentence(&ways.collect::<Vec<_>>().join(", or "))
    }
}

impl Way {
    fn is_possible(&self, version: Option<Version>) -> bool {
        self.since.is_none_or(|since| version.is_some_and(|version| version >= since))
    }

    fn lacking(&self, config: &Config) -> Vec<&'static str> {
        self.options.iter().copied().filter(|option| config.setting(option) == Setting::Off).collect()
    }

    fn found(&self, config: &Config, module: &str) -> String {
        let modules: Vec<&str> =
            self.options.iter().copied().filter(|option| config.setting(option) == Setting::Module).collect();
        let all = options(self.options);
        match modules[..] {
            [] => all,
            _ if module.is_empty() => format!("{all}; of these as modules: {}", options(&modules)),
            _ => format!("{all}; a module, {module}, which must be on the board"),
        }
    }
}

/// Joins the names of options: `CONFIG_A, CONFIG_B and CONFIG_C`.
pub(super) fn options(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("CONFIG_{name}")).collect();
    match &names[..] {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Adds a capital first letter and a full stop.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// Judges the version of a kernel.
pub(super) fn judge_version(version: Option<Version>, release: &str) -> Check {
    const NAME: &str = "Linux version";
    match version {
        Some(version) if version >= OLDEST => Check::ok(Area::Kernel, NAME, release),
        Some(_) => Check::new(Area::Kernel, NAME, Verdict::Missing, release).because(
            "Pods cannot be ended: cgroup.kill is missing.",
            format!("Use Linux {OLDEST} or later."),
        ),
        None => Check::unknown(Area::Kernel, NAME, format!("{release} names no version"))
            .because(format!("It must be {OLDEST} or later."), ""),
    }
}

/// All checks that a kernel's configuration allows.
pub(super) fn judge_file(config: &Config) -> Vec<Check> {
    let version = config.version();
    let mut checks = vec![judge_version(version, config.release.as_deref().unwrap_or("the file"))];
    checks.push(if config.is_whole() {
        Check::ok(Area::Kernel, "configuration", "whole")
    } else {
        Check::new(Area::Kernel, "configuration", Verdict::Warning, "without the first lines that the kernel's build writes")
            .because(
                "A defconfig or a fragment omits options that are set by default: options that are missing below may be set.",
                "Give the .config in the kernel's build directory.",
            )
    });
    checks.extend(FEATURES.iter().map(|feature| feature.judge(config, version)));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration of a kernel with all options of all features enabled.
    fn whole(release: &str) -> Vec<String> {
        let mut lines = vec![format!("# Linux/arm64 {release} Kernel Configuration")];
        let mut options: Vec<&str> =
            FEATURES.iter().flat_map(|feature| feature.ways).flat_map(|way| way.options).copied().collect();
        options.sort_unstable();
        options.dedup();
        lines.extend(options.iter().map(|option| format!("CONFIG_{option}=y")));
        lines
    }

    fn judged(lines: &[String]) -> Vec<Check> {
        judge_file(&Config::parse(&lines.join("\n")).unwrap())
    }

    fn named<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn a_kernel_with_all_options_lacks_nothing() {
        for release in ["5.14.0", "6.6.1", "6.12.34-v8+"] {
            let checks = judged(&whole(release));
            assert!(checks.iter().all(|check| check.verdict == Verdict::Ok), "{checks:#?}");
        }
    }

    #[test]
    fn each_option_that_a_feature_has_no_other_way_without_is_named() {
        for feature in FEATURES.iter().filter(|feature| feature.ways.len() == 1) {
            for option in feature.ways[0].options {
                let mut lines = whole("6.12.0");
                lines.retain(|line| *line != format!("CONFIG_{option}=y"));
                let check = judged(&lines).into_iter().find(|check| check.name == feature.name).unwrap();
                assert_eq!(check.verdict, feature.lack(), "{option}");
                assert!(check.remedy.contains(&format!("CONFIG_{option}")), "{check:?}");
                assert!(!check.meaning.is_empty(), "{check:?}");
            }
        }
    }

    /// Checks the verdict and the remedy of a feature for a kernel that lacks these options.
    #[track_caller]
    fn check(release: &str, without: &[&str], name: &str, verdict: Verdict, remedy: &str) {
        let mut lines = whole(release);
        lines.retain(|line| without.iter().all(|option| *line != format!("CONFIG_{option}=y")));
        let checks = judged(&lines);
        let check = named(&checks, name);
        assert_eq!((check.verdict, check.remedy.as_str()), (verdict, remedy), "{check:?}");
    }

    #[test]
    fn the_verdict_on_a_missing_option_depends_on_version_and_alternatives() {
        let file = "EROFS_FS_BACKED_BY_FILE";
        check("6.12.0", &["BLK_DEV_LOOP"], "layer mounts", Verdict::Ok, "");
        check("6.12.0", &[file], "layer mounts", Verdict::Ok, "");
        let both = "Enable CONFIG_EROFS_FS_BACKED_BY_FILE, or enable CONFIG_BLK_DEV_LOOP.";
        check("6.12.0", &["BLK_DEV_LOOP", file], "layer mounts", Verdict::Missing, both);
        let old =
            "Enable CONFIG_EROFS_FS_BACKED_BY_FILE with Linux 6.12 or later, or enable CONFIG_BLK_DEV_LOOP.";
        check("6.6.0", &["BLK_DEV_LOOP", file], "layer mounts", Verdict::Missing, old);

        check("6.6.0", &["NET_CLS_BPF"], "sender filter", Verdict::Ok, "");
        let classifier = "Enable CONFIG_NET_CLS_BPF, or use Linux 6.6 or later.";
        check("6.1.0", &["NET_CLS_BPF"], "sender filter", Verdict::Warning, classifier);

        let filter = "Enable CONFIG_CGROUP_BPF.";
        check("6.1.0", &["CGROUP_BPF"], "device filter", Verdict::Warning, filter);
        let either = "Enable CONFIG_CGROUP_BPF, or enable CONFIG_CGROUP_DEVICE.";
        check("6.1.0", &["CGROUP_BPF", "CGROUP_DEVICE"], "device filter", Verdict::Missing, either);

        check("5.10.1", &[], "Linux version", Verdict::Missing, "Use Linux 5.14 or later.");
    }

    #[test]
    fn a_module_is_distinguished_from_a_built_in_feature() {
        let text = "# Linux/x86 6.12.1 Kernel Configuration\nCONFIG_VETH=m\nCONFIG_BRIDGE=y\n";
        let checks = judge_file(&Config::parse(text).unwrap());
        assert_eq!(named(&checks, "veth").found, "CONFIG_VETH; a module, veth, which must be on the board");
        assert_eq!(named(&checks, "bridge").found, "CONFIG_BRIDGE");
    }

    #[test]
    fn a_fragment_of_a_kernel_configuration_is_reported_as_incomplete() {
        let checks = judge_file(&Config::parse("CONFIG_VETH=y\n").unwrap());
        assert_eq!(named(&checks, "configuration").verdict, Verdict::Warning);
        assert_eq!(named(&checks, "Linux version").verdict, Verdict::Unknown);
    }

    #[test]
    fn names_of_features_are_unique() {
        for (index, feature) in FEATURES.iter().enumerate() {
            assert!(FEATURES[index + 1..].iter().all(|other| other.name != feature.name), "{}", feature.name);
        }
    }
}
