//! The order of starts while a pod is initialised: init containers start one after another, and regular
//! containers when the last init container has succeeded.
//!
//! Only the present sandbox counts: in a new one all init containers run again. As with a kubelet, the last
//! init container that has run in the sandbox decides; those before it have succeeded, or it would not have
//! run.

use crate::spec::{ContainerIndex, Role};

use super::container::ContainerState;
use super::containers::Containers;

/// The containers that may be started now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOrder {
    /// This init container, and the sidecars before it, which may have ended again.
    Init(ContainerIndex),
    /// All regular containers, and all sidecars.
    Regular,
}

impl StartOrder {
    /// The progress of the initialisation of a pod with these containers. A rejected pod has none.
    pub(super) fn of(containers: &Containers) -> Self {
        let mut regular = containers.iter().filter(|container| container.role == Role::Regular);
        if regular.any(ContainerState::is_alive) {
            return StartOrder::Regular;
        }
        let mut next = None;
        for (index, container) in containers.indexed().rev().filter(|(_, one)| one.role.is_init()) {
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
