//! Prints an error with its causes. `Display` of an error omits its cause, which `source()` returns.

use std::error::Error;
use std::fmt::Write;

/// The texts of `error` and its causes, joined by `: `.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a String does not fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
