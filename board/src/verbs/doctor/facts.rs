//! The facts about the machine that several checks use.

use std::fs;
use std::path::{Path, PathBuf};

use super::config::{self, Config, Version};
use super::{mounts, probe};

/// The facts about the machine that several checks use.
pub(super) struct Machine {
    pub(super) root: PathBuf,
    pub(super) is_root: bool,
    pub(super) release: String,
    pub(super) version: Option<Version>,
    /// The configuration of the running kernel, and the file that it was read from.
    pub(super) config: Option<(PathBuf, Config)>,
    pub(super) command_line: String,
    /// The content of /proc/filesystems.
    pub(super) filesystems: String,
    pub(super) mounts: Vec<mounts::Mount>,
    /// The nearest existing directory at or above the one for images and pods.
    pub(super) data: PathBuf,
    /// A directory for trials on the same file system; `None` unless run as root.
    pub(super) scratch: Option<probe::Scratch>,
}

impl Machine {
    pub(super) fn observe(root: &Path) -> Machine {
        // An unreadable file counts as empty: the check that needs its content reports that.
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let release = text("/proc/sys/kernel/osrelease").trim().to_owned();
        let is_root = nix::unistd::geteuid().is_root();
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let data = nearest(&root.join("var/lib/nodlet"));
        Machine {
            is_root,
            version: Version::parse(&release),
            config: config::running(&release),
            command_line: text("/proc/cmdline"),
            filesystems: text("/proc/filesystems"),
            mounts: mounts::parse(&text("/proc/self/mountinfo")),
            scratch: if is_root { probe::Scratch::new(&data).ok() } else { None },
            root,
            release,
            data,
        }
    }
}

/// The nearest existing directory at or above a path.
pub(super) fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_directory_that_exists_is_looked_at() {
        assert_eq!(nearest(Path::new("/no/such/directory")), Path::new("/"));
        assert_eq!(nearest(Path::new("/proc/self/none")), Path::new("/proc/self"));
    }
}
