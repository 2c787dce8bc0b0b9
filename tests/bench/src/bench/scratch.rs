//! The environment of the programs with which nodlet is compared: one directory in `/tmp`, the containers'
//! clocks, and a view of the machine in which crun can start.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::time::{ClockId, clock_gettime};
use nodlet_build::task::{Outcome, TaskError, line_of};

/// How long a container may take to report that it runs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The scratch directory. Its path is short, because it is part of sockets' paths.
pub(super) struct Scratch {
    directory: PathBuf,
    /// The name of the benchmarks' cgroup, in each hierarchy.
    cgroup: String,
    /// A mount namespace in which commands run.
    view: OwnedFd,
    names: RefCell<u64>,
}

impl Scratch {
    pub(super) fn new() -> Result<Self, TaskError> {
        let cgroup = format!("nodlet-bench-{}", std::process::id());
        let directory = Path::new("/tmp").join(&cgroup);
        let _ = fs::remove_dir_all(&directory);
        for inside in ["shared", "run"] {
            fs::create_dir_all(directory.join(inside))?;
        }
        // `/run` is a tmpfs on every machine, and on the device.
        mount(Some("tmpfs"), &directory.join("run"), Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))?;
        let view = std::thread::spawn(view).join().map_err(|_| "the thread of the view panicked")??;
        Ok(Self { directory, cgroup, view, names: RefCell::new(0) })
    }

    /// A directory in the scratch directory, which is created if it is missing.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf, TaskError> {
        let directory = self.directory.join(name);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    /// A directory in memory, for files that do not survive a reboot.
    pub(super) fn run(&self, name: &str) -> Result<PathBuf, TaskError> {
        self.directory(&format!("run/{name}"))
    }

    /// The directory that every container sees as `/shared`.
    pub(super) fn shared(&self) -> PathBuf {
        self.directory.join("shared")
    }

    /// The path of a cgroup below the benchmarks' own, in the form that runtimes expect.
    pub(super) fn cgroup(&self, name: &str) -> String {
        format!("/{}/{name}", self.cgroup)
    }

    /// A unique name.
    pub(super) fn name(&self, kind: &str) -> String {
        *self.names.borrow_mut() += 1;
        format!("{kind}-{}", self.names.borrow())
    }

    /// A command that runs in the view, without the mounts that crun and podman reject. It starts in `/`.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let view = self.view.as_raw_fd();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: one system call, which is async-signal-safe; the descriptor stays open as long as `self`,
        // and the child has its own copy.
        unsafe {
            command.pre_exec(move || {
                let view = std::os::fd::BorrowedFd::borrow_raw(view);
                Ok(setns(view, CloneFlags::CLONE_NEWNS)?)
            });
        }
        command
    }

    /// Waits for the clock that a container wrote with its first instructions, and removes the file.
    pub(super) fn clock(&self, name: &str) -> Result<Duration, TaskError> {
        let file = self.shared().join(name);
        let read = || fs::read_to_string(&file).ok()?.strip_suffix('\n')?.parse().ok();
        let nanoseconds = wait(&format!("the clock of {name}"), Duration::from_millis(5), read)?;
        fs::remove_file(&file)?;
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = umount2(&self.directory.join("run"), MntFlags::MNT_DETACH);
        let _ = fs::remove_dir_all(&self.directory);
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_cgroup(&hierarchy.path().join(&self.cgroup));
        }
        remove_cgroup(&Path::new("/sys/fs/cgroup").join(&self.cgroup));
    }
}

/// Removes a cgroup and those below it, none of which may have processes.
fn remove_cgroup(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Creates a mount namespace without cgroup v2: crun refuses to start where v2 is mounted beside v1. Created
/// once, so that its time is not measured.
fn view() -> Result<OwnedFd, TaskError> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    let unified = Path::new("/sys/fs/cgroup/unified");
    if unified.exists() {
        umount2(unified, MntFlags::MNT_DETACH)?;
    }
    Ok(File::open("/proc/thread-self/ns/mnt")?.as_fd().try_clone_to_owned()?)
}

/// Polls until there is a result.
pub(super) fn wait<T>(
    what: &str,
    interval: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T, TaskError> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return Ok(found);
        }
        if Instant::now() > until {
            return Err(TaskError(format!("waited {PATIENCE:?} in vain for {what}")));
        }
        std::thread::sleep(interval);
    }
}

/// Runs a command that leaves a process behind, whose standard error goes to a file: the process would hold a
/// pipe open as long as it lives.
pub(super) fn detaching(command: &mut Command, said: &Path) -> Outcome {
    let line = line_of(command);
    let status = command.stderr(File::create(said)?).status();
    let status = status.map_err(|error| format!("failed to run {line}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(TaskError(format!("{line}: {status}: {}", fs::read_to_string(said).unwrap_or_default().trim())))
}

/// Drops the kernel's caches of unmapped files, including names and inodes.
pub(super) fn drop_caches() -> Outcome {
    nix::unistd::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| TaskError(format!("failed to drop the page cache: {error}")))
}

/// The time on the clock that the containers' program uses.
pub(super) fn now() -> Result<Duration, TaskError> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC)?.into())
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
