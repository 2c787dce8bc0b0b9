//! Sets up a machine on a booted kernel: mounts, devices, modules, host name, clock. `network` configures
//! links.
//!
//! [`prepare`] runs in process 1 itself; [`set_up`] runs in a child. A step that fails is reported on the
//! console, and the board continues to boot: a board that can be reached can be repaired.

use std::fs;
use std::io;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nodlet_host::netlink::{Netlink, link_index};
use nodlet_kernel::own_file;

use super::initramfs::{leave_initial_root, load_modules, remove_modules_in_ram};
use super::network::clock;
use super::{identity, partitions, services};
use crate::boot::config;
use crate::boot::console::{say, take_console};

/// The kernel's file systems to mount: kind, place, options.
const MOUNTS: &[(&str, &str, &str)] = &[
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("cgroup2", "/sys/fs/cgroup", "nsdelegate,memory_recursiveprot"),
    ("devtmpfs", "/dev", "mode=0755"),
    ("devpts", "/dev/pts", "ptmxmode=0666,mode=0620,gid=5"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("tmpfs", "/run", "mode=0755"),
    ("tmpfs", "/tmp", "mode=1777"),
];

/// A step of [`prepare`] that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error("leave the initial root")]
    LeaveInitialRoot(#[source] io::Error),
    #[error("make the root a shared mount")]
    Share(#[source] io::Error),
    #[error("mount {kind} at {place}")]
    Mount { kind: &'static str, place: &'static str, source: io::Error },
}

/// The steps that process 1 must do itself. Returns the last one that failed.
pub(super) fn prepare() -> Result<(), PrepareError> {
    let mut failed = leave_initial_root().err().map(PrepareError::LeaveInitialRoot);
    // As systemd does: later mounts of the board reach containers whose volumes have `mountPropagation`. Mounts in a shared
    // mount are shared, too.
    if let Err(error) = share_root() {
        failed = Some(PrepareError::Share(error));
    }
    for (kind, place, options) in MOUNTS {
        let made = fs::create_dir_all(place).and_then(|()| {
            let flags =
                MsFlags::MS_NOSUID | if *kind == "devtmpfs" { MsFlags::empty() } else { MsFlags::MS_NODEV };
            let flags = if *kind == "devpts" { MsFlags::MS_NOSUID } else { flags };
            Ok(mount(Some(*kind), *place, Some(*kind), flags, Some(*options))?)
        });
        match made {
            // A kernel may be built to mount /dev itself.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(source) => failed = Some(PrepareError::Mount { kind, place, source }),
            Ok(()) => {}
        }
    }
    // Without a console no error could be shown.
    let _ = take_console();
    let _ = std::env::set_current_dir("/");
    services::set_environment();
    failed.map_or(Ok(()), Err)
}

/// Makes the root and all mounts in it shared.
fn share_root() -> io::Result<()> {
    let none = None::<&str>;
    Ok(mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none)?)
}

/// The limit of namespaces of each kind: more than memory allows.
const NAMESPACES: &str = "1048576";

/// The set-up steps that can block, in a child of process 1.
pub(super) fn set_up() -> u8 {
    let mut code = 0;
    let mut note = |what: &str, done: io::Result<()>| {
        if let Err(error) = done {
            say(format_args!("failed to {what}: {error}"));
            code = 1;
        }
    };
    let mut board = config::read().unwrap_or_else(|error| {
        note("read the identity of this board", Err(error));
        config::Board::default()
    });
    load_modules(&mut note);
    remove_modules_in_ram();
    // All later steps may read and write /boot, /etc and /var.
    partitions::set_up();
    if board.logs_in_ram_mib > 0 {
        note("mount the logs in RAM", keep_logs_in_ram(board.logs_in_ram_mib));
    }
    note("keep the identity of this board", identity::apply(&mut board));
    note("set the host name", nix::unistd::sethostname(&board.name).map_err(io::Error::from));
    note("set the loopback link up", up("lo"));
    clock::begin(board.built);
    raise_limits_of_namespaces(&mut note);
    code
}

/// Raises the limits of namespaces. Namespaces that containers create inside their user namespaces count
/// towards root's limits. With the kernel's defaults, some hundred on a small board, one container could
/// prevent all pods from starting. The memory limit of a container restricts it instead, because most memory
/// of namespaces counts there. A container without a memory limit can use up the board's memory.
fn raise_limits_of_namespaces(note: &mut dyn FnMut(&str, io::Result<()>)) {
    for kind in ["cgroup", "ipc", "mnt", "net", "pid", "time", "uts"] {
        let path = format!("/proc/sys/user/max_{kind}_namespaces");
        // A kernel without this kind of namespace lacks the file.
        note(&format!("write {path}"), own_file::if_exists(fs::write(&path, NAMESPACES)).map(drop));
    }
}

/// Mounts a tmpfs for the containers' logs and the links to them, so that logging causes no flash wear.
fn keep_logs_in_ram(mib: u32) -> io::Result<()> {
    fs::create_dir_all("/var/log")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(
        Some("tmpfs"),
        "/var/log",
        Some("tmpfs"),
        flags,
        Some(format!("mode=0755,size={mib}m").as_str()),
    )?)
}

fn up(name: &str) -> io::Result<()> {
    Netlink::open()?.set_up(link_index(name)?)
}

/// Unmounts every file system that could be written to, or makes it read-only.
pub(super) fn unmount() {
    nix::unistd::sync();
    let none = None::<&str>;
    for place in [super::partitions::MANIFESTS, "/var/log", "/var", "/boot", "/"] {
        if umount2(place, MntFlags::empty()).is_err() {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_BIND;
            let _ = mount(none, place, none, flags, none);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodlet_host::mounts::mount_of;

    #[test]
    fn the_root_is_shared_and_so_is_what_is_mounted_later() {
        let thread = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("these tests need root");
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("it is the own root");
            let is_shared = |path: &str| {
                let mount = mount_of(&fs::File::open(path).expect("it is there")).expect("it can be read");
                mount.expect("it is in the namespace").is_shared
            };
            assert!(!is_shared("/"));
            share_root().expect("root may");
            assert!(is_shared("/"));
            mount(Some("test"), "/tmp", Some("tmpfs"), MsFlags::empty(), none).expect("root may");
            assert!(is_shared("/tmp"));
        });
        thread.join().expect("the test failed");
    }
}
