//! [`Background`]: a command in the background, and the lines that it has printed so far.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A command in the background, which is killed on drop.
pub struct Background {
    /// The process.
    pub child: Child,
    /// Its input, if that is a pipe; `None` closes it.
    pub stdin: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a command, and reads its output.
    pub fn start(mut command: Command) -> Background {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command can be run");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                seen.lock().expect("no reader panics").push(line);
            }
        });
        let stdin = child.stdin.take();
        Background { child, stdin, lines, reader: Some(reader) }
    }

    /// Writes to its input.
    pub fn say(&mut self, text: &str) {
        self.stdin.as_mut().expect("it is open").write_all(text.as_bytes()).expect("the command reads");
    }

    /// The lines that it has printed so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no reader panics").clone()
    }

    /// Kills it. Returns all lines that it has printed.
    pub fn end(mut self) -> Vec<String> {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
        self.reader.take().expect("nobody else takes it").join().expect("it does not panic");
        self.lines()
    }

    /// Whether it has printed such a line.
    pub fn saw(&self, test: impl Fn(&str) -> bool) -> bool {
        self.lines.lock().expect("no reader panics").iter().any(|line| test(line))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
