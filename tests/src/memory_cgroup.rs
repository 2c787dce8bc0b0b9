//! A cgroup with the memory of an agent and its supervisors, besides that of containers.

use std::fs;
use std::path::PathBuf;

use crate::Device;

/// A cgroup in which agents are started. Those that they start are in it, too; containers have cgroups of their own.
#[derive(Debug)]
pub struct MemoryCgroup {
    directory: PathBuf,
    is_v1: bool,
}

impl MemoryCgroup {
    /// Makes a cgroup beside this process.
    pub fn new(name: &str) -> MemoryCgroup {
        let groups = fs::read_to_string("/proc/self/cgroup").expect("each process has cgroups");
        let v1 = groups.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path.to_owned()));
        let is_v1 = v1.is_some();
        let parent = match &v1 {
            Some(path) => format!("/sys/fs/cgroup/memory{path}"),
            None => "/sys/fs/cgroup".to_owned(),
        };
        let directory = PathBuf::from(parent).join(format!("nodlet-{name}-{}", std::process::id()));
        fs::create_dir(&directory).expect("root makes cgroups");
        MemoryCgroup { directory, is_v1 }
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.directory.join(if self.is_v1 { v1 } else { v2 })
    }

    fn amount(&self, v1: &str, v2: &str) -> u64 {
        let text = fs::read_to_string(self.file(v1, v2)).expect("the cgroup counts memory");
        text.trim().parse().expect("an amount of bytes")
    }

    /// Starts the agent in the cgroup.
    pub fn launch(&self, device: &mut Device) {
        // A thread of its own under v1; with v2, the process.
        let own = |directory: &PathBuf| directory.join(if self.is_v1 { "tasks" } else { "cgroup.procs" });
        fs::write(own(&self.directory), "0").expect("the cgroup takes this thread");
        device.launch_agent();
        let parent = self.directory.parent().expect("it has a parent").to_owned();
        fs::write(own(&parent), "0").expect("this thread goes back");
    }

    /// The memory in bytes, with the cached pages of files.
    pub fn usage(&self) -> u64 {
        self.amount("memory.usage_in_bytes", "memory.current")
    }

    /// The peak of [`MemoryCgroup::usage`] since [`MemoryCgroup::forget_peak`], or of all time on kernels that cannot
    /// forget it.
    pub fn peak(&self) -> u64 {
        self.amount("memory.max_usage_in_bytes", "memory.peak")
    }

    /// Resets the recorded peak.
    pub fn forget_peak(&self) {
        // With v2, Linux 6.12 and later only.
        let _ = fs::write(self.file("memory.max_usage_in_bytes", "memory.peak"), "0");
    }

    /// Limits the memory to `room` bytes more than now, without the cached pages of files that the kernel can free.
    pub fn limit(&self, room: u64) {
        // The first process that reads a program's file is charged for it. The kernel frees what it can, and fails when
        // that is less than all.
        let (free, all) = if self.is_v1 { ("memory.force_empty", "0") } else { ("memory.reclaim", "1G") };
        let _ = fs::write(self.directory.join(free), all);
        let most = self.usage() + room;
        fs::write(self.file("memory.limit_in_bytes", "memory.max"), most.to_string())
            .expect("root sets limits");
        let swap = self.file("memory.memsw.limit_in_bytes", "memory.swap.max");
        let _ = fs::write(swap, if self.is_v1 { most } else { 0 }.to_string());
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}
