//! The pod engine: knows pods, knows no board. No code here, only the tour.
//!
//! # The life of one pod
//!
//! 1. A file appears in a manifest directory: [`sources`]. Or a client applies an
//!    object: [`api`], which the engine turns into such a file, if the registry allows it.
//! 2. Its bytes become an object that is checked against the [`schema`] table,
//!    defaulted and validated, and then a typed [`spec::Pod`]: [`manifest`]. The
//!    [`registry`] says which of several of one name counts, and admits it.
//! 3. The core, the crate [`nodlet_core`], is told, [`node::Node::observe`], and says
//!    what to do, [`node::Node::plan`]: pure decisions, for one pod in [`pod`],
//!    simulated in its tests.
//! 4. [`engine::Engine`] carries the actions out, one match, one line an action:
//!    [`volume`]s, the pod's [`cgroup`], its [`network`], [`pod_files`].
//! 5. [`container_config`] says what a container shall be, as data.
//! 6. The pod's [`supervisor`], a process that outlives the agent, forks a helper
//!    that mounts the root file system (`nodlet_rootfs::assemble`) and calls
//!    libcontainer. *The container runs.*
//! 7. The supervisor writes its log, records its exit and tells the engine, which
//!    tells the core. [`prober`] asks how it is.
//! 8. [`status`] is derived from what the core knows; the engine puts it into
//!    [`objects`], from which the [`api`] shows it. What the core was told and asked for
//!    last is in [`told`], and [`replay`] tells it again.
//!    The [`service`] manager is told that the loop turns, or by [`progress`] process 1 of a board, and [`logind`] holds up a shutdown until
//!    the pods have ended.
//!    [`kinds`] is the one table of kinds: their names, columns and descriptions.
//! 9. What must survive a power cut is written by [`store`], on the one thread of
//!    [`storage`]; [`paths`] says where everything lies.

pub mod api;
mod bpf;
pub mod cgroup;
pub mod clock;
pub mod container_config;
pub mod engine;
pub mod error;
pub mod kinds;
mod log_files;
pub mod logind;
pub mod manifest;
pub mod network;
pub mod objects;
pub mod paths;
pub mod pod_files;
pub mod prober;
pub mod progress;
mod random;
pub mod registry;
pub mod replay;
pub mod schema;
pub mod service;
pub mod sources;
pub mod storage;
pub mod store;
pub mod supervisor;
mod tls;
pub mod told;
pub mod volume;
mod waiting;

pub use nodlet_core::{facts, pod, spec, status, time};
use nodlet_core::{node, record_file};
