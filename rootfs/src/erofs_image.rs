//! An EROFS image of a whole tree, for those who make device images: the read-only root of a board
//! is written by the same code as the layers of its pods.

use std::io::Read;
use std::path::Path;

use crate::content::Content;
use crate::layer::{LayerBounds, LayerError, convert};
use crate::reference::Digest;

/// Writes the tree that a tar stream describes to `path`, which must not exist yet. Returns the
/// digest of the stream, of which the file system has its UUID. Equal streams give equal bytes.
///
/// # Errors
/// If the stream is no archive, or the file cannot be written.
pub fn write_erofs_image(tar: &mut dyn Read, path: &Path) -> Result<Digest, LayerError> {
    let file = Content::default().create(path).map_err(LayerError::Write)?;
    Ok(convert(tar, file, LayerBounds::default(), &mut |_| {})?.diff_id)
}
