//! Phase and verdict: what the containers of a pod add up to.

use crate::node::PodPhase;
use crate::time::Instant;

use super::container::{Ended, LOST_AT_THE_END, STATUS_UNKNOWN, Shown};
use super::{PodState, Sandbox, Stage, Verdict, Wish};

impl PodState {
    /// Derives phase and conditions anew. Not only of what is to be shown: what is decided must
    /// not hang on whether somebody has looked meanwhile.
    pub(super) fn settle(&mut self, now: Instant) {
        let before = (self.phase, self.conditions);
        self.phase = self.derive_phase();
        let ready = !self.was_refused()
            && !self.phase.is_terminal()
            && self.containers.iter().all(|container| container.health().ready);
        let sandbox = matches!(self.sandbox, Sandbox::Ready);
        self.conditions.settle(now, sandbox, ready);
        self.changed |= before != (self.phase, self.conditions);
    }

    fn derive_phase(&self) -> PodPhase {
        if self.phase.is_terminal() {
            return self.phase;
        }
        let stopped = match self.stage {
            Stage::Active | Stage::Stopping { .. } => false,
            Stage::Stopped | Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => true,
        };
        if let (true, Some(verdict)) = (stopped, &self.verdict) {
            let may_be_shown =
                self.journal.has_terminal() || (self.wish == Wish::Unwanted && self.journal.gave_up());
            return if may_be_shown { verdict.phase } else { self.phase };
        }
        match self.stage {
            Stage::Active => {}
            Stage::Stopping { .. } | Stage::Stopped => return self.phase,
            Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => return self.phase,
        }
        let (mut waiting, mut seen) = (false, false);
        for container in &self.containers {
            match container.shown() {
                (Shown::Running { .. } | Shown::Terminated(_), _) => seen = true,
                (Shown::Waiting { .. }, Some(_)) => seen = true,
                (Shown::Waiting { .. }, None) => waiting = true,
            }
        }
        if seen && !waiting { PodPhase::Running } else { PodPhase::Pending }
    }

    /// The terminal phase that the exits add up to. A container without one counts as lost.
    fn verdict_of_exits(&self) -> Verdict {
        let succeeded = self
            .containers
            .iter()
            .all(|container| container.ended.as_ref().is_some_and(|ended| ended.code == 0));
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
            for container in &mut self.containers {
                container.waiting = None;
                if container.ended.is_none() {
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
        self.touch();
    }
}
