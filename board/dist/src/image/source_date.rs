//! The time of the sources. With it, the same sources give the same image, and a board has a lower bound of
//! the current time.

use nodlet_build::task::{git, project};

/// Seconds since 1970: from `SOURCE_DATE_EPOCH`, as packagers set it, or else of the last commit; zero if the
/// sources are in no repository.
pub fn seconds() -> u64 {
    let number = |text: String| text.trim().parse().ok();
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(number);
    let committed = || number(git(project(), &["log", "-1", "--format=%ct"]).ok()?);
    given.or_else(committed).unwrap_or(0)
}
