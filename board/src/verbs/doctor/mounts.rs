//! The mounts of this process, from /proc/self/mountinfo.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The mount ID.
    id: u32,
    /// The ID of the mount that this one is on; its own ID if there is none.
    parent: u32,
    /// The device as `major:minor`: `179:2`.
    pub(super) device: String,
    pub(super) point: PathBuf,
    pub(super) kind: String,
    /// Whether mounts in it reach other mount namespaces.
    pub(super) is_shared: bool,
    /// Options of the mount and of the file system.
    options: Vec<String>,
}

impl Mount {
    /// Whether this is the kernel's own mount of the file system into which it unpacked its initramfs. No
    /// process can leave that mount by pivot_root, whereas it can leave a bind mount of it.
    pub(super) fn is_initial_root(&self) -> bool {
        self.kind == "rootfs" && self.parent == self.id
    }

    /// Whether the mount has this option.
    pub(super) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }
}

/// Parses proc_pid_mountinfo(5). Skips malformed lines.
pub(super) fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Mount> {
    // id parent major:minor root mount-point options [optional…] - type source super-options
    let (left, right) = line.split_once(" - ")?;
    let left: Vec<&str> = left.split(' ').collect();
    let right: Vec<&str> = right.split(' ').collect();
    let options = [left.get(5)?, right.get(2)?];
    let is_shared = left.iter().skip(6).any(|field| field.starts_with("shared:"));
    Some(Mount {
        id: left.first()?.parse().ok()?,
        parent: left.get(1)?.parse().ok()?,
        device: (*left.get(2)?).to_owned(),
        point: unescape(left.get(4)?).into(),
        kind: (*right.first()?).to_owned(),
        is_shared,
        options: options.iter().flat_map(|options| options.split(',')).map(str::to_owned).collect(),
    })
}

/// Decodes the three octal digits by which mountinfo writes space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The mount that is this process's root. Other mounts at `/` may lie beneath it or over it.
pub(super) fn root(mounts: &[Mount]) -> Option<&Mount> {
    let root = File::open("/").ok()?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", root.as_raw_fd())).ok()?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u32>().ok())?;
    mounts.iter().find(|mount| mount.id == id)
}

/// The mount that a path is on: the nearest above the path, and the last of several at the same place.
pub(super) fn of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_the_mount_point_nearest_above_it() {
        let mounts = parse(
            "22 1 179:2 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
             23 22 179:3 / /var rw,noatime - ext4 /dev/mmcblk0p3 rw,sync\n\
             24 22 0:20 / /a\\040b rw - tmpfs tmpfs rw\n\
             25 22 179:4 / /var rw - f2fs /dev/mmcblk0p4 ro\n\
             garbage\n1 2 - x\n",
        );
        for (path, kind, device) in [
            ("/", "ext4", "179:2"),
            ("/variable", "ext4", "179:2"),
            ("/var/lib", "f2fs", "179:4"),
            ("/a b/c", "tmpfs", "0:20"),
        ] {
            let mount = of(&mounts, Path::new(path)).unwrap();
            assert_eq!((mount.kind.as_str(), mount.device.as_str()), (kind, device), "{path}");
        }
        assert!(mounts[1].has("noatime") && mounts[1].has("sync") && !mounts[0].has("sync"));
        assert!(mounts[0].is_shared && !mounts[1].is_shared);
        assert_eq!(of(&[], Path::new("/")), None);
    }

    #[test]
    fn the_root_is_one_of_the_mounts() {
        let mounts = parse(&fs::read_to_string("/proc/self/mountinfo").unwrap());
        assert_eq!(root(&mounts).map(|mount| mount.point.as_path()), Some(Path::new("/")));
        assert_eq!(root(&[]), None);
    }
}
