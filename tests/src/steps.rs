//! [`Steps`]: follows the system calls of a pod's processes, and can kill one of them before its n-th.
//!
//! Processes are traced as by a debugger (`trace.rs`): the supervisors that an agent starts, and the helpers
//! that they fork, until those execute the container's program. A *step* is a system call with an effect that
//! others can notice; between two steps it makes no difference when a process dies.
//!
//! [`Steps::hold_a_name`] can also delay a helper until the process that it made has ended.
//!
//! A [`Steps`] must not outlive the agent or the supervisors that it follows: end it first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use libc::{c_long, pid_t};

use crate::trace::{Call, Next, Trace, Watcher, is_over};

/// The role of a pod's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The supervisor.
    Supervisor,
    /// The helper that creates the namespaces shared by the containers.
    SandboxHelper,
    /// The first process of a shared PID namespace.
    Pause,
    /// The helper that builds a container.
    StartHelper,
    /// libcontainer's process between the start helper and the container's process.
    Intermediate,
    /// The container's process, before it executes the container's program.
    Init,
    /// The helper that executes a process beside the container's, and that process before it executes its
    /// program.
    ExecHelper,
    /// A newer binary that is asked whether it can take over from a supervisor.
    Trial,
    /// The supervisor after it has executed a newer binary.
    Successor,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 9] = [
        Role::Supervisor,
        Role::SandboxHelper,
        Role::Pause,
        Role::StartHelper,
        Role::Intermediate,
        Role::Init,
        Role::ExecHelper,
        Role::Trial,
        Role::Successor,
    ];

    /// The role of a process with this name, which it has given itself.
    fn named(name: &str) -> Option<Role> {
        Some(match name {
            "nodlet:super" => Role::Supervisor,
            "nodlet:sandbox" => Role::SandboxHelper,
            "nodlet:start" => Role::StartHelper,
            "youki:[1:INTER]" => Role::Intermediate,
            "youki:[2:INIT]" => Role::Init,
            "nodlet:exec" => Role::ExecHelper,
            _ => return None,
        })
    }
}

/// A step: the `number`th, from 1, of the processes with this role in the life of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// The role of the process.
    pub role: Role,
    /// The number of the step, from 1.
    pub number: u32,
}

/// The observations of one pod.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// The number of steps of each role.
    pub made: BTreeMap<Role, u32>,
    /// The system call before which a process was killed.
    pub killed_before: Option<String>,
    /// Whether an exec helper was delayed until the supervisor had noticed the end of the process that it
    /// made.
    pub held: bool,
}

/// Follows the processes of an agent's pods until it is dropped.
pub struct Steps {
    _trace: Trace,
    seen: Arc<Mutex<BTreeMap<String, Followed>>>,
}

impl Steps {
    /// Follows the processes that the agent starts from now on. `aims` returns, for the uid of a pod, the
    /// step before which to kill a process: once, in the pod's first sandbox.
    ///
    /// # Panics
    /// The agent cannot be traced: another process does so, or the machine forbids it.
    pub fn follow(agent: u32, aims: impl Fn(&str) -> Option<Step> + Send + 'static) -> Steps {
        Steps::begin(&[agent], BTreeMap::new(), Box::new(aims), false)
    }

    /// Follows running supervisors, given by the uids of their pods, and the processes that they fork.
    ///
    /// # Panics
    /// A supervisor cannot be traced, as in [`Steps::follow`].
    pub fn follow_supervisors(
        supervisors: BTreeMap<String, u32>,
        aims: impl Fn(&str) -> Option<Step> + Send + 'static,
    ) -> Steps {
        let pids: Vec<u32> = supervisors.values().copied().collect();
        let tracee = |(uid, pid): (String, u32)| {
            (pid.cast_signed(), Tracee { uid, role: Some(Role::Supervisor), naming: false })
        };
        Steps::begin(&pids, supervisors.into_iter().map(tracee).collect(), Box::new(aims), false)
    }

    /// Follows the processes that the agent starts from now on, without killing any. Delays the first exec
    /// helper of each pod when it is about to send its process's ID, until that process has ended and the
    /// supervisor has noticed the end.
    ///
    /// # Panics
    /// The agent cannot be traced, as in [`Steps::follow`].
    pub fn hold_a_name(agent: u32) -> Steps {
        Steps::begin(&[agent], BTreeMap::new(), Box::new(|_| None), true)
    }

    fn begin(pids: &[u32], tracees: BTreeMap<pid_t, Tracee>, aims: Aims, holds: bool) -> Steps {
        let known = tracees.values().map(|tracee| (tracee.uid.clone(), Followed::default()));
        let seen = Arc::new(Mutex::new(known.collect()));
        let follower = Follower {
            tracees,
            aims,
            holds,
            made: BTreeMap::new(),
            looked: BTreeSet::new(),
            held: BTreeMap::new(),
            seen: Arc::clone(&seen),
        };
        Steps { _trace: Trace::begin(pids, follower), seen }
    }

    /// The observations so far of the pod with this uid.
    pub fn of(&self, uid: &str) -> Followed {
        lock(&self.seen).get(uid).cloned().unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics with it")
}

/// A traced process of a pod.
#[derive(Clone, Debug)]
struct Tracee {
    uid: String,
    /// The process's role; `None` until it has named itself.
    role: Option<Role>,
    /// Whether the process is just naming itself.
    naming: bool,
}

/// A function that returns, for the uid of a pod, the step before which to kill a process.
type Aims = Box<dyn Fn(&str) -> Option<Step> + Send>;

/// A delayed exec helper.
struct Held {
    helper: pid_t,
    /// The process that the helper has made.
    process: pid_t,
    /// Whether the supervisor has waited for children after this process had ended.
    looked: bool,
}

struct Follower {
    /// All traced processes, without the agent and its children: those appear here when they execute a
    /// supervisor.
    tracees: BTreeMap<pid_t, Tracee>,
    aims: Aims,
    /// Whether exec helpers are delayed.
    holds: bool,
    /// The process that each exec helper has forked.
    made: BTreeMap<pid_t, pid_t>,
    /// The forked processes that had ended when a supervisor waited for children.
    looked: BTreeSet<pid_t>,
    /// Delayed helpers by the uid of their pod.
    held: BTreeMap<String, Held>,
    seen: Arc<Mutex<BTreeMap<String, Followed>>>,
}

impl Watcher for Follower {
    fn born(&mut self, parent: pid_t, child: pid_t) {
        let Some(Tracee { uid, role, .. }) = self.tracees.get(&parent) else { return };
        if *role == Some(Role::ExecHelper) {
            self.made.insert(parent, child);
        }
        let role = match role {
            // A process that the exec helper makes does not name itself.
            Some(Role::ExecHelper) => Some(Role::ExecHelper),
            // In a PID namespace that the pod shares, a child process continues.
            Some(Role::Init) => Some(Role::Init),
            Some(Role::SandboxHelper) => Some(Role::Pause),
            // These are recognised by the name that they will give themselves.
            Some(
                Role::Supervisor
                | Role::Pause
                | Role::StartHelper
                | Role::Intermediate
                | Role::Trial
                | Role::Successor,
            )
            | None => None,
        };
        let tracee = Tracee { uid: uid.clone(), role, naming: false };
        self.tracees.insert(child, tracee);
    }

    /// Follows executed supervisors, and no other executed programs.
    fn executed(&mut self, pid: pid_t) -> bool {
        if let Some(Tracee { role: Some(role), .. }) = self.tracees.get_mut(&pid)
            && matches!(role, Role::Supervisor | Role::Trial | Role::Successor)
        {
            if *role == Role::Supervisor {
                *role = Role::Successor;
            }
            return true;
        }
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> =
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        if words.get(1).is_some_and(|word| word == "supervisor")
            && let Some(uid) = words.get(2).and_then(|dir| dir.rsplit('/').next())
            && !lock(&self.seen).contains_key(uid)
        {
            // This is the pod's first supervisor; those after a kill are not followed.
            lock(&self.seen).insert(uid.to_owned(), Followed::default());
            self.tracees.insert(pid, Tracee { uid: uid.to_owned(), role: None, naming: false });
            return true;
        }
        false
    }

    fn stops_at_calls(&self, pid: pid_t) -> bool {
        self.tracees.contains_key(&pid)
    }

    fn called(&mut self, pid: pid_t, call: &Call) -> Next {
        let Some(Tracee { uid, role, naming }) = self.tracees.get_mut(&pid) else { return Next::Goes };
        if !call.begins() {
            if std::mem::take(naming) && !matches!(role, Some(Role::Trial | Role::Successor)) {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                *role = Role::named(name.trim_end()).or(*role);
            }
            return Next::Goes;
        }
        let number = call.number();
        if role.is_none() && number == libc::SYS_execve {
            // No other process of nodlet executes a program before it has named itself.
            *role = Some(Role::Trial);
        }
        *naming = number == libc::SYS_prctl && call.arguments[0] == libc::PR_SET_NAME as u64;
        if self.holds
            && let Some(role) = *role
        {
            let uid = uid.clone();
            return self.hold(pid, &uid, role, number);
        }
        let (Some(role), true) = (*role, is_step(call)) else { return Next::Goes };
        let mut seen = lock(&self.seen);
        let pod = seen.entry(uid.clone()).or_default();
        let made = pod.made.entry(role).or_default();
        *made += 1;
        let step = Step { role, number: *made };
        if pod.killed_before.is_some() || (self.aims)(uid) != Some(step) {
            return Next::Goes;
        }
        pod.killed_before = Some(name_of(number));
        // SAFETY: no pointers; the process is stopped by this tracer, so its number is still valid.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        Next::Stands
    }

    fn ended(&mut self, pid: pid_t) {
        self.tracees.remove(&pid);
    }
}

impl Follower {
    /// Handles the beginning of a system call if helpers are delayed.
    fn hold(&mut self, pid: pid_t, uid: &str, role: Role, call: c_long) -> Next {
        let waits = is_wait_for_news(call);
        match (role, self.held.get_mut(uid)) {
            (Role::ExecHelper, None) if call == libc::SYS_sendmsg => {
                let Some(process) = self.made.get(&pid).copied() else { return Next::Goes };
                let mut seen = lock(&self.seen);
                let pod = seen.entry(uid.to_owned()).or_default();
                // The supervisor had noticed the end before the name was known, without any delay.
                if std::mem::replace(&mut pod.held, true) || self.looked.contains(&process) {
                    return Next::Goes;
                }
                self.held.insert(uid.to_owned(), Held { helper: pid, process, looked: false });
                Next::Stands
            }
            (Role::Supervisor, None) if call == libc::SYS_waitid => {
                self.looked.extend(self.made.values().copied().filter(|process| is_over(*process)));
                Next::Goes
            }
            (Role::Supervisor, Some(held)) if call == libc::SYS_waitid && is_over(held.process) => {
                held.looked = true;
                Next::Goes
            }
            (Role::Supervisor, Some(held)) if waits && held.looked => {
                let helper = held.helper;
                self.held.remove(uid);
                Next::GoesWith(helper)
            }
            _ => Next::Goes,
        }
    }
}

/// Whether a process sleeps in this system call until something happens.
fn is_wait_for_news(call: c_long) -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
    if call == libc::SYS_poll || call == libc::SYS_epoll_wait {
        return true;
    }
    #[cfg(target_arch = "arm")]
    if call == SYS_PPOLL_TIME64 {
        return true;
    }
    call == libc::SYS_ppoll || call == libc::SYS_epoll_pwait
}

/// System calls without an effect on others: whatever they create belongs to the process, and disappears with
/// it.
const UNSEEN: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_futex,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_memfd_create,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_pidfd_open,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_prlimit64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_statx,
    libc::SYS_tgkill,
    libc::SYS_umask,
    libc::SYS_uname,
];

/// More calls without effects, which only some processors have.
#[cfg(target_arch = "x86_64")]
const UNSEEN_HERE: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_lstat,
    libc::SYS_mmap,
    libc::SYS_newfstatat,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_statfs,
];
#[cfg(target_arch = "arm")]
const UNSEEN_HERE: &[c_long] = &[
    SYS_CLOCK_GETTIME64,
    SYS_FUTEX_TIME64,
    SYS_PPOLL_TIME64,
    SYS_SET_TLS,
    libc::SYS__llseek,
    libc::SYS_access,
    libc::SYS_dup2,
    libc::SYS_fcntl64,
    libc::SYS_fstat64,
    libc::SYS_fstatat64,
    libc::SYS_fstatfs64,
    libc::SYS_getegid32,
    libc::SYS_geteuid32,
    libc::SYS_getgid32,
    libc::SYS_getgroups32,
    libc::SYS_getuid32,
    libc::SYS_lstat64,
    libc::SYS_mmap2,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat64,
    libc::SYS_statfs64,
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "arm")))]
const UNSEEN_HERE: &[c_long] = &[
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_mmap,
    libc::SYS_newfstatat,
    libc::SYS_statfs,
];

// Numbers that `libc` does not define yet.
#[cfg(target_arch = "arm")]
const SYS_CLOCK_GETTIME64: c_long = 403;
#[cfg(target_arch = "arm")]
const SYS_PPOLL_TIME64: c_long = 414;
#[cfg(target_arch = "arm")]
const SYS_FUTEX_TIME64: c_long = 422;
#[cfg(target_arch = "arm")]
const SYS_SET_TLS: c_long = 0xf0005;

/// Whether others can notice that the call was made. Unknown calls count as steps.
fn is_step(call: &Call) -> bool {
    let number = call.number();
    let makes = |flags: u64| flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0;
    match number {
        libc::SYS_openat => makes(call.arguments[2]),
        #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
        libc::SYS_open => makes(call.arguments[1]),
        libc::SYS_openat2 => false,
        // Looking at a child that has ended does not reap it.
        libc::SYS_waitid => call.arguments[3] & libc::WNOWAIT as u64 == 0,
        _ => !UNSEEN.contains(&number) && !UNSEEN_HERE.contains(&number),
    }
}

/// The names of the most important system calls, for people.
pub(crate) fn name_of(number: c_long) -> String {
    const NAMES: &[(c_long, &str)] = &[
        (libc::SYS_accept4, "accept4"),
        (libc::SYS_capset, "capset"),
        (libc::SYS_chdir, "chdir"),
        (libc::SYS_clone, "clone"),
        (libc::SYS_clone3, "clone3"),
        (libc::SYS_execve, "execve"),
        (libc::SYS_exit_group, "exit_group"),
        (libc::SYS_ftruncate, "ftruncate"),
        (libc::SYS_kill, "kill"),
        (libc::SYS_mkdirat, "mkdirat"),
        (libc::SYS_mount, "mount"),
        (libc::SYS_move_mount, "move_mount"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_open_tree, "open_tree"),
        (libc::SYS_pidfd_send_signal, "pidfd_send_signal"),
        (libc::SYS_pivot_root, "pivot_root"),
        (libc::SYS_pwrite64, "pwrite64"),
        (libc::SYS_sendmsg, "sendmsg"),
        (libc::SYS_sendto, "sendto"),
        (libc::SYS_setns, "setns"),
        (libc::SYS_umount2, "umount2"),
        (libc::SYS_unlinkat, "unlinkat"),
        (libc::SYS_unshare, "unshare"),
        (libc::SYS_waitid, "waitid"),
        (libc::SYS_write, "write"),
    ];
    #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
    const HERE: &[(c_long, &str)] = &[
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_fchown, "fchown"),
        #[cfg(target_arch = "arm")]
        (libc::SYS_fchown32, "fchown"),
        (libc::SYS_chmod, "chmod"),
        (libc::SYS_fork, "fork"),
        (libc::SYS_mkdir, "mkdir"),
        (libc::SYS_open, "open"),
        (libc::SYS_rename, "rename"),
        (libc::SYS_rmdir, "rmdir"),
        (libc::SYS_symlink, "symlink"),
        (libc::SYS_unlink, "unlink"),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "arm")))]
    const HERE: &[(c_long, &str)] = &[(libc::SYS_fchown, "fchown")];
    let mut known = NAMES.iter().chain(HERE);
    known
        .find(|(of, _)| *of == number)
        .map_or_else(|| format!("system call {number}"), |(_, name)| (*name).to_owned())
}
