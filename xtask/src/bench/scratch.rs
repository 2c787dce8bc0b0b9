//! What those have in common with whom nodlet is compared: a directory in `/tmp` for all of
//! it, containers' clocks, and a view of the machine in which crun starts at all.

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

use crate::{Failure, Outcome, line_of};

/// How long a container may take to say that it runs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Short, because paths of sockets are made from it.
pub(super) struct Scratch {
    directory: PathBuf,
    /// The name of our cgroup, in each hierarchy.
    cgroup: String,
    /// A mount namespace.
    view: OwnedFd,
    names: RefCell<u64>,
}

impl Scratch {
    pub(super) fn new() -> Result<Self, Failure> {
        let cgroup = format!("nodlet-bench-{}", std::process::id());
        let directory = Path::new("/tmp").join(&cgroup);
        let _ = fs::remove_dir_all(&directory);
        for inside in ["shared", "run"] {
            fs::create_dir_all(directory.join(inside))?;
        }
        // As it is everywhere, and as the device has it.
        mount(Some("tmpfs"), &directory.join("run"), Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))?;
        let view = std::thread::spawn(view).join().map_err(|_| "the thread of the view panicked")??;
        Ok(Self { directory, cgroup, view, names: RefCell::new(0) })
    }

    /// A directory, made if it is not there.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let directory = self.directory.join(name);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    /// What is lost with a boot, in memory.
    pub(super) fn run(&self, name: &str) -> Result<PathBuf, Failure> {
        self.directory(&format!("run/{name}"))
    }

    /// What every container sees as `/shared`.
    pub(super) fn shared(&self) -> PathBuf {
        self.directory.join("shared")
    }

    /// The path of a cgroup below ours, as runtimes are told of it.
    pub(super) fn cgroup(&self, name: &str) -> String {
        format!("/{}/{name}", self.cgroup)
    }

    /// A name that nothing had before.
    pub(super) fn name(&self, kind: &str) -> String {
        *self.names.borrow_mut() += 1;
        format!("{kind}-{}", self.names.borrow())
    }

    /// Lets a command see the machine without what crun and podman refuse. It begins in `/`.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let view = self.view.as_raw_fd();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: one system call, which is async-signal-safe; the descriptor is open as long as
        // `self`, and the child has its own.
        unsafe {
            command.pre_exec(move || {
                let view = std::os::fd::BorrowedFd::borrow_raw(view);
                Ok(setns(view, CloneFlags::CLONE_NEWNS)?)
            });
        }
        command
    }

    /// Waits for the clock that a container wrote with its first instructions, and takes it away.
    pub(super) fn clock(&self, name: &str) -> Result<Duration, Failure> {
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

/// With all that is in it; no process may be.
fn remove_cgroup(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// crun refuses to start where version 2 of cgroups is mounted beside version 1: a mount
/// namespace in which it is not seen. Made once, so that nobody's time has it in it.
fn view() -> Result<OwnedFd, Failure> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    let unified = Path::new("/sys/fs/cgroup/unified");
    if unified.exists() {
        umount2(unified, MntFlags::MNT_DETACH)?;
    }
    Ok(File::open("/proc/thread-self/ns/mnt")?.as_fd().try_clone_to_owned()?)
}

/// Looks again and again until there is something.
pub(super) fn wait<T>(
    what: &str,
    look: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return Ok(found);
        }
        if Instant::now() > until {
            return Err(Failure(format!("waited {PATIENCE:?} in vain for {what}")));
        }
        std::thread::sleep(look);
    }
}

/// Runs a command to its end, in silence; what it said on standard error is in the failure.
pub(super) fn quietly(command: &mut Command) -> Outcome {
    let line = line_of(command);
    let output =
        command.stderr(Stdio::piped()).output().map_err(|error| format!("failed to run {line}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure(format!("{line}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}

/// The same for one that leaves a process behind: a pipe would be held by that as long as it lives.
pub(super) fn detaching(command: &mut Command, said: &Path) -> Outcome {
    let line = line_of(command);
    let status = command.stderr(File::create(said)?).status();
    let status = status.map_err(|error| format!("failed to run {line}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure(format!("{line}: {status}: {}", fs::read_to_string(said).unwrap_or_default().trim())))
}

/// Forgets what the kernel keeps of files that nobody maps, names and inodes included.
pub(super) fn drop_caches() -> Outcome {
    nix::unistd::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| Failure(format!("failed to drop the page cache: {error}")))
}

/// As the containers' program takes it.
pub(super) fn now() -> Result<Duration, Failure> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC)?.into())
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
