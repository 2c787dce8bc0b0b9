//! The cgroups of pods: a tree as the kubelet's, below one cgroup of our own.
//!
//! ```text
//! nodlet-<hash>/supervisors
//! nodlet-<hash>/unpacker
//! nodlet-<hash>/kubepods[/burstable|/besteffort]/pod<uid>/<container>-<attempt>[/exec-<id>]
//! ```
//!
//! The v2 hierarchy, with or without controllers, says who is alive, freezes
//! and kills; each limit is set where its controller is, in v2 or in a v1
//! hierarchy. Every limit is read back: cgroups-rs ignores one whose controller
//! is missing. This module and those below it alone name `cgroups_rs`. Nothing
//! outside of `nodlet-<hash>` is written, but for `cgroup.subtree_control` of the v2
//! cgroup that it lies in: the top one, or that of the agent's service, if it is ours to
//! use (`cgroup/place.rs`). Read next: `cgroup/limits.rs`.

mod devices;
mod hierarchy;
mod limits;
mod place;
mod quota;
mod tree;
mod unpacker;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use smol::{Async, Timer};

pub use self::devices::try_filter as try_device_filter;
use self::hierarchy::{Controller, Hierarchies, Home};
pub use self::limits::ContainerLimits;
pub use self::limits::memory_of;
use self::limits::{MIN_SHARES, Target};
pub use self::quota::lift_at as lift_cpu_limits;
pub use self::tree::kill_headless;
pub use self::unpacker::UnpackerCgroup;
use crate::launch::CgroupPaths;
use crate::paths::Paths;
use nodlet_core::spec::{Pod, QosClass};

/// How long a cgroup that the kernel says is empty may still refuse to be
/// removed: a process leaves it a little after its parent has been told.
const LEAVING: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8)];

/// Times that what was just made and is gone is made again: a service manager removes what is
/// empty in the cgroup of a service that has ended, while `nodlet down` begins.
const TIDYING: u32 = 16;

/// The agent's place among the machine's cgroups.
#[derive(Debug)]
pub struct Cgroups {
    hierarchies: Rc<Hierarchies>,
    /// `nodlet-<hash>`.
    parent: PathBuf,
    supervisors: Vec<PathBuf>,
    /// Directories in which this agent has made something: they are there, with our controllers
    /// on for what is in them.
    prepared: RefCell<BTreeSet<PathBuf>>,
    /// Processes that each pod may have.
    pod_pids: Option<u64>,
}

/// How many processes and threads each pod may have: the kubelet's `podPidsLimit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPidsLimit {
    /// A share of what the machine can have.
    #[default]
    Share,
    /// So many.
    Of(u64),
    /// As many as all pods together.
    Unlimited,
}

impl Cgroups {
    /// Finds the machine's hierarchies and makes our own cgroup in each.
    pub fn open(paths: &Paths, pod_pids: PodPidsLimit) -> Result<Cgroups, CgroupError> {
        let mut tries = 0..TIDYING;
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
        let hierarchies = Rc::new(machine.below(&place)?);
        let parent = name(paths);
        let relative = parent.join("supervisors");
        let supervisors = hierarchies.mounts().iter().map(|mount| mount.join(&relative)).collect();
        let pod_pids = match pod_pids {
            PodPidsLimit::Share => Target::new(&hierarchies, &parent).default_pod_pids(),
            PodPidsLimit::Of(limit) => Some(limit),
            PodPidsLimit::Unlimited => None,
        };
        let cgroups = Cgroups { hierarchies, parent, supervisors, prepared: RefCell::default(), pod_pids };
        cgroups.make(&relative)?;
        cgroups.make(&cgroups.kubepods())?;
        // The pods together against the rest of the machine, as the kubelet's.
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        for relative in [&cgroups.parent, &cgroups.kubepods()] {
            Target::new(&cgroups.hierarchies, relative).set_shares(cpus * 1024)?;
        }
        Target::new(&cgroups.hierarchies, &cgroups.kubepods()).leave_processes()?;
        log::info!("cgroups: {}", cgroups.hierarchies);
        Ok(cgroups)
    }

    /// Bounds what all pods together take of the machine's memory, their memory file systems and shared
    /// memory included: the kubelet's `enforceNodeAllocatable: [pods]`. Nothing where no controller is.
    pub fn limit_memory(&self, bytes: u64) -> Result<(), CgroupError> {
        Target::new(&self.hierarchies, &self.kubepods()).leave_memory(bytes)
    }

    /// The cgroup of the supervisor of the pod `uid`: outside of the pod's, and of the
    /// agent's service. Only the v2 hierarchy has one a pod, to kill it by; limits are none.
    pub fn supervisor(&self, uid: &str) -> Result<PodCgroup, CgroupError> {
        let own = self.known_supervisor(uid)?;
        tree::make(&own.unified())?;
        Ok(own)
    }

    /// The same, whether there is one or not.
    pub fn known_supervisor(&self, uid: &str) -> Result<PodCgroup, CgroupError> {
        let relative = self.parent.join("supervisors").join(pod_name(uid)?);
        Ok(PodCgroup::new(&self.hierarchies, relative))
    }

    /// Where a supervisor moves itself: its own cgroup, then that of all supervisors in
    /// each v1 hierarchy.
    pub fn supervisor_paths(&self, own: &PodCgroup) -> Vec<PathBuf> {
        let shared = self.supervisors.iter().filter(|path| !path.starts_with(&self.hierarchies.unified));
        std::iter::once(own.unified()).chain(shared.cloned()).collect()
    }

    /// The cgroup of `pod`, made if missing, with the limits of the pod as a whole.
    pub fn pod(&self, pod: &Pod) -> Result<PodCgroup, CgroupError> {
        let cgroup = self.known_pod(pod)?;
        let (class, relative) = (self.class(pod.spec.qos_class()), &cgroup.relative);
        let is_first = self.make(relative)?;
        // Its leaves have limits of their own; it has no process itself, so v2 allows it.
        enable(&self.hierarchies, &cgroup.unified())?;
        let limits = ContainerLimits { pids: self.pod_pids, ..ContainerLimits::of_pod(pod) };
        Target::new(&self.hierarchies, relative).limit(&limits)?;
        match pod.spec.qos_class() {
            QosClass::Burstable => self.weigh(&class)?,
            QosClass::BestEffort if is_first => self.weigh(&class)?,
            QosClass::BestEffort | QosClass::Guaranteed => {}
        }
        Ok(cgroup)
    }

    /// The same, whether there is one or not: it may be that its limits could not be set.
    pub fn known_pod(&self, pod: &Pod) -> Result<PodCgroup, CgroupError> {
        let relative = self.class(pod.spec.qos_class()).join(pod_name(&pod.uid.0)?);
        Ok(PodCgroup::new(&self.hierarchies, relative))
    }

    /// Every pod with a cgroup below ours, whoever made it.
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

    /// Uids of the pods whose supervisor has a cgroup, dead or alive.
    pub fn supervised(&self) -> Result<Vec<String>, CgroupError> {
        let directory = self.hierarchies.unified.join(&self.parent).join("supervisors");
        let names = tree::children(&directory)?
            .into_iter()
            .filter_map(|child| child.file_name()?.to_str().map(str::to_owned));
        Ok(names.filter_map(|name| name.strip_prefix("pod").map(str::to_owned)).collect())
    }

    /// Removes all that is ours; no process may be in it.
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

    /// A class weighs as much as its pods ask for; best effort asks for nothing.
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

    /// Makes `relative` and what is above it in every hierarchy; in v2 with our
    /// controllers on, along this path alone. `true` if it is the first that this agent makes there.
    fn make(&self, relative: &Path) -> Result<bool, CgroupError> {
        let above = relative.parent().unwrap_or(Path::new(""));
        if self.prepared.borrow().contains(above) {
            let mounts = self.hierarchies.mounts();
            match mounts.into_iter().try_for_each(|mount| tree::make(&mount.join(relative))) {
                // Taken away by somebody since.
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
        if let Home::V1(mount) = self.hierarchies.home(Controller::Memory) {
            // Before Linux 5.11 a v1 limit holds for what is below only if told so
            // before anything is below; later kernels always do, and may refuse the write.
            let path = mount.join(&self.parent).join("memory.use_hierarchy");
            if fs::read_to_string(&path).is_ok_and(|value| value.trim() == "0") {
                let _ = fs::write(&path, "1");
            }
        }
        Ok(())
    }
}

/// Our own cgroup, by the root.
fn name(paths: &Paths) -> PathBuf {
    format!("nodlet-{}", paths.hash()).into()
}

/// The directory of a pod, which a uid from a manifest must not lead out of.
fn pod_name(uid: &str) -> Result<String, CgroupError> {
    if uid.is_empty() || uid.contains(['/', '\0', '\n']) {
        return Err(CgroupError::Uid { uid: uid.to_owned() });
    }
    Ok(format!("pod{uid}"))
}

/// Turns our controllers on for the children of the v2 cgroup at `directory`.
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
        let mut waits = LEAVING.iter();
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

/// The cgroup of a pod.
#[derive(Clone, Debug)]
pub struct PodCgroup {
    hierarchies: Rc<Hierarchies>,
    relative: PathBuf,
}

impl PodCgroup {
    fn new(hierarchies: &Rc<Hierarchies>, relative: PathBuf) -> PodCgroup {
        PodCgroup { hierarchies: Rc::clone(hierarchies), relative }
    }

    /// `pod<uid>`.
    pub fn name(&self) -> &str {
        self.relative.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }

    /// Sets the cpu limit of the pod as a whole again: the end of another container may have
    /// lifted it (`cgroup/quota.rs`).
    pub fn renew_cpu_limit(&self, pod: &Pod) -> Result<(), CgroupError> {
        match ContainerLimits::of_pod(pod).cpu_quota_us {
            Some(quota) => Target::new(&self.hierarchies, &self.relative).renew_quota(quota),
            None => Ok(()),
        }
    }

    /// Makes the leaf of one run of a container. One of an earlier run that was
    /// never removed is replaced, but not while a process is in it.
    pub fn leaf(&self, container: &str, number: u32, limits: &ContainerLimits) -> Result<Leaf, CgroupError> {
        let leaf = self.known_leaf(container, number);
        leaf.make(limits)?;
        Ok(leaf)
    }

    /// The leaf that an earlier agent made.
    pub fn known_leaf(&self, container: &str, number: u32) -> Leaf {
        self.named(&format!("{container}-{number}"))
    }

    /// The leaf of the pod's `pause` process, made if the pod is to have one.
    pub fn pause_paths(&self, made: bool) -> Result<CgroupPaths, CgroupError> {
        // No container's leaf is called so: theirs end in a number.
        let leaf = self.named("pause");
        if made {
            leaf.make(&ContainerLimits::none())?;
        }
        Ok(leaf.paths())
    }

    fn named(&self, name: &str) -> Leaf {
        Leaf { hierarchies: Rc::clone(&self.hierarchies), relative: self.relative.join(name) }
    }

    fn unified(&self) -> PathBuf {
        self.hierarchies.unified.join(&self.relative)
    }

    /// Kills every process of the pod, and lifts its cpu limits so that they end at once.
    pub fn kill(&self) -> Result<(), CgroupError> {
        quota::lift(&self.hierarchies, &self.relative);
        tree::kill_all(&self.unified())
    }

    /// Returns when no process of the pod is left.
    pub async fn emptied(&self) {
        let directory = self.unified();
        loop {
            // Watched first and read after, so that no change falls between.
            let watched = watch(&directory.join("cgroup.events"));
            match tree::populated(&directory) {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => log::error!("failed to {}", crate::error::chain(&error)),
            }
            match watched {
                Ok(inotify) if inotify.readable().await.is_ok() => {}
                // Out of inotify instances, or the cgroup went this moment: a look a tenth of
                // a second later is late, but never looking would leave the pod for ever.
                Ok(_) | Err(_) => {
                    Timer::after(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Removes the pod's cgroup with all leaves; no process may be in it. Gone already is fine.
    pub fn remove(&self) -> Result<(), CgroupError> {
        remove_everywhere(&self.hierarchies, &self.relative)
    }
}

/// A descriptor that is readable once `file` changes. (v2 tells inotify of its
/// event files; epoll would tell by EPOLLPRI, for which `Async` cannot wait.)
fn watch(file: &Path) -> io::Result<Async<Inotify>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF;
    inotify.add_watch(file, events)?;
    Async::new_nonblocking(inotify)
}

/// The cgroup of one run of a container.
#[derive(Clone, Debug)]
pub struct Leaf {
    hierarchies: Rc<Hierarchies>,
    relative: PathBuf,
}

impl Leaf {
    fn make(&self, limits: &ContainerLimits) -> Result<(), CgroupError> {
        let made = self.try_make(limits);
        if made.is_err() {
            // What is left of it is found and removed with the pod's.
            let _ = self.remove();
        }
        made
    }

    fn try_make(&self, limits: &ContainerLimits) -> Result<(), CgroupError> {
        for mount in self.hierarchies.mounts() {
            tree::make_anew(&mount.join(&self.relative))?;
        }
        let target = Target::new(&self.hierarchies, &self.relative);
        target.limit(limits)?;
        target.end_as_one()?;
        target.without_swap(limits)?;
        if limits.all_devices {
            return Ok(());
        }
        match self.hierarchies.home(Controller::Devices) {
            Home::V1(mount) => devices::filter_v1(&mount.join(&self.relative)),
            // v2 has no such controller: its filter is a program, which needs none.
            Home::V2 | Home::Missing => devices::filter_v2(&self.unified()),
        }
    }

    fn unified(&self) -> PathBuf {
        self.hierarchies.unified.join(&self.relative)
    }

    /// Where its processes belong.
    pub fn paths(&self) -> CgroupPaths {
        let mounts = self.hierarchies.v1_mounts();
        CgroupPaths {
            unified: self.unified(),
            v1_tasks: mounts.iter().map(|mount| mount.join(&self.relative).join("tasks")).collect(),
        }
    }

    /// Kills every process of the run, and lifts its cpu limit and its pod's so that they end at once.
    pub fn kill(&self) -> Result<(), CgroupError> {
        quota::lift(&self.hierarchies, &self.relative);
        tree::kill_all(&self.unified())
    }

    /// Kills an executed process and all that it started, and spares the container.
    pub fn kill_exec(&self, id: u32) -> Result<(), CgroupError> {
        tree::kill_all(&self.unified().join(format!("exec-{id}")))
    }

    /// Kills all executed processes and what they started, and spares the container.
    pub fn kill_execs(&self) -> Result<(), CgroupError> {
        for entry in fs::read_dir(self.unified()).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b"exec-") {
                tree::kill_all(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Whether process `pid` is of this run.
    pub fn contains(&self, pid: i32) -> bool {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return false };
        // The path begins wherever our cgroup namespace does; its end is ours alone.
        text.lines()
            .filter_map(|line| line.strip_prefix("0::"))
            .any(|path| Path::new(path).ancestors().any(|path| path.ends_with(&self.relative)))
    }

    /// Whether a process of the run is left.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        tree::populated(&self.unified())
    }

    /// How often the kernel killed a process of the run for want of memory; v2 counts the
    /// one that it chose twice, for with it all others go.
    pub fn oom_kills(&self) -> Result<u64, CgroupError> {
        Target::new(&self.hierarchies, &self.relative).oom_kills()
    }

    /// Stops every process of the run, or lets them go on.
    pub fn freeze(&self, frozen: bool) -> Result<(), CgroupError> {
        tree::freeze(&self.unified(), frozen)
    }

    /// Removes it, with those of executed processes; no process may be in it. Gone already is fine.
    pub fn remove(&self) -> Result<(), CgroupError> {
        remove_everywhere(&self.hierarchies, &self.relative)
    }
}

/// What failed with a cgroup.
#[derive(Debug)]
pub enum CgroupError {
    /// No v2 hierarchy is mounted.
    NoUnified,
    /// A uid that cannot name a directory.
    Uid {
        /// It.
        uid: String,
    },
    /// A file or directory of a cgroup.
    File {
        /// What was to be done with it.
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A limit, through cgroups-rs.
    Limit {
        /// What was to be done.
        operation: &'static str,
        /// The cgroup.
        path: PathBuf,
        /// Why not.
        source: cgroups_rs::fs::error::Error,
    },
    /// The kernel has no controller for a limit that the pod asks for.
    Missing {
        /// The limit.
        limit: &'static str,
        /// What the kernel would need.
        option: &'static str,
    },
    /// The kernel has another value than was written.
    NotTaken {
        /// The cgroup.
        path: PathBuf,
        /// Of what.
        limit: &'static str,
        /// Written.
        wanted: String,
        /// Read back.
        found: String,
    },
    /// The eBPF program that filters devices.
    DeviceFilter {
        /// The cgroup.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl CgroupError {
    fn file(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
        move |source| CgroupError::File { operation, path: path.to_owned(), source }
    }

    fn library(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(cgroups_rs::fs::error::Error) -> CgroupError {
        move |source| CgroupError::Limit { operation, path: path.to_owned(), source }
    }

    /// Whether a process was in the way.
    fn is_busy(&self) -> bool {
        self.raw_os_error() == Some(libc::EBUSY)
    }

    /// Whether the cgroup is not there, or was not for a moment.
    fn is_gone(&self) -> bool {
        match self {
            CgroupError::File { path, .. }
            | CgroupError::Limit { path, .. }
            | CgroupError::DeviceFilter { path, .. } => {
                matches!(self.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) || !path.exists()
            }
            CgroupError::NoUnified
            | CgroupError::Uid { .. }
            | CgroupError::Missing { .. }
            | CgroupError::NotTaken { .. } => false,
        }
    }

    fn raw_os_error(&self) -> Option<i32> {
        match self {
            CgroupError::File { source, .. } => source.raw_os_error(),
            CgroupError::Limit { source, .. } => {
                let mut cause = std::error::Error::source(source);
                loop {
                    let error = cause?;
                    if let Some(error) = error.downcast_ref::<io::Error>() {
                        return error.raw_os_error();
                    }
                    cause = error.source();
                }
            }
            CgroupError::NoUnified
            | CgroupError::Uid { .. }
            | CgroupError::Missing { .. }
            | CgroupError::NotTaken { .. }
            | CgroupError::DeviceFilter { .. } => None,
        }
    }
}

impl fmt::Display for CgroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CgroupError::NoUnified => f.write_str(
                "find a cgroup v2 hierarchy: mount one (`mount -t cgroup2 cgroup2 /sys/fs/cgroup`, or at \
                 /sys/fs/cgroup/unified beside v1); the kernel needs CONFIG_CGROUPS",
            ),
            CgroupError::Uid { uid } => {
                write!(f, "name a cgroup after the pod: metadata.uid {uid:?} must be a name without '/'")
            }
            CgroupError::File { operation, path, .. } | CgroupError::Limit { operation, path, .. } => {
                write!(f, "{operation} {}", path.display())
            }
            CgroupError::Missing { limit, option } => {
                write!(
                    f,
                    "set {limit}: the kernel cannot ({option}), or its controller is not mounted or not delegated; remove the limit or change the kernel"
                )
            }
            CgroupError::NotTaken { path, limit, wanted, found } => {
                write!(f, "set the {limit} of {}: wrote {wanted}, but the kernel has {found}", path.display())
            }
            CgroupError::DeviceFilter { path, .. } => {
                write!(f, "filter the devices of {} (CONFIG_CGROUP_BPF)", path.display())
            }
        }
    }
}

impl std::error::Error for CgroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CgroupError::File { source, .. } | CgroupError::DeviceFilter { source, .. } => Some(source),
            CgroupError::Limit { source, .. } => Some(source),
            CgroupError::NoUnified
            | CgroupError::Uid { .. }
            | CgroupError::Missing { .. }
            | CgroupError::NotTaken { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
