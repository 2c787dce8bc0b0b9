//! In which order containers of a pod may begin and end: what the world holds the core to.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Sim, WorldPod, secs};
use crate::facts::*;
use crate::spec::*;
use crate::time::Instant;

/// What took place in the present sandbox of a pod, as far as the order hangs on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// Containers that have run.
    ran: BTreeSet<ContainerIndex>,
    /// Those that have ended well.
    succeeded: BTreeSet<ContainerIndex>,
    /// Those whose startup probe has once succeeded.
    answered: BTreeSet<ContainerIndex>,
    /// Those whose postStart hook failed when it was last run.
    failed: BTreeSet<ContainerIndex>,
    /// All are to end, and to begin again.
    restart_all: bool,
    /// Since when the pod is stopped, and with how much grace.
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

    /// Since when the pod is stopped, and with how much grace.
    pub(super) fn stopped(&self) -> Option<(Instant, Duration)> {
        self.stop
    }

    /// An exit was heard of for which all begin again.
    pub(super) fn restarts_all(&mut self) {
        self.restart_all |= self.stop.is_none();
    }

    /// The first container that begins again is still to start.
    pub(super) fn is_restarting_all(&self) -> bool {
        self.restart_all
    }

    /// It is being stopped, with this grace by now.
    pub(super) fn notes_stop(&mut self, now: Instant, grace: Option<Duration>) {
        let since = self.stop.map_or(now, |(since, _)| since);
        self.stop = grace.map(|grace| (since, grace));
    }

    /// Nobody tells the next agent of a postStart that failed: the container goes on, as it does
    /// under a kubelet that dies between the hook and the kill.
    pub(super) fn forget_failed_hooks(&mut self) {
        self.failed.clear();
    }

    /// An agent that starts anew gives the whole grace once more.
    pub(super) fn forget_stop(&mut self) {
        self.stop = None;
    }
}

impl WorldPod {
    /// What sidecars have that were asked when the grace was over, and what a hook leaves that
    /// has used it up.
    pub(super) fn last_window(&self) -> Duration {
        let spec = &self.pod.spec;
        let sidecars = spec.init_containers.iter().any(|container| container.sidecar);
        let hooks = spec.all_containers().any(|container| container.lifecycle.pre_stop.is_some());
        if sidecars || hooks { secs(2) } else { Duration::ZERO }
    }

    /// All that has to be done before `container` starts is.
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
    /// Sidecars of a pod that is stopped are asked when those that they serve are gone, or when
    /// there is no time left to wait for them.
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
        // What was asked before, for a probe that failed, and could not be told so is asked again.
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
