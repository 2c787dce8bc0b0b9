//! `fsGroup` of a volume that exists already: the group of all its files, and the permissions of that group.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, ResolveFlag};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstat};
use nix::unistd::{Gid, fchownat};
use nodlet_kernel::file::{open, open_in};
use nodlet_kernel::process::kept;

use super::VolumeError;

/// Files of one volume, at most: more would hold the pod up for minutes.
const ENTRIES: usize = 1_000_000;

/// Bytes of the paths of directories that wait for their turn, at most: other pods choose these paths.
const PENDING_BYTES: usize = 4 << 20;

const TOO_MANY: &str = "it has more than 1000000 files; give them to the group beforehand and set \
    fsGroupChangePolicy: OnRootMismatch, or remove fsGroup";
const TOO_DEEP: &str = "the paths of its directories have more than 4 MiB; give the files to the group beforehand and set \
    fsGroupChangePolicy: OnRootMismatch, or remove fsGroup";

/// Bits that the group gets on files, and further ones on directories (`SetVolumeOwnership`).
const FILE: Mode = Mode::from_bits_truncate(0o660);
const DIRECTORY: Mode = Mode::from_bits_truncate(0o2110);

/// Gives all files below `root` to a group, and `root` last: if it has the group already, nothing is to be done unless
/// `always` (`fsGroupChangePolicy`). Other pods may write there meanwhile, so no link is followed and no mount is entered.
pub(super) fn give_to(root: &Path, group: u32, always: bool) -> Result<(), VolumeError> {
    let place = root;
    let failed = |below: &Path| {
        let path = place.components().chain(below.components().skip_while(|part| *part == Component::CurDir));
        let path: PathBuf = path.collect();
        move |error: Errno| VolumeError::Group { path, source: explain(error) }
    };
    let too_large =
        |limit: &str| VolumeError::Group { path: place.to_owned(), source: io::Error::other(limit) };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let top = Path::new(".");
    let root = open(root, flags).map_err(failed(top))?;
    let found = fstat(root.as_raw_fd()).map_err(failed(top))?;
    if !always && found.st_gid == group && Mode::from_bits_truncate(found.st_mode).contains(FILE | DIRECTORY)
    {
        return Ok(());
    }
    let (mut pending, mut entries, mut pending_bytes) = (vec![PathBuf::from(".")], 0, 1);
    while let Some(path) = pending.pop() {
        pending_bytes -= path.as_os_str().len();
        let resolve =
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        // Another pod may have removed or replaced it.
        let Ok(opened) = open_in(&root, &path, flags, resolve) else { continue };
        let mut directory = Dir::from(opened).map_err(failed(&path))?;
        let at = kept(directory.as_raw_fd());
        for entry in directory.iter() {
            let entry = entry.map_err(failed(&path))?;
            let name = entry.file_name();
            if [&b"."[..], b".."].contains(&name.to_bytes()) {
                continue;
            }
            entries += 1;
            if entries > ENTRIES {
                return Err(too_large(TOO_MANY));
            }
            // The root of a mount is not the volume's.
            let here = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV;
            let Ok(found) = open_in(at, name, OFlag::O_PATH | OFlag::O_NOFOLLOW, here) else { continue };
            let below = path.join(OsStr::from_bytes(name.to_bytes()));
            if change(found.as_raw_fd(), group).map_err(failed(&below))? {
                pending_bytes += below.as_os_str().len();
                if pending_bytes > PENDING_BYTES {
                    return Err(too_large(TOO_DEEP));
                }
                pending.push(below);
            }
        }
    }
    change(root.as_raw_fd(), group).map(drop).map_err(failed(top))
}

/// The reaction to an error that the files of a volume cause.
fn explain(error: Errno) -> io::Error {
    let remedy = match error {
        Errno::EPERM => {
            "the file is immutable or append-only (remove that with chattr -ia), or its file system has no groups: remove \
             fsGroup"
        }
        Errno::EROFS => {
            "the file system is mounted read-only: set readOnly: true for the volume, or remove fsGroup"
        }
        _ => return error.into(),
    };
    io::Error::new(io::Error::from(error).kind(), format!("{}: {remedy}", io::Error::from(error)))
}

/// Gives one file to the group. Returns whether it is a directory.
fn change(file: RawFd, group: u32) -> nix::Result<bool> {
    let found = fstat(file)?;
    let kind = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
    let is_directory = kind == SFlag::S_IFDIR;
    if found.st_gid != group {
        fchownat(Some(file), "", None, Some(Gid::from_raw(group)), AtFlags::AT_EMPTY_PATH)?;
    }
    // A link has no permissions.
    if kind != SFlag::S_IFLNK {
        let old = Mode::from_bits_truncate(found.st_mode);
        let new = old | FILE | if is_directory { DIRECTORY } else { Mode::empty() };
        if new != old || found.st_gid != group {
            let path = format!("/proc/self/fd/{file}");
            fchmodat(None, path.as_str(), new, FchmodatFlags::FollowSymlink)?;
        }
    }
    Ok(is_directory)
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::assert_contains;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn all_files_below_and_nothing_elsewhere_get_the_group() {
        let root = tempfile::tempdir().expect("a scratch directory");
        let (inside, outside) = (root.path().join("volume"), root.path().join("outside"));
        fs::create_dir_all(inside.join("a/b")).expect("it is new");
        fs::create_dir_all(&outside).expect("it is new");
        for file in [inside.join("a/b/file"), outside.join("file")] {
            fs::write(&file, "x").expect("it can be written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
        }
        symlink(&outside, inside.join("a/link")).expect("it is new");
        symlink(outside.join("file"), inside.join("file-link")).expect("it is new");
        give_to(&inside, 4242, false).expect("it is ours");
        let of = |path: &Path| {
            let found = fs::symlink_metadata(path).expect("it is there");
            (found.gid(), found.mode() & 0o7777)
        };
        assert_eq!(of(&inside.join("a/b/file")), (4242, 0o660));
        for directory in [inside.clone(), inside.join("a"), inside.join("a/b")] {
            assert_eq!((of(&directory).0, of(&directory).1 & 0o2770), (4242, 0o2770));
        }
        assert_eq!(of(&inside.join("file-link")).0, 4242);
        assert_eq!(of(&outside.join("file")).1, 0o600);
        assert_ne!((of(&outside).0, of(&outside.join("file")).0), (4242, 4242));
        // A later file of another group is only found by a search.
        fs::write(inside.join("a/new"), "x").expect("it can be written");
        std::os::unix::fs::chown(inside.join("a/new"), None, Some(7)).expect("it is ours");
        for (always, group) in [(false, 7), (true, 4242)] {
            give_to(&inside, 4242, always).expect("it is ours");
            assert_eq!(of(&inside.join("a/new")).0, group);
        }
    }

    #[test]
    fn the_file_that_cannot_be_given_and_the_remedy_are_named() {
        let root = tempfile::tempdir().expect("a scratch directory");
        fs::create_dir_all(root.path().join("a/b")).expect("it is new");
        let fixed = root.path().join("a/b/fixed");
        fs::write(&fixed, "x").expect("it can be written");
        let file = fs::File::open(&fixed).expect("it is there");
        let set = |flags| rustix::fs::ioctl_setflags(&file, flags);
        set(rustix::fs::IFlags::IMMUTABLE).expect("this file system has immutable files");
        let refused = give_to(root.path(), 4242, false).expect_err("the file is immutable");
        set(rustix::fs::IFlags::empty()).expect("it is ours");
        let message = crate::error::chain(&refused).to_string();
        assert_contains(&message, format!("give {fixed:?} to fsGroup: Operation not permitted"));
        assert!(message.contains("chattr -ia"), "{message}");
    }
}
