//! What agent and supervisor share of the machine. No code here, only the tour.
//!
//! * [`launch`]: the contract between them, as data.
//! * [`cgroup`], [`network`], [`volume`], [`log_files`]: what a pod has of the machine.
//! * [`paths`]: where everything lies. [`clock`]: the clocks. [`error`]: how an error is printed.
//!
//! It decides nothing about pods, and knows no manifest and no API.

mod bpf;
pub mod cgroup;
pub mod clock;
pub mod error;
pub mod launch;
pub mod log_files;
pub mod network;
pub mod paths;
pub mod random;
pub mod volume;
