//! Simulated power cuts for tests: the power lasts for a given number of changes of the flash.

use std::cell::Cell;
use std::io;

thread_local!(static LEFT: Cell<Option<u32>> = const { Cell::new(None) });

/// Sets after how many changes of the flash the power is cut; `None` means never.
pub(crate) fn lasts(steps: Option<u32>) {
    LEFT.set(steps);
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
