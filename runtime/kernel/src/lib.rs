//! Calls of the Linux kernel that neither the standard library nor `nix` nor `rustix` has as safe functions, and what all
//! crates of nodlet build on them in the same way. This crate knows nothing of pods.
//!
//! A function is one call, with the kernel's error and nothing else: the caller names the step. The modules are named
//! after the kernel's subjects. A call that `nix` or `rustix` has is made through them, here or where it is needed. Outside
//! of this crate, `unsafe` stands in a handful of files; `tests/fuzz/src/confined.rs` lists all that have it, with the
//! reason.

pub mod bpf;
pub mod durable;
pub mod file;
pub mod ioctl;
pub mod memory;
pub mod mount;
pub mod own_file;
pub mod process;
pub mod security;
pub mod signal;
pub mod socket;
pub mod time;

use nix::errno::Errno;

/// An error of `rustix` as one of `nix`, which the rest of nodlet uses.
fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}
