//! What the programs of this repository's developers share: commands and paths, the Rust toolchain, builds of nodlet for
//! boards, packages and programs of Debian, and programs of Kubernetes. `xtask` is quick to build because what makes
//! device images (`board/dist`), what tests in virtual machines (`tests/system`) and what measures (`tests/bench`) are
//! programs of their own above this library.
//!
//! Read first: [`task`], then [`toolchain`] and [`cross`].

pub mod arguments;
pub mod budgets;
pub mod crates;
pub mod cross;
pub mod debian;
pub mod deny;
pub mod elf;
pub mod files;
pub mod go;
pub mod images;
mod musl;
mod patched;
pub mod programs;
pub mod requirements;
pub mod stamp;
pub mod targets;
pub mod task;
pub mod toolchain;
pub mod tools;
