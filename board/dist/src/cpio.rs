//! Writes a cpio archive in the format that the kernel unpacks at boot ("newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// An archive that is written to `W`.
pub struct Cpio<W> {
    to: W,
    entries: u32,
    directories: BTreeSet<String>,
}

impl<W: Write> Cpio<W> {
    /// An empty archive.
    pub fn new(to: W) -> Self {
        Self { to, entries: 0, directories: BTreeSet::new() }
    }

    /// Adds a file, preceded by its parent directories.
    pub fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        let path = self.above(path)?;
        self.entry(path, libc_mode(Kind::File, mode), ROOT, bytes)
    }

    /// Adds a symbolic link, preceded by its parent directories.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let path = self.above(path)?;
        self.entry(path, libc_mode(Kind::Link, 0o777), ROOT, target.as_bytes())
    }

    /// Adds a directory unless it was already added.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.above(&format!("{path}/")).map(drop)
    }

    /// Adds the parent directories of `path`. Returns the path as it is in the archive.
    fn above<'a>(&mut self, path: &'a str) -> io::Result<&'a str> {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            if self.directories.insert(path[..end].to_owned()) {
                self.entry(&path[..end], libc_mode(Kind::Directory, 0o755), ROOT, &[])?;
            }
        }
        Ok(path)
    }

    /// Adds the contents of a directory with their owners, except devices and sockets. The directories in
    /// `empty`, given by their paths in it, are added without contents.
    pub fn tree(&mut self, root: &Path, empty: &[&str]) -> io::Result<()> {
        self.below(root, "", empty)
    }

    fn below(&mut self, directory: &Path, prefix: &str, empty: &[&str]) -> io::Result<()> {
        let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let name =
                name.to_str().ok_or_else(|| io::Error::other(format!("{name:?} is not valid UTF-8")))?;
            let (name, path) = (format!("{prefix}{name}"), entry.path());
            let metadata = entry.metadata()?;
            let owner = [metadata.uid(), metadata.gid()];
            if metadata.is_dir() {
                self.directories.insert(name.clone());
                self.entry(&name, metadata.mode(), owner, &[])?;
                if !empty.contains(&name.as_str()) {
                    self.below(&path, &format!("{name}/"), empty)?;
                }
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path)?;
                if path.is_dir() {
                    // For example /bin: a later directory with that name would replace the link.
                    self.directories.insert(name.clone());
                }
                self.entry(&name, metadata.mode(), owner, target.as_os_str().as_bytes())?;
            } else if metadata.is_file() {
                self.entry(&name, metadata.mode(), owner, &fs::read(&path)?)?;
            }
        }
        Ok(())
    }

    /// Ends the archive.
    pub fn end(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, ROOT, &[])?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn entry(&mut self, name: &str, mode: u32, [user, group]: [u32; 2], bytes: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let size =
            u32::try_from(bytes.len()).map_err(|_| io::Error::other(format!("{name} is too large")))?;
        let links = 1;
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [self.entries, mode, user, group, links, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
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

    /// Pads the archive to a multiple of four bytes.
    fn pad(&mut self, length: usize) -> io::Result<()> {
        self.to.write_all(&[0; 3][..length.wrapping_neg() % 4])
    }
}

/// The user and group of entries without an owner.
const ROOT: [u32; 2] = [0, 0];

enum Kind {
    Directory,
    File,
    Link,
}

/// The file mode, as in `st_mode`.
fn libc_mode(kind: Kind, permissions: u32) -> u32 {
    match kind {
        Kind::Directory => 0o040_000 | permissions,
        Kind::File => 0o100_000 | permissions,
        Kind::Link => 0o120_000 | permissions,
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

    #[test]
    fn a_copied_tree_keeps_its_links_and_empties_the_named_directories() {
        let root = std::env::temp_dir().join(format!("nodlet-cpio-{}", std::process::id()));
        fs::create_dir_all(root.join("usr/bin")).expect("a scratch directory");
        fs::create_dir_all(root.join("usr/doc")).expect("a scratch directory");
        fs::write(root.join("usr/bin/true"), "").expect("it can be written to");
        fs::write(root.join("usr/doc/true"), "").expect("it can be written to");
        std::os::unix::fs::symlink("usr/bin", root.join("bin")).expect("it can be written to");
        let mut bytes = Vec::new();
        let mut cpio = Cpio::new(&mut bytes);
        cpio.tree(&root, &["usr/doc"]).expect("it can be read");
        cpio.file("usr/bin/false", 0o755, b"").expect("memory takes all");
        cpio.file("bin/sh", 0o755, b"").expect("memory takes all");
        cpio.link("usr/sbin", "bin").expect("memory takes all");
        cpio.end().expect("memory takes all");
        fs::remove_dir_all(&root).expect("it is ours");
        let text = String::from_utf8(bytes).expect("all of it is text");
        let at: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        let names: Vec<&str> =
            at.iter().map(|at| text[at + 110..].split('\0').next().unwrap_or_default()).collect();
        let tree = ["bin", "usr", "usr/bin", "usr/bin/true", "usr/doc"];
        assert_eq!(names, [&tree[..], &["usr/bin/false", "bin/sh", "usr/sbin", "TRAILER!!!"]].concat());
        assert!(text.contains("bin\0\0\0usr/bin\x00070701"), "{text:?}");
    }
}
