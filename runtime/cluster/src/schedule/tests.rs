//! Timelines of a node in a simulated cluster.

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
        Action::Leave => Seen::Synchronised,
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
        let waits = matches!(sim.schedule.next(sim.now, 0), Next::Wait { reads: true, changes: false, .. });
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
    let times: Vec<u64> = sim.take().lines().map(|line| line[..4].trim().parse().expect("seconds")).collect();
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
    let expected =
        "  10s RenewLease { create: false }: NodeGone\n  10s Register\n  10s RenewLease { create: true }\n";
    assert_eq!(sim.take(), expected);
}

#[test]
fn a_node_that_was_deleted_is_made_again_when_its_pods_are_gone() {
    let mut sim = Sim::new();
    let mut looks = 0;
    sim.run_until(3, |action| {
        looks += usize::from(*action == Action::Register);
        (*action == Action::Register && looks < 3).then_some(Seen::Retiring)
    });
    let expected = "   0s Connect\n   0s Register: Retiring\n   1s Register: Retiring\n   2s Register\n   2s RenewLease { create: true }\n   2s List\n";
    let trace = sim.take();
    assert!(trace.starts_with(expected), "{trace}");
}

#[test]
fn a_session_whose_node_was_deleted_is_followed_by_another_one_at_once() {
    let mut sim = Sim::new();
    sim.run_until(5, |_| None);
    sim.take();
    sim.see(Seen::NodeGone);
    let mut looks = 0;
    sim.run_until(7, |action| {
        looks += usize::from(*action == Action::Register);
        let outcomes = [Seen::NodeDeleted, Seen::Retiring];
        (*action == Action::Register).then(|| outcomes.get(looks - 1).cloned()).flatten()
    });
    let expected = "   5s Register: NodeDeleted\n   5s Connect\n   5s Register: Retiring\n   6s Register\n   6s RenewLease { create: true }\n   6s List\n";
    let trace = sim.take();
    assert!(trace.starts_with(expected), "{trace}");
}

#[test]
fn another_node_is_made_after_a_pause_and_not_before_the_pods_have_ended() {
    let seconds = Duration::from_secs;
    for (has_ended, gone_for, expected) in
        [(true, 0, false), (true, 9, false), (true, 10, true), (false, 10, false), (false, 3600, false)]
    {
        assert_eq!(super::may_register(has_ended, seconds(gone_for)), expected, "{has_ended} {gone_for}");
    }
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
