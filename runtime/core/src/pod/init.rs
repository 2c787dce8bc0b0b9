//! The order of starts while a pod is initialised: init containers start one after another, and regular
//! containers when the last init container has succeeded.
//!
//! Only the present sandbox counts: in a new one all init containers run again. As with a kubelet, the last
//! init container that has run in the sandbox decides; those before it have succeeded, or it would not have
//! run.

use crate::spec::{ContainerIndex, Role};
use crate::time::{Instant, Moment};

use super::Condition;
use super::container::{ContainerState, Ended, Shown};
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

/// `Initialized`: all init containers have succeeded and all sidecars have started, or a regular container
/// has started.
pub(super) fn is_initialized(containers: &Containers) -> bool {
    let mut init = containers.iter().filter(|container| container.role.is_init());
    let mut regular = containers.iter().filter(|container| container.role == Role::Regular);
    let has_begun = |container: &ContainerState| match container.shown().0 {
        Shown::Running { .. } | Shown::Terminated(_) => true,
        Shown::NotYet | Shown::Waiting { .. } => false,
    };
    let is_complete = |container: &ContainerState| match container.role {
        Role::Sidecar => container.health().started,
        Role::Init | Role::Regular | Role::Ephemeral => container.health().ready,
    };
    regular.any(has_begun) || init.all(is_complete)
}

/// `Initialized` of a found pod: true since its last init container succeeded.
pub(super) fn initialized_since(containers: &Containers, now: Instant) -> Condition {
    let last = containers.iter().rfind(|container| container.role.is_init());
    let done = last.and_then(|last| match last.role {
        Role::Sidecar => last.started.as_ref().map(|started| Moment::ThisBoot(started.at)),
        Role::Init | Role::Regular | Role::Ephemeral => {
            last.ended.as_ref().and_then(|ended| ended.finished_at)
        }
    });
    let status = is_initialized(containers);
    Condition { status, since: done.filter(|_| status).unwrap_or(Moment::ThisBoot(now)) }
}

/// Whether regular containers were to start, as far as the exits show.
pub(super) fn was_initialized(containers: &Containers) -> bool {
    let ended_well = |ended: &Option<Box<Ended>>| ended.as_ref().is_some_and(|ended| ended.code == 0);
    let last_init = containers.iter().rfind(|container| container.role.is_init());
    last_init
        .is_none_or(|last| last.role == Role::Init && (ended_well(&last.ended) || ended_well(&last.previous)))
        || containers.iter().any(|container| container.role == Role::Regular && container.ended.is_some())
}
