//! The gates of a pod: scheduling gates, which keep it from every node, and readiness gates, whose conditions
//! clients set.

use std::rc::Rc;

use crate::facts::{ClientCondition, FoundCondition, StatusHandover};
use crate::time::{Instant, Moment};

use super::{Condition, PodState, closed_readiness_gates};
use crate::facts::ConditionType;

impl PodState {
    /// Whether the pod's containers may be started: the pod is wanted, and has no scheduling gate.
    pub(super) fn may_run(&self) -> bool {
        self.is_active() && self.removal.is_wanted() && !self.pod.is_gated()
    }

    /// Stores the conditions that a client set in the pod's status.
    pub(super) fn set_client_conditions(&mut self, conditions: Rc<[ClientCondition]>) {
        if self.client_conditions != conditions {
            self.client_conditions = conditions;
            self.touch();
        }
    }

    /// Whether every condition that the readiness gates require is true.
    pub(super) fn passes_readiness_gates(&self) -> bool {
        closed_readiness_gates(&self.pod.spec.readiness_gates, &self.client_conditions).is_empty()
    }

    /// Restores when a previous agent accepted the pod, and the conditions that clients set, even if those
    /// are not on flash yet.
    pub(super) fn remember_acceptance(&mut self, found: &StatusHandover, now: Instant) {
        let accepted = |known: &&FoundCondition| known.kind == ConditionType::PodScheduled && known.status;
        let accepted = found.conditions.iter().find(accepted);
        if let Some(FoundCondition { since: since @ Moment::ThisBoot(_), .. }) = accepted {
            self.acceptance.restore_start_time(*since, now);
        }
        if let Some(client_conditions) = &found.client_conditions {
            self.set_client_conditions(client_conditions.as_slice().into());
        }
    }

    /// Restores the transition times of all conditions whose status is still the one that a previous agent
    /// showed.
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
