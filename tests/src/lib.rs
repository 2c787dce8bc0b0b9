//! The harness: what the tests with real containers are written in.
//!
//! * [`image`]: images from files named in the test
//!
//! The tests are in `tests/tests/`, one file per area.

pub mod image;
