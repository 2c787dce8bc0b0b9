//! The conditions of a pod that its node decides on, and since when each is as it is.
//!
//! Those of others, which readiness gates ask for, are kept as they came ([`GivenCondition`]).

use crate::facts::{ConditionType, GivenCondition};
use crate::time::{Instant, Moment};

/// One condition: its status and when that last flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// `status` is `True`.
    pub(crate) status: bool,
    /// `lastTransitionTime`.
    pub(crate) since: Moment,
}

/// One condition of each type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConditionSet([Condition; ConditionType::ALL.len()]);

impl ConditionSet {
    /// Of a pod that is taken now: nothing is true of it yet.
    pub(crate) fn new(now: Instant) -> Self {
        ConditionSet([Condition { status: false, since: Moment::ThisBoot(now) }; ConditionType::ALL.len()])
    }

    /// The condition of this type.
    pub(crate) fn get(&self, kind: ConditionType) -> Condition {
        self.0[kind as usize]
    }

    /// Its status from now on; when it is another, that is a transition.
    pub(crate) fn settle(&mut self, now: Instant, kind: ConditionType, status: bool) {
        let condition = &mut self.0[kind as usize];
        if condition.status != status {
            *condition = Condition { status, since: Moment::ThisBoot(now) };
        }
    }

    /// What is known of it from before.
    pub(crate) fn restore(&mut self, kind: ConditionType, condition: Condition) {
        self.0[kind as usize] = condition;
    }
}

/// What keeps a pod whose containers are ready from being so, in a kubelet's words; empty if nothing does.
pub(crate) fn closed_readiness_gates(gates: &[String], given: &[GivenCondition]) -> String {
    let closed = gates.iter().filter_map(|gate| match given.iter().find(|given| given.kind == *gate) {
        None => Some(format!("corresponding condition of pod readiness gate {gate:?} does not exist.")),
        Some(given) if given.is_true() => None,
        Some(given) => {
            Some(format!("the status of pod readiness gate {gate:?} is not \"True\", but {}", given.status))
        }
    });
    closed.collect::<Vec<_>>().join(", ")
}
