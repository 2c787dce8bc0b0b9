//! System calls that `nix` does not have: processes that start inside a cgroup, mounts without a path, paths
//! resolved without leaving a directory.
//!
//! Each function is one call, with the kernel's error and nothing else; the caller names the step. [`used_up`]
//! and [`lacking`] explain two of these errors. The folder has those about mounts, processes, capabilities and cgroups.
//! Read next: `start.rs` and `sandbox.rs`, which use them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nodlet_host::launch::{OpenFilesConfig, SeccompConfig};
use nodlet_rootfs::undisturbed;

mod capabilities;
mod cgroups;
mod mounts;
mod processes;

pub(super) use capabilities::{drop_from_bounding_set, own_capabilities, set_capabilities, set_file_owner};
pub(super) use cgroups::{empty_into_parent, is_populated, join_tasks, kill_cgroup, kill_leaf};
pub(super) use mounts::{
    MountAttributes, attach_mount, attach_mount_at, clone_mount, map_ids, set_mount_attributes,
};
pub(super) use processes::{
    Ended, Parent, any_ended, close_all_but, ended, exit_now, fork, has_executed, is_child, pidfd_open, reap,
    wait_for,
};

/// A path as a C string.
pub(super) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

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

/// Opens `path` only to name it: this triggers no device, waits for no FIFO, and works for a socket. It does
/// not use `OpenOptions`, which with musl, whose `O_ACCMODE` contains `O_PATH`, drops that flag and really
/// opens the file.
pub(super) fn open_path(path: &Path) -> io::Result<File> {
    let path = c_path(path)?;
    // SAFETY: the path is a C string, and outlives the call.
    owned(libc::c_long::from(unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }))
        .map(File::from)
}

/// `openat2(2)`: opens `path` without leaving `directory`.
pub(super) fn open_in(directory: BorrowedFd, path: &Path, flags: i32, resolve: Resolve) -> io::Result<File> {
    #[repr(C)]
    struct OpenHow {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
    const RESOLVE_NO_SYMLINKS: u64 = 0x04;
    const RESOLVE_BENEATH: u64 = 0x08;
    const RESOLVE_IN_ROOT: u64 = 0x10;
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: 0,
        resolve: RESOLVE_NO_MAGICLINKS
            | match resolve {
                Resolve::Beneath => RESOLVE_BENEATH,
                Resolve::InRoot => RESOLVE_IN_ROOT,
                Resolve::NoLinks => RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
            },
    };
    let path = c_path(path)?;
    let opened = undisturbed(|| {
        // SAFETY: the structure is the kernel's own, with its size given; the path is a C string.
        Errno::result(unsafe {
            libc::syscall(
                libc::SYS_openat2,
                directory.as_raw_fd(),
                path.as_ptr(),
                &raw const how,
                size_of::<OpenHow>(),
            )
        })
    });
    Ok(File::from(owned(opened?)?))
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
    let limit = libc::rlimit { rlim_cur: priority.into(), rlim_max: priority.into() };
    // SAFETY: the kernel reads one structure.
    if unsafe { libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const limit) } < 0 {
        return Err(lacking_right(io::Error::last_os_error(), "nodlet needs CAP_SYS_RESOURCE"));
    }
    // With CONFIG_RT_GROUP_SCHED, only cgroups with real-time bandwidth may.
    let set = |policy: libc::c_int, priority: libc::c_int| {
        // SAFETY: the kernel reads one integer (`struct sched_param`).
        let set = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
        check(set).map(drop)
    };
    set(libc::SCHED_FIFO, 1).map_err(|error| {
        let why = "the cgroups of pods have no real-time bandwidth (CONFIG_RT_GROUP_SCHED; cpu.rt_runtime_us is 0 in \
                   cgroup v1): build the kernel without that option, or boot it with rt_group_sched=0";
        lacking_right(error, why)
    })?;
    set(libc::SCHED_OTHER, 0)
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
    const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
    // SAFETY: the default action runs no code.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    let program = libc::sock_fprog {
        len: u16::try_from(filter.program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: filter.program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the kernel reads one sock_fprog and as many instructions of 8 bytes as it says.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, filter.flags, &raw const program)
    })
    .map(drop)
    .map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EINVAL) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel is built without CONFIG_SECCOMP_FILTER; use the profile Unconfined",
        ),
        _ => error,
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
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, i32::from(dumpable), 0, 0, 0) };
}

/// Gives the calling process a new session keyring, which its children inherit. Otherwise all containers
/// would share that of the process that started the agent. Must be called as root.
///
/// The kernel counts the keyring against the quota of the caller's real user. Any container that runs as root
/// can use up that quota; then the keyring is counted for a user that nobody can guess.
pub(super) fn new_session_keyring() -> io::Result<()> {
    match join_session_keyring() {
        // The kernel is built without CONFIG_KEYS: there is nothing to share.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EDQUOT) => {
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
            let joined = join_session_keyring();
            nix::unistd::setresuid(root, root, root)?;
            joined
        }
        other => other,
    }
}

fn join_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: no name is given.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, anonymous) }).map(drop)
}

/// `prctl(PR_SET_NAME)`: sets the process name that `ps` shows.
pub(super) fn set_name(name: &CStr) {
    // SAFETY: a C string; the kernel copies at most 16 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
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
