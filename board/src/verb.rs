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
        self.help.trim_end().replace("{types}", &kinds::types())
    }
}
