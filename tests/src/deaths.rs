//! Deaths of an agent by its own fault, while it handles an object.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use libc::pid_t;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::device::Device;
use crate::trace::{Call, Next, Trace, Watcher, ptrace};

/// Starts the agent, waits until its marks name a pod that a task handles, and then makes it die: not while the loop
/// handles anything, whose object would be taken for the cause, and not while a task handles the pod with the UID `other`.
pub fn die_while_a_task_handles(device: &mut Device, other: &str, kill: fn(Pid)) {
    let other = number_of(OsStr::new(other));
    die_when(device, kill, move |of_loop, of_tasks| {
        let mut handled =
            of_tasks.chunks(16).map(|mark| &mark[..8]).filter(|object| *object != [0; 8]).peekable();
        of_loop[..8] == [0; 8] && handled.peek().is_some() && handled.all(|object| object != other)
    });
}

/// Starts the agent, waits until its marks name this file as the one that the loop reads, and then makes it die. Its content
/// must be so large that the agent needs memory of the kernel while it reads it, which is a system call.
pub fn die_while_the_loop_reads(device: &mut Device, file: &Path, kill: fn(Pid)) {
    let object = number_of(file);
    die_when(device, kill, move |of_loop, _| of_loop[..8] == object);
}

/// The number by which a mark names an object.
fn number_of(object: impl Hash) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    hasher.finish().to_ne_bytes()
}

/// Starts the agent, waits until the marks of the loop and of tasks are such ones, and then makes it die. From its first
/// instruction on, the agent stops at each of its system calls, so that no mark is missed and the agent dies as soon as it
/// is set: a later death could find what the agent asked of a supervisor already done.
fn die_when(device: &mut Device, kill: fn(Pid), are_awaited: impl Fn(&[u8], &[u8]) -> bool + Send + 'static) {
    let (killed, is_killed) = mpsc::channel();
    device.launch_stopped_agent();
    let agent = device.agent_pid();
    let killer = Killer { marks: device.path("run/nodlet/handling"), agent, are_awaited, kill, killed };
    let trace = Trace::begin(&[agent], killer);
    send(Pid::from_raw(agent.cast_signed()), Signal::SIGCONT);
    let waited = is_killed.recv_timeout(Duration::from_secs(60));
    assert!(waited.is_ok(), "nothing is handled\n{}", device.agent_log());
    drop(trace);
    assert_ne!(device.agent_ended(), 0);
}

/// Makes the agent die as soon as its marks are awaited ones.
struct Killer<F> {
    marks: PathBuf,
    agent: u32,
    are_awaited: F,
    kill: fn(Pid),
    killed: mpsc::Sender<()>,
}

impl<F: Fn(&[u8], &[u8]) -> bool + Send + 'static> Watcher for Killer<F> {
    fn born(&mut self, _: pid_t, _: pid_t) {}

    /// The process that becomes the agent is followed, and nothing that the agent executes.
    fn executed(&mut self, process: pid_t) -> bool {
        process == self.agent.cast_signed()
    }

    /// Of the agent's threads, only the first one has marks.
    fn stops_at_calls(&self, thread: pid_t) -> bool {
        thread == self.agent.cast_signed()
    }

    fn called(&mut self, thread: pid_t, _: &Call) -> Next {
        let page = fs::read(&self.marks).unwrap_or_default();
        // The head has the agent's process. Behind it and the mark of the loop are the marks of tasks, each of which is
        // free if its first half is zero.
        let is_marked = page.len() > 40
            && page[16..20] == self.agent.to_ne_bytes()
            && (self.are_awaited)(&page[24..40], &page[40..]);
        if !is_marked {
            return Next::Goes;
        }
        (self.kill)(Pid::from_raw(thread));
        let _ = self.killed.send(());
        Next::Ends
    }

    fn ended(&mut self, _: pid_t) {}
}

/// Lets the thread, which stands and is traced, execute an address at which it has no memory.
pub fn fault(thread: Pid) {
    let mut registers = [0_u64; 128];
    let call = |request, registers: &mut [u64]| {
        let mut vector =
            libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of_val(registers) };
        ptrace(request, thread.as_raw(), 1, (&raw mut vector) as usize).expect("the thread stands");
        vector.iov_len / size_of::<u64>()
    };
    let count = call(libc::PTRACE_GETREGSET, &mut registers);
    let program_counter = if cfg!(target_arch = "x86_64") { 16 } else { 32 };
    registers[program_counter] = 0x1000;
    call(libc::PTRACE_SETREGSET, &mut registers[..count]);
}

/// Sends a signal to a process of this test.
pub fn send(process: Pid, signal: Signal) {
    nix::sys::signal::kill(process, signal).expect("a child can be signalled");
}
