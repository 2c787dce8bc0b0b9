use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("nodlet-log-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn log(&self, max_size: u64, max_files: u32) -> Log {
        let config = LogConfig {
            path: self.0.join("app/0.log"),
            link: self.0.join("containers/app.log"),
            max_size,
            max_files,
        };
        Log::open(config)
    }

    /// Stream, tag and content of each line of the current file.
    fn lines(&self) -> Vec<String> {
        lines(&std::fs::read_to_string(self.0.join("app/0.log")).unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lines(text: &str) -> Vec<String> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is torn");
    text.lines()
        .map(|line| {
            let (time, rest) = line.split_once(' ').unwrap();
            assert!(Timestamp::parse(time).is_some() && time.len() == 30, "{time}");
            rest.to_owned()
        })
        .collect()
}

#[test]
fn lines_of_both_streams_are_joined_from_pieces_of_any_size() {
    let scratch = Scratch::new("pieces");
    let mut log = scratch.log(0, 5);
    for (stream, piece) in [
        (Stream::Stdout, "one\ntw"),
        (Stream::Stderr, "err"),
        (Stream::Stdout, "o\n\nfour "),
        (Stream::Stderr, "or\n"),
        (Stream::Stdout, "words"),
    ] {
        log.write(stream, piece.as_bytes());
    }
    assert_eq!(scratch.lines(), ["stdout F one", "stdout F two", "stdout F ", "stderr F error"]);
    log.finish();
    assert_eq!(scratch.lines().last().unwrap(), "stdout F four words");
    assert_eq!(
        std::fs::read_link(scratch.0.join("containers/app.log")).unwrap(),
        scratch.0.join("app/0.log")
    );
}

#[test]
fn a_long_line_is_continued_every_16_kib() {
    for (length, expected) in [
        (MAX_LINE - 1, vec![("F", MAX_LINE - 1)]),
        (MAX_LINE, vec![("F", MAX_LINE)]),
        (MAX_LINE + 1, vec![("P", MAX_LINE), ("F", 1)]),
        (2 * MAX_LINE, vec![("P", MAX_LINE), ("F", MAX_LINE)]),
        (40_000, vec![("P", MAX_LINE), ("P", MAX_LINE), ("F", 40_000 - 2 * MAX_LINE)]),
    ] {
        for step in [100_000, 4096, 1000] {
            let scratch = Scratch::new("long");
            let mut log = scratch.log(0, 5);
            let mut line = vec![b'x'; length];
            line.push(b'\n');
            line.chunks(step).for_each(|piece| log.write(Stream::Stdout, piece));
            let found: Vec<(String, usize)> = scratch
                .lines()
                .iter()
                .map(|line| (line["stdout ".len()..][..1].to_owned(), line.len() - "stdout F ".len()))
                .collect();
            let expected: Vec<(String, usize)> =
                expected.iter().map(|(tag, n)| ((*tag).to_owned(), *n)).collect();
            assert_eq!(found, expected, "{length} bytes in steps of {step}");
        }
    }
}

#[test]
fn rotation_keeps_the_newest_lines_in_order_and_tears_none() {
    let scratch = Scratch::new("rotate");
    let mut log = scratch.log(2000, 3);
    for n in 0..1000 {
        log.write(Stream::Stdout, format!("line {n}\n").as_bytes());
    }
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(scratch.0.join("app")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 3);
    // The current file sorts first.
    names.rotate_left(1);
    let mut found = Vec::new();
    for name in &names {
        let text = std::fs::read_to_string(name).unwrap();
        assert!(text.len() <= 2000);
        found.extend(lines(&text));
    }
    let first = 1000 - found.len();
    assert!(found.len() > 60);
    for (n, line) in found.iter().enumerate() {
        assert_eq!(*line, format!("stdout F line {}", first + n));
    }
    let stamp = names[0].file_name().unwrap().to_str().unwrap().strip_prefix("0.log.").unwrap();
    // Two files of one second: the name of the later one has the nanoseconds, and none is in the future.
    let time = parse_stamp(stamp).unwrap();
    assert!(time <= nodlet_host::clock::timestamp() && [15, 25].contains(&stamp.len()), "{stamp}");
}

#[test]
fn the_names_of_rotated_files_have_their_order_and_are_not_in_the_future() {
    let at = |text: &str| Timestamp::parse(text).unwrap();
    for (now, newest, expected) in [
        ("2026-11-27T12:31:39.7Z", None, "20261127-123139"),
        ("2026-11-27T12:31:39.7Z", Some("20261127-123138"), "20261127-123139"),
        ("2026-11-27T12:31:39.7Z", Some("20261127-123139"), "20261127-123139.700000000"),
        ("2026-11-27T12:31:39.8Z", Some("20261127-123139.700000000"), "20261127-123139.800000000"),
        ("2026-11-27T12:31:40.1Z", Some("20261127-123139.700000000"), "20261127-123140"),
        // The clock was set back.
        ("1970-01-01T00:00:05Z", Some("20261127-123139"), "20261127-123139.000000001"),
        ("1970-01-01T00:00:05Z", Some("20261127-123139.999999999"), "20261127-123140.000000000"),
    ] {
        let stamp = next_stamp(at(now), newest.map(str::to_owned).as_ref());
        assert_eq!(stamp, expected, "{now} after {newest:?}");
        assert!(parse_stamp(&stamp).is_some() && newest.is_none_or(|newest| *newest < *stamp));
    }
    // A file of that name was not rotated: there is no later time.
    let last = Timestamp(i64::MAX).nanos().to_string().replace(['-', ':', 'Z'], "").replace('T', "-");
    let stamp = next_stamp(at("2026-11-27T12:31:39.7Z"), Some(&last));
    assert_eq!(stamp, "20261127-123139.700000000");
}

/// The log as the supervisor's next binary has it.
fn taken_over(log: &Log) -> Log {
    let mut next: Log = serde_json::from_slice(&serde_json::to_vec(log).unwrap()).unwrap();
    next.open_first();
    next
}

#[test]
fn a_reopened_log_is_continued_at_its_end() {
    let scratch = Scratch::new("again");
    let mut log = scratch.log(500, 3);
    (0..30).for_each(|n| log.write(Stream::Stdout, format!("line {n}\n").as_bytes()));
    log.write(Stream::Stdout, b"beg");
    let mut again = taken_over(&log);
    assert_eq!(again.rotated, log.rotated);
    assert_eq!(again.size, log.size);
    again.write(Stream::Stdout, b"un\n");
    assert_eq!(scratch.lines().last().unwrap(), "stdout F begun");
}

#[test]
fn log_lines_lost_to_a_full_disk_are_counted_and_reported() {
    let scratch = Scratch::new("full");
    let mut log = scratch.log(0, 5);
    log.write(Stream::Stdout, b"before\n");
    let kept = log.file.replace(OpenOptions::new().write(true).open("/dev/full").unwrap());
    log.write(Stream::Stdout, b"lost\nlost\n");
    log.write(Stream::Stdout, b"lost\n");
    log.file = kept;
    log.write(Stream::Stdout, b"after\n");
    let lines = scratch.lines();
    assert_eq!(lines[0], "stdout F before");
    assert!(lines[1].starts_with("stderr F nodlet: 3 lines ("), "{}", lines[1]);
    assert!(lines[1].contains("No space left on device"), "{}", lines[1]);
    assert_eq!(lines[2..], ["stdout F after"]);
}

#[test]
fn lost_log_lines_are_reported_after_a_binary_change_and_at_the_end() {
    let scratch = Scratch::new("lost");
    let mut log = scratch.log(0, 5);
    log.file = Some(OpenOptions::new().write(true).open("/dev/full").unwrap());
    log.write(Stream::Stdout, b"lost\nlost\n");
    let mut next = taken_over(&log);
    // The container writes no further line.
    next.finish();
    let lines = scratch.lines();
    assert!(lines[0].starts_with("stderr F nodlet: 2 lines ("), "{lines:?}");
    assert_eq!(lines.len(), 1);
    // The record of an earlier version has no count of lost lines.
    let earlier: Partial = serde_json::from_str(r#"{"stdout":[98],"stderr":[]}"#).unwrap();
    assert!(earlier.lost.is_none() && earlier.stdout == b"b");
}

#[test]
fn the_tail_is_the_content_of_the_last_80_lines_and_2048_bytes() {
    let scratch = Scratch::new("tail");
    let mut log = scratch.log(0, 5);
    assert_eq!(log.tail(), "");
    (0..100).for_each(|n| log.write(Stream::Stderr, format!("line {n}\n").as_bytes()));
    let tail = log.tail();
    assert!(tail.starts_with("line 20\n") && tail.ends_with("line 99\n"), "{tail}");
    log.write(Stream::Stdout, &[b'x'; 20_000]);
    log.finish();
    assert_eq!(log.tail(), "x".repeat(2047) + "\n");
}

#[test]
fn the_tail_includes_an_unterminated_line_and_the_lines_before_a_long_one() {
    let scratch = Scratch::new("unended");
    let mut log = scratch.log(0, 5);
    log.write(Stream::Stdout, b"first\noops");
    assert_eq!(log.tail(), "first\noops");
    log.write(Stream::Stderr, b"and worse");
    assert_eq!(log.tail(), "first\noopsand worse");
    log.write(Stream::Stdout, format!("{}\n", "x".repeat(16_000)).as_bytes());
    assert_eq!(log.tail().len(), 2048);
    assert!(log.tail().starts_with("xxx") && log.tail().ends_with("x\nand worse"), "{}", log.tail());
}

#[test]
fn the_log_writer_neither_blocks_on_a_fifo_nor_writes_through_a_link() {
    let scratch = Scratch::new("instead");
    std::fs::create_dir(scratch.0.join("app")).unwrap();
    let (path, elsewhere) = (scratch.0.join("app/0.log"), scratch.0.join("elsewhere"));
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // The FIFO has a reader that never reads.
    let _reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let mut log = scratch.log(0, 5);
    log.write(Stream::Stdout, b"one\n");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    log.write(Stream::Stdout, b"two\n");
    std::fs::remove_file(&path).unwrap();
    log.write(Stream::Stdout, b"three\n");
    let said = scratch.lines();
    assert!(said[0].starts_with("stderr F nodlet: 2 lines ("), "{said:?}");
    assert_eq!(said[1..], ["stdout F three"]);
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "");
}

#[test]
fn nothing_is_written_through_a_directory_that_became_a_link_or_to_another_name_of_a_file() {
    let scratch = Scratch::new("swapped");
    let (directory, elsewhere) = (scratch.0.join("app"), scratch.0.join("elsewhere"));
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("0.log.20200101-000000"), "precious").unwrap();
    let mut log = scratch.log(1000, 1);
    log.write(Stream::Stdout, b"one\n");
    std::fs::rename(&directory, scratch.0.join("aside")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &directory).unwrap();
    // Enough lines for rotations, and for the removal of the oldest file.
    (0..100).for_each(|n| log.write(Stream::Stdout, format!("line {n}\n").as_bytes()));
    let mut again = scratch.log(1000, 1);
    again.write(Stream::Stdout, b"of another run\n");
    assert_eq!(log.tail(), "");
    let names: Vec<_> =
        std::fs::read_dir(&elsewhere).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["0.log.20200101-000000"]);
    // A file of the machine gets the name of a log by a hard link.
    std::fs::remove_file(&directory).unwrap();
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(scratch.0.join("auth.log"), "").unwrap();
    std::fs::hard_link(scratch.0.join("auth.log"), directory.join("0.log")).unwrap();
    scratch.log(0, 5).write(Stream::Stdout, b"of a third\n");
    assert_eq!(std::fs::read_to_string(scratch.0.join("auth.log")).unwrap(), "");
}

#[test]
fn a_device_in_the_place_of_a_log_has_no_tail() {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let scratch = Scratch::new("device");
    let mut log = scratch.log(0, 5);
    log.write(Stream::Stdout, b"one\n");
    let path = scratch.0.join("app/0.log");
    std::fs::remove_file(&path).unwrap();
    // The device of `/dev/zero`, which can be read for ever.
    mknod(&path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).expect("these tests need root");
    assert_eq!(log.tail(), "");
}

#[test]
fn a_log_that_was_removed_is_begun_again_when_it_is_full() {
    let scratch = Scratch::new("removed");
    let mut log = scratch.log(200, 3);
    log.write(Stream::Stdout, b"one\n");
    std::fs::remove_file(scratch.0.join("app/0.log")).unwrap();
    (0..10).for_each(|n| log.write(Stream::Stdout, format!("line {n}\n").as_bytes()));
    assert_eq!(scratch.lines().last().unwrap(), "stdout F line 9");
}
