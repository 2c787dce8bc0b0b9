//! The exit record of an attempt, in a file that outlives the supervisor. It is written before the process is
//! reaped, so that there is always a process or a record.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::log::Log;
use nodlet_core::time::Instant;
use nodlet_host::launch::TerminationMessage;
use nodlet_kernel::durable::replace_in_memory;
use nodlet_kernel::own_file;

/// Maximum size of a termination message in bytes.
const MAX_MESSAGE: u64 = 4096;

/// The interval between tries to read a record after a shortage.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The exit record of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The exit code, or 128 + the signal.
    pub code: i32,
    /// The signal that ended the process, if one did.
    pub signal: Option<i32>,
    /// When the process was executed.
    pub started_at: Instant,
    /// When the process ended, as far as the supervisor could observe it.
    pub finished_at: Instant,
    /// The termination message.
    pub message: String,
}

impl ExitRecord {
    /// Reads the record of an attempt from a supervisor's directory; `None` if there is no valid one.
    ///
    /// # Errors
    /// A shortage, for instance of descriptors, prevented the read. This says nothing about the attempt.
    pub fn read(dir: &Path, container: &str, number: u32) -> io::Result<Option<ExitRecord>> {
        match own_file::read(&path(dir, container, number)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if nodlet_host::error::is_shortage(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Reads the record like [`ExitRecord::read`], and retries as long as a shortage prevents that.
    pub async fn read_in_time(dir: &Path, container: &str, number: u32) -> Option<ExitRecord> {
        loop {
            match ExitRecord::read(dir, container, number) {
                Ok(record) => return record,
                Err(error) => {
                    log::error!("failed to read how {container}#{number} ended: {error}; trying again");
                    smol::Timer::after(RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Replaces the record as a whole.
    pub(super) fn write(&self, dir: &Path, container: &str, number: u32) -> io::Result<()> {
        let path = path(dir, container, number);
        fs::create_dir_all(dir.join(EXIT_DIRECTORY))?;
        replace_in_memory(&path, serde_json::to_vec(self)?)
    }
}

const EXIT_DIRECTORY: &str = "exits";

fn path(dir: &Path, container: &str, number: u32) -> PathBuf {
    dir.join(EXIT_DIRECTORY).join(format!("{container}_{number}"))
}

pub(super) fn remove(dir: &Path, container: &str, number: u32) {
    let _ = fs::remove_file(path(dir, container, number));
}

/// The termination message of an attempt that ended with `code`: the end of its file; or the end of its log
/// if the file is empty, the code is not 0 and the pod asks for that.
pub(super) fn termination_message(wanted: Option<&TerminationMessage>, code: i32, log: &Log) -> String {
    let Some(wanted) = wanted else { return String::new() };
    let text = match tail_of_file(&wanted.file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return format!("Error on reading termination log {}: {error}", wanted.file.display()),
    };
    if text.is_empty() && code != 0 && wanted.fallback_to_logs { log.tail() } else { text }
}

/// Reads the end of the termination message file. The file is mounted in the container, which can write to it
/// but not replace it. Should a container ever be able to, a link must not be followed, and a FIFO not waited
/// for.
fn tail_of_file(path: &Path) -> io::Result<String> {
    let mut file = own_file::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_MESSAGE)))?;
    let mut bytes = Vec::new();
    file.take(MAX_MESSAGE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
