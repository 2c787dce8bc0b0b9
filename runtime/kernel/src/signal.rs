//! Signals: their actions and masks.
//!
//! `unsafe`: to set an action is unsafe in `nix`, and neither it nor a mask can name real-time signals there.

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal};

/// The size of the kernel's signal set in bytes.
const SET_SIZE: usize = 8;

/// Sets the default action for a signal, by its number.
///
/// # Errors
/// EINVAL: SIGKILL, SIGSTOP or no signal.
pub fn reset(number: i32) -> nix::Result<()> {
    // The kernel's `struct sigaction` on any architecture: SIG_DFL, no flags, no mask.
    let default = [0u64; 4];
    let old = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the default action runs no code, and the kernel reads one structure.
    Errno::result(unsafe { libc::syscall(libc::SYS_rt_sigaction, number, default.as_ptr(), old, SET_SIZE) })
        .map(drop)
}

/// Ignores a signal.
///
/// # Errors
/// EINVAL: SIGKILL or SIGSTOP.
pub fn ignore(signal: Signal) -> nix::Result<()> {
    // SAFETY: to ignore runs no code.
    unsafe { nix::sys::signal::signal(signal, SigHandler::SigIgn) }.map(drop)
}

/// Unblocks all signals, real-time ones too.
pub fn unblock_all() {
    let empty = 0u64;
    let old = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel reads one signal set.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const empty, old, SET_SIZE);
    }
}

/// Sends a signal with its default action to the calling thread. In a handler of this signal, it is pending until that
/// returns.
pub fn die_of(number: i32) {
    // SAFETY: both functions may be called by a signal handler, and take numbers only.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
}

/// Sets the handler of a signal, which blocks no other.
///
/// # Errors
/// EINVAL: SIGKILL or SIGSTOP.
///
/// # Safety
/// The handler calls only functions that are safe in one (signal-safety(7)).
pub unsafe fn handle(signal: Signal, handler: extern "C" fn(i32), flags: SaFlags) -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(handler), flags, SigSet::empty());
    // SAFETY: the caller's promise.
    unsafe { nix::sys::signal::sigaction(signal, &action) }.map(drop)
}
