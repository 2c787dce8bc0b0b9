//! [`Allowed`]: the tests of Kubernetes that may fail, each with its reason, as listed in the repository.

use std::collections::BTreeMap;
use std::path::Path;

use nodlet_build::task::{Outcome, TaskError};

use super::report::{Ended, Report};

/// What separates the name of a test from the reason.
const SEPARATOR: &str = " # ";

/// The beginning of reasons that depend on the machine: such a test may pass on another one.
const MACHINE: &str = "this machine ";

/// The tests that may fail, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allowed(BTreeMap<String, String>);

impl Allowed {
    pub(super) fn read(path: &Path) -> Result<Self, TaskError> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|why| TaskError(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut tests = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = number + 1;
            let (name, reason) = line
                .split_once(SEPARATOR)
                .filter(|(_, reason)| !reason.trim().is_empty())
                .ok_or_else(|| format!("line {number} has no reason after {SEPARATOR:?}"))?;
            if tests.insert(name.to_owned(), reason.to_owned()).is_some() {
                return Err(format!("line {number} lists a test again: {name}"));
            }
        }
        Ok(Self(tests))
    }

    /// Rejects entries that name none of these tests.
    pub(super) fn require_known<'a>(&self, all: impl Iterator<Item = &'a str>) -> Outcome {
        let all: Vec<&str> = all.collect();
        match self.0.keys().find(|name| !all.contains(&name.as_str())) {
            Some(name) => {
                Err(TaskError(format!("allowed-failures lists {name:?}, and there is no such test")))
            }
            None => Ok(()),
        }
    }

    /// Fails if a test failed that may not, or if one passed that is listed.
    pub(super) fn judge(&self, report: &Report) -> Outcome {
        let mut wrong = Vec::new();
        for (name, ended) in &report.0 {
            match ended {
                Ended::Failed(_) if !self.0.contains_key(name) => wrong.push(format!("failed: {name}")),
                Ended::Passed if self.0.get(name).is_some_and(|reason| !reason.starts_with(MACHINE)) => {
                    wrong.push(format!("passed: remove it from allowed-failures: {name}"));
                }
                Ended::OutOfTime => wrong.push(format!("did not end in time: {name}")),
                Ended::Passed | Ended::Failed(_) | Ended::Skipped(_) => {}
            }
        }
        if report.0.is_empty() {
            wrong.push("no test was run".into());
        }
        if wrong.is_empty() { Ok(()) } else { Err(TaskError(wrong.join("\n  "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(tests: &[(&str, Ended)]) -> Report {
        Report(tests.iter().map(|(name, ended)| ((*name).to_owned(), ended.clone())).collect())
    }

    #[test]
    fn each_line_has_a_test_and_a_reason() {
        let read = Allowed::parse("# comment\n\n[sig] a # no such field\n").unwrap();
        assert_eq!(read.0, BTreeMap::from([("[sig] a".into(), "no such field".into())]));
        for wrong in ["[sig] a\n", "[sig] a # \n", "[sig] a # x\n[sig] a # y\n"] {
            Allowed::parse(wrong).unwrap_err();
        }
        read.require_known(["[sig] a", "[sig] b"].into_iter()).unwrap();
        read.require_known(["[sig] b"].into_iter()).unwrap_err();
    }

    #[test]
    fn only_listed_tests_may_fail_and_only_others_may_pass() {
        let allowed = Allowed::parse("a # why\nm # this machine may lack it\n").unwrap();
        let failed = || Ended::Failed("why".into());
        let check = |tests: &[(&str, Ended)], expected: bool| {
            assert_eq!(allowed.judge(&report(tests)).is_ok(), expected, "{tests:?}");
        };
        check(&[("a", failed()), ("b", Ended::Passed)], true);
        check(&[("b", Ended::Passed), ("c", Ended::Skipped("why".into()))], true);
        check(&[("a", failed()), ("b", failed())], false);
        check(&[("a", Ended::Passed)], false);
        check(&[("m", Ended::Passed)], true);
        check(&[("m", failed())], true);
        check(&[("b", Ended::OutOfTime)], false);
        check(&[], false);
    }
}
