//! Errors of single steps, and the text in which an error is reported to the agent.

use std::borrow::Cow;
use std::error::Error;
use std::io;

use super::protocol::{Message, cut};

/// A step that failed, or that was refused.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub(super) struct StepError {
    step: Cow<'static, str>,
    source: Option<io::Error>,
}

impl StepError {
    pub(super) fn new(step: impl Into<Cow<'static, str>>, source: io::Error) -> StepError {
        StepError { step: step.into(), source: Some(source) }
    }

    /// Makes the error of a step from its cause, for `map_err`.
    pub(super) fn at<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> StepError {
        move |source| StepError::new(step, source.into())
    }
}

impl From<String> for StepError {
    fn from(reason: String) -> Self {
        StepError { step: reason.into(), source: None }
    }
}

impl From<&'static str> for StepError {
    fn from(reason: &'static str) -> Self {
        StepError { step: reason.into(), source: None }
    }
}

/// The texts of `error` and its causes, joined by `: `, cut to what fits. Unlike [`nodlet_host::error::chain`]
/// without advice, which is about the files and the user of the agent: an error here may be one of a volume, or
/// of a process that runs as the container's user.
pub(super) fn message(error: &(dyn Error + 'static)) -> Message {
    cut(&nodlet_host::error::causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_every_cause_and_no_advice() {
        let failed = StepError::new("make its cgroup", io::Error::from_raw_os_error(libc::EROFS));
        assert_eq!(message(&failed), "make its cgroup: Read-only file system (os error 30)");
        assert_eq!(
            message(&StepError::from("start it: there is no sandbox")),
            "start it: there is no sandbox"
        );
    }
}
