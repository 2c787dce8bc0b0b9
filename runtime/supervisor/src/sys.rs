//! The calls of the kernel that the processes of a supervisor make: those of [`nodlet_kernel`], and what they mean for a
//! container.
//!
//! Each function is one call, with the kernel's error and nothing else; the caller names the step. [`used_up`]
//! and [`lacking`] explain two of these errors. Read next: `start.rs` and `sandbox.rs`, which use them.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, ResolveFlag};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nodlet_host::launch::{OpenFilesConfig, SeccompConfig};
use nodlet_kernel::{file, process, security, signal};
use rustix::process::{DumpableBehavior, Rlimit, set_dumpable_behavior};

mod cgroups;

pub(super) use cgroups::{empty_into_parent, is_populated, join_tasks, kill_cgroup, kill_leaf};
pub(super) use nodlet_kernel::mount::{
    MountAttributes, attach_mount, attach_mount_at, clone_mount, set_mount_attributes,
};
pub(super) use nodlet_kernel::process::{
    Ended, Parent, any_ended, clone, close_all_but, ended, exit_now, has_executed, inherited, is_child, kept,
    pidfd_open, reap, spawn_daemon, wait_for,
};
pub(super) use nodlet_kernel::security::{drop_from_bounding_set, set_capabilities};

/// The links that [`open_in`] may follow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolve {
    /// `RESOLVE_BENEATH`: a path that would leave the directory fails with EXDEV.
    Beneath,
    /// `RESOLVE_IN_ROOT`: the directory is `/` for every link.
    InRoot,
    /// `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`: any link in the path fails with ELOOP. With `O_PATH` and
    /// `O_NOFOLLOW`, a link at the end is opened itself.
    NoLinks,
}

/// Opens `path` only to name it: this triggers no device, waits for no FIFO, and works for a socket.
pub(super) fn open_path(path: &Path) -> io::Result<File> {
    Ok(file::open(path, OFlag::O_PATH)?.into())
}

/// `openat2(2)`: opens `path` without leaving `directory`.
pub(super) fn open_in(directory: BorrowedFd, path: &Path, flags: i32, resolve: Resolve) -> io::Result<File> {
    let resolve = ResolveFlag::RESOLVE_NO_MAGICLINKS
        | match resolve {
            Resolve::Beneath => ResolveFlag::RESOLVE_BENEATH,
            Resolve::InRoot => ResolveFlag::RESOLVE_IN_ROOT,
            Resolve::NoLinks => ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS,
        };
    Ok(file::open_in(directory, path, OFlag::from_bits_retain(flags), resolve)?.into())
}

/// A pipe whose end for the supervisor does not block: the reading one of an output, the writing one of an input. The
/// ends are in the order of pipe2(2).
pub(super) fn pipe(is_input: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let own = if is_input { &writer } else { &reader };
    nix::fcntl::fcntl(own.as_raw_fd(), nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((reader, writer))
}

/// `readlinkat(2)` of a link that is open.
pub(super) fn read_link(link: BorrowedFd) -> io::Result<std::path::PathBuf> {
    Ok(nix::fcntl::readlinkat(Some(link.as_raw_fd()), "")?.into())
}

/// Raises the hard limit of open files of the calling process, and of those that it will execute, if the given one is
/// higher. Its soft limit stays, since it has files to open itself: [`set_open_files`] sets that.
///
/// # Errors
/// The limit is required, and may not be raised.
pub(super) fn raise_open_files(wanted: Option<OpenFilesConfig>) -> io::Result<()> {
    let Some(OpenFilesConfig { limit, is_required }) = wanted else { return Ok(()) };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if limit.hard <= hard {
        return Ok(());
    }
    match setrlimit(Resource::RLIMIT_NOFILE, soft, limit.hard) {
        Err(nix::Error::EPERM) if is_required => Err(lacking_right(
            nix::Error::EPERM.into(),
            &format!(
                "nodlet's own limit is {hard}, and a higher one needs CAP_SYS_RESOURCE and fs.nr_open of at least {}",
                limit.hard
            ),
        )),
        Err(nix::Error::EPERM) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sets the limit of open files of the calling process, and of those that it will execute, within its hard limit.
///
/// # Errors
/// The system call failed.
pub(super) fn set_open_files(wanted: Option<OpenFilesConfig>) -> io::Result<()> {
    let Some(OpenFilesConfig { limit, .. }) = wanted else { return Ok(()) };
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, limit.soft.min(most), limit.hard.min(most))?)
}

/// Lets the calling process, and those that it will execute, choose real-time priorities up to this one (`RLIMIT_RTPRIO`).
/// 0 changes nothing.
///
/// # Errors
/// The kernel lets no process of this cgroup run with a real-time priority, or the limit may not be raised.
pub(super) fn allow_real_time(priority: u32) -> io::Result<()> {
    if priority == 0 {
        return Ok(());
    }
    let limit = Some(priority.into());
    rustix::process::setrlimit(rustix::process::Resource::Rtprio, Rlimit { current: limit, maximum: limit })
        .map_err(|error| lacking_right(error.into(), "nodlet needs CAP_SYS_RESOURCE"))?;
    // With CONFIG_RT_GROUP_SCHED, only cgroups with real-time bandwidth may.
    let set = |policy: i32, priority: i32| process::set_scheduler(policy, priority).map_err(io::Error::from);
    set(libc::SCHED_FIFO, 1).map_err(|error| {
        let why = "the cgroups of pods have no real-time bandwidth (CONFIG_RT_GROUP_SCHED; cpu.rt_runtime_us is 0 in \
                   cgroup v1): build the kernel without that option, or boot it with rt_group_sched=0";
        lacking_right(error, why)
    })?;
    set(libc::SCHED_OTHER, 0)
}

/// Makes new files belong to this user and group of the host; the calling process keeps its capabilities.
pub(super) fn set_file_owner(id: u32) -> io::Result<()> {
    security::set_file_owner(id);
    Ok(set_capabilities(own_capabilities(u64::MAX)?)?)
}

/// The capabilities among `wanted` that are permitted to the calling process, as bits: a process cannot pass on others.
/// One that is not in its bounding set is among them, and is lost where the program is executed.
pub(super) fn own_capabilities(wanted: u64) -> io::Result<u64> {
    Ok(security::permitted_capabilities()? & wanted)
}

/// Maps the IDs of files by a user namespace (`MOUNT_ATTR_IDMAP`) on a detached mount that nobody has used yet; with
/// `recursive`, also on the mounts below it whose file systems can.
pub(super) fn map_ids(mount: BorrowedFd, users: BorrowedFd, recursive: bool) -> io::Result<()> {
    let set = libc::MOUNT_ATTR_IDMAP;
    let attributes = MountAttributes { set, userns: users.as_raw_fd() as u64, ..Default::default() };
    let mapped = match set_mount_attributes(mount, &attributes, recursive) {
        // All or none: without the mounts below it, whose files then belong to nobody.
        Err(_) if recursive => set_mount_attributes(mount, &attributes, false),
        mapped => mapped,
    };
    mapped.map_err(|error| match error {
        nix::Error::EINVAL | nix::Error::ENOSYS => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel cannot map the IDs of its file system, as hostUsers: false needs (tmpfs: Linux 6.3; /proc, /sys and devices: never)",
        ),
        error => error.into(),
    })
}

/// An error of the kernel about a missing right, with its cause.
fn lacking_right(error: io::Error, why: &str) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EPERM) => io::Error::new(io::ErrorKind::PermissionDenied, format!("{error}: {why}")),
        _ => error,
    }
}

/// `seccomp(2)`: filters the system calls of the calling process from now on. It needs `no_new_privs` or CAP_SYS_ADMIN.
/// From now on a fault ends the process, as [`exit_now`] needs it: the filter may forbid the calls of the standard library's
/// handler of faults, which would run for ever.
pub(super) fn install_filter(filter: &SeccompConfig) -> io::Result<()> {
    let _ = signal::reset(libc::SIGSEGV);
    security::install_filter(&filter.program, filter.flags).map_err(|error| match error {
        nix::Error::ENOSYS | nix::Error::EINVAL => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel is built without CONFIG_SECCOMP_FILTER; use the profile Unconfined",
        ),
        error => error.into(),
    })
}

/// Sets the AppArmor profile that the calling thread, or a process that it forks, gets when it executes a program
/// (`aa_change_onexec`). Must be called where `/proc` is the host's: a container can put files of its own there.
pub(super) fn set_app_armor_profile(name: &str) -> io::Result<()> {
    let attribute = |path: &str| std::fs::OpenOptions::new().write(true).open(path);
    let mut file = match attribute("/proc/thread-self/attr/apparmor/exec") {
        // Before Linux 5.8, or with AppArmor as the only security module that has attributes.
        Err(error) if error.kind() == io::ErrorKind::NotFound => attribute("/proc/thread-self/attr/exec")?,
        opened => opened?,
    };
    // The kernel takes the name from one write.
    io::Write::write_all(&mut file, format!("exec {name}").as_bytes())
}

/// `PR_SET_DUMPABLE`: whether processes of the same user may trace the calling one and read its
/// memory. It does not stop CAP_SYS_PTRACE.
pub(super) fn set_dumpable(dumpable: bool) {
    let behavior = if dumpable { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    let _ = set_dumpable_behavior(behavior);
}

/// Gives the calling process a new session keyring, which its children inherit. Otherwise all containers
/// would share that of the process that started the agent. Must be called as root.
///
/// The kernel counts the keyring against the quota of the caller's real user. Any container that runs as root
/// can use up that quota; then the keyring is counted for a user that nobody can guess.
pub(super) fn new_session_keyring() -> io::Result<()> {
    match security::join_session_keyring() {
        // The kernel is built without CONFIG_KEYS: there is nothing to share.
        Err(nix::Error::ENOSYS) => Ok(()),
        Err(nix::Error::EDQUOT) => {
            /// A Pod cannot name a user from this number on, and a container that may change its user does
            /// not know which one is used.
            const BEYOND_PODS: u32 = 1 << 31;
            let mut bytes = [0; 4];
            // A container starts only after this, so it must not wait for entropy.
            nodlet_wire::random::unique(&mut bytes)?;
            let user = BEYOND_PODS | u32::from_ne_bytes(bytes) >> 2;
            let (real, root) = (nix::unistd::Uid::from_raw(user), nix::unistd::Uid::from_raw(0));
            // The effective user stays root, so no capability is lost.
            nix::unistd::setresuid(real, root, root)?;
            let joined = security::join_session_keyring();
            nix::unistd::setresuid(root, root, root)?;
            Ok(joined?)
        }
        other => Ok(other?),
    }
}

/// `prctl(PR_SET_NAME)`: sets the process name that `ps` shows.
pub(super) fn set_name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// Explains the error of a namespace that could not be made, if their maximum number is reached. Containers
/// count too, since they may make namespaces in their own user namespaces.
pub(super) fn used_up(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => io::Error::new(
            io::ErrorKind::QuotaExceeded,
            "root and containers have as many namespaces of a kind as this machine allows: raise \
             user.max_*_namespaces (sysctl)",
        ),
        _ => error,
    }
}

/// Explains an error if it means that the kernel was built without an option.
pub(super) fn lacking(error: nix::Error, means: i32, option: &str) -> io::Error {
    if error as i32 == means {
        io::Error::new(io::ErrorKind::Unsupported, format!("this kernel is built without {option}"))
    } else {
        error.into()
    }
}
