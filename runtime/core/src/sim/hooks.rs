//! Invariants of hooks: one agent runs each hook at most once a run; no container starts before the postStart
//! hooks of earlier containers have finished; no run is asked to end during its preStop hook while there is
//! time; and no run lives longer than its grace period allows.

use std::time::Duration;

use super::{HookFate, Sim, secs};
use crate::facts::*;
use crate::spec::*;
use crate::time::Instant;

/// The hooks of a run, as far as the present agent is concerned.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The hooks that were started.
    begun: Vec<HookKind>,
    /// The hooks whose end was not reported yet.
    pub(super) open: Vec<HookKind>,
    /// When the preStop hook was started.
    pre_stop_since: Option<Instant>,
    /// The failure of the postStart hook was reported: the agent ends the run, maybe after it has slept.
    has_failed: bool,
    /// The latest time for the kill of a run that was asked to end, or whose preStop hook was started.
    promised: Option<Instant>,
    pub(super) killed: bool,
}

impl Sim {
    /// Runs a hook for the agent. Panics if the hook must not run.
    pub(super) fn begin_hook(&mut self, uid: &Uid, index: PodIndex, attempt: Attempt, kind: HookKind) {
        let now = self.now;
        let pod = self.of(uid).pod.clone();
        let spec = pod.spec.container(attempt.container);
        let asks = matches!(spec.lifecycle.hook(kind), Some(Hook::Asks(_)));
        assert!(asks, "{uid}: {attempt:?} has no {kind:?} to be asked");
        let failed = |failure: bool| PodObservation::Hooked {
            attempt,
            kind,
            failure: failure.then(|| "it cannot be".into()),
        };
        let Some(process) = self.of(uid).alive.get_mut(&attempt) else {
            // The run has ended by itself meanwhile.
            self.answer_of(index, failed(true));
            return;
        };
        assert!(process.started.is_some(), "{uid}: {kind:?} of {attempt:?} before it has started");
        assert!(!process.hooks.begun.contains(&kind), "{uid}: {kind:?} of {attempt:?} a second time");
        assert!(process.asked_to_end.is_none(), "{uid}: {kind:?} of {attempt:?}, which was asked to end");
        process.hooks.begun.push(kind);
        process.hooks.open.push(kind);
        if kind == HookKind::PreStop {
            process.hooks.pre_stop_since = Some(now);
            self.promise(uid, attempt);
        }
        match (self.hook)(&spec.name, kind, attempt.number) {
            HookFate::Succeeds(after) => self.answer_after(after, index, failed(false)),
            HookFate::Fails(after) => self.answer_after(after, index, failed(true)),
            HookFate::Hangs => {}
        }
    }

    fn answer_after(&mut self, after: Duration, index: PodIndex, seen: PodObservation) {
        let latency = self.weather.latency.as_millis() as u64;
        let late = if latency == 0 { 0 } else { self.chance.below(latency) };
        self.after(after + Duration::from_millis(late), super::Happening::ObservedOf(index, seen));
    }

    /// Reports the failure of hooks that end with their run, maybe after the end of the run.
    pub(super) fn end_hooks(&mut self, index: PodIndex, attempt: Attempt, hooks: &Seen) {
        for kind in hooks.open.clone() {
            let failure = Some("exited with 137".into());
            self.answer_after(Duration::ZERO, index, PodObservation::Hooked { attempt, kind, failure });
        }
    }

    /// Records that the end of a hook is about to be reported to the core.
    pub(super) fn record_reported_hook(
        &mut self,
        index: PodIndex,
        attempt: Attempt,
        kind: HookKind,
        failed: bool,
    ) {
        let Some(world) = self.pods.iter_mut().find(|world| world.index == Some(index)) else { return };
        // The report may be late: the next run of the container is not checked against it.
        if let Some(process) = world.alive.get_mut(&attempt) {
            process.hooks.open.retain(|open| *open != kind);
            process.hooks.has_failed |= kind == HookKind::PostStart && failed;
            world.order.hooked(attempt, kind, failed);
        }
    }

    /// Checks that a run is asked to end only after its preStop hook has finished, or at the end of the grace
    /// period.
    pub(super) fn check_hook(&mut self, uid: &Uid, attempt: Attempt) {
        let (now, log) = (self.now, self.log.clone());
        let world = self.of(uid);
        let stopped = world.order.stopped();
        let pod = world.pod.clone();
        let Some(process) = world.alive.get_mut(&attempt) else { return };
        let since = process.hooks.pre_stop_since;
        if process.hooks.open.contains(&HookKind::PreStop) {
            let graces = stopped.into_iter().chain(since.map(|since| (since, shortest(&pod, attempt))));
            let over = graces.map(|(since, grace)| since + grace).min();
            assert!(
                over.is_some_and(|over| over <= now),
                "{uid}: {attempt:?} is asked to end in the midst of its hook\n{log}"
            );
        }
        self.promise(uid, attempt);
    }

    /// Sets the latest time for the kill, unless it is set.
    fn promise(&mut self, uid: &Uid, attempt: Attempt) {
        let (now, slack) = (self.now, self.slack());
        let world = self.of(uid);
        let pod = world.pod.clone();
        // A deletion may give the pod more than its own grace period.
        let deleted = world.order.stopped().map_or(now, |(since, grace)| since + grace);
        let Some(process) = world.alive.get_mut(&attempt) else { return };
        let over = deleted.max(now + longest(&pod, attempt));
        process.hooks.promised.get_or_insert(over + secs(4) + slack);
    }

    /// Checks that no run lives longer than its grace period allows.
    pub(super) fn check_promises(&self) {
        for world in &self.pods {
            for (attempt, process) in &world.alive {
                assert!(
                    process.hooks.killed
                        || process.hooks.promised.is_none_or(|promised| self.now <= promised),
                    "{}: {attempt:?} has more grace than it was promised\n{}",
                    world.pod.uid,
                    self.log
                );
            }
        }
    }
}

impl Seen {
    /// Whether the run is about to be ended.
    pub(super) fn is_ending(&self) -> bool {
        self.pre_stop_since.is_some() || self.has_failed
    }

    /// Whether a postStart hook is running, so that nothing may start.
    pub(super) fn is_starting(&self) -> bool {
        self.open.contains(&HookKind::PostStart)
    }
}

impl super::Process {
    /// Forgets the hooks: another agent does not know of them, except that a preStop hook has finished.
    pub(super) fn forget_agent(&mut self) {
        let begun = self.hooks.begun.contains(&HookKind::PreStop);
        let pre_stopped =
            begun && (!self.hooks.open.contains(&HookKind::PreStop) || self.asked_to_end.is_some());
        self.hooks = Seen::default();
        if pre_stopped {
            self.hooks.begun.push(HookKind::PreStop);
        }
        self.asked_to_end = None;
    }
}

/// All grace periods that a run may get by its spec.
fn graces(pod: &Pod, attempt: Attempt) -> impl Iterator<Item = Duration> {
    let spec = pod.spec.container(attempt.container);
    let own = [ProbeKind::Liveness, ProbeKind::Startup].into_iter().filter_map(|kind| spec.probe_grace(kind));
    own.chain([pod.spec.termination_grace_period])
}

fn longest(pod: &Pod, attempt: Attempt) -> Duration {
    graces(pod, attempt).max().unwrap_or_default()
}

fn shortest(pod: &Pod, attempt: Attempt) -> Duration {
    graces(pod, attempt).min().unwrap_or_default()
}
