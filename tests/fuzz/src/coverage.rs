//! The code coverage of an input, if the program was built to count it, as `cargo xtask long fuzz` does.
//!
//! The compiler then adds a counter of one byte to each basic block, and calls
//! [`__sanitizer_cov_8bit_counters_init`] with the range of each crate's counters. In other builds nobody
//! calls it, and no input ever reaches new code.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// The counters, one slice for each crate.
static COUNTERS: Mutex<Vec<&'static [AtomicU8]>> = Mutex::new(Vec::new());

/// The function that each crate with coverage calls before `main`.
///
/// # Safety
///
/// The bytes from `start` to `end` must live as long as the program.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *const AtomicU8, end: *const AtomicU8) {
    // SAFETY: the caller guarantees the range; an AtomicU8 has the layout of a byte, and the compiler's own
    // accesses use no references.
    let counters = unsafe { std::slice::from_raw_parts(start, end.offset_from_unsigned(start)) };
    let mut all = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    if !all.iter().any(|known| known.as_ptr() == counters.as_ptr()) {
        all.push(counters);
    }
}

/// The highest count of each basic block so far, in eight steps, each of which is a bit.
pub(crate) struct Reached {
    seen: Vec<u8>,
}

impl Reached {
    /// A record without any coverage.
    pub(crate) fn new() -> Reached {
        let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
        Reached { seen: vec![0; counters.iter().map(|piece| piece.len()).sum()] }
    }

    /// Whether the program was built with counters.
    pub(crate) fn is_counted(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Resets the counters.
    pub(crate) fn begin(&self) {
        let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
        counters
            .iter()
            .flat_map(|piece| piece.iter())
            .for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    /// Whether some block ran that never ran before, or more often than ever. Adds the counts to the record.
    pub(crate) fn is_new(&mut self) -> bool {
        let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = false;
        for (counter, seen) in counters.iter().flat_map(|piece| piece.iter()).zip(&mut self.seen) {
            let bit = step(counter.load(Ordering::Relaxed));
            new |= bit & !*seen != 0;
            *seen |= bit;
        }
        new
    }

    /// The number of basic blocks that have run.
    pub(crate) fn count(&self) -> usize {
        self.seen.iter().filter(|seen| **seen != 0).count()
    }
}

/// The step of a count: once, twice, a few times, often. Further differences do not matter.
fn step(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128..=255 => 128,
    }
}
