//! Why a push ended early.

use std::io;

use serde_json::{Value, json};

use crate::error::VerbError;

/// Why a push ended early.
pub(super) enum End {
    /// The sender has disconnected or violated the protocol.
    Wire(io::Error),
    /// The push is rejected; the sender gets this reason.
    Refused(String),
    /// The base and the changed blocks did not make the layer. It must be sent whole.
    NotRebuilt(String),
    /// Another push is running.
    Busy,
}

impl End {
    /// The message to a sender if another push is running.
    pub(super) fn busy() -> Value {
        json!({"error": "another push to this board is running: retry when it has finished", "again": true})
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Wire(error)
    }
}

impl From<VerbError> for End {
    fn from(failure: VerbError) -> End {
        let text = failure.to_string();
        End::Refused(text.strip_prefix("error: ").map(str::to_owned).unwrap_or(text))
    }
}

/// Converts the error of an operation on the spool.
pub(super) fn refused(what: &str) -> impl Fn(io::Error) -> End + '_ {
    move |error| {
        End::Refused(match error.raw_os_error() {
            Some(libc::ENOSPC) => {
                format!("the board's disk is full: failed to {what}; remove images with nodlet image rm")
            }
            _ => format!("failed to {what} on the board: {error}"),
        })
    }
}
