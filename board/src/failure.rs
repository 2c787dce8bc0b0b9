//! What went wrong, as the user reads it.

use std::fmt;

/// Text for stderr; the exit code is 1.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    cause: Cause,
}

/// What a verb may want to know of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Any,
    /// No failure: the user asked for help.
    Help,
    /// There is no agent, or it is gone.
    Disconnected,
    /// The agent answered with this HTTP status.
    Refused(u16),
}

impl Failure {
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Failure { text: format!("error: {text}"), cause: Cause::Any }
    }

    /// `error: failed to …`, with all causes.
    pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> Self {
        Failure::new(format!("failed to {}", nodlet_host::error::chain(error)))
    }

    /// Of this file.
    pub(crate) fn of(self, file: &str) -> Self {
        let text = self.text.strip_prefix("error: ").unwrap_or(&self.text);
        Failure { text: format!("error: {file}: {text}"), ..self }
    }

    /// What the agent says, as it is to be printed.
    pub(crate) fn refused(code: u16, text: impl Into<String>) -> Self {
        Failure { text: text.into(), cause: Cause::Refused(code) }
    }

    pub(crate) fn disconnected(text: impl fmt::Display) -> Self {
        Failure { cause: Cause::Disconnected, ..Failure::new(text) }
    }

    pub(crate) fn help() -> Self {
        Failure { text: String::new(), cause: Cause::Help }
    }

    pub(crate) fn is_help(&self) -> bool {
        self.cause == Cause::Help
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.cause == Cause::Disconnected
    }

    /// The HTTP status of a refusal.
    pub(crate) fn code(&self) -> Option<u16> {
        match self.cause {
            Cause::Refused(code) => Some(code),
            Cause::Any | Cause::Help | Cause::Disconnected => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.cause == Cause::Refused(404)
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.cause == Cause::Refused(410)
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
