//! Conversion of a pod's resources into cgroup limits: pure functions like the kubelet's (for pod and
//! container), and code that writes the limits (by `controllers.rs`, as far as it can). Never writes into a cgroup that
//! was not made for the limit.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::CgroupError;
use super::controllers::ControllerDirectory;
use super::hierarchy::{Controller, ControllerHierarchy, Hierarchies};
use crate::launch::DeviceNode;
use nodlet_core::spec::{ContainerIndex, Pod, QosClass, Quantity, ResourceRequirements};

/// Shares of a container without a cpu request: the kernel's minimum.
pub(super) const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
/// `cpu.cfs_period_us`, the kernel's own default, which nodlet never changes.
const PERIOD_US: i64 = 100_000;
/// The kernel's minimum quota.
const MIN_QUOTA_US: i64 = 1000;

/// The limits of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLimits {
    /// From `requests.cpu`, in v1's unit: 1024 for one cpu.
    pub cpu_shares: u64,
    /// From `limits.cpu`: microseconds in each 100 ms.
    pub cpu_quota_us: Option<i64>,
    /// From `limits.memory`, in bytes.
    pub memory: Option<u64>,
    /// Maximum of processes and threads.
    pub pids: Option<u64>,
    /// Swap in bytes, where the kernel limits it apart from memory (v2).
    pub swap: u64,
    /// Huge pages: the size of the pages as in the names of files, and bytes. Sizes that are left out have no limit.
    pub huge_pages: Vec<(String, i64)>,
    /// The processors that the container may use, as a list of the kernel; `None` for all.
    pub cpus: Option<String>,
    /// Access to every device of the machine (`privileged`).
    pub all_devices: bool,
    /// Devices besides those that every container may use.
    pub devices: Vec<DeviceNode>,
}

/// The swap of a container with `LimitedSwap`: the part of the machine's swap that its memory request is of the
/// machine's memory, if the pod is burstable and not critical, and the container may use more than it requests
/// (`calcSwapForBurstablePods` of the kubelet). All amounts are bytes.
pub fn limited_swap(pod: &Pod, container: ContainerIndex, memory: u64, swap: u64) -> u64 {
    let resources = &pod.spec.container(container).resources;
    let request = bytes(&resources.memory_request);
    let Some(request) = request.filter(|_| pod.may_swap(resources)) else { return 0 };
    let part = u128::from(request) * u128::from(swap) / u128::from(memory.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

impl ContainerLimits {
    /// The limits of a container of `pod`.
    pub fn of(pod: &Pod, container: ContainerIndex) -> ContainerLimits {
        let container = pod.spec.container(container);
        let cpu_limit = pod.spec.limit_of(container, |resources| milli(&resources.cpu_limit));
        // A request of zero is a request.
        let request = container.resources.cpu_request.as_ref().map(Quantity::milli_value).or(cpu_limit);
        ContainerLimits {
            cpu_shares: shares(request.unwrap_or(0)),
            cpu_quota_us: cpu_limit.map(quota),
            memory: pod.spec.limit_of(container, |resources| bytes(&resources.memory_limit)),
            all_devices: container.security_context.privileged,
            ..ContainerLimits::none()
        }
    }

    /// The limits of a process that needs no resources, such as `pause`.
    pub(super) fn none() -> ContainerLimits {
        ContainerLimits {
            cpu_shares: MIN_SHARES,
            cpu_quota_us: None,
            memory: None,
            pids: None,
            swap: 0,
            huge_pages: Vec::new(),
            cpus: None,
            all_devices: false,
            devices: Vec::new(),
        }
    }

    /// The limits of the pod as a whole: the sum of its containers' requests, and a limit only if every
    /// container has one.
    pub(super) fn of_pod(pod: &Pod) -> ContainerLimits {
        let mut whole = ContainerLimits::none();
        if pod.spec.qos_class() == QosClass::BestEffort {
            return whole;
        }
        let requested =
            pod.spec.effective(|resources| milli(&resources.cpu_request).or(milli(&resources.cpu_limit)));
        whole.cpu_shares = shares(requested);
        whole.cpu_quota_us = limit_of_all(pod, |resources| milli(&resources.cpu_limit)).map(quota);
        whole.memory = memory_of(pod);
        whole
    }
}

/// The memory limit of a pod as a whole, in bytes.
pub fn memory_of(pod: &Pod) -> Option<u64> {
    let limit = |resources: &ResourceRequirements| {
        bytes(&resources.memory_limit).map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
    };
    limit_of_all(pod, limit).and_then(|bytes| u64::try_from(bytes).ok())
}

/// A limit of the pod as a whole; `None` unless the pod or every container has one.
fn limit_of_all(pod: &Pod, limit: impl Fn(&ResourceRequirements) -> Option<i64>) -> Option<i64> {
    let mut containers = pod.spec.admitted_containers();
    let is_limited = containers.all(|container| pod.spec.limit_of(container, &limit).is_some());
    is_limited.then(|| pod.spec.effective(&limit))
}

/// A cpu quantity in thousandths; zero counts as not set.
fn milli(quantity: &Option<Quantity>) -> Option<i64> {
    quantity.as_ref().map(Quantity::milli_value).filter(|milli| *milli > 0)
}

/// A memory quantity in bytes; zero counts as not set.
fn bytes(quantity: &Option<Quantity>) -> Option<u64> {
    quantity.as_ref().and_then(|quantity| u64::try_from(quantity.value()).ok()).filter(|bytes| *bytes > 0)
}

/// The shares for a cpu request.
fn shares(milli: i64) -> u64 {
    let shares = i128::from(milli) * 1024 / 1000;
    u64::try_from(shares).unwrap_or(0).clamp(MIN_SHARES, MAX_SHARES)
}

/// The quota for a cpu limit, in microseconds per period.
fn quota(milli: i64) -> i64 {
    (milli.saturating_mul(PERIOD_US) / 1000).max(MIN_QUOTA_US)
}

/// v2's `cpu.weight` for shares.
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES) * 9999 / 262_142
}

/// The shares for v2's `cpu.weight`.
fn shares_of_weight(weight: u64) -> u64 {
    weight.saturating_sub(1).saturating_mul(262_142) / 9999 + MIN_SHARES
}

/// The directories of one cgroup, by controller.
pub(super) struct Target<'a> {
    pub(super) hierarchies: &'a Hierarchies,
    pub(super) relative: &'a Path,
}

impl<'a> Target<'a> {
    pub(super) fn new(hierarchies: &'a Hierarchies, relative: &'a Path) -> Target<'a> {
        Target { hierarchies, relative }
    }

    /// The cgroup's directory in the hierarchy of `controller`.
    pub(super) fn directory(&self, controller: Controller) -> Option<ControllerDirectory> {
        let (mount, is_v2) = match self.hierarchies.hierarchy_of(controller) {
            ControllerHierarchy::V1(mount) => (mount, false),
            ControllerHierarchy::V2 => (self.hierarchies.unified.as_path(), true),
            ControllerHierarchy::Missing => return None,
        };
        Some(ControllerDirectory { path: mount.join(self.relative), is_v2 })
    }

    /// The cgroup's directory in the hierarchy of `controller`, which the pod's `limit` requires.
    fn required(
        &self,
        controller: Controller,
        limit: &'static str,
    ) -> Result<ControllerDirectory, CgroupError> {
        self.directory(controller).ok_or(CgroupError::Missing { limit, option: controller.kernel_option() })
    }

    /// Writes all of `limits` except the devices.
    pub(super) fn limit(&self, limits: &ContainerLimits) -> Result<(), CgroupError> {
        self.set_shares(limits.cpu_shares)?;
        if let Some(quota) = limits.cpu_quota_us {
            self.set_quota(quota)?;
        }
        if let Some(memory) = limits.memory {
            self.set_memory(memory)?;
        }
        if let Some(pids) = limits.pids {
            self.set_pids(pids)?;
        }
        if let Some(cpus) = &limits.cpus {
            let path = self.required(Controller::Cpuset, "exclusive cpus")?.path.join("cpuset.cpus");
            fs::write(&path, cpus).map_err(CgroupError::file("write", &path))?;
        }
        if !limits.huge_pages.is_empty() {
            let directory = self.required(Controller::HugeTlb, "a limit of huge pages")?;
            for (size, bytes) in &limits.huge_pages {
                let file = if directory.is_v2 { "max" } else { "limit_in_bytes" };
                let path = directory.path.join(format!("hugetlb.{size}.{file}"));
                fs::write(&path, bytes.to_string()).map_err(CgroupError::file("write", &path))?;
            }
        }
        Ok(())
    }

    /// Sets the cpu shares. They are a weight against others, so a kernel without the controller breaks no
    /// promise.
    pub(super) fn set_shares(&self, shares: u64) -> Result<(), CgroupError> {
        let Some(directory) = self.directory(Controller::Cpu) else { return Ok(()) };
        directory.set_shares(if directory.is_v2 { weight(shares) } else { shares })
    }

    /// The shares that [`Target::set_shares`] set; `None` if the cgroup does not exist.
    pub(super) fn shares(&self) -> Option<u64> {
        let directory = self.directory(Controller::Cpu)?;
        let found = directory.shares()?;
        Some(if directory.is_v2 { shares_of_weight(found) } else { found })
    }

    pub(super) fn set_quota(&self, quota: i64) -> Result<(), CgroupError> {
        const LIMIT: &str = "a cpu limit";
        let directory = self.required(Controller::Cpu, LIMIT)?;
        if !directory.path.join(if directory.is_v2 { "cpu.max" } else { "cpu.cfs_quota_us" }).exists() {
            return Err(CgroupError::Missing { limit: LIMIT, option: "CONFIG_CFS_BANDWIDTH" });
        }
        directory.set_quota(quota)
    }

    /// Writes a cpu limit that this cgroup has had before, and may have lost.
    pub(super) fn renew_quota(&self, quota: i64) -> Result<(), CgroupError> {
        let Some(ControllerDirectory { path, is_v2 }) = self.directory(Controller::Cpu) else {
            return Ok(());
        };
        write_if_there(&path.join(if is_v2 { "cpu.max" } else { "cpu.cfs_quota_us" }), &quota.to_string())
    }

    pub(super) fn set_memory(&self, limit: u64) -> Result<(), CgroupError> {
        self.required(Controller::Memory, "a memory limit")?.set_memory(limit)
    }

    /// Makes an out-of-memory kill end all processes of the cgroup, if the kernel can (v2): half a container
    /// is no use.
    pub(super) fn end_as_one(&self) -> Result<(), CgroupError> {
        match self.directory(Controller::Memory) {
            // Kernels before 4.19 kill single processes.
            Some(ControllerDirectory { path, is_v2: true }) => {
                write_if_there(&path.join("memory.oom.group"), "1")
            }
            Some(ControllerDirectory { is_v2: false, .. }) | None => Ok(()),
        }
    }

    /// Limits swap, by default to none, like the kubelet's `NoSwap`: a container that swaps would exceed its limit,
    /// and wear out the SD card. v1 only has a limit of both together.
    pub(super) fn limit_swap(&self, limits: &ContainerLimits) -> Result<(), CgroupError> {
        // Without CONFIG_SWAP, or with swapaccount=0, the files do not exist.
        match (self.directory(Controller::Memory), limits.memory) {
            (Some(ControllerDirectory { path, is_v2: true }), _) => {
                write_if_there(&path.join("memory.swap.max"), &limits.swap.to_string())
            }
            (Some(ControllerDirectory { path, is_v2: false }), Some(limit)) => {
                write_if_there(&path.join("memory.memsw.limit_in_bytes"), &limit.to_string())
            }
            (Some(ControllerDirectory { is_v2: false, .. }), None) | (None, _) => Ok(()),
        }
    }

    /// Limits the processes and threads of all pods together, if the kernel can.
    pub(super) fn limit_pods_processes(&self) -> Result<(), CgroupError> {
        match self.available_processes() {
            Some(all) => self.set_pids(all / 10 * PODS_TENTHS),
            None => Ok(()),
        }
    }

    /// Limits the memory of all pods together, if the kernel can.
    pub(super) fn limit_pods_memory(&self, limit: u64) -> Result<(), CgroupError> {
        match self.directory(Controller::Memory) {
            Some(_) => self.set_memory(limit),
            None => Ok(()),
        }
    }

    /// The default limit of processes of a pod; `None` if the kernel cannot limit them.
    pub(super) fn default_pod_pids(&self) -> Option<u64> {
        self.available_processes().map(|all| (all * POD_PERCENT / 100).max(POD_LEAST))
    }

    /// The maximum of processes and threads in this cgroup, by the limits of the kernel and of the cgroups
    /// above it. `None` without the controller.
    fn available_processes(&self) -> Option<u64> {
        let directory = self.directory(Controller::Pids)?.path;
        let read = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let machine = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
        // The top cgroup has no such file, and no directory above it.
        let above = directory.ancestors().skip(1).map(|above| above.join("pids.max"));
        machine.map(PathBuf::from).into_iter().chain(above).filter_map(|path| read(&path)).min()
    }

    fn set_pids(&self, limit: u64) -> Result<(), CgroupError> {
        self.required(Controller::Pids, "a limit of processes")?.set_pids(limit)
    }

    /// How many processes of the cgroup the kernel killed because memory was short. 0 without the controller,
    /// or if the cgroup does not exist.
    pub(super) fn oom_kills(&self) -> Result<u64, CgroupError> {
        let Some(ControllerDirectory { path, is_v2 }) = self.directory(Controller::Memory) else {
            return Ok(0);
        };
        let path = path.join(if is_v2 { "memory.events" } else { "memory.oom_control" });
        match fs::read_to_string(&path) {
            Ok(text) => Ok(keyed(&text, "oom_kill").unwrap_or(0)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(CgroupError::file("read", &path)(error)),
        }
    }
}

/// Writes a file that not every kernel has. `fs::write` would try to create it, which cgroups answer with
/// "permission denied".
pub(super) fn write_if_there(path: &Path, text: &str) -> Result<(), CgroupError> {
    match fs::OpenOptions::new().write(true).truncate(true).open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).map_err(CgroupError::file("write", path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(CgroupError::file("write", path)(error)),
    }
}

/// The tenths of the machine's processes that all pods together may have. The rest is for the board itself,
/// so that a fork bomb in a pod locks nobody out.
const PODS_TENTHS: u64 = 9;

/// The percentage of the machine's processes that one pod may have: the same as systemd's default for a
/// service (`DefaultTasksMax`). Several fork bombs leave room for other pods.
const POD_PERCENT: u64 = 15;

/// The least number of processes that a pod may have, even on the smallest board: one container of a
/// multi-threaded runtime has some twenty.
const POD_LEAST: u64 = 64;

/// The number after `key` in a file of lines `key number`.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}
