//! The clock of the machine, and local time.
//!
//! `unsafe`: adjtimex(2) and localtime_r(3) are in no crate; both write into a structure of the caller.

use nix::errno::Errno;

/// adjtimex(2), with what `change` sets in a structure of zeros.
///
/// # Errors
/// The kernel's.
pub fn adjust_clock(change: impl FnOnce(&mut libc::timex)) -> nix::Result<()> {
    // SAFETY: all zero is a value of this structure of numbers.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    change(&mut timex);
    // SAFETY: a structure of the kernel's, which it reads and fills in.
    Errno::result(unsafe { libc::adjtimex(&raw mut timex) }).map(drop)
}

/// localtime_r(3): the fields of a time in seconds since 1970, in the time zone of this machine. `None` if it has no year.
pub fn local(seconds: i64) -> Option<libc::tm> {
    // The C library counts in 32 bits on 32-bit ARM.
    #[allow(clippy::useless_conversion)]
    let seconds = seconds.try_into().ok()?;
    // SAFETY: all zeros are a `tm`, of which the C library fills every field.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to what lives until the call is over.
    let filled = unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
    (!filled.is_null()).then_some(tm)
}
