//! The guest: a virtual machine for tests that depend on the kernel's features. `cargo xtask guest` boots it
//! under QEMU with `src/bin/guest-init.rs` as its first process. This module has the interface between both
//! sides and the tests inside.
//!
//! A Debian kernel has nearly everything that nodlet needs as modules. So a guest without one of the modules
//! behaves as a kernel without the feature: [`Lacking`].

use std::ffi::CString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// The file with the guest's orders, one per line: `load MODULE…`, `cgroup1 CONTROLLER,…`, or `run PROGRAM
/// ARGUMENT…`. After a line
/// with a [`Part`], only its tests are run.
pub const ORDERS: &str = "/guest/orders";

/// The beginning of an order that mounts controllers of cgroup v1: `cgroup1 cpu,cpuacct`.
pub const CGROUP_V1: &str = "cgroup1";

/// The directory with `NAME.ko` for each module, and [`MODULE_LIST`].
pub const MODULES: &str = "/guest/modules";

/// The list of modules. Each line has a module's name and the modules that it needs.
pub const MODULE_LIST: &str = "/guest/modules/list";

/// The path of systemd, the first process of a guest that has it.
pub const SYSTEMD: &str = "/usr/lib/systemd/systemd";

/// The prefix of each line that the guest itself prints.
pub const SAYS: &str = "guest: ";

/// The text after [`SAYS`] and before the number of a run's tests that are in the part.
pub const CHOSEN: &str = "tests in this part: ";

/// The last line that the guest prints before it turns itself off.
pub const END: &str = "guest: the end";

/// A part of the tests of the programs that follow, if not all are run: part 2 of 5 is every fifth test, beginning with
/// the second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// The number of the part, from 1.
    part: usize,
    /// The number of parts.
    of: usize,
}

impl Part {
    /// Parses a part such as `2/5`.
    pub fn parse(text: &str) -> Option<Self> {
        let (part, of) = text.split_once('/')?;
        let (part, of) = (part.parse().ok()?, of.parse().ok()?);
        (1..=of).contains(&part).then_some(Self { part, of })
    }

    /// Parses the part in a line of the orders.
    pub fn of_order(order: &str) -> Option<Self> {
        Self::parse(order.strip_prefix("part ")?)
    }

    /// The tests of a program that are in this part, after `before` tests of earlier programs.
    pub fn choose<T: Clone>(self, tests: &[T], before: usize) -> Vec<T> {
        let first = (self.part - 1 + self.of - before % self.of) % self.of;
        tests.iter().skip(first).step_by(self.of).cloned().collect()
    }
}

/// Formats the part as a line of the orders.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {}/{}", self.part, self.of)
    }
}

/// Whether this process runs in the guest.
pub fn is_guest() -> bool {
    static ORDERED: LazyLock<bool> = LazyLock::new(|| Path::new(ORDERS).exists());
    *ORDERED
}

/// The node of a port of the guest, by the name that QEMU's argument gives it.
fn node_of_port(name: &str) -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    let found = ports
        .filter_map(|port| Some(port.ok()?.path()))
        .find(|port| fs::read_to_string(port.join("name")).is_ok_and(|text| text.trim() == name))?;
    Some(Path::new("/dev").join(found.file_name()?))
}

/// Whether this is a guest with a port of this name.
pub fn has_port(name: &str) -> bool {
    is_guest() && node_of_port(name).is_some()
}

/// A port of the guest, to write to and to read from.
pub fn port(name: &str) -> File {
    let node = node_of_port(name).expect("QEMU has the port");
    File::options().read(true).write(true).open(node).expect("nobody else has it")
}

/// Loads a module after those that it needs. Succeeds if it is already loaded.
pub fn load_module(name: &str) -> io::Result<()> {
    let list = fs::read_to_string(MODULE_LIST)?;
    let found = list.lines().map(|line| line.split(' ')).find_map(|mut words| {
        (words.next() == Some(name)).then(|| words.map(str::to_owned).collect::<Vec<_>>())
    });
    // The module is built in, or belongs to another kernel.
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

/// A kernel without one of its modules, which is loaded again when this is dropped.
pub struct Lacking {
    module: &'static str,
}

impl Lacking {
    /// Unloads the module, as soon as nothing of an earlier test uses it.
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

    /// Loads the module again, as a person would after reading nodlet's message.
    pub fn put_back(self) {}

    /// The name of the module.
    pub fn module(&self) -> &str {
        self.module
    }
}

impl Drop for Lacking {
    fn drop(&mut self) {
        if let Err(error) = load_module(self.module) {
            eprintln!("failed to load {} again: {error}", self.module);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_together_contain_each_test_once() {
        let programs: [&[u32]; 4] = [&[0, 1, 2], &[], &[3], &[4, 5, 6, 7, 8]];
        for of in 1..12 {
            let mut all = Vec::new();
            for part in 1..=of {
                let choice = Part { part, of };
                assert_eq!(Part::of_order(&choice.to_string()), Some(choice));
                let mut before = 0;
                for tests in programs {
                    all.extend(choice.choose(tests, before));
                    before += tests.len();
                }
            }
            all.sort_unstable();
            assert_eq!(all, (0..9).collect::<Vec<_>>(), "{of} parts");
        }
        assert_eq!(Part::parse("2/5"), Some(Part { part: 2, of: 5 }));
        for wrong in ["0/5", "6/5", "2", "2/", "/5", "-1/5", ""] {
            assert_eq!(Part::parse(wrong), None, "{wrong:?}");
        }
    }
}
