//! The limits of a pod and of its containers, as their cgroups have them.

use std::fs;
use std::path::PathBuf;

use crate::TestPod;

impl TestPod<'_> {
    /// The cgroup of a run of a container, such as `app-0`, in the hierarchy of a controller of version 1, or in version 2;
    /// that of the whole pod for an empty name.
    #[track_caller]
    pub fn cgroup(&self, run: &str, controller: &str) -> PathBuf {
        let end = PathBuf::from(format!("pod{}", self.uid())).join(run);
        let all: Vec<PathBuf> = self.cgroups().into_iter().filter(|group| group.ends_with(&end)).collect();
        let controller = format!("/sys/fs/cgroup/{controller}");
        let own = all.iter().find(|group| group.starts_with(&controller)).or(all.first());
        own.unwrap_or_else(|| panic!("there is no cgroup {}", end.display())).clone()
    }

    /// The limit of memory in bytes.
    #[track_caller]
    pub fn memory_limit(&self, run: &str) -> String {
        first_word(self.cgroup(run, "memory"), ["memory.limit_in_bytes", "memory.max"])
    }

    /// The limit of cpu, in microseconds of each tenth of a second.
    #[track_caller]
    pub fn cpu_quota(&self, run: &str) -> String {
        cpu_quota(self.cgroup(run, "cpu"))
    }
}

/// The limit of cpu of a cgroup, in microseconds of each tenth of a second.
pub fn cpu_quota(cgroup: PathBuf) -> String {
    first_word(cgroup, ["cpu.cfs_quota_us", "cpu.max"])
}

/// The first word of the first of these files that exists.
fn first_word(cgroup: PathBuf, files: [&str; 2]) -> String {
    let text = files.into_iter().find_map(|file| fs::read_to_string(cgroup.join(file)).ok());
    text.expect("the controller is on").split_whitespace().next().unwrap_or_default().to_owned()
}
