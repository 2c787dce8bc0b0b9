//! Deaths of an agent by its own fault, while it handles an object.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::device::Device;

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

/// Waits until the agent's marks name this file as the one that the loop reads, and then makes the agent die. Reading must
/// take so long that this is seen.
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

/// Waits until the marks of the loop and of tasks are such ones, and then makes the agent die.
fn die_when(device: &mut Device, kill: fn(Pid), are_awaited: impl Fn(&[u8], &[u8]) -> bool) {
    let marks = device.path("run/nodlet/handling");
    let pid = device.agent_pid().to_ne_bytes();
    // The head has the agent's process. Behind it and the mark of the loop are the marks of tasks, each of which is free
    // if its first half is zero.
    let is_marked = || {
        let page = fs::read(&marks).unwrap_or_default();
        page.len() > 32 && page[8..12] == pid && are_awaited(&page[16..32], &page[32..])
    };
    let until = Instant::now() + Duration::from_secs(30);
    let agent = Pid::from_raw(device.agent_pid().cast_signed());
    loop {
        assert!(Instant::now() < until, "nothing is handled\n{}", device.agent_log());
        if is_marked() {
            // It may have finished meanwhile.
            send(agent, Signal::SIGSTOP);
            device.wait_for("the stop", || {
                let stat = fs::read_to_string(format!("/proc/{agent}/stat")).unwrap_or_default();
                stat.contains(") T ") || stat.contains(") t ")
            });
            if is_marked() {
                break;
            }
            send(agent, Signal::SIGCONT);
        }
    }
    kill(agent);
    send(agent, Signal::SIGCONT);
    assert_ne!(device.agent_ended(), 0);
}

/// Lets the process execute an address at which it has no memory.
pub fn fault(process: Pid) {
    let pid = process.as_raw();
    const REGISTERS: usize = 128;
    let mut registers = [0_u64; REGISTERS];
    let vector = |registers: &mut [u64; REGISTERS]| libc::iovec {
        iov_base: registers.as_mut_ptr().cast(),
        iov_len: REGISTERS * 8,
    };
    // The C libraries differ in the sign of a request.
    let trace = |request: i64, address: usize, data: *mut libc::c_void| {
        // SAFETY: the addresses are of `registers`, or none.
        let done = unsafe { libc::ptrace(request as _, pid, address, data) };
        assert_eq!(done, 0, "ptrace: {}", std::io::Error::last_os_error());
    };
    trace(i64::from(libc::PTRACE_ATTACH), 0, std::ptr::null_mut());
    // SAFETY: no address is passed.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) }, pid);
    let mut read = vector(&mut registers);
    trace(i64::from(libc::PTRACE_GETREGSET), 1, (&raw mut read).cast());
    let program_counter = if cfg!(target_arch = "x86_64") { 16 } else { 32 };
    registers[program_counter] = 0x1000;
    // As many as the kernel has.
    let mut written = libc::iovec { iov_len: read.iov_len, ..vector(&mut registers) };
    trace(i64::from(libc::PTRACE_SETREGSET), 1, (&raw mut written).cast());
    trace(i64::from(libc::PTRACE_DETACH), 0, std::ptr::null_mut());
}

/// Sends a signal to a process of this test.
pub fn send(process: Pid, signal: Signal) {
    nix::sys::signal::kill(process, signal).expect("a child can be signalled");
}
