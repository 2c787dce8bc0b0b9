//! Phase and verdict: what the containers of a pod add up to. Init containers hold the phase
//! back, and one that fails for good fails the pod; how sidecars end counts for nothing, and
//! ephemeral containers for nothing at all.

use crate::facts::PodPhase;
use crate::spec::Role;
use crate::time::Instant;

use super::container::{ContainerState, Ended, LOST_AT_THE_END, STATUS_UNKNOWN, Shown};
use super::{Condition, PodState, Sandbox, Stage, Verdict, Wish};
use crate::facts::ConditionType;

impl PodState {
    /// Derives phase and conditions anew. Not only of what is to be shown: what is decided must
    /// not hang on whether somebody has looked meanwhile.
    pub(super) fn settle(&mut self, now: Instant) {
        self.pass_redefined();
        let before = (self.phase, self.conditions);
        self.phase = self.derive_phase();
        let ready = !self.was_refused()
            && !self.phase.is_terminal()
            && self
                .containers
                .iter()
                .filter(|container| matches!(container.role, Role::Regular | Role::Sidecar))
                .all(|container| container.health().ready);
        let sandbox = matches!(self.sandbox, Sandbox::Ready);
        // Once it is initialised it stays so.
        let initialized = self.is_initialized() || self.conditions.get(ConditionType::Initialized).status;
        let scheduled = Condition { status: !self.pod.is_gated(), since: self.start_time };
        // Without init containers it is true from the beginning.
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
                || (self.wish == Wish::Unwanted && self.journal.gave_up());
            return if may_be_shown { verdict.phase } else { self.phase };
        }
        match self.stage {
            Stage::Active => {}
            Stage::Stopping { .. } | Stage::Stopped => return self.phase,
            Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => return self.phase,
        }
        let mut sum = Sum::default();
        for container in &self.containers {
            sum.add(container);
        }
        sum.phase()
    }

    /// `Initialized`: all init containers are done or, of sidecars, started; or what comes
    /// after them has begun.
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

    /// The terminal phase that the exits add up to. A container without one counts as lost.
    fn verdict_of_exits(&self) -> Verdict {
        let mut regular = self.containers.iter().filter(|container| container.role == Role::Regular);
        let succeeded =
            regular.all(|container| container.ended.as_ref().is_some_and(|ended| ended.code == 0));
        let phase = if succeeded { PodPhase::Succeeded } else { PodPhase::Failed };
        Verdict { phase, reason: None, message: None }
    }

    /// Every process is gone and none will follow.
    pub(super) fn stopped(&mut self, with_verdict: bool) {
        self.stage = Stage::Stopped;
        if with_verdict {
            if self.verdict.is_none() {
                self.verdict = Some(self.verdict_of_exits());
            }
            self.account_for_all();
        }
        self.touch();
    }

    /// Every process is gone or is about to be, and the containers have said how the pod ended.
    pub(super) fn completed(&mut self, now: Instant) {
        if !self.any_alive() {
            self.stopped(true);
            return;
        }
        // What is left are sidecars and ephemeral containers.
        self.verdict = Some(self.verdict_of_exits());
        self.stop(now, None);
    }

    /// Whoever has begun, or should have, has ended: of a run that nobody saw, nobody knows how.
    /// What was never to begin, since init containers come first, goes on waiting for ever.
    fn account_for_all(&mut self) {
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
                // Nobody waits for it: one that has not begun need not have.
                Role::Ephemeral => false,
            };
            if counts && container.ended.is_none() {
                container.ended = Some(Box::new(Ended {
                    number: 0,
                    code: 137,
                    reason: STATUS_UNKNOWN.into(),
                    message: LOST_AT_THE_END.into(),
                    started_at: None,
                    finished_at: None,
                    id: None,
                }));
            }
        }
    }

    /// Whether regular containers were ever to begin, as far as what has ended tells.
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

/// The containers of a pod that is not over, counted as a kubelet does: of what else it counts, one
/// that has a regular container, as each pod has, needs nothing.
#[derive(Default)]
struct Sum {
    /// Init containers that have not ended once.
    init: bool,
    /// Sidecars and regular containers that never ran.
    waiting: bool,
}

impl Sum {
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
