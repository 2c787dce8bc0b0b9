//! Simulated power cuts for tests: the power lasts for a given number of changes of the flash. The flash can be
//! full, too.

use std::cell::Cell;
use std::io;

thread_local! {
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    static FULL: Cell<bool> = const { Cell::new(false) };
}

/// Sets after how many changes of the flash the power is cut; `None` means never.
pub(crate) fn lasts(steps: Option<u32>) {
    LEFT.set(steps);
}

/// Sets whether the flash has no room for another file.
pub(crate) fn fill(full: bool) {
    FULL.set(full);
}

/// Called before a new file is made.
pub(crate) fn create() -> io::Result<()> {
    if FULL.get() { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { step() }
}

/// Counts one change of the flash. Fails once the power is cut.
pub(crate) fn step() -> io::Result<()> {
    match LEFT.get() {
        None => Ok(()),
        Some(0) => Err(io::Error::other("the power is cut")),
        Some(left) => {
            LEFT.set(Some(left - 1));
            Ok(())
        }
    }
}
