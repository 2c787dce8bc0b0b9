//! [`AgentSteps`]: follows an agent as a debugger does (`trace.rs`), counts its steps, and can kill it before its n-th.
//!
//! A *step* of an agent is a system call of which something is left when the agent dies: a change of a file, a mount, a
//! process, a signal, a message to a supervisor or to the kernel's network. What the agent begins between two steps is lost
//! with it, wherever it dies. Responses to clients are no steps, and neither is what the agent does between its execution
//! and the beginning of the trace, while it claims its directory.
//!
//! An [`AgentSteps`] must not outlive its agent, unless it killed it: end it first.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard};

use libc::{c_int, c_long, pid_t};

use crate::steps::name_of;
use crate::trace::{Call, Next, Trace, Watcher};

/// The steps of an agent.
pub struct AgentSteps {
    seen: Arc<Mutex<Seen>>,
    _trace: Trace,
}

#[derive(Default)]
struct Seen {
    made: u64,
    killed_before: Option<String>,
}

impl AgentSteps {
    /// Follows a running agent, and kills it before the step with this number, from 1.
    ///
    /// # Panics
    /// The agent cannot be traced: another process does so, or the machine forbids it.
    pub fn follow(agent: u32, kill_before: Option<u64>) -> AgentSteps {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let follower = Follower { agent: agent.cast_signed(), kill_before, seen: Arc::clone(&seen) };
        AgentSteps { seen, _trace: Trace::begin(&[agent], follower) }
    }

    /// The number of steps so far; with the one before which the agent was killed.
    pub fn made(&self) -> u64 {
        lock(&self.seen).made
    }

    /// The system call before which the agent was killed.
    pub fn killed_before(&self) -> Option<String> {
        lock(&self.seen).killed_before.clone()
    }
}

fn lock(mutex: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    mutex.lock().expect("nobody panics with it")
}

struct Follower {
    agent: pid_t,
    kill_before: Option<u64>,
    seen: Arc<Mutex<Seen>>,
}

impl Watcher for Follower {
    fn born(&mut self, _: pid_t, _: pid_t) {}

    /// Supervisors and other programs are not followed.
    fn executed(&mut self, _: pid_t) -> bool {
        false
    }

    fn stops_at_calls(&self, thread: pid_t) -> bool {
        thread == self.agent || std::path::Path::new(&format!("/proc/{}/task/{thread}", self.agent)).exists()
    }

    fn called(&mut self, _: pid_t, call: &Call) -> Next {
        if !call.begins() || !self.is_step(call) {
            return Next::Goes;
        }
        let mut seen = lock(&self.seen);
        if seen.killed_before.is_some() {
            return Next::Stands;
        }
        seen.made += 1;
        if self.kill_before != Some(seen.made) {
            return Next::Goes;
        }
        seen.killed_before = Some(name_of(call.number()));
        // SAFETY: no pointers; a thread of the agent is stopped by this tracer, so its number is still valid.
        unsafe { libc::kill(self.agent, libc::SIGKILL) };
        Next::Stands
    }

    fn ended(&mut self, _: pid_t) {}
}

impl Follower {
    fn is_step(&self, call: &Call) -> bool {
        let number = call.number();
        match number {
            libc::SYS_openat => makes(call.arguments[2]),
            libc::SYS_openat2 => self.number_at(call.arguments[2]).is_none_or(makes),
            #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
            libc::SYS_open => makes(call.arguments[1]),
            libc::SYS_clone => call.arguments[0] & libc::CLONE_THREAD as u64 == 0,
            _ if WRITES.contains(&number) => self.is_seen_by_others(call.arguments[0] as c_int),
            _ => STEPS.contains(&number) || STEPS_HERE.contains(&number),
        }
    }

    /// The number in the agent's memory at this address, such as the flags at the beginning of `struct open_how`.
    fn number_at(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.agent)).ok()?;
        memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Whether others than a client see what the agent writes to this descriptor.
    fn is_seen_by_others(&self, descriptor: c_int) -> bool {
        let Some(copy) = copy_of(self.agent, descriptor) else { return true };
        let option = |name| {
            let mut value: c_int = -1;
            let mut length = size_of::<c_int>() as libc::socklen_t;
            // SAFETY: the kernel writes one integer.
            let is_socket = unsafe {
                libc::getsockopt(
                    copy.as_raw_fd(),
                    libc::SOL_SOCKET,
                    name,
                    (&raw mut value).cast(),
                    &raw mut length,
                )
            };
            (is_socket == 0).then_some(value)
        };
        match option(libc::SO_DOMAIN) {
            Some(libc::AF_NETLINK) => true,
            // Supervisors have sockets of this type, and clients have streams.
            Some(_) => option(libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET),
            None => std::fs::File::from(copy).metadata().is_ok_and(|file| file.is_file()),
        }
    }
}

/// Whether an `open` with these flags changes something.
fn makes(flags: u64) -> bool {
    flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0
}

/// A copy of another process's descriptor.
fn copy_of(process: pid_t, descriptor: c_int) -> Option<OwnedFd> {
    // SAFETY: no pointers; both calls return a new descriptor, or a negative number.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, process, 0);
        let process = (process >= 0).then(|| OwnedFd::from_raw_fd(process as c_int))?;
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0);
        (copy >= 0).then(|| OwnedFd::from_raw_fd(copy as c_int))
    }
}

/// Calls that write to a descriptor.
const WRITES: &[c_long] = &[
    libc::SYS_copy_file_range,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Calls with an effect on files, mounts or processes.
const STEPS: &[c_long] = &[
    libc::SYS_bpf,
    libc::SYS_clone3,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_kill,
    libc::SYS_linkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_pidfd_send_signal,
    libc::SYS_renameat2,
    libc::SYS_setxattr,
    libc::SYS_symlinkat,
    libc::SYS_umount2,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
];

/// Further ones, which only some processors have.
#[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
const STEPS_HERE: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_fchown,
    libc::SYS_fork,
    libc::SYS_link,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_rmdir,
    libc::SYS_symlink,
    libc::SYS_unlink,
    libc::SYS_vfork,
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "arm")))]
const STEPS_HERE: &[c_long] = &[
    libc::SYS_fchown,
    // RISC-V has only renameat2.
    #[cfg(not(target_arch = "riscv64"))]
    libc::SYS_renameat,
];
