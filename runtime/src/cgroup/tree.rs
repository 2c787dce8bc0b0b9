//! Directories of cgroups as a tree: making, walking, killing and removing what
//! is below one of them. By plain files: cgroups-rs makes a cgroup in every
//! hierarchy that is mounted (in v2: with every controller on from the root
//! down), kills in v2 only and waits inside a removal.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::CgroupError;
use super::limits::keyed;

/// How deep and how wide nodlet looks: a container with write access to its own
/// cgroup can make a tree of any size.
const MAX_CGROUPS: usize = 4096;

/// Times that all processes of a cgroup without `cgroup.kill` are killed. One
/// is enough for a frozen tree.
const KILLS: u32 = 16;

/// The cgroups below `root` and itself, deepest last; empty if it is gone.
pub(super) fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = if root.is_dir() { vec![root.to_owned()] } else { Vec::new() };
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        next += 1;
        // One that cannot be read is removed by the next who can.
        found.extend(children(&directory).unwrap_or_default());
        if found.len() > MAX_CGROUPS {
            found.truncate(MAX_CGROUPS);
            break;
        }
    }
    found
}

/// The cgroups directly below `directory`.
pub(super) fn children(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let failed = |error| CgroupError::file("read", directory)(error);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut children = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            children.push(entry.path());
        }
    }
    Ok(children)
}

/// Makes `directory`; that it is there is fine.
pub(super) fn make(directory: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(CgroupError::file("make", directory)),
    }
}

/// Makes `directory`, with nothing left of an earlier one of its name. A
/// process in it is an error: two runs never share a cgroup.
pub(super) fn make_anew(directory: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove(directory)?;
            fs::create_dir(directory).map_err(CgroupError::file("make", directory))
        }
        made => made.map_err(CgroupError::file("make", directory)),
    }
}

/// Removes the cgroup at `root` and all below it. Gone already is fine; a
/// process in one of them is an error.
pub(super) fn remove(root: &Path) -> Result<(), CgroupError> {
    for directory in walk(root).iter().rev() {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(CgroupError::file("remove", directory))?,
        }
    }
    Ok(())
}

/// Kills every process in the v2 cgroup at `root` and below.
pub(super) fn kill_all(root: &Path) -> Result<(), CgroupError> {
    let path = root.join("cgroup.kill");
    match fs::write(&path, "1") {
        Ok(()) => {
            kill_headless(root);
            Ok(())
        }
        Err(_) if !root.exists() => Ok(()),
        // Before Linux 5.14 there is no such file, and none can be made.
        Err(_) if !path.exists() => kill_each(root),
        Err(error) => Err(CgroupError::file("write", &path)(error)),
    }
}

/// Processes that are looked at for whether they lack their first thread. Others die meanwhile,
/// and whoever kills a cgroup that is not empty does so again.
const HEADLESS: usize = 1024;

/// Kills processes whose first thread has ended while others go on: `cgroup.kill` signals the
/// first thread alone, which takes no signal any more.
pub(crate) fn kill_headless(root: &Path) {
    for pid in processes(root).into_iter().take(HEADLESS).filter(|pid| is_zombie(*pid)) {
        let Some(process) = pidfd_open(pid) else { continue };
        // Its number may have been another's when it was opened.
        if processes(root).contains(&pid) {
            // SAFETY: pidfd_send_signal with a null siginfo reads nothing of ours. ESRCH: it has died.
            unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    process.as_raw_fd(),
                    libc::SIGKILL,
                    std::ptr::null::<libc::siginfo_t>(),
                    0,
                )
            };
        }
    }
}

/// Whether the first thread of a process has ended.
fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|fields| fields.starts_with(" Z"))
}

fn pidfd_open(pid: Pid) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The same by signals. Frozen first, where the kernel can (5.2), so that no
/// process makes another meanwhile; a frozen process dies of SIGKILL all the same.
pub(super) fn kill_each(root: &Path) -> Result<(), CgroupError> {
    let frozen = freeze(root, true).is_ok();
    let result = (0..KILLS).try_for_each(|_| {
        for pid in processes(root) {
            match kill(pid, Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(CgroupError::file("kill the processes of", root)(errno.into())),
            }
        }
        Ok(())
    });
    if frozen {
        freeze(root, false)?;
    }
    result
}

/// Stops or continues every process in the v2 cgroup at `root` and below.
pub(super) fn freeze(root: &Path, frozen: bool) -> Result<(), CgroupError> {
    let path = root.join("cgroup.freeze");
    match fs::write(&path, if frozen { "1" } else { "0" }) {
        Err(_) if !root.exists() => Ok(()),
        written => written.map_err(CgroupError::file("write", &path)),
    }
}

/// Processes in the v2 cgroup at `root` and below, as this PID namespace numbers them.
fn processes(root: &Path) -> Vec<Pid> {
    walk(root)
        .iter()
        .filter_map(|directory| fs::read_to_string(directory.join("cgroup.procs")).ok())
        .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>())
        // 0 is a process that this namespace does not see, and our own group to kill(2).
        .filter(|pid| *pid > 0)
        .map(Pid::from_raw)
        .collect()
}

/// Whether a process is in the v2 cgroup at `root` or below; a cgroup that is gone has none.
pub(super) fn populated(root: &Path) -> Result<bool, CgroupError> {
    let path = root.join("cgroup.events");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(keyed(&text, "populated") != Some(0)),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(CgroupError::file("read", &path)(error)),
    }
}

/// A file of a cgroup that was removed does not open, or reads as ENODEV.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
