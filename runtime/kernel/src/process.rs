//! Processes: forked, also inside a cgroup, waited for, ended at once, held by a descriptor.
//!
//! `unsafe`: clone3(2) into a cgroup, exit_group(2), close_range(2), kcmp(2) and pidfd_send_signal(2) of real-time signals
//! are in no crate; fork(2) and code between fork and exec are unsafe in `nix` and the standard library; waitid(2) of
//! `nix` has no real-time signals, and that of `rustix` not the number of the child.
//!
//! Forking is safe to call here: the child has a copy of the memory, in which no other thread runs, so that nothing is read
//! while it is written. What a child of a process with several threads must not do is to wait for a lock, such as that of
//! the allocator, which another thread held: it would wait for ever. So a caller has one thread, or its child only makes
//! system calls.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid};

use crate::errno;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The calling process.
    Caller,
    /// The parent of the calling process.
    CallersParent,
}

/// Forks by clone3(2); `None` in the child. With `cgroup`, the child starts in it: moving there afterwards waits for a
/// grace period of the kernel, some 5 ms. The C library does not learn of the child, so that this one must not start
/// threads.
///
/// # Errors
/// The kernel's.
pub fn clone(parent: Parent, cgroup: Option<BorrowedFd<'_>>) -> nix::Result<Option<Pid>> {
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
    let pid =
        Errno::result(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) });
    let pid = match pid {
        // A seccomp filter has no access to the flags of clone3 in memory, so it often forbids the call.
        Err(_) if cgroup.is_none() => {
            let flags = (args.flags | args.exit_signal) as libc::c_ulong;
            // SAFETY: as above; no stack is given.
            Errno::result(unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) })?
        }
        pid => pid?,
    };
    Ok((pid != 0).then(|| Pid::from_raw(pid as i32)))
}

/// fork(2) of the C library; `None` in the child, which may start threads.
///
/// # Errors
/// The kernel's.
pub fn fork() -> nix::Result<Option<Pid>> {
    // SAFETY: as the documentation of this module says, a child that waits for a lock waits for ever, and that is all.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// Ends the calling process at once, without destructors: for forked children. A seccomp profile may forbid the call,
/// which the C library would repeat for ever: then a fault ends the process.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: always allowed; the process ends, or goes on here.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    // SAFETY: no page is mapped at address 1, which ends the process by SIGSEGV. The address is not zero, which the
    // compiler may assume never to be written to.
    unsafe { std::ptr::without_provenance_mut::<u8>(1).write_volatile(0) };
    std::process::abort()
}

/// Makes the kernel send this signal to the command when the calling thread ends.
pub fn end_with_parent(command: &mut Command, signal: Signal) {
    // SAFETY: between fork and exec only a system call is made.
    unsafe { command.pre_exec(move || Ok(set_pdeathsig(signal)?)) };
}

/// Executes the command as a daemon: in a session of its own, and as no child of the caller. It gets the descriptors
/// `inherited`, under the same numbers.
///
/// # Errors
/// The command could not be executed.
pub fn spawn_daemon(command: &mut Command, inherited: &[BorrowedFd<'_>]) -> io::Result<()> {
    let inherited: Vec<RawFd> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: between fork and exec only system calls are made, on descriptors that are open until then.
    unsafe {
        command.pre_exec(move || {
            for descriptor in &inherited {
                Errno::result(libc::fcntl(*descriptor, libc::F_SETFD, 0))?;
            }
            libc::setsid();
            // The first child is reaped below; the command is executed by the second.
            match clone(Parent::Caller, None)? {
                Some(_) => exit_now(0),
                None => Ok(()),
            }
        });
    }
    command.spawn()?.wait().map(drop)
}

/// Takes over a descriptor that this process got when it was executed, by the number in its arguments or in a record of the
/// program before it. Each number must be taken over once, and nobody else may have it.
pub fn inherited(number: RawFd) -> OwnedFd {
    // SAFETY: the caller names a descriptor that was left open for it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Uses a descriptor that something else in this process keeps open, such as libcontainer, which knows it as a number.
pub fn kept(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the caller names a descriptor that stays open.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// close_range(2): closes the descriptors from `first` to `last`. Only forked children and a process that has just begun
/// may call this: nobody may use later what it closes.
///
/// # Errors
/// ENOSYS before Linux 5.9; EPERM where a filter forbids the call.
pub fn close_range(first: u32, last: u32) -> nix::Result<()> {
    // SAFETY: what is closed is owned by nobody who will use it.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Closes every descriptor except the standard three and those of `keep`, as [`close_range`].
pub fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<u32> =
        keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        if fd > first {
            let _ = close_range(first, fd - 1);
        }
        first = fd + 1;
    }
    let _ = close_range(first, u32::MAX);
}

/// pidfd_open(2): a descriptor of the process, which becomes readable when it has ended.
///
/// # Errors
/// ESRCH: there is no such process.
pub fn pidfd_open(pid: Pid) -> nix::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid.as_raw()).ok_or(Errno::EINVAL)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(errno)
}

/// pidfd_send_signal(2), also of real-time signals.
///
/// # Errors
/// ESRCH: the process has ended.
pub fn pidfd_send_signal(process: impl AsFd, signal: i32) -> nix::Result<()> {
    let process = process.as_fd().as_raw_fd();
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: with a null siginfo nothing of ours is read.
    Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, signal, none, 0) }).map(drop)
}

/// kcmp(2) with `KCMP_FILES`: whether two threads have the same table of descriptors. False if the kernel does not say it
/// (without `CONFIG_KCMP`).
pub fn share_descriptors(one: Pid, other: Pid) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: the call takes numbers alone.
    unsafe { libc::syscall(libc::SYS_kcmp, one.as_raw(), other.as_raw(), KCMP_FILES, 0, 0) == 0 }
}

/// sched_setscheduler(2) of the calling thread, which musl does not have.
///
/// # Errors
/// EPERM: `RLIMIT_RTPRIO` is lower, or the cgroup has no real-time bandwidth.
pub fn set_scheduler(policy: i32, priority: i32) -> nix::Result<()> {
    // SAFETY: the kernel reads one integer (`struct sched_param`).
    Errno::result(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) })
        .map(drop)
}

/// setenv(3), for a process that has one thread: another could read the environment meanwhile.
pub fn set_variable(name: &str, value: impl AsRef<OsStr>) {
    // SAFETY: the caller has one thread.
    unsafe { std::env::set_var(name, value) }
}

/// unsetenv(3), as [`set_variable`].
pub fn remove_variable(name: &str) {
    // SAFETY: the caller has one thread.
    unsafe { std::env::remove_var(name) }
}

/// How a child ended. `nix`'s `WaitStatus` is not used, since it has no name for real-time signals: a child
/// killed by one of them would be an error, and would stay unreaped for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
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
    pub fn code(self) -> i32 {
        match self {
            Ended::Exited(code) => code,
            Ended::Signaled(signal) => 128 + signal,
        }
    }

    /// The signal that killed the child.
    pub fn signal(self) -> Option<i32> {
        match self {
            Ended::Exited(_) => None,
            Ended::Signaled(signal) => Some(signal),
        }
    }
}

/// How a child that is not reaped yet has ended; it stays unreaped. `None` if it is alive, or not a child of
/// the caller.
pub fn ended(child: Pid) -> Option<Ended> {
    wait(Which::Child(child), libc::WNOHANG | libc::WNOWAIT).ok().flatten().map(|(_, ended)| ended)
}

/// Any child that has ended and is not reaped yet; it stays unreaped.
pub fn any_ended() -> Option<Pid> {
    wait(Which::Any, libc::WNOHANG | libc::WNOWAIT).ok().flatten().map(|(pid, _)| pid)
}

/// Reaps any child that has ended.
pub fn reap_any() -> Option<(Pid, Ended)> {
    wait(Which::Any, libc::WNOHANG).ok().flatten()
}

/// Reaps a child, if it has ended.
pub fn reap(child: Pid) {
    let _ = wait(Which::Child(child), libc::WNOHANG);
}

/// Waits until a child has ended, and reaps it. `None` if it is not a child of the caller.
pub fn wait_for(child: Pid) -> Option<Ended> {
    wait(Which::Child(child), 0).ok().flatten().map(|(_, ended)| ended)
}

/// Whether a process is a child of the caller, alive or not yet reaped.
pub fn is_child(pid: Pid) -> bool {
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
pub fn has_executed(pid: Pid) -> bool {
    /// `PF_FORKNOEXEC` in the flags of proc_pid_stat(5): the process was forked and has not executed a
    /// program.
    const FORKED: u64 = 0x40;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let flags = fields.split_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & FORKED == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Real children that end in every possible way.
    #[test]
    fn every_wait_status_is_understood() {
        let end_as = |end: &dyn Fn()| {
            let child = clone(Parent::Caller, None).unwrap();
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
    /// In this process as in nodlet, the standard library handles faults.
    #[test]
    fn a_process_whose_filter_forbids_every_call_ends_by_a_fault() {
        // Each call fails with EPERM. The child cannot allocate: another thread may hold the allocator's lock.
        let program = [0x06 | (0x0005_0000 | libc::EPERM as u64) << 32];
        let child = clone(Parent::Caller, None).unwrap();
        let Some(child) = child else {
            let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: no pointers, and the kernel's own structure.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &raw const core);
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            }
            let _ = crate::signal::reset(libc::SIGSEGV);
            let installed = crate::security::install_filter(&program, 0);
            exit_now(if installed.is_ok() { 0 } else { 99 })
        };
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let ended_as = loop {
            if let Some(ended) = ended(child) {
                break Some(ended);
            }
            if std::time::Instant::now() > until {
                break None;
            }
            std::thread::yield_now();
        };
        let _ = nix::sys::signal::kill(child, Some(nix::sys::signal::Signal::SIGKILL));
        wait_for(child);
        assert_eq!(ended_as, Some(Ended::Signaled(libc::SIGSEGV)));
    }
}
