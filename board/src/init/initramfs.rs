//! The root and the modules with which a board boots: the kernel's initial root, in RAM, if the device image is an
//! initramfs or has one; and the kernel modules, which the first stage and the set-up load.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nodlet_kernel::own_file;

/// The directory of kernel modules. Its file `list` has one file name per line, in the order of loading. The
/// kernel decompresses files that end in `.xz`.
const MODULES: &str = "/usr/lib/nodlet/modules";

/// Whether the root is in RAM, as an initramfs does.
pub(super) fn is_initial_root() -> bool {
    const RAMFS: u32 = 0x8584_58f6;
    let kind = nix::sys::statfs::statfs("/").map(|stat| stat.filesystem_type());
    kind.is_ok_and(|kind| kind == nix::sys::statfs::TMPFS_MAGIC || kind.0 as u32 == RAMFS)
}

/// Bind-mounts the root upon itself and moves there. An initramfs is unpacked into the kernel's initial root
/// file system, which no process can leave; but containers must leave their root.
pub(super) fn leave_initial_root() -> io::Result<()> {
    if !is_initial_root() {
        return Ok(());
    }
    // The kernel makes its initial root writable for everybody.
    fs::set_permissions("/", fs::Permissions::from_mode(0o755))?;
    let none = None::<&str>;
    fs::create_dir_all("/newroot")?;
    mount(Some("/"), "/newroot", none, MsFlags::MS_BIND, none)?;
    std::env::set_current_dir("/newroot")?;
    mount(Some("."), "/", none, MsFlags::MS_MOVE, none)?;
    nix::unistd::chroot(".")?;
    std::env::set_current_dir("/")
}

/// Loads the modules of this root or initramfs. Reports the result of each to `note`.
pub(super) fn load_modules(note: &mut dyn FnMut(&str, io::Result<()>)) {
    // A kernel that has everything built in has no list.
    match own_file::if_exists(fs::read_to_string(Path::new(MODULES).join("list"))) {
        Err(error) => note("read the list of modules", Err(error)),
        Ok(list) => list
            .unwrap_or_default()
            .lines()
            .for_each(|name| note(&format!("load the module {name}"), load(name))),
    }
}

/// Removes the files of the modules if they are in an initramfs: the kernel has loaded them, and they occupy RAM.
pub(super) fn remove_modules_in_ram() {
    if is_initial_root() {
        let _ = fs::remove_dir_all(MODULES);
    }
}

fn load(name: &str) -> io::Result<()> {
    /// The kernel's `MODULE_INIT_COMPRESSED_FILE`.
    const COMPRESSED: i32 = 4;
    let file = File::open(Path::new(MODULES).join(name))?;
    let flags = if name.ends_with(".xz") { COMPRESSED } else { 0 };
    match rustix::system::finit_module(&file, c"", flags) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        loaded => Ok(loaded?),
    }
}
