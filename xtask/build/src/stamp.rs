//! Writes the commit into a finished program, at the place that `runtime/src/built_from.rs` keeps free. A commit that
//! changes no source thus needs no new build, which would take minutes for each target.

use std::path::Path;

use crate::task::{Outcome, TaskError, git};

/// The text before the place, as in `built_from.rs`.
const BEGIN: &[u8] = b"\nthis program is built from commit ";
/// A commit, its date, and `clean` or `dirty`, with blanks between them.
const FIELDS_BYTES: usize = 40 + 1 + 20 + 1 + 5;

/// The text for the place, from the checkout in a directory; `None` if it is in no repository.
pub fn of(checkout: &Path) -> Result<Option<String>, TaskError> {
    // An archive of the sources may be unpacked in a repository of something else.
    let top = git(checkout, &["rev-parse", "--show-toplevel"]);
    if top.ok().is_none_or(|top| Path::new(&top).canonicalize().ok() != checkout.canonicalize().ok()) {
        return Ok(None);
    }
    let date = "--date=format-local:%Y-%m-%dT%H:%M:%SZ";
    let commit = git(checkout, &["log", "-1", "--format=%H %cd", date])?;
    let changes = git(checkout, &["status", "--porcelain"])?;
    let fields = format!("{commit} {}", if changes.is_empty() { "clean" } else { "dirty" });
    // Not for a repository with longer hashes.
    if fields.len() == FIELDS_BYTES {
        Ok(Some(fields))
    } else {
        Err(TaskError(format!("{fields:?} is of another length")))
    }
}

/// Writes the text into a program.
pub fn write(program: &mut [u8], fields: &str) -> Outcome {
    let places: Vec<usize> = memchr_all(program, BEGIN);
    let [place] = places[..] else {
        return Err(TaskError(format!("the program has {} places for the commit, not one", places.len())));
    };
    let begin = place + BEGIN.len();
    let to =
        program.get_mut(begin..begin + FIELDS_BYTES).ok_or("the program ends in the place for the commit")?;
    to.copy_from_slice(fields.as_bytes());
    Ok(())
}

/// The places of `wanted` in `bytes`.
fn memchr_all(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    bytes
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, found)| *found == wanted)
        .map(|(place, _)| place)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_checkout_with_changes_is_dirty_and_an_archive_of_the_sources_has_no_commit() {
        let dir = std::env::temp_dir().join(format!("xtask-stamp-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("archive")).unwrap();
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments).current_dir(&dir);
            git.env("GIT_COMMITTER_DATE", "2026-01-31T13:00:00+01:00");
            assert!(git.output().unwrap().status.success(), "{arguments:?}");
        };
        assert_eq!(of(&dir).unwrap(), None);
        git(&["init", "--quiet"]);
        assert!(of(&dir).unwrap_err().0.contains("does not have any commits"));
        fs::write(dir.join("source"), "1").unwrap();
        git(&["add", "source"]);
        git(&["commit", "--quiet", "--message", "one"]);
        let clean = of(&dir).unwrap().unwrap();
        assert!(clean.ends_with(" 2026-01-31T12:00:00Z clean"), "{clean}");
        assert!(clean[..40].bytes().all(|byte| byte.is_ascii_hexdigit()), "{clean}");
        fs::write(dir.join("source"), "2").unwrap();
        assert_eq!(of(&dir).unwrap().unwrap(), clean.replace("clean", "dirty"));
        git(&["checkout", "source"]);
        fs::write(dir.join("new"), "a file that git does not know").unwrap();
        assert_eq!(of(&dir).unwrap().unwrap(), clean.replace("clean", "dirty"));
        assert_eq!(of(&dir.join("archive")).unwrap(), None);

        let mut program = [b"ELF".as_slice(), BEGIN, &[b' '; FIELDS_BYTES], b" for a board\n"].concat();
        write(&mut program, &clean).unwrap();
        let text = String::from_utf8(program.clone()).unwrap();
        assert_eq!(text, format!("ELF\nthis program is built from commit {clean} for a board\n"));
        assert!(write(&mut program.repeat(2), &clean).unwrap_err().0.contains("2 places"));
        assert!(write(&mut b"ELF".to_vec(), &clean).unwrap_err().0.contains("0 places"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
