//! One mount of a layer and many copies of it, as long as a descriptor is open.
//!
//! Since Linux 6.15 a detached mount can be copied, and the descriptor refers to such a mount. Older kernels
//! copy only mounts of the caller's own mount namespace. There the layer becomes the root of a namespace with
//! nothing else in it, and the descriptor refers to the namespace, which a thread enters for a moment to make
//! a copy. In neither case is a mount visible on the host.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::FsType;

use nodlet_kernel::mount::{attach_mount, clone_mount};

/// Returns the descriptor to keep for a new mount.
pub(super) fn shared(mount: OwnedFd) -> Result<OwnedFd, Errno> {
    match clone_mount(Some(mount.as_fd()), c"", false) {
        Ok(_) => Ok(mount),
        Err(Errno::EINVAL) => namespace_of(&mount),
        Err(errno) => Err(errno),
    }
}

/// Copies the mount that `shared` keeps, to a detached mount.
pub(super) fn copy(shared: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // This check comes first, because the namespace's own file could also be copied.
    if nix::sys::statfs::fstatfs(shared)?.filesystem_type() == NSFS {
        copy_root_of(shared)
    } else {
        clone_mount(Some(shared), c"", false)
    }
}

/// The file system of namespace files (linux/magic.h).
const NSFS: FsType = FsType(0x6e73_6673);

/// Creates a mount namespace whose root is this mount.
pub(super) fn namespace_of(mount: &OwnedFd) -> Result<OwnedFd, Errno> {
    // In a separate thread: namespace, root and working directory belong to a thread.
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)?;
            let namespace = own_namespace()?;
            let none = None::<&str>;
            nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            attach_mount(mount, Path::new("/"))?;
            nix::unistd::fchdir(mount.as_raw_fd())?;
            // The old root is stacked on the new one, and is unmounted with everything below it.
            nix::unistd::pivot_root(".", ".")?;
            nix::mount::umount2(".", MntFlags::MNT_DETACH)?;
            Ok(namespace)
        });
        made.join().unwrap_or(Err(Errno::EINVAL))
    })
}

/// Copies the root mount of a namespace. The calling thread must not share its root and directory with any
/// other.
fn copy_root_of(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let own = own_namespace()?;
    setns(namespace, CloneFlags::CLONE_NEWNS)?;
    let copy = clone_mount(None, c"/", false);
    setns(own, CloneFlags::CLONE_NEWNS)?;
    copy
}

fn own_namespace() -> Result<OwnedFd, Errno> {
    let opened = File::open("/proc/thread-self/ns/mnt");
    opened.map(OwnedFd::from).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
}
