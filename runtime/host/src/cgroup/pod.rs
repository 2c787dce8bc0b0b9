//! The cgroup of a pod, and its leaves, one for each run of a container.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::inotify::AddWatchFlags;
use smol::Timer;

use super::hierarchy::{Controller, ControllerHierarchy, Hierarchies};
use super::limits::{ContainerLimits, Target};
use super::{CgroupError, devices, quota, remove_everywhere, tree};
use crate::launch::{CgroupPaths, DeviceNode};
use crate::watches::Watches;
use nodlet_core::spec::Pod;

/// The cgroup of a pod.
#[derive(Clone, Debug)]
pub struct PodCgroup {
    pub(super) hierarchies: Rc<Hierarchies>,
    pub(super) relative: PathBuf,
}

impl PodCgroup {
    pub(super) fn new(hierarchies: &Rc<Hierarchies>, relative: PathBuf) -> PodCgroup {
        PodCgroup { hierarchies: Rc::clone(hierarchies), relative }
    }

    /// `pod<uid>`.
    pub fn name(&self) -> &str {
        self.relative.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }

    /// Sets the cpu limit of the pod as a whole again, because the end of another container may have lifted
    /// it (`cgroup/quota.rs`).
    pub fn renew_cpu_limit(&self, pod: &Pod) -> Result<(), CgroupError> {
        match ContainerLimits::of_pod(pod).cpu_quota_us {
            Some(quota) => Target::new(&self.hierarchies, &self.relative).renew_quota(quota),
            None => Ok(()),
        }
    }

    /// Makes the leaf of one run of a container. A leaf of the same name that was never removed is replaced,
    /// unless a process is in it.
    pub fn leaf(&self, container: &str, number: u32, limits: &ContainerLimits) -> Result<Leaf, CgroupError> {
        let leaf = self.known_leaf(container, number);
        leaf.make(limits)?;
        Ok(leaf)
    }

    /// The leaf of a run of a container, which an earlier agent made.
    pub fn known_leaf(&self, container: &str, number: u32) -> Leaf {
        self.named(&format!("{container}-{number}"))
    }

    /// The cgroup paths of the pod's `pause` process; with `made`, the leaf is made.
    pub fn pause_paths(&self, made: bool) -> Result<CgroupPaths, CgroupError> {
        // No container's leaf has this name: theirs end in a number.
        let leaf = self.named("pause");
        if made {
            leaf.make(&ContainerLimits::none())?;
        }
        Ok(leaf.paths())
    }

    fn named(&self, name: &str) -> Leaf {
        Leaf { hierarchies: Rc::clone(&self.hierarchies), relative: self.relative.join(name) }
    }

    pub(super) fn unified(&self) -> PathBuf {
        self.hierarchies.unified.join(&self.relative)
    }

    /// The directory that shows whether the cgroup has processes.
    pub fn directory(&self) -> PathBuf {
        self.unified()
    }

    /// Whether a process of the pod is left.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        tree::populated(&self.unified())
    }

    /// Kills every process of the pod. Lifts its cpu limits first, so that the processes end at once.
    pub fn kill(&self) -> Result<(), CgroupError> {
        quota::lift(&self.hierarchies, &self.relative);
        tree::kill_all(&self.unified())
    }

    /// Waits until no process of the pod is left.
    pub async fn emptied(&self, watches: &Watches) {
        let directory = self.unified();
        // v2 reports changes of its event files to inotify. (epoll would report them as EPOLLPRI, for which `Async`
        // cannot wait.)
        let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF;
        let watcher = watches.watcher();
        loop {
            // Watch first and read then, so that no change is missed.
            let watched =
                watcher.as_ref().ok().filter(|own| own.add(&directory.join("cgroup.events"), events).is_ok());
            match tree::populated(&directory) {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => log::error!("failed to {}", crate::error::chain(&error)),
            }
            match watched {
                Some(watcher) => {
                    watcher.changed().await;
                    drop(watcher.take());
                }
                // The kernel provides no instance of inotify, or the cgroup was just removed. Looking again after a tenth
                // of a second is late, but never looking would wait for the pod for ever.
                None => {
                    Timer::after(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Removes the pod's cgroup with all leaves; no process may be in it. A missing cgroup is not an error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        remove_everywhere(&self.hierarchies, &self.relative)
    }
}

/// Whether a process may be in the v2 cgroup at `directory` or below it.
pub(crate) fn may_have_processes(directory: &Path) -> bool {
    tree::populated(directory).unwrap_or(true)
}

/// The cgroup of one run of a container.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub(super) hierarchies: Rc<Hierarchies>,
    pub(super) relative: PathBuf,
}

impl Leaf {
    fn make(&self, limits: &ContainerLimits) -> Result<(), CgroupError> {
        let made = self.try_make(limits);
        if made.is_err() {
            // A partly made leaf is found and removed together with the pod's cgroup.
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
        target.limit_swap(limits)?;
        if limits.all_devices {
            return Ok(());
        }
        match self.hierarchies.hierarchy_of(Controller::Devices) {
            ControllerHierarchy::V1(mount) => {
                devices::filter_v1(&mount.join(&self.relative), &limits.devices)
            }
            // v2 has no such controller: it filters devices by a program, which needs none.
            ControllerHierarchy::V2 | ControllerHierarchy::Missing => {
                devices::filter_v2(&self.unified(), &limits.devices)
            }
        }
    }

    /// Lets the processes of the run use the devices `new` in place of the devices `old`.
    pub fn change_devices(&self, old: &[DeviceNode], new: &[DeviceNode]) -> Result<(), CgroupError> {
        match self.hierarchies.hierarchy_of(Controller::Devices) {
            ControllerHierarchy::V1(mount) => {
                devices::change_filter_v1(&mount.join(&self.relative), old, new)
            }
            ControllerHierarchy::V2 | ControllerHierarchy::Missing => {
                devices::change_filter_v2(&self.unified(), new)
            }
        }
    }

    pub(super) fn unified(&self) -> PathBuf {
        self.hierarchies.unified.join(&self.relative)
    }

    /// The cgroup paths for the processes of this run.
    pub fn paths(&self) -> CgroupPaths {
        let mounts = self.hierarchies.v1_mounts();
        CgroupPaths {
            unified: self.unified(),
            v1_tasks: mounts.iter().map(|mount| mount.join(&self.relative).join("tasks")).collect(),
        }
    }

    /// Kills every process of the run. Lifts the cpu limits of the run and of its pod first, so that the
    /// processes end at once.
    pub fn kill(&self) -> Result<(), CgroupError> {
        quota::lift(&self.hierarchies, &self.relative);
        tree::kill_all(&self.unified())
    }

    /// Kills an executed process and its descendants, but not the container.
    pub fn kill_exec(&self, id: u32) -> Result<(), CgroupError> {
        tree::kill_all(&self.unified().join(format!("exec-{id}")))
    }

    /// Kills all executed processes and their descendants, but not the container.
    pub fn kill_execs(&self) -> Result<(), CgroupError> {
        for entry in fs::read_dir(self.unified()).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b"exec-") {
                tree::kill_all(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Whether process `pid` belongs to this run.
    pub fn contains(&self, pid: i32) -> bool {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return false };
        // The start of the path depends on this process's cgroup namespace; its end is unique to this run.
        text.lines()
            .filter_map(|line| line.strip_prefix("0::"))
            .any(|path| Path::new(path).ancestors().any(|path| path.ends_with(&self.relative)))
    }

    /// Whether a process of the run is left.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        tree::populated(&self.unified())
    }

    /// How often the kernel killed a process of the run because memory was short. v2 counts the process that
    /// it chose twice, since all others are killed with it.
    pub fn oom_kills(&self) -> Result<u64, CgroupError> {
        Target::new(&self.hierarchies, &self.relative).oom_kills()
    }

    /// Freezes every process of the run, or thaws it.
    #[cfg(test)]
    pub(crate) fn freeze(&self, frozen: bool) -> Result<(), CgroupError> {
        tree::freeze(&self.unified(), frozen)
    }

    /// Removes the leaf, with the cgroups of executed processes; no process may be in them. A missing leaf is
    /// not an error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        remove_everywhere(&self.hierarchies, &self.relative)
    }
}
