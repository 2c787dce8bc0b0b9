//! A container's log: lines of stdout and stderr in CRI format, in a file that is rotated by size.
//!
//! A line is written completely or not at all, and no line is lost silently. If the file accepts no more (a
//! full disk), the container's output is still read, as under containerd, so that the container does not
//! block. Lost lines are counted, and the count is the next line that can be written.
//!
//! Rotated files are named as the kubelet names them, but not compressed: a supervisor has to stay small, and
//! logs on a board are small already.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use nodlet_core::time::Timestamp;
use nodlet_host::launch::LogConfig;
use nodlet_host::log_files::{Directory, Place};

/// Maximum content of one line of the file; a longer line continues on the next one, as with containerd.
const MAX_LINE: usize = 16 * 1024;

/// How many bytes of complete lines are written to the file at once; a batch may exceed this by a line.
const BATCH: usize = 64 * 1024;

/// The two outputs of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// `stdout`, or the terminal.
    Stdout = 0,
    /// `stderr`.
    Stderr = 1,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Output that was read and is not in the file: an unfinished line of each stream, and the count of lost
/// lines. It is handed over when the supervisor is replaced by a newer one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Partial {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    #[serde(default)]
    lost: Option<Lost>,
}

impl Partial {
    fn of(&mut self, stream: Stream) -> &mut Vec<u8> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// The log of one attempt.
#[derive(Serialize, Deserialize)]
pub(super) struct Log {
    #[serde(rename = "log")]
    config: LogConfig,
    #[serde(skip)]
    file: Option<File>,
    #[serde(skip)]
    size: u64,
    /// Timestamps in the names of the rotated files, oldest first.
    #[serde(skip)]
    rotated: VecDeque<String>,
    partial: Partial,
}

/// The lines that could not be written since the last one that could.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lost {
    lines: u64,
    bytes: u64,
    why: String,
}

impl Log {
    /// Opens the log and makes the link to it.
    pub(super) fn open(config: LogConfig) -> Log {
        let partial = Partial::default();
        let mut log = Log { config, file: None, size: 0, rotated: VecDeque::new(), partial };
        log.open_first();
        log
    }

    /// Opens the file and makes the link to it. If the file cannot be opened, every line tries again.
    pub(super) fn open_first(&mut self) {
        self.file = self.begin().ok();
        self.make_link();
    }

    /// Makes the link to the log. A failure is ignored: only log shippers use the link.
    fn make_link(&self) {
        let (link, path) = (&self.config.link, &self.config.path);
        let make = || -> io::Result<()> {
            let place = Place::of_link(link)?;
            let (directory, _) = place.make()?;
            if directory.target(place.name).is_some_and(|target| target == *path) {
                return Ok(());
            }
            directory.remove(place.name)?;
            directory.link(path, place.name)
        };
        let _ = make();
    }

    /// Opens the file for the first time, and finds its rotated files.
    fn begin(&mut self) -> io::Result<File> {
        let place = Place::of_log(&self.config.path)?;
        let (directory, is_new) = place.make()?;
        if !is_new {
            self.rotated = rotated_files(&directory, place.name);
        }
        let (file, size) = open_in(&directory, place.name)?;
        self.size = size;
        Ok(file)
    }

    /// Opens the file again, or a new one in its place.
    fn open_file(&mut self) -> io::Result<File> {
        let place = Place::of_log(&self.config.path)?;
        let (file, size) = open_in(&place.make()?.0, place.name)?;
        self.size = size;
        Ok(file)
    }

    /// Writes output that was read from a stream.
    pub(super) fn write(&mut self, stream: Stream, mut bytes: &[u8]) {
        let prefix = Prefix::new(stream);
        let mut lines = Vec::with_capacity((bytes.len() + bytes.len() / 4).min(BATCH) + 64);
        let mut count = 0;
        while !bytes.is_empty() {
            let partial = self.partial.of(stream);
            let room = MAX_LINE - partial.len();
            let newline = memchr::memchr(b'\n', &bytes[..bytes.len().min(room + 1)]);
            match newline {
                Some(end) => {
                    prefix.append(&mut lines, "F", &[partial, &bytes[..end]]);
                    partial.clear();
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() > room => {
                    prefix.append(&mut lines, "P", &[partial, &bytes[..room]]);
                    partial.clear();
                    bytes = &bytes[room..];
                }
                None => {
                    partial.extend_from_slice(bytes);
                    break;
                }
            }
            count += 1;
            // One batch is one write; a batch that would exceed the maximum size goes into a new file.
            if lines.len() >= BATCH {
                self.store(&lines, count);
                lines.clear();
                count = 0;
            }
            let partial = self.partial.of(stream);
            // An idle supervisor must not keep the buffer of a long line.
            if partial.capacity() > 1024 && partial.is_empty() {
                *partial = Vec::new();
            }
        }
        if count > 0 {
            self.store(&lines, count);
        }
    }

    /// Completes the log after the streams have ended: a line without a newline is written too.
    pub(super) fn finish(&mut self) {
        let partial = [&mut self.partial.stdout, &mut self.partial.stderr].map(std::mem::take);
        for (stream, rest) in [Stream::Stdout, Stream::Stderr].into_iter().zip(partial) {
            if !rest.is_empty() {
                let mut line = Vec::with_capacity(rest.len() + 64);
                Prefix::new(stream).append(&mut line, "F", &[&rest]);
                self.store(&line, 1);
            }
        }
        if self.partial.lost.is_some() {
            // No line follows that the count could precede.
            let _ = self.try_store(&[]);
        }
    }

    /// The content of the last lines, at most 80 lines and 2048 bytes, including an unfinished one
    /// (`FallbackToLogsOnError`).
    pub(super) fn tail(&self) -> String {
        const LINES: usize = 80;
        const BYTES: usize = 2048;
        // A piece of a long line, and before it 2048 bytes in 80 lines with a prefix of some 50 bytes each.
        const WINDOW: u64 = (MAX_LINE + 8192) as u64;
        let read = || -> io::Result<Vec<u8>> {
            let place = Place::of_log(&self.config.path)?;
            let (mut file, metadata) = place.open()?.open_own(place.name, OFlag::O_RDONLY)?;
            let length = metadata.len();
            file.seek(SeekFrom::Start(length.saturating_sub(WINDOW)))?;
            let mut bytes = Vec::new();
            // The file may grow meanwhile: processes outside of the ended container can write there too.
            file.take(WINDOW).read_to_end(&mut bytes)?;
            if length > WINDOW {
                let first = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                bytes.drain(..first);
            }
            Ok(bytes)
        };
        let bytes = read().unwrap_or_default();
        let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        let mut text = Vec::new();
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            let mut fields = line.splitn(4, |byte| *byte == b' ');
            let partial = fields.nth(2) == Some(b"P");
            if let Some(content) = fields.next() {
                let content = if partial { content.strip_suffix(b"\n").unwrap_or(content) } else { content };
                text.extend_from_slice(content);
            }
        }
        // Without the line feed that the container did not write, as with containerd.
        text.extend_from_slice(&self.partial.stdout);
        text.extend_from_slice(&self.partial.stderr);
        let start = text.len().saturating_sub(BYTES);
        String::from_utf8_lossy(&text[start..]).into_owned()
    }

    /// Writes complete lines, or counts them as lost.
    fn store(&mut self, lines: &[u8], count: u64) {
        if let Err(error) = self.try_store(lines) {
            let lost =
                self.partial.lost.get_or_insert_with(|| Lost { lines: 0, bytes: 0, why: error.to_string() });
            lost.lines += count;
            lost.bytes += lines.len() as u64;
        }
    }

    fn try_store(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.config.max_size > 0 && self.size > 0 && self.size + lines.len() as u64 > self.config.max_size
        {
            self.rotate();
        }
        if self.file.is_none() {
            self.file = Some(self.open_file()?);
        }
        if let Some(lost) = &self.partial.lost {
            let text =
                format!("nodlet: {} lines ({} bytes) were lost here: {}", lost.lines, lost.bytes, lost.why);
            let mut line = Vec::new();
            Prefix::new(Stream::Stderr).append(&mut line, "F", &[text.as_bytes()]);
            self.append_whole(&line)?;
            self.partial.lost = None;
        }
        self.append_whole(lines)
    }

    /// Appends all bytes, or leaves the file unchanged.
    fn append_whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.file.as_mut().expect("it was opened by the caller");
        match file.write_all(bytes) {
            Ok(()) => {
                self.size += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // A part may have been written: a torn line is worse than a lost one.
                let _ = file.set_len(self.size);
                Err(error)
            }
        }
    }

    /// Renames the file and begins a new one. A file that cannot be renamed keeps growing, so that nothing is
    /// lost.
    fn rotate(&mut self) {
        let time = next_stamp(nodlet_host::clock::timestamp(), self.rotated.back());
        let Ok((directory, name)) =
            Place::of_log(&self.config.path).and_then(|place| Ok((place.open()?, place.name)))
        else {
            return;
        };
        match directory.rename(name, &rotated_name(name, &time)) {
            Ok(()) => self.rotated.push_back(time),
            // The file was removed: write to a new one that can be found.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return,
        }
        self.file = None;
        while self.rotated.len() as u64 + 1 > u64::from(self.config.max_files.max(1)) {
            let Some(oldest) = self.rotated.pop_front() else { break };
            let _ = directory.remove(&rotated_name(name, &oldest));
        }
    }
}

/// The prefix of the lines of one read and stream. It is made once, because formatting a time takes longer
/// than writing a line.
struct Prefix(heapless::String<64>);

impl Prefix {
    fn new(stream: Stream) -> Prefix {
        let mut text = heapless::String::new();
        write!(text, "{} {} ", nodlet_host::clock::timestamp().nanos(), stream.name())
            .expect("a time and a stream have 38 bytes");
        Prefix(text)
    }

    fn append(&self, to: &mut Vec<u8>, tag: &str, content: &[&[u8]]) {
        to.extend_from_slice(self.0.as_bytes());
        to.extend_from_slice(tag.as_bytes());
        to.push(b' ');
        for part in content {
            to.extend_from_slice(part);
        }
        to.push(b'\n');
    }
}

/// The timestamp in the name of a file that is rotated `now`: `20060102-150405`, as in the kubelet's names. The order
/// of the names is that of the files, so the nanoseconds follow if several files are rotated within a second, and if
/// the clock was set back, the time is that of the newest rotated file and one more nanosecond.
fn next_stamp(now: Timestamp, newest: Option<&String>) -> String {
    let stamp = |time: String| -> String {
        let kept = |c: char| c.is_ascii_digit() || c == '.';
        time.chars().filter_map(|c| if c == 'T' { Some('-') } else { kept(c).then_some(c) }).collect()
    };
    let time = stamp(now.to_string());
    let Some(newest) = newest.filter(|newest| **newest >= time) else { return time };
    let after = parse_stamp(newest).and_then(|newest| newest.0.checked_add(1)).map_or(now, Timestamp);
    stamp(now.max(after).nanos().to_string())
}

fn parse_stamp(stamp: &str) -> Option<Timestamp> {
    let part = |range| stamp.get(range);
    Timestamp::parse(&format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0..4)?,
        part(4..6)?,
        part(6..8)?,
        part(9..11)?,
        part(11..13)?,
        stamp.get(13..)?
    ))
}

fn rotated_name(name: &OsStr, time: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(".");
    name.push(time);
    name
}

/// Opens the file for appending, and returns its size.
fn open_in(directory: &Directory, name: &OsStr) -> io::Result<(File, u64)> {
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT;
    let (file, metadata) = directory.open_own(name, flags)?;
    Ok((file, metadata.len()))
}

/// The times of the rotated files of a log, oldest first.
fn rotated_files(directory: &Directory, name: &OsStr) -> VecDeque<String> {
    let prefix = rotated_name(name, "");
    let is_rotated = |name: &[u8]| name.starts_with(prefix.as_bytes());
    let names = directory.names(is_rotated).unwrap_or_default();
    let time = |name: &OsString| {
        let time = name.to_str()?.get(prefix.len()..)?;
        parse_stamp(time).map(|_| time.to_owned())
    };
    let mut times: Vec<String> = names.iter().filter_map(time).collect();
    times.sort_unstable();
    times.into()
}

#[cfg(test)]
mod tests;
