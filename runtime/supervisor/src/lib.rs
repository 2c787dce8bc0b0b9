//! The per-pod process, which outlives the agent.
//!
//! Only the parent of a container learns how it ended, and some process must hold its pipes, its namespaces
//! and the pod's lock. That is all that a supervisor does. It decides nothing, sends signals only to the
//! processes of a failed start, and enters none of the pod's namespaces: short-lived helpers do, which it
//! forks.
//!
//! Reading order: [`client`] is the agent's end; `protocol.rs` defines the messages; `process.rs` is the
//! loop; `sandbox.rs`, `start.rs` and `enter.rs` are its helpers; `container.rs` has all that is about libcontainer;
//! `attempt.rs` is one run of one container, with `log.rs`, `console.rs` and `exit.rs`; `saved.rs` is for the supervisor's
//! replacement.

pub mod client;

mod attempt;
mod console;
mod container;
mod device;
mod enter;
mod error;
mod execute;
mod exit;
mod log;
mod path;
mod process;
mod protocol;
mod sandbox;
mod saved;
mod start;
mod sys;
mod user;

pub use exit::ExitRecord;
pub use process::run;
pub use start::try_to_execute_files_of_the_agent;

/// The file in a supervisor's directory with the reason of its end, if the supervisor could write it.
pub const END_REASON_FILE: &str = "last-words";

/// The file in a pod's directory with the interfaces that did not come back to the host as they were: lines of the name
/// and the new name, because theirs was taken; or of the name, `changed` and the settings that differ; or of the name,
/// `lost` and the reason.
pub const RENAMED_FILE: &str = "renamed-interfaces";
