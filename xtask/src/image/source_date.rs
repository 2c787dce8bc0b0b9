//! The time of the sources: the same sources give the same image, and a board knows that it is later
//! than that.

use std::process::Command;

use crate::project;

/// Seconds since 1970: of `SOURCE_DATE_EPOCH`, as packagers set it, otherwise of the last commit; zero
/// where the sources lie in no repository.
pub(crate) fn seconds() -> u64 {
    let number = |text: String| text.trim().parse().ok();
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(number);
    let committed = || {
        let output =
            Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(project()).output().ok()?;
        number(String::from_utf8(output.stdout).ok()?)
    };
    given.or_else(committed).unwrap_or(0)
}
