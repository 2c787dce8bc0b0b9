//! Bytes that nobody can guess, from the kernel.

use std::io;

/// Fills `bytes`, of which there may be 256: so many are never cut short.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    debug_assert!(bytes.len() <= 256);
    // SAFETY: the buffer is as long as is said.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}
