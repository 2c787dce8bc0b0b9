//! Measures how much disk files use that containers wrote: without following their links, entering their mounts, holding
//! up the storage thread, or nesting as deep as their directories do.

mod deleted;

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, ResolveFlag};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::sys::statvfs::fstatvfs;
use nodlet_kernel::file::{open, open_in};

use crate::volume::quota;
pub use deleted::DeletedFiles;

/// Files and directories that one part of a measurement looks at.
const ENTRIES_PER_PART: usize = 256;

/// Files and directories that a measurement looks at: a container must not be able to make nodlet read its disk for
/// ever. A place with more uses more than any limit, since a container could hide its files behind others.
const MAX_ENTRIES: usize = 1_000_000;

/// Directories that wait for their turn, and the bytes of their paths. A place with more uses more than any limit, too.
const MAX_PENDING: usize = 16 * 1024;
const MAX_PENDING_BYTES: usize = 2 << 20;

/// What a file takes beside its blocks where the file system has no fixed number of inodes, as btrfs: otherwise, a disk
/// that is full of empty files would be used by nobody.
const BYTES_OF_INODE: u64 = 512;

const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Disk space in bytes.
    Bytes,
    /// Files and directories, each with an inode.
    Inodes,
}

/// A measurement of some directories, in parts, since the duration depends on those who filled them.
pub struct Measurement {
    /// Directories that are still to be measured, with the place in `usage` where each counts.
    roots: Vec<(usize, PathBuf)>,
    /// Directories for whose usage the kernel is asked first.
    projects: Vec<(usize, PathBuf)>,
    /// The directory of `roots` that is being measured.
    root: Option<Root>,
    /// Directories below the root that were not read yet, relative to it.
    pending: Vec<PathBuf>,
    pending_bytes: usize,
    /// The directory that is being read.
    current: Option<(PathBuf, OwningIter)>,
    budget: usize,
    unit: Unit,
    usage: Vec<u64>,
}

struct Root {
    place: usize,
    directory: OwnedFd,
    device: libc::dev_t,
    /// Added to the bytes of each file.
    bytes_of_inode: u64,
}

impl Measurement {
    /// A measurement of these directories, each with the place in the result where it counts; the result has `places`
    /// places. A directory that is missing counts nothing.
    pub fn new(
        directories: impl IntoIterator<Item = (usize, PathBuf)>,
        places: usize,
        unit: Unit,
    ) -> Measurement {
        Measurement {
            roots: directories.into_iter().collect(),
            projects: Vec::new(),
            root: None,
            pending: Vec::new(),
            pending_bytes: 0,
            current: None,
            budget: MAX_ENTRIES,
            unit,
            usage: vec![0; places],
        }
    }

    /// Adds a directory that may have a project quota ([`quota::account`]). Its files are only looked at if it has none.
    pub fn add_project(&mut self, place: usize, directory: PathBuf) {
        self.projects.push((place, directory));
    }

    /// Measures a part. Returns what each place uses, or `None` if there is more. What cannot be read does not
    /// count: it may have been removed meanwhile.
    pub fn part(&mut self) -> Option<Vec<u64>> {
        for (place, path) in std::mem::take(&mut self.projects) {
            let used = quota::usage(&path).map(|used| match self.unit {
                Unit::Bytes => used.bytes,
                Unit::Inodes => used.inodes,
            });
            match used {
                Some(used) => self.usage[place] = self.usage[place].saturating_add(used),
                None => self.roots.push((place, path)),
            }
        }
        for _ in 0..ENTRIES_PER_PART {
            if self.budget == 0 {
                let begun = self.root.as_ref().map(|root| root.place);
                for place in begun.into_iter().chain(self.roots.iter().map(|(place, _)| *place)) {
                    self.usage[place] = u64::MAX;
                }
                return Some(std::mem::take(&mut self.usage));
            }
            if self.current.is_none() && !self.open_next() {
                return Some(std::mem::take(&mut self.usage));
            }
            self.budget -= 1;
            self.entry();
        }
        None
    }

    /// Opens the next directory that can be opened. Returns whether there is one.
    fn open_next(&mut self) -> bool {
        loop {
            let (Some(root), Some(path)) = (&self.root, self.pending.pop()) else {
                let Some((place, path)) = self.roots.pop() else {
                    self.root = None;
                    return false;
                };
                self.root = Root::open(place, &path);
                self.pending.extend(self.root.is_some().then(PathBuf::new));
                continue;
            };
            self.pending_bytes -= path.as_os_str().len();
            match root.open_below(&path) {
                Ok(directory) => {
                    self.current = Some((path, directory.into_iter()));
                    return true;
                }
                // Nobody but a container that hides its files goes so deep.
                Err(Errno::ENAMETOOLONG) => self.usage[root.place] = u64::MAX,
                Err(_) => {}
            }
        }
    }

    /// Measures the next entry of the directory that is being read.
    fn entry(&mut self) {
        let (Some(root), Some((path, directory))) = (&self.root, &mut self.current) else { return };
        let Some(Ok(entry)) = directory.next() else {
            self.current = None;
            return;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            return;
        }
        let at = Some(directory.as_raw_fd());
        let Ok(found) = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return };
        // A file system that is mounted here is not the container's.
        if found.st_dev != root.device {
            return;
        }
        let is_directory = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
        let usage = &mut self.usage[root.place];
        *usage = usage.saturating_add(size(&found, is_directory, root.bytes_of_inode, self.unit));
        if is_directory {
            if self.pending.len() >= MAX_PENDING || self.pending_bytes >= MAX_PENDING_BYTES {
                *usage = u64::MAX;
                return;
            }
            let below = path.join(OsStr::from_bytes(name.to_bytes()));
            self.pending_bytes += below.as_os_str().len();
            self.pending.push(below);
        }
    }
}

impl Root {
    fn open(place: usize, path: &Path) -> Option<Root> {
        let directory = open(path, DIRECTORY).ok()?;
        let device = fstat(directory.as_raw_fd()).ok()?.st_dev;
        let has_inodes = fstatvfs(&directory).is_ok_and(|disk| disk.files() > 0);
        let bytes_of_inode = if has_inodes { 0 } else { BYTES_OF_INODE };
        Some(Root { place, directory, device, bytes_of_inode })
    }

    /// Opens a directory below this one, through no link and no mount; an empty path is this one.
    fn open_below(&self, path: &Path) -> nix::Result<Dir> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve =
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        Dir::from(open_in(&self.directory, path, DIRECTORY, resolve)?)
    }
}

/// The disk space of a file, or its inode. A file with several names counts once, if all of them are here; the inode of
/// such a file counts for each name, since it cannot be divided.
fn size(found: &FileStat, is_directory: bool, bytes_of_inode: u64, unit: Unit) -> u64 {
    if unit == Unit::Inodes {
        return 1;
    }
    let bytes = u64::try_from(found.st_blocks).unwrap_or_default().saturating_mul(512);
    #[allow(clippy::unnecessary_cast, reason = "other processors have another type")]
    let links = (found.st_nlink as u64).max(1);
    let bytes = bytes.saturating_add(bytes_of_inode);
    if is_directory { bytes } else { bytes / links }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;

    use super::*;

    fn measure(directories: &[&Path]) -> Vec<u64> {
        let numbered = directories.iter().enumerate().map(|(place, path)| (place, path.to_path_buf()));
        let mut measurement = Measurement::new(numbered, directories.len(), Unit::Bytes);
        std::iter::from_fn(|| Some(measurement.part())).flatten().next().expect("it ends")
    }

    #[test]
    fn files_count_once_and_links_pipes_and_missing_directories_do_not() {
        let root = tempfile::tempdir().expect("a scratch directory");
        let (one, two) = (root.path().join("one/deeper"), root.path().join("two"));
        fs::create_dir_all(&one).unwrap();
        fs::create_dir_all(&two).unwrap();
        fs::write(one.join("file"), vec![7; 1 << 20]).unwrap();
        fs::write(two.join("large"), vec![7; 4 << 20]).unwrap();
        fs::hard_link(two.join("large"), two.join("again")).unwrap();
        symlink("/", one.join("link")).unwrap();
        symlink("..", one.join("up")).unwrap();
        nix::unistd::mkfifo(&one.join("fifo"), Mode::S_IRWXU).unwrap();
        let usage = measure(&[&root.path().join("one"), &two, &root.path().join("missing")]);
        let mib = |bytes: u64| bytes >> 20;
        assert_eq!((mib(usage[0]), mib(usage[1]), usage[2]), (1, 4, 0), "{usage:?}");
        let mut inodes = Measurement::new([(0, root.path().join("one")), (1, two.clone())], 2, Unit::Inodes);
        // `deeper` with a file, two links and a pipe; a file with two names.
        assert_eq!(inodes.part(), Some(vec![5, 2]));
        // A link in place of a directory is not followed.
        symlink(&two, root.path().join("to-two")).unwrap();
        assert_eq!(measure(&[&root.path().join("to-two")]), [0]);
        // Several directories may count in one place.
        let mut both = Measurement::new([(0, root.path().join("one")), (0, two.clone())], 1, Unit::Bytes);
        let both = std::iter::from_fn(|| Some(both.part())).flatten().next();
        assert_eq!(both, Some(vec![usage[0] + usage[1]]));
    }

    #[test]
    fn a_tree_is_measured_in_parts_and_exceeds_any_limit_if_it_is_too_large() {
        let root = tempfile::tempdir().expect("a scratch directory");
        for number in 0..600 {
            fs::write(root.path().join(number.to_string()), "x").unwrap();
        }
        let mut measurement = Measurement::new([(0, root.path().to_owned())], 1, Unit::Bytes);
        assert!(measurement.part().is_none());
        let all = std::iter::from_fn(|| Some(measurement.part())).flatten().next().expect("it ends");
        assert!(all[0] >= 600 * 512, "{all:?}");
        let mut short =
            Measurement { budget: 100, ..Measurement::new([(0, root.path().to_owned())], 1, Unit::Bytes) };
        assert_eq!(short.part().expect("it ends"), [u64::MAX]);
        // So does a tree of which too many directories wait.
        let wide = root.path().join("wide");
        for number in 0..MAX_PENDING_BYTES / 250 + 300 {
            fs::create_dir_all(wide.join(format!("{number:0>250}"))).unwrap();
        }
        assert_eq!(measure(&[&wide]), [u64::MAX]);
    }

    #[test]
    fn directories_deeper_than_any_path_count_as_more_than_any_limit() {
        let root = tempfile::tempdir().expect("a scratch directory");
        let deep = root.path().join("deep");
        fs::create_dir_all(&deep).unwrap();
        let mut at = nix::fcntl::open(&deep, OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..18 {
            let name = "d".repeat(250);
            nix::sys::stat::mkdirat(Some(at), name.as_str(), Mode::from_bits_truncate(0o700)).unwrap();
            let next =
                nix::fcntl::openat(Some(at), name.as_str(), OFlag::O_DIRECTORY, Mode::empty()).unwrap();
            nix::unistd::close(std::mem::replace(&mut at, next)).unwrap();
        }
        nix::unistd::close(at).unwrap();
        assert_eq!(measure(&[&deep]), [u64::MAX]);
        // Not so deep, each file counts.
        let nested: PathBuf =
            std::iter::once(root.path().join("n")).chain((0..200).map(|_| "d".into())).collect();
        fs::create_dir_all(&nested).unwrap();
        fs::write(nested.join("file"), vec![7; 1 << 20]).unwrap();
        assert!(measure(&[&root.path().join("n")])[0] > 1 << 20);
    }
}
