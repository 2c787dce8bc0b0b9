//! The harness: what the tests with real containers are written in, so that a
//! test reads as what a person would do at a board.
//!
//! * [`Device`]: a board in a scratch directory with an agent of its own; what it
//!   leaves behind when it ends fails the test
//! * [`TestPod`]: one pod on it, as the API shows it
//! * [`image`]: images from files named in the test
//! * [`forward`]: TCP to the API's unix socket, for the real kubectl
//!
//! A test waits for a condition ([`Device::wait_for`]), never for a time. The
//! tests are in `tests/tests/`, one file per area; they drive the built binary
//! and link nothing of it.

mod api;
mod device;
pub mod forward;
pub mod image;
mod leftovers;
mod pod;
mod slot;

pub use device::{Device, Ran, demo_archive, demo_program, nodlet_program};
pub use pod::TestPod;
