//! The time of the sources. With it, the same sources give the same image, and a board has a lower bound of
//! the current time.

use nodlet_build::task::{TaskError, git, project};

/// Seconds since 1970: from `SOURCE_DATE_EPOCH`, as packagers set it, or else of the last commit.
pub(crate) fn of_source() -> Result<u64, TaskError> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => git(project(), &["log", "-1", "--format=%ct"])
            .map_err(|_| "there is no commit whose time this could have: set SOURCE_DATE_EPOCH")?,
    };
    let number = seconds.trim().parse();
    Ok(number.map_err(|_| format!("SOURCE_DATE_EPOCH={seconds:?} is not a number of seconds"))?)
}

/// Seconds since 1970, as [`of_source`]; zero without a commit.
///
/// # Errors
/// `SOURCE_DATE_EPOCH` is no number.
pub fn seconds() -> Result<u64, TaskError> {
    match std::env::var_os("SOURCE_DATE_EPOCH") {
        Some(_) => of_source(),
        None => Ok(of_source().unwrap_or(0)),
    }
}
