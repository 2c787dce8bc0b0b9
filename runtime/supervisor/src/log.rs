//! A container's log: lines of stdout and stderr in CRI format, in a file that
//! is rotated by size.
//!
//! A line is written whole or not at all, and none is lost in silence: if the
//! file takes no more (a full disk), the container is drained all the same, as
//! under containerd, so that it does not hang on its own output; what is lost is
//! counted, and the count is the next line that can be written.
//!
//! Rotated files are named as the kubelet names them, and not compressed: a
//! supervisor is to stay small, and a board's log is small already.

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

/// Content of one line of the file; what is longer is continued on the next, as
/// containerd does.
const MAX_LINE: usize = 16 * 1024;

/// Bytes of whole lines that are written to the file at once, or a line more.
const BATCH: usize = 64 * 1024;

/// Which of its outputs a container wrote to.
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

/// What was read and is not in the file: a line of each stream that has not ended,
/// and what is lost. It outlives the supervisor's replacement by a newer one.
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
pub(super) struct Log {
    config: LogConfig,
    file: Option<File>,
    size: u64,
    /// Times in the names of the rotated files, oldest first.
    rotated: VecDeque<String>,
    partial: Partial,
}

/// What could not be written since the last line that could.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lost {
    lines: u64,
    bytes: u64,
    why: String,
}

impl Log {
    /// Opens the log and makes the link to it. A file that cannot be opened is
    /// tried again with every line.
    pub(super) fn open(config: LogConfig, partial: Partial) -> Log {
        let mut log = Log { config, file: None, size: 0, rotated: VecDeque::new(), partial };
        log.file = log.begin().ok();
        log.make_link();
        log
    }

    /// A link that cannot be made keeps nobody from running: only log shippers look there.
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

    /// Opens the file for the first time, and finds what was rotated of it.
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

    /// Opens the file again, or another in its place.
    fn open_file(&mut self) -> io::Result<File> {
        let place = Place::of_log(&self.config.path)?;
        let (file, size) = open_in(&place.make()?.0, place.name)?;
        self.size = size;
        Ok(file)
    }

    /// Takes what was read from a stream.
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
            // One batch is one write; a batch that would pass the size is its own.
            if lines.len() >= BATCH {
                self.store(&lines, count);
                lines.clear();
                count = 0;
            }
            let partial = self.partial.of(stream);
            // An idle supervisor keeps no room for a long line that is over.
            if partial.capacity() > 1024 && partial.is_empty() {
                *partial = Vec::new();
            }
        }
        if count > 0 {
            self.store(&lines, count);
        }
    }

    /// The streams have ended: a line without a newline is one.
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
            // No line comes any more that it could stand before.
            let _ = self.try_store(&[]);
        }
    }

    /// What is not in the file yet.
    pub(super) fn partial(&self) -> &Partial {
        &self.partial
    }

    /// How the log is kept.
    pub(super) fn config(&self) -> &LogConfig {
        &self.config
    }

    /// The content of the last lines: at most 80 of them and 2048 bytes, one that has no end yet
    /// included (`FallbackToLogsOnError`).
    pub(super) fn tail(&self) -> String {
        const LINES: usize = 80;
        const BYTES: usize = 2048;
        // A piece of a long line, and before it those bytes, in 80 lines that have a prefix of some
        // 50 bytes each.
        const WINDOW: u64 = (MAX_LINE + 8192) as u64;
        let read = || -> io::Result<Vec<u8>> {
            let place = Place::of_log(&self.config.path)?;
            let (mut file, metadata) = place.open()?.open_own(place.name, OFlag::O_RDONLY)?;
            let length = metadata.len();
            file.seek(SeekFrom::Start(length.saturating_sub(WINDOW)))?;
            let mut bytes = Vec::new();
            // It may grow meanwhile: a container that is gone is not all that can write there.
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
        for rest in [&self.partial.stdout, &self.partial.stderr].into_iter().filter(|rest| !rest.is_empty()) {
            text.extend_from_slice(rest);
            text.push(b'\n');
        }
        let start = text.len().saturating_sub(BYTES);
        String::from_utf8_lossy(&text[start..]).into_owned()
    }

    /// Writes whole lines, or counts them as lost.
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

    /// Appends all of it, or leaves the file as it was.
    fn append_whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.file.as_mut().expect("it was opened by the caller");
        match file.write_all(bytes) {
            Ok(()) => {
                self.size += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Part of it may be there: a torn line is worse than a lost one.
                let _ = file.set_len(self.size);
                Err(error)
            }
        }
    }

    /// Puts the file aside. One that cannot be renamed goes on growing, which
    /// loses nothing.
    fn rotate(&mut self) {
        // Names must sort as the files are old, also when the clock is set back
        // or a second is too long for one file.
        let mut second = nodlet_host::clock::timestamp();
        let mut time = stamp(second);
        while self.rotated.back().is_some_and(|newest| *newest >= time) {
            let newest = self.rotated.back().and_then(|newest| parse_stamp(newest)).unwrap_or(second);
            second = Timestamp(newest.0 + 1_000_000_000);
            time = stamp(second);
        }
        let Ok((directory, name)) =
            Place::of_log(&self.config.path).and_then(|place| Ok((place.open()?, place.name)))
        else {
            return;
        };
        match directory.rename(name, &rotated_name(name, &time)) {
            Ok(()) => self.rotated.push_back(time),
            // Somebody removed it: what is written now should be found again.
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

/// What the lines of one moment and stream begin with. To write a time takes longer than
/// to write a line.
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

/// `20060102-150405`, as the kubelet names rotated files.
fn stamp(time: Timestamp) -> String {
    time.to_string()
        .chars()
        .filter_map(|c| if c == 'T' { Some('-') } else { c.is_ascii_digit().then_some(c) })
        .collect()
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
        part(13..15)?
    ))
}

fn rotated_name(name: &OsStr, time: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(".");
    name.push(time);
    name
}

/// The file to append to, and its size.
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
