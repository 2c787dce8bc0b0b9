//! Makes a root file system of layers: mounts, an overlay, and the image's user.
//!
//! A layer is mounted once and kept by a descriptor ([`mount_layer`]). Every container's overlay is mounted
//! over copies of it ([`copy_layer`], [`mount_root`]), in the helper process that starts the container. This
//! module faces the kernel, decides nothing, and knows no store.

use std::io;
use std::path::Path;

mod error;
mod implied;
mod layers;
mod loop_device;
mod overlay;
mod share;
mod trial;
mod user;

pub use error::AssembleError;
pub use layers::{Backing, copy_layer, mount_layer, mount_layer_by};
pub use overlay::mount_root;
pub use trial::{LayerTrial, TrialError, try_layer, try_overlay};
pub use user::{ProcessUser, UserError, user};

/// Rejects an image whose `/dev` is not a directory: filling it by path would follow a symbolic link to a
/// target that the image chooses.
pub fn check_dev(root: &Path) -> Result<(), AssembleError> {
    let path = root.join("dev");
    match std::fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(metadata) if metadata.is_symlink() => {
            let target = std::fs::read_link(&path).unwrap_or_default();
            let what = format!("a symbolic link to {}", target.display());
            Err(AssembleError::DevIsNoDirectory { what })
        }
        Ok(_) => Err(AssembleError::DevIsNoDirectory { what: "a file".to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(AssembleError::Open { path, source }),
    }
}

#[cfg(test)]
mod tests;
