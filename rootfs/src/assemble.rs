//! Makes a root file system of layers: mounts, an overlay, and the image's user.
//!
//! A layer is mounted once and kept by a descriptor ([`mount_layer`]). Every container's overlay is mounted
//! over copies of it ([`copy_layer`], [`mount_root`]), in the helper process that starts the container. This
//! module faces the kernel, decides nothing, and knows no store.

use std::fs::Metadata;
use std::path::Path;

use nodlet_kernel::own_file::if_exists;

mod error;
mod implied;
mod layers;
mod loop_device;
mod overlay;
mod share;
mod trial;
mod user;

pub use error::AssembleError;
pub use layers::{Backing, copy_layer, mount_layer};
pub use overlay::mount_root;
pub use trial::{LayerTrial, TrialError, try_layer, try_overlay};
pub use user::{ProcessUser, UserError, user};

/// Rejects an image whose `/dev` is not a directory: filling it by path would follow a symbolic link to a
/// target that the image chooses.
pub fn check_dev(root: &Path) -> Result<(), AssembleError> {
    let path = root.join("dev");
    let what = match if_exists(std::fs::symlink_metadata(&path)) {
        Err(source) => return Err(AssembleError::Open { path, source }),
        Ok(found) if found.as_ref().is_none_or(Metadata::is_dir) => return Ok(()),
        Ok(_) => match std::fs::read_link(&path) {
            Ok(target) => format!("a symbolic link to {}", target.display()),
            Err(_) => "a file".to_owned(),
        },
    };
    Err(AssembleError::DevIsNoDirectory { what })
}

#[cfg(test)]
mod tests;
