//! Resizes, and their invariants: the amounts of all pods with a sandbox fit on the node, allocated amounts are on
//! flash before cgroups have them, and in the end every running container has those that are allocated.

use super::{Chance, Sim, WorldPod, WorldSandbox};
use crate::facts::*;
use crate::pod::PodState;
use crate::spec::*;

impl Sim {
    /// Writes the allocated amounts of a pod to the cgroups of its containers.
    pub(super) fn resize(&mut self, uid: &Uid, index: PodIndex, generation: u64) {
        let pod = self.node.pod(index).expect("a pod of this node").pod().clone();
        self.note_log(&format!("{uid} resize {generation}"));
        let fails = self.fails();
        let world = self.of(uid);
        let recorded = world.record.as_ref().map(|record| record.allocated.clone());
        let is_made = world.sandbox != WorldSandbox::None;
        assert_eq!(
            recorded,
            Some(pod.allocation()),
            "{uid} is resized, and flash does not know\n{}",
            self.log
        );
        assert!(is_made, "{uid} is resized without a sandbox\n{}", self.log);
        self.check_amounts(&pod);
        let failure = fails.then(|| "no".into());
        if failure.is_none() {
            let world = self.of(uid);
            for attempt in world.alive.keys().copied().collect::<Vec<_>>() {
                world.set_limits(&pod, attempt.container);
            }
        }
        self.answer_of(index, PodObservation::Resized { generation, failure });
    }

    /// Records that the next run of a container has no back-off, if a resize in progress may require its restart.
    pub(super) fn mark_resized_run(&mut self, index: PodIndex, attempt: Attempt) {
        let Some(state) = self.node.pod(index).filter(|state| state.resize_in_progress().is_some()) else {
            return;
        };
        let resources = &state.pod().spec.container(attempt.container).resources;
        if resources.cpu_resize_restarts || resources.memory_resize_restarts {
            let uid = state.pod().uid.clone();
            self.of(&uid).outdated.insert(attempt.container);
        }
    }

    /// Reports how much the pod uses of the disk.
    pub(super) fn measure_storage(&mut self, uid: &Uid, index: PodIndex, scope: StorageScope) {
        self.note_log(&format!("{uid} measure {scope:?}"));
        let world = self.of(uid);
        let spec = &world.pod.spec;
        let is_limited = |volume: &Volume| StorageScope::LimitedVolumes.has_volume(&volume.source);
        let needed = match (spec.has_storage_limit(), spec.volumes.iter().any(is_limited)) {
            (true, _) => Some(StorageScope::Pod),
            (false, true) => Some(StorageScope::LimitedVolumes),
            (false, false) => None,
        };
        assert_eq!(Some(scope), needed, "{uid} is measured for nothing, or in part");
        let mut usage = Box::new(world.usage.clone());
        if scope == StorageScope::LimitedVolumes {
            usage.containers.clear();
        }
        for (used, volume) in usage.volumes.iter_mut().zip(&spec.volumes) {
            *used = if scope.has_volume(&volume.source) { *used } else { 0 };
        }
        self.answer_of(index, PodObservation::StorageMeasured(usage));
    }

    /// Checks that all pods with a sandbox, and the pod `of`, fit on the node.
    pub(super) fn check_amounts(&self, of: &Pod) {
        let Some(info) = &self.info else { return };
        let here = self.node.pods().filter(|state| {
            let world = self.pods.iter().find(|world| world.pod.uid == state.pod().uid);
            state.pod().uid == of.uid
                || world.is_some_and(|world| world.sandbox != WorldSandbox::None || !world.alive.is_empty())
        });
        let used = here.map(PodState::requested).fold(Amounts::default(), |all, one| all.plus(&one));
        let most = info.allocatable;
        assert!(
            used.pods <= most.pods && used.cpu <= most.cpu && used.memory <= most.memory,
            "{} begins or grows, and then {used:?} are used of {most:?}\n{}",
            of.uid,
            self.log
        );
    }

    /// Checks, after everything has settled, that a pod has the amounts that it wants, or shows why not.
    pub(super) fn check_resized(&self, world: &WorldPod) {
        let uid = &world.pod.uid;
        let state =
            self.node.index_of(uid).and_then(|index| self.node.pod(index)).expect("a pod of this node");
        assert!(state.resize_in_progress().is_none(), "{uid}: its resize does not end\n{}", self.log);
        let allocation = state.pod().allocation();
        for attempt in world.alive.keys().filter(|one| usize::from(one.container.0) < allocation.len()) {
            let expected = &allocation[usize::from(attempt.container.0)];
            assert_eq!(
                world.limits.get(&attempt.container),
                Some(expected),
                "{uid} {attempt:?}\n{}",
                self.log
            );
        }
        if state.is_active() && !state.pod().has_amounts_of(&world.pod) {
            let refusal = state.pending_resize().and_then(|pending| pending.refusal.as_ref());
            assert!(refusal.is_some(), "{uid}: its resize is forgotten\n{}", self.log);
        }
    }
}

impl WorldPod {
    /// Records the limits with which a container of the pod runs from now on.
    pub(super) fn set_limits(&mut self, pod: &Pod, container: ContainerIndex) {
        if let Some(amounts) = pod.allocation().into_iter().nth(usize::from(container.0)) {
            self.limits.insert(container, amounts);
        }
    }
}

/// Random other amounts for the containers that request some, as far as the class of the pod stays.
pub(super) fn some_resize(chance: &mut Chance, pod: &mut Pod) {
    let before = pod.clone();
    for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
        let resources = &mut container.resources;
        for (request, limit) in [
            (&mut resources.cpu_request, &mut resources.cpu_limit),
            (&mut resources.memory_request, &mut resources.memory_limit),
        ] {
            if request.is_some() && chance.percent(50) {
                *request = Some(Quantity::from_milli(chance.below(1600).into()));
                if limit.is_some() {
                    limit.clone_from(request);
                }
            }
        }
    }
    if pod.spec.qos_class() != before.spec.qos_class() {
        *pod = before;
    }
}
