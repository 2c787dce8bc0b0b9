//! What the child that sets up the machine found out for process 1: it reads files, which process 1
//! must not wait for. Both map a page; process 1 reads it when the child has ended.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes of the path of a device, its NUL included.
pub(super) const PATH_BYTES: usize = 64;

/// What is found. All zero is a valid value: nothing was.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Findings {
    /// Path of the watchdog, NUL-terminated; empty if none is wanted.
    pub(super) watchdog: [u8; PATH_BYTES],
    /// Its timeout in seconds.
    pub(super) timeout: u32,
    /// Crash loops in a row that earlier boots ended with.
    pub(super) crash_loops: u32,
    /// For how many seconds the first crash loop may last.
    pub(super) crash_loop_after: u32,
    /// A number of crash loops is kept over a reboot.
    pub(super) is_kept: bool,
    /// The board is in safe mode.
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

/// The page, in process 1 and in children that were forked since [`share`].
static PAGE: AtomicPtr<Findings> = AtomicPtr::new(null_mut());

/// Maps the page. Without one nothing is found.
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

/// Writes what the child found.
pub(super) fn tell(findings: Findings) {
    if let Some(page) = NonNull::new(PAGE.load(Ordering::Relaxed)) {
        // SAFETY: mapped, aligned, and process 1 reads it only when this process has ended.
        unsafe { page.as_ptr().write_volatile(findings) };
    }
}

/// Reads what the child found, and unmaps the page. The child has ended.
pub(super) fn take() -> Findings {
    let Some(page) = NonNull::new(PAGE.swap(null_mut(), Ordering::Relaxed)) else { return Findings::NONE };
    // SAFETY: mapped and aligned; the child that wrote it, wholly or in part, has ended. A child that
    // was killed amid a copy leaves integers and bytes, and `bool`s as 0 or 1.
    let found = unsafe { page.as_ptr().read_volatile() };
    // SAFETY: the mapping of `share`, which nobody has any more.
    unsafe { libc::munmap(page.as_ptr().cast(), size_of::<Findings>()) };
    found
}
