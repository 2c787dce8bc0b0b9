//! What a supervisor needs before it exists: its lock, its socket, and a process that executes this same binary.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nodlet_kernel::durable::discard;
use nodlet_kernel::own_file;

use super::SupervisorError;
use crate::sys::{self, MountAttributes};

/// The name of the socket in a supervisor's directory.
const SOCKET: &str = "sock";

/// Makes and locks the file that shows that a pod of this name has a supervisor.
pub(super) fn lock(dir: &Path, name: &str) -> Result<File, SupervisorError> {
    let locks = dir.ancestors().nth(2).unwrap_or(dir).join("locks");
    let mut options = OpenOptions::new();
    let file = clear_lock(&locks, &locks.join(name))
        .and_then(|()| fs::DirBuilder::new().recursive(true).mode(0o700).create(&locks))
        .and_then(|()| own_file::open_with(&locks.join(name), options.write(true).create(true).mode(0o600)))
        .map_err(SupervisorError::Lock)?;
    // The lock belongs to the open file, which the supervisor inherits.
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(SupervisorError::Locked { name: name.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(SupervisorError::Lock(error)),
    }
}

/// Removes what is no directory in the place of the directory of all locks, and what is no regular file in the place of a
/// lock: no supervisor can hold it.
fn clear_lock(locks: &Path, lock: &Path) -> io::Result<()> {
    for (path, is_removed) in
        [(locks, own_file::clear_directory(locks)?), (lock, own_file::clear_file(lock)?)]
    {
        if is_removed {
            log::warn!("removed {}, which was no lock", path.display());
        }
    }
    Ok(())
}

/// Removes free locks, which no supervisor holds: that of one name, or all. Call it only on the thread that
/// calls `Supervisor::spawn`: if a lock were removed after it was opened and before it is locked, there
/// could be two supervisors of one name.
pub fn remove_free_locks(locks: &Path, name: Option<&str>) -> io::Result<()> {
    let paths = match name {
        Some(name) => vec![locks.join(name)],
        None => fs::read_dir(locks)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?,
    };
    for path in paths {
        clear_lock(locks, &path)?;
        let file = match own_file::open_with(&path, OpenOptions::new().write(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => fs::remove_file(&path)?,
            Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(())
}

/// An address for the socket that is short, whatever the length of the directory's path.
fn socket_address(dir: &impl AsRawFd) -> nix::Result<UnixAddr> {
    UnixAddr::new(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()).as_str())
}

/// The socket of a supervisor, in its directory.
pub(super) fn listen(dir: &Path) -> io::Result<OwnedFd> {
    let path = dir.join(SOCKET);
    discard(&path)?;
    let directory = sys::open_path(dir)?;
    let listener = socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    socket::bind(listener.as_raw_fd(), &socket_address(&directory)?)?;
    // Before the socket listens, nobody can connect.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    socket::listen(&listener, socket::Backlog::new(8)?)?;
    Ok(listener)
}

/// A connection to the socket in a supervisor's directory.
pub(super) fn connect(dir: &Path) -> nix::Result<OwnedFd> {
    let directory = nodlet_kernel::file::open(dir, nix::fcntl::OFlag::O_PATH)?;
    // Non-blocking, so as not to wait for a supervisor that accepts no connection.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    socket::connect(socket.as_raw_fd(), &socket_address(&directory)?)?;
    Ok(socket)
}

/// The binary `file`, on a read-only mount of its own: no container can write to it through `/proc/PID/exe`.
/// Every copy of the descriptor must be closed when the binary is executed, since through a copy the mount
/// could be made writable again.
pub(crate) fn seal(file: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let mount = sys::clone_mount(None, file, false)?;
    let set = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    let attributes = MountAttributes { set, ..Default::default() };
    sys::set_mount_attributes(mount.as_fd(), &attributes, false)?;
    Ok(mount)
}

/// Executes this same binary as a supervisor.
pub(super) fn execute(
    dir: &Path,
    listener: &OwnedFd,
    lock: &File,
    cgroup_dirs: &[PathBuf],
) -> io::Result<()> {
    let binary = seal(c"/proc/self/exe")?;
    let inherited = [listener.as_raw_fd(), lock.as_raw_fd()];
    let mut command = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()));
    command.arg0("nodlet").arg("supervisor").arg(dir);
    command.args(inherited.map(|fd| OsString::from(fd.to_string()))).args(cgroup_dirs);
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    sys::spawn_daemon(&mut command, &[listener.as_fd(), lock.as_fd()])
}
