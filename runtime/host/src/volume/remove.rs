//! Removes files that containers wrote, without following their links, entering their mounts, or nesting as
//! deep as their directories do.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, ResolveFlag};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use nodlet_kernel::file::open_in;
use nodlet_kernel::own_file::if_exists;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::path::Arg;

/// How many nested directories are entered. A deeper one is moved up to the first of them, and found there
/// again: neither stack nor descriptors grow with a container's nesting.
const DEPTH: usize = 32;

/// How many stacked mounts are removed from one name.
const MOUNTS: usize = 64;

/// Flags of files that cannot be removed, immutable and append-only: a container with CAP_LINUX_IMMUTABLE can
/// set them.
const KEEPING_FLAGS: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// A directory that is being emptied.
struct Level {
    directory: OwnedFd,
    /// The directory's name in its parent.
    name: OsString,
    /// Some of its entries that are still to be removed.
    entries: Vec<OsString>,
}

/// Removes `path` and all below it. A missing path is not an error.
///
/// # Errors
/// The first failure.
pub(super) fn tree(path: &Path) -> io::Result<()> {
    tree_within(path, &mut RemovalProgress::default())
}

fn tree_within(path: &Path, tried: &mut RemovalProgress) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut options = OpenOptions::new();
    let parent = options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(parent);
    Ok(if_exists(parent)?.map_or(Ok(()), |parent| remove(&parent, name, tried))?)
}

/// How many files and directories one part of a [`Removal`] removes.
const ENTRIES_PER_PART: usize = 128;

/// A directory that is removed in parts, since the duration depends on those who filled it. Nothing is open
/// between two parts.
pub struct Removal {
    path: PathBuf,
    tried: RemovalProgress,
}

impl Removal {
    /// A removal of `path` and all below it.
    pub fn new(path: PathBuf) -> Removal {
        Removal { path, tried: RemovalProgress::default() }
    }

    /// Removes a part of the directory; `None` if there may be more. A missing directory counts as removed.
    pub fn part(&mut self) -> Option<io::Result<()>> {
        (self.tried.entries, self.tried.most) = (0, Some(ENTRIES_PER_PART));
        match tree_within(&self.path, &mut self.tried) {
            Err(_) if self.tried.entries > ENTRIES_PER_PART => None,
            removed => Some(removed),
        }
    }
}

/// Removes `name` in a directory, and all below it. Another process may keep creating files there, so at most
/// `most` files and directories are removed. A missing name is not an error.
///
/// # Errors
/// The first failure, or that there were more (`EBUSY`).
pub(super) fn in_directory(at: &impl AsFd, name: &OsStr, most: usize) -> io::Result<()> {
    Ok(remove(at, name, &mut RemovalProgress { most: Some(most), ..RemovalProgress::default() })?)
}

/// The progress of a removal.
#[derive(Default)]
struct RemovalProgress {
    /// How many new names were tried for directories that were moved up.
    moves: u32,
    /// How many entries were removed or entered.
    entries: usize,
    /// The upper bound of `entries`.
    most: Option<usize>,
}

/// Removes `name` in `at`, one entry after another, the deepest first.
fn remove(at: &impl AsFd, name: &OsStr, tried: &mut RemovalProgress) -> nix::Result<()> {
    let mut levels: Vec<Level> = Vec::new();
    levels.extend(unlink_or_enter(at, name)?);
    while let Some(level) = levels.last_mut() {
        if level.entries.is_empty() {
            // Read again until it is empty: removing while reading may skip entries.
            level.entries = entries(&level.directory)?;
        }
        let Some(entry) = level.entries.pop() else {
            let Some(emptied) = levels.pop() else { break };
            match levels.last() {
                Some(above) => remove_directory(&above.directory, &emptied.name)?,
                None => remove_directory(at, &emptied.name)?,
            }
            continue;
        };
        tried.entries += 1;
        if tried.most.is_some_and(|most| tried.entries > most) {
            return Err(Errno::EBUSY);
        }
        let below = match unlink_or_enter(&level.directory, &entry) {
            Err(Errno::EPERM) if clear_flags_of_file(&level.directory, &entry) => {
                unlink_or_enter(&level.directory, &entry)?
            }
            tried => tried?,
        };
        if let Some(below) = below {
            // The first directory keeps its flags: it is nodlet's own, and no container is in it.
            clear_flags(&below.directory);
            if levels.len() < DEPTH {
                levels.push(below);
            } else {
                move_up(&levels, &entry, tried)?;
            }
        }
    }
    Ok(())
}

/// Moves a directory from the deepest level to the first, where it is found when that is read again. No name
/// is tried twice: a search for a free one among thousands of moved directories would take hours.
fn move_up(levels: &[Level], name: &OsStr, tried: &mut RemovalProgress) -> nix::Result<()> {
    let (Some(first), Some(last)) = (levels.first(), levels.last()) else { return Ok(()) };
    while let Some(next) = tried.moves.checked_add(1) {
        let shallow = format!(".deep-{}", tried.moves);
        tried.moves = next;
        let moved = nix::fcntl::renameat(
            Some(last.directory.as_raw_fd()),
            name,
            Some(first.directory.as_raw_fd()),
            shallow.as_str(),
        );
        match moved {
            // An entry of that name exists, and is removed in its turn.
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR | Errno::EBUSY) => {}
            moved => return moved,
        }
    }
    Err(Errno::EEXIST)
}

/// Removes an entry that is not a directory, and opens one that is; `None` if it no longer exists.
fn unlink_or_enter(at: &impl AsFd, name: &OsStr) -> nix::Result<Option<Level>> {
    for _ in 0..MOUNTS {
        match unlinkat(Some(at.as_fd().as_raw_fd()), name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(Errno::EBUSY) => {
                unmount(at, name)?;
                continue;
            }
            Err(errno) => return Err(errno),
        }
        let stat = fstatat(Some(at.as_fd().as_raw_fd()), name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFDIR {
            // The file is immutable or append-only.
            return Err(Errno::EPERM);
        }
        match open(at, name) {
            Ok(directory) => {
                return Ok(Some(Level { directory, name: name.to_owned(), entries: Vec::new() }));
            }
            Err(Errno::EXDEV) => unmount(at, name)?,
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EBUSY)
}

/// Clears the immutable and append-only flags of a file. Returns whether that changed anything.
fn clear_flags(file: &impl AsFd) -> bool {
    // The kernel refuses where there are no such flags.
    ioctl_getflags(file).is_ok_and(|flags| {
        flags.intersects(KEEPING_FLAGS) && ioctl_setflags(file, flags.difference(KEEPING_FLAGS)).is_ok()
    })
}

/// Clears the immutable and append-only flags of a regular file in a directory; no other non-directory has
/// any.
fn clear_flags_of_file(at: &impl AsFd, name: &OsStr) -> bool {
    let is_file = fstatat(Some(at.as_fd().as_raw_fd()), name, AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG);
    // Another file may be in its place by now: O_NONBLOCK avoids waiting for it.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW;
    is_file && open_with(at, name, flags).is_ok_and(|file| clear_flags(&file))
}

fn remove_directory(at: &impl AsFd, name: &OsStr) -> nix::Result<()> {
    match unlinkat(Some(at.as_fd().as_raw_fd()), name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory; fails with EXDEV if something is mounted on it, even of the same file system.
fn open(at: &impl AsFd, name: impl Arg) -> nix::Result<OwnedFd> {
    open_with(at, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW)
}

fn open_with(at: &impl AsFd, name: impl Arg, flags: OFlag) -> nix::Result<OwnedFd> {
    open_in(at, name, flags, ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS)
}

/// Removes a mount that a container made in a volume that it shares with the host. The mounted files belong
/// to somebody else, and are not touched.
fn unmount(at: &impl AsFd, name: &OsStr) -> nix::Result<()> {
    let path = Path::new("/proc/self/fd").join(at.as_fd().as_raw_fd().to_string()).join(name);
    umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).map_err(|errno| match errno {
        // The name is not a mount, and busy for another reason.
        Errno::EINVAL => Errno::EBUSY,
        errno => errno,
    })
}

/// How many names are read at a time: memory does not grow with the directory.
const ENTRIES: usize = 256;

fn entries(directory: &OwnedFd) -> nix::Result<Vec<OsString>> {
    // A descriptor of its own, so that reading begins at the first entry.
    let own = open(directory, ".")?;
    let mut reader = Dir::from_fd(own.into_raw_fd())?;
    let mut names = Vec::new();
    for entry in reader.iter().take(ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_a_directory_up_tries_one_name_however_many_were_moved_before() {
        const MOVED: u32 = 3000;
        const TAKEN: u32 = 10;
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let doomed = scratch.path().join("doomed");
        let last = (1..DEPTH).fold(doomed.clone(), |path, _| path.join("d"));
        for number in 0..MOVED {
            std::fs::create_dir_all(last.join(format!("{number}/full"))).expect("made");
        }
        // The names to which the directories would be moved may be in use.
        for number in 0..TAKEN {
            std::fs::create_dir_all(doomed.join(format!(".deep-{number}/full"))).expect("made");
        }
        let parent = std::fs::File::open(scratch.path()).expect("it is there");
        let mut tried = RemovalProgress::default();
        remove(&parent, OsStr::new("doomed"), &mut tried).expect("removed");
        let tried = tried.moves;
        assert_eq!(std::fs::read_dir(scratch.path()).expect("read").count(), 0, "something stayed");
        assert!((MOVED..=MOVED + TAKEN).contains(&tried), "{tried} names were tried for {MOVED} directories");
    }
}
