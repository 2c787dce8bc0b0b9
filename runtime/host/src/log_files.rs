//! Files and directories of `var/log`, where containers may write: a log collector has it as a read-write
//! hostPath, and can replace any directory there by a link at any time.
//!
//! `var/log` itself belongs to the machine, and may be a link. Nothing below it is reached through a link: a
//! directory is opened beneath another (`RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS`) and kept by its descriptor,
//! and a file is created, renamed, read or removed by its name in that directory. A file that a container may
//! have put in the place of a log is neither written nor read: see [`Directory::open_own`].
//!
//! Read next: `supervisor/src/log.rs`, which writes logs, and `api/log.rs`, which reads them.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, ResolveFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use nodlet_kernel::file::create_in;
use nodlet_kernel::own_file::if_exists;

use crate::paths::Paths;
use crate::volume;

/// Directory of all pods' logs, in `var/log`.
const PODS: &str = "pods";

/// Directory of the links to the logs, in `var/log`.
const LINKS: &str = "containers";

/// Mode of log directories: log collectors need not be root.
const DIRECTORY_MODE: Mode = Mode::from_bits_truncate(0o755);

/// Mode of log files.
const FILE_MODE: Mode = Mode::from_bits_truncate(0o640);

/// How many names are read from one directory. A container may have created any number of them.
const NAMES: usize = 16 * 1024;

/// How many files and directories are removed with the logs of one pod. A container that keeps creating
/// others there must not occupy the storage thread for ever.
const MAX_REMOVED: usize = 256 * 1024;

/// A directory, kept by its descriptor.
pub struct Directory(OwnedFd);

impl Directory {
    /// Opens a directory of the machine, which no container can replace. Links are followed; a missing
    /// directory is created.
    ///
    /// # Errors
    /// The kernel's.
    pub fn trusted(path: &Path) -> io::Result<Directory> {
        let open = || nodlet_kernel::file::open(path, DIRECTORY);
        Ok(Directory(match open() {
            Err(Errno::ENOENT) => {
                std::fs::create_dir_all(path)?;
                open()?
            }
            opened => opened?,
        }))
    }

    /// Opens a directory below this one.
    ///
    /// # Errors
    /// The kernel's: ELOOP if a link is in the way.
    pub fn enter(&self, path: &Path) -> io::Result<Directory> {
        Ok(Directory(self.open(path, DIRECTORY, Mode::empty())?))
    }

    /// Opens a directory below this one, and creates the missing parts of it. Also returns whether the
    /// directory itself was created, so that it is empty.
    ///
    /// # Errors
    /// The kernel's: ELOOP if a link is in the way.
    pub fn make(&self, path: &Path) -> io::Result<(Directory, bool)> {
        match self.enter(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            entered => return entered.map(|directory| (directory, false)),
        }
        let mut reached: Option<(Directory, bool)> = None;
        for component in path.components() {
            let Component::Normal(name) = component else { return Err(Errno::EINVAL.into()) };
            let above = reached.as_ref().map_or(self, |(directory, _)| directory);
            let is_new = match mkdirat(Some(above.0.as_raw_fd()), name, DIRECTORY_MODE) {
                Ok(()) => true,
                Err(Errno::EEXIST) => false,
                Err(errno) => return Err(errno.into()),
            };
            reached = Some((above.enter(Path::new(name))?, is_new));
        }
        reached.ok_or_else(|| Errno::EINVAL.into())
    }

    /// Opens a file if only nodlet can have created it: a regular file with one name, owned by nodlet's own
    /// user. Any other file is an error, and is not even opened, because opening a device, such as a
    /// watchdog, may trigger it.
    ///
    /// # Errors
    /// The kernel's, or that the file was not created by nodlet.
    pub fn open_own(&self, name: &OsStr, flags: OFlag) -> io::Result<(File, Metadata)> {
        let (path, flags) = (Path::new(name), flags | OFlag::O_NOCTTY | OFlag::O_CLOEXEC);
        // Find the file first, and then open exactly the file that was found.
        let found = match self.open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && flags.contains(OFlag::O_CREAT) => {
                // The output of containers is not readable for every user of the machine, as under
                // containerd.
                let file = File::from(self.open(path, flags | OFlag::O_EXCL, FILE_MODE)?);
                let metadata = file.metadata()?;
                return Ok((file, metadata));
            }
            found => File::from(found?),
        };
        let metadata = found.metadata()?;
        let problem = if !metadata.is_file() {
            "not a regular file"
        } else if metadata.nlink() > 1 {
            "it has another name, as a hard link"
        } else if metadata.uid() != nix::unistd::geteuid().as_raw() {
            "it belongs to another user"
        } else {
            let path = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
            let file = nodlet_kernel::file::open(&path, flags.difference(OFlag::O_CREAT))?;
            return Ok((file.into(), metadata));
        };
        Err(io::Error::other(problem))
    }

    fn open(&self, path: &Path, flags: OFlag, mode: Mode) -> io::Result<OwnedFd> {
        let resolve = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        loop {
            match create_in(&self.0, path, flags, mode, resolve) {
                // A rename somewhere in the path: the kernel asks for a retry.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                opened => return Ok(opened?),
            }
        }
    }

    /// Renames a file in this directory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let this = Some(self.0.as_raw_fd());
        Ok(nix::fcntl::renameat(this, from, this, to)?)
    }

    /// Removes a name that is not a directory; for a link, the link itself. A missing name is not an error.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(Some(self.0.as_raw_fd()), name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a link.
    ///
    /// # Errors
    /// The kernel's.
    pub fn link(&self, target: &Path, name: &OsStr) -> io::Result<()> {
        Ok(symlinkat(target, Some(self.0.as_raw_fd()), name)?)
    }

    /// The target of a link; `None` if there is no link of that name.
    pub fn target(&self, name: &OsStr) -> Option<PathBuf> {
        nix::fcntl::readlinkat(Some(self.0.as_raw_fd()), name).ok().map(PathBuf::from)
    }

    /// The state of the file with this name, without following a link.
    fn state(&self, name: &OsStr) -> Option<FileStat> {
        fstatat(Some(self.0.as_raw_fd()), name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()
    }

    /// The names in this directory that `wanted` accepts, among the first [`NAMES`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn names(&self, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<OsString>> {
        // Reading needs a descriptor of its own: this one is O_PATH.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let own = self.open(Path::new("."), flags, Mode::empty())?;
        let mut reader = Dir::from_fd(own.into_raw_fd())?;
        let mut names = Vec::new();
        for entry in reader.iter().take(NAMES) {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && wanted(name) {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// A path that always leads to this directory, for calls that accept no descriptor.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Flags for opening directories, in order to look up names in them.
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// The path of a file in `var/log`, split into the trusted directory, the untrusted directory below it, and
/// the name.
pub struct Place<'a> {
    var_log: &'a Path,
    directory: &'a Path,
    /// The name of the file, in the directory that [`Place::open`] returns.
    pub name: &'a OsStr,
}

impl<'a> Place<'a> {
    /// A log: `var/log/pods/<pod>/<container>/<file>`.
    pub fn of_log(path: &'a Path) -> io::Result<Place<'a>> {
        Place::below(path, 4)
    }

    /// A link to a log: `var/log/containers/<link>`.
    pub fn of_link(path: &'a Path) -> io::Result<Place<'a>> {
        Place::below(path, 2)
    }

    fn below(path: &'a Path, levels: usize) -> io::Result<Place<'a>> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let var_log = path.ancestors().nth(levels).ok_or_else(wrong)?;
        let directory =
            path.parent().and_then(|parent| parent.strip_prefix(var_log).ok()).ok_or_else(wrong)?;
        Ok(Place { var_log, directory, name: path.file_name().ok_or_else(wrong)? })
    }

    /// Opens the directory of the file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(&self) -> io::Result<Directory> {
        Directory::trusted(self.var_log)?.enter(self.directory)
    }

    /// Opens the directory of the file, and creates the missing parts of it. Also returns whether the
    /// directory itself was created, so that it is empty.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make(&self) -> io::Result<(Directory, bool)> {
        Directory::trusted(self.var_log)?.make(self.directory)
    }
}

/// Creates the two log directories. A link in the place of one is left alone and reported: no log is written
/// through it, and pods run without logs.
///
/// # Errors
/// `var/log` cannot be opened.
pub fn prepare(paths: &Paths) -> io::Result<()> {
    let var_log = Directory::trusted(&paths.var_log())?;
    for name in [PODS, LINKS] {
        if let Err(error) = var_log.make(Path::new(name)) {
            log::error!(
                "no log is written to {}: {error}; it must be a directory (something else may be mounted \
                 there), since pods with a hostPath can replace a link",
                paths.var_log().join(name).display()
            );
        }
    }
    Ok(())
}

/// Removes the logs of those runs of a container that have a lower number.
///
/// # Errors
/// A log or link could not be removed.
pub fn remove_earlier_runs(
    paths: &Paths,
    (namespace, pod, uid): (&str, &str, &str),
    container: &str,
    number: u32,
) -> io::Result<()> {
    let logs = paths.pod_logs(namespace, pod, uid).join(container).join("0.log");
    let Some(directory) = if_exists(Place::of_log(&logs)?.open())? else { return Ok(()) };
    for name in directory.names(|_| true)? {
        // `<number>.log`, or a rotated `<number>.log.<time>`.
        let of = name.to_str().and_then(|name| name.split('.').next()?.parse::<u32>().ok());
        if of.is_some_and(|of| of < number) {
            directory.remove(&name)?;
        }
    }
    remove_dead_links(paths, &format!("{pod}_{namespace}_{container}-"))
}

/// Removes the logs of a pod and the links to them.
///
/// # Errors
/// A log or link could not be removed.
pub fn remove_pod(paths: &Paths, namespace: &str, pod: &str, uid: &str) -> io::Result<()> {
    let logs = paths.pod_logs(namespace, pod, uid);
    if let (Some(pods), Some(name)) = (enter(paths, PODS)?, logs.file_name()) {
        volume::remove_in(&pods.0, name, MAX_REMOVED)?;
    }
    remove_dead_links(paths, &format!("{pod}_{namespace}_"))
}

/// Names of the pods' log directories, `<namespace>_<pod>_<uid>`.
///
/// # Errors
/// The directory of the logs cannot be read.
pub fn pods(paths: &Paths) -> io::Result<Vec<OsString>> {
    enter(paths, PODS)?.map_or(Ok(Vec::new()), |pods| pods.names(|_| true))
}

/// Removes links whose name begins with `prefix` and that lead to a missing log. Other links are not
/// nodlet's.
///
/// # Errors
/// A link could not be removed.
pub fn remove_dead_links(paths: &Paths, prefix: &str) -> io::Result<()> {
    let (Some(links), Some(pods)) = (enter(paths, LINKS)?, enter(paths, PODS)?) else { return Ok(()) };
    let logs = paths.logs();
    for name in links.names(|name| name.starts_with(prefix.as_bytes()))? {
        let target = links.target(&name);
        // Do not follow the link to its target: that may be on a server that does not answer.
        let Some(log) = target.as_deref().and_then(|target| target.strip_prefix(&logs).ok()) else {
            continue;
        };
        let directory = log.parent().map(|directory| pods.enter(directory));
        let is_file =
            |found: FileStat| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        let state = directory.and_then(Result::ok).and_then(|directory| directory.state(log.file_name()?));
        if !state.is_some_and(is_file) {
            links.remove(&name)?;
        }
    }
    Ok(())
}

fn enter(paths: &Paths, name: &str) -> io::Result<Option<Directory>> {
    if_exists(Directory::trusted(&paths.var_log())?.enter(Path::new(name)))
}

#[cfg(test)]
mod tests;
