//! A cpio archive as the kernel unpacks it at boot ("newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::io::{self, Write};

pub(super) struct Cpio<W> {
    to: W,
    entries: u32,
    directories: BTreeSet<String>,
}

impl<W: Write> Cpio<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, entries: 0, directories: BTreeSet::new() }
    }

    /// Adds a file, and before it the directories that it lies in.
    pub(super) fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            if self.directories.insert(path[..end].to_owned()) {
                self.entry(&path[..end], libc_mode(Kind::Directory, 0o755), &[])?;
            }
        }
        self.entry(path, libc_mode(Kind::File, mode), bytes)
    }

    /// Ends the archive.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.to.flush()
    }

    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let size =
            u32::try_from(bytes.len()).map_err(|_| io::Error::other(format!("{name} is too large")))?;
        let links = 1;
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        write!(self.to, "070701")?;
        for field in fields {
            write!(self.to, "{field:08x}")?;
        }
        const HEADER: usize = 6 + 13 * 8;
        self.to.write_all(name.as_bytes())?;
        self.to.write_all(&[0])?;
        self.pad(HEADER + name.len() + 1)?;
        self.to.write_all(bytes)?;
        self.pad(bytes.len())
    }

    /// To a multiple of four.
    fn pad(&mut self, length: usize) -> io::Result<()> {
        self.to.write_all(&[0; 3][..length.wrapping_neg() % 4])
    }
}

enum Kind {
    Directory,
    File,
}

/// As `st_mode` has it.
fn libc_mode(kind: Kind, permissions: u32) -> u32 {
    match kind {
        Kind::Directory => 0o040_000 | permissions,
        Kind::File => 0o100_000 | permissions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_directories_come_first_and_once() {
        let mut bytes = Vec::new();
        let mut cpio = Cpio::new(&mut bytes);
        cpio.file("/a/b", 0o644, b"one").expect("memory takes all");
        cpio.file("/a/c", 0o755, b"four").expect("memory takes all");
        cpio.end().expect("memory takes all");
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).expect("all of it is text");
        let at: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert!(at.iter().all(|at| at % 4 == 0), "{at:?}");
        let names: Vec<&str> =
            at.iter().map(|at| text[at + 110..].split('\0').next().unwrap_or_default()).collect();
        assert_eq!(names, ["a", "a/b", "a/c", "TRAILER!!!"]);
        assert!(text.contains("a/b\0\0\0one\x00070701"), "{text:?}");
    }
}
