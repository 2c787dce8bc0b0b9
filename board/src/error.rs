//! The error that a verb prints for the user.

use std::fmt;

use crate::output::escaped;

/// An error text for stderr. The process exits with code 1.
#[derive(Debug)]
pub(crate) struct VerbError {
    text: String,
    cause: Cause,
}

/// The cause of a failure, as far as verbs distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Any,
    /// Not a failure: the user asked for help.
    Help,
    /// There is no agent, or the connection to it was lost.
    Disconnected,
    /// The agent answered with this HTTP status.
    Refused(u16),
}

impl VerbError {
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        VerbError { text: format!("error: {text}"), cause: Cause::Any }
    }

    /// A failure with the text `error: failed to …` and all causes.
    pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> Self {
        VerbError::new(format!("failed to {}", nodlet_host::error::chain(error)))
    }

    /// Adds the file that the failure is about.
    pub(crate) fn of(self, file: &str) -> Self {
        let text = self.text.strip_prefix("error: ").unwrap_or(&self.text);
        VerbError { text: format!("error: {file}: {text}"), ..self }
    }

    /// An error response of the agent, with the text to print.
    pub(crate) fn refused(code: u16, text: impl Into<String>) -> Self {
        VerbError { text: text.into(), cause: Cause::Refused(code) }
    }

    pub(crate) fn disconnected(text: impl fmt::Display) -> Self {
        VerbError { cause: Cause::Disconnected, ..VerbError::new(text) }
    }

    pub(crate) fn help() -> Self {
        VerbError { text: String::new(), cause: Cause::Help }
    }

    pub(crate) fn is_help(&self) -> bool {
        self.cause == Cause::Help
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.cause == Cause::Disconnected
    }

    /// The HTTP status if the agent returned an error.
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

/// The text contains what others wrote, such as names of an image, and must not steer a terminal.
impl fmt::Display for VerbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.text))
    }
}

impl From<lexopt::Error> for VerbError {
    fn from(error: lexopt::Error) -> Self {
        VerbError::new(error)
    }
}

impl From<std::io::Error> for VerbError {
    fn from(error: std::io::Error) -> Self {
        VerbError::new(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_in_an_error_cannot_steer_a_terminal() {
        let failure = VerbError::refused(400, "unknown field \"\u{1b}[2J\r\"\nand more");
        assert_eq!(failure.to_string(), "unknown field \"^[[2J\\r\"\nand more");
    }
}
