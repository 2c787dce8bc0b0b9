//! Failures of the store, and why images are not removed.

use std::fmt;
use std::path::PathBuf;

use crate::content::ContentError;
use crate::reference::Digest;

/// A failure of the store itself.
#[derive(Debug)]
pub enum StoreError {
    /// An operation on the store's files failed.
    Content(ContentError),
    /// A file of the store cannot be parsed.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        problem: String,
    },
    /// A file of the store has a format that this version does not know.
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of the file's format.
        version: u32,
    },
    /// An index would have more bytes than can be read again.
    Full {
        /// The index.
        path: PathBuf,
    },
    /// The image does not exist, so it cannot be leased.
    NoSuchImage {
        /// The requested image.
        image: Digest,
    },
    /// A holder's name is no valid file name.
    BadHolder {
        /// The holder's name.
        holder: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Content(error) => error.fmt(f),
            StoreError::Damaged { path, problem } => {
                write!(f, "read {}: {problem}; load its images again", path.display())
            }
            StoreError::Newer { path, version } => {
                write!(
                    f,
                    "read {}: version {version} was written by a newer nodlet; use that one",
                    path.display()
                )
            }
            StoreError::Full { path } => write!(
                f,
                "write {}: it would have more names than are allowed; remove images with nodlet image rm",
                path.display()
            ),
            StoreError::NoSuchImage { image } => write!(f, "use image {image}: it is not on this board"),
            StoreError::BadHolder { holder } => {
                write!(f, "lease an image to \"{}\": must be a file name", holder.escape_debug())
            }
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::Content(error) => error.source(),
            StoreError::Damaged { .. }
            | StoreError::Newer { .. }
            | StoreError::Full { .. }
            | StoreError::NoSuchImage { .. }
            | StoreError::BadHolder { .. } => None,
        }
    }
}

impl From<ContentError> for StoreError {
    fn from(error: ContentError) -> StoreError {
        StoreError::Content(error)
    }
}

/// Why an image was not removed.
#[derive(Debug)]
pub enum RemoveError {
    /// No image has this name or ID.
    NotFound {
        /// The requested name or ID.
        name: String,
    },
    /// Several images have IDs with this beginning.
    Ambiguous {
        /// The requested name or ID.
        name: String,
        /// The IDs with this beginning.
        images: Vec<Digest>,
    },
    /// Pods use the image.
    InUse {
        /// The requested name or ID.
        name: String,
        /// The names of the pods.
        holders: Vec<String>,
    },
    /// The image is part of the device image.
    BakedIn {
        /// The requested name or ID.
        name: String,
        /// The path of the read-only store.
        path: PathBuf,
    },
    /// The store failed.
    Store(StoreError),
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoveError::NotFound { name } => write!(f, "remove image {name}: no such image"),
            RemoveError::Ambiguous { name, images } => {
                let images: Vec<String> = images.iter().map(Digest::to_string).collect();
                write!(f, "remove image {name}: several images match: {}", images.join(", "))
            }
            RemoveError::InUse { name, holders } => {
                write!(f, "remove image {name}: in use by {}; delete the pods first", holders.join(", "))
            }
            RemoveError::BakedIn { name, path } => {
                write!(f, "remove image {name}: it is part of the device image, in {}", path.display())
            }
            RemoveError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RemoveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RemoveError::Store(error) => error.source(),
            RemoveError::NotFound { .. }
            | RemoveError::Ambiguous { .. }
            | RemoveError::InUse { .. }
            | RemoveError::BakedIn { .. } => None,
        }
    }
}

impl<E: Into<StoreError>> From<E> for RemoveError {
    fn from(error: E) -> RemoveError {
        RemoveError::Store(error.into())
    }
}
