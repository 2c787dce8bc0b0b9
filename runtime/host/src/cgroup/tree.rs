//! Cgroup directories as a tree: making, walking, killing and removing the cgroups below one of them. This
//! uses plain files, since cgroups-rs makes a cgroup in every mounted hierarchy (in v2: with every controller
//! enabled from the root down), kills in v2 only, and waits during a removal.
//!
//! A container that may write to its cgroup can make a tree of any width and depth below it, with paths
//! longer than any system call accepts. Therefore this module uses no path below the cgroup of a container:
//! it walks a tree with one descriptor, which moves down by a name and up by `..`.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, UnlinkatFlags, unlinkat};
use nodlet_kernel::file::open_at;
use nodlet_kernel::own_file::if_exists;
use nodlet_kernel::process::{pidfd_open, pidfd_send_signal};

use super::CgroupError;
use super::limits::keyed;

/// How many names of cgroups are read before these cgroups are removed.
const NAMES_AT_ONCE: usize = 256;

/// How often all processes of a cgroup without `cgroup.kill` are killed. Once is enough for a frozen tree.
const MAX_KILLS: u32 = 16;

/// The cgroups directly below `directory`.
pub(super) fn children(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let failed = |error| CgroupError::file("read", directory)(error);
    let Some(entries) = if_exists(fs::read_dir(directory)).map_err(failed)? else { return Ok(Vec::new()) };
    let mut children = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            children.push(entry.path());
        }
    }
    Ok(children)
}

/// Makes `directory`. An existing one is not an error.
pub(super) fn make(directory: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(CgroupError::file("make", directory)),
    }
}

/// Makes `directory` after removing an earlier one of its name. A process in it is an error: two runs never
/// share a cgroup.
pub(super) fn make_anew(directory: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove(directory)?;
            fs::create_dir(directory).map_err(CgroupError::file("make", directory))
        }
        made => made.map_err(CgroupError::file("make", directory)),
    }
}

/// Removes the cgroup at `root` and all below it. A missing cgroup is not an error; a process in one of them
/// is.
pub(super) fn remove(root: &Path) -> Result<(), CgroupError> {
    remove_below(root).map_err(CgroupError::file("remove what is below", root))?;
    if_exists(fs::remove_dir(root)).map(drop).map_err(CgroupError::file("remove", root))
}

fn remove_below(root: &Path) -> io::Result<()> {
    let Some(mut here) = if_exists(open(root))? else { return Ok(()) };
    let mut way: Vec<CString> = Vec::new();
    loop {
        let children = children_of(&here, Some(NAMES_AT_ONCE))?;
        match children.iter().find(|child| remove_in(&here, child).is_err()) {
            // The cgroup has children, or a process: then removing it fails again after its children are
            // removed.
            Some(child) => {
                here = open_in(&here, child)?;
                way.push(child.clone());
            }
            None if children.is_empty() => {
                let Some(emptied) = way.pop() else { return Ok(()) };
                here = open_in(&here, c"..")?;
                remove_in(&here, &emptied)?;
            }
            None => {}
        }
    }
}

fn remove_in(directory: &OwnedFd, name: &CStr) -> io::Result<()> {
    match unlinkat(Some(directory.as_raw_fd()), name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Calls `visit` with the cgroup at `root` and with each cgroup below it that contains a process. v1 does not
/// report whether a cgroup does, so each cgroup is visited.
pub(super) fn walk(root: &Path, mut visit: impl FnMut(&OwnedFd)) {
    walk_up_to(root, usize::MAX, |directory| {
        visit(directory);
        true
    });
}

/// The walk of [`walk`], up to the first visit that returns false, or until there are more than `most` cgroups, also
/// those without a process. Returns whether it came to its end.
fn walk_up_to(root: &Path, most: usize, mut visit: impl FnMut(&OwnedFd) -> bool) -> bool {
    let Ok(mut here) = open(root) else { return true };
    // The cgroups that are still to be visited, for each level down to the current one.
    let mut left: Vec<Vec<CString>> = Vec::new();
    let mut found = 1;
    loop {
        if found > most || !visit(&here) {
            return false;
        }
        let mut children = children_of(&here, Some((most - found).saturating_add(1))).unwrap_or_default();
        found = found.saturating_add(children.len());
        children.retain(|child| open_in(&here, child).is_ok_and(|child| may_be_populated(&child)));
        left.push(children);
        loop {
            let Some(level) = left.last_mut() else { return found <= most };
            match level.pop() {
                Some(child) => {
                    // A cgroup that was removed meanwhile has no process.
                    if let Ok(below) = open_in(&here, &child) {
                        here = below;
                        break;
                    }
                }
                None => {
                    left.pop();
                    let Ok(above) = open_in(&here, c"..") else { return true };
                    here = above;
                }
            }
        }
    }
}

fn may_be_populated(directory: &OwnedFd) -> bool {
    let events = read_in(directory, c"cgroup.events");
    !events.is_ok_and(|text| keyed(&text, "populated") == Some(0))
}

/// The names of the cgroups in a directory; at most `most` of them.
fn children_of(directory: &OwnedFd, most: Option<usize>) -> io::Result<Vec<CString>> {
    let mut listed = Dir::openat(Some(directory.as_raw_fd()), c".", DIRECTORY, Mode::empty())?;
    let mut children = Vec::new();
    for entry in listed.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == Some(Type::Directory) && name != c"." && name != c".." {
            children.push(name.to_owned());
        }
        if most.is_some_and(|most| children.len() >= most) {
            break;
        }
    }
    Ok(children)
}

const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn open(directory: &Path) -> io::Result<OwnedFd> {
    Ok(fs::OpenOptions::new().read(true).custom_flags(DIRECTORY.bits()).open(directory)?.into())
}

fn open_in(directory: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    Ok(open_at(directory, name, DIRECTORY)?)
}

fn read_in(directory: &OwnedFd, name: &CStr) -> io::Result<String> {
    io::read_to_string(fs::File::from(open_at(directory, name, OFlag::O_RDONLY)?))
}

/// Writes a file of a cgroup, if the cgroup has it.
pub(super) fn write_in_if_there(directory: &OwnedFd, name: &CStr, text: &str) -> io::Result<()> {
    match open_at(directory, name, OFlag::O_WRONLY | OFlag::O_TRUNC) {
        Ok(opened) => io::Write::write_all(&mut fs::File::from(opened), text.as_bytes()),
        Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Kills every process in the v2 cgroup at `root` and below it.
pub(super) fn kill_all(root: &Path) -> Result<(), CgroupError> {
    let path = root.join("cgroup.kill");
    match fs::write(&path, "1") {
        Ok(()) => {
            kill_headless(root);
            Ok(())
        }
        Err(_) if !root.exists() => Ok(()),
        // Before Linux 5.14 the file does not exist, and cannot be created.
        Err(_) if !path.exists() => kill_each(root),
        Err(error) => Err(CgroupError::file("write", &path)(error)),
    }
}

/// How many processes are checked for an ended first thread. Others die meanwhile, and a cgroup that is not
/// empty is killed again.
const MAX_HEADLESS: usize = 1024;

/// How many descriptors of such processes are open at the same time.
const OPENED_AT_ONCE: usize = 64;

/// Kills processes whose first thread has ended while others continue: `cgroup.kill` signals only the first
/// thread, which no longer accepts signals.
pub fn kill_headless(root: &Path) {
    let headless: Vec<Pid> =
        processes(root).into_iter().take(MAX_HEADLESS).filter(|pid| is_zombie(*pid)).collect();
    for pids in headless.chunks(OPENED_AT_ONCE) {
        let opened: Vec<(Pid, OwnedFd)> =
            pids.iter().filter_map(|pid| Some((*pid, pidfd_open(*pid).ok()?))).collect();
        // The PID may have been reused before its descriptor was opened. The list is read once for all of
        // them, since for a cgroup with thousands of processes it takes the kernel milliseconds.
        let present = processes(root);
        for (_, process) in opened.iter().filter(|(pid, _)| present.contains(pid)) {
            // ESRCH: it has died.
            let _ = pidfd_send_signal(process, libc::SIGKILL);
        }
    }
}

/// Whether the first thread of a process has ended.
fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|fields| fields.starts_with(" Z"))
}

/// Kills every process in the cgroup by signals. The cgroup is frozen first, if the kernel can (5.2), so that
/// no process forks meanwhile; SIGKILL also ends a frozen process.
pub(super) fn kill_each(root: &Path) -> Result<(), CgroupError> {
    let frozen = freeze(root, true).is_ok();
    let result = (0..MAX_KILLS).try_for_each(|_| {
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

/// Freezes or thaws every process in the v2 cgroup at `root` and below it.
pub(super) fn freeze(root: &Path, frozen: bool) -> Result<(), CgroupError> {
    let path = root.join("cgroup.freeze");
    match fs::write(&path, if frozen { "1" } else { "0" }) {
        Err(_) if !root.exists() => Ok(()),
        written => written.map_err(CgroupError::file("write", &path)),
    }
}

/// The processes in the v2 cgroup at `root` and below it, with their PIDs in this PID namespace.
fn processes(root: &Path) -> Vec<Pid> {
    let mut found = Vec::new();
    walk(root, |directory| {
        let text = read_in(directory, c"cgroup.procs").unwrap_or_default();
        let pids = text.lines().filter_map(|line| line.parse().ok());
        // 0 is a process outside of this namespace, and to kill(2) it means our own process group.
        found.extend(pids.filter(|pid: &i32| *pid > 0).map(Pid::from_raw));
    });
    found
}

/// The processes of [`processes`], if they are at most `most`, in at most `most_cgroups` cgroups: a container without a
/// limit of processes can have as many as the machine.
pub(crate) fn processes_up_to(root: &Path, most: usize, most_cgroups: usize) -> Option<Vec<Pid>> {
    let mut found = Vec::new();
    let are_all = walk_up_to(root, most_cgroups, |directory| {
        let Ok(file) = open_at(directory, c"cgroup.procs", OFlag::O_RDONLY) else { return true };
        let lines = BufReader::new(fs::File::from(file)).lines();
        let pids = lines.map_while(Result::ok).filter_map(|line| line.parse().ok());
        // One more, to see whether there are too many.
        let room = (most - found.len()).saturating_add(1);
        found.extend(pids.filter(|pid: &i32| *pid > 0).map(Pid::from_raw).take(room));
        found.len() <= most
    });
    are_all.then_some(found)
}

/// Whether a process is in the v2 cgroup at `root` or below it; a missing cgroup has none.
pub(super) fn populated(root: &Path) -> Result<bool, CgroupError> {
    let path = root.join("cgroup.events");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(keyed(&text, "populated") != Some(0)),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(CgroupError::file("read", &path)(error)),
    }
}

/// Whether the error means that the cgroup was removed: its files do not open, or read as ENODEV.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
