//! Files that are kept in reserve, so that what must be written can be written when a file system is full: when it has
//! no block or no inode left.
//!
//! A spare file is written and synced in advance. When a file system is full, a writer overwrites a spare file in
//! place, shortens it, syncs it and renames it over its target: none of this needs a block or an inode. (Btrfs would
//! write each change to another block: spare files have its attribute `nodatacow`.) A rename may
//! need a block for the directory of the target; so each of these directories has [`SLACK`] long names (links to one
//! file), of which the rename removes as many as it needs. What was used is made again as soon as there is room. The
//! reserve is never given back to the file system to make room: a container would take it at once.
//!
//! The files are [`Spare`]s of several sizes. The directory is the only state, and is locked by its user, so that
//! several processes can share one reserve. Who may use the reserve decides on each write ([`Headroom`]).

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use nix::sys::statvfs::statvfs;

use super::faults::{Operation, allow};
use super::file::{Staged, discard, is_in_memory, rename};
use crate::own_file;

/// The spare files of a reserve, smallest first: how many there are of each size in bytes. The smallest take a record,
/// the middle ones an ordinary manifest, the largest ones the largest object that a client can apply.
const SHAPE: [(usize, u64); 3] = [(54, 16 << 10), (8, 128 << 10), (2, (1 << 20) + (128 << 10))];

/// The part of a file system's bytes and inodes that the reserve takes at most: a small one has fewer spare files.
const SHARE: u64 = 8;

/// The most bytes of a reserve on a file system in memory, where no write needs more than a record.
const MOST_IN_MEMORY: u64 = 256 << 10;

/// Long names in each directory with durable files. Each takes the room of several names of such files.
const SLACK: usize = 32;

/// The beginning of those long names: readers of the directories ignore names that begin with a dot.
pub const SLACK_PREFIX: &str = ".reserve-";

/// The length of those long names.
const SLACK_LENGTH: usize = 240;

/// The file to which the long names are links.
const LINKED: &str = "names";

/// Suffix of a spare file that is being made.
const NEW: &str = ".new";

/// Bytes that must be free beside those of a spare file before it is made: for what the file system itself needs.
const MARGIN: u64 = 64 << 10;

/// How many spare files a writer must leave to more important ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headroom {
    /// None: the write is what room can be made after.
    None,
    /// A quarter of each size: pods that end must not use up what frees the disk.
    Quarter,
    /// Half of each size: what clients ask for must not use up what frees the disk.
    Half,
}

impl Headroom {
    /// How many of so many spare files are left.
    fn of(self, count: usize) -> usize {
        match self {
            Headroom::None => 0,
            Headroom::Quarter => count / 4,
            Headroom::Half => count / 2,
        }
    }
}

/// The spare files of one file system.
#[derive(Debug)]
pub struct Reserve {
    directory: PathBuf,
    /// The directories into which spare files may be renamed.
    targets: Vec<PathBuf>,
    /// Whether no spare file is known to be missing.
    is_complete: AtomicBool,
}

/// A spare file. The reserve is locked as long as it lives.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) file: Staged,
    _lock: Flock<File>,
}

/// Whether an error means that a file system is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

impl Reserve {
    /// A reserve in `directory`, for files in the directories `targets`, which need not exist. Makes no file.
    pub fn new(directory: PathBuf, targets: Vec<PathBuf>) -> Reserve {
        Reserve { directory, targets, is_complete: AtomicBool::new(false) }
    }

    /// Whether this process knows of no spare file that is missing.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    /// The smallest spare file for this many bytes; `None` if there is none, or it is left for others.
    ///
    /// # Errors
    /// The reserve cannot be read or locked.
    pub(super) fn take(&self, bytes: usize, left: Headroom) -> io::Result<Option<Spare>> {
        let Some(lock) = own_file::if_exists(self.lock())? else { return Ok(None) };
        let mut first = 0;
        for (count, _) in SHAPE {
            let numbers = first..first + count;
            first += count;
            let found: Vec<_> = numbers.filter_map(|number| Some((self.length(number)?, number))).collect();
            if found.len() <= left.of(count) {
                continue;
            }
            // A spare file that was shortened and not used still serves for less.
            let Some((_, number)) = found.into_iter().filter(|(length, _)| *length >= bytes as u64).min()
            else {
                continue;
            };
            let file = Staged::take(&self.path(number))?;
            self.is_complete.store(false, Ordering::Relaxed);
            return Ok(Some(Spare { file, _lock: lock }));
        }
        Ok(None)
    }

    /// Renames a file, and makes room for its name in the directory if the file system has none.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        allow(&Operation::Rename { from, to })?;
        let directory = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let mut names = None;
        loop {
            let error = match fs::rename(from, to) {
                Err(error) if is_full(&error) => error,
                renamed => return renamed,
            };
            let names = names.get_or_insert_with(|| slack_in(directory));
            let Some(name) = names.pop() else { return Err(error) };
            self.is_complete.store(false, Ordering::Relaxed);
            fs::remove_file(directory.join(name))?;
        }
    }

    /// Makes one of the missing files, and syncs it. Returns whether nothing is left to do: the reserve is complete, or
    /// the file system has no room for the rest.
    ///
    /// # Errors
    /// A file cannot be made, although there seemed to be room.
    pub fn replenish(&self) -> io::Result<bool> {
        if self.is_complete() {
            return Ok(true);
        }
        if own_file::clear_directory(&self.directory)? {
            log::warn!("removed {}, which was not a directory, and made it anew", self.directory.display());
        }
        match fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let _lock = self.lock()?;
        let mut budget = Budget::of(&self.directory)?;
        let sizes = SHAPE.iter().flat_map(|(count, size)| std::iter::repeat_n(*size, *count));
        for (number, size) in sizes.enumerate() {
            if !budget.spend(size) {
                break;
            }
            if self.length(number).is_none_or(|length| length < size) {
                let has_room = has_room(&self.directory, size)?;
                if has_room {
                    self.make(number, size)?;
                }
                return Ok(!has_room);
            }
        }
        if !self.make_slack()? {
            return Ok(true);
        }
        self.is_complete.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("{number:02}"))
    }

    /// The length of a spare file, if it exists.
    fn length(&self, number: usize) -> Option<u64> {
        let metadata = fs::symlink_metadata(self.path(number)).ok()?;
        metadata.is_file().then_some(metadata.len())
    }

    fn lock(&self) -> io::Result<Flock<File>> {
        own_file::is_directory(&self.directory)?;
        Flock::lock(own_file::open_directory(&self.directory)?, FlockArg::LockExclusive)
            .map_err(|(_, error)| error.into())
    }

    /// Writes a spare file, and syncs it before it gets its name.
    fn make(&self, number: usize, size: u64) -> io::Result<()> {
        let path = self.path(number);
        let new = path.with_extension(&NEW[1..]);
        own_file::clear_file(&path)?;
        own_file::clear_file(&new)?;
        let written = (|| {
            let mut file = Staged::create(&new, 0o600)?;
            keep_blocks(&file);
            fill(&mut file, size)?;
            file.sync()?;
            rename(&new, &path)
        })();
        if written.is_err() {
            // Best effort: the next spare file of this number truncates it.
            let _ = discard(&new);
        }
        written
    }

    /// Makes the missing long names in all directories. Returns whether all are there.
    fn make_slack(&self) -> io::Result<bool> {
        let linked = self.directory.join(LINKED);
        if !linked.is_file() {
            own_file::clear_file(&linked)?;
            own_file::write(&linked, "")?;
        }
        for directory in &self.targets {
            if !directory.is_dir() || slack_in(directory).len() >= SLACK {
                continue;
            }
            for number in 0..SLACK {
                let name = format!("{SLACK_PREFIX}{number:02}-");
                match fs::hard_link(&linked, directory.join(format!("{name:=<SLACK_LENGTH$}"))) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) if is_full(&error) => return Ok(false),
                    // The directory is on another file system, or that has no links: such a directory has no slack.
                    Err(_) => break,
                    Ok(()) => {}
                }
            }
        }
        Ok(true)
    }
}

/// What the reserve may still take of a file system.
struct Budget {
    bytes: u64,
    files: u64,
}

impl Budget {
    fn of(directory: &Path) -> io::Result<Budget> {
        let disk = statvfs(directory)?;
        #[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
        let (blocks, block, files) = (disk.blocks() as u64, disk.fragment_size() as u64, disk.files() as u64);
        let most = if is_in_memory(directory) { MOST_IN_MEMORY } else { u64::MAX };
        // Some file systems have no fixed number of inodes, and report 0.
        let files = if files == 0 { u64::MAX } else { files / SHARE };
        Ok(Budget { bytes: (blocks.saturating_mul(block) / SHARE).min(most), files })
    }

    fn spend(&mut self, bytes: u64) -> bool {
        let is_within = self.bytes >= bytes && self.files > 0;
        if is_within {
            self.bytes -= bytes;
            self.files -= 1;
        }
        is_within
    }
}

/// Whether a file system has room for one more file of this size.
fn has_room(directory: &Path, bytes: u64) -> io::Result<bool> {
    let disk = statvfs(directory)?;
    #[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
    let free = (disk.blocks_available() as u64).saturating_mul(disk.fragment_size() as u64);
    Ok(free >= bytes + MARGIN && (disk.files() == 0 || disk.files_available() > 0))
}

/// Makes the file system overwrite this empty file in place, where it would write all changes to other blocks.
fn keep_blocks(file: &Staged) {
    if fstatfs(file).is_ok_and(|found| found.filesystem_type() == BTRFS_SUPER_MAGIC)
        && let Err(error) = rustix::fs::ioctl_setflags(file, rustix::fs::IFlags::NOCOW)
    {
        log::warn!("failed to make a spare file that btrfs overwrites in place: {error}");
    }
}

/// The long names in a directory.
fn slack_in(directory: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    entries.filter(|name| name.as_bytes().starts_with(SLACK_PREFIX.as_bytes())).collect()
}

/// Writes bytes that no file system can compress: a spare file must own its blocks.
fn fill(file: &mut Staged, size: u64) -> io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chunk = [0; 4096];
    let mut left = size;
    while left > 0 {
        for word in chunk.chunks_exact_mut(8) {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let length = left.min(chunk.len() as u64);
        file.write_all(chunk.get(..length as usize).unwrap_or(&chunk))?;
        left -= length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("nodlet-reserve-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a scratch directory");
        path
    }

    fn complete(directory: &Path) -> Reserve {
        let reserve = Reserve::new(directory.join("reserve"), vec![directory.join("records")]);
        fs::create_dir_all(directory.join("records")).expect("a directory");
        while !reserve.replenish().expect("there is room") {}
        reserve
    }

    fn use_one(reserve: &Reserve, directory: &Path, bytes: usize, left: Headroom) -> bool {
        let Some(mut spare) = reserve.take(bytes, left).expect("it is readable") else { return false };
        spare.file.overwrite(&vec![b'x'; bytes]).expect("written");
        spare.file.sync().expect("synced");
        reserve.rename(spare.file.path(), &directory.join("records/file")).expect("renamed");
        assert_eq!(fs::metadata(directory.join("records/file")).expect("it is there").len(), bytes as u64);
        true
    }

    #[test]
    fn a_reserve_has_four_mebibytes_and_64_files_and_is_made_once() {
        let directory = scratch("whole");
        let reserve = complete(&directory);
        assert!(reserve.is_complete());
        let files: Vec<_> = (0..64).map(|number| reserve.length(number).expect("it is there")).collect();
        assert!(files.iter().sum::<u64>() >= 4 << 20, "{files:?}");
        let blocks = |number| {
            use std::os::unix::fs::MetadataExt;
            let found = fs::metadata(reserve.path(number)).expect("it is there");
            (found.blocks() * 512 >= found.len(), found.ino())
        };
        let before: Vec<_> = (0..64).map(blocks).collect();
        assert!(before.iter().all(|(owns, _)| *owns), "every spare file owns its blocks");
        // Another process finds them all, and makes none.
        assert!(complete(&directory).is_complete());
        assert_eq!((0..64).map(blocks).collect::<Vec<_>>(), before);
        assert_eq!(slack_in(&directory.join("records")).len(), SLACK);
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }

    #[test]
    fn the_smallest_file_is_used_and_half_is_left_to_what_frees_the_disk() {
        let directory = scratch("half");
        let reserve = complete(&directory);
        let mut used = 0;
        while use_one(&reserve, &directory, 2000, Headroom::Half) {
            used += 1;
        }
        // Half of each size: a client's small object may take a large file.
        assert_eq!(used, 27 + 4 + 1);
        assert!(!reserve.is_complete());
        while use_one(&reserve, &directory, 2000, Headroom::Quarter) {
            used += 1;
        }
        // Pods that end leave room for evictions.
        assert_eq!(used, 41 + 6 + 2);
        while use_one(&reserve, &directory, 2000, Headroom::None) {
            used += 1;
        }
        assert_eq!(used, 64);
        // They are made again one after another.
        let mut parts = 0;
        while !reserve.replenish().expect("there is room") {
            parts += 1;
        }
        assert_eq!(parts, 64);
        assert!(reserve.is_complete() && !use_one(&reserve, &directory, 2 << 20, Headroom::None));
        assert!(use_one(&reserve, &directory, 1 << 20, Headroom::Half));
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }

    #[test]
    fn what_is_in_the_place_of_a_spare_file_or_of_their_directory_is_replaced() {
        let directory = scratch("irregular");
        let place = directory.join("reserve");
        fs::create_dir_all(place.join("00.new/x")).expect("a directory");
        fs::create_dir_all(place.join("05/x")).expect("a directory");
        for name in ["07", "08.new", LINKED] {
            nix::unistd::mkfifo(&place.join(name), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        }
        let reserve = complete(&directory);
        assert!((0..64).all(|number| reserve.length(number).is_some()));
        assert_eq!(slack_in(&directory.join("records")).len(), SLACK);
        let linked = directory.join("linked");
        std::os::unix::fs::symlink(&place, &linked).expect("a link");
        let pipe = directory.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        for path in [linked, pipe] {
            let replaced = Reserve::new(path.clone(), Vec::new());
            let error = replaced.take(1, Headroom::None).expect_err("it is not a directory");
            assert!(error.to_string().contains("it is not a directory"), "{error}");
            while !replaced.replenish().expect("there is room") {}
            assert!(fs::symlink_metadata(&path).expect("it is there").is_dir());
            assert!(replaced.take(1, Headroom::None).expect("readable").is_some());
        }
        assert!(
            (0..64).all(|number| reserve.length(number).is_some()),
            "the target of the link is unchanged"
        );
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }

    /// A crash between the write and the rename leaves a shorter file.
    #[test]
    fn a_spare_file_that_was_written_and_not_used_serves_for_less_until_it_is_made_again() {
        let directory = scratch("short");
        let reserve = complete(&directory);
        let mut spare = reserve.take(3000, Headroom::None).expect("readable").expect("there is one");
        spare.file.overwrite(&[0; 3000]).expect("written");
        let path = spare.file.path().to_owned();
        drop(spare);
        assert_eq!(fs::metadata(&path).expect("it stays").len(), 3000);
        let again = reserve.take(3000, Headroom::None).expect("readable").expect("there is one");
        assert_eq!(again.file.path(), path);
        drop(again);
        assert_ne!(
            reserve.take(3001, Headroom::None).expect("readable").expect("there is one").file.path(),
            path
        );
        assert!(!reserve.replenish().expect("there is room"), "one was made");
        assert!(fs::metadata(&path).expect("it is there").len() > 3000);
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }
}
