//! A verb of the command line, and its result.

use std::process::ExitCode;

use crate::arguments::Context;
use crate::error::VerbError;

/// The result of a verb: the exit code, or the error to show the user.
pub(crate) type Outcome = Result<ExitCode, VerbError>;

/// A verb of the command line.
pub(crate) struct Verb {
    /// The name, also that of the text of `--help` in `board/help`.
    pub(crate) name: &'static str,
    /// The line in the list of verbs; empty for verbs that people do not call.
    pub(crate) summary: &'static str,
    pub(crate) run: fn(Context, lexopt::Parser) -> Outcome,
}
