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

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat, renameat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat, mkdirat};
use nix::unistd::{Gid, fchown, symlinkat};

use super::remove;

/// The link to the directory with the files.
const DATA: &str = "..data";

/// The link before it takes its place.
const NEW_DATA: &str = "..data_tmp";

/// Bytes of a path (`maxPathLength`).
const MAX_PATH: usize = 4096;

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
    /// The content. It may be secret: this type prints nothing of it.
    pub content: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

impl std::fmt::Debug for ProjectedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProjectedFile({} bytes, {:o})", self.content.len(), self.mode)
    }
}

/// The files of a volume by their paths, which are relative.
pub type ProjectedFiles = BTreeMap<String, ProjectedFile>;

/// Makes `directory` show `files`, owned by `fs_group` if there is one. `name` names the new directory with the files,
/// and begins with `..`; it must not have been used in this volume before. Returns whether anything changed.
///
/// # Errors
/// A path is not allowed, or a file could not be written. The volume shows what it showed before.
pub(super) fn write(
    directory: &Path,
    files: &ProjectedFiles,
    name: &str,
    fs_group: Option<u32>,
) -> io::Result<bool> {
    for path in files.keys() {
        check_path(path)?;
    }
    if !directory.is_dir() {
        // Only root may enter the directories above: the files may be secret, whatever their modes.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let mode = if fs_group.is_some() { 0o2777 } else { 0o777 };
        if fs_group.is_some() {
            std::os::unix::fs::chown(directory, None, fs_group)?;
        }
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode))?;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let volume = owned(nix::fcntl::open(directory, flags, Mode::empty())?);
    let files: BTreeMap<&str, ProjectedFile> = files
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

/// `validatePath`.
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
    if path.starts_with("..") {
        return wrong("must not start with '..'");
    }
    Ok(())
}

/// The components of a path without those that mean nothing.
fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|component| !component.is_empty() && *component != ".")
}

/// Whether the directory `name` holds exactly these files.
fn shows(volume: &OwnedFd, name: &OsStr, files: &BTreeMap<&str, ProjectedFile>) -> io::Result<bool> {
    let beneath = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let directory = owned(openat2(volume.as_raw_fd(), name, beneath)?);
    for (path, file) in files {
        let mut open = File::from(owned(openat2(directory.as_raw_fd(), *path, beneath)?));
        let metadata = open.metadata()?;
        let same = metadata.is_file()
            && metadata.len() == file.content.len() as u64
            && metadata.permissions().mode() & 0o7777 == file.mode;
        if !same {
            return Ok(false);
        }
        let mut content = Vec::with_capacity(file.content.len());
        open.read_to_end(&mut content)?;
        if content != file.content {
            return Ok(false);
        }
    }
    Ok(count(directory, 0)? == files.len())
}

/// The number of files in a directory of ours; more than any has for one that is nested as deep as none.
fn count(directory: OwnedFd, depth: usize) -> io::Result<usize> {
    if depth > MAX_PATH / 2 {
        return Ok(usize::MAX);
    }
    let mut found = 0usize;
    let mut directory = Dir::from(directory)?;
    let at = directory.as_raw_fd();
    for entry in directory.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if [b".".as_slice(), b".."].contains(&name.to_bytes()) {
            continue;
        }
        let stat = fstatat(Some(at), name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        let more = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFDIR => {
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                count(owned(openat(Some(at), name, flags, Mode::empty())?), depth + 1)?
            }
            _ => 1,
        };
        found = found.saturating_add(more);
    }
    Ok(found)
}

/// Writes the files into the new directory `name`.
fn make(
    volume: &OwnedFd,
    name: &str,
    files: &BTreeMap<&str, ProjectedFile>,
    fs_group: Option<u32>,
) -> io::Result<()> {
    let root = make_directory(volume, name, fs_group)?;
    for (path, file) in files {
        let mut at = root.try_clone()?;
        let mut rest = components(path).peekable();
        while let Some(component) = rest.next() {
            if rest.peek().is_some() {
                at = make_directory(&at, component, fs_group)?;
                continue;
            }
            step()?;
            let flags =
                OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut new = File::from(owned(openat(Some(at.as_raw_fd()), component, flags, Mode::S_IRUSR)?));
            step()?;
            new.write_all(&file.content)?;
            step()?;
            if let Some(group) = fs_group {
                fchown(new.as_raw_fd(), None, Some(Gid::from_raw(group)))?;
            }
            fchmod(new.as_raw_fd(), Mode::from_bits_truncate(file.mode))?;
        }
    }
    Ok(())
}

/// Makes a directory, which may exist, and opens it.
fn make_directory(at: &OwnedFd, name: &str, fs_group: Option<u32>) -> io::Result<OwnedFd> {
    step()?;
    let is_new = match mkdirat(Some(at.as_raw_fd()), name, Mode::from_bits_truncate(0o755)) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(error) => return Err(error.into()),
    };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = owned(openat(Some(at.as_raw_fd()), name, flags, Mode::empty())?);
    if is_new {
        let mut mode = 0o755;
        if let Some(group) = fs_group {
            fchown(made.as_raw_fd(), None, Some(Gid::from_raw(group)))?;
            mode |= 0o2110;
        }
        fchmod(made.as_raw_fd(), Mode::from_bits_truncate(mode))?;
    }
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
fn names<'a>(files: &BTreeMap<&'a str, ProjectedFile>) -> BTreeSet<&'a str> {
    files.keys().filter_map(|path| components(path).next()).collect()
}

/// Makes the links through which containers see the files. Returns whether one was missing.
fn link(volume: &OwnedFd, files: &BTreeMap<&str, ProjectedFile>) -> io::Result<bool> {
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

/// Removes links and directories of earlier files. Other entries are not of this agent, and stay.
fn remove_outdated(volume: &OwnedFd, data: &OsStr, files: &BTreeMap<&str, ProjectedFile>) -> io::Result<()> {
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
    }
    for name in outdated {
        step()?;
        remove::in_directory(volume, &name, MOST_REMOVED)?;
    }
    Ok(())
}

fn owned(descriptor: std::os::fd::RawFd) -> OwnedFd {
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Where a test makes a write fail.
#[cfg(not(test))]
fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use tests::step;

#[cfg(test)]
mod tests;
