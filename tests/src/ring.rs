//! Records the observations and actions of an agent while a test runs, and replays them to the core when the
//! agent has ended.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::api;
use crate::programs::replay_program;

/// Reads the agent's ring by the API, like `nodlet ring -f -o json`, until the agent ends.
pub(crate) struct RingReader {
    reader: JoinHandle<String>,
    ended: Arc<AtomicBool>,
    /// Whether the first line has been received.
    reads: Arc<AtomicBool>,
}

impl RingReader {
    /// Starts reading from the agent that will listen on this socket.
    pub(crate) fn start(socket: PathBuf) -> RingReader {
        let (ended, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (seen, begun) = (ended.clone(), reads.clone());
        let reader = thread::spawn(move || {
            // The loop tries once more after `ended` is set, so that it does not matter which came first.
            loop {
                let over = seen.load(Ordering::Acquire);
                if let Some(lines) = read(&socket, &begun) {
                    return lines;
                }
                if over {
                    return String::new();
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        RingReader { reader, ended, reads }
    }

    /// Whether there is something to replay.
    pub(crate) fn reads(&self) -> bool {
        self.reads.load(Ordering::Acquire)
    }

    /// Stops connecting to new agents; the reader ends with the current one.
    pub(crate) fn forget(self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Writes the lines to `file` and runs the program that replays them. The agent must have ended.
    #[track_caller]
    pub(crate) fn replay(self, file: &Path) {
        self.ended.store(true, Ordering::Release);
        let reads = self.reads();
        let lines = self.reader.join().expect("reading does not panic");
        assert!(!reads || !lines.is_empty(), "what was read of the ring is lost");
        fs::write(file, lines).expect("/tmp can be written to");
        let replayed = Command::new(replay_program()).arg(file).output().expect("replay can be started");
        if !replayed.status.success() {
            // Outside of the slot, which the next test reuses.
            static FAILED: AtomicU32 = AtomicU32::new(0);
            let number = FAILED.fetch_add(1, Ordering::Relaxed);
            let kept = std::env::temp_dir().join(format!("nodlet-ring-{}-{number}.json", std::process::id()));
            let _ = fs::copy(file, &kept);
            let why = String::from_utf8_lossy(&replayed.stderr);
            panic!("the core does not decide the same again: {}; see {}", why.trim_end(), kept.display());
        }
    }
}

/// Reads all lines until the agent has gone; `None` if it cannot be reached.
fn read(socket: &Path, begun: &AtomicBool) -> Option<String> {
    let (_, nodes) = api::get(socket, "/api/v1/nodes").ok()?;
    let node = nodes["items"][0]["metadata"]["name"].as_str()?;
    let mut stream = UnixStream::connect(socket).ok()?;
    // HTTP/1.0 has no chunked encoding: lines arrive unchanged.
    write!(stream, "GET /api/v1/nodes/{node}/proxy/debug/ring?follow&output=json HTTP/1.0\r\n\r\n").ok()?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    // A killed agent resets the connection; the lines before that count.
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        answer.extend_from_slice(&piece[..length]);
        if !begun.load(Ordering::Relaxed) && answer.windows(5).any(|end| end.starts_with(b"\r\n\r\n")) {
            begun.store(true, Ordering::Release);
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    Some(answer.split_once("\r\n\r\n").map_or("", |(_, lines)| lines).to_owned())
}
