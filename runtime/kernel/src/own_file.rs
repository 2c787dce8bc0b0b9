//! Opens files of nodlet's own directories. Another program, a damaged file system or a container may have put something
//! else in the place of such a file: a FIFO or a device blocks whoever opens it, and a link leads to a file of the
//! machine. No function here blocks in `open`, follows a link at the end of a path, or opens anything but a regular file.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file to read it.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a file with these options, which must not contain `truncate` or `custom_flags`: [`File::set_len`] empties a file
/// that is known to be regular.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match options.custom_flags(flags).open(path) {
        // A link, a FIFO or socket that nobody reads, or a directory that is opened for writing.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::EISDIR)) => {
            return Err(irregular());
        }
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(irregular());
    }
    Ok(file)
}

/// Opens a file of the machine, such as `/etc/resolv.conf`, to read it. Unlike a file of nodlet, it may be a link.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open_linked(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        // A socket, or a device without a driver.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Err(irregular()),
        opened => opened?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

/// Opens a directory, to lock or sync it. It may be a link.
///
/// # Errors
/// The directory cannot be opened, or something else is in its place.
pub fn open_directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

/// Returns whether a directory of nodlet exists. Something else in its place is refused: a FIFO would block whoever opens
/// it, and what a link leads to is not nodlet's, which removes the content of such directories.
///
/// # Errors
/// Something else is there, or it cannot be looked at; the first error has the path.
pub fn is_directory(path: &Path) -> io::Result<bool> {
    let advice = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Ok(true),
        Ok(found) if found.is_symlink() => ", or mount the other directory there (mount --bind)",
        Ok(_) => "",
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let message = format!("{}: it is not a directory: remove it{advice}", path.display());
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Removes what is in the place of a directory whose content nodlet makes anew: only a directory stays. A link is removed,
/// and not what it leads to. Returns whether anything was removed.
///
/// # Errors
/// It cannot be looked at or removed.
pub fn clear_directory(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    Ok(if_exists(std::fs::remove_file(path))?.is_some())
}

/// Removes what is in the place of a file whose content nodlet makes anew, a directory with all its content included: only
/// a regular file stays. Returns whether anything was removed.
///
/// # Errors
/// It cannot be looked at or removed.
pub fn clear_file(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(false),
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => {
            found?;
            clear_directory(path)
        }
    }
}

fn irregular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file: remove it")
}

/// Turns the error of a file that does not exist into `None`.
///
/// # Errors
/// Any other error of `result`.
pub fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Whether an error of this module says that something is not a regular file.
#[must_use]
pub fn is_irregular(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none()
}

/// What the file system knows about a file or a directory. A link at the end of the path is not followed.
///
/// # Errors
/// There is neither.
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    let found = std::fs::symlink_metadata(path)?;
    if found.is_file() || found.is_dir() { Ok(found) } else { Err(irregular()) }
}

/// Reads a file.
///
/// # Errors
/// The file cannot be read, or is not a regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file of UTF-8 that an operator may have replaced by a link ([`open_linked`]).
///
/// # Errors
/// The file cannot be read, is not a regular file, or is not UTF-8.
pub fn read_linked(path: &Path) -> io::Result<String> {
    io::read_to_string(open_linked(path)?)
}

/// Reads a file of UTF-8.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file, which is created if it does not exist.
///
/// # Errors
/// The file cannot be written, or is not a regular file.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = open_with(path, OpenOptions::new().write(true).create(true))?;
    file.set_len(0)?;
    file.write_all(bytes.as_ref())
}

/// Makes a directory and those above it, unless it exists. What lies in the place of the directory is not followed; the
/// directories above it may be links.
///
/// # Errors
/// The directory cannot be made, or something else is in its place; the error has its path.
pub fn make_directory(path: &Path) -> io::Result<()> {
    if is_directory(path)? { Ok(()) } else { std::fs::create_dir_all(path) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_link_in_the_place_of_a_directory_is_refused_by_name() {
        let directory = std::env::temp_dir().join(format!("nodlet-own-directory-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let (own, link, file) = (directory.join("own"), directory.join("link"), directory.join("file"));
        for _ in 0..2 {
            make_directory(&own).expect("it is new, and then it is a directory");
        }
        symlink(&own, &link).expect("a link");
        write(&file, "").expect("it is new");
        assert!(metadata(&own).is_ok_and(|found| found.is_dir()));
        assert!(metadata(&file).is_ok_and(|found| found.is_file()));
        assert!(metadata(&link).is_err_and(|error| is_irregular(&error)));
        for (path, advice) in [(&link, ", or mount the other directory there (mount --bind)"), (&file, "")] {
            let error = make_directory(path).expect_err("it is not a directory").to_string();
            assert_eq!(error, format!("{}: it is not a directory: remove it{advice}", path.display()));
        }
        let _ = std::fs::remove_dir_all(&directory);
    }

    #[test]
    fn what_is_in_the_place_of_scratch_files_is_removed_and_no_target_of_a_link() {
        let directory = std::env::temp_dir().join(format!("nodlet-own-scratch-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let place = |name: &str| directory.join(name);
        let kept = place("kept");
        let put = || {
            std::fs::create_dir_all(kept.join("within")).expect("a directory");
            write(&place("file"), "").expect("it is new");
            nix::unistd::mkfifo(&place("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
            symlink(&kept, place("link")).expect("a link");
            symlink("nothing", place("dangling")).expect("a link");
        };
        let there = |name: &str| std::fs::symlink_metadata(place(name)).is_ok();
        put();
        for name in ["file", "fifo", "link", "dangling"] {
            assert!(clear_directory(&place(name)).expect("it can be removed") && !there(name), "{name}");
        }
        assert!(!clear_directory(&kept).expect("it stays") && kept.join("within").exists());
        put();
        for name in ["fifo", "link", "dangling"] {
            assert!(clear_file(&place(name)).expect("it can be removed") && !there(name), "{name}");
        }
        assert!(!clear_file(&place("file")).expect("it stays") && there("file"));
        assert!(
            kept.join("within").exists() && clear_file(&kept).expect("it can be removed") && !kept.exists()
        );
        for clear in [clear_directory, clear_file] {
            assert!(!clear(&place("absent")).expect("nothing is there"));
        }
        let _ = std::fs::remove_dir_all(&directory);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_and_never_blocks() {
        let directory = std::env::temp_dir().join(format!("nodlet-own-file-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a scratch directory");
        let target = directory.join("target");
        write(&target, "kept").expect("it is new");
        write(&target, "old").expect("it is a file");
        assert_eq!(read_to_string(&target).expect("it is a file"), "old");
        let place = |name: &str| directory.join(name);
        nix::unistd::mkfifo(&place("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        symlink(&target, place("link")).expect("a link");
        symlink("nothing", place("dangling")).expect("a link");
        symlink("/dev/zero", place("device")).expect("a link");
        std::fs::create_dir(place("directory")).expect("a directory");
        let _socket = UnixListener::bind(place("socket")).expect("a socket");
        for name in ["fifo", "link", "dangling", "device", "directory", "socket"] {
            let path = place(name);
            assert!(read(&path).is_err_and(|error| is_irregular(&error)), "{name} was read");
            assert!(write(&path, "new").is_err_and(|error| is_irregular(&error)), "{name} was written");
        }
        assert!(read(Path::new("/dev/zero")).is_err());
        for name in ["fifo", "device", "directory", "socket"] {
            let opened = open_linked(&place(name));
            assert!(opened.is_err_and(|error| is_irregular(&error)), "{name} was read");
        }
        assert!(open_linked(&place("link")).is_ok());
        for name in ["fifo", "target", "socket"] {
            assert!(open_directory(&place(name)).is_err(), "{name} was opened");
        }
        assert!(open_directory(&directory).is_ok() && is_directory(&directory).is_ok_and(|there| there));
        assert!(
            is_directory(&place("fifo")).is_err() && is_directory(&place("absent")).is_ok_and(|there| !there)
        );
        assert_eq!(read_to_string(&target).expect("it is a file"), "old");
        assert!(!place("nothing").exists());
        let _ = std::fs::remove_dir_all(&directory);
    }
}
