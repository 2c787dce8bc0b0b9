//! What an input reaches in the program, where that was built to count it: `cargo xtask long fuzz` does.
//!
//! The compiler then puts a counter of one byte into each piece of code that runs from its beginning to its
//! end, and tells [`__sanitizer_cov_8bit_counters_init`] where those of a crate lie. Elsewhere nobody calls
//! that, and nothing is ever new.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// All counters, in pieces.
static COUNTERS: Mutex<Vec<&'static [AtomicU8]>> = Mutex::new(Vec::new());

/// Called before `main` by each crate that was built so.
///
/// # Safety
///
/// From `start` to `end` lie bytes that live as long as the program.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *const AtomicU8, end: *const AtomicU8) {
    // SAFETY: the caller says so; an AtomicU8 is as a byte, and the compiler's own accesses are no references.
    let counters = unsafe { std::slice::from_raw_parts(start, end.offset_from_unsigned(start)) };
    let mut all = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    if !all.iter().any(|known| known.as_ptr() == counters.as_ptr()) {
        all.push(counters);
    }
}

/// How often each piece of code ran at the most, in eight steps of which each is a bit.
pub(crate) struct Reached {
    seen: Vec<u8>,
}

impl Reached {
    /// Nothing so far.
    pub(crate) fn new() -> Reached {
        let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
        Reached { seen: vec![0; counters.iter().map(|piece| piece.len()).sum()] }
    }

    /// Whether the program counts.
    pub(crate) fn is_counted(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Begins to count anew.
    pub(crate) fn begin(&self) {
        let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
        counters
            .iter()
            .flat_map(|piece| piece.iter())
            .for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    /// Whether something ran since that never did, or more often than ever; from now on it has.
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

    /// Pieces of code that ran at all.
    pub(crate) fn count(&self) -> usize {
        self.seen.iter().filter(|seen| **seen != 0).count()
    }
}

/// Once, twice, a few times, often: more is no news each time.
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
