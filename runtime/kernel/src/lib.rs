//! Calls of the Linux kernel that `nix` and the standard library do not have, as safe functions, and what all crates
//! of nodlet build on them in the same way. This crate knows nothing of pods.

pub mod durable;
pub mod inode_flags;
pub mod own_file;
