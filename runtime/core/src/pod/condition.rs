//! The pod conditions that the node owns, with the time of their last transition.
//!
//! Conditions that clients set, for instance for readiness gates, are kept unchanged ([`ClientCondition`]).

use crate::facts::{ClientCondition, ConditionType};
use crate::time::{Instant, Moment};

/// One condition: its status and the time of its last transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Whether `status` is `True`.
    pub(crate) status: bool,
    /// `lastTransitionTime`.
    pub(crate) since: Moment,
}

/// One condition of each type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConditionSet([Condition; ConditionType::ALL.len()]);

impl ConditionSet {
    /// The conditions of a new pod, all of them false.
    pub(crate) fn new(now: Instant) -> Self {
        ConditionSet([Condition { status: false, since: Moment::ThisBoot(now) }; ConditionType::ALL.len()])
    }

    /// The condition of this type.
    pub(crate) fn get(&self, kind: ConditionType) -> Condition {
        self.0[kind as usize]
    }

    /// Sets the status; a change of it is a transition.
    pub(crate) fn settle(&mut self, now: Instant, kind: ConditionType, status: bool) {
        let condition = &mut self.0[kind as usize];
        if condition.status != status {
            *condition = Condition { status, since: Moment::ThisBoot(now) };
        }
    }

    /// Restores a condition that is known from before.
    pub(crate) fn restore(&mut self, kind: ConditionType, condition: Condition) {
        self.0[kind as usize] = condition;
    }
}

/// The readiness gates that keep a pod with ready containers from being ready, in a kubelet's words; empty if
/// there are none.
pub(crate) fn closed_readiness_gates(gates: &[String], client_conditions: &[ClientCondition]) -> String {
    let closed =
        gates.iter().filter_map(|gate| match client_conditions.iter().find(|one| one.kind == *gate) {
            None => Some(format!("corresponding condition of pod readiness gate {gate:?} does not exist.")),
            Some(condition) if condition.is_true() => None,
            Some(condition) => Some(format!(
                "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                condition.status
            )),
        });
    closed.collect::<Vec<_>>().join(", ")
}
