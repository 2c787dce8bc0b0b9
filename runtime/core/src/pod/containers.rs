//! The containers of one pod, in the order of their indexes.

use crate::facts::{Action, Attempt, Draft, PodIndex, Wake};
use crate::spec::{ContainerIndex, PodSpec, RestartPolicy, Role};
use crate::time::Instant;

use super::container::{ContainerState, Run};

/// The containers of a pod; a rejected pod has none.
#[derive(Debug)]
pub(super) struct Containers(Vec<ContainerState>);

impl Containers {
    /// The containers of a new pod, none of which has run.
    pub(super) fn new(spec: &PodSpec) -> Self {
        let blank = |index| ContainerState::new(spec.role(index), spec.container(index).restart.clone());
        Containers(spec.container_indexes().map(blank).collect())
    }

    /// Removes all containers, because nothing of the pod ever runs.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds ephemeral containers, up to `count` containers in all. A rejected pod gets none.
    pub(super) fn add_ephemeral(&mut self, count: usize) {
        if !self.is_empty() {
            self.0.resize(count, ContainerState::new(Role::Ephemeral, None));
        }
    }

    /// Whether the pod was rejected, so that it has no containers.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &ContainerState> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ContainerState> {
        self.0.iter_mut()
    }

    /// The containers with their indexes.
    pub(super) fn indexed(&self) -> impl DoubleEndedIterator<Item = (ContainerIndex, &ContainerState)> {
        self.0.iter().enumerate().map(|(place, container)| (ContainerIndex(place as u8), container))
    }

    /// The containers with their indexes, to change.
    pub(super) fn indexed_mut(&mut self) -> impl Iterator<Item = (ContainerIndex, &mut ContainerState)> {
        self.0.iter_mut().enumerate().map(|(place, container)| (ContainerIndex(place as u8), container))
    }

    /// The container at `index`; `None` in a rejected pod.
    pub(super) fn get(&self, index: ContainerIndex) -> Option<&ContainerState> {
        self.0.get(usize::from(index.0))
    }

    /// The container at `index`, to change.
    pub(super) fn get_mut(&mut self, index: ContainerIndex) -> Option<&mut ContainerState> {
        self.0.get_mut(usize::from(index.0))
    }

    /// The container of `attempt`, if that is its present run.
    pub(super) fn of_attempt(&mut self, attempt: Attempt) -> Option<&mut ContainerState> {
        self.get_mut(attempt.container).filter(|container| container.number() == attempt.number)
    }

    /// Whether a process of the pod may exist.
    pub(super) fn any_alive(&self) -> bool {
        self.iter().any(ContainerState::is_alive)
    }

    /// Whether a container has run.
    pub(super) fn any_has_run(&self) -> bool {
        self.iter().any(ContainerState::has_run)
    }

    /// Whether a later run than `attempt` has begun.
    pub(super) fn has_begun_anew_since(&self, attempt: Attempt) -> bool {
        self.get(attempt.container).is_some_and(|container| attempt.number < container.number())
    }

    /// Whether a run has not been asked to end yet, for instance a sidecar that waits for its turn.
    pub(super) fn any_waits_to_be_stopped(&self) -> bool {
        self.iter().any(|container| match container.run() {
            Run::Running => true,
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => false,
        })
    }

    /// The last live container that a sidecar before it waits for: a regular container if there is one,
    /// otherwise the last sidecar.
    pub(super) fn last_to_wait_for(&self) -> Option<ContainerIndex> {
        let last = |role: Role| {
            let mut alive = self.indexed().filter(|(_, container)| container.is_alive());
            alive.rfind(|(_, container)| container.role() == role).map(|(index, _)| index)
        };
        last(Role::Regular).or_else(|| last(Role::Sidecar))
    }

    /// Whether every regular container is done for good, or an init container has failed for good.
    pub(super) fn are_done(&self, policy: RestartPolicy) -> bool {
        let mut regular = self.iter().filter(|container| container.role() == Role::Regular);
        regular.all(|container| container.is_done(policy))
            || self.iter().any(|container| container.failed_for_good(policy))
    }

    /// Whether all regular containers and sidecars are ready; those of a rejected pod never are.
    pub(super) fn are_ready(&self) -> bool {
        let mut counted = self.iter().filter(|one| matches!(one.role(), Role::Regular | Role::Sidecar));
        !self.is_empty() && counted.all(|container| container.health().ready)
    }

    /// The number of starts in flight.
    pub(super) fn starts_in_flight(&self) -> usize {
        self.iter().filter(|container| matches!(container.run(), Run::Starting { .. })).count()
    }

    /// The number of exec probes in flight.
    pub(super) fn exec_probes_in_flight(&self) -> usize {
        self.iter().map(|container| container.probes.exec_in_flight()).sum()
    }

    /// Plans to discard the runs before the newest one of each container. The newest run is kept until the
    /// next one starts or the sandbox is removed: only its supervisor can report it to the next agent.
    pub(super) fn plan_discards(&mut self, pod: PodIndex, draft: &mut Draft) {
        for (index, container) in self.indexed_mut() {
            while let Some(attempt) = container.current.next_to_discard(index) {
                if !draft.push(pod, Action::Discard(attempt)) {
                    return;
                }
                container.current.discarded();
            }
        }
    }

    /// Ends the probes of the regular containers of a pod that stops. A kubelet continues to probe its
    /// sidecars, and ignores the results.
    pub(super) fn stop_probes(&mut self) {
        for container in self.iter_mut().filter(|container| container.role() == Role::Regular) {
            container.probes.stop();
        }
    }

    /// Records that images were added.
    pub(super) fn images_changed(&mut self, now: Instant) {
        for container in &mut self.0 {
            container.images_changed(now);
        }
    }

    /// Records that an object that the pod refers to has changed.
    pub(super) fn objects_changed(&mut self, now: Instant) {
        for container in &mut self.0 {
            container.objects_changed(now);
        }
    }

    /// Records the times at which a run, a hook or a probe has something to do next. The grace period of the pod ends at
    /// `grace_end`, if it stops.
    pub(super) fn wake(&self, wake: &mut Wake, grace_end: Option<Instant>) {
        for container in &self.0 {
            if let Some(at) = container.current.gives_up_at(grace_end) {
                wake.note(at);
            }
            match *container.run() {
                Run::Terminating { deadline, again } => {
                    wake.note(deadline);
                    if let Some(again) = again {
                        wake.note(again.at);
                    }
                }
                Run::Killing { again } => wake.note(again.at),
                Run::Waiting | Run::Recording | Run::Starting { .. } => {}
                Run::StartFailed { .. } | Run::Running | Run::Exited => {}
            }
            container.hooks.wake(wake);
            if container.is_probed() {
                for (_, exec, due) in container.probes.due() {
                    if !exec || wake.exec_probe_has_place {
                        wake.note(due);
                    }
                }
            }
        }
    }
}

impl<'a> IntoIterator for &'a mut Containers {
    type Item = &'a mut ContainerState;
    type IntoIter = std::slice::IterMut<'a, ContainerState>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Ended;
    use crate::sim::*;

    #[test]
    fn a_rejected_pod_gets_no_container() {
        let pod = pod(RestartPolicy::Always).with([container("a"), container("b")]);
        let mut containers = Containers::new(&pod.spec);
        containers.add_ephemeral(3);
        let roles: Vec<_> = containers.iter().map(ContainerState::role).collect();
        assert_eq!(roles, [Role::Regular, Role::Regular, Role::Ephemeral]);
        containers.clear();
        containers.add_ephemeral(4);
        assert!(containers.is_empty());
    }

    #[test]
    fn only_the_present_run_is_found_by_its_attempt() {
        let mut containers = Containers::new(&pod(RestartPolicy::Always).with([container("a")]).spec);
        let attempt = Attempt { container: ContainerIndex(0), number: 0 };
        assert!(containers.of_attempt(attempt).is_some() && !containers.has_begun_anew_since(attempt));
        for container in &mut containers {
            container.has_ended(Ended::superseded(0));
            container.begin_start(at(1));
        }
        assert!(containers.of_attempt(attempt).is_none() && containers.has_begun_anew_since(attempt));
        let other = Attempt { container: ContainerIndex(1), number: 0 };
        assert!(containers.of_attempt(other).is_none() && !containers.has_begun_anew_since(other));
    }
}
