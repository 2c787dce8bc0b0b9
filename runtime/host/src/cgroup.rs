//! The cgroups of pods: a tree like the kubelet's, below one cgroup of the agent.
//!
//! ```text
//! nodlet-<hash>/supervisors
//! nodlet-<hash>/unpacker
//! nodlet-<hash>/kubepods[/burstable|/besteffort]/pod<uid>/<container>-<attempt>[/exec-<id>]
//! ```
//!
//! The v2 hierarchy, with or without controllers, reports which processes are alive, freezes and kills; each
//! limit is set where its controller is, in v2 or in a v1 hierarchy. Only `cgroup/controllers.rs` uses
//! cgroups-rs. Outside of `nodlet-<hash>`, only `cgroup.subtree_control` of the enclosing v2 cgroup is written: that of
//! the top one, or of the agent's service if it was delegated (`cgroup/place.rs`). Read next:
//! `cgroup/limits.rs`.

mod controllers;
mod devices;
mod error;
mod hierarchy;
mod huge_pages;
mod limits;
mod place;
mod pod;
mod quota;
mod resize;
mod tree;
pub(crate) use tree::processes_up_to;
mod unpacker;
mod usage;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nodlet_core::sorted::SortedSet;

pub use self::devices::try_device_filter;
pub use self::error::CgroupError;
use self::hierarchy::{Controller, ControllerHierarchy, Hierarchies};
pub use self::huge_pages::HugePages;
pub use self::limits::memory_of;
pub use self::limits::{ContainerLimits, limited_swap};
use self::limits::{MIN_SHARES, Target, write_if_there};
pub(crate) use self::pod::may_have_processes;
pub use self::pod::{Leaf, PodCgroup};
pub use self::quota::lift_cpu_limits;
pub use self::tree::kill_headless;
pub use self::unpacker::UnpackerCgroup;
pub use self::usage::Usage;
use crate::paths::Paths;
use nodlet_core::spec::{Pod, QosClass};

/// How long to wait before each retry to remove a cgroup that the kernel reports as empty: a process leaves
/// its cgroup shortly after its parent was notified.
const REMOVE_RETRIES: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8)];

/// How often a cgroup is made again that vanished right after it was made: a service manager removes empty
/// cgroups of a service that has ended, while `nodlet down` starts.
const MAX_CREATE_RETRIES: u32 = 16;

/// The agent's cgroups in the hierarchies of the machine.
#[derive(Debug)]
pub struct Cgroups {
    hierarchies: Rc<Hierarchies>,
    /// The path `nodlet-<hash>`.
    parent: PathBuf,
    supervisors: Vec<PathBuf>,
    /// Directories in which this agent has made a cgroup: they exist, with the controllers enabled for their
    /// children.
    prepared: RefCell<SortedSet<PathBuf>>,
    /// The limit of processes of each pod.
    pod_pids: Option<u64>,
    huge_pages: HugePages,
    /// The processors of the machine that pods may use, if containers can have some for themselves.
    cpus: Vec<u32>,
}

/// The limit of processes and threads of each pod: the kubelet's `podPidsLimit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPidsLimit {
    /// A share of the machine's maximum.
    #[default]
    Share,
    /// This number.
    Of(u64),
    /// As many as all pods together.
    Unlimited,
}

impl Cgroups {
    /// Finds the machine's hierarchies and makes the agent's cgroup in each.
    pub fn open(paths: &Paths, pod_pids: PodPidsLimit) -> Result<Cgroups, CgroupError> {
        let mut tries = 0..MAX_CREATE_RETRIES;
        loop {
            match Cgroups::try_open(paths, pod_pids) {
                Err(error) if error.is_gone() && tries.next().is_some() => {}
                opened => return opened,
            }
        }
    }

    fn try_open(paths: &Paths, pod_pids: PodPidsLimit) -> Result<Cgroups, CgroupError> {
        let machine = Hierarchies::find()?;
        let place = place::choose(&machine, paths)?;
        let mut hierarchies = machine.below(&place)?;
        let mut huge_pages = HugePages::of_the_machine();
        if huge_pages.is_empty() {
            hierarchies = hierarchies.without(Controller::HugeTlb);
        } else if hierarchies.hierarchy_of(Controller::HugeTlb) == ControllerHierarchy::Missing {
            let option = Controller::HugeTlb.kernel_option();
            log::warn!("pods get none of the huge pages of this machine: the kernel needs {option}");
            huge_pages = HugePages::default();
        }
        // On a machine with one processor, the controller has nothing to do.
        let processors = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        if processors < 2 || hierarchies.hierarchy_of(Controller::Cpuset) != ControllerHierarchy::V2 {
            hierarchies = hierarchies.without(Controller::Cpuset);
        }
        let hierarchies = Rc::new(hierarchies);
        let parent = name(paths);
        let relative = parent.join("supervisors");
        let supervisors = hierarchies.mounts().iter().map(|mount| mount.join(&relative)).collect();
        let pod_pids = match pod_pids {
            PodPidsLimit::Share => Target::new(&hierarchies, &parent).default_pod_pids(),
            PodPidsLimit::Of(limit) => Some(limit),
            PodPidsLimit::Unlimited => None,
        };
        let (prepared, cpus) = (RefCell::default(), Vec::new());
        let mut cgroups = Cgroups { hierarchies, parent, supervisors, prepared, pod_pids, huge_pages, cpus };
        cgroups.make(&relative)?;
        cgroups.make(&cgroups.kubepods())?;
        // The weight of all pods together against the rest of the machine, as the kubelet sets it.
        for relative in [&cgroups.parent, &cgroups.kubepods()] {
            Target::new(&cgroups.hierarchies, relative).set_shares(processors * 1024)?;
        }
        cgroups.cpus = cgroups.usable_cpus();
        Target::new(&cgroups.hierarchies, &cgroups.kubepods()).limit_pods_processes()?;
        log::info!("cgroups: {}", cgroups.hierarchies);
        Ok(cgroups)
    }

    /// Limits the memory of all pods together, including their memory file systems and shared memory: the
    /// kubelet's `enforceNodeAllocatable: [pods]`. Does nothing without a memory controller.
    pub fn limit_memory(&self, bytes: u64) -> Result<(), CgroupError> {
        Target::new(&self.hierarchies, &self.kubepods()).limit_pods_memory(bytes)
    }

    /// The memory that all pods together can still get within their limit, and that limit in bytes. Files that the kernel
    /// keeps in memory count as available. `None` without a limit.
    pub fn memory_of_all_pods(&self) -> Option<(u64, u64)> {
        Target::new(&self.hierarchies, &self.kubepods()).memory_within_limit()
    }

    /// The bytes in huge pages of the machine, by the size of the pages, if the kernel can limit them for each
    /// container.
    pub fn huge_pages(&self) -> &HugePages {
        &self.huge_pages
    }

    /// The processors of the machine that pods may use. Empty if no container can have some for itself.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    fn usable_cpus(&self) -> Vec<u32> {
        let kubepods = self.kubepods();
        let directory = Target::new(&self.hierarchies, &kubepods).directory(Controller::Cpuset);
        let read = |directory: controllers::ControllerDirectory| {
            let list = fs::read_to_string(directory.path.join("cpuset.cpus.effective")).ok()?;
            nodlet_core::cpus::parse(&list).filter(|cpus| cpus.len() > 1)
        };
        directory.and_then(read).unwrap_or_default()
    }

    /// Lets all containers use these processors, except for those whose cgroups have paths that end in one of `except`.
    pub fn share_cpus(&self, cpus: &str, except: &[PathBuf]) -> Result<(), CgroupError> {
        for (_, pod) in self.pods()? {
            for leaf in tree::children(&pod.unified())? {
                if !except.iter().any(|own| leaf.ends_with(own)) {
                    write_if_there(&leaf.join("cpuset.cpus"), cpus)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the kernel limits the swap of a container apart from its memory (v2).
    pub fn limits_swap(&self) -> bool {
        matches!(self.hierarchies.hierarchy_of(Controller::Memory), ControllerHierarchy::V2)
    }

    /// Makes the cgroup of the supervisor of the pod `uid`, which is outside of the pod's cgroup and of the
    /// agent's service. Only the v2 hierarchy has one for each pod, used to kill the supervisor; it has no
    /// limits.
    pub fn supervisor(&self, uid: &str) -> Result<PodCgroup, CgroupError> {
        let own = self.known_supervisor(uid)?;
        tree::make(&own.unified())?;
        Ok(own)
    }

    /// The cgroup of the supervisor of the pod `uid`, whether it exists or not.
    pub fn known_supervisor(&self, uid: &str) -> Result<PodCgroup, CgroupError> {
        let relative = self.parent.join("supervisors").join(pod_name(uid)?);
        Ok(PodCgroup::new(&self.hierarchies, relative))
    }

    /// The cgroups into which a supervisor moves itself: its own, then that of all supervisors in each v1
    /// hierarchy.
    pub fn supervisor_paths(&self, own: &PodCgroup) -> Vec<PathBuf> {
        let shared = self.supervisors.iter().filter(|path| !path.starts_with(&self.hierarchies.unified));
        std::iter::once(own.unified()).chain(shared.cloned()).collect()
    }

    /// Makes the cgroup of `pod` if it is missing, and sets the limits of the pod as a whole.
    pub fn pod(&self, pod: &Pod) -> Result<PodCgroup, CgroupError> {
        let cgroup = self.known_pod(pod)?;
        let (class, relative) = (self.class(pod.spec.qos_class()), &cgroup.relative);
        let is_first = self.make(relative)?;
        // The pod's leaves have limits of their own. The pod's cgroup has no process itself, so v2 allows
        // that.
        enable(&self.hierarchies, &cgroup.unified())?;
        let huge_pages = self.huge_pages.limits(|size| pod.spec.huge_pages(size));
        let limits = ContainerLimits { pids: self.pod_pids, huge_pages, ..ContainerLimits::of_pod(pod) };
        Target::new(&self.hierarchies, relative).limit(&limits)?;
        match pod.spec.qos_class() {
            QosClass::Burstable => self.weigh(&class)?,
            QosClass::BestEffort if is_first => self.weigh(&class)?,
            QosClass::BestEffort | QosClass::Guaranteed => {}
        }
        Ok(cgroup)
    }

    /// The cgroup of `pod`, whether it exists or not, for instance because its limits could not be set.
    pub fn known_pod(&self, pod: &Pod) -> Result<PodCgroup, CgroupError> {
        let relative = self.class(pod.spec.qos_class()).join(pod_name(&pod.uid.0)?);
        Ok(PodCgroup::new(&self.hierarchies, relative))
    }

    /// Uids and cgroups of all pods below the agent's cgroup, whichever agent made them.
    pub fn pods(&self) -> Result<Vec<(String, PodCgroup)>, CgroupError> {
        let mut found: Vec<(String, PodCgroup)> = Vec::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let class = self.class(class);
            for mount in self.hierarchies.mounts() {
                for directory in tree::children(&mount.join(&class))? {
                    let Some(name) = directory.file_name().and_then(OsStr::to_str) else { continue };
                    let Some(uid) = name.strip_prefix("pod") else { continue };
                    let relative = class.join(name);
                    if found.iter().all(|(_, known)| known.relative != relative) {
                        found.push((uid.to_owned(), PodCgroup::new(&self.hierarchies, relative)));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Uids of the pods whose supervisor has a cgroup, whether the supervisor is alive or not.
    pub fn supervised(&self) -> Result<Vec<String>, CgroupError> {
        let directory = self.hierarchies.unified.join(&self.parent).join("supervisors");
        let names = tree::children(&directory)?
            .into_iter()
            .filter_map(|child| child.file_name()?.to_str().map(str::to_owned));
        Ok(names.filter_map(|name| name.strip_prefix("pod").map(str::to_owned)).collect())
    }

    /// Removes all cgroups of the agent; no process may be left in them.
    pub fn remove_all(&self) -> Result<(), CgroupError> {
        remove_everywhere(&self.hierarchies, &self.parent)
    }

    fn kubepods(&self) -> PathBuf {
        self.parent.join("kubepods")
    }

    fn class(&self, class: QosClass) -> PathBuf {
        match class {
            QosClass::Guaranteed => self.kubepods(),
            QosClass::Burstable => self.kubepods().join("burstable"),
            QosClass::BestEffort => self.kubepods().join("besteffort"),
        }
    }

    /// Sets the weight of a QoS class to the sum of its pods' shares; best-effort pods request nothing.
    fn weigh(&self, class: &Path) -> Result<(), CgroupError> {
        let Some(mount) = self.hierarchies.mounts().into_iter().find(|mount| mount.join(class).is_dir())
        else {
            return Ok(());
        };
        let mut sum = MIN_SHARES;
        if class.ends_with("burstable") {
            for pod in tree::children(&mount.join(class))? {
                let Some(name) = pod.file_name() else { continue };
                sum += Target::new(&self.hierarchies, &class.join(name)).shares().unwrap_or(0);
            }
        }
        Target::new(&self.hierarchies, class).set_shares(sum)
    }

    /// Makes `relative` and its parents in every hierarchy; in v2 with the controllers enabled, along this
    /// path alone. Returns whether this is the first cgroup that this agent makes in its parent.
    fn make(&self, relative: &Path) -> Result<bool, CgroupError> {
        let above = relative.parent().unwrap_or(Path::new(""));
        if self.prepared.borrow().contains(above) {
            let mounts = self.hierarchies.mounts();
            match mounts.into_iter().try_for_each(|mount| tree::make(&mount.join(relative))) {
                // Another process has removed the parent since.
                Err(error) if error.is_gone() => drop(self.prepared.borrow_mut().remove(above)),
                made => return made.map(|()| false),
            }
        }
        self.make_all(relative)?;
        self.prepared.borrow_mut().insert(above.to_owned());
        Ok(true)
    }

    fn make_all(&self, relative: &Path) -> Result<(), CgroupError> {
        for mount in self.hierarchies.mounts() {
            let mut directory = mount.to_owned();
            for part in relative {
                if mount == self.hierarchies.unified {
                    enable(&self.hierarchies, &directory)?;
                }
                directory.push(part);
                tree::make(&directory)?;
            }
        }
        if let ControllerHierarchy::V1(mount) = self.hierarchies.hierarchy_of(Controller::Memory) {
            // Before Linux 5.11 a v1 limit applies to child cgroups only if this is enabled before there are
            // any; later kernels always do so, and may refuse the write.
            let path = mount.join(&self.parent).join("memory.use_hierarchy");
            if fs::read_to_string(&path).is_ok_and(|value| value.trim() == "0") {
                let _ = fs::write(&path, "1");
            }
        }
        Ok(())
    }
}

/// The name of the agent's cgroup, which depends on the root.
fn name(paths: &Paths) -> PathBuf {
    format!("nodlet-{}", paths.hash()).into()
}

/// The directory name of a pod. A uid from a manifest must not lead out of the parent directory.
fn pod_name(uid: &str) -> Result<String, CgroupError> {
    if uid.is_empty() || uid.contains(['/', '\0', '\n']) {
        return Err(CgroupError::Uid { uid: uid.to_owned() });
    }
    Ok(format!("pod{uid}"))
}

/// Enables the agent's controllers for the children of the v2 cgroup at `directory`.
fn enable(hierarchies: &Hierarchies, directory: &Path) -> Result<(), CgroupError> {
    let path = directory.join("cgroup.subtree_control");
    let on = fs::read_to_string(&path).map_err(CgroupError::file("read", &path))?;
    let missing: Vec<String> = hierarchies
        .v2_controllers()
        .filter(|wanted| on.split_whitespace().all(|name| name != *wanted))
        .map(|wanted| format!("+{wanted}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::write(&path, missing.join(" ")).map_err(CgroupError::file("write", &path))
}

/// Removes `relative` in every hierarchy.
fn remove_everywhere(hierarchies: &Hierarchies, relative: &Path) -> Result<(), CgroupError> {
    for mount in hierarchies.mounts() {
        let directory = mount.join(relative);
        let mut waits = REMOVE_RETRIES.iter();
        while let Err(error) = tree::remove(&directory) {
            let wait = waits.next().filter(|_| {
                error.is_busy()
                    && tree::populated(&hierarchies.unified.join(relative)).is_ok_and(|populated| !populated)
            });
            let Some(wait) = wait else { return Err(error) };
            std::thread::sleep(*wait);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
