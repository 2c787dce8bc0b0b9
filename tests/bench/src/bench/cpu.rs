//! Processor time by the kernel's exact sums: of everything that ran in a cgroup, even if it has ended, and
//! of a process with all its threads. Clock ticks are not used, because they are too coarse for milliseconds.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::libc;
use nix::sys::wait::WaitStatus;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use nodlet_build::files;
use nodlet_build::task::{Outcome, TaskError, line_of};

use super::scratch::Scratch;

/// A cgroup in the v2 hierarchy, with or without controllers. Processes that start in it are charged to it,
/// with all their children, and so are those in cgroups below it.
pub(super) struct Account {
    directory: PathBuf,
    /// The cgroup that contains the processes: a cgroup with controllers for its children may not have
    /// processes itself.
    leaf: PathBuf,
}

impl Account {
    /// Opens the cgroup that runtimes know by this name.
    pub(super) fn open(scratch: &Scratch, name: &str) -> Result<Self, TaskError> {
        let directory = unified()?.join(scratch.cgroup(name).trim_start_matches('/'));
        let leaf = directory.join("begun");
        fs::create_dir_all(&leaf).map_err(|error| format!("failed to create {}: {error}", leaf.display()))?;
        Ok(Self { directory, leaf })
    }

    /// Charges everything that `start` starts: this process enters the cgroup, and leaves it afterwards.
    pub(super) fn within<T>(&self, start: impl FnOnce() -> T) -> Result<T, TaskError> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("no cgroup in v2")?;
        let back = unified()?.join(own).join("cgroup.procs");
        fs::write(self.leaf.join("cgroup.procs"), "0")?;
        let started = start();
        fs::write(back, "0")?;
        Ok(started)
    }

    /// Makes the command start in the cgroup.
    pub(super) fn charge(&self, command: &mut Command) -> Outcome {
        // Opened here, because the hierarchy may be invisible where the command starts.
        let mut procs = fs::OpenOptions::new().write(true).open(self.leaf.join("cgroup.procs"))?;
        // SAFETY: one write, which is async-signal-safe.
        unsafe { command.pre_exec(move || procs.write_all(b"0")) };
        Ok(())
    }

    pub(super) fn used(&self) -> Result<Duration, TaskError> {
        used_in(&self.directory)
    }
}

/// The processor time used so far by a cgroup of v2 and all cgroups below it.
pub(super) fn used_in(cgroup: &Path) -> Result<Duration, TaskError> {
    let path = cgroup.join("cpu.stat");
    let text = files::read_text(&path)?;
    let used = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).ok_or("no usage_usec")?;
    Ok(Duration::from_micros(used.parse()?))
}

/// The processor time used so far by a process, with all its threads but without its children.
pub(super) fn used_by(pid: u32) -> Result<Duration, TaskError> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))?;
    Ok(clock_gettime(clock)?.into())
}

/// The resources that a command used, with all its children that it waited for.
pub(super) struct Taken {
    pub(super) cpu: Duration,
    /// The largest resident memory of the command and its children together.
    pub(super) peak_kib: u64,
}

/// The polling interval of memory. The kernel records each process's peak, so polling misses none.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Runs a command, which must succeed.
pub(super) fn taken(command: &mut Command) -> Result<Taken, TaskError> {
    let line = line_of(command);
    let child = command.spawn().map_err(|error| format!("failed to run {line}: {error}"))?;
    let (mut status, mut peak_kib) = (0, 0);
    // SAFETY: a rusage is numbers, for which zeros are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // `ru_maxrss` is not used, because it includes the forking process before it executed the command.
        peak_kib = peak_kib.max(resident(child.id()));
        let (pid, flags) = (child.id().cast_signed(), libc::WNOHANG);
        // SAFETY: both pointers are to values that live through the call. Nothing else waits for this child.
        match unsafe { libc::wait4(pid, &raw mut status, flags, &raw mut usage) } {
            0 => std::thread::sleep(POLL_INTERVAL),
            1.. => break,
            _ => return Err(std::io::Error::last_os_error().into()),
        }
    }
    match WaitStatus::from_raw(Pid::from_raw(child.id().cast_signed()), status)? {
        WaitStatus::Exited(_, 0) => {}
        ended => return Err(TaskError(format!("{line}: {ended:?}"))),
    }
    let time = |time: libc::timeval| {
        Duration::from_micros(time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_usec.unsigned_abs())
    };
    Ok(Taken { cpu: time(usage.ru_utime) + time(usage.ru_stime), peak_kib })
}

/// Memory of a process and its children in KiB: their current sum, or the peak of one of them if that is
/// larger.
fn resident(pid: u32) -> u64 {
    let (mut now, mut peak) = (0, 0);
    let mut open = vec![pid];
    while let Some(pid) = open.pop() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        now += field("VmRSS:");
        peak = peak.max(field("VmHWM:"));
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            open.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    peak.max(now)
}

/// The mount point of the v2 hierarchy.
pub(super) fn unified() -> Result<PathBuf, TaskError> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = table.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        filesystem.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4))?
    });
    Ok(mount.ok_or("cgroup v2 is not mounted on this machine: processor time is taken from it")?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_uses_cpu_time_and_a_failed_one_is_reported() {
        let before = used_by(std::process::id()).unwrap();
        while used_by(std::process::id()).unwrap() < before + Duration::from_millis(2) {}
        let taken = taken(Command::new("sh").args(["-c", "sleep 0.05"])).unwrap();
        assert!((100..100_000).contains(&taken.peak_kib), "{}", taken.peak_kib);
        assert!(
            super::taken(Command::new("sh").args(["-c", "exit 3"])).is_err_and(|why| why.0.contains("sh"))
        );
    }
}
