//! The services that process 1 keeps running, and when each is restarted.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::Pid;
use nodlet_core::time::Instant;
use nodlet_host::paths::Paths;
use nodlet_kernel::durable::{self, Headroom};
use nodlet_kernel::own_file;

use super::process::ABSENT;
use super::{identity, network, watchdog};
use crate::boot::console::{leave_console, say};
use crate::boot::{config, safe_mode};

/// The program of all roles, except an agent that was updated.
const NODLET: &str = "/usr/bin/nodlet";

/// The path of the SSH server, as in Debian.
const DROPBEAR: &str = "/usr/sbin/dropbear";

/// The board's SSH host key, which is generated at the first start.
const HOST_KEY: &str = "/var/lib/nodlet/ssh/host_key";

/// The path of the SSH host key if the data partition cannot be written.
const HOST_KEY_IN_RAM: &str = "/run/ssh/host_key";

/// A host key that is being made.
const NEW_KEY_IN_RAM: &str = "/run/ssh/host_key.new";

/// The program that generates and reads SSH keys.
const DROPBEARKEY: &str = "/usr/bin/dropbearkey";

/// The longest delay before a failing service is restarted.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// A service that ran this long resets its failures: the next delay is the first again.
const RAN_WELL: Duration = Duration::from_secs(60);

/// If a service ends with success within this time of its start, its restart is delayed by the same time.
const ENDED_AT_ONCE: Duration = Duration::from_secs(1);

/// A kind of service: its name and the job of its process.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    name: &'static str,
    job: fn() -> u8,
}

/// The name of the service that runs the pods.
const AGENT: &str = "agent";

/// The kinds of all services.
pub(super) const SERVICES: [Kind; 3] = [
    Kind { name: AGENT, job: agent },
    Kind { name: "network", job: network },
    Kind { name: "ssh", job: ssh },
];

/// The state of a service.
enum State {
    /// The service starts at `until`.
    Waits {
        until: Instant,
    },
    Runs {
        pid: Pid,
        since: Instant,
    },
    Absent,
}

/// A service that process 1 keeps running.
pub(super) struct Service {
    kind: Kind,
    state: State,
    /// Number of consecutive ends soon after the start.
    failures: u32,
    /// When the first and the latest of those failures happened.
    failing: Option<(Instant, Instant)>,
}

impl Service {
    pub(super) fn new(kind: Kind, now: Instant) -> Service {
        Service { kind, state: State::Waits { until: now }, failures: 0, failing: None }
    }

    /// Whether this is the agent, of which process 1 also watches the progress.
    pub(super) fn is_agent(&self) -> bool {
        self.kind.name == AGENT
    }

    /// The agent's process; `None` if it is not running, and for other services.
    pub(super) fn agent(&self) -> Option<Pid> {
        match self.state {
            State::Runs { pid, .. } if self.is_agent() => Some(pid),
            State::Runs { .. } | State::Waits { .. } | State::Absent => None,
        }
    }

    /// When the running process started; `None` if none is running.
    pub(super) fn runs_since(&self) -> Option<Instant> {
        match self.state {
            State::Runs { since, .. } => Some(since),
            State::Waits { .. } | State::Absent => None,
        }
    }

    /// The number of consecutive failures and their time span; `None` unless the service failed and waits for
    /// its restart.
    pub(super) fn failing(&self) -> Option<(u32, Duration)> {
        match (&self.state, self.failing) {
            (State::Waits { .. }, Some((first, latest))) => Some((self.failures, latest.since(first))),
            (State::Waits { .. } | State::Runs { .. } | State::Absent, _) => None,
        }
    }

    pub(super) fn job(&self) -> fn() -> u8 {
        self.kind.job
    }

    pub(super) fn is(&self, process: Pid) -> bool {
        matches!(self.state, State::Runs { pid, .. } if pid == process)
    }

    /// When the service is started next; `None` while it runs.
    pub(super) fn next_start(&self) -> Option<Instant> {
        match self.state {
            State::Waits { until } => Some(until),
            State::Runs { .. } | State::Absent => None,
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_start().is_some_and(|next| next <= now)
    }

    /// Records the start of the service. If `pid` is `None`, no process could be created, and the start is
    /// retried.
    pub(super) fn started(&mut self, pid: Option<Pid>, now: Instant) {
        self.state = match pid {
            Some(pid) => State::Runs { pid, since: now },
            // The shortage will not have passed a moment later.
            None => State::Waits { until: now + self.delay().max(ENDED_AT_ONCE) },
        };
    }

    /// Stops restarting the service, because the board goes down.
    pub(super) fn leave(&mut self) {
        self.state = State::Absent;
    }

    /// Records the end of the process with `status`, an exit code or 128 plus a signal.
    pub(super) fn ended(&mut self, status: i32, now: Instant) {
        let State::Runs { since, .. } = self.state else { return };
        if status == i32::from(ABSENT) {
            self.state = State::Absent;
            return;
        }
        if now.since(since) >= RAN_WELL {
            self.failures = 0;
            self.failing = None;
        }
        if status == 0 {
            // Exit code 0 is no failure: somebody ended the service on purpose, as an update does.
            let delay = if now.since(since) < ENDED_AT_ONCE { ENDED_AT_ONCE } else { Duration::ZERO };
            say(format_args!("{} ended; it starts again in {} s", self.kind.name, delay.as_secs()));
            self.state = State::Waits { until: now + delay };
            return;
        }
        let delay = self.delay();
        self.failures = self.failures.saturating_add(1);
        self.failing = Some((self.failing.map_or(now, |(first, _)| first), now));
        say(format_args!("{} ended with {status}; it starts again in {} s", self.kind.name, delay.as_secs()));
        self.state = State::Waits { until: now + delay };
    }

    /// The delay before the next start: none at first, then one second, doubled with each failure.
    fn delay(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => Duration::from_secs(1 << failures.saturating_sub(1).min(10)).min(LONGEST_DELAY),
        }
    }
}

fn network() -> u8 {
    protect();
    network::run()
}

/// How many files the agent may have open, as in `board/systemd/nodlet.service`: some for each pod. The kernel starts
/// process 1 with 1024, and 4096 at most.
const OPEN_FILES: u64 = 65536;

/// Executes the agent.
fn agent() -> u8 {
    protect();
    let board = config::read().unwrap_or_default();
    let program = crate::system::agent_program(Path::new("/"), Path::new(NODLET), &board.update);
    let mut agent = Command::new(program);
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES) {
        say(format_args!("failed to raise the agent's limit of open files to {OPEN_FILES}: {error}"));
    }
    agent.arg("agent").args(board.agent).args(identity::agent_arguments()).envs(watchdog::variable());
    failed("agent", &agent.exec())
}

/// Generates the host key if there is none, and executes the SSH server.
fn ssh() -> u8 {
    // Process 1's console descriptor is non-blocking: lines are lost while the console is busy.
    leave_console();
    if !Path::new(DROPBEAR).exists() {
        return ABSENT;
    }
    let key = match host_key() {
        Ok(key) => key,
        Err(error) => return failed("dropbearkey", &error),
    };
    protect();
    // dropbear runs in the foreground, logs to the console, and accepts only keys. Forwarding to the board
    // (`ssh -L`), which kubectl needs, is allowed; forwarding from it is not. A session whose client
    // vanished, as with a pulled cable, is probed every minute and ends after three probes.
    let mut server = Command::new(DROPBEAR);
    server.args(["-F", "-E", "-s", "-k", "-K", "60", "-r"]).arg(key);
    if let Some(banner) = safe_mode::banner() {
        server.arg("-b").arg(banner);
    }
    failed("dropbear", &server.exec())
}

/// Returns the path of the board's host key, which is generated if it is missing. A damaged key is replaced,
/// because nobody could log in. If it cannot be written, a key in RAM lasts for this boot.
fn host_key() -> std::io::Result<&'static str> {
    let is_whole = |key: &str| {
        // Opened here first: a pipe in its place would block the program.
        if own_file::open(Path::new(key)).is_err() {
            return false;
        }
        let checked = Command::new(DROPBEARKEY).args(["-y", "-f", key]).output();
        checked.is_ok_and(|checked| checked.status.success())
    };
    if is_whole(HOST_KEY) {
        return Ok(HOST_KEY);
    }
    if std::fs::symlink_metadata(HOST_KEY).is_ok() {
        say(format_args!("{HOST_KEY} is damaged: making a new one, which clients do not know"));
    }
    match make_key(HOST_KEY) {
        Ok(()) => Ok(HOST_KEY),
        Err(_) if is_whole(HOST_KEY_IN_RAM) => Ok(HOST_KEY_IN_RAM),
        Err(error) => {
            say(format_args!("failed to make {HOST_KEY}: {error}; this boot uses a temporary SSH key"));
            make_key(HOST_KEY_IN_RAM).map(|()| HOST_KEY_IN_RAM)
        }
    }
}

/// Generates a key in RAM, and replaces whatever exists at its path, also on a full disk.
fn make_key(key: &str) -> std::io::Result<()> {
    let key = Path::new(key);
    let new = Path::new(NEW_KEY_IN_RAM);
    let public = new.with_extension("new.pub");
    std::fs::create_dir_all(new.parent().unwrap_or(Path::new("/")))?;
    remove(new)?;
    let made = Command::new(DROPBEARKEY).args(["-t", "ed25519", "-f"]).arg(new).output()?;
    // Newer versions also write the public half.
    remove(&public)?;
    if !made.status.success() {
        return Err(std::io::Error::other(String::from_utf8_lossy(&made.stderr).trim().to_owned()));
    }
    let text = own_file::read(new)?;
    remove(new)?;
    if key.is_dir() {
        remove(key)?;
    }
    durable::replace(key, &text, Some((&Paths::new(Path::new("/")).reserve(), Headroom::None)))
}

/// Removes a file, or a directory with its contents.
fn remove(path: &Path) -> std::io::Result<()> {
    let is_directory = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let removed = if is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    own_file::if_exists(removed).map(drop)
}

/// Sets an OOM score such that the kernel kills pods before the calling process, which becomes a service. The
/// kubelet protects its own processes in the same way (`KubeletOOMScoreAdj` is -999).
fn protect() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "-998");
}

/// Executes `nodlet down` to end all pods, with the grace periods configured for the board's agent.
pub(super) fn end_pods() -> u8 {
    network::clock::stamp();
    let board = config::read().unwrap_or_default();
    let mut down = Command::new(NODLET);
    down.arg("down").args(crate::agent::shutdown_flags(&board.agent));
    failed("nodlet down", &down.exec())
}

fn failed(what: &str, error: &std::io::Error) -> u8 {
    say(format_args!("failed to start {what}: {error}"));
    1
}

/// Sets the environment of the services.
pub(super) fn set_environment() {
    // Process 1 has one thread.
    nodlet_kernel::process::set_variable("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    nodlet_kernel::process::set_variable("HOME", "/root");
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Kind {
        /// A kind of service that is never executed.
        pub(in super::super) const TEST: Kind = Kind { name: "test", job: || 0 };
    }

    #[test]
    fn a_service_that_fails_starts_again_later_each_time_and_soon_after_it_ran_well() {
        let begin = Instant(1_000_000_000_000);
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut service = Service::new(Kind::TEST, begin);
        let mut starts = Vec::new();
        let mut now = begin;
        for _ in 0..9 {
            now = service.next_start().expect("it waits").max(now);
            assert!(service.is_due(now) && !service.is_due(Instant(now.0 - 1)));
            starts.push((now - begin).as_secs());
            service.started(Some(Pid::from_raw(7)), now);
            assert!(service.is(Pid::from_raw(7)) && service.next_start().is_none());
            service.ended(1, now);
        }
        assert_eq!(starts, [0, 0, 1, 3, 7, 15, 31, 63, 123]);
        assert_eq!(service.failing(), Some((9, Duration::from_secs(123))));
        service.started(Some(Pid::from_raw(8)), at(200));
        service.ended(137, at(270));
        assert_eq!(service.next_start(), Some(at(270)));
        assert_eq!(service.failing(), Some((1, Duration::ZERO)));
    }

    #[test]
    fn a_service_that_ends_with_success_has_not_failed() {
        let begin = Instant(0);
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut service = Service::new(Kind::TEST, begin);
        service.started(Some(Pid::from_raw(9)), at(0));
        service.ended(0, at(5));
        assert_eq!(service.next_start(), Some(at(5)));
        service.started(Some(Pid::from_raw(10)), at(5));
        service.ended(0, at(5));
        assert_eq!(service.next_start(), Some(at(6)));
        service.started(Some(Pid::from_raw(11)), at(6));
        service.ended(1, at(7));
        assert_eq!(service.next_start(), Some(at(7)), "its first failure");
    }

    #[test]
    fn a_service_that_the_image_does_not_have_is_not_started_again() {
        let now = Instant(7);
        let mut service = Service::new(Kind::TEST, now);
        service.started(Some(Pid::from_raw(7)), now);
        service.ended(i32::from(ABSENT), now);
        assert_eq!(service.next_start(), None);
    }
}
