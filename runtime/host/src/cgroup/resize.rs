//! Writes other limits to the cgroups of a pod and of its running containers (`doPodResizeAction` of the kubelet).
//!
//! No cgroup may allow more than the one above it: the pod's limit rises before those of its containers, and falls
//! after them. A memory limit does not fall below what is used, because the kernel would kill processes.

use std::fs;

use super::controllers::ControllerDirectory;
use super::hierarchy::Controller;
use super::limits::{ContainerLimits, Target};
use super::{CgroupError, Cgroups, Leaf};
use nodlet_core::spec::{ContainerIndex, Pod, QosClass};

/// One cgroup with the limits that it is to have; `name` is that of the container, or none for the pod as a whole.
struct Resized<'a> {
    name: Option<&'a str>,
    target: Target<'a>,
    limits: ContainerLimits,
}

impl Cgroups {
    /// Writes the limits of `pod` to its cgroup and to those of its running containers. A container that ends meanwhile
    /// is no error.
    ///
    /// # Errors
    /// The new memory limit is below the usage, or the kernel rejects a limit.
    pub fn resize(&self, pod: &Pod, leaves: &[(Leaf, ContainerIndex)]) -> Result<(), CgroupError> {
        let whole = self.known_pod(pod)?;
        let mut all = vec![Resized {
            name: None,
            target: Target::new(&self.hierarchies, &whole.relative),
            limits: ContainerLimits::of_pod(pod),
        }];
        all.extend(leaves.iter().map(|(leaf, index)| Resized {
            name: Some(&pod.spec.container(*index).name),
            target: Target::new(&self.hierarchies, &leaf.relative),
            limits: ContainerLimits::of(pod, *index),
        }));
        all.retain(|one| one.name.is_none() || one.target.exists());
        check_usage(&all)?;
        in_order(
            &all,
            |one| one.limits.memory.map(|new| (one.target.memory_limit(), new)),
            |one, new| {
                let raises = new > one.target.memory_limit();
                // Memory and swap together are never less than memory alone.
                if raises && one.target.has_joint_swap() && one.name.is_some() {
                    one.target.limit_swap(&one.limits)?;
                }
                one.target.set_memory(new)?;
                if !raises && one.target.has_joint_swap() && one.name.is_some() {
                    one.target.limit_swap(&one.limits)?;
                }
                Ok(())
            },
        )?;
        let quota = |one: &Resized<'_>| one.limits.cpu_quota_us.and_then(|new| u64::try_from(new).ok());
        in_order(
            &all,
            |one| quota(one).map(|new| (one.target.quota(), new)),
            |one, new| one.target.set_quota(i64::try_from(new).unwrap_or(i64::MAX)),
        )?;
        for one in &all {
            ended(one, one.target.set_shares(one.limits.cpu_shares))?;
        }
        match pod.spec.qos_class() {
            QosClass::Burstable => self.weigh(&self.class(QosClass::Burstable)),
            QosClass::BestEffort | QosClass::Guaranteed => Ok(()),
        }
    }
}

/// Writes one limit of each cgroup: the pod's if it rises, then those of containers, falling ones first, then the
/// pod's if it falls. `of` returns the present and the new limit.
fn in_order<'a>(
    all: &[Resized<'a>],
    of: impl Fn(&Resized<'a>) -> Option<(u64, u64)>,
    write: impl Fn(&Resized<'a>, u64) -> Result<(), CgroupError>,
) -> Result<(), CgroupError> {
    let mut steps: Vec<(u8, &Resized<'_>, u64)> = Vec::new();
    for one in all {
        let Some((present, new)) = of(one) else { continue };
        let step = match (one.name, new > present) {
            (None, true) => 0,
            (Some(_), false) => 1,
            (Some(_), true) => 2,
            (None, false) => 3,
        };
        steps.push((step, one, new));
    }
    steps.sort_by_key(|(step, _, _)| *step);
    steps.into_iter().try_for_each(|(_, one, new)| ended(one, write(one, new)))
}

/// The result of a write, unless the container ended before it.
fn ended(one: &Resized<'_>, written: Result<(), CgroupError>) -> Result<(), CgroupError> {
    match written {
        Err(_) if one.name.is_some() && !one.target.exists() => Ok(()),
        written => written,
    }
}

/// Checks that no memory limit falls below what is used (`validateMemoryResizeAction`).
fn check_usage(all: &[Resized<'_>]) -> Result<(), CgroupError> {
    let mut texts = Vec::new();
    for Resized { name, target, limits } in all {
        let Some(new) = limits.memory.filter(|new| *new < target.memory_limit()) else { continue };
        let usage = target.memory_usage();
        if usage >= new {
            let what = name.map_or("pod".to_owned(), |name| format!("container {name:?}"));
            texts
                .push(format!("attempting to set {what} memory limit ({new}) below current usage ({usage})"));
        }
    }
    match texts.len() {
        0 => Ok(()),
        1 => Err(CgroupError::BelowUsage { texts: texts.remove(0) }),
        _ => Err(CgroupError::BelowUsage { texts: format!("[{}]", texts.join(", ")) }),
    }
}

impl Target<'_> {
    /// Whether the kernel limits memory and swap together (v1). Otherwise the swap of a running container stays.
    fn has_joint_swap(&self) -> bool {
        matches!(self.directory(Controller::Memory), Some(ControllerDirectory { is_v2: false, .. }))
    }

    fn exists(&self) -> bool {
        self.hierarchies.unified.join(self.relative).exists()
    }

    /// The number in a file of `controller`; `None` if there is no such file, or the file says that there is no limit.
    pub(super) fn number(&self, controller: Controller, v1: &str, v2: &str) -> Option<u64> {
        let ControllerDirectory { path, is_v2 } = self.directory(controller)?;
        let text = fs::read_to_string(path.join(if is_v2 { v2 } else { v1 })).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok()
    }

    fn memory_limit(&self) -> u64 {
        self.number(Controller::Memory, "memory.limit_in_bytes", "memory.max").unwrap_or(u64::MAX)
    }

    fn memory_usage(&self) -> u64 {
        self.number(Controller::Memory, "memory.usage_in_bytes", "memory.current").unwrap_or(0)
    }

    fn quota(&self) -> u64 {
        self.number(Controller::Cpu, "cpu.cfs_quota_us", "cpu.max").unwrap_or(u64::MAX)
    }
}
