//! One mount of a layer, many copies of it, for as long as a descriptor is open.
//!
//! From Linux 6.15 on a mount that is attached nowhere can be copied, and the
//! descriptor is that of such a mount. Kernels before it copy only mounts of the
//! caller's own mount namespace: there the layer is made the root of a namespace
//! with nothing else in it, and the descriptor is that of the namespace, which
//! whoever wants a copy enters for a moment. So on neither is a mount ever seen
//! on the host.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::FsType;

use super::kernel;

/// The descriptor to keep of a new mount.
pub(super) fn shared(mount: OwnedFd) -> Result<OwnedFd, Errno> {
    match kernel::open_tree_clone(mount.as_fd()) {
        Ok(_) => Ok(mount),
        Err(Errno::EINVAL) => namespace_of(&mount),
        Err(errno) => Err(errno),
    }
}

/// A copy of what `shared` keeps, attached nowhere.
pub(super) fn copy(shared: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // Asked first: of a namespace's own file a copy can be made as well.
    if nix::sys::statfs::fstatfs(shared)?.filesystem_type() == NSFS {
        copy_root_of(shared)
    } else {
        kernel::open_tree_clone(shared)
    }
}

/// What namespaces are files of (linux/magic.h).
const NSFS: FsType = FsType(0x6e73_6673);

/// A mount namespace whose root is this mount.
pub(super) fn namespace_of(mount: &OwnedFd) -> Result<OwnedFd, Errno> {
    // A thread of its own: namespace, root and directory are a thread's.
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)?;
            let namespace = own_namespace()?;
            let none = None::<&str>;
            nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            kernel::move_mount(mount.as_fd(), Path::new("/"))?;
            nix::unistd::fchdir(mount.as_raw_fd())?;
            // The old root comes to lie on the new one, and goes with all that is below it.
            nix::unistd::pivot_root(".", ".")?;
            nix::mount::umount2(".", MntFlags::MNT_DETACH)?;
            Ok(namespace)
        });
        made.join().unwrap_or(Err(Errno::EINVAL))
    })
}

/// The calling thread must share its root and directory with no other.
fn copy_root_of(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let own = own_namespace()?;
    setns(namespace, CloneFlags::CLONE_NEWNS)?;
    let root = kernel::open(Path::new("/"), OFlag::O_PATH | OFlag::O_CLOEXEC);
    let copy = root.and_then(|root| kernel::open_tree_clone(root.as_fd()));
    setns(own, CloneFlags::CLONE_NEWNS)?;
    copy
}

fn own_namespace() -> Result<OwnedFd, Errno> {
    let opened = File::open("/proc/thread-self/ns/mnt");
    opened.map(OwnedFd::from).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
}
