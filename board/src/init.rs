//! `nodlet init`: process 1 of a board that has no other init.
//!
//! Process 1 mounts what every process needs, forks one child that sets up the rest of the machine
//! ([`machine`]), keeps the services alive ([`services`]), reaps orphans, and turns the board off ([`shutdown`]).
//! If process 1 ends, the kernel panics. It therefore allocates no memory after its start, calls
//! nothing that can wait for a disk or the network, and leaves everything else to children.
//! On an idle board nothing wakes it but the [`watchdog`], if the board has one.

// Code that process 1 executes must not be able to panic. Modules with an `allow` are executed by its
// children, except for `crash::judge`, and `partitions::first_stage`, which has these lints of its own.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used,
    )
)]

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::reboot::{RebootMode, set_cad_enabled};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use nodlet_core::time::Instant;

#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)]
pub(crate) mod crash;
mod findings;
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)]
mod identity;
mod initramfs;
mod machine;
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)]
mod network;
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)]
pub(crate) mod partitions;
pub(crate) mod process;
mod services;
mod shutdown;
mod watchdog;

use crate::boot::config;
use crate::boot::console::say;
use findings::Findings;
pub(crate) use identity::{FRAGMENT, judge as judge_identity, lost_by_reset, replace_fragment};
use process::{halt, reap_one, start};
use services::{SERVICES, Service};
use watchdog::{HangChange, Watchdog};

/// How long the set-up of the machine may take, including repairs of a file system. After that, services
/// start without what is missing: a board that can be reached can be repaired.
const SET_UP_WITHIN: Duration = Duration::from_secs(1200);

/// How long a child may take to record a crash loop, on a disk that may be broken.
const WRITTEN_WITHIN: Duration = Duration::from_secs(20);

/// Jobs for helpers that may wait at the same time.
const JOBS: usize = 4;

/// Children that are reaped in one turn of the loop.
const REAPED_AT_ONCE: u32 = 64;

/// Whether this process must act as the board's init: the kernel executes `/init`, or a boot loader passes
/// `init=/usr/bin/nodlet init`.
pub(crate) fn is_init() -> bool {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let names_init = |name: &std::ffi::OsStr| std::path::Path::new(name).file_name() == Some("init".as_ref());
    std::process::id() == 1 && (names_init(&program) || arguments.next().is_some_and(|verb| verb == "init"))
}

/// Runs the board. Never returns: process 1 must not end.
pub(crate) fn run() -> ! {
    let _ = rustix::thread::set_name(c"nodlet:init");
    partitions::first_stage::run();
    if let Err(error) = machine::prepare() {
        let step = nodlet_host::error::causes(&error);
        say(format_args!("failed to {step}; the board continues without it"));
    }
    let mut init = match Init::new() {
        Ok(init) => init,
        Err(error) => {
            say(format_args!("failed to watch signals: {error}; rebooting"));
            halt(RebootMode::RB_AUTOBOOT)
        }
    };
    findings::share();
    init.set_up = start(set_up);
    init.set_up_until = now() + SET_UP_WITHIN;
    loop {
        init.reap();
        init.finish_set_up();
        init.check_agent();
        init.start_services();
        if let Some(mode) = init.wait() {
            init.go_down(mode);
        }
    }
}

/// Sets up the machine, in a child, and reports the findings to process 1.
fn set_up() -> u8 {
    let board = config::read().unwrap_or_default();
    let mut found = Findings::NONE;
    if let Some(watchdog) = &board.watchdog {
        let path = watchdog.device.as_bytes();
        // The rest of the array is zero. A path that is too long names no device.
        if path.len() < found.watchdog.len()
            && let Some(to) = found.watchdog.get_mut(..path.len())
        {
            to.copy_from_slice(path);
        }
        found.timeout = watchdog.timeout;
    }
    if let Some(limits) = &board.crash_loop {
        found.crash_loop_after = limits.after;
    }
    // Report early, in case this child does not finish.
    findings::write(found);
    let code = machine::set_up();
    (found.crash_loops, found.is_kept, found.is_safe) = crash::load(board.crash_loop.as_ref());
    findings::write(found);
    code
}

/// The time since boot. Cannot fail or panic.
fn now() -> Instant {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    Instant(0) + time.unwrap_or_default()
}

/// The state of process 1.
struct Init {
    signals: SignalFd,
    /// The child that sets up the machine, until it ends. No service starts before that.
    set_up: Option<Pid>,
    set_up_until: Instant,
    /// Whether the findings of the set-up have been read.
    is_set_up: bool,
    /// The child that runs one job, such as writing to disk.
    helper: Option<Pid>,
    /// Jobs for later helpers, which run one after another.
    jobs: heapless::Deque<fn() -> u8, JOBS>,
    /// Whether ended children may be left to reap, so that the loop must not wait.
    has_more: bool,
    services: [Service; SERVICES.len()],
    watchdog: Option<Watchdog>,
    findings: Findings,
}

impl Init {
    fn new() -> nix::Result<Init> {
        let mut mask = SigSet::empty();
        // Signals mean the same as for busybox's init: SIGTERM reboots, SIGUSR2 powers off. SIGINT is
        // Ctrl-Alt-Del.
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1, Signal::SIGUSR2] {
            mask.add(signal);
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        // A kernel that does not support this reboots at once on Ctrl-Alt-Del; the board boots nevertheless.
        let _ = set_cad_enabled(false);
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let now = now();
        Ok(Init {
            signals,
            set_up: None,
            set_up_until: now,
            is_set_up: false,
            helper: None,
            jobs: heapless::Deque::new(),
            has_more: false,
            services: SERVICES.map(|kind| Service::new(kind, now)),
            watchdog: None,
            findings: Findings::NONE,
        })
    }

    /// Reaps children that have ended, up to [`REAPED_AT_ONCE`], so that a process that creates endless
    /// orphans cannot delay the rest of the turn.
    fn reap(&mut self) {
        self.has_more = true;
        for _ in 0..REAPED_AT_ONCE {
            let Some((pid, status)) = reap_one() else {
                self.has_more = false;
                return;
            };
            if self.set_up == Some(pid) {
                self.set_up = None;
            }
            if self.helper == Some(pid) {
                self.helper = None;
                if status == i32::from(crash::AGENT_IS_TO_END)
                    && let Some(agent) = self.services.iter().find_map(Service::agent)
                {
                    let _ = kill(agent, Signal::SIGKILL);
                }
            }
            if let Some(service) = self.services.iter_mut().find(|service| service.is(pid)) {
                service.ended(status, now());
            }
        }
    }

    /// Once the machine is set up, reads the findings and arms the watchdog before any service starts.
    fn finish_set_up(&mut self) {
        if self.is_set_up {
            return;
        }
        let now = now();
        if self.set_up.is_some() {
            if now < self.set_up_until {
                return;
            }
            say(format_args!("the set-up has not finished; services start without the missing parts"));
            self.set_up = None;
        }
        self.is_set_up = true;
        self.findings = findings::take();
        if self.findings.is_safe {
            self.services.iter_mut().filter(|service| service.is_agent()).for_each(Service::leave);
        }
        let Ok(path) = CStr::from_bytes_until_nul(&self.findings.watchdog) else { return };
        if path.is_empty() {
            return;
        }
        match Watchdog::open(path, self.findings.timeout, now) {
            Ok(watchdog) => {
                let seconds = watchdog.timeout().as_secs();
                say(format_args!("the watchdog resets this board if it hangs for {seconds} s"));
                self.watchdog = Some(watchdog);
            }
            Err(error) => {
                // The text of an `io::Error` would be allocated.
                let error = nix::Error::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
                say(format_args!("failed to arm the watchdog: {error}; a board that hangs is not reset"));
            }
        }
    }

    fn start_services(&mut self) {
        if !self.is_set_up {
            return;
        }
        let now = now();
        for service in &mut self.services {
            if service.is_due(now) {
                service.started(start(service.job()), now);
            }
        }
    }

    /// When the agent's running process started; `None` if none runs.
    fn agent_runs_since(&self) -> Option<Instant> {
        self.services.iter().find(|service| service.is_agent())?.runs_since()
    }

    /// Feeds the watchdog if the agent makes progress, and maintains the count of crash loops.
    fn check_agent(&mut self) {
        let (now, since) = (now(), self.agent_runs_since());
        let crash_loops = self.findings.crash_loops;
        let change = self.watchdog.as_mut().and_then(|watchdog| watchdog.check(now, since));
        match change {
            Some(HangChange::Hangs) => {
                say(format_args!(
                    "the agent hangs; the watchdog resets this board unless the agent continues"
                ));
                self.later(crash::hang);
            }
            Some(HangChange::Recovers) => {
                say(format_args!("the agent does not hang any more"));
                self.later(crash::clear_hang);
            }
            None => {}
        }
        if crash_loops > 0 && since.is_some_and(|since| now.since(since) >= crash::HEALTHY) {
            self.findings.crash_loops = 0;
            self.later(crash::forget);
        }
        if self.helper.is_none()
            && let Some(job) = self.jobs.pop_front()
        {
            self.helper = start(job);
        }
    }

    /// Queues a job for a helper. More than [`JOBS`] jobs wait only if a disk does not respond; further jobs
    /// are then dropped, because none of them matters.
    fn later(&mut self, job: fn() -> u8) {
        let _ = self.jobs.push_back(job);
    }

    /// Whether the agent has kept failing for so long that the board must reboot.
    fn is_crash_loop(&self) -> bool {
        let agent = self.services.iter().find(|service| service.is_agent());
        let Some((count, lasting)) = agent.and_then(Service::failing) else { return false };
        let Findings { crash_loops, is_kept, crash_loop_after, .. } = self.findings;
        let failures = crash::Failures { count, lasting, crash_loops, is_kept };
        let after = Duration::from_secs(crash_loop_after.into());
        crash::judge(failures, after) == crash::Recovery::Reboot
    }

    /// When something is due next, even if no signal arrives.
    fn next(&self) -> Option<Instant> {
        if !self.is_set_up {
            return Some(self.set_up_until);
        }
        let services = self.services.iter().filter_map(Service::next_start);
        let healthy = self.agent_runs_since().filter(|_| self.findings.crash_loops > 0);
        let healthy = healthy.map(|since| since + crash::HEALTHY);
        services.chain(healthy).chain(self.watchdog.as_ref().map(Watchdog::next_check)).min()
    }

    /// Waits for a signal or for the next due time. Returns how to go down if that was requested.
    fn wait(&mut self) -> Option<RebootMode> {
        if self.is_crash_loop() {
            say(format_args!("the agent keeps failing: rebooting"));
            if self.findings.is_kept {
                self.helper = start(crash::count);
                self.wait_for(WRITTEN_WITHIN, |init| init.helper.is_none());
            }
            return Some(RebootMode::RB_AUTOBOOT);
        }
        nodlet_kernel::memory::release_code();
        self.wait_until(self.next());
        let mut mode = None;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGTERM | Signal::SIGINT) => mode = Some(RebootMode::RB_AUTOBOOT),
                Ok(Signal::SIGUSR1 | Signal::SIGUSR2) => mode = Some(RebootMode::RB_POWER_OFF),
                Ok(_) | Err(_) => {}
            }
        }
        mode
    }

    /// Waits for a signal, at most until `end`.
    fn wait_until(&self, end: Option<Instant>) {
        let end = if self.has_more { Some(Instant(0)) } else { end };
        let timeout = end.map_or(PollTimeout::NONE, |end| {
            let left = end.since(now()).as_millis().saturating_add(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let _ = poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], timeout);
    }

    /// Waits until `is_done`, at most for `within`, and feeds the watchdog meanwhile.
    fn wait_for(&mut self, within: Duration, is_done: impl Fn(&Init) -> bool) {
        let end = now() + within;
        loop {
            self.reap();
            let now = now();
            if is_done(self) || now >= end {
                return;
            }
            // Ignore the agent's progress: `within` is the limit here.
            let next_check = self.watchdog.as_mut().map(|watchdog| {
                watchdog.check(now, None);
                watchdog.next_check()
            });
            self.wait_until(next_check.into_iter().chain([end]).min());
            while let Ok(Some(_)) = self.signals.read_signal() {}
        }
    }
}

#[cfg(test)]
mod tests;
