//! The conditions of a pod: those that the node owns, with the time of their last transition, and those that
//! clients set, for instance for readiness gates, which are kept unchanged ([`ClientCondition`]).

use std::rc::Rc;

use crate::facts::{ClientCondition, ConditionType, FoundCondition};
use crate::time::{Instant, Moment};

/// One condition: its status and the time of its last transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Whether `status` is `True`.
    pub(crate) status: bool,
    /// `lastTransitionTime`.
    pub(crate) since: Moment,
}

/// One condition of each type that the node owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConditionSet {
    status: [bool; ConditionType::ALL.len()],
    since: [Moment; ConditionType::ALL.len()],
}

impl ConditionSet {
    fn get(&self, kind: ConditionType) -> Condition {
        Condition { status: self.status[kind as usize], since: self.since[kind as usize] }
    }

    fn set(&mut self, kind: ConditionType, condition: Condition) {
        (self.status[kind as usize], self.since[kind as usize]) = (condition.status, condition.since);
    }

    /// Sets the status; a change of it is a transition.
    fn settle(&mut self, now: Instant, kind: ConditionType, status: bool) {
        if self.get(kind).status != status {
            self.set(kind, Condition { status, since: Moment::ThisBoot(now) });
        }
    }

    fn to_vec(self) -> Vec<FoundCondition> {
        let of = |kind| {
            let Condition { status, since } = self.get(kind);
            FoundCondition { kind, status, since }
        };
        ConditionType::ALL.into_iter().map(of).collect()
    }
}

/// The facts from which the conditions that the node owns are derived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) start_time: Moment,
    pub(super) is_gated: bool,
    pub(super) has_init_containers: bool,
    pub(super) has_sandbox: bool,
    pub(super) is_initialized: bool,
    /// Whether the containers are ready, whatever the readiness gates are.
    pub(super) are_containers_ready: bool,
    pub(super) is_disrupted: bool,
    pub(super) restarts_all: bool,
}

/// The conditions of a pod.
#[derive(Debug)]
pub(crate) struct Conditions {
    own: ConditionSet,
    of_clients: Rc<[ClientCondition]>,
}

impl Conditions {
    /// The conditions of a new pod, all of them false, and none from a client.
    pub(super) fn new(now: Instant) -> Self {
        let own = ConditionSet {
            status: [false; ConditionType::ALL.len()],
            since: [Moment::ThisBoot(now); ConditionType::ALL.len()],
        };
        Conditions { own, of_clients: Rc::default() }
    }

    /// The condition of this type.
    pub(crate) fn get(&self, kind: ConditionType) -> Condition {
        self.own.get(kind)
    }

    /// Derives the conditions that the node owns. Returns whether one has changed.
    pub(super) fn settle(&mut self, now: Instant, facts: &Facts, gates: &[String]) -> bool {
        let before = self.own;
        let accepted = |status| Condition { status, since: facts.start_time };
        // Without init containers, `Initialized` is true from the beginning.
        if !facts.has_init_containers {
            self.own.set(ConditionType::Initialized, accepted(true));
        }
        // An initialised pod stays initialised.
        let is_initialized = facts.is_initialized || self.own.get(ConditionType::Initialized).status;
        let is_ready = facts.are_containers_ready && self.passes(gates);
        for (kind, status) in [
            (ConditionType::PodReadyToStartContainers, facts.has_sandbox),
            (ConditionType::Initialized, is_initialized),
            (ConditionType::Ready, is_ready),
            (ConditionType::ContainersReady, facts.are_containers_ready),
            (ConditionType::DisruptionTarget, facts.is_disrupted),
            (ConditionType::AllContainersRestarting, facts.restarts_all),
        ] {
            self.own.settle(now, kind, status);
        }
        self.own.set(ConditionType::PodScheduled, accepted(!facts.is_gated));
        self.own != before
    }

    /// Whether every condition that the readiness gates require is true.
    fn passes(&self, gates: &[String]) -> bool {
        closed_readiness_gates(gates, &self.of_clients).is_empty()
    }

    /// The conditions that clients set in the pod's status.
    pub(super) fn of_clients(&self) -> &Rc<[ClientCondition]> {
        &self.of_clients
    }

    /// Stores the conditions that clients set in the pod's status. Returns whether they differ from before.
    pub(super) fn set_of_clients(&mut self, conditions: Rc<[ClientCondition]>) -> bool {
        let differ = self.of_clients != conditions;
        if differ {
            self.of_clients = conditions;
        }
        differ
    }

    /// The conditions that the node owns, for the next agent.
    pub(super) fn to_found(&self) -> Vec<FoundCondition> {
        self.own.to_vec()
    }

    /// The conditions that a finished pod continues to show: nothing runs, and nothing is ready.
    pub(super) fn to_last_shown(&self, now: Instant, is_disrupted: bool) -> Vec<FoundCondition> {
        let mut conditions = self.own;
        for kind in [
            ConditionType::PodReadyToStartContainers,
            ConditionType::Ready,
            ConditionType::ContainersReady,
            ConditionType::AllContainersRestarting,
        ] {
            conditions.settle(now, kind, false);
        }
        conditions.settle(now, ConditionType::DisruptionTarget, is_disrupted);
        conditions.to_vec()
    }

    /// Restores a condition that is known from before.
    pub(super) fn restore(&mut self, kind: ConditionType, condition: Condition) {
        self.own.set(kind, condition);
    }

    /// Restores conditions that a previous agent showed.
    pub(super) fn restore_found(&mut self, found: &[FoundCondition]) {
        for &FoundCondition { kind, status, since } in found {
            self.restore(kind, Condition { status, since });
        }
    }

    /// Restores the transition times of all conditions whose status is still the one that a previous agent
    /// showed.
    pub(super) fn restore_transitions(&mut self, found: &[FoundCondition]) {
        for &FoundCondition { kind, status, since } in found {
            if self.get(kind).status == status {
                self.restore(kind, Condition { status, since });
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::*;

    fn facts(is_initialized: bool) -> Facts {
        Facts {
            start_time: Moment::ThisBoot(at(1)),
            is_gated: false,
            has_init_containers: true,
            has_sandbox: is_initialized,
            is_initialized,
            are_containers_ready: is_initialized,
            is_disrupted: false,
            restarts_all: false,
        }
    }

    #[test]
    fn only_a_change_of_the_status_is_a_transition() {
        let mut conditions = Conditions::new(at(0));
        assert!(conditions.settle(at(5), &facts(true), &[]));
        assert!(!conditions.settle(at(6), &facts(true), &[]));
        let ready = |conditions: &Conditions| conditions.get(ConditionType::Ready);
        assert_eq!(ready(&conditions), Condition { status: true, since: Moment::ThisBoot(at(5)) });
        assert!(conditions.settle(at(7), &facts(false), &[]));
        assert_eq!(ready(&conditions), Condition { status: false, since: Moment::ThisBoot(at(7)) });
        assert!(conditions.get(ConditionType::Initialized).status);
        let scheduled = Condition { status: true, since: Moment::ThisBoot(at(1)) };
        assert_eq!(conditions.get(ConditionType::PodScheduled), scheduled);
    }

    #[test]
    fn a_restored_transition_time_needs_the_same_status() {
        let mut conditions = Conditions::new(at(9));
        let found = |kind, status| FoundCondition { kind, status, since: Moment::ThisBoot(at(3)) };
        let (ready, scheduled) = (ConditionType::Ready, ConditionType::PodScheduled);
        conditions.restore_transitions(&[found(ready, true), found(scheduled, false)]);
        assert_eq!(conditions.get(ready).since, Moment::ThisBoot(at(9)));
        assert_eq!(conditions.get(scheduled).since, Moment::ThisBoot(at(3)));
        conditions.restore_found(&[found(ready, true)]);
        assert!(conditions.get(ready).status && conditions.to_found().contains(&found(ready, true)));
        let shown = conditions.to_last_shown(at(20), false);
        assert!(shown.iter().all(|condition| !condition.status));
    }

    #[test]
    fn a_gate_keeps_a_pod_with_ready_containers_from_being_ready() {
        let mut conditions = Conditions::new(at(0));
        conditions.settle(at(5), &facts(true), &["example.com/gate".to_owned()]);
        assert!(!conditions.get(ConditionType::Ready).status);
        assert!(conditions.get(ConditionType::ContainersReady).status);
    }
}
