//! Access to the machine (cgroups, network, volumes, logs) for agent and supervisor. No code here, only the tour.
//!
//! * [`launch`]: the contract between agent and supervisor, as data.
//! * [`cgroup`], [`network`], [`volume`], [`log_files`]: the resources of the machine that a pod uses; [`usage`]: how
//!   much it uses of the disk. [`mounts`]: how its mounts propagate.
//! * [`netlink`]: the kernel's links, addresses, routes and tables of nftables.
//! * [`watches`]: the instance of inotify of an agent, which all its watchers of files share.
//! * [`paths`]: the location of every file. [`clock`]: the clocks. [`terminal`]: the output of a terminal. [`error`]: how an error is printed.
//!
//! This crate decides nothing about pods, and knows no manifest and no API.

pub(crate) use nodlet_kernel::bpf;
pub mod cgroup;
pub mod clock;
pub mod error;
pub mod launch;
pub mod log_files;
pub mod mounts;
pub mod netlink;
pub mod network;
pub mod paths;
pub mod terminal;
pub mod usage;
pub mod volume;
pub mod watches;
