//! The commit that is checked out, and the choices that differ between commits.

use std::process::Command;

use crate::task::project;

/// For one in so many commits, what needs a control plane is run: every second suite, tests of conformance, and a board.
pub(crate) const CLUSTER_PARTS: usize = 4;

/// A number that chooses one of several cases, if there is only time for one; it differs between commits.
pub(crate) fn number() -> usize {
    let commit = checked_out().unwrap_or_default();
    commit.get(..8).and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// The checked-out commit; `None` in an archive of the sources.
pub(crate) fn checked_out() -> Option<String> {
    let mut git = Command::new("git");
    let said = git.current_dir(project()).args(["rev-parse", "HEAD"]).output().ok()?;
    String::from_utf8(said.stdout).ok()
}
