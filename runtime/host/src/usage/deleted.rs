//! Measures files that processes of a pod hold and that have no name any more. What they take of a disk is found by no walk
//! over its files.

use std::ffi::{CStr, CString};
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
    left: usize,
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
            left: MAX_ENTRIES,
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
            self.device = c_path(&self.directory).and_then(|path| status(&path)).map(|found| device(&found));
            self.projects = self.volumes.iter().filter_map(|volume| quota::project(volume)).collect();
            self.processes = processes_up_to(&self.cgroup, MAX_PROCESSES, MAX_CGROUPS);
            self.listed_at = ticks_since_boot();
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
        let may_be_deleted = match fs::read_link(path) {
            Ok(to) => {
                to.as_os_str().as_bytes().starts_with(b"/") && to.as_os_str().as_bytes().ends_with(DELETED)
            }
            // The name of a deleted file, too, has those of its directories.
            Err(error) => error.raw_os_error() == Some(libc::ENAMETOOLONG),
        };
        let Some(path) = may_be_deleted.then(|| c_path(path)).flatten() else { return };
        let Some(found) = status(&path) else { return };
        let file = (device(&found), found.stx_ino);
        if found.stx_nlink > 0 || self.known.contains(&file) {
            return;
        }
        // A file of an overlay has a device number of its own, which differs from that of its root directory.
        let is_measured = match Some(file.0) == self.device {
            true => !self.has_quota(&path, &found),
            false => is_on_overlay(&path),
        };
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
    fn has_quota(&self, path: &CStr, found: &Statx) -> bool {
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
    fn open(process: Pid) -> Process {
        let threads = fs::read_dir(format!("/proc/{process}/task")).ok();
        Process {
            pid: process,
            threads,
            unmapped: None,
            mapped: None,
            has_mappings: false,
            listed: None,
            files: None,
        }
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
        let thread = match threads.next() {
            Some(Ok(thread)) => thread,
            Some(Err(_)) => return Step::Directory,
            None => {
                self.threads = None;
                return Step::Directory;
            }
        };
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
    match fs::read_link(format!("/proc/{thread}/exe")) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(libc::ENAMETOOLONG),
    }
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

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

/// The status of a file as the kernel knows it: a file system of a container is not asked, since it may never answer.
fn status(path: &CStr) -> Option<Statx> {
    statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).ok()
}

/// `AT_HANDLE_FID` of linux/fcntl.h: a handle that need not lead to its file. Since Linux 6.5, and of an overlay since 6.6.
const FOR_IDENTITY: i32 = 0x200;

/// The types of handles of an overlay, which no other file system has.
const OVERLAY_HANDLES: [i32; 2] = [0xfb, 0xf8];

/// Whether a file is on an overlay. The type of its file system would say so, but statfs(2) asks FUSE, which may never
/// answer. A handle asks nobody: FUSE has handles on all kernels, and an overlay before Linux 6.6 usually has none.
fn is_on_overlay(path: &CStr) -> bool {
    if let Ok(kind) = handle_type(path, FOR_IDENTITY).or_else(|_| handle_type(path, 0)) {
        return OVERLAY_HANDLES.contains(&kind);
    }
    nix::sys::statfs::statfs(path).is_ok_and(|found| found.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
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
    fn a_file_counts_whose_path_was_longer_than_any_path() {
        use nix::fcntl::{OFlag, openat};
        use nix::sys::stat::{Mode, mkdirat};
        use nix::unistd::{UnlinkatFlags, unlinkat};
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        let owned = |opened: nix::Result<i32>| unsafe { OwnedFd::from_raw_fd(opened.unwrap()) };
        let scratch = Scratch::new("deep");
        let name = "d".repeat(250);
        let mut directories = vec![OwnedFd::from(File::open(&scratch.0).unwrap())];
        for _ in 0..20 {
            let last = Some(directories.last().unwrap().as_raw_fd());
            mkdirat(last, name.as_str(), Mode::S_IRWXU).unwrap();
            directories.push(owned(openat(
                last,
                name.as_str(),
                OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
                Mode::empty(),
            )));
        }
        let deepest = Some(directories.pop().unwrap());
        let deepest = deepest.as_ref().map(AsRawFd::as_raw_fd);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_CLOEXEC;
        let mut file = File::from(owned(openat(deepest, "file", flags, Mode::S_IRWXU)));
        std::io::Write::write_all(&mut file, &vec![7; 1 << 20]).unwrap();
        unlinkat(deepest, "file", UnlinkatFlags::NoRemoveDir).unwrap();
        while let Some(directory) = directories.pop() {
            unlinkat(Some(directory.as_raw_fd()), name.as_str(), UnlinkatFlags::RemoveDir).unwrap();
        }
        let holder = Holder::of(file, Stdio::null(), Stdio::null());
        scratch.contains(&[holder.0.id()]);
        assert_eq!(scratch.measure(Unit::Bytes), MIB);
    }

    /// A process whose first thread has ended, until it is dropped. Another thread has this file open and what the test has
    /// mapped. The name of its program is no UTF-8, and looks like more fields of its line in `/proc`.
    struct Headless(Pid);

    impl Headless {
        fn of(file: &File) -> Headless {
            use std::os::fd::AsRawFd;
            extern "C" fn wait(_: *mut libc::c_void) -> *mut libc::c_void {
                loop {
                    // SAFETY: the call takes nothing.
                    unsafe { libc::pause() };
                }
            }
            let file = file.as_raw_fd();
            // SAFETY: the child allocates nothing in Rust, and never returns.
            let child = unsafe {
                let child = libc::fork();
                if child == 0 {
                    let mut thread = std::mem::zeroed::<libc::pthread_t>();
                    let is_ready = libc::prctl(libc::PR_SET_NAME, c"\xff) Z 1".as_ptr()) == 0
                        && libc::dup2(file, 0) == 0
                        && libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) == 0
                        && libc::pthread_create(&mut thread, std::ptr::null(), wait, std::ptr::null_mut())
                            == 0;
                    // Of this thread alone.
                    libc::syscall(libc::SYS_exit, i32::from(!is_ready));
                }
                child
            };
            assert!(child > 0);
            let started = std::time::Instant::now();
            let status = || fs::read(format!("/proc/{child}/status")).unwrap_or_default();
            let status = || String::from_utf8_lossy(&status()).into_owned();
            while !status().contains("State:\tZ") {
                assert!(started.elapsed().as_secs() < 60, "{}", status());
                std::thread::yield_now();
            }
            Headless(Pid::from_raw(child))
        }

        fn id(&self) -> u32 {
            self.0.as_raw().unsigned_abs()
        }
    }

    impl Drop for Headless {
        fn drop(&mut self) {
            let _ = nix::sys::signal::kill(self.0, nix::sys::signal::SIGKILL);
            let _ = nix::sys::wait::waitpid(self.0, None);
        }
    }

    #[test]
    fn files_of_a_process_whose_first_thread_has_ended_count() {
        let scratch = Scratch::new("headless");
        let open = Headless::of(&scratch.file(1));
        scratch.contains(&[open.id()]);
        assert_eq!(scratch.measure(Unit::Bytes), MIB);
        let file = scratch.file(2);
        let length = 2 << 20;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping, at which nobody looks.
        let mapping = unsafe {
            libc::mmap(
                none,
                length,
                libc::PROT_READ,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            )
        };
        assert_ne!(mapping, libc::MAP_FAILED);
        let mapped = Headless::of(&File::open("/dev/null").unwrap());
        // SAFETY: it was mapped above with this length.
        assert_eq!(unsafe { libc::munmap(mapping, length) }, 0);
        drop(file);
        scratch.contains(&[mapped.id()]);
        assert_eq!(scratch.measure(Unit::Bytes), 2 * MIB);
        scratch.contains(&[open.id(), mapped.id()]);
        assert_eq!(scratch.measure(Unit::Bytes), 3 * MIB);
    }

    #[test]
    fn files_of_an_overlay_count_whatever_the_root_of_their_process_is_and_those_in_memory_do_not() {
        use nix::mount::{MsFlags, mount};
        let scratch = Scratch::new("overlay");
        let own_mounts = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("this test needs root");
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let place = |name: &str| scratch.0.join(name);
            for name in ["lower", "upper", "work", "merged"] {
                fs::create_dir(place(name)).unwrap();
            }
            // A layer is on a file system of its own.
            mount(none, &place("lower"), Some("tmpfs"), MsFlags::empty(), none).unwrap();
            fs::write(place("lower/layer"), "of the image").unwrap();
            let options = format!(
                "lowerdir={},upperdir={},workdir={}",
                place("lower").display(),
                place("upper").display(),
                place("work").display()
            );
            mount(
                Some("overlay"),
                &place("merged"),
                Some("overlay"),
                MsFlags::empty(),
                Some(options.as_str()),
            )
            .unwrap();
            let files = [unnamed(&place("merged/new"), 1), unnamed(&place("merged/layer"), 2)];
            let in_memory = unnamed(&place("lower/other"), 4);
            let [one, two] = files;
            Holder::of(one, two, in_memory)
        };
        let holder = std::thread::scope(|scope| scope.spawn(own_mounts).join()).unwrap();
        scratch.contains(&[holder.0.id()]);
        assert_eq!((scratch.measure(Unit::Bytes), scratch.measure(Unit::Inodes)), (3 * MIB, 2));
        let memory =
            nix::sys::memfd::memfd_create(c"memory", nix::sys::memfd::MemFdCreateFlag::empty()).unwrap();
        let mut memory = File::from(memory);
        std::io::Write::write_all(&mut memory, &vec![7; 1 << 20]).unwrap();
        let holder = Holder::of(memory, Stdio::null(), Stdio::null());
        scratch.contains(&[holder.0.id()]);
        assert_eq!(scratch.measure(Unit::Bytes), 0);
    }

    /// `struct clone_args` of linux/sched.h.
    #[repr(C)]
    #[derive(Default)]
    struct CloneArguments {
        words: [u64; 8],
        set_tid: u64,
        set_tid_size: u64,
    }

    #[test]
    fn files_of_a_process_that_got_the_id_of_an_ended_one_do_not_count() {
        let scratch = Scratch::new("reused");
        let (innocent, kept) = (Holder::of(Stdio::null(), Stdio::null(), Stdio::null()), scratch.file(1));
        let id = innocent.0.id();
        let other = Holder::of(scratch.file(2), Stdio::null(), Stdio::null());
        // The last one is looked at first, and takes some parts.
        let mut processes = vec![id];
        processes.extend(vec![other.0.id(); 1000]);
        scratch.contains(&processes);
        let mut measurement = scratch.measurement(Unit::Bytes);
        assert_eq!(measurement.part(), None);
        let listed = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
        drop(innocent);
        // Start times are known to a hundredth of a second.
        let now = || nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
        while now() - listed < nix::sys::time::TimeSpec::new(0, 20_000_000) {
            std::thread::yield_now();
        }
        let wanted = [libc::pid_t::try_from(id).unwrap()];
        let arguments = CloneArguments {
            words: [0, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0],
            set_tid: wanted.as_ptr() as u64,
            set_tid_size: 1,
        };
        // SAFETY: without a stack of its own, this forks; the child allocates nothing, and never returns.
        let hog = unsafe {
            let child = libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>());
            if child == 0 {
                loop {
                    libc::pause();
                }
            }
            child
        };
        assert_eq!(hog, i64::from(id), "{} (this test needs root)", std::io::Error::last_os_error());
        let hog = Headless(Pid::from_raw(wanted[0]));
        assert!(
            fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten().any(|entry| {
                use std::os::unix::fs::MetadataExt;
                let (of_hog, of_test) = (fs::metadata(entry.path()), kept.metadata().unwrap());
                of_hog.is_ok_and(|found| found.ino() == of_test.ino() && found.dev() == of_test.dev())
            }),
            "the process has no file"
        );
        assert_eq!(end(measurement), 2 * MIB);
        scratch.contains(&[hog.id()]);
        assert!(scratch.measure(Unit::Bytes) >= MIB);
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
