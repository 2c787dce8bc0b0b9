//! Hides the machine's cgroups from libcontainer.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nodlet_host::launch::CgroupPaths;

use crate::sys::{self, used_up};

const CGROUPS: &str = "/sys/fs/cgroup";

/// Leaves libcontainer only the container's own cgroup, in which the helper is already, and lets what it writes there go
/// to files of `view`. Without any cgroup it would look for each of a dozen v1 controllers, which is a third of the time of
/// a start. On a host with v2 alone, a view of the container's own cgroup is made for its /sys/fs/cgroup; returns its path.
pub(super) fn hide(cgroup: &CgroupPaths, view: &Path) -> io::Result<Option<PathBuf>> {
    let unified =
        nix::sys::statfs::statfs(CGROUPS)?.filesystem_type() == nix::sys::statfs::CGROUP2_SUPER_MAGIC;
    let mut own = None;
    if unified && cgroup.v1_tasks.is_empty() {
        // The helper is in the container's leaf, which thus becomes the root of the view.
        unshare(CloneFlags::CLONE_NEWCGROUP).map_err(|error| used_up(error.into()))?;
        let directory = view.join("own");
        fs::create_dir(&directory)?;
        mount(Some("cgroup"), &directory, Some("cgroup2"), MsFlags::empty(), None::<&str>)?;
        own = Some(directory);
    }
    let leaf = CString::new(cgroup.unified.as_os_str().as_bytes())?;
    let leaf = sys::clone_mount(None, &leaf, false)?;
    umount2(CGROUPS, MntFlags::MNT_DETACH)?;
    sys::attach_mount(leaf.as_fd(), Path::new(CGROUPS))?;
    for name in ["cgroup.procs", "cgroup.kill"] {
        let sink = view.join(name);
        File::create(&sink)?;
        mount(Some(&sink), &Path::new(CGROUPS).join(name), None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    }
    Ok(own)
}
