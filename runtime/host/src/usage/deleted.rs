//! Measures files that processes of a pod hold and that have no name any more. What they take of a disk is found by no walk
//! over its files.

use std::fs::{self, ReadDir};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::OVERLAYFS_SUPER_MAGIC;
use nix::unistd::Pid;
use nodlet_core::sorted::SortedSet;
use nodlet_kernel::file::handle_type;
use nodlet_kernel::process::share_descriptors;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

use super::{ENTRIES_PER_PART, MAX_ENTRIES, Unit};
use crate::cgroup::processes_up_to;
use crate::volume::quota;

/// Files that count once, however many descriptors lead to them. Further files count for each descriptor.
const MAX_KNOWN: usize = 4096;

/// Processes of a pod, and cgroups that its containers made. A pod with more uses more than any limit: it could hide its
/// files behind others.
const MAX_PROCESSES: usize = 65_536;
const MAX_CGROUPS: usize = 4096;

/// What a descriptor's link in /proc ends with if its file has no name.
const DELETED: &[u8] = b" (deleted)";

/// A measurement of the files without a name that the processes of a cgroup have open or mapped, in parts.
pub struct DeletedFiles {
    cgroup: PathBuf,
    /// A directory of the disk that is measured.
    directory: PathBuf,
    unit: Unit,
    /// The file system of `directory`.
    device: Option<Device>,
    /// Volumes that a project quota measures, and their projects.
    volumes: Vec<PathBuf>,
    projects: Vec<u32>,
    /// Processes that are still to be looked at; `None` before the first part.
    processes: Option<Vec<Pid>>,
    /// The time at which they were found, in clock ticks since the boot.
    listed_at: u64,
    /// The process that is being looked at.
    current: Option<Process>,
    known: SortedSet<(Device, u64)>,
    budget: usize,
    usage: u64,
}

/// A process whose files are being looked at. Its directories are read one at a time: of threads, too, there may be as
/// many as the machine can have.
struct Process {
    pid: Pid,
    /// Its threads, which can have descriptors of their own, and usually have not. `None` after the last one. The first
    /// thread may have ended before the others; it has neither descriptors nor memory then.
    threads: Option<ReadDir>,
    /// The thread whose mappings are still to be read.
    unmapped: Option<libc::pid_t>,
    /// The thread whose mappings are being read.
    mapped: Option<libc::pid_t>,
    /// Whether all mappings were read. The threads of a process share its memory.
    has_mappings: bool,
    /// The last thread whose descriptors were read.
    listed: Option<libc::pid_t>,
    /// The directory of descriptors or mappings that is being read.
    files: Option<ReadDir>,
}

/// Major and minor number of a file system.
type Device = (u32, u32);

impl DeletedFiles {
    /// A measurement for the processes in the v2 cgroup `cgroup` and below it, of the files on the file system of
    /// `directory` or on an overlay. A pod without privileges reaches no overlay but those of its containers; it can leave
    /// their mount by a mount namespace of its own or by chroot(2).
    pub fn new(cgroup: PathBuf, directory: PathBuf, unit: Unit) -> DeletedFiles {
        DeletedFiles {
            cgroup,
            directory,
            unit,
            volumes: Vec::new(),
            projects: Vec::new(),
            listed_at: 0,
            device: None,
            processes: None,
            current: None,
            known: SortedSet::new(),
            budget: MAX_ENTRIES,
            usage: 0,
        }
    }

    /// Leaves out the files of a volume that may have a project quota ([`quota::account`]): its quota counts them.
    pub fn leave_out_project(&mut self, directory: PathBuf) {
        self.volumes.push(directory);
    }

    /// Measures a part. Returns what all of them use, or `None` if there is more. What cannot be read does not count: its
    /// process may have ended meanwhile. More descriptors, threads or processes than anybody needs use more than any limit.
    pub fn part(&mut self) -> Option<u64> {
        if self.processes.is_none() {
            self.device = status(&self.directory).map(|found| device(&found));
            self.projects = self.volumes.iter().filter_map(|volume| quota::project(volume)).collect();
            self.processes = processes_up_to(&self.cgroup, MAX_PROCESSES, MAX_CGROUPS);
            self.listed_at = ticks_since_boot();
            if self.processes.is_none() {
                return Some(u64::MAX);
            }
        }
        for _ in 0..ENTRIES_PER_PART {
            if self.budget == 0 {
                return Some(u64::MAX);
            }
            self.budget -= 1;
            let Some(process) = &mut self.current else {
                let Some(next) = self.processes.as_mut().and_then(Vec::pop) else { return Some(self.usage) };
                self.current = Some(Process::open(next));
                continue;
            };
            match process.next() {
                Step::File(path) => self.entry(&path),
                Step::Directory => {}
                Step::End => self.current = None,
            }
        }
        None
    }

    fn entry(&mut self, path: &Path) {
        // This reads names in the kernel's memory, and asks no file system.
        let may_be_deleted = match fs::read_link(path).map(PathBuf::into_os_string) {
            Ok(to) => to.as_bytes().starts_with(b"/") && to.as_bytes().ends_with(DELETED),
            // The name of a deleted file, too, has those of its directories.
            Err(error) => error.raw_os_error() == Some(libc::ENAMETOOLONG),
        };
        let Some(found) = may_be_deleted.then(|| status(path)).flatten() else { return };
        let file = (device(&found), found.stx_ino);
        if found.stx_nlink > 0 || self.known.contains(&file) {
            return;
        }
        // A file of an overlay has a device number of its own, which differs from that of its root directory.
        let is_on_disk = Some(file.0) == self.device;
        let is_measured = if is_on_disk { !self.has_quota(path, &found) } else { is_on_overlay(path) };
        // Last: its ID may have been given to a process of another pod at any time before.
        let is_of_process = |process: &Process| process.has_run_since(self.listed_at);
        if !is_measured || !self.current.as_ref().is_some_and(is_of_process) {
            return;
        }
        if self.known.len() < MAX_KNOWN {
            self.known.insert(file);
        }
        self.usage = self.usage.saturating_add(match self.unit {
            Unit::Bytes => found.stx_blocks.saturating_mul(512),
            Unit::Inodes => 1,
        });
    }

    /// Whether the quota of a volume counts a file of the disk.
    fn has_quota(&self, path: &Path, found: &Statx) -> bool {
        let is_regular = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        !self.projects.is_empty()
            && is_regular
            && quota::project_of_file(path).is_some_and(|project| self.projects.contains(&project))
    }
}

/// What was found of a process.
enum Step {
    /// A descriptor or a mapping.
    File(PathBuf),
    /// A directory begins or ends.
    Directory,
    /// There is nothing more.
    End,
}

impl Process {
    fn open(pid: Pid) -> Process {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok();
        Process { pid, threads, unmapped: None, mapped: None, has_mappings: false, listed: None, files: None }
    }

    fn next(&mut self) -> Step {
        if let Some(files) = &mut self.files {
            match files.next() {
                Some(Ok(file)) => return Step::File(file.path()),
                Some(Err(_)) => {}
                None => self.files = None,
            }
            return Step::Directory;
        }
        if let Some(thread) = self.mapped.take() {
            // The mappings of a thread that has ended meanwhile cannot be read.
            self.has_mappings = has_memory(thread);
        }
        if let Some(thread) = self.unmapped.take().filter(|_| !self.has_mappings) {
            // The directory of a thread among the processes, which is not listed, has them; that below `task` has not.
            self.files = fs::read_dir(format!("/proc/{thread}/map_files")).ok();
            self.mapped = Some(thread);
            return Step::Directory;
        }
        let Some(threads) = &mut self.threads else { return Step::End };
        let thread = threads.next();
        if thread.is_none() {
            self.threads = None;
        }
        let Some(Ok(thread)) = thread else { return Step::Directory };
        self.unmapped = thread.file_name().to_str().and_then(|id| id.parse().ok());
        if !self.unmapped.is_some_and(|id| self.shares_descriptors(id)) {
            self.files = fs::read_dir(thread.path().join("fd")).ok();
            self.listed = self.unmapped;
        }
        Step::Directory
    }

    /// Whether a thread has the table of descriptors of the thread whose descriptors were read last. False if the kernel
    /// does not say it (without `CONFIG_KCMP`): each descriptor then takes an entry in each thread.
    fn shares_descriptors(&self, thread: libc::pid_t) -> bool {
        self.listed.is_some_and(|listed| share_descriptors(Pid::from_raw(listed), Pid::from_raw(thread)))
    }

    /// Whether the process with this ID is the one that had it at a time: it was not started later. Mappings are read by
    /// the ID of a thread, which must be one of this process.
    fn has_run_since(&self, ticks: u64) -> bool {
        let process = self.pid;
        // The name of the program, in parentheses, may have any bytes; the start time is the 22nd field.
        let stat = fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split_ascii_whitespace());
        let started_at = fields.and_then(|mut fields| fields.nth(19)?.parse::<u64>().ok());
        let is_thread = |thread| Path::new(&format!("/proc/{process}/task/{thread}")).exists();
        started_at.is_some_and(|started_at| started_at <= ticks) && self.mapped.is_none_or(is_thread)
    }
}

/// Whether a thread has memory. One that has ended has none.
fn has_memory(thread: libc::pid_t) -> bool {
    let exe = fs::read_link(format!("/proc/{thread}/exe"));
    exe.map_or_else(|error| error.raw_os_error() == Some(libc::ENAMETOOLONG), |_| true)
}

/// The time since the boot in the unit of the start times in `/proc`.
fn ticks_since_boot() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
    let (Ok(now), Ok(Some(ticks))) = (now, ticks) else { return u64::MAX };
    let ticks = ticks as u64;
    now.tv_sec() as u64 * ticks + now.tv_nsec() as u64 * ticks / 1_000_000_000
}

fn device(found: &Statx) -> Device {
    (found.stx_dev_major, found.stx_dev_minor)
}

/// The status of a file as the kernel knows it: a file system of a container is not asked, since it may never answer.
fn status(path: &Path) -> Option<Statx> {
    statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).ok()
}

/// `AT_HANDLE_FID` of linux/fcntl.h: a handle that need not lead to its file. Since Linux 6.5, and of an overlay since 6.6.
const FOR_IDENTITY: i32 = 0x200;

/// The types of handles of an overlay, which no other file system has.
const OVERLAY_HANDLES: [i32; 2] = [0xfb, 0xf8];

/// Whether a file is on an overlay. The type of its file system would say so, but statfs(2) asks FUSE, which may never
/// answer. A handle asks nobody: FUSE has handles on all kernels, and an overlay before Linux 6.6 usually has none.
fn is_on_overlay(path: &Path) -> bool {
    if let Ok(kind) = handle_type(path, FOR_IDENTITY).or_else(|_| handle_type(path, 0)) {
        return OVERLAY_HANDLES.contains(&kind);
    }
    nix::sys::statfs::statfs(path).is_ok_and(|found| found.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
}

#[cfg(test)]
mod tests;
