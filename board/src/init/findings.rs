//! Findings that the child which sets up the machine reports to process 1. The child reads files, for which
//! process 1 must not wait. Both processes share a page, which process 1 reads after the child has ended.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The size of a device path, including its NUL.
pub(super) const PATH_BYTES: usize = 64;

/// The findings of the set-up. All zero is a valid value, which means no findings.
#[derive(Clone, Copy)]
#[repr(C)]
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

/// The shared page, in process 1 and in children that were forked after [`share`].
static PAGE: AtomicPtr<Findings> = AtomicPtr::new(null_mut());

/// Maps the shared page. If that fails, process 1 gets no findings.
pub(super) fn share() {
    // SAFETY: a new mapping that no file backs, wherever the kernel has room.
    let page = unsafe {
        libc::mmap(
            null_mut(),
            size_of::<Findings>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page != libc::MAP_FAILED {
        let page = page.cast::<Findings>();
        // SAFETY: just mapped, aligned to a page, and nobody else has it yet.
        unsafe { page.write(Findings::NONE) };
        PAGE.store(page, Ordering::Relaxed);
    }
}

/// Writes the findings to the shared page, in the child.
pub(super) fn write(findings: Findings) {
    if let Some(page) = NonNull::new(PAGE.load(Ordering::Relaxed)) {
        // SAFETY: mapped, aligned, and process 1 reads it only when this process has ended.
        unsafe { page.as_ptr().write_volatile(findings) };
    }
}

/// Reads the findings and unmaps the page. The child must have ended.
pub(super) fn take() -> Findings {
    let Some(page) = NonNull::new(PAGE.swap(null_mut(), Ordering::Relaxed)) else { return Findings::NONE };
    // SAFETY: mapped and aligned; the child that wrote it, wholly or in part, has ended. A child that was
    // killed while it copied leaves integers and bytes, and `bool`s as 0 or 1.
    let found = unsafe { page.as_ptr().read_volatile() };
    // SAFETY: the mapping of `share`, which nobody uses any more.
    unsafe { libc::munmap(page.as_ptr().cast(), size_of::<Findings>()) };
    found
}
