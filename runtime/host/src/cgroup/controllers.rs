//! Values of a cgroup's controllers, written and read by cgroups-rs. No other file of the product uses that crate.
//!
//! It knows the names and formats of the files of shares, quotas, limits of memory and processes, and v1's rules of
//! devices. What it cannot do is done by hand, in the other files of this folder:
//!
//! * report that a controller is missing (v2): each value is read back here, and compared;
//! * return a memory limit without reading a dozen files: it is read here;
//! * kill a cgroup where the kernel has no `cgroup.kill`, or freeze it so that nothing forks meanwhile (`tree.rs`);
//! * enable controllers along one path of v2, and not for others (`cgroup.rs`), or find hierarchies below a delegated
//!   cgroup (`hierarchy.rs`, `place.rs`);
//! * filter devices of v2 by a program (`devices.rs`); it writes v1's rules one by one, but also reads them each time;
//! * `memory.swap.max`, `memory.oom.group`, `cpuset.cpus` and `hugetlb.*` of v2 (`limits.rs`);
//! * remove a cgroup which the kernel still has for a moment (`tree.rs`).

use std::error::Error as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::devices::DevicesController;
use cgroups_rs::fs::error::{Error, ErrorKind};
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;

use super::CgroupError;

/// The largest page size of any kernel, in bytes.
const LARGEST_PAGE: u64 = 64 << 10;

/// More bytes than any machine has: the kernel treats it as no limit.
const NO_LIMIT: u64 = 1 << 62;

/// The directory of a cgroup in the hierarchy of a controller.
pub(super) struct ControllerDirectory {
    pub(super) path: PathBuf,
    pub(super) is_v2: bool,
}

impl ControllerDirectory {
    fn cpu(&self) -> CpuController {
        CpuController::new(self.path.clone(), self.path.clone(), self.is_v2)
    }

    /// Sets v1's `cpu.shares` or v2's `cpu.weight`.
    pub(super) fn set_shares(&self, shares: u64) -> Result<(), CgroupError> {
        let cpu = self.cpu();
        cpu.set_shares(shares).map_err(failed("set the cpu shares of", &self.path))?;
        let actual = cpu.shares().map_err(failed("read the cpu shares of", &self.path))?;
        check_applied(&self.path, "cpu shares", shares, actual)
    }

    /// Reads v1's `cpu.shares` or v2's `cpu.weight`; `None` if the cgroup does not exist.
    pub(super) fn shares(&self) -> Option<u64> {
        self.cpu().shares().ok()
    }

    /// Sets the microseconds that the cgroup may run in each period.
    pub(super) fn set_quota(&self, quota: i64) -> Result<(), CgroupError> {
        let cpu = self.cpu();
        cpu.set_cfs_quota(quota).map_err(failed("set the cpu limit of", &self.path))?;
        let actual = cpu.cfs_quota().map_err(failed("read the cpu limit of", &self.path))?;
        check_applied(&self.path, "cpu quota", quota, actual)
    }

    /// Sets the limit of memory, in bytes.
    pub(super) fn set_memory(&self, limit: u64) -> Result<(), CgroupError> {
        let memory = MemController::new(self.path.clone(), self.path.clone(), self.is_v2);
        let wanted = i64::try_from(limit).unwrap_or(i64::MAX);
        memory.set_limit(wanted).map_err(failed("set the memory limit of", &self.path))?;
        let path = self.path.join(if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" });
        let text = fs::read_to_string(&path).map_err(CgroupError::file("read", &path))?;
        // The kernel rounds down to whole pages, and has "max" for more than any machine has.
        let actual = match text.trim() {
            "max" => u64::MAX,
            text => text.parse::<u64>().unwrap_or(0),
        };
        if limit.abs_diff(actual) < LARGEST_PAGE || limit.min(actual) > NO_LIMIT {
            return Ok(());
        }
        check_applied(&self.path, "memory limit", limit, actual)
    }

    /// Sets the limit of processes and threads.
    pub(super) fn set_pids(&self, limit: u64) -> Result<(), CgroupError> {
        let pids = PidController::new(self.path.clone(), self.path.clone(), self.is_v2);
        let wanted = MaxValue::Value(i64::try_from(limit).unwrap_or(i64::MAX));
        pids.set_pid_max(wanted).map_err(failed("set the limit of processes of", &self.path))?;
        let actual = pids.get_pid_max().map_err(failed("read the limit of processes of", &self.path))?;
        check_applied(&self.path, "limit of processes", wanted, actual)
    }
}

/// Checks that the v1 cgroup at `directory` has as many rules of devices as are `wanted`.
pub(super) fn check_device_rules(directory: &Path, wanted: usize) -> Result<(), CgroupError> {
    let devices = DevicesController::new(directory.to_owned(), directory.to_owned());
    let actual = devices.allowed_devices().map_err(failed("filter the devices of", directory))?.len();
    check_applied(directory, "device rules", wanted, actual)
}

/// The error of an operation on the cgroup at `directory`, with the kernel's error, and the value if it was refused.
fn failed(operation: &'static str, directory: &Path) -> impl FnOnce(Error) -> CgroupError {
    move |error| {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        let source = match cause.and_then(io::Error::raw_os_error) {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::other(error.to_string()),
        };
        let path = directory.to_owned();
        if let ErrorKind::WriteFailed(_, value) = error.kind() {
            return CgroupError::Refused { operation, path, value: value.clone(), source };
        }
        CgroupError::File { operation, path, source }
    }
}

fn check_applied<T: PartialEq + ToString>(
    directory: &Path,
    limit: &'static str,
    wanted: T,
    actual: T,
) -> Result<(), CgroupError> {
    if wanted == actual {
        return Ok(());
    }
    let (wanted, actual) = (wanted.to_string(), actual.to_string());
    Err(CgroupError::NotApplied { path: directory.to_owned(), limit, wanted, actual })
}
