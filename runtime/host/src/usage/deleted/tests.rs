use std::fs::File;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

/// A directory of a test, which stands for the cgroup of a pod, too: its `cgroup.procs` names processes.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("cgroup")).unwrap();
        Scratch(root)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn contains(&self, processes: &[u32]) {
        let lines: String = processes.iter().map(|process| format!("{process}\n")).collect();
        fs::write(self.path("cgroup/cgroup.procs"), lines).unwrap();
    }

    fn file(&self, mib: usize) -> File {
        unnamed(&self.path("file"), mib)
    }

    fn measurement(&self, unit: Unit) -> DeletedFiles {
        DeletedFiles::new(self.path("cgroup"), self.path(""), unit)
    }

    fn measure(&self, unit: Unit) -> u64 {
        end(self.measurement(unit))
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
    let scratch = Scratch::new();
    assert_eq!(scratch.measure(Unit::Bytes), 0, "a cgroup that is gone");
    let (one, two) = (scratch.file(1), scratch.file(2));
    let named = scratch.path("named (deleted)");
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
    let scratch = Scratch::new();
    let name = "d".repeat(250);
    let mut directories = vec![OwnedFd::from(File::open(scratch.0.path()).unwrap())];
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
                    && libc::pthread_create(&mut thread, std::ptr::null(), wait, std::ptr::null_mut()) == 0;
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
    let scratch = Scratch::new();
    let open = Headless::of(&scratch.file(1));
    scratch.contains(&[open.id()]);
    assert_eq!(scratch.measure(Unit::Bytes), MIB);
    let file = scratch.file(2);
    let length = 2 << 20;
    let none = std::ptr::null_mut();
    // SAFETY: a new mapping, at which nobody looks.
    let mapping = unsafe {
        libc::mmap(none, length, libc::PROT_READ, libc::MAP_SHARED, std::os::fd::AsRawFd::as_raw_fd(&file), 0)
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
    let scratch = Scratch::new();
    let own_mounts = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("this test needs root");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let place = |name: &str| scratch.path(name);
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
        mount(Some("overlay"), &place("merged"), Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .unwrap();
        let files = [unnamed(&place("merged/new"), 1), unnamed(&place("merged/layer"), 2)];
        let in_memory = unnamed(&place("lower/other"), 4);
        let [one, two] = files;
        Holder::of(one, two, in_memory)
    };
    let holder = std::thread::scope(|scope| scope.spawn(own_mounts).join()).unwrap();
    scratch.contains(&[holder.0.id()]);
    assert_eq!((scratch.measure(Unit::Bytes), scratch.measure(Unit::Inodes)), (3 * MIB, 2));
    let memory = nix::sys::memfd::memfd_create(c"memory", nix::sys::memfd::MemFdCreateFlag::empty()).unwrap();
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
    let scratch = Scratch::new();
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
    let scratch = Scratch::new();
    let holder = Holder::of(scratch.file(1), Stdio::null(), Stdio::null());
    let below = scratch.path("cgroup/below");
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
    let scratch = Scratch::new();
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
        let few = DeletedFiles { budget: 4000, ..scratch.measurement(Unit::Bytes) };
        let usage = end(few);
        done.wait();
        // Other tests in this process have files of some MiB.
        assert!((65 * MIB..90 * MIB).contains(&usage), "{usage} of {} descriptors", shared.len());
    });
}

#[test]
fn processes_are_looked_at_in_parts_and_more_than_the_limit_use_more_than_any_limit() {
    let scratch = Scratch::new();
    let holder = Holder::of(scratch.file(1), Stdio::null(), Stdio::null());
    // Each needs a step itself, and others for its thread and its files.
    scratch.contains(&vec![holder.0.id(); 1000]);
    let mut measurement = scratch.measurement(Unit::Bytes);
    assert_eq!(measurement.part(), None);
    let left = measurement.processes.as_ref().map_or(0, Vec::len);
    assert!(left > 1000 - ENTRIES_PER_PART, "{left} of 1000 are left");
    assert_eq!(end(measurement), MIB);
    let short = DeletedFiles { budget: 300, ..scratch.measurement(Unit::Bytes) };
    assert_eq!(end(short), u64::MAX);
    scratch.contains(&vec![holder.0.id(); MAX_PROCESSES]);
    assert_eq!(scratch.measurement(Unit::Bytes).part(), None);
    scratch.contains(&vec![holder.0.id(); MAX_PROCESSES + 1]);
    assert_eq!(scratch.measurement(Unit::Bytes).part(), Some(u64::MAX));
}
