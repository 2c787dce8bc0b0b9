//! `hostPath`: a path of the machine itself, checked and sometimes made, never
//! chowned and never removed.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::spec::volume::HostPathType;

use super::VolumeError;

/// Holds `path` against `hostPath.type`.
pub(super) fn check(path: &Path, kind: HostPathType) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Create { path: path.to_owned(), source };
    let found = fs::metadata(path).ok().map(|metadata| metadata.file_type());
    let right = |right: bool, wanted| {
        if right { Ok(()) } else { Err(VolumeError::HostPathType { path: path.to_owned(), wanted }) }
    };
    match kind {
        // A kubelet does not look, and the runtimes below it make a directory.
        HostPathType::Unset if found.is_some() => Ok(()),
        HostPathType::Unset | HostPathType::DirectoryOrCreate => match found {
            Some(found) => right(found.is_dir(), "a directory"),
            None => {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(failed)?;
                // The umask has had its say; Kubernetes promises the mode.
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed)
            }
        },
        HostPathType::FileOrCreate => match found {
            Some(found) => right(found.is_file(), "a file"),
            None => {
                OpenOptions::new().write(true).create_new(true).mode(0o644).open(path).map_err(failed)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(failed)
            }
        },
        HostPathType::Directory => right(found.is_some_and(|found| found.is_dir()), "a directory"),
        HostPathType::File => right(found.is_some_and(|found| found.is_file()), "a file"),
        HostPathType::Socket => right(found.is_some_and(|found| found.is_socket()), "a socket file"),
        HostPathType::CharDevice => {
            right(found.is_some_and(|found| found.is_char_device()), "a character device")
        }
        HostPathType::BlockDevice => {
            right(found.is_some_and(|found| found.is_block_device()), "a block device")
        }
    }
}
