//! [`Ran`]: what a command printed and how it ended.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// The output and the exit code of a command.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The command, for messages.
    pub command: String,
    /// The command's exit code; 128 + N if signal N ended it.
    pub code: i32,
    /// The command's standard output.
    pub stdout: String,
    /// The command's standard error.
    pub stderr: String,
}

impl Ran {
    /// The effect of a command, by its output.
    pub fn new(command: String, output: Output) -> Self {
        let status = output.status;
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { command, code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Runs a command with this standard input. `name` is the command for messages.
    pub(crate) fn of(mut command: Command, name: &str, input: &str) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        // A command without input may have ended already.
        let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
        Self::new(name.to_owned(), child.wait_with_output().expect("a child can be waited for"))
    }

    /// Returns the standard output of a command, which must have succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == 0, "{self:#?}");
        self.stdout
    }

    /// Returns the standard error of a command, which must have failed.
    #[track_caller]
    pub fn refused(self) -> String {
        assert!(self.code != 0, "{self:#?}");
        self.stderr
    }

    /// Returns the standard output of a command, which must have succeeded and printed this text.
    #[track_caller]
    pub fn ok_with(self, expected: &str) -> String {
        let stdout = self.ok();
        assert!(stdout.contains(expected), "no {expected:?} in:\n{stdout}");
        stdout
    }

    /// Returns the standard error of a command, which must have failed and printed this text there.
    #[track_caller]
    pub fn refused_with(self, expected: &str) -> String {
        let stderr = self.refused();
        assert!(stderr.contains(expected), "no {expected:?} in:\n{stderr}");
        stderr
    }
}
