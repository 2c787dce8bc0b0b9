//! Measures an emptyDir on disk by the quota of a project, where the file system accounts projects (ext4 with the features
//! `quota` and `project`, XFS mounted with `prjquota`): one question to the kernel in place of a walk over all files.
//!
//! As in a kubelet, the quota only measures and limits nothing, and only pods with a user namespace of their own have one:
//! elsewhere, root of a container may give its files to another project. The project of a volume is that of its directory,
//! which new files in it inherit; no other file records it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nodlet_kernel::ioctl::{FileAttributes, Quota, file_attributes, project_quota, set_file_attributes};

/// `FS_XFLAG_PROJINHERIT`: new files belong to the project of the directory.
const INHERIT: u32 = 0x200;

/// Makes the directory of a new volume a project, so that [`usage`] can measure it. Does nothing if it has files already,
/// or if the file system does not account projects.
pub fn account(directory: &Path) {
    let _ = try_account(directory);
}

fn try_account(directory: &Path) -> io::Result<()> {
    let file = open(directory)?;
    let mut attributes = file_attributes(&file)?;
    // Another project is that of the machine's owner.
    if attributes.project != 0 || fs::read_dir(directory)?.next().is_some() {
        return Ok(());
    }
    let project = project_of(&file)?;
    used(&file, project)?;
    (attributes.project, attributes.flags) = (project, attributes.flags | INHERIT);
    Ok(set_file_attributes(&file, attributes)?)
}

/// What the files of a volume use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// What the files of a volume use. `None` if it is no project of nodlet.
pub(crate) fn usage(directory: &Path) -> Option<Used> {
    let file = open(directory).ok()?;
    let Quota { bytes, inodes, .. } = used(&file, project_with_quota(&file)?).ok()?;
    Some(Used { bytes, inodes })
}

/// The project of a volume whose usage is known.
pub(crate) fn project(directory: &Path) -> Option<u32> {
    let file = open(directory).ok()?;
    let project = project_with_quota(&file)?;
    used(&file, project).ok().map(|_| project)
}

/// The project of a regular file, which may have no name any more.
pub(crate) fn project_of_file(path: &Path) -> Option<u32> {
    // A container may have a lease on its file, for whose end nobody waits.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file_attributes(&file).ok().map(|attributes| attributes.project)
}

/// The project that [`account`] has given to a directory.
fn project_with_quota(directory: &File) -> Option<u32> {
    let FileAttributes { project, flags, .. } = file_attributes(directory).ok()?;
    (flags & INHERIT != 0 && project == project_of(directory).ok()?).then_some(project)
}

fn open(directory: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(directory)
}

/// The project of a directory: its inode number, in a range that no tool uses by default.
fn project_of(directory: &File) -> io::Result<u32> {
    Ok(0x4000_0000 | (directory.metadata()?.ino() & 0x3fff_ffff) as u32)
}

/// What the files of a project use. XFS has no record of a project that never had a file (`ENOENT`), which ext4
/// creates when it is asked.
///
/// # Errors
/// The file system does not account projects, or the kernel is older than Linux 5.14 (`ENOSYS`).
fn used(directory: &File, project: u32) -> nix::Result<Quota> {
    match project_quota(directory, project) {
        Err(nix::Error::ENOENT) => Ok(Quota::default()),
        answered => answered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_project_is_not_measured() {
        let directory = std::env::temp_dir().join(format!("nodlet-quota-{}", std::process::id()));
        fs::create_dir(&directory).expect("it can be made");
        assert_eq!(usage(&directory), None);
        fs::write(directory.join("file"), "x").expect("it can be written");
        account(&directory);
        assert_eq!(usage(&directory), None);
        fs::remove_dir_all(&directory).expect("it can be removed");
        assert_eq!(usage(&directory), None);
    }
}
