//! The per-pod process, which outlives the agent.
//!
//! A container's parent is who learns how it ended; somebody must hold its
//! pipes, its namespaces and the pod's lock. That is all a supervisor does. It
//! decides nothing, signals nothing but what a failed start left behind, and
//! enters none of the pod's namespaces: short-lived helpers do, forked from it.
//!
//! Reading order: [`client`] is the agent's end; `protocol.rs` is what the two
//! say; `process.rs` is the loop; `sandbox.rs`, `start.rs` and `enter.rs` are its
//! helpers; `attempt.rs` is one run of one container, with `log.rs`, `console.rs` and `exit.rs`.

pub mod client;

mod attempt;
mod console;
mod enter;
mod execute;
mod exit;
mod log;
mod process;
mod protocol;
mod sandbox;
mod start;
mod sys;

pub use exit::ExitRecord;
pub use process::run;

/// The file in a supervisor's directory that says why it ended, if it could say so.
pub const LAST_WORDS: &str = "last-words";
