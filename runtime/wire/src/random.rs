//! Random bytes from the kernel, which never wait for its entropy pool.
//!
//! A board without a hardware generator and without a battery-backed clock boots with an empty pool, and
//! `getrandom` without flags then blocks for seconds or minutes. Nothing that starts, stops or shows a pod
//! may wait for that, and neither may the agent's one thread. So each caller states what it needs:
//!
//! * [`secret`] is for keys, and for whatever else an attacker must not guess: only TLS needs it. As long as
//!   the pool is not ready, it fails with [`io::ErrorKind::WouldBlock`] (`GRND_NONBLOCK`), and so does the
//!   probe that called it, which is repeated after its period.
//! * [`unique`] is for values that must only be unique: UIDs, generated names, the user whose key quota pays
//!   for a session keyring. It always succeeds (`GRND_INSECURE`, Linux 5.6): the kernel returns what it has
//!   mixed so far, from the device tree, addresses and the times of interrupts. Early after power-on such
//!   bytes can be guessed, and identical boards may get the same.
//!
//! `HashMap` gets its seeds in the same way as [`unique`], from the standard library.
//!
//! Linux gathers entropy from the jitter of its clock only while a process waits for the pool. On a board
//! without other programs no process would: therefore the first [`secret`] that fails starts a thread that
//! only waits for the pool, and then ends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::rand::GetRandomFlags;

/// Fills `bytes`, at most 256, with bytes that nobody can guess.
pub fn secret(bytes: &mut [u8]) -> io::Result<()> {
    let filled = getrandom(bytes, GetRandomFlags::NONBLOCK);
    if filled.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        gather();
    }
    filled
}

/// Fills `bytes`, at most 256, with bytes that are unlikely to repeat. They are not secret.
pub fn unique(bytes: &mut [u8]) -> io::Result<()> {
    getrandom(bytes, GetRandomFlags::INSECURE)
}

/// Calls `getrandom`, which never returns fewer bytes than requested for at most 256.
fn getrandom(bytes: &mut [u8], flags: GetRandomFlags) -> io::Result<()> {
    debug_assert!(bytes.len() <= 256);
    let got = rustix::rand::getrandom(&mut *bytes, flags)?;
    if got == bytes.len() { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
}

/// Waits for the pool on a thread of its own; there is at most one such thread.
fn gather() {
    /// Enough for one system call.
    const STACK: usize = 16 * 1024;
    static GATHERING: AtomicBool = AtomicBool::new(false);

    if GATHERING.swap(true, Ordering::Relaxed) {
        return;
    }
    let thread = std::thread::Builder::new().name("entropy".into()).stack_size(STACK);
    let started = thread.spawn(|| {
        while getrandom(&mut [0], GetRandomFlags::empty())
            .is_err_and(|error| error.kind() == io::ErrorKind::Interrupted)
        {}
        GATHERING.store(false, Ordering::Relaxed);
    });
    if started.is_err() {
        GATHERING.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
