//! A client of QEMU's monitor, which speaks QMP: JSON objects, one per line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nodlet_build::task::{Outcome, TaskError};
use serde_json::{Value, json};

use super::{Board, PATIENCE};

/// A connection to the monitor of a running emulator.
pub(super) struct Monitor {
    commands: UnixStream,
    answers: BufReader<UnixStream>,
}

/// The monitor socket of a step's board.
fn socket(directory: &Path) -> PathBuf {
    directory.join("monitor")
}

/// The emulator's arguments that open the monitor for [`Monitor::connect`].
pub(super) fn arguments(directory: &Path) -> [String; 2] {
    // A leftover socket of an earlier board.
    let _ = std::fs::remove_file(socket(directory));
    ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket(directory).display())]
}

impl Monitor {
    pub(super) fn connect(board: &mut Board) -> Result<Monitor, TaskError> {
        let mut connected = None;
        board.wait_for("the monitor of QEMU", |board| {
            connected = UnixStream::connect(socket(&board.directory)).ok();
            Ok(connected.is_some())
        })?;
        let commands = connected.ok_or("the monitor is connected")?;
        commands.set_read_timeout(Some(PATIENCE))?;
        let answers = BufReader::new(commands.try_clone()?);
        let mut monitor = Monitor { commands, answers };
        // The monitor sends a greeting, and accepts no other command before this one.
        monitor.run("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Runs a command and returns its result.
    pub(super) fn run(&mut self, command: &str, arguments: Value) -> Result<Value, TaskError> {
        writeln!(self.commands, "{}", json!({"execute": command, "arguments": arguments}))?;
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line)? == 0 {
                return Err(TaskError(format!("the emulator ended before it answered {command}")));
            }
            let mut message: Value = serde_json::from_str(&line)?;
            if let Some(error) = message.get("error") {
                return Err(TaskError(format!("QEMU rejects {command}: {error}")));
            }
            // Other messages are events.
            if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    /// Waits for an event.
    pub(super) fn wait_for_event(&mut self, name: &str) -> Outcome {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line);
            if read.map_err(|error| TaskError(format!("no event {name} of QEMU: {error}")))? == 0 {
                return Err(TaskError(format!("the emulator ended before its event {name}")));
            }
            if serde_json::from_str::<Value>(&line)?["event"] == name {
                return Ok(());
            }
        }
    }

    /// Plugs or unplugs the cable of a network link.
    pub(super) fn set_link(&mut self, name: &str, up: bool) -> Outcome {
        self.run("set_link", json!({"name": name, "up": up})).map(drop)
    }

    /// The number of writes to the board's media since it was turned on.
    pub(super) fn writes(&mut self) -> Result<u64, TaskError> {
        let media = self.run("query-blockstats", json!({}))?;
        let media = media.as_array().into_iter().flatten();
        Ok(media.filter_map(|medium| medium["stats"]["wr_operations"].as_u64()).sum())
    }
}
