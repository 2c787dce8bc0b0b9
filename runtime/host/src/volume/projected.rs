//! `configMap`, `secret`, `downwardAPI` and `projected`: files that the agent writes on tmpfs, so that they neither
//! wear flash nor survive a power cut, and that a reader sees all old or all new (Kubernetes: `AtomicWriter`).
//!
//! ```text
//! ..2026_01_31_12_00_00.123456789/key   the files
//! ..data -> ..2026_01_31_12_00_00.123456789
//! key    -> ..data/key                  a link for each first component of the paths
//! ```
//!
//! The containers mount the directory read-only, but a container with CAP_SYS_ADMIN can change that: no link in the
//! directory is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag, readlinkat, renameat};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Gid, fchown, symlinkat};
use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_kernel::file::{create_at, open, open_in};
use rustix::path::Arg;

use super::remove;

/// The link to the directory with the files.
const DATA: &str = "..data";

/// The link before it takes its place.
const NEW_DATA: &str = "..data_tmp";

/// Bytes of a path (`maxPathLength`).
const MAX_PATH: usize = 4096;

/// Components of a path: whoever walks the volume needs room for each.
const MAX_DEPTH: usize = 32;

/// Mounts that are removed from the directory of a volume.
const MOST_MOUNTS: usize = 64;

/// Entries of a volume that are removed by one write.
const MOST_OUTDATED: usize = 4096;

/// Bytes of a component of a path (`maxFileNameLength`).
const MAX_NAME: usize = 255;

/// Bytes of the tmpfs that volumes leave free for others, or a quarter of it if that is less.
const KEPT_FREE: u64 = 16 << 20;

/// Bytes of a file besides its content: the rest of its last page.
const FILE_OVERHEAD: u64 = 4096;

/// Files and directories that are removed for a volume at once: as many as an update leaves, and more than a
/// container keeps up with.
const MOST_REMOVED: usize = 65536;

/// One file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct ProjectedFile {
    /// The content, which several files may share. It may be secret: this type prints nothing of it.
    pub content: Arc<[u8]>,
    /// Permission bits.
    pub mode: u32,
}

impl std::fmt::Debug for ProjectedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProjectedFile({} bytes, {:o})", self.content.len(), self.mode)
    }
}

/// The files of a volume by their paths, which are relative.
pub type ProjectedFiles = SortedMap<String, ProjectedFile>;

/// Makes the volume at the path `place` below `base` show `files`, owned by `fs_group` if there is one. Containers
/// cannot change `base`. `name` names the new directory with the files, begins with `..`, and must not have been used in
/// this volume before. Returns whether anything changed.
///
/// # Errors
/// A path is not allowed, or a file could not be written. The volume shows what it showed before.
pub(super) fn write(
    base: &Path,
    place: &Path,
    files: &ProjectedFiles,
    name: &str,
    fs_group: Option<u32>,
) -> io::Result<bool> {
    for path in files.keys() {
        check_path(path)?;
        let mut above = path.match_indices('/').map(|(end, _)| &path[..end]);
        if let Some(file) = above.find(|above| files.contains_key(*above)) {
            return Err(io::Error::other(format!("{file:?} is a file, and the directory of {path:?}")));
        }
    }
    let volume = open_volume(base, place, fs_group)?;
    let files: SortedMap<&str, ProjectedFile> = files
        .iter()
        .map(|(path, file)| {
            (path.as_str(), ProjectedFile { mode: mode_of(file.mode, fs_group), ..file.clone() })
        })
        .collect();
    let current = readlinkat(Some(volume.as_raw_fd()), DATA).ok();
    let shown = current.as_deref().is_some_and(|current| shows(&volume, current, &files).unwrap_or(false));
    if !shown {
        let needed = files.values().map(|file| file.content.len() as u64 + FILE_OVERHEAD).sum();
        check_room(&volume, needed)?;
        // A directory that exists is not this one, and stays.
        mkdirat(Some(volume.as_raw_fd()), name, Mode::S_IRWXU)?;
        let made = make(&volume, name, &files, fs_group).and_then(|()| switch(&volume, name));
        if let Err(error) = made {
            let _ = remove::in_directory(&volume, OsStr::new(name), MOST_REMOVED);
            return Err(error);
        }
    }
    let data = if shown { current.unwrap_or_default() } else { name.into() };
    let linked = link(&volume, &files)?;
    remove_outdated(&volume, &data, &files)?;
    Ok(!shown || linked)
}

/// Opens the directory of a volume, which is created if it does not exist. A mount on it is removed: the container that
/// made it would redirect the files.
fn open_volume(base: &Path, place: &Path, fs_group: Option<u32>) -> io::Result<OwnedFd> {
    let directory = base.join(place);
    if std::fs::symlink_metadata(&directory).is_err() {
        // Only root may enter the directories above: the files may be secret, whatever their modes.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let mode = if fs_group.is_some() { 0o2777 } else { 0o777 };
        if fs_group.is_some() {
            std::os::unix::fs::chown(&directory, None, fs_group)?;
        }
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode))?;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let base = open(base, flags)?;
    for _ in 0..MOST_MOUNTS {
        match open_beneath(&base, place, OFlag::O_DIRECTORY) {
            Err(Errno::EXDEV) => umount2(&directory, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?,
            opened => return Ok(opened?),
        }
    }
    Err(Errno::EBUSY.into())
}

/// Opens a file below a directory to read: through no link, and on no mount.
fn open_beneath(directory: &OwnedFd, path: impl Arg, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve =
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
    open_in(directory, path, OFlag::O_RDONLY | OFlag::O_NOFOLLOW | flags, resolve)
}

/// Checks that the files leave room on the tmpfs for everybody else who needs it.
#[allow(clippy::useless_conversion, reason = "on 32-bit processors the numbers have 32 bits")]
fn check_room(volume: &OwnedFd, needed: u64) -> io::Result<()> {
    let room = nix::sys::statvfs::fstatvfs(volume)?;
    let block = u64::from(room.fragment_size());
    let (all, free) = (u64::from(room.blocks()) * block, u64::from(room.blocks_available()) * block);
    let kept = KEPT_FREE.min(all / 4);
    // A tmpfs without a limit has no blocks.
    if all > 0 && free.saturating_sub(needed) < kept {
        let message =
            format!("its files need {needed} bytes, and only {} are free", free.saturating_sub(kept));
        return Err(io::Error::new(io::ErrorKind::StorageFull, message));
    }
    Ok(())
}

/// The mode of a file; a group that owns it can read it (`SetVolumeOwnership`).
fn mode_of(mode: u32, fs_group: Option<u32>) -> u32 {
    (mode & 0o777) | if fs_group.is_some() { 0o440 } else { 0 }
}

/// `validatePath`, with a limit of nested directories.
fn check_path(path: &str) -> io::Result<()> {
    let wrong =
        |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path {path:?}: {why}")));
    if path.is_empty() || path.starts_with('/') {
        return wrong("must be relative path");
    }
    if path.len() > MAX_PATH {
        return wrong("must be less than or equal to 4096 characters");
    }
    for component in path.split('/') {
        if component == ".." {
            return wrong("must not contain '..'");
        }
        if component.len() > MAX_NAME {
            return wrong("filenames must be less than or equal to 255 characters");
        }
    }
    match components(path).next() {
        None => wrong("must name a file"),
        Some(first) if first.starts_with("..") => wrong("must not start with '..'"),
        Some(_) if components(path).count() > MAX_DEPTH => wrong("must have no more than 32 components"),
        Some(_) => Ok(()),
    }
}

/// The components of a path without those that mean nothing.
fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|component| !component.is_empty() && *component != ".")
}

/// Whether the directory `name` holds exactly these files. Nothing else that a container may have put there is entered
/// or opened.
fn shows(volume: &OwnedFd, name: &OsStr, files: &SortedMap<&str, ProjectedFile>) -> io::Result<bool> {
    let root = open_beneath(volume, name, OFlag::O_DIRECTORY)?;
    // The names in each directory that these files need.
    let mut expected: SortedMap<String, SortedSet<&str>> =
        SortedMap::from([(String::new(), SortedSet::new())]);
    for path in files.keys() {
        let mut directory = String::new();
        for component in components(path) {
            expected.entry(directory.clone()).or_default().insert(component);
            directory = format!("{directory}{component}/");
        }
    }
    for (directory, names) in &expected {
        let place = format!("./{directory}");
        let opened = open_beneath(&root, place.as_str(), OFlag::O_DIRECTORY)?;
        let mut found = 0;
        for entry in Dir::from(opened)?.iter() {
            match entry?.file_name().to_bytes() {
                b"." | b".." => {}
                name if std::str::from_utf8(name).is_ok_and(|name| names.contains(name)) => found += 1,
                _ => return Ok(false),
            }
        }
        if found != names.len() {
            return Ok(false);
        }
    }
    for (path, file) in files {
        // What is no file is not opened: a FIFO would wait for a writer.
        let found = File::from(open_beneath(&root, *path, OFlag::O_PATH)?);
        let metadata = found.metadata()?;
        let same = metadata.is_file()
            && metadata.len() == file.content.len() as u64
            && metadata.permissions().mode() & 0o7777 == file.mode;
        if !same {
            return Ok(false);
        }
        let opened = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
        let mut content = Vec::with_capacity(file.content.len());
        opened.take(file.content.len() as u64 + 1).read_to_end(&mut content)?;
        if content != *file.content {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes the files into the new directory `name`.
fn make(
    volume: &OwnedFd,
    name: &str,
    files: &SortedMap<&str, ProjectedFile>,
    fs_group: Option<u32>,
) -> io::Result<()> {
    let root = open_new(volume, name, fs_group)?;
    for (path, file) in files {
        make_file(&root, path, file, fs_group)
            .map_err(|error| io::Error::new(error.kind(), format!("failed to write {path}: {error}")))?;
    }
    Ok(())
}

fn make_file(root: &OwnedFd, path: &str, file: &ProjectedFile, fs_group: Option<u32>) -> io::Result<()> {
    let mut at = root.try_clone()?;
    let mut rest = components(path).peekable();
    while let Some(component) = rest.next() {
        if rest.peek().is_some() {
            step()?;
            at = match mkdirat(Some(at.as_raw_fd()), component, Mode::S_IRWXU) {
                Ok(()) => open_new(&at, component, fs_group)?,
                Err(Errno::EEXIST) => open_beneath(&at, component, OFlag::O_DIRECTORY)?,
                Err(error) => return Err(error.into()),
            };
            continue;
        }
        step()?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let mut new = File::from(create_at(&at, component, flags, Mode::S_IRUSR)?);
        step()?;
        new.write_all(&file.content)?;
        step()?;
        if let Some(group) = fs_group {
            fchown(new.as_raw_fd(), None, Some(Gid::from_raw(group)))?;
        }
        fchmod(new.as_raw_fd(), Mode::from_bits_truncate(file.mode))?;
    }
    Ok(())
}

/// Opens a new directory, and gives it its mode and group.
fn open_new(at: &OwnedFd, name: &str, fs_group: Option<u32>) -> io::Result<OwnedFd> {
    step()?;
    let made = open_beneath(at, name, OFlag::O_DIRECTORY)?;
    let mut mode = 0o755;
    if let Some(group) = fs_group {
        fchown(made.as_raw_fd(), None, Some(Gid::from_raw(group)))?;
        mode |= 0o2110;
    }
    fchmod(made.as_raw_fd(), Mode::from_bits_truncate(mode))?;
    Ok(made)
}

/// Makes the volume show the directory `name`.
fn switch(volume: &OwnedFd, name: &str) -> io::Result<()> {
    step()?;
    remove::in_directory(volume, OsStr::new(NEW_DATA), MOST_REMOVED)?;
    symlinkat(name, Some(volume.as_raw_fd()), NEW_DATA)?;
    step()?;
    match renameat(Some(volume.as_raw_fd()), NEW_DATA, Some(volume.as_raw_fd()), DATA) {
        // A container has put a directory in the place of the link.
        Err(Errno::EISDIR | Errno::ENOTEMPTY | Errno::EEXIST) => {
            remove::in_directory(volume, OsStr::new(DATA), MOST_REMOVED)?;
            renameat(Some(volume.as_raw_fd()), NEW_DATA, Some(volume.as_raw_fd()), DATA)?;
        }
        renamed => renamed?,
    }
    Ok(())
}

/// The first components of the paths.
fn names<'a>(files: &SortedMap<&'a str, ProjectedFile>) -> SortedSet<&'a str> {
    files.keys().filter_map(|path| components(path).next()).collect()
}

/// Makes the links through which containers see the files. Returns whether one was missing.
fn link(volume: &OwnedFd, files: &SortedMap<&str, ProjectedFile>) -> io::Result<bool> {
    let mut changed = false;
    for name in names(files) {
        let target = format!("{DATA}/{name}");
        if readlinkat(Some(volume.as_raw_fd()), name).is_ok_and(|known| *known == *target) {
            continue;
        }
        step()?;
        remove::in_directory(volume, OsStr::new(name), MOST_REMOVED)?;
        symlinkat(target.as_str(), Some(volume.as_raw_fd()), name)?;
        changed = true;
    }
    Ok(changed)
}

/// Removes links and directories of earlier files, as many as possible. Other entries are not of this agent, and stay.
fn remove_outdated(volume: &OwnedFd, data: &OsStr, files: &SortedMap<&str, ProjectedFile>) -> io::Result<()> {
    let names = names(files);
    let mut outdated = Vec::new();
    for entry in Dir::from(volume.try_clone()?)?.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        let bytes = name.as_bytes();
        let is_outdated = if bytes.starts_with(b"..") {
            bytes != b".." && bytes != DATA.as_bytes() && name != data
        } else {
            bytes != b"."
                && !names.iter().any(|known| known.as_bytes() == bytes)
                && readlinkat(Some(volume.as_raw_fd()), &*name)
                    .is_ok_and(|target| target.as_bytes().starts_with(b"..data/"))
        };
        if is_outdated {
            outdated.push(name);
        }
        // The next write removes the others.
        if outdated.len() >= MOST_OUTDATED {
            break;
        }
    }
    let mut result = Ok(());
    for name in outdated {
        step()?;
        result = result.and(remove::in_directory(volume, &name, MOST_REMOVED));
    }
    result
}

/// Where a test makes a write fail. Not that of `nodlet_kernel::durable`: this volume is in memory or may be written again,
/// and is reached by descriptors only, beside a container that may rename what is in it.
#[cfg(not(test))]
fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use tests::step;

#[cfg(test)]
mod tests;
