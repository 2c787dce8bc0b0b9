//! Resource usage of the processes of a cgroup.

use std::fs;

use super::controllers::ControllerDirectory;
use super::limits::{Target, keyed};
use super::{Controller, Leaf, PodCgroup};

/// Resource usage of the processes of a cgroup, as far as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on processors since the cgroup was made, in microseconds.
    pub cpu_us: Option<u64>,
    /// Memory with the page cache, in bytes.
    pub memory: Option<u64>,
    /// Memory without the part of the page cache that is not in use, in bytes.
    pub working_set: Option<u64>,
    /// Memory that no file backs, in bytes.
    pub anonymous: Option<u64>,
    /// Processes and threads.
    pub tasks: Option<u64>,
}

impl Target<'_> {
    /// The memory that is left of the cgroup's limit, and the limit.
    pub(super) fn memory_within_limit(&self) -> Option<(u64, u64)> {
        let limit = self.number(Controller::Memory, "memory.limit_in_bytes", "memory.max")?;
        let used = self.number(Controller::Memory, "memory.usage_in_bytes", "memory.current")?;
        let ControllerDirectory { path, is_v2 } = self.directory(Controller::Memory)?;
        let stat = fs::read_to_string(path.join("memory.stat")).ok()?;
        let names = if is_v2 {
            ["inactive_file", "active_file"]
        } else {
            ["total_inactive_file", "total_active_file"]
        };
        let files = names.iter().filter_map(|name| keyed(&stat, name)).sum();
        Some((limit.saturating_sub(used.saturating_sub(files)), limit))
    }

    fn usage(&self) -> Usage {
        let memory = self.number(Controller::Memory, "memory.usage_in_bytes", "memory.current");
        let (inactive, anonymous) = match self.directory(Controller::Memory) {
            Some(ControllerDirectory { path, is_v2 }) => {
                let stat = fs::read_to_string(path.join("memory.stat")).unwrap_or_default();
                let names =
                    if is_v2 { ["inactive_file", "anon"] } else { ["total_inactive_file", "total_rss"] };
                (keyed(&stat, names[0]), keyed(&stat, names[1]))
            }
            None => (None, None),
        };
        // Every cgroup of v2 has this file, even without a controller.
        let cpu = self.hierarchies.unified.join(self.relative).join("cpu.stat");
        Usage {
            cpu_us: keyed(&fs::read_to_string(cpu).unwrap_or_default(), "usage_usec"),
            memory,
            working_set: memory.map(|memory| memory.saturating_sub(inactive.unwrap_or(0))),
            anonymous,
            tasks: self.number(Controller::Pids, "pids.current", "pids.current"),
        }
    }
}

impl PodCgroup {
    /// Usage of all processes of the pod.
    pub fn usage(&self) -> Usage {
        Target::new(&self.hierarchies, &self.relative).usage()
    }
}

impl Leaf {
    /// Usage of the processes of the run.
    pub fn usage(&self) -> Usage {
        Target::new(&self.hierarchies, &self.relative).usage()
    }
}
