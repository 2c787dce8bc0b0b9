//! Paths in the image and in volumes: containers can replace what is on them at any time, so that nothing here follows
//! a link out of the directory in which it begins.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use nix::sys::stat::Mode;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::sys::{self, Resolve};

/// Upper bound of the links on one path, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// Opens `path` below a volume without leaving it. Missing directories are made with the mode of the volume's
/// root; they inherit its setgid bit. A link that leads out is rejected, not reinterpreted, since it means
/// another file.
pub(crate) fn open_sub_path(volume: BorrowedFd, path: &Path) -> io::Result<File> {
    let leaves = |error: io::Error| match error.raw_os_error() {
        Some(libc::EXDEV) => io::Error::new(io::ErrorKind::PermissionDenied, "it leads out of the volume"),
        _ => error,
    };
    let mode = rustix::fs::fstat(volume)?.st_mode & 0o7777;
    let mut reached = PathBuf::new();
    let mut directory = sys::open_in(volume, Path::new("."), libc::O_PATH, Resolve::Beneath)?;
    for component in path.components() {
        match component {
            Component::Normal(name) => reached.push(name),
            Component::CurDir => continue,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it must be relative, without \"..\"",
                ));
            }
        }
        // Always from the volume's root: a link may lead up, as long as it stays inside.
        let next = match sys::open_in(volume, &reached, libc::O_PATH, Resolve::Beneath).map_err(leaves) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = reached.file_name().map(Path::new).unwrap_or(Path::new("."));
                // Made with its mode at once: a moment later a container may have put another directory
                // there. The umask does not apply to the volume.
                let umask = nix::sys::stat::umask(Mode::empty());
                // A link there is EEXIST, not followed.
                let result = rustix::fs::mkdirat(&directory, name, mode.into());
                nix::sys::stat::umask(umask);
                match result {
                    Err(Errno::EXIST) | Ok(()) => {}
                    Err(error) => return Err(error.into()),
                }
                sys::open_in(directory.as_fd(), name, libc::O_PATH, Resolve::NoLinks)
                    .map_err(describe_link)?
            }
            other => other?,
        };
        directory = next;
    }
    Ok(directory)
}

/// Resolves the links of a path in the root, as far as it exists; the rest stays as it is written.
pub(crate) fn place(root: BorrowedFd, path: &Path) -> io::Result<PathBuf> {
    let mut place = PathBuf::from("/");
    let mut remaining: Vec<PathBuf> = Vec::new();
    let push = |remaining: &mut Vec<PathBuf>, path: &Path| {
        remaining.extend(path.components().rev().map(|component| PathBuf::from(component.as_os_str())));
    };
    push(&mut remaining, path);
    let (mut links, mut missing) = (0, false);
    while let Some(name) = remaining.pop() {
        match name.components().next() {
            Some(Component::Normal(_)) => {}
            Some(Component::ParentDir) => {
                place.pop();
                continue;
            }
            Some(Component::RootDir) => {
                place = PathBuf::from("/");
                continue;
            }
            Some(Component::CurDir | Component::Prefix(_)) | None => continue,
        }
        place.push(&name);
        if missing {
            continue;
        }
        let relative = place.strip_prefix("/").unwrap_or(&place);
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        match sys::open_in(root, relative, flags, Resolve::NoLinks) {
            Ok(found) if found.metadata()?.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let leads = sys::read_link(found.as_fd())?;
                place.pop();
                push(&mut remaining, &leads);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing = true,
            Err(error) => return Err(error),
        }
    }
    Ok(place)
}

/// Opens a mount point below `base` and through no link; makes it if it is missing, with its parent
/// directories.
pub(crate) fn mount_point(base: BorrowedFd, path: &Path, is_directory: bool) -> io::Result<File> {
    let open = |directory: BorrowedFd, path: &Path| {
        sys::open_in(directory, path, libc::O_PATH, Resolve::NoLinks).map_err(describe_link)
    };
    if path.as_os_str().is_empty() {
        return open(base, Path::new("."));
    }
    match open(base, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    if is_directory {
        return make_directories(base, path);
    }
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let above = make_directories(base, above)?;
    let name = Path::new(name);
    // A link there is EEXIST, not followed. Another container of the pod starts at the same time.
    match rustix::fs::mknodat(&above, name, FileType::RegularFile, 0o644.into(), 0) {
        Err(Errno::EXIST) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    open(above.as_fd(), name)
}

/// Explains `ELOOP` to the author of a manifest.
pub(crate) fn describe_link(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "there is a symbolic link on the way to it, and what a container can write to is not trusted \
             to lead to a mount point; mount the volume elsewhere",
        ),
        _ => error,
    }
}

/// Opens an absolute path of the image with `root` as `/` for every link.
pub(crate) fn open_in_root(root: BorrowedFd, path: &Path, flags: i32) -> io::Result<File> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    sys::open_in(root, relative, flags, Resolve::InRoot)
}

/// Makes the missing directories of `path` below `base`, through no link, and returns the last one.
pub(crate) fn make_directories(base: BorrowedFd, path: &Path) -> io::Result<File> {
    let open = |directory: BorrowedFd, path: &Path| {
        sys::open_in(directory, path, libc::O_PATH | libc::O_DIRECTORY, Resolve::NoLinks)
    };
    let mut directory: Option<File> = None;
    for component in path.components() {
        let Component::Normal(name) = component else { continue };
        let name = Path::new(name);
        let above = directory.as_ref().map_or(base, |directory| directory.as_fd());
        let next = match open(above, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Another container of the pod starts at the same time.
                match rustix::fs::mkdirat(above, name, 0o755.into()) {
                    Err(Errno::EXIST) | Ok(()) => {}
                    Err(error) => return Err(error.into()),
                }
                open(above, name)?
            }
            other => other?,
        };
        directory = Some(next);
    }
    directory.map_or_else(|| open(base, Path::new(".")), Ok)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn a_link_that_is_swapped_meanwhile_leads_no_sub_path_out_of_its_volume() {
        let root = std::env::temp_dir().join(format!("nodlet-sub-path-{}", std::process::id()));
        let (volume, outside) = (root.join("volume"), root.join("outside"));
        fs::create_dir_all(volume.join("swapped/inner")).expect("it is new");
        fs::create_dir_all(outside.join("inner")).expect("it is new");
        std::os::unix::fs::symlink("../outside", volume.join("link")).expect("it is new");
        let [one, other] = ["swapped", "link"].map(|name| volume.join(name));
        let ends = AtomicBool::new(false);
        let identity = |path: &Path| fs::metadata(path).map(|found| found.ino()).expect("it is there");
        let (escape, escape_inner) = (identity(&outside), identity(&outside.join("inner")));
        let (mut opened, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let exchange = rustix::fs::RenameFlags::EXCHANGE;
                    let _ = rustix::fs::renameat_with(CWD, &one, CWD, &other, exchange);
                }
            });
            let base = sys::open_path(&volume).expect("it is there");
            for round in 0..20_000 {
                let path = format!("swapped/inner/new-{}", round % 50);
                let path = if round % 2 == 0 { "swapped/inner" } else { &path };
                match open_sub_path(base.as_fd(), Path::new(path)) {
                    Ok(found) => {
                        let found = found.metadata().expect("it is open").ino();
                        assert!(found != escape && found != escape_inner, "round {round}");
                        opened += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
        let made = fs::read_dir(outside.join("inner")).expect("it is there").count();
        assert_eq!(made, 0, "nothing is made outside");
        assert!(opened > 100 && refused > 100, "it was a race: {opened} opened, {refused} refused");
        fs::remove_dir_all(&root).expect("it can be removed");
    }
}
