//! Measures how much disk files use that containers wrote: without following their links, entering their mounts, or
//! nesting as deep as their directories do.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use nix::dir::{Dir, OwningIter};
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};

/// How many nested directories are entered. What is deeper is not measured.
const DEPTH: usize = 64;

/// How many files and directories one part of a measurement looks at.
const ENTRIES_PER_PART: usize = 512;

/// How many files and directories a measurement looks at. The rest is not measured: a container must not be able to
/// make nodlet read its disk for ever.
const MAX_ENTRIES: usize = 100_000;

/// A measurement of some directories, in parts, since the duration depends on those who filled them.
pub struct Measurement {
    /// Directories that are still to be measured, with the place in `usage` where each counts.
    waiting: VecDeque<(usize, PathBuf)>,
    place: usize,
    device: libc::dev_t,
    open: Vec<OwningIter>,
    left: usize,
    usage: Vec<u64>,
}

impl Measurement {
    /// A measurement of these directories, each with the place in the result where it counts; the result has `places`
    /// places. A directory that is missing counts nothing.
    pub fn new(directories: impl IntoIterator<Item = (usize, PathBuf)>, places: usize) -> Measurement {
        Measurement {
            waiting: directories.into_iter().collect(),
            place: 0,
            device: 0,
            open: Vec::new(),
            left: MAX_ENTRIES,
            usage: vec![0; places],
        }
    }

    /// Measures a part. Returns the bytes that each place uses, or `None` if there is more.
    pub fn part(&mut self) -> Option<Vec<u64>> {
        for _ in 0..ENTRIES_PER_PART {
            if self.left == 0 || self.open.is_empty() && !self.begin_next() {
                return Some(std::mem::take(&mut self.usage));
            }
            self.left -= 1;
            self.entry();
        }
        None
    }

    /// Opens the next directory that can be opened. Returns whether there is one.
    fn begin_next(&mut self) -> bool {
        const FLAGS: OFlag =
            OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
        while let Some((place, path)) = self.waiting.pop_front() {
            let Ok(directory) = Dir::open(&path, FLAGS, Mode::empty()) else { continue };
            let Ok(found) = fstat(directory.as_raw_fd()) else { continue };
            (self.place, self.device) = (place, found.st_dev);
            self.open.push(directory.into_iter());
            return true;
        }
        false
    }

    /// Measures the next entry of the innermost open directory.
    fn entry(&mut self) {
        let Some(innermost) = self.open.last_mut() else { return };
        let Some(Ok(entry)) = innermost.next() else {
            self.open.pop();
            return;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            return;
        }
        let at = innermost.as_raw_fd();
        let Ok(found) = fstatat(Some(at), name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return };
        // A file system that is mounted here is not the container's.
        if found.st_dev != self.device {
            return;
        }
        let bytes = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
        let kind = SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits());
        let is_directory = kind == SFlag::S_IFDIR;
        // A file with several names counts once, if all of them are here.
        #[allow(clippy::unnecessary_cast, reason = "other processors have another type")]
        let links = found.st_nlink as u64;
        let names = if is_directory { 1 } else { links.max(1) };
        self.usage[self.place] = self.usage[self.place].saturating_add(bytes / names);
        if is_directory && self.open.len() < DEPTH {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            if let Ok(directory) = Dir::openat(Some(at), name, flags, Mode::empty()) {
                self.open.push(directory.into_iter());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn measure(directories: &[&Path]) -> Vec<u64> {
        let numbered = directories.iter().enumerate().map(|(place, path)| (place, path.to_path_buf()));
        let mut measurement = Measurement::new(numbered, directories.len());
        std::iter::from_fn(|| Some(measurement.part())).flatten().next().expect("it ends")
    }

    #[test]
    fn files_count_once_and_links_pipes_and_missing_directories_do_not() {
        let root = std::env::temp_dir().join(format!("nodlet-usage-{}", std::process::id()));
        let (one, two) = (root.join("one/deeper"), root.join("two"));
        fs::create_dir_all(&one).unwrap();
        fs::create_dir_all(&two).unwrap();
        fs::write(one.join("file"), vec![7; 1 << 20]).unwrap();
        fs::write(two.join("large"), vec![7; 4 << 20]).unwrap();
        fs::hard_link(two.join("large"), two.join("again")).unwrap();
        symlink("/", one.join("link")).unwrap();
        nix::unistd::mkfifo(&one.join("fifo"), Mode::S_IRWXU).unwrap();
        let usage = measure(&[&root.join("one"), &two, &root.join("missing")]);
        let mib = |bytes: u64| bytes >> 20;
        assert_eq!((mib(usage[0]), mib(usage[1]), usage[2]), (1, 4, 0), "{usage:?}");
        // A link in place of a directory is not followed.
        symlink(&two, root.join("to-two")).unwrap();
        assert_eq!(measure(&[&root.join("to-two")]), [0]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_tree_that_never_ends_is_measured_in_parts_to_a_limit() {
        let root = std::env::temp_dir().join(format!("nodlet-usage-deep-{}", std::process::id()));
        let deep: PathBuf = std::iter::once(root.clone()).chain((0..200).map(|_| "d".into())).collect();
        fs::create_dir_all(&deep).unwrap();
        for number in 0..ENTRIES_PER_PART {
            fs::write(root.join(number.to_string()), "").unwrap();
        }
        let mut measurement = Measurement::new([(0, root.clone())], 1);
        assert!(measurement.part().is_none());
        let most = std::iter::from_fn(|| (measurement.open.len() <= DEPTH).then(|| measurement.part()));
        assert!(most.flatten().next().is_some());
        fs::remove_dir_all(root).unwrap();
    }
}
