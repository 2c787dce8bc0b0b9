//! Reads files with errors that name them, and writes digests as people read them.

use std::fs;
use std::path::Path;

use crate::task::TaskError;

/// The bytes of a file.
///
/// # Errors
/// The file cannot be read: the error names it.
pub fn read(path: &Path) -> Result<Vec<u8>, TaskError> {
    fs::read(path).map_err(|error| TaskError(format!("failed to read {}: {error}", path.display())))
}

/// The text of a file.
///
/// # Errors
/// The file cannot be read, or is no text: the error names it.
pub fn read_text(path: &Path) -> Result<String, TaskError> {
    fs::read_to_string(path).map_err(|error| TaskError(format!("failed to read {}: {error}", path.display())))
}

/// The hexadecimal digits of a digest, in lower case.
pub fn digits(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
