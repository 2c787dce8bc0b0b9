//! System calls that `nix` does not have: processes that start inside a cgroup, mounts without a path, paths
//! resolved without leaving a directory.
//!
//! Each function is one call, with the kernel's error and nothing else; the caller names the step. [`used_up`]
//! and [`lacking`] explain two of these errors. Read next: `start.rs` and `sandbox.rs`, which use them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::unistd::Pid;
use nodlet_host::launch::SeccompConfig;

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

/// `struct clone_args` of clone3(2).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The parent of a new process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parent {
    /// The calling process.
    Caller,
    /// The parent of the calling process.
    CallersParent,
}

/// Forks; `None` in the child. With `cgroup`, the child starts in it: moving there afterwards waits for a
/// grace period of the kernel, some 5 ms.
///
/// # Safety
/// The process must have one thread: the child has only the calling one, with
/// every lock of the others held for ever.
pub(super) unsafe fn fork(parent: Parent, cgroup: Option<BorrowedFd>) -> io::Result<Option<Pid>> {
    let mut args = CloneArgs::default();
    match parent {
        Parent::Caller => args.exit_signal = libc::SIGCHLD as u64,
        Parent::CallersParent => args.flags |= libc::CLONE_PARENT as u64,
    }
    if let Some(cgroup) = cgroup {
        args.flags |= 0x2_0000_0000; // CLONE_INTO_CGROUP
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM this is a fork: the child runs on a copy of the stack.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) });
    let pid = match pid {
        // A seccomp filter has no access to the flags of clone3 in memory, so it often forbids the call.
        Err(_) if cgroup.is_none() => {
            let flags = (args.flags | args.exit_signal) as libc::c_ulong;
            // SAFETY: as above; no stack is given.
            check(unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) })?
        }
        pid => pid?,
    };
    Ok((pid != 0).then(|| Pid::from_raw(pid as i32)))
}

/// Ends the calling process at once, without destructors: for forked children. A seccomp profile may forbid the call,
/// which the C library would repeat for ever: then a fault ends the process.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: always allowed; the process ends, or goes on here.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    // SAFETY: no page is mapped at address 1, which ends the process by SIGSEGV. The address is not zero, which the
    // compiler may assume never to be written to.
    unsafe { std::ptr::without_provenance_mut::<u8>(1).write_volatile(0) };
    std::process::abort()
}

/// Closes every descriptor except the standard three and those of `keep`.
pub(super) fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<u32> =
        keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        if fd > first {
            close_range(first, fd - 1);
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: only forked children and a process that has just begun call this;
    // what they close is owned by nobody who will use it.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// `open_tree(2)`: makes a detached copy of the mount at `path`, with the mounts below it if `recursive`.
pub(super) fn clone_mount(
    directory: Option<BorrowedFd>,
    path: &CStr,
    recursive: bool,
) -> io::Result<OwnedFd> {
    let mut flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    if recursive {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    let directory = directory.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: the path is a C string, and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, directory, path.as_ptr(), flags) })
}

/// `move_mount(2)`: attaches a detached mount at `target`.
pub(super) fn attach_mount(mount: BorrowedFd, target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
    // SAFETY: both paths are C strings, and outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// `move_mount(2)`: attaches a detached mount at an open directory or file.
pub(super) fn attach_mount_at(mount: BorrowedFd, target: BorrowedFd) -> io::Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: both paths are empty C strings.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
pub(super) struct MountAttributes {
    pub(super) set: u64,
    pub(super) clear: u64,
    pub(super) propagation: u64,
    pub(super) userns: u64,
}

/// `mount_setattr(2)` on a mount descriptor.
pub(super) fn set_mount_attributes(
    mount: BorrowedFd,
    attributes: &MountAttributes,
    recursive: bool,
) -> io::Result<()> {
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the structure is the kernel's own, with its size given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const *attributes,
            size_of::<MountAttributes>(),
        )
    })
    .map(drop)
}

/// Maps the IDs of files by a user namespace (`MOUNT_ATTR_IDMAP`) on a detached mount that nobody has used yet; with
/// `recursive`, also on the mounts below it whose file systems can.
pub(super) fn map_ids(mount: BorrowedFd, users: BorrowedFd, recursive: bool) -> io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let attributes = MountAttributes { set: IDMAP, userns: users.as_raw_fd() as u64, ..Default::default() };
    let mapped = match set_mount_attributes(mount, &attributes, recursive) {
        // All or none: without the mounts below it, whose files then belong to nobody.
        Err(_) if recursive => set_mount_attributes(mount, &attributes, false),
        mapped => mapped,
    };
    mapped.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENOSYS) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel cannot map the IDs of its file system, as hostUsers: false needs (tmpfs: Linux 6.3; /proc, /sys and devices: never)",
        ),
        _ => error,
    })
}

/// Makes new files belong to this user and group of the host; the calling process keeps its capabilities.
pub(super) fn set_file_owner(id: u32) -> io::Result<()> {
    // SAFETY: no pointers. Both return the earlier value.
    unsafe {
        libc::setfsgid(id);
        libc::setfsuid(id);
    }
    set_capabilities(own_capabilities(u64::MAX)?)
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
    // SAFETY: the structure is the kernel's own, with its size given; the path is a C string.
    let fd = owned(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size_of::<OpenHow>(),
        )
    })?;
    Ok(File::from(fd))
}

/// `readlinkat(2)` of a link that is open.
pub(super) fn read_link(link: BorrowedFd) -> io::Result<std::path::PathBuf> {
    Ok(nix::fcntl::readlinkat(Some(link.as_raw_fd()), "")?.into())
}

/// `pidfd_open(2)`.
pub(super) fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })
}

/// How a child ended. `nix`'s `WaitStatus` is not used, since it has no name for real-time signals: a child
/// killed by one of them would be an error, and would stay unreaped for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The child exited with this code, 0 to 255.
    Exited(i32),
    /// This signal killed the child, 1 to 64 (127 on MIPS).
    Signaled(i32),
}

impl Ended {
    /// Converts `si_code` and `si_status` of waitid(2), called with `WEXITED` only.
    fn from_siginfo(code: i32, status: i32) -> Ended {
        match code {
            libc::CLD_EXITED => Ended::Exited(status & 0xff),
            // CLD_KILLED, CLD_DUMPED, and whatever a kernel may add.
            _ => Ended::Signaled(status),
        }
    }

    /// The exit code as container runtimes report it: 128 + N for signal N.
    pub(super) fn code(self) -> i32 {
        match self {
            Ended::Exited(code) => code,
            Ended::Signaled(signal) => 128 + signal,
        }
    }

    /// The signal that killed the child.
    pub(super) fn signal(self) -> Option<i32> {
        match self {
            Ended::Exited(_) => None,
            Ended::Signaled(signal) => Some(signal),
        }
    }
}

/// How a child that is not reaped yet has ended; it stays unreaped. `None` if it is alive, or not a child of
/// the caller.
pub(super) fn ended(child: Pid) -> Option<Ended> {
    wait(Which::Child(child), libc::WNOHANG | libc::WNOWAIT).ok().flatten().map(|(_, ended)| ended)
}

/// Any child that has ended and is not reaped yet; it stays unreaped.
pub(super) fn any_ended() -> Option<Pid> {
    wait(Which::Any, libc::WNOHANG | libc::WNOWAIT).ok().flatten().map(|(pid, _)| pid)
}

/// Reaps a child, if it has ended.
pub(super) fn reap(child: Pid) {
    let _ = wait(Which::Child(child), libc::WNOHANG);
}

/// Waits until a child has ended, and reaps it. `None` if it is not a child of the caller.
pub(super) fn wait_for(child: Pid) -> Option<Ended> {
    wait(Which::Child(child), 0).ok().flatten().map(|(_, ended)| ended)
}

/// Whether a process is a child of the caller, alive or not yet reaped.
pub(super) fn is_child(pid: Pid) -> bool {
    wait(Which::Child(pid), libc::WNOHANG | libc::WNOWAIT).is_ok()
}

enum Which {
    Any,
    Child(Pid),
}

/// `waitid(2)` for children that have ended; `None` with `WNOHANG` if there is none yet.
fn wait(which: Which, flags: i32) -> io::Result<Option<(Pid, Ended)>> {
    let (kind, id) = match which {
        Which::Any => (libc::P_ALL, 0),
        Which::Child(pid) => {
            let id = libc::id_t::try_from(pid.as_raw());
            (libc::P_PID, id.ok().filter(|id| *id != 0).ok_or(io::ErrorKind::InvalidInput)?)
        }
    };
    loop {
        // SAFETY: all bits zero are a siginfo.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one siginfo.
        if unsafe { libc::waitid(kind, id, &raw mut info, libc::WEXITED | flags) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        // SAFETY: waitid fills these in, or leaves them zero where no child has ended.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        return Ok((pid != 0).then(|| (Pid::from_raw(pid), Ended::from_siginfo(info.si_code, status))));
    }
}

/// Whether a process, dead but not yet reaped, has executed another program since it was forked.
pub(super) fn has_executed(pid: Pid) -> bool {
    /// `PF_FORKNOEXEC` in the flags of proc_pid_stat(5): the process was forked and has not executed a
    /// program.
    const FORKED: u64 = 0x40;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let flags = fields.split_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & FORKED == 0)
}

/// `struct __user_cap_header_struct` of capget(2).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`; version 3 has two of them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`, of the calling thread.
const CAPABILITIES_OF_CALLER: CapabilityHeader = CapabilityHeader { version: 0x2008_0522, pid: 0 };

/// The capabilities among `wanted` that are permitted to the calling process and in its bounding set, as
/// bits: a process cannot pass on others.
pub(super) fn own_capabilities(wanted: u64) -> io::Result<u64> {
    let mut header = CAPABILITIES_OF_CALLER;
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: the kernel's own structures; it writes one header, and two halves.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    let permitted = u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32;
    let own = |number: &u8| permitted & wanted & (1 << number) != 0 && in_bounding_set(*number);
    Ok((0..64).filter(own).fold(0, |all, number| all | 1 << number))
}

fn in_bounding_set(number: u8) -> bool {
    // As wide as the kernel expects: a 64-bit number takes two arguments on a 32-bit processor.
    let number = libc::c_ulong::from(number);
    // SAFETY: no pointers. One that the kernel does not know is EINVAL.
    unsafe { libc::prctl(libc::PR_CAPBSET_READ, number, 0, 0, 0) == 1 }
}

/// Removes a capability from the bounding set of the calling process.
///
/// # Errors
/// EINVAL: the kernel knows neither this one nor any after it.
pub(super) fn drop_from_bounding_set(number: u8) -> io::Result<()> {
    let number = libc::c_ulong::from(number);
    // SAFETY: no pointers.
    let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
    if dropped == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the permitted and effective capabilities to the bits `wanted`, and clears the inheritable ones.
pub(super) fn set_capabilities(wanted: u64) -> io::Result<()> {
    let header = CAPABILITIES_OF_CALLER;
    let half = |bits: u64| CapabilityData { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    let data = [half(wanted), half(wanted >> 32)];
    // SAFETY: the kernel's own structures: version 3 has two halves.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
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
        let why = "the kernel gives real-time bandwidth to no cgroup of a pod (CONFIG_RT_GROUP_SCHED): it must be built \
                   without that option, or booted with rt_group_sched=0";
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

/// Whether a cgroup has a process. `events` is its `cgroup.events`, opened at the first call; reading it also
/// arms the next POLLPRI.
pub(super) fn is_populated(directory: &Path, events: &mut Option<File>) -> bool {
    if events.is_none() {
        *events = File::open(directory.join("cgroup.events")).ok();
    }
    let Some(events) = events else { return false };
    let mut text = [0; 128];
    // A cgroup that was removed reads as ENODEV.
    let length = events.read_at(&mut text, 0).unwrap_or(0);
    text[..length].windows(11).any(|window| window == b"populated 1")
}

/// `seccomp(2)`: filters the system calls of the calling process from now on. It needs `no_new_privs` or CAP_SYS_ADMIN.
pub(super) fn install_filter(filter: &SeccompConfig) -> io::Result<()> {
    const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
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

/// Kills every process of a leaf with SIGKILL, after lifting the cpu limits that would delay their end.
pub(super) fn kill_leaf(directory: &Path) -> io::Result<()> {
    nodlet_host::cgroup::lift_cpu_limits(directory);
    kill_cgroup(directory)
}

/// Kills every process of a v2 cgroup, and of those below it, with SIGKILL.
pub(super) fn kill_cgroup(directory: &Path) -> io::Result<()> {
    std::fs::write(directory.join("cgroup.kill"), "1")?;
    nodlet_host::cgroup::kill_headless(directory);
    Ok(())
}

/// Moves the processes of a v2 cgroup to its parent; or to a sibling, if the parent has enabled controllers
/// for its children and so cannot have processes. Processes that are forked meanwhile stay.
pub(super) fn empty_into_parent(directory: &Path) {
    /// With more, the list could be out of date before it is written: a reused PID would move another
    /// process.
    const AT_ONCE: usize = 64;
    /// A privileged container may enable controllers for the children of its cgroup.
    const BESIDE: &str = "left-behind";
    let Some(parent) = directory.parent() else { return };
    let processes = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    // 0 is a process without a number in this PID namespace, and writing it would move the caller.
    for process in processes.lines().filter(|process| *process != "0").take(AT_ONCE) {
        let moved = std::fs::write(parent.join("cgroup.procs"), process);
        if moved.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            let beside = parent.join(BESIDE);
            // The cgroup may exist, and a process that has ended, or is ending, cannot be moved.
            let _ = std::fs::create_dir(&beside);
            let _ = std::fs::write(beside.join("cgroup.procs"), process);
        }
    }
}

/// Moves the calling process into each v1 `tasks` file. Not by `cgroup.procs`, which waits for a grace period
/// of the kernel; the process has only one task.
pub(super) fn join_tasks(tasks: &[std::path::PathBuf]) -> io::Result<()> {
    tasks.iter().try_for_each(|file| {
        std::fs::OpenOptions::new()
            .write(true)
            .open(file)
            .and_then(|mut file| io::Write::write_all(&mut file, b"0"))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Real children that end in every possible way.
    #[test]
    fn every_wait_status_is_understood() {
        let end_as = |end: &dyn Fn()| {
            // SAFETY: the child makes system calls only.
            let child = unsafe { fork(Parent::Caller, None) }.unwrap();
            let Some(child) = child else {
                end();
                exit_now(99)
            };
            assert!(is_child(child));
            // `ended` reports the exit without reaping the child, and `wait_for` reaps it once.
            let ended_as = loop {
                if let Some(ended) = ended(child) {
                    break ended;
                }
                std::thread::yield_now();
            };
            assert!(is_child(child));
            assert_eq!(wait_for(child), Some(ended_as));
            assert!(!is_child(child));
            assert_eq!(ended(child), None);
            ended_as
        };
        for code in 0..=255 {
            let ended = end_as(&|| exit_now(code));
            assert_eq!((ended, ended.code(), ended.signal()), (Ended::Exited(code), code, None));
        }
        // The C library reserves 32 to 34, but the kernel treats them like all other signals.
        let harmless = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
        let stop = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        for signal in (1..=64).filter(|signal| !harmless.contains(signal) && !stop.contains(signal)) {
            let ended = end_as(&|| {
                let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                let default = [0u64; 4];
                let none = 0u64;
                // SAFETY: the kernel's own structures; the default action runs no code.
                unsafe {
                    libc::setrlimit(libc::RLIMIT_CORE, &raw const core);
                    let old = std::ptr::null_mut::<libc::c_void>();
                    libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), old, 8);
                    libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, old, 8);
                    libc::syscall(libc::SYS_kill, libc::getpid(), signal);
                }
            });
            assert_eq!(
                (ended, ended.code(), ended.signal()),
                (Ended::Signaled(signal), 128 + signal, Some(signal))
            );
        }
    }
}
