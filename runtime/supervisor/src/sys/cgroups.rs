//! The processes of cgroups.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Whether a cgroup has a process. `events` is its `cgroup.events`, opened at the first call; reading it also
/// arms the next POLLPRI.
pub(crate) fn is_populated(directory: &Path, events: &mut Option<File>) -> bool {
    if events.is_none() {
        *events = File::open(directory.join("cgroup.events")).ok();
    }
    let Some(events) = events else { return false };
    let mut text = [0; 128];
    // A cgroup that was removed reads as ENODEV.
    let length = events.read_at(&mut text, 0).unwrap_or(0);
    text[..length].windows(11).any(|window| window == b"populated 1")
}

/// Kills every process of a leaf with SIGKILL, after lifting the cpu limits that would delay their end.
pub(crate) fn kill_leaf(directory: &Path) -> io::Result<()> {
    nodlet_host::cgroup::lift_cpu_limits(directory);
    kill_cgroup(directory)
}

/// Kills every process of a v2 cgroup, and of those below it, with SIGKILL.
pub(crate) fn kill_cgroup(directory: &Path) -> io::Result<()> {
    std::fs::write(directory.join("cgroup.kill"), "1")?;
    nodlet_host::cgroup::kill_headless(directory);
    Ok(())
}

/// Moves the processes of a v2 cgroup to its parent; or to a sibling, if the parent has enabled controllers
/// for its children and so cannot have processes. Processes that are forked meanwhile stay.
pub(crate) fn empty_into_parent(directory: &Path) {
    /// With more, the list could be out of date before it is written: a reused PID would move another
    /// process.
    const AT_ONCE: usize = 64;
    /// A privileged container may enable controllers for the children of its cgroup.
    const BESIDE: &str = "left-behind";
    let Some(parent) = directory.parent() else { return };
    let processes = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    // 0 is a process without a number in this PID namespace, and writing it would move the caller.
    for process in processes.lines().filter(|process| *process != "0").take(AT_ONCE) {
        let moved = std::fs::write(parent.join("cgroup.procs"), process);
        if moved.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            let beside = parent.join(BESIDE);
            // The cgroup may exist, and a process that has ended, or is ending, cannot be moved.
            let _ = std::fs::create_dir(&beside);
            let _ = std::fs::write(beside.join("cgroup.procs"), process);
        }
    }
}

/// Moves the calling process into each v1 `tasks` file. Not by `cgroup.procs`, which waits for a grace period
/// of the kernel; the process has only one task.
pub(crate) fn join_tasks(tasks: &[std::path::PathBuf]) -> io::Result<()> {
    tasks.iter().try_for_each(|file| {
        std::fs::OpenOptions::new()
            .write(true)
            .open(file)
            .and_then(|mut file| io::Write::write_all(&mut file, b"0"))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    })
}
