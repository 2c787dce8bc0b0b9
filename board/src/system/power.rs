//! Power cuts for tests: power lasts for so many changes of the flash.

use std::cell::Cell;
use std::io;

thread_local!(static LEFT: Cell<Option<u32>> = const { Cell::new(None) });

/// `None` is power for ever.
pub(crate) fn lasts(steps: Option<u32>) {
    LEFT.set(steps);
}

/// One change of the flash; an error once the power is cut.
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
