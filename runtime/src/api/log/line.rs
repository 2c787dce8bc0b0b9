//! Lines of a CRI log, as stored and as printed: `2026-01-31T12:00:00.123456789Z stdout F message`. This
//! module is pure.

use nodlet_core::time::Timestamp;

/// The maximum length of a line. The supervisor writes lines of up to 16 KiB with a short prefix; a longer
/// line is not from a supervisor, and is left out.
const LINE_BYTES: usize = 64 * 1024;

/// The printed streams of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Streams {
    #[default]
    All,
    Stdout,
    Stderr,
}

/// Converts the content of the file into printed lines, block by block.
#[derive(Default)]
pub(super) struct Printer {
    pub(super) since: Option<Timestamp>,
    pub(super) timestamps: bool,
    pub(super) streams: Streams,
    /// The number of bytes that may still be printed.
    pub(super) remaining: Option<u64>,
    /// The beginning of a line whose end is in the next block.
    pub(super) begun: Vec<u8>,
    /// Whether the current line is too long, and is skipped up to the next line feed.
    pub(super) skipping: bool,
    /// Whether the last printed piece was not the end of its line.
    pub(super) in_line: bool,
}

impl Printer {
    /// Prints a block. Returns false when the requested number of bytes has been printed.
    pub(super) fn print(&mut self, mut block: &[u8], out: &mut Vec<u8>) -> bool {
        while let Some(end) = block.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = block.split_at(end);
            block = &rest[1..];
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            let more = if self.begun.is_empty() {
                self.line(line, out)
            } else {
                self.begun.extend_from_slice(line);
                let line = std::mem::take(&mut self.begun);
                self.line(&line, out)
            };
            if !more {
                return false;
            }
        }
        if self.begun.len() + block.len() > LINE_BYTES {
            self.begun.clear();
            self.skipping = true;
        }
        if !self.skipping {
            self.begun.extend_from_slice(block);
        }
        true
    }

    /// Handles the end of the file, which may be in the middle of a line that a power cut left.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        if self.in_line {
            self.in_line = false;
            self.show(&[b"\n"], out);
        }
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) -> bool {
        // Damaged lines are skipped, as in a kubelet.
        let Some(Line { time, stream, partial, message }) = parse(line) else { return true };
        let wanted = match self.streams {
            Streams::All => true,
            Streams::Stdout => stream == b"stdout",
            Streams::Stderr => stream == b"stderr",
        };
        if !wanted || self.since.is_some_and(|since| time_of(time).is_none_or(|time| time < since)) {
            return true;
        }
        let prefix: &[&[u8]] = if self.timestamps && !self.in_line { &[time, b" "] } else { &[] };
        self.in_line = partial;
        let end: &[u8] = if partial { b"" } else { b"\n" };
        self.show(prefix, out) && self.show(&[message, end], out)
    }

    fn show(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) -> bool {
        for part in parts {
            let shown = match &mut self.remaining {
                None => part,
                Some(left) => {
                    let shown = usize::try_from(*left).unwrap_or(usize::MAX).min(part.len());
                    *left -= shown as u64;
                    &part[..shown]
                }
            };
            out.extend_from_slice(shown);
        }
        self.remaining != Some(0)
    }
}

struct Line<'a> {
    time: &'a [u8],
    stream: &'a [u8],
    partial: bool,
    message: &'a [u8],
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let (time, stream, tags) = (words.next()?, words.next()?, words.next()?);
    let partial = match tags.split(|byte| *byte == b':').next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    matches!(stream, b"stdout" | b"stderr").then_some(Line {
        time,
        stream,
        partial,
        message: words.next().unwrap_or(b""),
    })
}

fn time_of(text: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(text).ok().filter(|text| text.is_ascii()).and_then(Timestamp::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-01-31T12:00:00.000000001Z stdout F one
2026-01-31T12:00:01.000000001Z stderr F two
damaged
2026-01-31T12:00:02.000000001Z stdout P thr
2026-01-31T12:00:02.000000002Z stdout F ee
2026-01-31T12:00:03.000000001Z stdout F
2026-01-31T12:00:04.000000001Z stdout F:x a b
";

    fn print(printer: impl Fn() -> Printer) -> String {
        let mut results = Vec::new();
        for piece in [1, 3, 10, LOG.len()] {
            let (mut printer, mut out) = (printer(), Vec::new());
            let all = LOG.as_bytes().chunks(piece).all(|block| printer.print(block, &mut out));
            if all {
                printer.end(&mut out);
            }
            results.push(String::from_utf8_lossy(&out).into_owned());
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
        results.remove(0)
    }

    #[test]
    fn lines_are_shown_as_they_were_written() {
        let all = Printer::default;
        assert_eq!(print(all), "one\ntwo\nthree\n\na b\n");
        assert_eq!(print(|| Printer { streams: Streams::Stderr, ..all() }), "two\n");
        assert_eq!(print(|| Printer { streams: Streams::Stdout, ..all() }), "one\nthree\n\na b\n");
        let since = || Printer { since: Timestamp::parse("2026-01-31T12:00:02Z"), ..all() };
        assert_eq!(print(since), "three\n\na b\n");
        assert_eq!(print(|| Printer { remaining: Some(6), ..all() }), "one\ntw");
        let timed = || Printer { timestamps: true, ..since() };
        assert_eq!(
            print(timed),
            "2026-01-31T12:00:02.000000001Z three\n2026-01-31T12:00:03.000000001Z \n2026-01-31T12:00:04.000000001Z a b\n"
        );
    }

    #[test]
    fn an_endless_log_line_is_skipped_without_being_buffered() {
        let (mut printer, mut out) = (Printer::default(), Vec::new());
        for _ in 0..100 {
            assert!(printer.print(&[b'x'; 10_000], &mut out));
            assert!(printer.begun.len() <= LINE_BYTES);
        }
        assert!(printer.print(b"\n2026-01-31T12:00:00Z stdout F next\n", &mut out));
        assert_eq!(out, b"next\n");
    }

    #[test]
    fn half_a_line_at_the_end_of_a_log_is_ended() {
        let (mut printer, mut out) = (Printer::default(), Vec::new());
        printer.print(b"2026-01-31T12:00:00Z stdout P half\n2026-01-31T12:00", &mut out);
        printer.end(&mut out);
        assert_eq!(out, b"half\n");
    }
}
