//! The order of starts while a pod is initialised: init containers start one after another, and regular
//! containers when the last init container has succeeded.
//!
//! Only the present sandbox counts: in a new one all init containers run again. As with a kubelet, the last
//! init container that has run in the sandbox decides; those before it have succeeded, or it would not have
//! run.

use crate::spec::{ContainerIndex, Role};
use crate::time::{Instant, Moment};

use super::Condition;
use super::container::{ContainerState, Shown};
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
        let mut regular = containers.iter().filter(|container| container.role() == Role::Regular);
        if regular.any(ContainerState::is_alive) {
            return StartOrder::Regular;
        }
        let mut next = None;
        for (index, container) in containers.indexed().rev().filter(|(_, one)| one.role().is_init()) {
            if !container.ran_in_sandbox() {
                next = Some(index);
                continue;
            }
            let opens = match container.role() {
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
    let mut init = containers.iter().filter(|container| container.role().is_init());
    let mut regular = containers.iter().filter(|container| container.role() == Role::Regular);
    let has_begun = |container: &ContainerState| match container.shown().0 {
        Shown::Running { .. } | Shown::Terminated(_) => true,
        Shown::NotYet | Shown::Waiting { .. } => false,
    };
    regular.any(has_begun) || init.all(is_complete)
}

/// Whether the container has come so far that those after an init container or a sidecar may start.
pub(super) fn is_complete(container: &ContainerState) -> bool {
    match container.role() {
        Role::Sidecar => container.health().started,
        Role::Init | Role::Regular | Role::Ephemeral => container.health().ready,
    }
}

/// `Initialized` of a found pod: true since its last init container succeeded.
pub(super) fn initialized_since(containers: &Containers, now: Instant) -> Condition {
    let last = containers.iter().rfind(|container| container.role().is_init());
    let done = last.and_then(|last| match last.role() {
        Role::Sidecar => last.started().map(|started| Moment::ThisBoot(started.at)),
        Role::Init | Role::Regular | Role::Ephemeral => last.ended().and_then(|ended| ended.finished_at),
    });
    let status = is_initialized(containers);
    Condition { status, since: done.filter(|_| status).unwrap_or(Moment::ThisBoot(now)) }
}

/// Whether regular containers were to start, as far as the exits show.
pub(super) fn was_initialized(containers: &Containers) -> bool {
    let last_init = containers.iter().rfind(|container| container.role().is_init());
    last_init.is_none_or(|last| last.role() == Role::Init && last.has_ever_succeeded())
        || containers.iter().any(|container| container.role() == Role::Regular && container.ended().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Ended;
    use crate::sim::*;
    use crate::spec::RestartPolicy;

    fn ended(code: i32) -> Ended {
        Ended {
            number: 0,
            code,
            reason: "".into(),
            message: "".into(),
            started_at: None,
            finished_at: Some(Moment::ThisBoot(at(7))),
            id: None,
        }
    }

    #[test]
    fn regular_containers_were_to_start_if_the_last_init_container_has_ever_succeeded_or_one_has_ended() {
        let was = |init: &[crate::spec::Container], exits: &[(usize, Option<i32>, Option<i32>)]| {
            let mut containers = Containers::new(&pod(RestartPolicy::Always).init(init.to_vec()).spec);
            for (place, last, previous) in exits {
                let container = containers.get_mut(ContainerIndex(*place as u8)).expect("it exists");
                previous.iter().chain(last).for_each(|code| container.has_ended(ended(*code)));
            }
            was_initialized(&containers)
        };
        let two = [container("first"), container("last")];
        assert!(was(&[], &[]));
        for (exits, expected) in [
            (vec![], false),
            (vec![(1, Some(0), None)], false),
            (vec![(2, Some(0), None)], true),
            (vec![(2, Some(1), None)], false),
            (vec![(2, Some(1), Some(0))], true),
            (vec![(2, Some(0), Some(1))], true),
            (vec![(2, Some(1), Some(1))], false),
            // The regular container.
            (vec![(0, Some(1), None)], true),
            (vec![(2, Some(1), None), (0, Some(0), None)], true),
        ] {
            assert_eq!(was(&two, &exits), expected, "{exits:?}");
        }
        // The exit of a sidecar shows nothing, and no other sidecar counts as a regular container.
        let served = [container("first"), sidecar("proxy")];
        assert!(!was(&served, &[(1, Some(0), None), (2, Some(0), None)]));
        assert!(was(&served, &[(2, Some(1), None), (0, Some(1), None)]));
    }

    #[test]
    fn a_found_pod_is_initialized_since_its_last_init_container_succeeded() {
        let mut containers = Containers::new(&pod(RestartPolicy::Always).init([container("init")]).spec);
        let condition = |status, seconds| Condition { status, since: Moment::ThisBoot(at(seconds)) };
        assert_eq!(initialized_since(&containers, at(9)), condition(false, 9));
        let init = containers.get_mut(ContainerIndex(1)).expect("it exists");
        init.has_ended(ended(1));
        assert_eq!(initialized_since(&containers, at(9)), condition(false, 9));
        let init = containers.get_mut(ContainerIndex(1)).expect("it exists");
        init.has_ended(ended(0));
        assert_eq!(initialized_since(&containers, at(9)), condition(true, 7));
    }
}
