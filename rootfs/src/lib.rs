//! Makes root file systems of images; knows nothing of pods.
//!
//! The life of an image, each step in a module of its own:
//!
//! 1. A user loads an archive: [`Store::load_path`]. `archive` finds the images in it and selects those for the
//!    [`platform`](Platform).
//! 2. Each layer streams through `compression` and `members` (tar) into `tree` (the names) and `erofs` (the
//!    bytes), one read-only image per layer: `layer`. This takes place in a process that [`Store`] starts, and
//!    from which `confine` removes every right except writing these files.
//! 3. `load` verifies every digest and adds the new files to the [`Store`] with a single rename. All writes to
//!    disk go through `content`, where tests make them fail.
//! 4. A pod names an image as in a manifest, [`Reference::parse`], and [`Store::find`] returns the [`Image`]
//!    with its [`ImageConfig`].
//! 5. [`assemble`] mounts the layers, mounts a writable directory over them and looks up the image's user.
//!
//! `docs/decisions/0001-image-layout.md` explains why a layer is a file.

pub mod assemble;
pub mod changes;

mod archive;
mod attributes;
mod compression;
mod config;
mod confine;
mod content;
mod erofs;
mod erofs_image;
mod layer;
mod load;
mod members;
pub mod parcel;
mod platform;
mod reference;
mod signal;
mod store;
mod tar_error;
#[cfg(test)]
mod testing;
mod tree;
mod xattr;

pub use archive::ArchiveError;
pub use config::ImageConfig;
pub use content::ContentError;
pub use erofs_image::write_erofs_image;
pub use layer::LayerError;
pub use load::{
    BASES_MAX, LoadError, LoadOptions, Loaded, Progress, Refusal, Source, Unpacker, run_unpacker,
    stop_unpacker,
};
pub use platform::{Platform, PlatformError};
pub use reference::{Digest, DigestError, Reference, ReferenceError};
pub use signal::signal_of;
pub use store::before::StoreSnapshot;
pub use store::usage::Usage;
pub use store::{Image, RemoveError, Removed, Store, StoreError};
pub use tar_error::TarError;
