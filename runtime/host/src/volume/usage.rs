//! Measures what containers have written to a volume, without following their links, entering their mounts or holding up
//! the storage thread.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, SFlag, fstatat};

/// Entries that one part of a measurement looks at.
const ENTRIES_PER_PART: usize = 256;

/// Entries that one measurement looks at. The content of further ones does not count.
const ENTRIES: usize = 1_000_000;

/// Directories that wait for their turn, and the bytes of their paths. The content of further ones does not count.
const PENDING: usize = 16 * 1024;
const PENDING_BYTES: usize = 2 << 20;

/// A measurement of the disk space below a directory, in parts.
pub struct Usage {
    root: PathBuf,
    /// Directories that were not read yet, relative to the root.
    pending: Vec<PathBuf>,
    pending_bytes: usize,
    current: Option<(PathBuf, OwningIter)>,
    entries: usize,
    bytes: u64,
    limit: u64,
}

impl Usage {
    /// A measurement of `root`, which ends early once there are more than `limit` bytes.
    pub fn new(root: PathBuf, limit: u64) -> Usage {
        Usage {
            root,
            pending: vec![PathBuf::new()],
            pending_bytes: 0,
            current: None,
            entries: 0,
            bytes: 0,
            limit,
        }
    }

    /// Measures a part; returns the bytes that were found if nothing is left to measure. What cannot be read does not
    /// count: it may have been removed meanwhile.
    pub fn part(&mut self) -> Option<u64> {
        for _ in 0..ENTRIES_PER_PART {
            if self.bytes > self.limit || self.entries >= ENTRIES {
                return Some(self.bytes);
            }
            self.entries += 1;
            let Some((path, directory)) = &mut self.current else {
                let next = self.pending.pop();
                let Some(next) = next else { return Some(self.bytes) };
                self.pending_bytes -= next.as_os_str().len();
                match open(&self.root, &next) {
                    Ok(directory) => self.current = Some((next, directory.into_iter())),
                    // Nobody but a container that hides its files goes so deep.
                    Err(Errno::ENAMETOOLONG) => self.bytes = self.limit.saturating_add(1),
                    Err(_) => {}
                }
                continue;
            };
            let Some(Ok(entry)) = directory.next() else {
                self.current = None;
                continue;
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let at = Some(directory.as_raw_fd());
            let Ok(found) = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let is_directory = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
            if is_directory && self.pending.len() < PENDING && self.pending_bytes < PENDING_BYTES {
                let below = path.join(name);
                self.pending_bytes += below.as_os_str().len();
                self.pending.push(below);
            }
            self.bytes += size(&found, is_directory);
        }
        None
    }
}

/// The disk space of a file. A file with several links counts in part at each.
fn size(found: &FileStat, is_directory: bool) -> u64 {
    let bytes = u64::try_from(found.st_blocks).unwrap_or_default() * 512;
    // The constant has 32 bits on some architectures.
    #[allow(clippy::unnecessary_cast)]
    let links = (found.st_nlink as u64).max(1);
    if is_directory { bytes } else { bytes / links }
}

/// Opens a directory below `root`, through no link and no mount.
fn open(root: &Path, path: &Path) -> nix::Result<Dir> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = nix::fcntl::open(root, flags, nix::sys::stat::Mode::empty())?;
    if path.as_os_str().is_empty() {
        return Dir::from_fd(opened);
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    let root = unsafe { OwnedFd::from_raw_fd(opened) };
    let how = OpenHow::new().flags(flags).resolve(
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV,
    );
    Dir::from_fd(openat2(root.as_raw_fd(), path, how)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn measured(root: &Path, limit: u64) -> u64 {
        let mut usage = Usage::new(root.to_owned(), limit);
        loop {
            if let Some(bytes) = usage.part() {
                return bytes;
            }
        }
    }

    #[test]
    fn everything_below_counts_once_and_nothing_elsewhere() {
        let root = std::env::temp_dir().join(format!("nodlet-usage-{}", std::process::id()));
        let (inside, outside) = (root.join("volume"), root.join("outside"));
        fs::create_dir_all(inside.join("a/b")).expect("it is new");
        fs::create_dir_all(&outside).expect("it is new");
        fs::write(outside.join("big"), vec![1; 4 << 20]).expect("it can be written");
        let empty = measured(&inside, u64::MAX);
        assert!(empty < 1 << 20, "{empty}");
        fs::write(inside.join("a/b/file"), vec![1; 1 << 20]).expect("it can be written");
        fs::hard_link(inside.join("a/b/file"), inside.join("a/again")).expect("it is there");
        std::os::unix::fs::symlink(&outside, inside.join("a/link")).expect("it is new");
        std::os::unix::fs::symlink("..", inside.join("a/b/up")).expect("it is new");
        let found = measured(&inside, u64::MAX);
        assert!((1 << 20..2 << 20).contains(&(found - empty)), "{found}");
        // What lies deeper than any path counts as more than the limit.
        let deep = root.join("deep");
        fs::create_dir_all(&deep).expect("it is new");
        let mut at =
            nix::fcntl::open(&deep, OFlag::O_DIRECTORY, nix::sys::stat::Mode::empty()).expect("it is there");
        for _ in 0..18 {
            let name = "d".repeat(250);
            nix::sys::stat::mkdirat(Some(at), name.as_str(), nix::sys::stat::Mode::from_bits_truncate(0o700))
                .expect("it is new");
            let next = nix::fcntl::openat(
                Some(at),
                name.as_str(),
                OFlag::O_DIRECTORY,
                nix::sys::stat::Mode::empty(),
            );
            let next = next.expect("it is there");
            nix::unistd::close(std::mem::replace(&mut at, next)).expect("it is open");
        }
        nix::unistd::close(at).expect("it is open");
        assert!(measured(&deep, 1 << 30) > 1 << 30);
        for number in 0..600 {
            fs::write(inside.join(format!("{number}")), b"x").expect("it can be written");
        }
        assert!(measured(&inside, u64::MAX) >= found + 600 * 512);
        assert!(measured(&inside, 1000) > 1000, "it ends early");
        assert_eq!(measured(&root.join("missing"), u64::MAX), 0);
        fs::remove_dir_all(&root).expect("it can be removed");
    }
}
