//! The ledger: when each subject of `cargo xtask long` last passed as a whole, on which commit, and in which time. It is a
//! file of the repository, so that the check can say what is overdue.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use nodlet_build::files;
use nodlet_build::task::{Outcome, TaskError, date, git, project};

/// The age after which a subject is overdue.
const DAYS: u64 = 7;
const COMMITS: u64 = 200;

const HEAD: &str = "\
# When each subject of `cargo xtask long` last passed as a whole: the day (UTC), the commit that was tested, and the minutes.
# `cargo xtask long` writes it; the commit with the change is a child of the tested one.
";

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    /// The day, as `2026-11-30`.
    date: String,
    commit: String,
    minutes: u64,
}

/// The ledger, by subject.
#[derive(Debug, Default, PartialEq)]
struct Ledger(BTreeMap<String, Entry>);

impl Ledger {
    fn read() -> Result<Self, TaskError> {
        let path = path();
        let text = files::read_text(&path)?;
        Self::parse(&text).map_err(|why| TaskError(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut entries = BTreeMap::new();
        for line in lines {
            let entry = match line.split_whitespace().collect::<Vec<_>>()[..] {
                [subject, day, commit, minutes] if date(day, "+%F").is_ok_and(|date| date == day) => {
                    let entry = |minutes| Entry { date: day.to_owned(), commit: commit.to_owned(), minutes };
                    minutes.parse().ok().map(|minutes| (subject.to_owned(), entry(minutes)))
                }
                _ => None,
            };
            let (subject, entry) =
                entry.ok_or_else(|| format!("{line:?} is not SUBJECT YYYY-MM-DD COMMIT MINUTES"))?;
            // As after a merge of two branches.
            if entries.insert(subject, entry).is_some() {
                return Err(format!("{line:?} is the second line of its subject: remove one"));
            }
        }
        Ok(Self(entries))
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for (subject, Entry { date, commit, minutes }) in &self.0 {
            let _ = writeln!(text, "{subject:<18} {date} {commit} {minutes}");
        }
        text
    }

    /// The subjects that are overdue, and why: those that passed before the first of these days, or more than [`COMMITS`]
    /// commits ago. The last day is today.
    fn overdue(
        &self,
        subjects: &[&str],
        [first, today]: &[String; 2],
        since: impl Fn(&str) -> Option<u64>,
    ) -> Vec<String> {
        let why = |subject: &str| {
            let Some(Entry { date, commit, .. }) = self.0.get(subject) else {
                return Some("never passed as a whole".to_owned());
            };
            match since(commit) {
                None => Some(format!("passed on {commit}, which is no commit of this history")),
                Some(_) if date > today => Some(format!("passed on {date}, in the future")),
                Some(commits) if date < first || commits > COMMITS => {
                    Some(format!("passed on {date}, {commits} commits ago, on {commit}"))
                }
                Some(_) => None,
            }
        };
        subjects.iter().filter_map(|subject| Some(format!("{subject}: {}", why(subject)?))).collect()
    }
}

fn path() -> PathBuf {
    project().join("xtask/ledger")
}

/// The subjects that the ledger of the repository names.
#[cfg(test)]
pub(crate) fn recorded() -> Result<Vec<String>, TaskError> {
    Ok(Ledger::read()?.0.into_keys().collect())
}

/// The sources that are tested: a commit, or `None` for a tree with other changes than those of the ledger.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tested(Option<String>);

impl Tested {
    /// What is checked out now. Fails if the ledger cannot be read, before hours of tests that it should record.
    pub(crate) fn now() -> Result<Self, TaskError> {
        Ledger::read()?;
        // An archive of the sources is in no repository.
        let changed = git(project(), &["status", "--porcelain", "--", ".", ":!xtask/ledger"]).ok();
        let head = git(project(), &["rev-parse", "--short=12", "HEAD"]).ok();
        Ok(Self(head.filter(|_| changed.as_deref() == Some(""))))
    }

    /// The commit, if the same one is checked out after the tests.
    fn commit(self, after: &Self) -> Result<String, &'static str> {
        match self.0 {
            None => Err("this tree is no commit"),
            Some(_) if self != *after => Err("the tree has changed meanwhile"),
            Some(commit) => Ok(commit),
        }
    }
}

/// Records that a subject passed as a whole on what was tested. Prints the reason if that is no commit.
pub(crate) fn record(subject: &str, tested: Tested, took: Duration) -> Outcome {
    let commit = match tested.commit(&Tested::now()?) {
        Ok(commit) => commit,
        Err(why) => {
            eprintln!("{subject} passed; not written to xtask/ledger, because {why}");
            return Ok(());
        }
    };
    let mut ledger = Ledger::read()?;
    let entry = Entry { date: date("today", "+%F")?, commit, minutes: took.as_secs().div_ceil(60) };
    ledger.0.insert(subject.to_owned(), entry);
    files::write(&path(), ledger.text())?;
    eprintln!("{subject} passed; written to xtask/ledger");
    Ok(())
}

/// Prints those of the subjects that were not run lately.
pub(crate) fn print_overdue(subjects: &[&str]) -> Outcome {
    let since = |commit: &str| {
        git(project(), &["rev-list", "--count", &format!("{commit}..HEAD")]).ok()?.parse().ok()
    };
    let overdue = Ledger::read()?.overdue(
        subjects,
        &[date(&format!("{DAYS} days ago"), "+%F")?, date("today", "+%F")?],
        since,
    );
    if !overdue.is_empty() {
        eprintln!("\nof `cargo xtask long`, older than {DAYS} days or {COMMITS} commits:");
        for line in overdue {
            eprintln!("  {line}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_read_as_it_was_written() {
        let text = format!("{HEAD}fuzz               2026-11-30 0123456789ab 12\n");
        let ledger = Ledger::parse(&text).unwrap();
        assert_eq!(ledger.0["fuzz"].minutes, 12);
        assert_eq!(ledger.text(), text);
        for day in ["yesterday", "2026-02-29", "2026-13-01", "2026-1-31"] {
            let why = Ledger::parse(&format!("fuzz {day} 0123 12")).unwrap_err();
            assert!(why.contains("SUBJECT YYYY-MM-DD COMMIT MINUTES"), "{why}");
        }
        let why = Ledger::parse("fuzz 2026-11-30 0123 12\nfuzz 2026-11-29 4567 12\n").unwrap_err();
        assert!(why.contains("4567") && why.contains("remove one"), "{why}");
    }

    #[test]
    fn what_is_old_in_days_or_commits_is_overdue() {
        let entry = |day, commit: &str| Entry {
            date: format!("2026-11-{day}"),
            commit: commit.to_owned(),
            minutes: 1,
        };
        let ledger = Ledger(BTreeMap::from([
            ("new".to_owned(), entry(30, "a")),
            ("old".to_owned(), entry(22, "a")),
            ("behind".to_owned(), entry(30, "b")),
            ("elsewhere".to_owned(), entry(30, "c")),
            ("mistyped".to_owned(), entry(31, "a")),
        ]));
        let since = |commit: &str| match commit {
            "a" => Some(200),
            "b" => Some(201),
            _ => None,
        };
        let days = ["2026-11-23", "2026-11-30"].map(str::to_owned);
        let overdue =
            ledger.overdue(&["new", "old", "behind", "elsewhere", "mistyped", "none"], &days, since);
        assert_eq!(
            overdue,
            [
                "old: passed on 2026-11-22, 200 commits ago, on a",
                "behind: passed on 2026-11-30, 201 commits ago, on b",
                "elsewhere: passed on c, which is no commit of this history",
                "mistyped: passed on 2026-11-31, in the future",
                "none: never passed as a whole",
            ]
        );
    }

    #[test]
    fn only_a_commit_that_is_checked_out_before_and_after_its_tests_is_recorded() {
        let tested = |commit: Option<&str>| Tested(commit.map(str::to_owned));
        assert_eq!(tested(Some("a")).commit(&tested(Some("a"))), Ok("a".to_owned()));
        assert_eq!(tested(Some("a")).commit(&tested(Some("b"))), Err("the tree has changed meanwhile"));
        assert_eq!(tested(Some("a")).commit(&tested(None)), Err("the tree has changed meanwhile"));
        assert_eq!(tested(None).commit(&tested(Some("a"))), Err("this tree is no commit"));
    }
}
