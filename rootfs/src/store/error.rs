//! Failures of the store, and why images are not removed.

use std::path::PathBuf;

use crate::content::ContentError;
use crate::reference::Digest;

/// A failure of the store itself.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation on the store's files failed.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A file of the store cannot be parsed.
    #[error("read {path}: {problem}; load its images again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        problem: String,
    },
    /// A file of the store has a format that this version does not know.
    #[error("read {path}: version {version} was written by a newer nodlet; use that one")]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of the file's format.
        version: u32,
    },
    /// An index would have more bytes than can be read again.
    #[error("write {path}: it would have more names than are allowed; remove images with nodlet image rm")]
    Full {
        /// The index.
        path: PathBuf,
    },
    /// The image does not exist, so it cannot be leased.
    #[error("use image {image}: it is not on this board")]
    NoSuchImage {
        /// The requested image.
        image: Digest,
    },
    /// A holder's name is no valid file name.
    #[error("lease an image to \"{}\": must be a file name", .holder.escape_debug())]
    BadHolder {
        /// The holder's name.
        holder: String,
    },
}

/// Why an image was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// No image has this name or ID.
    #[error("remove image {name}: no such image")]
    NotFound {
        /// The requested name or ID.
        name: String,
    },
    /// Several images have IDs with this beginning.
    #[error("remove image {name}: several images match: {}", listed(.images))]
    Ambiguous {
        /// The requested name or ID.
        name: String,
        /// The IDs with this beginning.
        images: Vec<Digest>,
    },
    /// Pods use the image.
    #[error("remove image {name}: in use by {}; delete the pods first", .holders.join(", "))]
    InUse {
        /// The requested name or ID.
        name: String,
        /// The names of the pods.
        holders: Vec<String>,
    },
    /// The image is part of the device image.
    #[error("remove image {name}: it is part of the device image, in {path}")]
    BakedIn {
        /// The requested name or ID.
        name: String,
        /// The path of the read-only store.
        path: PathBuf,
    },
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl<E: Into<StoreError>> From<E> for RemoveError {
    fn from(error: E) -> RemoveError {
        RemoveError::Store(error.into())
    }
}

/// The IDs of images, for a message.
fn listed(images: &[Digest]) -> String {
    images.iter().map(Digest::to_string).collect::<Vec<_>>().join(", ")
}
