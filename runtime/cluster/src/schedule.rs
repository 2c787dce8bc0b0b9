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

mod facts;

use std::time::{Duration, Instant};

use crate::backoff::{Backoff, Rate, jitter};
use crate::reporting::Reporting;
use crate::sync::{Periodic, Visit};
pub use facts::{Action, Next, Seen};

/// The interval at which tokens, unbound claims, rejected mirror pods and labels that were not stored are looked at.
pub const REFRESH_EVERY: Duration = Duration::from_secs(60);

/// The time after which a watch without any event is taken for dead: the server ends each after 10 minutes.
const SILENCE: Duration = Duration::from_secs(660);

/// A renewal of the Lease that is later than this is followed by a report of the node.
const LATE: Duration = Duration::from_secs(5);

/// The time between two looks at the pods of a Node that was deleted.
const RETIRE_EVERY: Duration = Duration::from_secs(1);

/// The least time from noticing that the Node was deleted to making another one. The controllers of the cluster take the
/// range and the pods of the first one away meanwhile.
const REGISTER_AFTER: Duration = Duration::from_secs(10);

/// Whether a board whose Node was deleted makes another one: all pods of the first one have ended here and in the
/// cluster, and the first one has been gone for long enough.
pub fn may_register(has_ended: bool, gone_for: Duration) -> bool {
    has_ended && gone_for >= REGISTER_AFTER
}

/// The interval of attempts to get a new certificate.
const ROTATE_AGAIN: Duration = Duration::from_secs(300);

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
    /// When the Node is made, at the earliest.
    register_at: Instant,
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
            register_at: now,
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
            return if now < until {
                Next::Wait { until, reads: false, changes: false }
            } else {
                Next::Do(Action::Connect)
            };
        }
        let rotates = wall >= self.rotate_at;
        // A visit may be the only chance before the certificate expires.
        let leaves_at = self.periodic.map(|_| self.visit.ends_at());
        let leaves = leaves_at.is_some_and(|at| now >= at);
        let action = match (self.node, self.pods) {
            (Node::Unregistered, _) if now < self.register_at && !leaves => {
                let until = leaves_at.map_or(self.register_at, |at| at.min(self.register_at));
                return Next::Wait { until, reads: false, changes: false };
            }
            (Node::Unregistered, _) if leaves && now < self.register_at => Action::Leave,
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
                self.register_at = now;
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
            Seen::Retiring => self.register_at = now + RETIRE_EVERY,
            // What the watch still has to say is about pods that end. Clients of these look for others: the next session
            // begins at once, and there is no third one before a Node was made, after a pause.
            Seen::NodeDeleted => self.link = Link::Down { until: now },
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
            Seen::Synchronised => {
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
mod tests;
