//! [`Trace`]: follows processes by ptrace(2), with all threads and children that they create, until it is
//! dropped. Reports what they do to a [`Watcher`]; nodlet itself has no hook for this, and no cost.
//!
//! A [`Trace`] must not outlive the processes with which it began: end it first. Read next: `steps.rs`, which
//! kills processes with it, and `calls.rs`, which counts system calls.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use libc::{c_int, c_long, pid_t};

/// The receiver of a trace's events. The process in question is stopped while a method runs.
pub(crate) trait Watcher: Send + 'static {
    /// A followed process has created another process or a thread.
    fn born(&mut self, parent: pid_t, child: pid_t);
    /// A followed process has executed a program. Returns whether to follow it further.
    fn executed(&mut self, pid: pid_t) -> bool;
    /// Whether the process must stop at its system calls.
    fn stops_at_calls(&self, pid: pid_t) -> bool;
    /// A followed process begins or ends a system call.
    fn called(&mut self, pid: pid_t, call: &Call) -> Next;
    /// A followed process has ended.
    fn ended(&mut self, pid: pid_t);
}

/// The decision about a process at a system call.
pub(crate) enum Next {
    /// The process continues.
    Goes,
    /// The process continues, and so does this other one, which was stopped.
    GoesWith(pid_t),
    /// The process was killed, or stays stopped until another one resumes it.
    Stands,
    /// The trace ends: nothing is followed any more, and all threads go on.
    Ends,
}

/// A running trace. When it is dropped, the followed processes continue untraced.
pub(crate) struct Trace {
    thread: Option<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
}

impl Trace {
    /// Follows these processes, and everything that they create from now on.
    ///
    /// # Panics
    /// The processes cannot be traced: another process does so, or the machine forbids it.
    pub(crate) fn begin(pids: &[u32], watcher: impl Watcher) -> Trace {
        let ended = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let mut tracer =
            Tracer { watcher, followed: BTreeSet::new(), early: BTreeSet::new(), ended: Arc::clone(&ended) };
        let pids = pids.to_vec();
        let thread = thread::spawn(move || {
            let begun = pids.iter().try_for_each(|pid| tracer.seize(*pid));
            let failed = begun.is_err();
            let _ = ready.send(begun);
            if !failed {
                tracer.follow();
            }
            // The end of this thread detaches all processes that it follows.
        });
        is_ready.recv().expect("the thread answers").expect("a process of nodlet can be followed by ptrace");
        Trace { thread: Some(thread), ended }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            // The thread waits for traced processes; the signal interrupts its wait.
            wake(&thread);
            thread::sleep(Duration::from_millis(5));
        }
        let _ = thread.join();
    }
}

extern "C" fn nothing(_: c_int) {}

/// Interrupts the thread's system call.
fn wake(thread: &JoinHandle<()>) {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use std::os::unix::thread::JoinHandleExt;
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing; the thread was not joined, so its handle is valid.
    unsafe {
        let _ = sigaction(Signal::SIGUSR2, &action);
        libc::pthread_kill(thread.as_pthread_t() as _, libc::SIGUSR2);
    }
}

struct Tracer<W> {
    watcher: W,
    followed: BTreeSet<pid_t>,
    /// Processes that stopped before their parent's fork was reported.
    early: BTreeSet<pid_t>,
    ended: Arc<AtomicBool>,
}

/// Whether the thread has ended, except that its exit code may not be reaped.
pub(crate) fn is_over(thread: pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    // The preceding name may contain anything.
    stat.rsplit(')')
        .next()
        .is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z") || rest.starts_with(" X"))
}

/// Whether this thread follows the other one.
fn is_followed(thread: pid_t) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() == nix::unistd::gettid().to_string())
}

impl<W: Watcher> Tracer<W> {
    /// Attaches to all threads of a process. Succeeds without any if the process has ended meanwhile, as
    /// helpers of probes soon do.
    fn seize(&mut self, pid: u32) -> io::Result<()> {
        let threads = match std::fs::read_dir(format!("/proc/{pid}/task")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            threads => threads?,
        };
        for entry in threads.flatten() {
            let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(thread) = thread else { continue };
            let options = libc::PTRACE_O_TRACESYSGOOD
                | libc::PTRACE_O_TRACEFORK
                | libc::PTRACE_O_TRACEVFORK
                | libc::PTRACE_O_TRACECLONE
                | libc::PTRACE_O_TRACEEXEC;
            match ptrace(libc::PTRACE_SEIZE, thread, 0, options as usize) {
                // A thread of a followed one is followed from its first moment: it may be listed after that.
                Err(_) if is_over(thread) || is_followed(thread) => continue,
                seized => seized?,
            };
            self.followed.insert(thread);
            if self.watcher.stops_at_calls(thread) {
                // System calls are reported only after a first stop.
                ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0)?;
            }
        }
        Ok(())
    }

    fn follow(&mut self) {
        while !self.ended.load(Ordering::Acquire) {
            let mut status = 0;
            // Wait only for children of this thread: those of other tests are not to be reaped here.
            // SAFETY: the kernel writes one integer.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
            if pid < 0 {
                if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return;
            }
            if !libc::WIFSTOPPED(status) {
                self.forget(pid);
            } else if self.followed.contains(&pid) {
                self.stopped(pid, libc::WSTOPSIG(status), status >> 16);
            } else {
                self.early.insert(pid);
            }
        }
    }

    fn stopped(&mut self, pid: pid_t, signal: c_int, event: c_int) {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let mut child: libc::c_ulong = 0;
                if ptrace(libc::PTRACE_GETEVENTMSG, pid, 0, &raw mut child as usize).is_ok() {
                    let child = child as pid_t;
                    self.watcher.born(pid, child);
                    self.followed.insert(child);
                    if self.early.remove(&child) {
                        self.resume(child, 0);
                    }
                }
                self.resume(pid, 0);
            }
            libc::PTRACE_EVENT_EXEC => {
                if self.watcher.executed(pid) {
                    self.resume(pid, 0);
                } else {
                    self.forget(pid);
                    let _ = ptrace(libc::PTRACE_DETACH, pid, 0, 0);
                }
            }
            // A stop by the kernel, such as the first one of a child.
            libc::PTRACE_EVENT_STOP => self.resume(pid, 0),
            _ if signal == libc::SIGTRAP | 0x80 => {
                match call_of(pid).map_or(Next::Goes, |call| self.watcher.called(pid, &call)) {
                    Next::Goes => self.resume(pid, 0),
                    Next::GoesWith(other) => {
                        self.resume(other, 0);
                        self.resume(pid, 0);
                    }
                    Next::Stands => {}
                    Next::Ends => self.ended.store(true, Ordering::Release),
                }
            }
            _ => self.resume(pid, signal),
        }
    }

    fn forget(&mut self, pid: pid_t) {
        self.followed.remove(&pid);
        self.early.remove(&pid);
        self.watcher.ended(pid);
    }

    fn resume(&self, pid: pid_t, signal: c_int) {
        let how = if self.watcher.stops_at_calls(pid) { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
        // A process that was killed meanwhile cannot continue.
        let _ = ptrace(how, pid, 0, signal as usize);
    }
}

/// The used part of `struct ptrace_syscall_info`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Call {
    op: u8,
    _reserved: [u8; 3],
    _arch: u32,
    _instruction_pointer: u64,
    _stack_pointer: u64,
    number: u64,
    /// The arguments, at the beginning of a call.
    pub(crate) arguments: [u64; 6],
}

impl Call {
    /// Whether the call begins; otherwise it ends.
    pub(crate) fn begins(&self) -> bool {
        const ENTRY: u8 = 1;
        self.op == ENTRY
    }

    /// The call's number `SYS_*`, at its beginning.
    pub(crate) fn number(&self) -> c_long {
        self.number as c_long
    }
}

fn call_of(pid: pid_t) -> Option<Call> {
    const GET_SYSCALL_INFO: PtraceRequest = 0x420e;
    let mut call = Call::default();
    ptrace(GET_SYSCALL_INFO, pid, size_of::<Call>(), &raw mut call as usize).ok()?;
    Some(call)
}

/// The type of a ptrace(2) request, which C libraries declare with different signs.
#[cfg(target_env = "musl")]
pub type PtraceRequest = c_int;
/// The type of a ptrace(2) request, which C libraries declare with different signs.
#[cfg(not(target_env = "musl"))]
pub type PtraceRequest = libc::c_uint;

/// Calls ptrace(2).
///
/// # Errors
/// The system call fails, such as for a thread that does not stand.
pub(crate) fn ptrace(request: PtraceRequest, pid: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the caller passes what the request needs: a number, or a pointer to valid memory.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
