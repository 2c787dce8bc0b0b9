//! [`Trace`]: processes followed by ptrace(2), with all threads and children that
//! they make, for as long as it lives. What is seen of them is told to a
//! [`Watcher`]; nodlet itself has no hook for it and pays nothing.
//!
//! It must not outlive the processes that it began with: end it first. Read next:
//! `steps.rs`, which kills with it, and `calls.rs`, which counts.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use libc::{c_int, c_long, pid_t};

/// What is done with what is seen. It is asked while the process in question stands still.
pub(crate) trait Watcher: Send + 'static {
    /// A followed process has made another, or a thread.
    fn born(&mut self, parent: pid_t, child: pid_t);
    /// It has executed a program; whether to follow it further.
    fn executed(&mut self, pid: pid_t) -> bool;
    /// Whether it is to stop at its system calls.
    fn stops_at_calls(&self, pid: pid_t) -> bool;
    /// A system call begins or ends.
    fn called(&mut self, pid: pid_t, call: &Call) -> Next;
    /// It is gone.
    fn ended(&mut self, pid: pid_t);
}

/// What becomes of a process at a system call.
pub(crate) enum Next {
    /// It goes on.
    Goes,
    /// It goes on, and so does this one, which stands still.
    GoesWith(pid_t),
    /// It was killed, or stands still until another goes on with it.
    Stands,
}

/// Ends when it is dropped: what was followed goes on unseen.
pub(crate) struct Trace {
    thread: Option<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Trace {
    /// Follows these processes, and what they make from now on.
    ///
    /// # Panics
    /// If they cannot be followed: somebody else does, or the machine forbids it.
    pub(crate) fn begin(pids: &[u32], watcher: impl Watcher) -> Trace {
        let over = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let mut tracer =
            Tracer { watcher, followed: BTreeSet::new(), early: BTreeSet::new(), over: Arc::clone(&over) };
        let pids = pids.to_vec();
        let thread = thread::spawn(move || {
            let begun = pids.iter().try_for_each(|pid| tracer.seize(*pid));
            let failed = begun.is_err();
            let _ = ready.send(begun);
            if !failed {
                tracer.follow();
            }
            // The kernel lets go of all that this thread follows.
        });
        is_ready.recv().expect("the thread answers").expect("a process of nodlet can be followed by ptrace");
        Trace { thread: Some(thread), over }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            // It waits for what it follows; this makes it look up.
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
    /// Processes that stopped before their parent's fork was heard of.
    early: BTreeSet<pid_t>,
    over: Arc<AtomicBool>,
}

/// Whether there is no such thread any more but for its exit code.
fn is_over(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    // The name before it may have anything in it.
    stat.rsplit(')')
        .next()
        .is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z") || rest.starts_with(" X"))
}

impl<W: Watcher> Tracer<W> {
    /// All threads of a process; none of one that is over meanwhile, as the helper of a probe soon is.
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
                Err(_) if is_over(thread) => continue,
                seized => seized?,
            };
            self.followed.insert(thread);
            if self.watcher.stops_at_calls(thread) {
                // Until it has stopped once, nobody hears of what it calls.
                ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0)?;
            }
        }
        Ok(())
    }

    fn follow(&mut self) {
        while !self.over.load(Ordering::Acquire) {
            let mut status = 0;
            // Only what this very thread follows: the children of tests are not its to reap.
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
            // A stop of the kernel's own, as the first one of a child.
            libc::PTRACE_EVENT_STOP => self.resume(pid, 0),
            _ if signal == libc::SIGTRAP | 0x80 => {
                match call_of(pid).map_or(Next::Goes, |call| self.watcher.called(pid, &call)) {
                    Next::Goes => self.resume(pid, 0),
                    Next::GoesWith(other) => {
                        self.resume(other, 0);
                        self.resume(pid, 0);
                    }
                    Next::Stands => {}
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
        // One that was killed meanwhile is not there to go on.
        let _ = ptrace(how, pid, 0, signal as usize);
    }
}

/// `struct ptrace_syscall_info`, as far as it is read here.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Call {
    op: u8,
    _reserved: [u8; 3],
    _arch: u32,
    _instruction_pointer: u64,
    _stack_pointer: u64,
    number: u64,
    /// Where it begins.
    pub(crate) arguments: [u64; 6],
}

impl Call {
    /// Whether it begins now; else it ends.
    pub(crate) fn begins(&self) -> bool {
        const ENTRY: u8 = 1;
        self.op == ENTRY
    }

    /// `SYS_*`, where it begins.
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

/// What ptrace(2) is asked for, which C libraries declare with different signs.
#[cfg(target_env = "musl")]
pub type PtraceRequest = c_int;
/// What ptrace(2) is asked for, which C libraries declare with different signs.
#[cfg(not(target_env = "musl"))]
pub type PtraceRequest = libc::c_uint;

fn ptrace(request: PtraceRequest, pid: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: who calls passes what the request wants: a number, or a pointer to room that lives.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
