//! The order of starts while a pod is initialised: init containers start one after another, and regular
//! containers when the last init container has succeeded.
//!
//! Only the present sandbox counts: in a new one all init containers run again. As with a kubelet, the last
//! init container that has run in the sandbox decides; those before it have succeeded, or it would not have
//! run.

use crate::spec::{ContainerIndex, Role};

use super::PodState;

/// The containers that may be started now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOrder {
    /// This init container, and the sidecars before it, which may have ended again.
    Init(ContainerIndex),
    /// All regular containers, and all sidecars.
    Regular,
}

impl StartOrder {
    /// Whether a container may be started, if it is not running.
    pub(super) fn allows(self, role: Role, index: ContainerIndex) -> bool {
        match (self, role) {
            (StartOrder::Init(turn), Role::Init) => index == turn,
            (StartOrder::Init(turn), Role::Sidecar) => index <= turn,
            (StartOrder::Init(_), Role::Regular) | (StartOrder::Regular, Role::Init) => false,
            (StartOrder::Regular, Role::Regular | Role::Sidecar) => true,
            (StartOrder::Init(_) | StartOrder::Regular, Role::Ephemeral) => true,
        }
    }
}

impl PodState {
    /// The progress of the pod's initialisation.
    pub(super) fn start_order(&self) -> StartOrder {
        let of = |index: ContainerIndex| &self.containers[usize::from(index.0)];
        let spec = &self.pod.spec;
        if self.is_rejected() || spec.regular_indexes().any(|index| of(index).is_alive()) {
            return StartOrder::Regular;
        }
        let mut next = None;
        for index in spec.init_indexes().rev() {
            let container = of(index);
            if !container.ran_in_sandbox {
                next = Some(index);
                continue;
            }
            let opens = match container.role {
                Role::Sidecar => container.is_running() && container.health().started,
                Role::Init | Role::Regular | Role::Ephemeral => container.has_initialised(),
            };
            next = if opens { next } else { Some(index) };
            break;
        }
        next.map_or(StartOrder::Regular, StartOrder::Init)
    }
}
