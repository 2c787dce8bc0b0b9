//! The agent: keeps the pods of one machine in their desired state. This file has no code, only the tour.
//!
//! The crates below the agent, each of which depends only on those after it:
//! [`nodlet_supervisor`], the process of one pod; [`nodlet_registry`], the desired state;
//! [`nodlet_host`], cgroups, network, volumes and paths; [`nodlet_kube`], the schema, manifests and kinds
//! of the API; [`nodlet_wire`], protocols; [`nodlet_core`], all decisions about pods.
//!
//! # The life of one pod
//!
//! 1. A file appears in a manifest directory, and the thread of [`storage_thread`] reads it: [`sources`]. Or a client
//!    sends an object: [`api`]. If the registry accepts the object, the engine writes it into such a file.
//! 2. The bytes become an object, which is checked against the [`nodlet_kube::schema`] table, defaulted and
//!    validated, and then becomes a typed [`nodlet_core::spec::Pod`]: [`nodlet_kube::manifest`]. The
//!    [`nodlet_registry`] chooses between several pods with the same name, and admits the chosen one.
//! 3. The engine reports the pod to the core with [`nodlet_core::node::Node::observe`], and gets the next
//!    actions from [`nodlet_core::node::Node::plan`]. The decisions about one pod are in [`nodlet_core::pod`];
//!    they are pure, and simulated in the core's tests.
//! 4. [`engine::Engine`] performs the actions, in one match with one line for each action. Before the first
//!    container starts, it prepares the pod's [`nodlet_host::volume`]s (for those of ConfigMaps, Secrets and
//!    the downward API, [`volume_files`] computes the files), the [`nodlet_host::cgroup`], the
//!    [`nodlet_host::network`], and files such as `/etc/hosts`: [`pod_files`].
//! 5. [`container_config`] computes the configuration of a container, as data for the supervisor:
//!    [`nodlet_host::launch`]. [`downward_api`] computes the values of variables that show fields of the pod.
//! 6. The pod's [`nodlet_supervisor`], a process that outlives the agent, forks a helper, which mounts the root
//!    file system (`nodlet_rootfs::assemble`) and calls libcontainer. *The container runs.*
//! 7. The supervisor writes the container's log, records its exit, and reports it to the engine, which reports
//!    it to the core. [`prober`] carries out the container's probes.
//! 8. [`nodlet_core::status`] derives the pod's status from the state of the core. The engine stores the status
//!    in [`nodlet_registry::objects`], from which the [`api`] serves it.
//! 9. [`records`] reads and writes everything that must survive a power cut, on the one thread of [`storage_thread`];
//!    [`nodlet_host::paths`] has the paths.
//!
//! # Besides pods
//!
//! * [`nodlet_kube::kind`] is the one table of kinds, and [`nodlet_kube::kinds`] has the rules of each.
//! * [`ring`] keeps the latest observations and actions of the core, and [`replay`] replays them.
//! * [`service`] notifies the service manager as long as the loop turns; on a board, [`progress`] does so for
//!   process 1.
//! * [`built_from`] is what this program was built from, for `/version` and `nodlet version`.
//! * [`logind`] delays a shutdown of the machine until the pods have ended.

pub mod api;
pub mod app_armor;
mod at_rest;
pub mod built_from;
pub mod container_config;
mod devices;
mod dns;
mod downward_api;
pub mod engine;
mod env_file;
mod handling;
mod logind;
mod pod_files;
mod prober;
pub mod progress;
mod records;
pub mod replay;
mod ring;
mod seccomp;
mod service;
mod sources;
mod storage_thread;
#[cfg(test)]
mod testing;
mod volume_files;
