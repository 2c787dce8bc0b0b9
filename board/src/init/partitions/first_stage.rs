//! The first initramfs of a disk: loads the drivers of the medium, mounts the read-only root, and executes
//! the init of that root.
//!
//! The kernel's command line names the root: `root=PARTUUID=…`. A kernel with built-in drivers mounts it
//! itself and needs no initramfs; then this module does nothing.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::reboot::RebootMode;

use super::{Disk, Guid, finish, root_id};
use crate::boot::console::{say, take_console};
use crate::init::initramfs::{is_initial_root, load_modules};
use crate::init::process::{halt, start};

/// How long the drivers may take to find the medium: slow cards, and USB behind hubs.
const MEDIUM_WITHIN: Duration = Duration::from_secs(30);

/// How long the mount of the root may take. After that, the root counts as missing, and the board reboots.
const ROOT_WITHIN: Duration = Duration::from_secs(60);

const NEW_ROOT: &str = "/newroot";

/// The kernel's file systems: kind and place.
const MOUNTS: [(&str, &str); 3] = [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")];

/// Switches to the root file system that the command line names. Returns if there is none: this is already
/// that root, or the whole system is in the initramfs.
pub(in crate::init) fn run() {
    if !is_initial_root() {
        return;
    }
    let none = None::<&str>;
    for (kind, place) in MOUNTS {
        let _ = fs::create_dir_all(place);
        let _ = mount(Some(kind), place, Some(kind), MsFlags::empty(), none);
    }
    if root_id().is_some() {
        let _ = take_console();
        let Err(error) = enter();
        say(format_args!("failed to enter the root file system: {error}; rebooting in 10 s"));
        std::thread::sleep(Duration::from_secs(10));
        halt(RebootMode::RB_AUTOBOOT);
    }
    for (_, place) in MOUNTS {
        let _ = umount2(place, MntFlags::MNT_DETACH);
    }
}

fn enter() -> io::Result<std::convert::Infallible> {
    // In a child, because a medium that does not respond must not block process 1.
    let child = start(mount_root).ok_or(io::ErrorKind::OutOfMemory)?;
    if finish(child, ROOT_WITHIN) != Some(0) {
        return Err(io::Error::other("it is not mounted"));
    }
    // The contents of the initramfs occupy RAM.
    let _ = fs::remove_file("/init");
    let _ = fs::remove_dir_all("/usr");
    for (_, place) in MOUNTS {
        umount2(place, MntFlags::MNT_DETACH)?;
    }
    let none = None::<&str>;
    std::env::set_current_dir(NEW_ROOT)?;
    mount(Some("."), "/", none, MsFlags::MS_MOVE, none)?;
    nix::unistd::chroot(".")?;
    std::env::set_current_dir("/")?;
    Err(Command::new("/usr/bin/nodlet").arg("init").exec())
}

/// Mounts the root, in a child of process 1.
fn mount_root() -> u8 {
    load_modules(&mut |what, done| {
        if let Err(error) = done {
            say(format_args!("failed to {what}: {error}"));
        }
    });
    match wait_for_disk().and_then(|disk| {
        let root = root_id().and_then(|id| disk.table.with_id(id));
        let device = disk.known_device(root.ok_or(io::ErrorKind::NotFound)?);
        mount(Some(device.as_str()), NEW_ROOT, Some("erofs"), MsFlags::MS_RDONLY, None::<&str>)
            .map_err(|error| io::Error::other(format!("mount {device}: {error}")))
    }) {
        Ok(()) => 0,
        Err(error) => {
            say(format_args!("failed to find the root file system: {error}"));
            1
        }
    }
}

/// Waits for the disk with the root, which may not have been found yet.
fn wait_for_disk() -> io::Result<Disk> {
    let begun = Instant::now();
    let id: Guid = root_id().ok_or(io::ErrorKind::NotFound)?;
    // Before the first look, so that no new device is missed.
    let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    changes.add_watch("/dev", AddWatchFlags::IN_CREATE)?;
    loop {
        if let Some(disk) = Disk::with(id) {
            return Ok(disk);
        }
        let left = MEDIUM_WITHIN.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(io::Error::other(format!("no disk has it; there are {}", Disk::names().join(", "))));
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(std::os::fd::AsFd::as_fd(&changes), PollFlags::POLLIN)], timeout);
        let _ = changes.read_events();
    }
}
