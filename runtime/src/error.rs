//! One helper that prints an error with its causes.

use std::error::Error;
use std::fmt::Write;

/// `error` and what caused it, joined by `: `. Each `Display` leaves its cause out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing into a String does not fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
