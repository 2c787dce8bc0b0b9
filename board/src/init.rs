//! `nodlet init`: process 1 of a board that has no other init.
//!
//! Process 1 mounts what every process needs, forks one child that sets up the rest of the machine
//! ([`machine`]), keeps the services alive ([`services`]), reaps orphans, and turns the board off.
//! If process 1 ends, the kernel panics. It therefore allocates no memory after its start, calls
//! nothing that can wait for a disk or the network, and leaves everything else to children.
//! An idle board does not wake it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::reboot::{RebootMode, reboot, set_cad_enabled};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

mod config;
mod identity;
mod machine;
mod network;
mod services;

use services::{SERVICES, Service};

/// How long pods may take to end before the board goes down. The agent ends each within its own
/// grace period; a board that is to go off must not wait longer for a pod that hangs.
const PODS_END_WITHIN: Duration = Duration::from_secs(60);

/// How long other processes may take to end after SIGTERM.
const PROCESSES_END_WITHIN: Duration = Duration::from_secs(5);

/// Whether this process is to be the board's init: the kernel executes `/init`, or a boot loader
/// names `init=/usr/bin/nodlet init`.
pub(crate) fn is_wanted() -> bool {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let is_init = |name: &std::ffi::OsStr| std::path::Path::new(name).file_name() == Some("init".as_ref());
    std::process::id() == 1 && (is_init(&program) || arguments.next().is_some_and(|verb| verb == "init"))
}

/// What process 1 calls itself, so that `nodlet reboot` knows it.
pub(crate) const NAME: &str = "nodlet:init";

/// Runs the board. Never returns: process 1 must not end.
pub(crate) fn run() -> ! {
    // SAFETY: a C string that outlives the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"nodlet:init".as_ptr()) };
    if let Err(step) = machine::prepare() {
        say(format_args!("failed to {step}; the board goes on without it"));
    }
    let mut init = match Init::new() {
        Ok(init) => init,
        Err(error) => {
            say(format_args!("failed to watch signals: {error}; rebooting"));
            halt(RebootMode::RB_AUTOBOOT)
        }
    };
    init.set_up = start(machine::set_up);
    loop {
        init.reap();
        init.start_services();
        if let Some(mode) = init.wait() {
            init.go_down(mode);
        }
    }
}

/// Writes a line to the console. A console that is gone changes nothing.
fn say(text: std::fmt::Arguments<'_>) {
    use std::fmt::Write as _;
    let mut line = heapless::String::<512>::new();
    // A text that is too long is cut.
    let _ = writeln!(line, "nodlet init: {text}");
    let _ = nix::unistd::write(io::stderr().as_fd(), line.as_bytes());
}

/// Ends the machine at once.
fn halt(mode: RebootMode) -> ! {
    nix::unistd::sync();
    loop {
        let Err(error) = reboot(mode);
        say(format_args!("the kernel does not go down: {error}"));
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Forks a child that runs `job` and exits with its result. `None` if the kernel has no process left.
fn start(job: fn() -> u8) -> Option<Pid> {
    // SAFETY: process 1 has one thread.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => Some(child),
        Ok(ForkResult::Child) => {
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
            let _ = nix::unistd::setsid();
            std::process::exit(i32::from(job()))
        }
        Err(error) => {
            say(format_args!("failed to fork: {error}"));
            None
        }
    }
}

/// Takes the exit status of one child that has ended: its code, or 128 and the signal. Not through
/// nix, which returns no child for a real-time signal: that service would never be started again.
fn reap_one() -> Option<(Pid, i32)> {
    let mut status = 0;
    // SAFETY: the kernel writes one int.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then(|| (Pid::from_raw(pid), exit_code(status)))
}

fn exit_code(status: i32) -> i32 {
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
}

/// Whether no child is left, alive or dead.
fn has_no_child() -> bool {
    waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(nix::Error::ECHILD)
}

/// All that process 1 knows.
struct Init {
    signals: SignalFd,
    /// The child that sets up the machine, until it ends. No service starts before.
    set_up: Option<Pid>,
    services: [Service; SERVICES.len()],
}

impl Init {
    fn new() -> nix::Result<Init> {
        let mut mask = SigSet::empty();
        // As busybox's init: SIGTERM reboots, SIGUSR2 powers off. SIGINT is Ctrl-Alt-Del.
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1, Signal::SIGUSR2] {
            mask.add(signal);
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        // A kernel without it reboots at once on Ctrl-Alt-Del; that is no reason not to boot.
        let _ = set_cad_enabled(false);
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Init { signals, set_up: None, services: SERVICES.map(Service::new) })
    }

    /// Takes the exit status of every child that has ended.
    fn reap(&mut self) {
        while let Some((pid, status)) = reap_one() {
            if self.set_up == Some(pid) {
                self.set_up = None;
            }
            if let Some(service) = self.services.iter_mut().find(|service| service.is(pid)) {
                service.ended(status, Instant::now());
            }
        }
    }

    fn start_services(&mut self) {
        if self.set_up.is_some() {
            return;
        }
        let now = Instant::now();
        for service in &mut self.services {
            if service.is_due(now) {
                service.started(start(service.job()), now);
            }
        }
    }

    /// Waits for a signal or for the next start of a service. The way to go down, if it was asked for.
    fn wait(&mut self) -> Option<RebootMode> {
        let next = self.services.iter().filter_map(Service::next_start).min();
        let next = next.filter(|_| self.set_up.is_none());
        self.wait_until(next);
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

    /// Waits for a signal, until `end` at most.
    fn wait_until(&self, end: Option<Instant>) {
        let timeout = end.map_or(PollTimeout::NONE, |end| {
            let left = end.saturating_duration_since(Instant::now()).as_millis() + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let _ = poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], timeout);
    }

    /// Waits until `is_done`, for `within` at most.
    fn wait_for(&mut self, within: Duration, is_done: impl Fn(&Init) -> bool) {
        let end = Instant::now() + within;
        loop {
            self.reap();
            if is_done(self) || Instant::now() >= end {
                return;
            }
            self.wait_until(Some(end));
            while let Ok(Some(_)) = self.signals.read_signal() {}
        }
    }

    /// Ends the pods, then all processes, and turns the board off.
    fn go_down(&mut self, mode: RebootMode) -> ! {
        say(format_args!("ending the pods"));
        self.services.iter_mut().for_each(Service::leave);
        self.set_up = start(services::end_pods);
        self.wait_for(PODS_END_WITHIN, |init| init.set_up.is_none());
        // Everybody but process 1.
        for (signal, within) in
            [(Signal::SIGTERM, PROCESSES_END_WITHIN), (Signal::SIGKILL, PROCESSES_END_WITHIN)]
        {
            let _ = kill(Pid::from_raw(-1), signal);
            self.wait_for(within, |_| has_no_child());
        }
        machine::unmount();
        say(format_args!("{}", if mode == RebootMode::RB_AUTOBOOT { "rebooting" } else { "powering off" }));
        halt(mode)
    }
}

/// Gives the calling process the console as its three streams.
fn take_console() -> io::Result<()> {
    let console = std::fs::OpenOptions::new().read(true).write(true).open("/dev/console")?;
    for stream in 0..3 {
        nix::unistd::dup2(console.as_raw_fd(), stream)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::exit_code;

    #[test]
    fn every_way_to_end_has_an_exit_code() {
        for code in 0..256 {
            assert_eq!(exit_code(code << 8), code);
        }
        // Real-time signals, too.
        for signal in 1..65 {
            assert_eq!(exit_code(signal), 128 + signal);
        }
    }
}
