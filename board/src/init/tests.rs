//! Process 1 without a board: what it allocates, and how it reaps.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use nix::sys::wait::WaitPidFlag;
use nodlet_kernel::process::{exit_now, fork, wait_for};

use super::process::has_no_child;
use super::*;

/// The system's allocator, with a count of allocations per thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's guarantee holds.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantee holds.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Process 1 without children, with a watchdog that resets nothing.
fn init() -> Init {
    let mask = SigSet::empty();
    let mut found = Findings::NONE;
    found.watchdog[..9].copy_from_slice(b"/dev/null");
    found.timeout = 1;
    findings::share();
    findings::write(found);
    Init {
        signals: SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .expect("the kernel has descriptors"),
        set_up: None,
        set_up_until: now(),
        is_set_up: false,
        helper: None,
        jobs: heapless::Deque::new(),
        has_more: false,
        services: SERVICES.map(|kind| Service::new(kind, now())),
        watchdog: None,
        findings: Findings::NONE,
    }
}

#[test]
fn process_1_allocates_nothing_while_services_start_fail_and_hang() {
    let mut init = init();
    let before = ALLOCATIONS.with(Cell::get);
    init.finish_set_up();
    assert!(init.watchdog.is_some(), "it is armed");
    let mut loops = 0;
    for round in 0..40 {
        let now = now() + Duration::from_secs(100 * round);
        for service in &mut init.services {
            service.started(Some(Pid::from_raw(1)), now);
            service.ended(139, now + Duration::from_secs(1));
        }
        loops += u32::from(init.is_crash_loop());
        init.check_agent();
        // Wait until the watchdog's next look at most.
        init.wait_until(init.next().map(|next| next.min(super::now() + Duration::from_millis(1))));
    }
    for service in &mut init.services {
        service.started(Some(Pid::from_raw(1)), Instant(0));
    }
    // The agent has hung since the boot.
    let mut check = |started| {
        loop {
            let change = init.watchdog.as_mut().and_then(|watchdog| watchdog.check(now(), started));
            match change {
                Some(change) => break change,
                None => init.wait_until(init.next()),
            }
        }
    };
    assert_eq!(check(Some(Instant(1))), HangChange::Hangs);
    assert_eq!(check(None), HangChange::Recovers);
    assert_eq!(ALLOCATIONS.with(Cell::get), before, "process 1 has allocated memory");
    assert!(loops > 0, "an agent that failed 40 times is a crash loop");
    let _: Box<u8> = std::hint::black_box(Box::new(1));
    assert_eq!(ALLOCATIONS.with(Cell::get), before + 1, "allocations are counted");
}

/// Runs `job` in a process of its own, which has no children of other tests. Returns its result.
fn in_a_process(job: impl FnOnce() -> u8) -> i32 {
    match fork().expect("the kernel has processes") {
        None => exit_now(job().into()),
        Some(child) => wait_for(child).expect("it is a child").code(),
    }
}

#[test]
fn process_1_reaps_a_bounded_number_of_children_at_once_and_never_allocates() {
    const CHILDREN: u32 = 3 * REAPED_AT_ONCE;
    let code = in_a_process(|| {
        let mut init = init();
        init.finish_set_up();
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..CHILDREN {
            match fork() {
                Ok(None) => exit_now(0),
                Ok(Some(child)) => {
                    // Wait until the child has ended, but do not reap it.
                    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
                    let _ = nix::sys::wait::waitid(nix::sys::wait::Id::Pid(child), flags);
                }
                Err(_) => return 2,
            }
        }
        init.reap();
        if !init.has_more || has_no_child() {
            return 3;
        }
        init.wait_for(Duration::from_secs(60), |init| !init.has_more);
        // Wait until the timeout.
        init.wait_for(Duration::from_millis(20), |_| false);
        match (has_no_child(), ALLOCATIONS.with(Cell::get) == before) {
            (true, true) => 0,
            (false, _) => 4,
            (true, false) => 5,
        }
    });
    assert_eq!(code, 0, "2: no process, 3: all reaped at once, 4: some not reaped, 5: memory was allocated");
}
