//! Simulates a kernel whose entropy pool is empty, by a seccomp filter of a thread.

use std::io;

use libc::{c_ulong, sock_filter, sock_fprog};

/// The error of calls that would block, in these tests.
pub const WOULD_HAVE_BLOCKED: i32 = libc::EDEADLK;

/// From now on, `getrandom` behaves as if the pool were empty, in this thread and in those that it starts.
fn empty_the_pool() {
    /// Offsets in `struct seccomp_data`: the call's number, and the lower half of its third argument.
    const NUMBER: u32 = 0;
    const FLAGS: u32 = if cfg!(target_endian = "big") { 36 } else { 32 };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let skip = |kind, value, yes, no| statement(libc::BPF_JMP | kind | libc::BPF_K, value, yes, no);
    let answer = |value| statement(libc::BPF_RET | libc::BPF_K, value, 0, 0);
    let mut program = [
        load(NUMBER),
        skip(libc::BPF_JEQ, libc::SYS_getrandom as u32, 0, 2),
        load(FLAGS),
        skip(libc::BPF_JSET, libc::GRND_INSECURE, 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        skip(libc::BPF_JSET, libc::GRND_NONBLOCK, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32),
        answer(libc::SECCOMP_RET_ERRNO | WOULD_HAVE_BLOCKED as u32),
    ];
    let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers only.
    let unprivileged = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0, 0, 0) };
    assert_eq!(unprivileged, 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel copies the program, which lives until then.
    let filtered =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    assert_eq!(filtered, 0, "{}", io::Error::last_os_error());
}

fn statement(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Runs a test on a separate thread, for which the pool is empty.
pub fn with_an_empty_pool(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        empty_the_pool();
        test();
    });
    thread.join().expect("the test succeeds");
}
