//! Reads the clocks, for the shell only: the core knows no clock.

use nodlet_core::time::{Anchor, Instant, Timestamp};

/// Reads CLOCK_MONOTONIC.
pub fn instant() -> Instant {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .expect("CLOCK_MONOTONIC exists on every kernel");
    Instant(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Reads CLOCK_REALTIME.
pub fn timestamp() -> Timestamp {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME)
        .expect("CLOCK_REALTIME exists on every kernel");
    // On 32-bit ARM both numbers have 32 bits.
    Timestamp(time.tv_sec() as i64 * 1_000_000_000 + time.tv_nsec() as i64)
}

/// Reads both clocks.
pub fn anchor() -> Anchor {
    let (instant, timestamp) = (instant(), timestamp());
    Anchor(timestamp.0 - instant.0 as i64)
}
