//! Helpers for tests of upgrades: which file supervisors execute, and other binaries.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::device::Device;
use crate::programs::nodlet_program;

/// The supervisor of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supervisor {
    /// The supervisor's process ID.
    pub pid: u32,
    /// The inode of the file that the supervisor executes.
    pub executes: u64,
}

/// The inode of a program, which identifies it.
pub fn inode(program: &Path) -> u64 {
    fs::metadata(program).expect("it is there").ino()
}

impl Device {
    /// Writes a binary that this device can install.
    pub fn binary(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.shared("binaries").1.join(name);
        fs::write(&path, bytes).expect("the root can be written to");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    /// A copy of the binary under test, as a different file.
    pub fn newer_binary(&self, name: &str) -> PathBuf {
        let mut bytes = fs::read(nodlet_program()).expect("it is built");
        // These bytes are no part of the ELF contents; they only make the file distinguishable.
        bytes.extend_from_slice(name.as_bytes());
        self.binary(name, &bytes)
    }

    /// The supervisors of the pods, by uid.
    pub fn supervisors(&self) -> BTreeMap<String, Supervisor> {
        let read =
            |pid: u32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let processes = fs::read_dir("/proc").expect("/proc is mounted").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut found = BTreeMap::new();
        let is_named = |pid: &u32| read(*pid, "comm").trim_end() == "nodlet:super";
        // A process that a supervisor has just forked still has the supervisor's name.
        let is_forked = |pid: &u32| {
            let stat = read(*pid, "stat");
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
            parent.and_then(|parent| parent.parse().ok()).is_some_and(|parent| is_named(&parent))
        };
        for pid in pids.filter(|pid| is_named(pid) && !is_forked(pid)) {
            let cgroup = read(pid, "cgroup");
            for pod in fs::read_dir(self.path("/run/nodlet/pods")).expect("it is there").flatten() {
                let uid = pod.file_name().to_string_lossy().into_owned();
                if cgroup.contains(&uid)
                    && let Ok(file) = fs::metadata(format!("/proc/{pid}/exe"))
                {
                    found.insert(uid, Supervisor { pid, executes: file.ino() });
                }
            }
        }
        found
    }
}
