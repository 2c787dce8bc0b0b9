//! Confines a process: it keeps only the rights to write new files in its working directory and to read from
//! descriptors that are already open.
//!
//! This is for a process that is about to read hostile bytes. Measures that this kernel or this user does not
//! support are skipped and reported. The measures also work without root:
//!
//! | | root | others |
//! |---|---|---|
//! | files: the working directory alone | its own root directory, Landlock (5.13) | Landlock |
//! | an input that is a directory: what is below it | a mount of its own (5.2), Landlock | Landlock |
//! | network: none | a namespace without links, no system call, Landlock (6.7) | no system call, Landlock |
//! | processes, signals, tracing, mounts, devices: none | no capability, no system call | no system call |
//! | descriptors of the caller: none, its terminal neither | yes | yes |
//! | no new privileges, no core dump, dies with its parent | yes | yes |
//! | memory | `RLIMIT_DATA`, and the parent's cgroup for it | `RLIMIT_DATA` |
//!
//! This module knows nothing of images. Numbers are those of Linux: `linux/landlock.h`, `linux/seccomp.h`,
//! `linux/capability.h`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nodlet_kernel::mount::clone_mount;
use nodlet_kernel::process::close_range;
use nodlet_kernel::security::{self, Landlock, LandlockAttributes};
use rustix::process::{DumpableBehavior, set_dumpable_behavior, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

/// The most open descriptors: the archive, a layer, a directory and the parent's socket need fewer.
const OPEN_FILES: u64 = 32;

/// The resource limits of a confined process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// The most bytes of the process's own memory.
    pub(crate) memory: u64,
}

/// Confines this process (or only the calling thread, if there are others). `input` is open. If it is a
/// directory, the files below it stay readable through the returned descriptor. Also returns warnings about
/// what this kernel cannot confine.
pub(crate) fn confine(mut input: File, limits: &Limits) -> io::Result<(File, Vec<&'static str>)> {
    let mut weaker = Vec::new();
    let here = File::open(".")?;
    let owner = here.metadata()?;
    leave_the_terminal()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES)?;
    setrlimit(Resource::RLIMIT_DATA, limits.memory, limits.memory)?;
    // Containers need network namespaces, so a kernel without them has no use here.
    permitted(unshare(CloneFlags::CLONE_NEWNET))?;
    let mut enclosed = permitted(nix::unistd::chroot("."))?;
    if enclosed && input.metadata()?.is_dir() {
        // A directory outside of the process's root is a way out of the root, upwards. The root of a detached
        // mount has nothing above it.
        match clone_mount(Some(input.as_fd()), c"", false) {
            Ok(mount) => input = mount.into(),
            Err(_) => enclosed = false,
        }
    }
    if nix::unistd::geteuid().is_root() && owner.uid() != 0 {
        // Without capabilities, only the directory's owner can write to it.
        nix::unistd::setgroups(&[])?;
        nix::unistd::setgid(owner.gid().into())?;
        nix::unistd::setuid(owner.uid().into())?;
    }
    drop_capabilities()?;
    rustix::thread::set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // After the change of user, which resets this setting.
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    match landlock(here.as_fd(), input.as_fd()) {
        Ok(()) => {}
        // A container's system call filter may cause the last of these errors.
        Err(Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EPERM) if enclosed => {}
        Err(Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EPERM) => weaker.push(
            "the archive is unpacked with less protection: only Landlock would keep its reader from other files \
             (CONFIG_SECURITY_LANDLOCK, Linux 5.13), and this kernel has none",
        ),
        Err(errno) => return Err(errno.into()),
    }
    match seccomp::load() {
        Ok(()) => {}
        Err(Errno::ENOSYS | Errno::EINVAL) => weaker.push(
            "the archive is unpacked with less protection: this kernel does not filter system calls \
             (CONFIG_SECCOMP_FILTER)",
        ),
        Err(errno) => return Err(errno.into()),
    }
    Ok((input, weaker))
}

/// Closes every inherited descriptor except standard input, which is the socket to the parent, and standard
/// error. Must be called before anything is opened.
pub(crate) fn close_inherited() -> io::Result<()> {
    const FIRST: RawFd = 3;
    match close_range(FIRST.cast_unsigned(), u32::MAX) {
        Ok(()) => return Ok(()),
        // The call needs Linux 5.9. A container's system call filter may cause EPERM.
        Err(Errno::ENOSYS | Errno::EPERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let names: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor >= FIRST)
        .collect();
    for descriptor in names {
        // One of them belonged to the directory listing and is already closed.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

/// Replaces standard output and error, which may be somebody's terminal, by `/dev/null`: otherwise the
/// process could read what is typed there, and write anything.
fn leave_the_terminal() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    for descriptor in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        nix::unistd::dup2(null.as_raw_fd(), descriptor)?;
    }
    Ok(())
}

/// Whether the operation was permitted. A lack of permission is no error.
fn permitted(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Err(Errno::EPERM) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Drops all five capability sets, so that root has no special rights.
fn drop_capabilities() -> Result<(), Errno> {
    for capability in 0..64 {
        match security::drop_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last capability; or without CAP_SETPCAP, which means that there are none to gain.
            Err(Errno::EINVAL | Errno::EPERM) => break,
            Err(errno) => return Err(errno),
        }
    }
    security::set_capabilities(0)
}

/// Restricts the thread by Landlock: it may create, write and remove files in `here`, and read below `input`
/// if that is a directory; nothing else.
fn landlock(here: BorrowedFd<'_>, input: BorrowedFd<'_>) -> Result<(), Errno> {
    const WRITE_FILE: u64 = 1 << 1;
    const READ_FILE: u64 = 1 << 2;
    const REMOVE_FILE: u64 = 1 << 5;
    const MAKE_REG: u64 = 1 << 8;
    const TRUNCATE: u64 = 1 << 14;
    /// `LANDLOCK_ACCESS_FS_*` by version of Landlock.
    const FILES: [u64; 5] = [(1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1];

    let version = security::landlock_version()?;
    let files = FILES[FILES.len().min(version.max(1) as usize) - 1];
    // Later versions can forbid more, and earlier ones reject unknown bits.
    let (network, scope) = match version {
        ..4 => (0, 0),
        4..6 => (0b11, 0),
        6.. => (0b11, 0b11),
    };
    let ruleset = Landlock::new(version, LandlockAttributes { files, network, scope })?;
    let allow = |directory: BorrowedFd<'_>, allowed: u64| ruleset.allow_beneath(directory, allowed & files);
    allow(here, WRITE_FILE | READ_FILE | REMOVE_FILE | MAKE_REG | TRUNCATE)?;
    let input_mode = nix::sys::stat::fstat(input.as_raw_fd())?.st_mode;
    if input_mode & libc::S_IFMT == libc::S_IFDIR {
        allow(input, READ_FILE)?;
    }
    ruleset.restrict_self()
}

/// The system call filter: allows the calls that reading, decompressing and writing need.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64", target_arch = "arm"))]
mod seccomp {
    use libc::{c_long, sock_filter};
    use nix::errno::Errno;

    #[cfg(target_arch = "x86_64")]
    const ARCHITECTURE: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const ARCHITECTURE: u32 = 0xc000_00b7;
    #[cfg(target_arch = "riscv64")]
    const ARCHITECTURE: u32 = 0xc000_00f3;
    #[cfg(target_arch = "arm")]
    const ARCHITECTURE: u32 = 0x4000_0028;

    /// Allowed system calls, including those that the standard library makes on its own.
    const ALLOWED: &[c_long] = &[
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_pread64,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwrite64,
        libc::SYS_lseek,
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_close,
        libc::SYS_statx,
        libc::SYS_fsync,
        libc::SYS_unlinkat,
        libc::SYS_flock,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_mprotect,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_futex,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        libc::SYS_restart_syscall,
        libc::SYS_sched_yield,
        libc::SYS_exit,
        libc::SYS_exit_group,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_stat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lstat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink,
    ];

    /// Allowed calls with sizes and offsets, which have other names where registers have 32 bits.
    #[cfg(not(target_arch = "arm"))]
    const ALLOWED_OF_WIDTH: &[c_long] = &[
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statfs,
        libc::SYS_fstatfs,
        libc::SYS_ftruncate,
        libc::SYS_fadvise64,
        libc::SYS_mmap,
    ];
    #[cfg(target_arch = "arm")]
    const ALLOWED_OF_WIDTH: &[c_long] = &[
        libc::SYS_fstat64,
        libc::SYS_fstatat64,
        libc::SYS_statfs64,
        libc::SYS_fstatfs64,
        libc::SYS_ftruncate64,
        FADVISE64_64,
        libc::SYS_mmap2,
        libc::SYS__llseek,
        FUTEX_TIME64,
        CLOCK_GETTIME64,
        libc::SYS_open,
        libc::SYS_stat64,
        libc::SYS_lstat64,
        libc::SYS_unlink,
    ];

    // Numbers that `libc` does not define yet.
    #[cfg(target_arch = "arm")]
    const FADVISE64_64: c_long = 270;
    #[cfg(target_arch = "arm")]
    const CLOCK_GETTIME64: c_long = 403;
    #[cfg(target_arch = "arm")]
    const FUTEX_TIME64: c_long = 422;

    #[cfg(not(target_arch = "arm"))]
    const FCNTL: c_long = libc::SYS_fcntl;
    #[cfg(target_arch = "arm")]
    const FCNTL: c_long = libc::SYS_fcntl64;

    /// The allowed commands of `fcntl`: others could make the kernel signal arbitrary processes.
    const FCNTL_ALLOWED: &[i32] = &[libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC];

    // Offsets in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    const AUDIT_ARCHITECTURE: u32 = 4;
    /// The lower half of the argument, which is all that the kernel uses.
    const SECOND_ARGUMENT: u32 = 24;

    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

    pub(super) fn load() -> Result<(), Errno> {
        nodlet_kernel::security::install_filter(&program(), 0)
    }

    /// The filter program. Any other call fails with EPERM: a library that tries a new call then falls back
    /// to an old one, and an attacker gains nothing.
    fn program() -> Vec<sock_filter> {
        let fcntl = decision(SECOND_ARGUMENT, FCNTL_ALLOWED.iter().map(|command| *command as u32));
        let mut program = vec![
            instruction(LOAD, AUDIT_ARCHITECTURE, 0, 0),
            instruction(JUMP_IF_EQUAL, ARCHITECTURE, 1, 0),
            instruction(RETURN, REFUSE, 0, 0),
            instruction(LOAD, NUMBER, 0, 0),
            instruction(JUMP_IF_EQUAL, FCNTL as u32, 0, fcntl.len() as u8),
        ];
        program.extend(fcntl);
        let allowed: Vec<u32> = ALLOWED.iter().chain(ALLOWED_OF_WIDTH).map(|number| *number as u32).collect();
        program.extend(decision(NUMBER, allowed.into_iter()));
        program
    }

    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | Errno::EPERM as u32;

    fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
        sock_filter { code, jt, jf, k }
    }

    /// Allows the call if the value at this offset is one of these, and rejects it otherwise.
    fn decision(place: u32, allowed: impl ExactSizeIterator<Item = u32>) -> Vec<sock_filter> {
        let count = allowed.len();
        let mut program = vec![instruction(LOAD, place, 0, 0)];
        // Jump over the remaining comparisons and the rejection.
        let jumps = allowed.enumerate().map(|(index, value)| (value, (count - index) as u8));
        program.extend(jumps.map(|(value, jump)| instruction(JUMP_IF_EQUAL, value, jump, 0)));
        program.push(instruction(RETURN, REFUSE, 0, 0));
        program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
        program
    }
}

/// The call numbers of other architectures are not known here.
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "arm"
)))]
mod seccomp {
    use nix::errno::Errno;

    pub(super) fn load() -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
}
