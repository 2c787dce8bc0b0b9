//! A container's root as libcontainer expects it: /proc, /sys and /dev are directories of the image, /dev is made here,
//! and no volume covers them.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::dev::{DEV, failed_at};
use crate::error::StepError;
use crate::path::{describe_link, make_directories, open_in_root};
use crate::sys::{self, MountAttributes, Resolve};

/// Makes the container's /dev, in which libcontainer makes devices and links, and the directories on which it
/// mounts. `first` is the ID of the host that is ID 0 of the container. Returns /dev.
pub(crate) fn prepare_root(root: BorrowedFd, first: u32) -> Result<File, StepError> {
    for directory in ["/proc", "/sys", DEV] {
        // libcontainer mounts on no link, and does not report the reason.
        make_directories(root, Path::new(directory))
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ELOOP | libc::ENOTDIR) => {
                    io::Error::other("the image has something else there; it must be a directory or missing")
                }
                _ => error,
            })
            .map_err(failed_at(directory))?;
    }
    let on = |path: &str, kind: &str, flags: MsFlags, options: &str| -> io::Result<()> {
        let point = open_in_root(root, Path::new(path), libc::O_PATH | libc::O_DIRECTORY)?;
        let point = PathBuf::from(format!("/proc/self/fd/{}", point.as_raw_fd()));
        Ok(mount(Some(kind), &point, Some(kind), flags, Some(options))?)
    };
    let options = format!("mode=755,size=65536k,uid={first},gid={first}");
    on(DEV, "tmpfs", MsFlags::MS_NOSUID | MsFlags::MS_STRICTATIME, &options).map_err(failed_at(DEV))?;
    for directory in ["/dev/pts", "/dev/mqueue"] {
        make_directories(root, Path::new(directory)).map_err(failed_at(directory))?;
    }
    let options = format!("newinstance,ptmxmode=0666,mode=0620,gid={}", first + 5);
    on("/dev/pts", "devpts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, &options)
        .map_err(failed_at("/dev/pts"))?;
    open_in_root(root, Path::new(DEV), libc::O_PATH | libc::O_DIRECTORY).map_err(failed_at(DEV))
}

/// Attaches the /proc of a PID namespace that the container shares.
pub(crate) fn attach_proc(proc: BorrowedFd, root: BorrowedFd) -> Result<(), StepError> {
    let set = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    let attributes = MountAttributes { set, clear: libc::MOUNT_ATTR_RDONLY, ..Default::default() };
    sys::set_mount_attributes(proc, &attributes, false)
        .map_err(io::Error::from)
        .and_then(|()| sys::open_in(root, Path::new("proc"), libc::O_PATH, Resolve::NoLinks))
        .and_then(|point| Ok(sys::attach_mount_at(proc, point)?))
        .map_err(failed_at("/proc"))
}

/// Checks, after all volumes are attached, that libcontainer will see what was prepared: its mount points are
/// directories of the image, and /dev and a shared /proc are those that were attached.
pub(crate) fn check_prepared(
    root: BorrowedFd,
    dev: &File,
    proc: Option<BorrowedFd>,
) -> Result<(), StepError> {
    let of_root = nix::sys::stat::fstat(root.as_raw_fd()).map_err(io::Error::from);
    let device_of_root = of_root.map_err(failed_at("/"))?.st_dev;
    let is_prepared = |path: &str| -> io::Result<bool> {
        let relative = path.trim_start_matches('/');
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let actual = sys::open_in(root, Path::new(relative), flags, Resolve::NoLinks)?.metadata()?;
        match (path, proc) {
            (DEV, _) => {
                let prepared = dev.metadata()?;
                Ok((actual.dev(), actual.ino()) == (prepared.dev(), prepared.ino()))
            }
            ("/proc", Some(proc)) => Ok(actual.dev() == nix::sys::stat::fstat(proc.as_raw_fd())?.st_dev),
            _ => Ok(actual.dev() == device_of_root),
        }
    };
    for path in ["/proc", "/sys", DEV] {
        match is_prepared(path) {
            Ok(true) => {}
            Ok(false) => {
                let source = io::Error::other("a volume covers it");
                return Err(failed_at(path)(source));
            }
            Err(source) => return Err(failed_at(path)(describe_link(source))),
        }
    }
    Ok(())
}
