//! What holds a pod back from outside: scheduling gates, which keep it from every node, and
//! readiness gates, whose conditions others give.

use std::rc::Rc;

use crate::facts::{FoundCondition, FoundStatus, GivenCondition};
use crate::time::{Instant, Moment};

use super::{Condition, PodState, Wish, closed_readiness_gates};
use crate::facts::ConditionType;

impl PodState {
    /// Its containers may be started: it is wanted, and no scheduling gate is left.
    pub(super) fn may_run(&self) -> bool {
        self.is_active() && self.wish == Wish::Wanted && !self.pod.is_gated()
    }

    /// Somebody has said something of it in its status.
    pub(super) fn give(&mut self, conditions: Rc<[GivenCondition]>) {
        if self.given != conditions {
            self.given = conditions;
            self.touch();
        }
    }

    /// Every condition that its readiness gates ask for is true.
    pub(super) fn passes_readiness_gates(&self) -> bool {
        closed_readiness_gates(&self.pod.spec.readiness_gates, &self.given).is_empty()
    }

    /// An agent before accepted it, and others said of it what they did, whether that is on flash
    /// by now or not.
    pub(super) fn remember_acceptance(&mut self, found: &FoundStatus, now: Instant) {
        let accepted = |known: &&FoundCondition| known.kind == ConditionType::PodScheduled && known.status;
        let accepted = found.conditions.iter().find(accepted);
        if let Some(FoundCondition { since: Moment::ThisBoot(at), .. }) = accepted {
            self.start_time = Moment::ThisBoot(*at);
            self.active_since = (*at).min(now);
        }
        if let Some(given) = &found.given {
            self.give(given.as_slice().into());
        }
    }

    /// What is as an agent before showed it is so since then.
    pub(super) fn remember_transitions(&mut self, found: &[FoundCondition]) {
        for known in found {
            let condition = self.conditions.get(known.kind);
            if condition.status == known.status {
                let since = known.since;
                self.conditions.restore(known.kind, Condition { since, ..condition });
            }
        }
    }
}
