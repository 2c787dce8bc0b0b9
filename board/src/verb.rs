//! A verb of the command line, and its result.

use std::process::ExitCode;

use nodlet_kube::kinds;

use crate::arguments::Context;
use crate::failure::Failure;

/// The result of a verb: the exit code, or the error to show the user.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// A verb of the command line.
pub(crate) struct Verb {
    pub(crate) name: &'static str,
    /// The line in the list of verbs; empty for verbs that people do not call.
    pub(crate) summary: &'static str,
    /// The text that `--help` prints, with examples; `{types}` stands for all kinds.
    pub(crate) help: &'static str,
    pub(crate) run: fn(Context, lexopt::Parser) -> Outcome,
}

impl Verb {
    /// The text of `--help`.
    pub(crate) fn help(&self) -> String {
        self.help.trim_end().replace("{types}", &wrapped(&kinds::types()))
    }
}

/// A list as lines of at most 80 characters, indented.
fn wrapped(list: &str) -> String {
    let mut lines = vec!["  ".to_owned()];
    for entry in list.split_inclusive(", ") {
        let line = match lines.last_mut() {
            Some(line) if line.len() + entry.len() <= 80 => line,
            _ => {
                lines.push("  ".to_owned());
                lines.last_mut().expect("a line")
            }
        };
        line.push_str(entry);
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}
