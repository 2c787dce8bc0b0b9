//! Makes what is shipped of nodlet: [device images](image) for the boards of `board/profiles`, [Debian packages](deb), and
//! [releases](release) with programs, images, manuals, lists of materials, sources and signatures.
//!
//! It builds nothing of nodlet itself: [`nodlet_build::cross`] does. Read first: [`profile`], then [`image`].

mod boot_files;
pub mod deb;
mod disk;
mod help;
pub mod image;
pub mod kernel;
pub mod profile;
pub mod release;
pub mod tree;
