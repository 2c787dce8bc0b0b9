//! Reads the description of the board in a device image: `usr/lib/nodlet/board.json`, which `cargo xtask
//! image` makes of a profile.

use std::io;
use std::path::Path;

use nodlet_kernel::own_file;

use crate::board_json::Rules;
pub(crate) use crate::board_json::{Board, CrashLoop};

/// The path of the description.
const FILE: &str = "/usr/lib/nodlet/board.json";

/// Reads the description of the board.
///
/// # Errors
/// The file is missing, or has a field or value that this version does not know.
pub(crate) fn read() -> io::Result<Board> {
    let in_file = |error: &dyn std::fmt::Display| io::Error::other(format!("read {FILE}: {error}"));
    let bytes = own_file::read(Path::new(FILE)).map_err(|error| in_file(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| in_file(&error))
}

/// Which updates of nodlet this board accepts.
///
/// # Errors
/// The file that describes the board cannot be read.
pub(crate) fn update_rules() -> io::Result<Rules> {
    read().map(|board| board.update)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_read_and_an_unknown_key_is_an_error() {
        let read = |text: &str| serde_json::from_str::<Board>(text);
        let text = r#"{"name": "a", "network": [{"link": "eth0", "address": "10.0.2.15", "prefix": 24}]}"#;
        let board = read(text).expect("it is right");
        assert_eq!((board.name.as_str(), board.network[0].prefix, board.agent.len()), ("a", Some(24), 0));
        let error = read(r#"{"nam": "a"}"#).expect_err("there is no such key").to_string();
        assert!(error.contains("unknown field `nam`, expected one of"), "{error}");
    }
}
