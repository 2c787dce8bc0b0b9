//! The guest: a machine of its own for tests of what the kernel has and has not,
//! which `cargo xtask guest` boots under QEMU with `src/bin/guest-init.rs` as its
//! first process. What both sides and the tests in there agree on stands here.
//!
//! A Debian kernel has nearly all that nodlet needs as modules, so a guest in
//! which one is not loaded is a kernel without the feature: [`Lacking`].

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// What the guest has to do, a line each: `load MODULE…`, or `run PROGRAM ARGUMENT…`.
pub const ORDERS: &str = "/guest/orders";

/// `NAME.ko` for each module, and [`MODULE_LIST`].
pub const MODULES: &str = "/guest/modules";

/// A line a module: its name and those that it needs.
pub const MODULE_LIST: &str = "/guest/modules/list";

/// The first process of a guest that has it.
pub const SYSTEMD: &str = "/usr/lib/systemd/systemd";

/// Begins each line in which the guest itself says something.
pub const SAYS: &str = "guest: ";

/// The last of those lines, before the guest turns itself off.
pub const END: &str = "guest: the end";

/// Whether this is the guest.
pub fn is_guest() -> bool {
    static ORDERED: LazyLock<bool> = LazyLock::new(|| Path::new(ORDERS).exists());
    *ORDERED
}

/// Loads a module after those that it needs. One that is there is fine.
pub fn load_module(name: &str) -> io::Result<()> {
    let list = fs::read_to_string(MODULE_LIST)?;
    let found = list.lines().map(|line| line.split(' ')).find_map(|mut words| {
        (words.next() == Some(name)).then(|| words.map(str::to_owned).collect::<Vec<_>>())
    });
    // Built in, or for another kernel.
    let Some(needs) = found else { return Ok(()) };
    for needed in needs {
        load_module(&needed)?;
    }
    let file = File::open(Path::new(MODULES).join(format!("{name}.ko")))?;
    // SAFETY: an open descriptor, a C string that outlives the call, no flags.
    let loaded = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    match io::Error::last_os_error() {
        error if loaded < 0 && error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => Ok(()),
    }
}

/// A kernel without one of its modules, which comes back when this is dropped.
pub struct Lacking {
    module: &'static str,
}

impl Lacking {
    /// Takes the module out, as soon as nothing of an earlier test uses it.
    pub fn new(module: &'static str) -> Self {
        let name = CString::new(module).expect("a module's name has no NUL");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            // SAFETY: a C string that outlives the call.
            let removed = unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) };
            let error = io::Error::last_os_error();
            if removed == 0 || error.raw_os_error() == Some(libc::ENOENT) {
                return Self { module };
            }
            assert!(Instant::now() < until, "failed to take {module} out of the kernel: {error}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Puts it back, as a person does who has read what nodlet said.
    pub fn put_back(self) {}
}

impl Drop for Lacking {
    fn drop(&mut self) {
        if let Err(error) = load_module(self.module) {
            eprintln!("failed to load {} again: {error}", self.module);
        }
    }
}
