//! Deaths of an agent by its own fault, while it handles an object.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::device::Device;
use crate::trace::ptrace;

/// Waits until the agent's marks name a pod that a task handles, and then makes the agent die: not while the loop handles
/// anything, whose object would be taken for the cause, and not while a task handles the pod with the UID `other`.
pub fn die_while_a_task_handles(device: &mut Device, other: &str, kill: fn(Pid)) {
    let other = number_of(OsStr::new(other));
    die_when(device, kill, |of_loop, of_tasks| {
        let mut handled =
            of_tasks.chunks(16).map(|mark| &mark[..8]).filter(|object| *object != [0; 8]).peekable();
        of_loop[..8] == [0; 8] && handled.peek().is_some() && handled.all(|object| object != other)
    });
}

/// Waits until the agent's marks name this file as the one that the loop reads, and then makes the agent die. Its content
/// must be so large that the agent needs memory of the kernel while it reads it, which is a system call.
pub fn die_while_the_loop_reads(device: &mut Device, file: &Path, kill: fn(Pid)) {
    let object = number_of(file);
    die_when(device, kill, |of_loop, _| of_loop[..8] == object);
}

/// The number by which a mark names an object.
fn number_of(object: impl Hash) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    hasher.finish().to_ne_bytes()
}

/// Waits until the marks of the loop and of tasks are such ones, and then makes the agent die. The agent stops at each of
/// its system calls, so that no mark is missed and the agent dies as soon as it is set: a later death could find what the
/// agent asked of a supervisor already done.
fn die_when(device: &mut Device, kill: fn(Pid), are_awaited: impl Fn(&[u8], &[u8]) -> bool) {
    let marks = device.path("run/nodlet/handling");
    let pid = device.agent_pid().to_ne_bytes();
    // The head has the agent's process. Behind it and the mark of the loop are the marks of tasks, each of which is free
    // if its first half is zero.
    let is_marked = || {
        let page = fs::read(&marks).unwrap_or_default();
        page.len() > 32 && page[8..12] == pid && are_awaited(&page[16..32], &page[32..])
    };
    let until = Instant::now() + Duration::from_secs(60);
    let agent = Pid::from_raw(device.agent_pid().cast_signed());
    let call = |request, data: usize| {
        ptrace(request, agent.as_raw(), 0, data).unwrap_or_else(|error| panic!("ptrace({request}): {error}"));
    };
    // Of the agent's threads, only the first one has marks.
    call(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACESYSGOOD as usize);
    call(libc::PTRACE_INTERRUPT, 0);
    loop {
        match waitpid(agent, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)).expect("the agent is a child")
        {
            WaitStatus::StillAlive => {
                assert!(Instant::now() < until, "nothing is handled\n{}", device.agent_log());
                thread::sleep(Duration::from_millis(1));
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => panic!("{}", device.agent_log()),
            _ if is_marked() => break,
            WaitStatus::Stopped(_, signal) => call(libc::PTRACE_SYSCALL, signal as usize),
            _ => call(libc::PTRACE_SYSCALL, 0),
        }
    }
    kill(agent);
    // A killed process cannot be detached.
    let _ = ptrace(libc::PTRACE_DETACH, agent.as_raw(), 0, 0);
    assert_ne!(device.agent_ended(), 0);
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
