//! `nodlet push BOARD --system FILE`: sends an update of nodlet to a board, with its signature.
//!
//! Program and signature go to `nodlet system install -` on the board, which verifies them, tries the program
//! and reports the result. This side verifies nothing, because only the board has the keys.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};

use crate::client::remote::Remote;
use crate::error::VerbError;
use crate::output::StatusLine;
use crate::system::{COMMENT, SIGNATURE_BYTES};
use crate::verb::Outcome;

/// The most bytes of the program that are sent at once.
const PIECE: usize = 64 * 1024;

/// An update of nodlet to send.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) program: PathBuf,
    /// The signature file, if it is not FILE.minisig.
    pub(crate) signature: Option<PathBuf>,
    /// Further arguments of `nodlet system install`.
    pub(crate) options: Vec<OsString>,
}

impl Update {
    /// Sends signature and program, and waits for the board's result. Returns the board's exit code.
    pub(crate) fn send(&self, remote: &Remote) -> Outcome {
        let signature = self.signature()?;
        let name = self.program.display();
        let failed = |error: io::Error| VerbError::new(format!("failed to read {name}: {error}"));
        let program = File::open(&self.program).map_err(failed)?;
        let metadata = program.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(VerbError::new(format!("{name} is not a file: --system requires a nodlet program")));
        }
        let total = signature.len() as u64 + metadata.len();
        let mut arguments: Vec<OsString> = ["system", "install", "-"].map(OsString::from).into();
        arguments.extend(self.options.iter().cloned());
        let (mut stream, running) = remote.start(&arguments)?;
        let mut source = Cursor::new(signature).chain(program);
        let (mut line, mut sent, mut piece) = (StatusLine::new(), 0, Vec::with_capacity(PIECE));
        // The board rejects a truncated program. One that rejects the update stops reading, and its report follows.
        while source.by_ref().take(PIECE as u64).read_to_end(&mut piece).map_err(failed)? > 0
            && stream.write_all(&piece).is_ok()
        {
            sent += piece.len() as u64;
            line.show_part("", sent, total);
            piece.clear();
        }
        line.clear();
        let _ = stream.shutdown(Shutdown::Write);
        running.outcome()
    }

    /// The signature to send before the program; empty if there is none, which a board may accept.
    fn signature(&self) -> Result<Vec<u8>, VerbError> {
        let beside = {
            let mut name = self.program.clone().into_os_string();
            name.push(".minisig");
            PathBuf::from(name)
        };
        let path = match &self.signature {
            Some(path) => path.as_path(),
            None if beside.exists() => beside.as_path(),
            None => return Ok(Vec::new()),
        };
        read_signature(path)
    }
}

fn read_signature(path: &Path) -> Result<Vec<u8>, VerbError> {
    let name = path.display();
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SIGNATURE_BYTES as u64).read_to_end(&mut text));
    read.map_err(|error| VerbError::new(format!("failed to read {name}: {error}")))?;
    while text.last().is_some_and(u8::is_ascii_whitespace) {
        text.pop();
    }
    text.push(b'\n');
    // The board would take anything after the fourth line for the beginning of the program.
    if text.starts_with(COMMENT) && text.iter().filter(|byte| **byte == b'\n').count() == 4 {
        Ok(text)
    } else {
        Err(VerbError::new(format!(
            "{name} is not a minisign signature: it must have the four lines that `minisign -Sm FILE` writes"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signature_of_four_lines_is_sent() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = scratch.path();
        let path = directory.join("x.minisig");
        let whole = "untrusted comment: a\nRUQ\ntrusted comment: b\nabc=";
        for (text, accepted) in [
            (format!("{whole}\n"), true),
            (whole.to_owned(), true),
            (format!("{whole}\r\n"), true),
            (format!("{whole}\n\n"), true),
            (format!("{whole}\nmore\n"), false),
            ("untrusted comment: a\nRUQ\n".to_owned(), false),
            ("\x7fELF\n\n\n\n".to_owned(), false),
            (String::new(), false),
            (
                "untrusted comment: a\nRUQ\ntrusted comment: ".to_owned() + &"b".repeat(5000) + "\nabc=\n",
                false,
            ),
        ] {
            std::fs::write(&path, &text).expect("written");
            match read_signature(&path) {
                Ok(bytes) => assert!(accepted && bytes == format!("{whole}\n").as_bytes(), "{text:?}"),
                Err(failure) => {
                    assert!(
                        !accepted && failure.to_string().contains("is not a minisign signature"),
                        "{text:?}"
                    );
                }
            }
        }
    }
}
