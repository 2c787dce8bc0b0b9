//! When a node does what in its cluster: connect, register, renew the Lease, list and watch its pods, report. Pure:
//! outcomes go in as observations, and the next action or the time of the next one comes out.
//!
//! ```text
//! Down ─► Connect ─► Register ─► RenewLease ─► List ─► SendStatuses ─► Watch ─► Wait
//!   ▲                   ▲  (the Lease or the Node is gone) │   ▲ (410 Gone)        │
//!   └── Failed          └──────────────────────────────────┘   └───────────────────┘
//! ```
//!
//! One action is performed at a time. A failed one ends the session: everything is done anew after a back-off. With
//! periodic synchronisation ([`crate::sync`]), a session also ends when there is nothing more to do, until the next visit.

use std::time::{Duration, Instant};

use crate::backoff::{Backoff, Rate, jitter};
use crate::reporting::Reporting;
use crate::sync::{Periodic, Visit};

/// The interval at which tokens, unbound claims and rejected mirror pods are looked at.
pub const REFRESH_EVERY: Duration = Duration::from_secs(60);

/// The time after which a watch without any event is taken for dead: the server ends each after 10 minutes.
const SILENCE: Duration = Duration::from_secs(660);

/// A renewal of the Lease that is later than this is followed by a report of the node.
const LATE: Duration = Duration::from_secs(5);

/// The interval of attempts to get a new certificate.
const ROTATE_AGAIN: Duration = Duration::from_secs(300);

/// Something to do, whose outcome is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Prepare requests to the API server. Outcome: [`Seen::Connected`].
    Connect,
    /// Make the Node, or update the existing one. Outcome: [`Seen::Registered`].
    Register,
    /// Renew the Lease; if `create`, make a missing one. Outcome: [`Seen::LeaseRenewed`] or [`Seen::NodeGone`].
    RenewLease {
        /// The Node was registered just now.
        create: bool,
    },
    /// List the pods of the node. Outcome: [`Seen::Listed`].
    List,
    /// Send the statuses that differ, of all pods. Outcome: [`Seen::Sent`].
    SendStatuses,
    /// Send what has changed on the board. Outcome: [`Seen::Sent`].
    SendChanges,
    /// Report the state of the node. Outcome: [`Seen::NodeReported`] or [`Seen::NodeGone`].
    ReportNode,
    /// Renew tokens, and repeat what the cluster rejected. Outcome: [`Seen::Refreshed`].
    Refresh,
    /// Watch the pods of the node from this version on. Outcome: [`Seen::WatchOpened`] or [`Seen::WatchExpired`].
    Watch {
        /// `resourceVersion`.
        version: String,
    },
    /// Replace the client certificate. Outcome: [`Seen::Rotated`].
    Rotate,
    /// End the session: the connection of the watches is dead. Outcome: [`Seen::Failed`].
    GiveUp,
    /// End the visit of a periodic synchronisation, when all objects are current. Outcome: [`Seen::Left`].
    Leave,
}

/// The outcome of an action, or news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Requests can be sent. The certificate is to be replaced at this time, in seconds since 1970.
    Connected {
        /// The time of the replacement.
        rotate_at: i64,
    },
    /// The cluster has the Node, and its state is current.
    Registered,
    /// The Lease was renewed.
    LeaseRenewed,
    /// The cluster has no Node or no Lease. It removes a Lease with its Node.
    NodeGone,
    /// All pods were listed, at this version.
    Listed {
        /// `resourceVersion` of the list.
        version: String,
    },
    /// All changes were sent.
    Sent,
    /// The state of the node was reported.
    NodeReported,
    /// The tokens of pods are current.
    Refreshed,
    /// The watch has begun.
    WatchOpened,
    /// The watch ended.
    WatchEnded,
    /// The versions since that of the watch are not available any more (410 Gone).
    WatchExpired,
    /// An event of this length was read from the watch.
    Event {
        /// Its length in bytes.
        length: usize,
        /// `resourceVersion` of its object.
        version: Option<String>,
    },
    /// Something changed on the board.
    BoardChanged,
    /// The state of the node on the board is another than the reported one.
    NodeChanged,
    /// The client certificate was replaced, or could not be replaced.
    Rotated(bool),
    /// An action failed, or the watch did.
    Failed,
    /// An action failed, and the server accepts no request for this time.
    Busy(Duration),
    /// Something of a pod was sent or taken.
    News,
    /// A periodic synchronisation is complete.
    Left,
    /// A link to the server came up, or a client requests a connection.
    ConnectNow,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an action that is not performed is never observed"]
pub enum Next {
    /// Perform this action.
    Do(Action),
    /// Wait for news until then.
    Wait {
        /// When to ask again.
        until: Instant,
        /// Whether events of the watch may be read meanwhile.
        reads: bool,
        /// Whether a change on the board is news.
        changes: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down { until: Instant },
    Up { since: Instant },
}

/// The state of the Node in the cluster, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Unregistered,
    /// Registered, with a Lease that may not exist.
    WithoutLease,
    Leased,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pods {
    Unlisted,
    /// Listed, and their statuses were not compared.
    Listed,
    Current,
}

fn first(periodic: Option<Periodic>) -> Backoff {
    periodic.map_or(Backoff::default(), |periodic| Backoff::up_to(periodic.longest_backoff()))
}

/// The schedule of a node, which outlives sessions.
#[derive(Debug)]
pub struct Schedule {
    /// When the node connects; `None` for a permanent connection.
    periodic: Option<Periodic>,
    reporting: Reporting,
    visit: Visit,
    link: Link,
    backoff: Backoff,
    node: Node,
    lease_at: Instant,
    report_at: Instant,
    node_changed: bool,
    pods: Pods,
    board_changed: bool,
    /// When changes on the board are sent.
    send_at: Instant,
    refresh_at: Instant,
    /// Version up to which events were read.
    version: String,
    /// The begin of the last watch.
    watch_since: Instant,
    /// The time of the last event.
    heard_at: Instant,
    is_watching: bool,
    watches: Backoff,
    rate: Rate,
    /// The next watch, or the next event, waits until then; everything else goes on.
    read_at: Instant,
    /// In seconds since 1970.
    rotate_at: i64,
    rotate_again: Instant,
}

impl Schedule {
    /// The schedule of a node that connects at once, and periodically or for ever.
    pub fn new(now: Instant, periodic: Option<Periodic>, reporting: Reporting) -> Schedule {
        Schedule {
            periodic,
            reporting,
            visit: Visit::new(now),
            link: Link::Down { until: now },
            backoff: first(periodic),
            node: Node::Unregistered,
            lease_at: now,
            report_at: now,
            node_changed: false,
            pods: Pods::Unlisted,
            board_changed: false,
            send_at: now,
            refresh_at: now,
            version: String::new(),
            watch_since: now,
            heard_at: now,
            is_watching: false,
            watches: Backoff::default(),
            rate: Rate::new(now),
            read_at: now,
            rotate_at: i64::MAX,
            rotate_again: now,
        }
    }

    /// Whether a session has begun, so that news are awaited.
    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    /// Whether pods are watched, so that all else may be.
    pub fn is_watching(&self) -> bool {
        self.is_watching
    }

    /// Whether the pods of the node were listed in this session.
    pub fn has_listed(&self) -> bool {
        self.is_up() && self.pods != Pods::Unlisted
    }

    /// The next step; `wall` is the wall time in seconds since 1970.
    pub fn next(&self, now: Instant, wall: i64) -> Next {
        if let Link::Down { until } = self.link {
            return match now < until {
                true => Next::Wait { until, reads: false, changes: false },
                false => Next::Do(Action::Connect),
            };
        }
        let rotates = wall >= self.rotate_at;
        // A visit may be the only chance before the certificate expires.
        let leaves_at = self.periodic.map(|_| self.visit.ends_at());
        let leaves = leaves_at.is_some_and(|at| now >= at);
        let action = match (self.node, self.pods) {
            (Node::Unregistered, _) => Action::Register,
            (Node::WithoutLease, _) => Action::RenewLease { create: true },
            (Node::Leased, _) if now >= self.lease_at => Action::RenewLease { create: false },
            (Node::Leased, Pods::Unlisted) => Action::List,
            (Node::Leased, Pods::Listed) => Action::SendStatuses,
            (Node::Leased, Pods::Current) if self.board_changed && now >= self.send_at => Action::SendChanges,
            (Node::Leased, Pods::Current) if self.node_changed || now >= self.report_at => Action::ReportNode,
            (Node::Leased, Pods::Current) if now >= self.refresh_at => Action::Refresh,
            (Node::Leased, Pods::Current) if rotates && now >= self.rotate_again => Action::Rotate,
            (Node::Leased, Pods::Current) if leaves => Action::Leave,
            (Node::Leased, Pods::Current) if self.is_watching && now >= self.heard_at + SILENCE => {
                Action::GiveUp
            }
            (Node::Leased, Pods::Current) if !self.is_watching && now >= self.read_at => {
                Action::Watch { version: self.version.clone() }
            }
            (Node::Leased, Pods::Current) => {
                // Tokens wait for the next Lease: they have no wake-up of their own.
                let mut until = self.lease_at.min(self.report_at);
                until = leaves_at.map_or(until, |at| until.min(at));
                let reads = now >= self.read_at;
                let silent_at = self.heard_at + SILENCE;
                for (waits, at) in
                    [(!reads, self.read_at), (rotates, self.rotate_again), (self.is_watching, silent_at)]
                {
                    until = if waits { until.min(at) } else { until };
                }
                return Next::Wait { until, reads: reads && self.is_watching, changes: !self.board_changed };
            }
        };
        Next::Do(action)
    }

    /// Records an observation; `random` is any number.
    pub fn observe(&mut self, now: Instant, random: u16, seen: Seen) {
        match seen {
            Seen::Connected { rotate_at } => {
                self.link = Link::Up { since: now };
                self.node = Node::Unregistered;
                self.pods = Pods::Unlisted;
                (self.is_watching, self.board_changed, self.node_changed) = (false, false, false);
                (self.watches, self.rate, self.read_at) = (Backoff::default(), Rate::new(now), now);
                self.visit = Visit::new(now);
                self.refresh_at = if self.periodic.is_some() { now } else { now + REFRESH_EVERY };
                self.rotate_at = rotate_at;
                // A new session first does all else.
                if self.periodic.is_none() {
                    self.rotate_again = self.rotate_again.max(now + self.reporting.renew_every());
                }
            }
            Seen::Registered => {
                self.node = Node::WithoutLease;
                self.reported(now);
            }
            Seen::LeaseRenewed => {
                // The cluster may have taken the node for lost meanwhile, which only a status of the node changes.
                self.node_changed |= self.node == Node::Leased && now >= self.lease_at + LATE;
                self.node = Node::Leased;
                let every = self.reporting.renew_every();
                self.lease_at = now + every + jitter(every / 25, random);
            }
            Seen::NodeGone => self.node = Node::Unregistered,
            Seen::Listed { version } => {
                self.pods = Pods::Listed;
                self.version = version;
            }
            Seen::Sent => {
                self.pods = Pods::Current;
                self.board_changed = false;
            }
            Seen::NodeReported => self.reported(now),
            Seen::Refreshed => {
                self.refresh_at = now + REFRESH_EVERY + jitter(REFRESH_EVERY / 10, random);
            }
            Seen::WatchOpened => {
                (self.is_watching, self.watch_since, self.heard_at) = (true, now, now);
            }
            Seen::WatchEnded | Seen::WatchExpired => {
                let lasted = if self.is_watching { now - self.watch_since } else { Duration::ZERO };
                self.is_watching = false;
                self.read_at = now + self.watches.ended(lasted, random);
                if seen == Seen::WatchExpired {
                    self.pods = Pods::Unlisted;
                }
            }
            Seen::Event { length, version } => {
                self.read_at = self.rate.read(length, now);
                self.heard_at = now;
                self.version = version.unwrap_or_else(|| std::mem::take(&mut self.version));
            }
            Seen::BoardChanged if self.board_changed => {}
            Seen::BoardChanged => {
                self.board_changed = true;
                // A visit is short: it sends at once.
                let waits = self.reporting.waits_for_lease() && self.periodic.is_none();
                self.send_at = if waits { self.lease_at } else { now };
            }
            Seen::NodeChanged => self.node_changed = true,
            Seen::Rotated(replaced) => {
                // Also after a success: a server that signs for moments must not wear out the flash.
                self.rotate_again = now + ROTATE_AGAIN;
                if replaced {
                    self.link = Link::Down { until: now };
                }
            }
            Seen::Failed => self.fail(now, random, Duration::ZERO),
            Seen::Busy(least) => self.fail(now, random, least + jitter(least / 5, random)),
            Seen::News => self.visit.has_news(now),
            Seen::Left => {
                self.backoff = first(self.periodic);
                let since = match self.link {
                    Link::Up { since } => since,
                    Link::Down { .. } => now,
                };
                let next = self.periodic.map_or(now, |periodic| periodic.next(since, random));
                self.link = Link::Down { until: next };
            }
            Seen::ConnectNow => {
                match &mut self.link {
                    Link::Down { until } => *until = now,
                    // Nothing waits for the next renewal of the Lease.
                    Link::Up { .. } => (self.board_changed, self.send_at) = (true, now),
                }
            }
        }
    }

    /// A session or an attempt at one has failed. The next one waits for at least this time.
    fn fail(&mut self, now: Instant, random: u16, least: Duration) {
        let lasted = match self.link {
            Link::Up { since } => now - since,
            Link::Down { .. } => Duration::ZERO,
        };
        self.link = Link::Down { until: now + self.backoff.ended(lasted, random).max(least) };
    }

    fn reported(&mut self, now: Instant) {
        self.node_changed = false;
        self.report_at = now + self.reporting.report_every();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster in simulated time, in which every action succeeds unless `fails` has another outcome for it.
    struct Sim {
        schedule: Schedule,
        start: Instant,
        now: Instant,
        trace: String,
    }

    impl Sim {
        fn new() -> Sim {
            let start = Instant::now();
            let schedule = Schedule::new(start, None, Reporting::Ordinary);
            Sim { schedule, start, now: start, trace: String::new() }
        }

        fn seconds(&self) -> u64 {
            (self.now - self.start).as_secs()
        }

        fn see(&mut self, seen: Seen) {
            self.schedule.observe(self.now, 0, seen);
        }

        /// Performs what is due until so many seconds after the start.
        fn run_until(&mut self, seconds: u64, mut outcome: impl FnMut(&Action) -> Option<Seen>) {
            let end = self.start + Duration::from_secs(seconds);
            let mut turns = 0;
            loop {
                turns += 1;
                assert!(turns < 10_000, "it spins: {}", self.trace);
                match self.schedule.next(self.now, self.seconds() as i64) {
                    Next::Wait { until, .. } if until > end => break self.now = end,
                    Next::Wait { until, .. } => {
                        assert!(until > self.now, "a wait that is over: {}", self.trace);
                        self.now = until;
                    }
                    Next::Do(action) => {
                        let seen = outcome(&action).unwrap_or_else(|| success(&action));
                        let word = format!("{action:?}");
                        let result = format!("{seen:?}");
                        if seen == success(&action) {
                            self.trace += &format!("{:4}s {word}\n", self.seconds());
                        } else {
                            self.trace += &format!("{:4}s {word}: {result}\n", self.seconds());
                        }
                        self.see(seen);
                    }
                }
            }
        }

        fn take(&mut self) -> String {
            std::mem::take(&mut self.trace)
        }
    }

    fn success(action: &Action) -> Seen {
        match action {
            Action::Connect => Seen::Connected { rotate_at: i64::MAX },
            Action::Register => Seen::Registered,
            Action::RenewLease { .. } => Seen::LeaseRenewed,
            Action::List => Seen::Listed { version: "7".into() },
            Action::SendStatuses | Action::SendChanges => Seen::Sent,
            Action::ReportNode => Seen::NodeReported,
            Action::Refresh => Seen::Refreshed,
            Action::Watch { .. } => Seen::WatchOpened,
            Action::Rotate => Seen::Rotated(true),
            Action::GiveUp => Seen::Failed,
            Action::Leave => Seen::Left,
        }
    }

    const BEGIN: &str = "   0s Connect\n   0s Register\n   0s RenewLease { create: true }\n   0s List\n   0s SendStatuses\n   0s Watch { version: \"7\" }\n";

    #[test]
    fn a_session_registers_lists_watches_and_renews_the_lease() {
        let mut sim = Sim::new();
        sim.run_until(25, |_| None);
        let renewals = "  10s RenewLease { create: false }\n  20s RenewLease { create: false }\n";
        assert_eq!(sim.take(), format!("{BEGIN}{renewals}"));
        let mut trace = String::new();
        for minute in 1..=60 {
            sim.see(Seen::Event { length: 100, version: None });
            sim.run_until(minute * 60, |_| None);
            trace += &sim.take();
        }
        let count = |word: &str| trace.matches(word).count();
        assert_eq!((count("RenewLease"), count("ReportNode"), count("Refresh")), (358, 12, 60));
        assert_eq!(count("Watch") + count("List") + count("Register"), 0);
    }

    #[test]
    fn a_node_whose_lease_was_renewed_late_is_reported_because_it_may_have_been_taken_for_lost() {
        let mut sim = Sim::new();
        sim.run_until(5, |_| None);
        sim.take();
        for (late, is_reported) in [(4, false), (5, true)] {
            sim.now = sim.schedule.lease_at + Duration::from_secs(late);
            sim.see(Seen::LeaseRenewed);
            let end = sim.seconds() + 1;
            sim.run_until(end, |_| None);
            assert_eq!(sim.take().contains("ReportNode"), is_reported, "{late} s");
        }
    }

    #[test]
    fn a_metered_node_sends_changes_with_the_lease_or_on_request() {
        let mut sim = Sim::new();
        sim.schedule = Schedule::new(sim.start, None, Reporting::Metered);
        sim.run_until(2, |_| None);
        assert_eq!(sim.take(), BEGIN);
        for _ in 0..3 {
            sim.see(Seen::BoardChanged);
            let waits =
                matches!(sim.schedule.next(sim.now, 0), Next::Wait { reads: true, changes: false, .. });
            assert!(waits, "{:?}", sim.schedule);
        }
        sim.run_until(30, |_| None);
        assert_eq!(sim.take(), "  25s RenewLease { create: false }\n  25s SendChanges\n");
        sim.see(Seen::BoardChanged);
        sim.see(Seen::ConnectNow);
        sim.run_until(31, |_| None);
        assert_eq!(sim.take(), "  30s SendChanges\n");
        let mut trace = String::new();
        for minute in 1..=60 {
            sim.see(Seen::Event { length: 100, version: None });
            sim.run_until(30 + minute * 60, |_| None);
            trace += &sim.take();
        }
        let count = |word: &str| trace.matches(word).count();
        assert_eq!((count("RenewLease"), count("ReportNode"), count("SendChanges")), (144, 1, 0));
    }

    #[test]
    fn a_watch_without_any_event_is_dead() {
        let mut sim = Sim::new();
        sim.run_until(400, |_| None);
        sim.see(Seen::Event { length: 100, version: None });
        sim.run_until(1059, |_| None);
        sim.take();
        sim.run_until(1061, |_| None);
        assert!(sim.take().contains("1060s GiveUp\n1060s Connect\n"));
    }

    #[test]
    fn a_failure_ends_the_session_and_the_next_attempts_wait_longer_and_longer() {
        let mut sim = Sim::new();
        sim.run_until(61, |_| None);
        sim.take();
        // The session lasted a minute: the waits begin anew.
        sim.see(Seen::Failed);
        sim.run_until(180, |_| Some(Seen::Failed));
        let times: Vec<u64> =
            sim.take().lines().map(|line| line[..4].trim().parse().expect("seconds")).collect();
        assert_eq!(times, [61, 63, 66, 73, 85, 111, 141, 171]);
        sim.run_until(202, |_| None);
        let trace = sim.take();
        assert!(trace.starts_with(" 201s Connect\n 201s Register\n"), "{trace}");
    }

    #[test]
    fn a_node_that_is_gone_is_registered_again_and_the_pods_are_not_listed_again() {
        let mut sim = Sim::new();
        sim.run_until(1, |_| None);
        sim.take();
        let mut is_gone = true;
        sim.run_until(11, |action| {
            let renews = *action == Action::RenewLease { create: false };
            (renews && std::mem::take(&mut is_gone)).then_some(Seen::NodeGone)
        });
        let expected = "  10s RenewLease { create: false }: NodeGone\n  10s Register\n  10s RenewLease { create: true }\n";
        assert_eq!(sim.take(), expected);
    }

    #[test]
    fn a_watch_that_expires_lists_again_at_once_and_watches_after_a_pause() {
        let mut sim = Sim::new();
        sim.run_until(5, |_| None);
        sim.take();
        sim.see(Seen::Event { length: 10, version: Some("9".into()) });
        sim.see(Seen::WatchEnded);
        sim.run_until(6, |_| None);
        assert_eq!(sim.take(), "   5s Watch { version: \"9\" }\n");
        sim.see(Seen::WatchExpired);
        sim.run_until(9, |_| None);
        assert_eq!(sim.take(), "   6s List\n   6s SendStatuses\n   7s Watch { version: \"7\" }\n");
        // A server that ends every watch at once is asked less and less often.
        sim.see(Seen::WatchEnded);
        sim.run_until(309, |action| matches!(action, Action::Watch { .. }).then_some(Seen::WatchEnded));
        assert_eq!(sim.take().matches("Watch {").count(), 12);
    }

    #[test]
    fn changes_of_the_board_are_sent_at_once_and_an_endless_watch_delays_only_itself() {
        let mut sim = Sim::new();
        sim.run_until(1, |_| None);
        sim.take();
        for _ in 0..1000 {
            sim.see(Seen::Event { length: 10, version: None });
        }
        let next = sim.schedule.next(sim.now, 0);
        assert!(matches!(next, Next::Wait { reads: false, .. }), "{next:?}");
        sim.see(Seen::BoardChanged);
        sim.see(Seen::NodeChanged);
        sim.run_until(1, |_| None);
        assert_eq!(sim.take(), "   1s SendChanges\n   1s ReportNode\n");
        sim.run_until(3, |_| None);
        let next = sim.schedule.next(sim.now, 0);
        assert!(matches!(next, Next::Wait { reads: true, .. }), "{next:?}");
    }

    #[test]
    fn a_certificate_is_replaced_when_it_is_due_and_after_a_failure_not_before_five_minutes() {
        let mut sim = Sim::new();
        let mut attempts = 0;
        sim.run_until(650, |action| match action {
            Action::Connect => Some(Seen::Connected { rotate_at: if attempts < 2 { 100 } else { 9999 } }),
            Action::Rotate => {
                attempts += 1;
                Some(Seen::Rotated(attempts == 2))
            }
            _ => None,
        });
        let trace = sim.take();
        let rotations: Vec<&str> = trace.lines().filter(|line| line.contains("Rotate")).collect();
        assert_eq!(rotations, [" 100s Rotate: Rotated(false)", " 400s Rotate"]);
        assert!(trace.contains(" 400s Rotate\n 400s Connect: Connected { rotate_at: 9999 }\n"), "{trace}");
    }

    #[test]
    fn a_busy_server_is_left_alone_as_long_as_it_asks() {
        let mut sim = Sim::new();
        sim.run_until(1, |_| Some(Seen::Busy(Duration::from_secs(100))));
        sim.take();
        sim.run_until(101, |_| None);
        assert!(sim.take().starts_with(" 100s Connect\n"));
    }

    #[test]
    fn a_periodic_node_leaves_when_there_is_nothing_to_do_and_returns_in_time_or_on_request() {
        let every = Duration::from_secs(3600);
        let mut sim = Sim::new();
        let periodic = Periodic { every, jitter: Duration::ZERO };
        sim.schedule = Schedule::new(sim.start, Some(periodic), Reporting::Metered);
        sim.run_until(10, |_| None);
        let visit = "Connect\n   0s Register\n   0s RenewLease { create: true }\n   0s List\n   0s SendStatuses\n   0s Refresh\n   0s Leave\n";
        assert_eq!(sim.take(), format!("   0s {visit}"));
        sim.run_until(3599, |_| None);
        assert_eq!(sim.take(), "");
        // With news it stays until it is quiet, and watches meanwhile.
        let mut sends = true;
        let outcome = |action: &Action| (*action == Action::Register).then_some(Seen::Registered);
        sim.run_until(3600, |action| match action {
            Action::SendStatuses if std::mem::take(&mut sends) => Some(Seen::News),
            action => outcome(action),
        });
        let trace = sim.take();
        assert!(trace.contains("Watch") && !trace.contains("Leave"), "{trace}");
        sim.run_until(3700, |_| None);
        assert!(sim.take().ends_with("3620s Leave\n"));
        sim.see(Seen::ConnectNow);
        sim.run_until(3701, |_| None);
        assert!(sim.take().starts_with("3700s Connect\n"));
    }

    #[test]
    fn random_outcomes_never_spin_and_always_come_back() {
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32
        };
        for _ in 0..200 {
            let mut sim = Sim::new();
            for step in 1..20 {
                sim.run_until(step * 50, |action| match (random() % 8, action) {
                    (0, _) => Some(Seen::Failed),
                    (1, Action::RenewLease { .. } | Action::ReportNode) => Some(Seen::NodeGone),
                    (2, Action::Watch { .. }) => Some(Seen::WatchExpired),
                    _ => None,
                });
                if random().is_multiple_of(2) && sim.schedule.is_up() {
                    sim.see(Seen::BoardChanged);
                }
                sim.take();
            }
            sim.run_until(1200, |_| None);
            sim.see(Seen::BoardChanged);
            sim.take();
            sim.run_until(1200, |_| None);
            assert!(sim.take().contains("SendChanges"));
        }
    }
}
