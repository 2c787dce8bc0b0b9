//! The harness: what the tests with real containers are written in, so that a
//! test reads as what a person would do at a board.
//!
//! * [`Device`]: a board in a scratch directory with an agent of its own; what it
//!   leaves behind when it ends fails the test
//! * [`TestPod`]: one pod on it, as the API shows it
//! * [`Memory`], [`Share`], [`Holdings`]: what it takes of the machine
//! * [`manifest`]: the frame of a manifest, around what a test is about
//! * [`Terminal`]: a command on a terminal
//! * [`steps`]: a process of nodlet killed before its n-th step
//! * [`upgrade`]: which binary a supervisor executes, and another one
//! * [`Calls`]: the system calls that nodlet makes
//! * [`image`]: images from files named in the test
//! * [`Kubectl`]: the real one, over [`forward`]
//! * [`guest`]: a kernel of one's own, and one that lacks something
//!
//! A test waits for a condition ([`Device::wait_for`]), never for a time. The
//! tests are in `tests/tests/`, one file per area; they drive the built binary
//! and link nothing of it.

mod api;
mod binary;
pub mod bus;
mod calls;
mod device;
mod figures;
pub mod forward;
pub mod guest;
pub mod image;
mod kubectl;
mod leftovers;
pub mod manifest;
mod pod;
mod ring;
mod seed;
mod slot;
pub mod ssh;
pub mod steps;
mod terminal;
mod trace;
pub mod upgrade;
mod view;

pub use binary::binary;
pub use calls::{Calls, Counted};
pub use device::{Device, Mount, Ran, demo_archive, demo_program, nodlet_program, programs_are_in};
pub use figures::{Holdings, Memory, Share, switches};
pub use kubectl::Kubectl;
pub use pod::{TestContainer, TestPod};
pub use seed::{Seed, seed, shard};
pub use terminal::Terminal;
pub use trace::PtraceRequest;
