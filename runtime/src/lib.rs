//! The agent: keeps the pods of one machine as they are wanted. No code here, only the tour.
//!
//! The crates below it, each of which knows only those after it:
//! [`nodlet_supervisor`], the process of one pod; [`nodlet_host`], cgroups, network, volumes and paths;
//! [`nodlet_registry`], the desired state; [`nodlet_kube`], the API's grammar; [`nodlet_wire`], protocols;
//! [`nodlet_core`], all decisions about pods.
//!
//! # The life of one pod
//!
//! 1. A file appears in a manifest directory, and the thread of [`storage`] reads it: [`sources`]. Or a client applies
//!    an object: [`api`], which the engine turns into such a file, if the registry allows it.
//! 2. Its bytes become an object that is checked against the [`nodlet_kube::schema`] table,
//!    defaulted and validated, and then a typed [`nodlet_core::spec::Pod`]: [`nodlet_kube::manifest`]. The
//!    [`nodlet_registry`] says which of several of one name counts, and admits it.
//! 3. The core is told, [`nodlet_core::node::Node::observe`], and says what to do,
//!    [`nodlet_core::node::Node::plan`]: pure decisions, for one pod in [`nodlet_core::pod`],
//!    simulated in its tests.
//! 4. [`engine::Engine`] carries the actions out, one match, one line an action:
//!    [`nodlet_host::volume`]s, the pod's [`nodlet_host::cgroup`], its [`nodlet_host::network`], [`pod_files`].
//! 5. [`container_config`] says what a container shall be, as data: [`nodlet_host::launch`].
//! 6. The pod's [`nodlet_supervisor`], a process that outlives the agent, forks a helper
//!    that mounts the root file system (`nodlet_rootfs::assemble`) and calls
//!    libcontainer. *The container runs.*
//! 7. The supervisor writes its log, records its exit and tells the engine, which
//!    tells the core. [`prober`] asks how it is.
//! 8. [`nodlet_core::status`] is derived from what the core knows; the engine puts it into
//!    [`nodlet_registry::objects`], from which the [`api`] shows it. The latest observations and actions
//!    of the core are in [`ring`], and [`replay`] replays them.
//!    The [`service`] manager is notified while the loop turns, or by [`progress`] process 1 of a board, and [`logind`]
//!    holds up a shutdown until the pods have ended.
//!    [`nodlet_kube::kinds`] is the one table of kinds: their names, columns and descriptions.
//! 9. What must survive a power cut is written and read by [`store`], on the one thread of
//!    [`storage`]; [`nodlet_host::paths`] says where everything lies.

pub mod api;
pub mod container_config;
mod downward_api;
pub mod engine;
mod logind;
mod pod_files;
mod prober;
pub mod progress;
pub mod replay;
mod ring;
mod service;
mod sources;
mod storage;
mod store;
mod volume_files;
