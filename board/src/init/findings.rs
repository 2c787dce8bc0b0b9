//! Findings that the child which sets up the machine reports to process 1. The child reads files, for which
//! process 1 must not wait. Both processes share a page, which process 1 reads after the child has ended.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use nodlet_kernel::memory::Mapping;

/// The size of a device path, including its NUL.
pub(super) const PATH_BYTES: usize = 64;

/// The findings of the set-up.
#[derive(Clone, Copy)]
pub(super) struct Findings {
    /// Path of the watchdog device, NUL-terminated; empty if none is configured.
    pub(super) watchdog: [u8; PATH_BYTES],
    /// Timeout of the watchdog in seconds.
    pub(super) timeout: u32,
    /// Number of consecutive crash loops that ended earlier boots.
    pub(super) crash_loops: u32,
    /// For how many seconds the first crash loop lasts.
    pub(super) crash_loop_after: u32,
    /// Whether the count of crash loops survives a reboot.
    pub(super) is_kept: bool,
    /// Whether the board is in safe mode.
    pub(super) is_safe: bool,
}

impl Findings {
    pub(super) const NONE: Findings = Findings {
        watchdog: [0; PATH_BYTES],
        timeout: 0,
        crash_loops: 0,
        crash_loop_after: super::crash::DEFAULT_AFTER,
        is_kept: false,
        is_safe: false,
    };
}

nodlet_kernel::shared! {
    /// [`Findings`] in the shared page, where a flag is 0 or another number.
    struct Page {
        watchdog: [AtomicU8; PATH_BYTES],
        timeout: AtomicU32,
        crash_loops: AtomicU32,
        crash_loop_after: AtomicU32,
        is_kept: AtomicU32,
        is_safe: AtomicU32,
    }
}

/// The shared page, in process 1 and in children that were forked after [`share`].
static PAGE: Mutex<Option<Mapping<Page>>> = Mutex::new(None);

/// Maps the shared page. If that fails, process 1 gets no findings.
pub(super) fn share() {
    *PAGE.lock().unwrap_or_else(PoisonError::into_inner) = Mapping::anonymous().ok();
    write(Findings::NONE);
}

/// Writes the findings to the shared page, in the child.
pub(super) fn write(findings: Findings) {
    let page = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(page) = &*page else { return };
    for (to, byte) in page.watchdog.iter().zip(findings.watchdog) {
        to.store(byte, Ordering::Relaxed);
    }
    page.timeout.store(findings.timeout, Ordering::Relaxed);
    page.crash_loops.store(findings.crash_loops, Ordering::Relaxed);
    page.crash_loop_after.store(findings.crash_loop_after, Ordering::Relaxed);
    page.is_kept.store(findings.is_kept.into(), Ordering::Relaxed);
    page.is_safe.store(findings.is_safe.into(), Ordering::Relaxed);
}

/// Reads the findings and unmaps the page. The child must have ended: one that was killed while it wrote leaves a part.
pub(super) fn take() -> Findings {
    let page = PAGE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(page) = page else { return Findings::NONE };
    Findings {
        watchdog: page.watchdog.each_ref().map(|byte| byte.load(Ordering::Relaxed)),
        timeout: page.timeout.load(Ordering::Relaxed),
        crash_loops: page.crash_loops.load(Ordering::Relaxed),
        crash_loop_after: page.crash_loop_after.load(Ordering::Relaxed),
        is_kept: page.is_kept.load(Ordering::Relaxed) != 0,
        is_safe: page.is_safe.load(Ordering::Relaxed) != 0,
    }
}
