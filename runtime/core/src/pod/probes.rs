//! The state of the probes of one run: when each is due, and what its results mean. `probe.rs` plans them.

use std::hash::Hasher;
use std::time::Duration;

use crate::facts::{Health, ProbeResult};
use crate::spec::{Container, ContainerIndex, Pod, ProbeAction, ProbeKind};
use crate::time::Instant;

/// How often a probe is tried, without a pause, if the probe itself fails to run.
const MAX_TRIES: u8 = 3;

/// The probes of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probes {
    workers: heapless::Vec<Worker, 3>,
    /// Whether `started` was true before this agent adopted the run.
    was_started: bool,
    /// Whether `ready` was true before this agent adopted the run.
    was_ready: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Worker {
    kind: ProbeKind,
    /// Whether this is an exec probe. The node plans these, since only a few may run at once.
    exec: bool,
    /// The probe does not run before this time, whatever changes.
    not_before: Instant,
    due: Instant,
    state: ProbeState,
    /// Whether to probe again as soon as the result is there.
    again: bool,
    /// The result that has reached its threshold.
    result: Option<bool>,
    last: Option<bool>,
    in_a_row: u32,
    errors: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeState {
    /// The probe runs when it is due.
    Between,
    /// The probe is running.
    InFlight,
    /// The probe is running, and its result will not count; then it is held.
    GivenUp,
    /// The probe does not run again in this run of the container.
    Held,
}

/// The effect of a probe's result on the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeEffect {
    /// No result was expected.
    NotAsked,
    /// The result changes nothing.
    Nothing,
    /// `started` or `ready` may have changed.
    HealthChanged,
    /// The container is to be killed.
    Fatal,
}

impl Probes {
    /// The probes of a run that was started at `started`.
    pub(crate) fn of(container: &Container, started: Instant) -> Self {
        let mut workers = heapless::Vec::new();
        for kind in [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness] {
            if let Some(probe) = container.probe(kind) {
                let pushed = workers.push(Worker {
                    kind,
                    exec: match probe.action {
                        ProbeAction::Exec(_) => true,
                        ProbeAction::HttpGet { .. }
                        | ProbeAction::Grpc { .. }
                        | ProbeAction::TcpSocket { .. } => false,
                    },
                    not_before: started + probe.initial_delay,
                    due: started + probe.initial_delay,
                    state: ProbeState::Between,
                    again: false,
                    result: None,
                    last: None,
                    in_a_row: 0,
                    errors: 0,
                });
                debug_assert!(pushed.is_ok(), "a container has three kinds of probes");
            }
        }
        Probes { workers, was_started: false, was_ready: false }
    }

    /// The probes of the next run of the same container, after these.
    pub(crate) fn renewed(&self, container: &Container, started: Instant) -> Self {
        let mut probes = Probes::of(container, started);
        for worker in &mut probes.workers {
            if let Some(before) = self.workers.iter().find(|before| before.kind == worker.kind) {
                (worker.last, worker.in_a_row) = (before.last, before.in_a_row);
            }
        }
        probes
    }

    /// Records that the run has ended: no result is expected, and no decision is valid any more.
    pub(crate) fn end_run(&mut self) {
        (self.was_started, self.was_ready) = (false, false);
        for worker in &mut self.workers {
            worker.state = ProbeState::Held;
            worker.result = None;
        }
    }

    /// Records that the pod's state changed: readiness is probed at once, unless the container is ready.
    pub(crate) fn ask_readiness_again(&mut self, now: Instant) {
        let readiness = |worker: &&mut Worker| worker.kind == ProbeKind::Readiness;
        let Some(worker) = self.workers.iter_mut().find(readiness) else { return };
        if worker.result == Some(true) || now < worker.not_before {
            return;
        }
        match worker.state {
            ProbeState::Between => worker.due = worker.due.min(now),
            ProbeState::InFlight => worker.again = true,
            ProbeState::GivenUp | ProbeState::Held => {}
        }
    }

    /// The probes of a run that a previous agent started.
    pub(crate) fn adopted(
        pod: &Pod,
        index: ContainerIndex,
        started: Instant,
        now: Instant,
        health: Health,
    ) -> Self {
        let container = pod.spec.container(index);
        let mut probes = Probes::of(container, started);
        probes.was_started = health.started;
        probes.was_ready = health.ready;
        for worker in &mut probes.workers {
            let period = container.probe(worker.kind).map_or(Duration::ZERO, |probe| probe.period);
            let spread = spread(&pod.uid.0, index, worker.kind) % (period.as_nanos() as u64).max(1);
            worker.due = worker.due.max(now + Duration::from_nanos(spread));
            worker.not_before = worker.due;
        }
        probes
    }

    /// `started` and `ready` of a run that is alive.
    pub(crate) fn health(&self) -> Health {
        let found = |kind| self.workers.iter().find(|worker| worker.kind == kind).map(|worker| worker.result);
        let started = match found(ProbeKind::Startup) {
            None => true,
            Some(Some(success)) => success,
            Some(None) => self.was_started,
        };
        let ready = match found(ProbeKind::Readiness) {
            None => true,
            Some(Some(success)) => success,
            Some(None) => self.was_ready,
        };
        Health { started, ready: started && ready, ..Health::default() }
    }

    /// Records that the pod is being stopped: only readiness is probed from now on. A kubelet keeps probing
    /// sidecars.
    pub(crate) fn stop(&mut self) {
        for worker in &mut self.workers {
            match worker.kind {
                ProbeKind::Readiness => {}
                ProbeKind::Liveness | ProbeKind::Startup => {
                    worker.result = Some(true);
                    worker.state = match worker.state {
                        // The process of an exec probe keeps running, and keeps its place.
                        ProbeState::InFlight | ProbeState::GivenUp => ProbeState::GivenUp,
                        ProbeState::Between | ProbeState::Held => ProbeState::Held,
                    };
                }
            }
        }
    }

    /// When each probe is due that may run, and whether it is an exec probe.
    pub(crate) fn due(&self) -> impl Iterator<Item = (ProbeKind, bool, Instant)> {
        let started = self.health().started;
        self.workers.iter().filter_map(move |worker| {
            let gate_open = match worker.kind {
                ProbeKind::Startup => !started,
                ProbeKind::Liveness | ProbeKind::Readiness => started,
            };
            (gate_open && worker.state == ProbeState::Between).then_some((
                worker.kind,
                worker.exec,
                worker.due,
            ))
        })
    }

    /// The number of exec probes that are running.
    pub(crate) fn exec_in_flight(&self) -> usize {
        self.workers.iter().filter(|worker| worker.is_exec_in_flight()).count()
    }

    /// Whether this probe is an exec probe that is running.
    pub(crate) fn is_exec_in_flight(&self, kind: ProbeKind) -> bool {
        self.workers.iter().any(|worker| worker.kind == kind && worker.is_exec_in_flight())
    }

    /// Records that the probe is running.
    pub(crate) fn mark_running(&mut self, kind: ProbeKind) {
        if let Some(worker) = self.workers.iter_mut().find(|worker| worker.kind == kind) {
            worker.state = ProbeState::InFlight;
        }
    }

    /// Records a result of the probe.
    pub(crate) fn answered(
        &mut self,
        container: &Container,
        now: Instant,
        kind: ProbeKind,
        result: &ProbeResult,
    ) -> ProbeEffect {
        let Some(probe) = container.probe(kind) else { return ProbeEffect::NotAsked };
        let before = self.health();
        let Some(worker) = self.workers.iter_mut().find(|worker| worker.kind == kind) else {
            return ProbeEffect::NotAsked;
        };
        match worker.state {
            ProbeState::InFlight => worker.state = ProbeState::Between,
            ProbeState::GivenUp => {
                worker.state = ProbeState::Held;
                return ProbeEffect::NotAsked;
            }
            ProbeState::Between | ProbeState::Held => return ProbeEffect::NotAsked,
        }
        let success = match result {
            ProbeResult::Success | ProbeResult::Warning(_) => true,
            ProbeResult::Failure(_) => false,
            ProbeResult::Error(_) => {
                worker.errors += 1;
                if worker.errors < MAX_TRIES {
                    worker.due = now;
                } else {
                    worker.errors = 0;
                    worker.keep_time(now, probe.period);
                }
                return ProbeEffect::Nothing;
            }
        };
        worker.errors = 0;
        worker.keep_time(now, probe.period);
        if worker.last == Some(success) {
            worker.in_a_row = worker.in_a_row.saturating_add(1);
        } else {
            worker.last = Some(success);
            worker.in_a_row = 1;
        }
        let threshold = if success { probe.success_threshold } else { probe.failure_threshold };
        if worker.in_a_row < threshold {
            return ProbeEffect::Nothing;
        }
        worker.result = Some(success);
        let fatal = match kind {
            ProbeKind::Readiness => false,
            ProbeKind::Liveness | ProbeKind::Startup => !success,
        };
        if fatal || kind == ProbeKind::Startup {
            worker.state = ProbeState::Held;
            worker.in_a_row = 0;
        }
        if kind == ProbeKind::Startup && success {
            self.not_before(now);
        }
        if fatal {
            ProbeEffect::Fatal
        } else if self.health() != before {
            ProbeEffect::HealthChanged
        } else {
            ProbeEffect::Nothing
        }
    }

    /// Moves all due times to `now` at the earliest; earlier ones are not made up for.
    pub(crate) fn not_before(&mut self, now: Instant) {
        for worker in &mut self.workers {
            worker.due = worker.due.max(now);
        }
    }

    /// Whether the latest error used up the tries, and so is worth an event.
    pub(crate) fn has_exhausted_retries(&self, kind: ProbeKind) -> bool {
        self.workers.iter().any(|worker| worker.kind == kind && worker.errors == 0)
    }

    /// The state that counts for `kind` now, in a kubelet's word for an event.
    pub(crate) fn state_name(&self, kind: ProbeKind) -> &'static str {
        let found = self.workers.iter().find(|worker| worker.kind == kind).and_then(|worker| worker.result);
        match (kind, found) {
            (_, Some(true)) | (ProbeKind::Liveness, None) => "success",
            (_, Some(false)) | (ProbeKind::Readiness, None) => "failure",
            (ProbeKind::Startup, None) => "unknown",
        }
    }
}

impl Worker {
    fn is_exec_in_flight(&self) -> bool {
        match self.state {
            ProbeState::InFlight | ProbeState::GivenUp => self.exec,
            ProbeState::Between | ProbeState::Held => false,
        }
    }

    /// Sets the next due time on the beat of the period. If beats were missed (a slow result, no free place),
    /// one of them is made up for at once.
    fn keep_time(&mut self, now: Instant, period: Duration) {
        if std::mem::take(&mut self.again) {
            self.due = now;
            return;
        }
        let period = (period.as_nanos() as u64).max(1_000_000_000);
        let beats = (now.since(self.due).as_nanos() as u64 / period).max(1);
        self.due = self.due + Duration::from_nanos(beats * period);
    }
}

fn spread(uid: &str, container: ContainerIndex, kind: ProbeKind) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(uid.as_bytes());
    hasher.write_u8(container.0);
    hasher.write_u8(kind as u8);
    hasher.finish()
}
