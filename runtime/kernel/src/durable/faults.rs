//! The seam for faults: [`allow`] is called before each change of a disk. Tests observe the changes of their thread, let
//! one of them fail, or record what a power cut would undo.

use std::cell::RefCell;
use std::io;
use std::path::Path;

/// One change of a disk, reported to the observer before it is made.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Create a directory.
    CreateDirectory(&'a Path),
    /// Create a file, or empty one that an interrupted write has left.
    Create(&'a Path),
    /// Open a spare file to overwrite it.
    Take(&'a Path),
    /// Write bytes to a file that is not at its place yet.
    Write {
        /// The file.
        path: &'a Path,
        /// The number of bytes.
        bytes: usize,
    },
    /// Set the length of such a file.
    SetLength(&'a Path),
    /// Make the content of a file durable.
    Sync(&'a Path),
    /// Make the names in a directory durable.
    SyncDirectory(&'a Path),
    /// Rename a file or a directory.
    Rename {
        /// The name until then.
        from: &'a Path,
        /// The name from then on. A file of this name is replaced.
        to: &'a Path,
    },
    /// Remove a file.
    Remove(&'a Path),
}

/// The decision of an observer on an operation.
#[derive(Clone, Copy, Debug)]
pub enum Decision {
    /// The operation is carried out.
    Proceed,
    /// The operation fails with this error number.
    Fail(i32),
    /// Only this many bytes are written, then the write fails with this error number.
    Short(usize, i32),
}

type Observer = dyn Fn(&Operation<'_>) -> Decision;

thread_local! {
    static OBSERVER: RefCell<Option<Box<Observer>>> = const { RefCell::new(None) };
}

/// The time during which an observer decides on the operations of this thread. It ends when this value is dropped.
#[must_use = "the observer is removed when this value is dropped"]
#[derive(Debug)]
pub struct Observed(());

impl Drop for Observed {
    fn drop(&mut self) {
        OBSERVER.set(None);
    }
}

/// Calls `observer` before each operation of this thread. It replaces an earlier observer, and must not change a disk by
/// means of this module.
pub fn observe(observer: impl Fn(&Operation<'_>) -> Decision + 'static) -> Observed {
    OBSERVER.set(Some(Box::new(observer)));
    Observed(())
}

pub(super) fn decide(operation: &Operation<'_>) -> Decision {
    OBSERVER.with_borrow(|observer| observer.as_ref().map_or(Decision::Proceed, |decide| decide(operation)))
}

pub(super) fn allow(operation: &Operation<'_>) -> io::Result<()> {
    match decide(operation) {
        Decision::Proceed => Ok(()),
        Decision::Fail(errno) | Decision::Short(_, errno) => Err(io::Error::from_raw_os_error(errno)),
    }
}
