//! Writes an EROFS image of a whole tree, for builders of device images: the read-only root of a board is
//! written by the same code as the layers of its pods.

use std::io::Read;
use std::path::Path;

use crate::content;
use crate::layer::{LayerBounds, LayerError, convert};
use crate::reference::Digest;

/// Writes the tree in a tar stream to `path`, which must not exist yet. Returns the digest of the stream,
/// from which the file system's UUID is derived. Equal streams give equal bytes.
///
/// # Errors
/// The stream is no archive, or the file cannot be written.
pub fn write_erofs_image(tar: &mut dyn Read, path: &Path) -> Result<Digest, LayerError> {
    let file = content::create(path).map_err(LayerError::Write)?;
    Ok(convert(tar, file, LayerBounds::default(), &mut |_| {})?.diff_id)
}
