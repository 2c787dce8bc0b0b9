//! What went wrong, as the user reads it.

use std::fmt;

/// Text for stderr; the exit code is 1.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    help: bool,
}

impl Failure {
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Failure { text: format!("error: {text}"), help: false }
    }

    /// Without `error: ` before it.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Failure { text: text.into(), help: false }
    }

    /// No failure: the user asked for help.
    pub(crate) fn help() -> Self {
        Failure { text: String::new(), help: true }
    }

    pub(crate) fn is_help(&self) -> bool {
        self.help
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<lexopt::Error> for Failure {
    fn from(error: lexopt::Error) -> Self {
        Failure::new(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::new(error)
    }
}
