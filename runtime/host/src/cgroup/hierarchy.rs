//! The mount points of this machine's cgroup hierarchies, and the controllers of each. Read once, from
//! /proc/self/mountinfo. Read next: `limits.rs`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::CgroupError;

/// A controller that nodlet uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Cpu,
    Memory,
    Pids,
    Devices,
    /// Used only where the machine has huge pages.
    HugeTlb,
    /// Used only in v2, on a machine with several processors.
    Cpuset,
}

impl Controller {
    pub(super) const ALL: [Controller; 6] = [
        Controller::Cpu,
        Controller::Memory,
        Controller::Pids,
        Controller::Devices,
        Controller::HugeTlb,
        Controller::Cpuset,
    ];

    /// The controller's name in mount options and in `cgroup.controllers`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Devices => "devices",
            Controller::HugeTlb => "hugetlb",
            Controller::Cpuset => "cpuset",
        }
    }

    /// The kernel option that provides the controller.
    pub(super) fn kernel_option(self) -> &'static str {
        match self {
            Controller::Cpu => "CONFIG_CGROUP_SCHED",
            // Many boards' kernels have it, but disabled.
            Controller::Memory => "CONFIG_MEMCG; cgroup_enable=memory on its command line",
            Controller::Pids => "CONFIG_CGROUP_PIDS",
            Controller::Devices => "CONFIG_CGROUP_DEVICE",
            Controller::HugeTlb => "CONFIG_CGROUP_HUGETLB",
            Controller::Cpuset => "CONFIG_CPUSETS",
        }
    }
}

/// The hierarchy that has a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControllerHierarchy<'a> {
    /// The v1 hierarchy mounted here.
    V1(&'a Path),
    /// The v2 hierarchy.
    V2,
    /// No mounted hierarchy has the controller.
    Missing,
}

/// The mounted hierarchies that nodlet uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchies {
    /// The v2 hierarchy, with or without controllers, or the part of it that is delegated.
    pub(super) unified: PathBuf,
    /// The controllers that nodlet uses and that the v2 hierarchy has.
    v2: Vec<Controller>,
    /// The controllers that v1 hierarchies have. Several may share one hierarchy.
    v1: Vec<(Controller, PathBuf)>,
}

impl Hierarchies {
    /// Finds the hierarchies of this mount namespace.
    pub(super) fn find() -> Result<Hierarchies, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(CgroupError::file("read", path))?;
        let (unified, v1) = parse(&text);
        let unified = unified.ok_or(CgroupError::NoUnified)?;
        let v2 = offered(&unified)?;
        Ok(Hierarchies { unified, v2, v1 })
    }

    /// These hierarchies without a controller, which then costs no cgroup anything.
    pub(super) fn without(mut self, controller: Controller) -> Hierarchies {
        self.v2.retain(|known| *known != controller);
        self.v1.retain(|(known, _)| *known != controller);
        self
    }

    /// These hierarchies, with the cgroup at `place` in the role of the top of the v2 hierarchy: the cgroups
    /// above it must not be touched.
    pub(super) fn below(self, place: &Path) -> Result<Hierarchies, CgroupError> {
        if place.as_os_str().is_empty() {
            return Ok(self);
        }
        let unified = self.unified.join(place);
        let v2 = offered(&unified)?;
        Ok(Hierarchies { unified, v2, ..self })
    }

    #[cfg(test)]
    pub(super) fn v2_at(unified: &Path, controllers: &[Controller]) -> Hierarchies {
        Hierarchies { unified: unified.to_owned(), v2: controllers.to_vec(), v1: Vec::new() }
    }

    pub(super) fn hierarchy_of(&self, controller: Controller) -> ControllerHierarchy<'_> {
        match self.v1.iter().find(|(known, _)| *known == controller) {
            Some((_, mount)) => ControllerHierarchy::V1(mount),
            None if self.v2.contains(&controller) => ControllerHierarchy::V2,
            None => ControllerHierarchy::Missing,
        }
    }

    /// Names of the v2 hierarchy's controllers that nodlet uses.
    pub(super) fn v2_controllers(&self) -> impl Iterator<Item = &'static str> {
        self.v2.iter().copied().map(Controller::name)
    }

    /// Mount points of the v1 hierarchies with a controller that nodlet uses, each once.
    pub(super) fn v1_mounts(&self) -> Vec<&Path> {
        let mut mounts: Vec<&Path> = Vec::new();
        for (_, mount) in &self.v1 {
            if !mounts.contains(&mount.as_path()) {
                mounts.push(mount);
            }
        }
        mounts
    }

    /// All mount points, the v2 one first.
    pub(super) fn mounts(&self) -> Vec<&Path> {
        let mut mounts = vec![self.unified.as_path()];
        mounts.extend(self.v1_mounts());
        mounts
    }
}

impl fmt::Display for Hierarchies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v2 at {}", self.unified.display())?;
        for controller in Controller::ALL {
            match self.hierarchy_of(controller) {
                ControllerHierarchy::V1(mount) => {
                    write!(f, ", {} in v1 at {}", controller.name(), mount.display())?
                }
                ControllerHierarchy::V2 => write!(f, ", {} in v2", controller.name())?,
                // v2 filters devices by a program.
                ControllerHierarchy::Missing
                    if [Controller::Devices, Controller::HugeTlb, Controller::Cpuset]
                        .contains(&controller) => {}
                ControllerHierarchy::Missing => {
                    write!(
                        f,
                        ", no {} (the kernel needs {})",
                        controller.name(),
                        controller.kernel_option()
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// The controllers that nodlet uses and that a v2 cgroup has.
fn offered(directory: &Path) -> Result<Vec<Controller>, CgroupError> {
    let path = directory.join("cgroup.controllers");
    let text = fs::read_to_string(&path).map_err(CgroupError::file("read", &path))?;
    let mut found = Vec::new();
    for controller in Controller::ALL {
        if text.split_whitespace().any(|name| name == controller.name()) {
            found.push(controller);
        }
    }
    Ok(found)
}

/// The first v2 mount, and the first v1 mount of each controller that nodlet uses.
fn parse(mountinfo: &str) -> (Option<PathBuf>, Vec<(Controller, PathBuf)>) {
    let mut unified = None;
    let mut v1: Vec<(Controller, PathBuf)> = Vec::new();
    for line in mountinfo.lines() {
        // id parent major:minor root mount-point options [optional…] - type source super-options
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(mount_point) = left.split(' ').nth(4) else { continue };
        let mut right = right.split(' ');
        let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
        let mount_point = || PathBuf::from(unescape(mount_point));
        match kind {
            Some("cgroup2") if unified.is_none() => unified = Some(mount_point()),
            Some("cgroup") => {
                for controller in Controller::ALL {
                    let has = options.split(',').any(|option| option == controller.name());
                    if has && v1.iter().all(|(known, _)| *known != controller) {
                        v1.push((controller, mount_point()));
                    }
                }
            }
            Some(_) | None => {}
        }
    }
    (unified, v1)
}

/// Replaces the octal escapes of mountinfo for space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_however_the_machine_mounts_them() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(parse(v2), (Some("/sys/fs/cgroup".into()), vec![]));

        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            36 31 0:32 / /mnt/again rw - cgroup cgroup rw,memory\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
            41 31 0:38 / /sys/fs/cgroup/a\\040b rw - cgroup2 cgroup2 rw\n";
        let (unified, v1) = parse(hybrid);
        assert_eq!(unified, Some("/sys/fs/cgroup/a b".into()));
        assert_eq!(
            v1,
            [
                (Controller::Cpu, "/sys/fs/cgroup/cpu,cpuacct".into()),
                (Controller::Memory, "/sys/fs/cgroup/memory".into())
            ]
        );
        assert_eq!(parse("garbage\n1 2 - cgroup2\n - \n"), (None, vec![]));
    }

    #[test]
    fn a_hierarchy_with_two_controllers_is_one_directory() {
        let both = PathBuf::from("/c/both");
        let hierarchies = Hierarchies {
            unified: "/c/u".into(),
            v2: vec![Controller::Pids],
            v1: vec![(Controller::Cpu, both.clone()), (Controller::Memory, both.clone())],
        };
        assert_eq!(hierarchies.mounts(), [Path::new("/c/u"), &both]);
        assert_eq!(hierarchies.hierarchy_of(Controller::Memory), ControllerHierarchy::V1(&both));
        assert_eq!(hierarchies.hierarchy_of(Controller::Pids), ControllerHierarchy::V2);
        assert_eq!(hierarchies.hierarchy_of(Controller::Devices), ControllerHierarchy::Missing);
        let expected = "v2 at /c/u, cpu in v1 at /c/both, memory in v1 at /c/both, pids in v2";
        assert_eq!(hierarchies.to_string(), expected);
    }
}
