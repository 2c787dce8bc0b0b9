//! Files with variables (`env[].valueFrom.fileKeyRef`): the format, and reading one that a container has written. The
//! format is that of the kubelet (`pkg/kubelet/util/env`).

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{OFlag, ResolveFlag};
use nodlet_kernel::file::open_in;

/// Maximum size of a file in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Reads the file `path` of a volume. A container can write to the volume: links are followed within it only, and nothing
/// but a regular file is read.
///
/// # Errors
/// The file cannot be opened, is no regular file, is larger than 1 MiB, or is not text.
pub(crate) fn read(volume: &Path, path: &Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    let volume = options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(volume)?;
    // A pipe must not block.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let resolve =
        ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS | ResolveFlag::RESOLVE_NO_XDEV;
    // The node must not open a device, so what is there is looked at first.
    let found = File::from(open_in(&volume, path, OFlag::O_PATH, resolve)?);
    if !found.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    // The same file: a container may have put another one there.
    let file = options.custom_flags(flags.bits()).open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut text = String::new();
    if file.take(MAX_SIZE + 1).read_to_string(&mut text)? as u64 > MAX_SIZE {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

/// The value of `key`; empty if there is none (`ParseEnv`).
///
/// # Errors
/// The text breaks a rule of the format.
pub(crate) fn value<'a>(text: &'a str, key: &str) -> Result<&'a str, String> {
    let wrong =
        |line: usize, what: &str| Err(format!("invalid environment variable format at line {line}: {what}"));
    let is_blank = |letter: char| letter == ' ' || letter == '\t';
    let (mut rest, mut number) = (text, 0);
    while !rest.is_empty() {
        number += 1;
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let start = line.trim_start_matches(is_blank);
        let start = start.strip_suffix('\r').unwrap_or(start);
        if start.is_empty() || start.starts_with('#') {
            rest = after;
            continue;
        }
        let Some((name, assigned)) = start.split_once('=') else { return wrong(number, "missing '='") };
        if name.trim_end_matches(is_blank).is_empty() {
            return wrong(number, "empty variable name");
        }
        if name.ends_with(is_blank) {
            return wrong(number, "whitespace before '=' is not allowed");
        }
        if assigned.starts_with(is_blank) {
            if name == key {
                return Ok("");
            }
            rest = after;
            continue;
        }
        if !assigned.starts_with('\'') {
            return wrong(number, "value must be enclosed in single quotes");
        }
        // The value may have several lines.
        let begins = line.len() - line.trim_start_matches(is_blank).len();
        let quoted = &rest[begins + name.len() + 2..];
        let Some((value, behind)) = quoted.split_once('\'') else {
            return Err(format!(
                "invalid environment variable format starting at line {number}: unclosed single quote"
            ));
        };
        number += value.matches('\n').count();
        let (tail, after) = behind.split_once('\n').unwrap_or((behind, ""));
        let tail = tail.trim_start_matches(is_blank);
        if !tail.trim_end_matches('\r').is_empty() && !tail.starts_with('#') {
            return wrong(number, "unexpected content after closing quote");
        }
        if name == key {
            return Ok(value);
        }
        rest = after;
    }
    Ok("")
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;

    use super::*;

    #[test]
    fn files_are_read_as_by_a_kubelet() {
        // With escapes as in Rust.
        const CASES: &str = r##"
            KEY2 => Ok => "val2" => "   KEY1='val1'\n\t\tKEY2='val2'\nKEY3='val3'\n"
            KEY2 => Ok => "bar" => "# comment\n\nKEY1='foo'\n   # another comment\n\nKEY2='bar'\n"
            KEY3 => Ok => "" => "KEY1='foo'\n"
            KEY1 => Ok => "foo#notcomment" => "KEY1='foo#notcomment'\nKEY2='bar'"
            KEY1 => Ok => "   foo bar   " => "KEY1='   foo bar   ' # said\n"
            A => Ok => "one\ntwo\n" => "A='one\ntwo\n'\nB='three'\n"
            B => Ok => "three" => "A='one\ntwo\n'\nB='three'\n"
            A => Ok => "" => "A= 'x'\nB='y'\n"
            B => Ok => "y" => "A= 'x'\nB='y'\n"
            KEY2 => Err => "line 1: whitespace before '=' is not allowed" => "KEY1 = 'val1'\n"
            C => Err => "line 2: missing '='" => "A='x'\nB\n"
            A => Err => "line 1: empty variable name" => "='x'\n"
            A => Err => "line 1: value must be enclosed in single quotes" => "A=x\n"
            A => Err => "line 1: unexpected content after closing quote" => "A='x' y\n"
            A => Err => "starting at line 4: unclosed single quote" => "B='\n\n'\nA='x\n"
        "##;
        let unescaped = |text: &str| text.trim_matches('"').replace("\\n", "\n").replace("\\t", "\t");
        for [key, kind, expected, text] in cases::<4>(CASES) {
            let (expected, text) = (unescaped(expected), unescaped(text));
            match (value(&text, key), kind) {
                (Ok(found), "Ok") => assert_eq!(found, expected, "{text}"),
                (Err(found), "Err") => assert!(found.ends_with(&expected), "{text}: {found}"),
                (found, _) => panic!("{text}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn pipes_and_links_in_place_of_an_env_file_neither_block_nor_escape() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        let volume = root.join("volume");
        std::fs::create_dir_all(&volume).expect("it is new");
        std::fs::write(root.join("secret"), "A='secret'").expect("it can be written");
        std::fs::write(volume.join("env"), "A='1'").expect("it can be written");
        let link =
            |target: &str, name: &str| std::os::unix::fs::symlink(target, volume.join(name)).expect("new");
        link("env", "link");
        link("/env", "absolute");
        link("../secret", "up");
        link("/proc/self/environ", "proc");
        nix::unistd::mkfifo(&volume.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("it is new");
        for (name, expected) in [("env", true), ("link", true), ("absolute", true), ("up", false)] {
            let read = read(&volume, Path::new(name));
            assert_eq!(read.is_ok_and(|text| text == "A='1'"), expected, "{name}");
        }
        for name in ["proc", "pipe", "missing", "."] {
            read(&volume, Path::new(name)).expect_err(name);
        }
        std::fs::write(volume.join("big"), vec![b'#'; (1 << 20) + 1]).expect("it can be written");
        read(&volume, Path::new("big")).expect_err("it is too large");
    }
}
