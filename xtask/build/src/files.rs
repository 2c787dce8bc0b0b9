//! Reads and writes files with errors that name them, and writes digests as people read them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::task::{Outcome, TaskError};

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

/// Writes a file.
///
/// # Errors
/// The file cannot be written: the error names it.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Outcome {
    fs::write(path, content)
        .map_err(|error| TaskError(format!("failed to write {}: {error}", path.display())))
}

/// Replaces a file, with the directories above it, by a rename: whoever has opened or executes the old one keeps it.
///
/// # Errors
/// The file cannot be written: the error names it.
pub fn replace(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Outcome {
    let failed = |error| TaskError(format!("failed to write {}: {error}", path.display()));
    let new = path.with_added_extension(format!("new-{}", std::process::id()));
    fs::create_dir_all(path.parent().ok_or("a file is in a directory")?).map_err(failed)?;
    write(&new, content)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

/// The hexadecimal digits of a digest, in lower case.
pub fn digits(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
