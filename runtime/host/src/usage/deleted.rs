//! Measures files that processes of a pod hold and that have no name any more. What they take of a disk is found by no walk
//! over its files.

use std::ffi::OsStr;
use std::fs::{self, ReadDir};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use nodlet_core::sorted::SortedSet;

use super::{ENTRIES_PER_PART, MAX_ENTRIES, Unit};
use crate::cgroup::processes_up_to;

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
    /// Processes that are still to be looked at; `None` before the first part.
    processes: Option<Vec<Pid>>,
    /// The process that is being looked at.
    current: Option<Process>,
    known: SortedSet<(Device, u64)>,
    left: usize,
    usage: u64,
}

/// A process whose files are being looked at. Its directories are read one at a time: of threads, too, there may be as
/// many as the machine can have.
struct Process {
    pid: Pid,
    directory: PathBuf,
    /// The mount of its root.
    root: Option<u64>,
    /// Its threads, which can have descriptors of their own, and usually have not. `None` after the last one.
    threads: Option<ReadDir>,
    /// The directory of descriptors or mappings that is being read.
    files: Option<ReadDir>,
}

/// Major and minor number of a file system.
type Device = (u32, u32);

/// Of linux/stat.h.
const STATX_MNT_ID: u32 = 0x1000;

impl DeletedFiles {
    /// A measurement for the processes in the v2 cgroup `cgroup` and below it, of the files on the file system of
    /// `directory` or on the mount of a process's root, which is the writable layer of its container. Kernels before Linux
    /// 5.8 do not tell the mount.
    pub fn new(cgroup: PathBuf, directory: PathBuf, unit: Unit) -> DeletedFiles {
        DeletedFiles {
            cgroup,
            directory,
            unit,
            device: None,
            processes: None,
            current: None,
            known: SortedSet::new(),
            left: MAX_ENTRIES,
            usage: 0,
        }
    }

    /// Measures a part. Returns what all of them use, or `None` if there is more. What cannot be read does not count: its
    /// process may have ended meanwhile. More descriptors, threads or processes than anybody needs use more than any limit.
    pub fn part(&mut self) -> Option<u64> {
        if self.processes.is_none() {
            self.device = status(&self.directory).map(|found| device(&found));
            self.processes = processes_up_to(&self.cgroup, MAX_PROCESSES, MAX_CGROUPS);
            if self.processes.is_none() {
                return Some(u64::MAX);
            }
        }
        for _ in 0..ENTRIES_PER_PART {
            if self.left == 0 {
                return Some(u64::MAX);
            }
            self.left -= 1;
            let Some(process) = &mut self.current else {
                let Some(next) = self.processes.as_mut().and_then(Vec::pop) else { return Some(self.usage) };
                self.current = Some(Process::open(next));
                continue;
            };
            let root = process.root;
            match process.next() {
                Step::File(path) => self.entry(&path, root),
                Step::Directory => {}
                Step::End => self.current = None,
            }
        }
        None
    }

    fn entry(&mut self, path: &Path, root: Option<u64>) {
        // This reads names in the kernel's memory, and asks no file system.
        let leads_nowhere = fs::read_link(path).is_ok_and(|to| {
            to.as_os_str().as_bytes().starts_with(b"/") && to.as_os_str().as_bytes().ends_with(DELETED)
        });
        let Some(found) = leads_nowhere.then(|| status(path)).flatten() else { return };
        let file = (device(&found), found.stx_ino);
        // A file of an overlay has a device number of its own.
        let is_measured = Some(file.0) == self.device || (root.is_some() && mount(&found) == root);
        if found.stx_nlink > 0 || !is_measured || self.known.contains(&file) {
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
    fn open(process: Pid) -> Process {
        let directory = PathBuf::from(format!("/proc/{process}"));
        let root = status(&directory.join("root")).and_then(|found| mount(&found));
        let threads = fs::read_dir(directory.join("task")).ok();
        Process { pid: process, directory, root, threads, files: None }
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
        let Some(threads) = &mut self.threads else { return Step::End };
        let directory = match threads.next() {
            Some(Ok(thread)) if self.shares_descriptors(&thread.file_name()) => return Step::Directory,
            Some(Ok(thread)) => thread.path().join("fd"),
            Some(Err(_)) => return Step::Directory,
            None => {
                self.threads = None;
                self.directory.join("map_files")
            }
        };
        self.files = fs::read_dir(directory).ok();
        Step::Directory
    }

    /// Whether a thread has the table of descriptors of the first thread, in which these were found. False if the kernel
    /// does not say it (without `CONFIG_KCMP`): each descriptor then takes an entry in each thread.
    fn shares_descriptors(&self, thread: &OsStr) -> bool {
        const KCMP_FILES: libc::c_int = 2;
        let first = self.pid.as_raw();
        let Some(thread) = thread.to_str().and_then(|thread| thread.parse::<libc::pid_t>().ok()) else {
            return false;
        };
        // SAFETY: the call takes numbers alone.
        thread != first && unsafe { libc::syscall(libc::SYS_kcmp, first, thread, KCMP_FILES, 0, 0) } == 0
    }
}

fn device(found: &libc::statx) -> Device {
    (found.stx_dev_major, found.stx_dev_minor)
}

/// The ID of the mount on which a file was opened.
fn mount(found: &libc::statx) -> Option<u64> {
    (found.stx_mask & STATX_MNT_ID != 0).then_some(found.stx_mnt_id)
}

/// The status of a file as the kernel knows it: a file system of a container is not asked, since it may never answer.
fn status(path: &Path) -> Option<libc::statx> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_STATX_DONT_SYNC, libc::STATX_BASIC_STATS | STATX_MNT_ID);
    // SAFETY: a path that ends with NUL, and room for the structure that the kernel writes.
    let got = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, found.as_mut_ptr()) };
    // SAFETY: any bytes are a valid structure, and zeros were there before.
    (got == 0).then(|| unsafe { found.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Child, Command, Stdio};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A directory of a test, which stands for the cgroup of a pod, too: its `cgroup.procs` names processes.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let root = std::env::temp_dir().join(format!("nodlet-deleted-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("cgroup")).unwrap();
            Scratch(root)
        }

        fn contains(&self, processes: &[u32]) {
            let lines: String = processes.iter().map(|process| format!("{process}\n")).collect();
            fs::write(self.0.join("cgroup/cgroup.procs"), lines).unwrap();
        }

        fn file(&self, mib: usize) -> File {
            unnamed(&self.0.join("file"), mib)
        }

        fn measurement(&self, unit: Unit) -> DeletedFiles {
            DeletedFiles::new(self.0.join("cgroup"), self.0.clone(), unit)
        }

        fn measure(&self, unit: Unit) -> u64 {
            end(self.measurement(unit))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A file of so many MiB without a name.
    fn unnamed(path: &Path, mib: usize) -> File {
        fs::write(path, vec![7; mib << 20]).unwrap();
        let file = File::open(path).unwrap();
        fs::remove_file(path).unwrap();
        file
    }

    fn end(mut measurement: DeletedFiles) -> u64 {
        std::iter::from_fn(|| Some(measurement.part())).flatten().next().expect("it ends")
    }

    /// A process with these files, until it is dropped.
    struct Holder(Child);

    impl Holder {
        fn of(input: impl Into<Stdio>, output: impl Into<Stdio>, errors: impl Into<Stdio>) -> Holder {
            let mut command = Command::new("sleep");
            Holder(command.arg("600").stdin(input).stdout(output).stderr(errors).spawn().unwrap())
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn files_without_a_name_count_once_and_others_do_not() {
        let scratch = Scratch::new("once");
        assert_eq!(scratch.measure(Unit::Bytes), 0, "a cgroup that is gone");
        let (one, two) = (scratch.file(1), scratch.file(2));
        let named = scratch.0.join("named (deleted)");
        fs::write(&named, vec![7; 4 << 20]).unwrap();
        let first = Holder::of(one.try_clone().unwrap(), one, File::open(named).unwrap());
        // A file of another file system.
        let elsewhere = format!("/dev/shm/nodlet-deleted-{}", std::process::id());
        let second = Holder::of(Stdio::null(), two, unnamed(Path::new(&elsewhere), 8));
        scratch.contains(&[first.0.id()]);
        assert_eq!(scratch.measure(Unit::Bytes), MIB);
        scratch.contains(&[first.0.id(), second.0.id(), first.0.id()]);
        assert_eq!((scratch.measure(Unit::Bytes), scratch.measure(Unit::Inodes)), (3 * MIB, 2));
        drop(second);
        assert_eq!(scratch.measure(Unit::Bytes), MIB);
    }

    #[test]
    fn processes_of_cgroups_below_count_and_more_cgroups_than_the_limit_use_more_than_any_limit() {
        let scratch = Scratch::new("below");
        let holder = Holder::of(scratch.file(1), Stdio::null(), Stdio::null());
        let below = scratch.0.join("cgroup/below");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("cgroup.procs"), holder.0.id().to_string()).unwrap();
        assert_eq!(scratch.measure(Unit::Bytes), MIB);
        for number in 2..MAX_CGROUPS {
            fs::create_dir(below.join(number.to_string())).unwrap();
        }
        assert_eq!(scratch.measure(Unit::Bytes), MIB);
        // A cgroup that would not be visited counts, too.
        let empty = below.join("empty");
        fs::create_dir(&empty).unwrap();
        fs::write(empty.join("cgroup.events"), "populated 0").unwrap();
        assert_eq!(scratch.measurement(Unit::Bytes).part(), Some(u64::MAX));
    }

    #[test]
    fn descriptors_that_threads_share_take_one_entry_and_their_own_ones_count() {
        let scratch = Scratch::new("threads");
        let (shared, own) = (scratch.file(1), scratch.file(64));
        let shared: Vec<File> = (0..200).map(|_| shared.try_clone().unwrap()).collect();
        let ready = std::sync::Barrier::new(102);
        let done = std::sync::Barrier::new(102);
        let wait = || {
            ready.wait();
            done.wait();
        };
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(wait);
            }
            scope.spawn(|| {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES).unwrap();
                wait();
            });
            ready.wait();
            // The table of that thread still has it.
            drop(own);
            scratch.contains(&[std::process::id()]);
            let few = DeletedFiles { left: 4000, ..scratch.measurement(Unit::Bytes) };
            let usage = end(few);
            done.wait();
            // Other tests in this process have files of some MiB.
            assert!((65 * MIB..90 * MIB).contains(&usage), "{usage} of {} descriptors", shared.len());
        });
    }

    #[test]
    fn processes_are_looked_at_in_parts_and_more_than_the_limit_use_more_than_any_limit() {
        let scratch = Scratch::new("many");
        let holder = Holder::of(scratch.file(1), Stdio::null(), Stdio::null());
        // Each needs a step itself, and others for its thread and its files.
        scratch.contains(&vec![holder.0.id(); 1000]);
        let mut measurement = scratch.measurement(Unit::Bytes);
        assert_eq!(measurement.part(), None);
        let left = measurement.processes.as_ref().map_or(0, Vec::len);
        assert!(left > 1000 - ENTRIES_PER_PART, "{left} of 1000 are left");
        assert_eq!(end(measurement), MIB);
        let short = DeletedFiles { left: 300, ..scratch.measurement(Unit::Bytes) };
        assert_eq!(end(short), u64::MAX);
        scratch.contains(&vec![holder.0.id(); MAX_PROCESSES]);
        assert_eq!(scratch.measurement(Unit::Bytes).part(), None);
        scratch.contains(&vec![holder.0.id(); MAX_PROCESSES + 1]);
        assert_eq!(scratch.measurement(Unit::Bytes).part(), Some(u64::MAX));
    }
}
