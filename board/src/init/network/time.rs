//! The clock of the network service.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A time on the service's clock.
pub(super) type Time = Duration;

/// The time since boot, including suspension: a lease must not last longer because the board was suspended.
pub(super) fn now() -> Time {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}
