//! The order in which containers of a pod may start and end, as the world checks it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Sim, WorldPod, secs};
use crate::facts::*;
use crate::spec::*;
use crate::time::Instant;

/// The events in the present sandbox of a pod on which the order depends.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// Containers that have run.
    ran: BTreeSet<ContainerIndex>,
    /// Containers that have succeeded.
    succeeded: BTreeSet<ContainerIndex>,
    /// Containers whose startup probe has succeeded once.
    answered: BTreeSet<ContainerIndex>,
    /// Containers whose latest postStart hook failed.
    failed: BTreeSet<ContainerIndex>,
    /// Whether all containers are to end and to restart.
    restart_all: bool,
    /// When the pod began to stop, and its grace period.
    stop: Option<(Instant, Duration)>,
}

impl Order {
    pub(super) fn executed(&mut self, attempt: Attempt) {
        self.ran.insert(attempt.container);
    }

    pub(super) fn ended(&mut self, attempt: Attempt, code: i32, oom_killed: bool) {
        if code == 0 && !oom_killed {
            self.succeeded.insert(attempt.container);
        }
    }

    pub(super) fn probed(&mut self, attempt: Attempt, kind: ProbeKind, result: &ProbeResult) {
        match (kind, result) {
            (ProbeKind::Startup, ProbeResult::Success | ProbeResult::Warning(_)) => {
                self.answered.insert(attempt.container);
            }
            (ProbeKind::Startup, ProbeResult::Failure(_) | ProbeResult::Error(_))
            | (ProbeKind::Liveness | ProbeKind::Readiness, _) => {}
        }
    }

    pub(super) fn hooked(&mut self, attempt: Attempt, kind: HookKind, failed: bool) {
        match (kind, failed) {
            (HookKind::PostStart, true) => drop(self.failed.insert(attempt.container)),
            (HookKind::PostStart, false) => drop(self.failed.remove(&attempt.container)),
            (HookKind::PreStop, _) => {}
        }
    }

    /// When the pod began to stop, and its grace period.
    pub(super) fn stopped(&self) -> Option<(Instant, Duration)> {
        self.stop
    }

    /// Records an exit after which all containers restart.
    pub(super) fn restarts_all(&mut self) {
        self.restart_all |= self.stop.is_none();
    }

    /// Whether all containers are to restart and none of them has started yet.
    pub(super) fn is_restarting_all(&self) -> bool {
        self.restart_all
    }

    /// Records that the pod is being stopped, with the present grace period.
    pub(super) fn notes_stop(&mut self, now: Instant, grace: Option<Duration>) {
        let since = self.stop.map_or(now, |(since, _)| since);
        self.stop = grace.map(|grace| (since, grace));
    }

    /// Forgets failed postStart hooks when an agent starts: the next agent does not know of them, and the
    /// container continues, as under a kubelet that dies between the hook and the kill.
    pub(super) fn forget_failed_hooks(&mut self) {
        self.failed.clear();
    }

    /// Forgets the stop: an agent that restarts gives the whole grace period again.
    pub(super) fn forget_stop(&mut self) {
        self.stop = None;
    }
}

impl WorldPod {
    /// The time that sidecars have which were asked at the end of the grace period, and that remains after a
    /// hook has used up the grace period.
    pub(super) fn last_window(&self) -> Duration {
        let spec = &self.pod.spec;
        let sidecars = spec.init_containers.iter().any(|container| container.sidecar);
        let hooks = spec.all_containers().any(|container| container.lifecycle.pre_stop.is_some());
        if sidecars || hooks { secs(2) } else { Duration::ZERO }
    }

    /// Checks that everything which must happen before the start of `container` has happened.
    pub(super) fn check_order(&mut self, container: ContainerIndex) {
        let (spec, uid) = (&self.pod.spec, &self.pod.uid);
        if spec.role(container) == Role::Ephemeral {
            return;
        }
        if self.order.restart_all {
            let mut alive = self.alive.keys().map(|alive| spec.role(alive.container));
            let ended = alive.all(|role| role == Role::Ephemeral);
            assert!(ended, "{uid}: {container:?} begins again before all ended");
            self.order = Order::default();
        }
        let order = &self.order;
        let is_later = |index: &ContainerIndex| spec.role(container) == Role::Regular || *index < container;
        for before in spec.init_indexes().filter(is_later) {
            let name = &spec.container(before).name;
            match spec.role(before) {
                Role::Init => {
                    assert!(
                        order.succeeded.contains(&before),
                        "{uid}: {container:?} starts before {name} is done"
                    );
                }
                Role::Sidecar | Role::Regular | Role::Ephemeral => {
                    assert!(order.ran.contains(&before), "{uid}: {container:?} starts before {name} has");
                    let answered =
                        spec.container(before).startup_probe.is_none() || order.answered.contains(&before);
                    assert!(answered, "{uid}: {container:?} starts before {name} says that it has");
                    let alive = self.alive.keys().any(|other| other.container == before);
                    assert!(
                        !(alive && order.failed.contains(&before)),
                        "{uid}: {container:?} starts though the start of {name} failed"
                    );
                }
            }
        }
        if spec.role(container) == Role::Init {
            assert!(!order.succeeded.contains(&container), "{uid}: {container:?} runs again in its sandbox");
            let may_be = |role: Role| matches!(role, Role::Sidecar | Role::Ephemeral);
            let beside = self.alive.keys().find(|other| !may_be(spec.role(other.container)));
            assert!(beside.is_none(), "{uid}: {container:?} starts beside {beside:?}");
        }
    }
}

impl Sim {
    /// Checks that a sidecar of a stopping pod is asked to end only after the containers that it serves have
    /// ended, or at the end of the grace period.
    pub(super) fn check_end(&self, uid: &Uid, attempt: Attempt) {
        let world = self.pods.iter().find(|world| world.pod.uid == *uid).expect("a pod of this world");
        let spec = &world.pod.spec;
        let (Role::Sidecar, Some((since, grace))) = (spec.role(attempt.container), world.order.stop) else {
            return;
        };
        let serves = |other: &&Attempt| match spec.role(other.container) {
            Role::Regular => true,
            Role::Sidecar => other.container > attempt.container,
            Role::Init | Role::Ephemeral => false,
        };
        // A run that was asked before, for a failed probe, is asked again if the signal could not be
        // delivered.
        if world.alive.get(&attempt).is_some_and(|process| process.asked_to_end.is_some()) {
            return;
        }
        let served = world.alive.keys().find(serves);
        assert!(
            served.is_none() || self.now >= since + grace,
            "{uid}: {attempt:?} is asked to end before {served:?} has\n{}",
            self.log
        );
    }
}
