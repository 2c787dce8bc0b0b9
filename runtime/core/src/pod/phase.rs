//! Phase and verdict of a pod, derived from its containers. Until the init containers have succeeded, the
//! phase is `Pending`; an init container that fails for good fails the pod. The exits of sidecars do not
//! count, and ephemeral containers do not count at all.

use crate::facts::PodPhase;
use crate::spec::Role;
use crate::time::Instant;

use super::container::{ContainerState, Ended, LOST_WHEN_TERMINATED, STATUS_UNKNOWN, Shown};
use super::{Condition, PodState, Stage, Verdict};
use crate::facts::ConditionType;

impl PodState {
    /// Derives phase and conditions again. This is done after each change and not only for display, so that
    /// no decision depends on when the status was read.
    pub(super) fn settle(&mut self, now: Instant) {
        self.mark_redefined_runs();
        let before = (self.phase, self.conditions);
        self.phase = self.derive_phase();
        let ready = !self.is_rejected()
            && !self.phase.is_terminal()
            && self
                .containers
                .iter()
                .filter(|container| matches!(container.role, Role::Regular | Role::Sidecar))
                .all(|container| container.health().ready);
        let sandbox = self.sandbox.is_ready();
        // An initialised pod stays initialised.
        let initialized = self.is_initialized() || self.conditions.get(ConditionType::Initialized).status;
        let scheduled = Condition { status: !self.pod.is_gated(), since: self.start_time };
        // Without init containers, `Initialized` is true from the beginning.
        if self.pod.spec.init_containers.is_empty() {
            let accepted = Condition { status: true, since: self.start_time };
            self.conditions.restore(ConditionType::Initialized, accepted);
        }
        for (kind, status) in [
            (ConditionType::PodReadyToStartContainers, sandbox),
            (ConditionType::Initialized, initialized || self.pod.spec.init_containers.is_empty()),
            (ConditionType::Ready, ready && self.passes_readiness_gates()),
            (ConditionType::ContainersReady, ready),
            (ConditionType::DisruptionTarget, self.phase.is_terminal() && self.is_disrupted()),
            (ConditionType::AllContainersRestarting, self.restarts_all() && !self.phase.is_terminal()),
        ] {
            self.conditions.settle(now, kind, status);
        }
        self.conditions.restore(ConditionType::PodScheduled, scheduled);
        self.changed |= before != (self.phase, self.conditions);
    }

    pub(super) fn derive_phase(&self) -> PodPhase {
        if self.phase.is_terminal() {
            return self.phase;
        }
        let stopped = match self.stage {
            Stage::Active | Stage::Stopping { .. } => false,
            Stage::Stopped | Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => true,
        };
        if let (true, Some(verdict)) = (stopped, &self.verdict) {
            let may_be_shown = self.interrupted.is_some()
                || self.journal.has_terminal()
                || (self.is_unwanted() && self.journal.gave_up());
            return if may_be_shown { verdict.phase } else { self.phase };
        }
        match self.stage {
            Stage::Active => {}
            Stage::Stopping { .. } | Stage::Stopped => return self.phase,
            Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => return self.phase,
        }
        let mut sum = ContainerCounts::default();
        for container in self.containers.iter() {
            sum.add(container);
        }
        sum.phase()
    }

    /// `Initialized`: all init containers have succeeded and all sidecars have started, or a regular
    /// container has started.
    pub(super) fn is_initialized(&self) -> bool {
        let mut init = self.containers.iter().filter(|container| container.role.is_init());
        let mut regular = self.containers.iter().filter(|container| container.role == Role::Regular);
        let has_begun = |container: &&ContainerState| match container.shown().0 {
            Shown::Running { .. } | Shown::Terminated(_) => true,
            Shown::NotYet | Shown::Waiting { .. } => false,
        };
        let is_complete = |container: &&ContainerState| match container.role {
            Role::Sidecar => container.health().started,
            Role::Init | Role::Regular | Role::Ephemeral => container.health().ready,
        };
        regular.any(|container| has_begun(&container)) || init.all(|container| is_complete(&container))
    }

    /// The terminal phase that follows from the exits. A container without an exit counts as lost.
    fn verdict_of_exits(&self) -> Verdict {
        let mut regular = self.containers.iter().filter(|container| container.role == Role::Regular);
        let succeeded =
            regular.all(|container| container.ended.as_ref().is_some_and(|ended| ended.code == 0));
        let phase = if succeeded { PodPhase::Succeeded } else { PodPhase::Failed };
        Verdict { phase, reason: None, message: None }
    }

    /// Records that every process has ended, and that none will start.
    pub(super) fn stopped(&mut self, with_verdict: bool) {
        self.stage = Stage::Stopped;
        if with_verdict {
            if self.verdict.is_none() {
                self.verdict = Some(self.verdict_of_exits());
            }
            self.set_unknown_exits();
        }
        self.touch();
    }

    /// Records that the regular containers have decided how the pod ended; remaining processes are stopped.
    pub(super) fn completed(&mut self, now: Instant) {
        if !self.any_alive() {
            self.stopped(true);
            return;
        }
        // Only sidecars and ephemeral containers are left.
        self.verdict = Some(self.verdict_of_exits());
        self.stop(now, None);
    }

    /// Gives an exit to each container that has started, or should have: the exit of a run that was not
    /// observed is unknown. A container that was never to start, because of an init container before it,
    /// keeps waiting for ever.
    fn set_unknown_exits(&mut self) {
        let initialised = self.was_initialised();
        let is_init = |container: &&ContainerState| container.role.is_init();
        let init = self.containers.iter().filter(is_init).enumerate();
        let begun = init.filter(|(_, container)| container.ended.is_some()).map(|(place, _)| place);
        let begun = begun.last().unwrap_or(0);
        let mut place = 0..;
        for container in &mut self.containers {
            container.waiting = None;
            let counts = match container.role {
                Role::Regular => initialised,
                Role::Init | Role::Sidecar => place.next().is_some_and(|place| place <= begun),
                // An ephemeral container that has not started need not have.
                Role::Ephemeral => false,
            };
            if counts && container.ended.is_none() {
                container.ended = Some(Box::new(Ended {
                    number: 0,
                    code: 137,
                    reason: STATUS_UNKNOWN.into(),
                    message: LOST_WHEN_TERMINATED.into(),
                    started_at: None,
                    finished_at: None,
                    id: None,
                }));
            }
        }
    }

    /// Whether regular containers were to start, as far as the exits show.
    fn was_initialised(&self) -> bool {
        let ended_well = |ended: &Option<Box<Ended>>| ended.as_ref().is_some_and(|ended| ended.code == 0);
        let last_init = self.containers.iter().rfind(|container| container.role.is_init());
        last_init.is_none_or(|last| {
            last.role == Role::Init && (ended_well(&last.ended) || ended_well(&last.previous))
        }) || self
            .containers
            .iter()
            .any(|container| container.role == Role::Regular && container.ended.is_some())
    }
}

/// The containers of an unfinished pod, counted as a kubelet does. A kubelet's other counts matter only to a
/// pod without regular containers, which does not exist.
#[derive(Default)]
struct ContainerCounts {
    /// Whether an init container runs, or has not ended once.
    init: bool,
    /// Whether a sidecar or regular container never ran.
    waiting: bool,
}

impl ContainerCounts {
    fn add(&mut self, container: &ContainerState) {
        match (container.role, container.shown()) {
            (Role::Init, (Shown::Running { .. }, _)) => self.init = true,
            (Role::Init, (Shown::NotYet | Shown::Waiting { .. }, None)) => self.init = true,
            (Role::Init, (Shown::NotYet | Shown::Waiting { .. }, Some(_))) => {}
            (Role::Sidecar | Role::Regular, (Shown::NotYet | Shown::Waiting { .. }, None)) => {
                self.waiting = true;
            }
            (Role::Sidecar | Role::Regular, (Shown::NotYet | Shown::Waiting { .. }, Some(_))) => {}
            (Role::Sidecar | Role::Regular, (Shown::Running { .. }, _)) => {}
            (_, (Shown::Terminated(_), _)) | (Role::Ephemeral, _) => {}
        }
    }

    fn phase(&self) -> PodPhase {
        match self.init || self.waiting {
            true => PodPhase::Pending,
            false => PodPhase::Running,
        }
    }
}
