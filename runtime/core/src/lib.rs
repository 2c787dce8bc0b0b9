//! The core: all decisions about pods, as data in and data out. No code here, only the tour.
//!
//! 1. [`spec`]: a Pod as typed values, with every default applied.
//! 2. [`facts`]: observations, actions and records, the vocabulary of what follows.
//! 3. [`node`]: [`node::Node::observe`] takes observations, [`node::Node::plan`] returns actions.
//! 4. [`pod`]: the part of the decisions that concerns one pod.
//! 5. [`status`]: `status` of a Pod, derived from what the core knows.
//! 6. [`record_file`]: the bytes of what survives a reboot.
//! 7. [`image_use`]: which images to remove when the disk fills up.
//! 8. [`replay`]: reports recorded observations to the core again, and compares the actions.
//! 9. [`cpus`]: which processors a container gets for itself.
//! 10. [`pressure`]: when the node is short of memory, disk or process IDs.
//! 11. [`sorted`]: the maps and sets of the crates above. [`error`]: errors with their causes.
//!
//! The tests simulate a world around the core: `sim.rs`, `timelines.rs`. The tests of the registry use the same world
//! (`sim/node_world.rs`).

pub mod cpus;
pub mod error;
pub mod facts;
pub mod image_use;
#[cfg(test)]
mod kubelet_texts;
pub mod node;
pub mod pod;
pub mod pressure;
#[cfg(test)]
mod purity;
pub mod record_file;
pub mod replay;
#[cfg(any(test, feature = "sim"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "the tests of this crate use all of it"))]
pub mod sim;
pub mod sorted;
pub mod spec;
pub mod status;
pub mod time;
#[cfg(test)]
mod timelines;
