//! What a guest runs: a suite with containers, which is a module of the program of all suites, or a program of unit tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nodlet_build::task::project;

use super::list::UNITS;

/// The program with all suites.
pub(super) const SUITES: &str = "suites";

/// A program with tests of its own, in the package of the supervisor.
const SUPERVISOR: &str = "supervisor";

/// One run, as a guest's list or a person writes it: `probes`, or `limits --ignored huge_pages`, where a word that is no
/// option is the beginning of a test's name in the suite.
pub(super) struct Run<'a> {
    /// The suite, or the program of unit tests.
    pub(super) suite: &'a str,
    words: &'a str,
}

impl<'a> Run<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let (suite, words) = text.split_once(' ').unwrap_or((text, ""));
        Self { suite, words }
    }

    /// The program.
    pub(super) fn program(&self) -> &'a str {
        if self.is_program() { self.suite } else { SUITES }
    }

    fn is_program(&self) -> bool {
        UNITS.contains(&self.suite) || self.suite == SUPERVISOR
    }

    /// The program and its arguments, in a line.
    pub(super) fn line(&self) -> String {
        if self.is_program() {
            return format!("{} {}", self.suite, self.words).trim_end().to_owned();
        }
        let (mut line, mut has_filter, mut is_value) = (SUITES.to_owned(), false, false);
        for word in self.words.split_whitespace() {
            line.push(' ');
            let is_filter = !is_value && !word.starts_with('-');
            if is_filter {
                line.push_str(self.suite);
                line.push_str("::");
            }
            line.push_str(word);
            has_filter |= is_filter;
            is_value = word == "--skip";
        }
        if !has_filter {
            line.push_str(&format!(" {}::", self.suite));
        }
        // A filter chooses each test with this text anywhere in its name.
        let others = modules();
        for other in others.iter().filter(|other| *other != self.suite && other.ends_with(self.suite)) {
            line.push_str(&format!(" --skip {other}::"));
        }
        line
    }
}

/// The names of all modules with tests: the suites, and the modules in them, such as `fields::pod`.
fn modules() -> BTreeSet<String> {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let stem = |path: &Path| path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let mut modules = BTreeSet::new();
    for path in entries(&project().join("tests/tests")) {
        let suite = stem(&path);
        if is_source(&path) {
            modules.insert(suite);
        } else {
            modules.extend(entries(&path).filter(is_source).map(|path| format!("{suite}::{}", stem(&path))));
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_a_module_of_the_program_of_all_suites() {
        let check = |text: &str, program: &str, line: &str| {
            let run = Run::parse(text);
            assert_eq!((run.program(), run.line().as_str()), (program, line));
        };
        check("probes", "suites", "suites probes::");
        check("cgroup2 --ignored huge a", "suites", "suites --ignored cgroup2::huge cgroup2::a");
        check("documents --skip myapp_pod", "suites", "suites --skip myapp_pod documents::");
        check("nodlet_host cgroup:: volume::", "nodlet_host", "nodlet_host cgroup:: volume::");
        check("supervisor", "supervisor", "supervisor");
        // Suites whose names end as that of another one.
        check("network", "suites", "suites network:: --skip cluster_network::");
        check("steps", "suites", "suites steps:: --skip at_most_one::steps::");
    }
}
