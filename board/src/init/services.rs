//! The services that process 1 keeps alive, and when each starts again.

use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::unistd::Pid;
use nodlet_runtime::time::Instant;

use super::{config, crash, identity, network, say, watchdog};

/// The program of all roles, but for an agent that was updated.
const NODLET: &str = "/usr/bin/nodlet";

/// Debian's place of the SSH server.
const DROPBEAR: &str = "/usr/sbin/dropbear";

/// The board's own SSH key, which is made at the first start.
const HOST_KEY: &str = "/var/lib/nodlet/ssh/host_key";

/// The longest delay before a service that fails is started again.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// A service that ran so long has not failed at once: the next delay is the first again.
const RAN_WELL: Duration = Duration::from_secs(60);

/// A service that ends with success so soon after its start is started again so much later.
const ENDED_AT_ONCE: Duration = Duration::from_secs(1);

/// A service: its name and what its process does.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    name: &'static str,
    job: fn() -> u8,
}

/// The name of the service that runs the pods.
const AGENT: &str = "agent";

/// All services.
pub(super) const SERVICES: [Kind; 3] = [
    Kind { name: AGENT, job: agent },
    Kind { name: "network", job: network::run },
    Kind { name: "ssh", job: ssh },
];

/// Exit code of a service that this image does not have: it is not started again.
pub(super) const ABSENT: u8 = 113;

/// Where a service is.
enum State {
    /// It starts then.
    Waits {
        until: Instant,
    },
    Runs {
        pid: Pid,
        since: Instant,
    },
    Absent,
}

/// A service as process 1 knows it.
pub(super) struct Service {
    kind: Kind,
    state: State,
    /// How often it ended soon after its start, one time after another.
    failures: u32,
    /// When the first and the latest of those were.
    failing: Option<(Instant, Instant)>,
}

impl Service {
    pub(super) fn new(kind: Kind, now: Instant) -> Service {
        Service { kind, state: State::Waits { until: now }, failures: 0, failing: None }
    }

    /// Whether this is the agent, of which more is watched than whether it runs.
    pub(super) fn is_agent(&self) -> bool {
        self.kind.name == AGENT
    }

    /// The process of the agent; `None` while none runs, and of other services.
    pub(super) fn agent(&self) -> Option<Pid> {
        match self.state {
            State::Runs { pid, .. } if self.is_agent() => Some(pid),
            State::Runs { .. } | State::Waits { .. } | State::Absent => None,
        }
    }

    /// When the process that runs started; `None` while none runs.
    pub(super) fn runs_since(&self) -> Option<Instant> {
        match self.state {
            State::Runs { since, .. } => Some(since),
            State::Waits { .. } | State::Absent => None,
        }
    }

    /// How often it failed in a row, and for how long, if it failed and was not started since.
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

    /// When it is to be started next; `None` while it runs.
    pub(super) fn next_start(&self) -> Option<Instant> {
        match self.state {
            State::Waits { until } => Some(until),
            State::Runs { .. } | State::Absent => None,
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_start().is_some_and(|next| next <= now)
    }

    /// `pid` is `None` where no process could be made: it is tried again.
    pub(super) fn started(&mut self, pid: Option<Pid>, now: Instant) {
        self.state = match pid {
            Some(pid) => State::Runs { pid, since: now },
            // What there is too little of is not there a moment later.
            None => State::Waits { until: now + self.delay().max(ENDED_AT_ONCE) },
        };
    }

    /// The board goes down: it is not started again.
    pub(super) fn leave(&mut self) {
        self.state = State::Absent;
    }

    /// Its process ended with `status`, a code or 128 and a signal.
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
            // Somebody ended it, as an update does: that is no failure.
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

    /// None at first, then one second, and twice as long each time.
    fn delay(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => Duration::from_secs(1 << failures.saturating_sub(1).min(10)).min(LONGEST_DELAY),
        }
    }
}

/// Executes the agent.
fn agent() -> u8 {
    let board = config::read().unwrap_or_default();
    let program = crate::system::agent_program(Path::new("/"), Path::new(NODLET), &board.update);
    let mut agent = Command::new(program);
    agent.arg("agent").args(board.agent).args(identity::agent_arguments()).envs(watchdog::variable());
    failed("agent", &agent.exec())
}

/// Makes the host key if there is none, and executes the SSH server.
fn ssh() -> u8 {
    if !Path::new(DROPBEAR).exists() {
        return ABSENT;
    }
    if !Path::new(HOST_KEY).exists() {
        let directory = Path::new(HOST_KEY).parent().unwrap_or(Path::new("/"));
        let new = directory.join("host_key.new");
        let _ = std::fs::remove_file(&new);
        let made = std::fs::create_dir_all(directory).and_then(|()| {
            let status =
                Command::new("/usr/bin/dropbearkey").args(["-t", "ed25519", "-f"]).arg(&new).output()?;
            if status.status.success() {
                std::fs::File::open(&new)?.sync_all()?;
                std::fs::rename(&new, HOST_KEY)
            } else {
                Err(std::io::Error::other(String::from_utf8_lossy(&status.stderr).into_owned()))
            }
        });
        if let Err(error) = made {
            return failed("dropbearkey", &error);
        }
    }
    // In the foreground, with its log on the console, and with keys alone. Connections are forwarded to
    // the board (`ssh -L`), as kubectl wants it, and none from it. A session whose client is gone without
    // a word, as with a pulled cable, is asked each minute and ends after three.
    let mut server = Command::new(DROPBEAR);
    server.args(["-F", "-E", "-s", "-k", "-K", "60", "-r", HOST_KEY]);
    if let Some(banner) = crash::banner() {
        server.arg("-b").arg(banner);
    }
    failed("dropbear", &server.exec())
}

/// Executes what ends all pods, in the time that the board's agent gives them.
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

/// The environment of the services.
pub(super) fn set_environment() {
    for (name, value) in [(c"PATH", c"/usr/sbin:/usr/bin:/sbin:/bin"), (c"HOME", c"/root")] {
        let (name, value): (CString, CString) = (name.into(), value.into());
        // SAFETY: process 1 has one thread, and both are C strings.
        unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Kind {
        /// A service that is never executed.
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
