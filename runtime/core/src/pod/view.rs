//! Questions about a pod that change nothing.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use crate::facts::{
    Attempt, ClientCondition, ConditionType, Deletion, EXEC_PROBES_OF_A_POD, Health, PodIndex, PodPhase,
    StartedContainer,
};
use crate::spec::{ContainerIndex, Pod, ProbeKind, RestartPolicy};
use crate::time::{Instant, Moment};

use super::init::is_complete;
use super::{Conditions, ContainerState, Demand, PodState, Stage, TerminalPhase, probe};

impl PodState {
    /// The index of the pod in the life of this agent.
    pub fn index(&self) -> PodIndex {
        self.index
    }

    /// The pod as it was admitted.
    pub fn pod(&self) -> &Rc<Pod> {
        &self.pod
    }

    /// `status.phase`.
    pub fn phase(&self) -> PodPhase {
        self.outcome.phase()
    }

    /// Whether the condition `Ready` is true.
    pub fn is_ready(&self) -> bool {
        self.conditions.get(ConditionType::Ready).status
    }

    /// The address of the pod; after its sandbox is gone, the last known one.
    pub fn ip(&self) -> Option<Ipv4Addr> {
        self.sandbox.ip()
    }

    /// Why the pod has no sandbox while creating one is retried; empty if there is no failure. Of a finished pod
    /// nothing is retried.
    pub(crate) fn sandbox_failure(&self) -> &str {
        self.sandbox.failure().filter(|_| !self.phase().is_terminal()).unwrap_or_default()
    }

    /// The grace period in effect, while the pod is stopping.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn termination_grace(&self) -> Option<Duration> {
        self.stage.grace()
    }

    /// Whether the pod was deleted by force: the API no longer returns it, even while its processes still
    /// end.
    pub fn is_hidden(&self) -> bool {
        self.removal.is_hidden()
    }

    /// The deletion to publish; `None` for a pod that is wanted, or that had ended before it was deleted.
    pub fn deletion(&self) -> Option<Deletion> {
        self.removal.deletion()
    }

    /// The grace period of a pod that is being deleted.
    pub(super) fn deletion_grace(&self) -> Option<Duration> {
        self.removal.grace(self.stage, self.pod.spec.termination_grace_period)
    }

    /// Whether no source wants the pod, so that it is being removed.
    pub fn is_unwanted(&self) -> bool {
        self.removal.is_unwanted()
    }

    /// `metadata.generation`; a deletion counts as a change.
    pub fn generation(&self) -> u64 {
        self.pod.generation + u64::from(self.is_unwanted())
    }

    /// The running attempt of `container`, for exec and logs.
    pub fn running(&self, container: ContainerIndex) -> Option<(Attempt, &StartedContainer)> {
        let state = self.containers.get(container)?;
        let started = state.started().filter(|_| state.is_running())?;
        Some((state.attempt(container), started))
    }

    /// `started` and `ready` of `container`.
    pub fn health(&self, container: ContainerIndex) -> Health {
        self.containers.get(container).map(ContainerState::health).unwrap_or_default()
    }

    /// Whether the node has admitted the pod. One with scheduling gates it has not; one that it has rejected has a terminal
    /// phase.
    pub fn is_admitted(&self) -> bool {
        !self.pod.is_gated() && (self.acceptance.is_decided() || self.acceptance.waits_for_room())
    }

    /// Whether a container of the pod has run.
    pub fn has_run(&self) -> bool {
        self.containers.any_has_run()
    }

    pub(crate) fn containers(&self) -> impl Iterator<Item = (ContainerIndex, &ContainerState)> {
        self.containers.indexed()
    }

    pub(crate) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// The conditions that clients set in the pod's status.
    pub fn client_conditions(&self) -> &Rc<[ClientCondition]> {
        self.conditions.of_clients()
    }

    /// Whether all containers of the pod are restarting, which a condition shows.
    pub(super) fn restarts_all(&self) -> bool {
        self.restart_all.is_under_way()
    }

    pub(crate) fn start_time(&self) -> Moment {
        self.acceptance.start_time()
    }

    /// The terminal phase of the pod with its reason and message, once it is shown.
    pub(crate) fn shown_terminal_phase(&self) -> Option<&TerminalPhase> {
        self.outcome.shown_terminal_phase()
    }

    /// Whether the pod was rejected, so that it has no containers.
    pub(crate) fn is_rejected(&self) -> bool {
        self.containers.is_empty()
    }

    /// Whether the pod counts against the node's resources.
    pub(crate) fn uses_resources(&self) -> bool {
        match self.stage {
            Stage::Active | Stage::Stopping { .. } => !self.pod.is_gated(),
            Stage::Stopped => !self.sandbox.is_absent(),
            Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => false,
        }
    }

    /// Whether the pod waits for preempted pods to end.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.acceptance.waits_for_room()
    }

    /// Whether no process, no namespace and no address of the pod is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.sandbox.is_gone() && !self.any_alive()
    }

    /// Whether the pod ends, or has ended, for a critical pod.
    pub(crate) fn is_preempted(&self) -> bool {
        self.outcome.is_preempted()
    }

    /// Whether the pod ended, or is to end, with the machine, and so has not finished.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.outcome.is_interrupted()
    }

    /// Whether the phase is terminal for good.
    pub fn has_terminal_phase(&self) -> bool {
        self.outcome.has_terminal_phase()
    }

    /// Whether the phase is terminal and the sandbox is gone, so that the pod is only shown.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn has_finished(&self) -> bool {
        matches!(self.stage, Stage::Finished) && self.has_terminal_phase()
    }

    /// Whether no process of the pod is left, and none will start.
    pub(crate) fn has_ended(&self) -> bool {
        self.stage.has_ended()
    }

    /// Whether no process of the pod is left, and its record is written or could not be written.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.has_ended() && self.journal.is_at_rest()
    }

    /// Whether the containers of the pod are started and restarted.
    pub fn is_active(&self) -> bool {
        self.stage.is_active()
    }

    /// Whether nothing but sidecars and ephemeral containers runs, and nothing else may start: every regular
    /// container is done for good, an init container has failed for good, or the pod is `Never`, has run
    /// before and has lost its sandbox.
    pub(super) fn is_done(&self) -> bool {
        let policy = self.policy();
        let is_of_before = |container: &ContainerState| container.ended().is_some();
        self.containers.are_done(policy)
            || policy == RestartPolicy::Never
                && !self.sandbox.is_creating()
                && !self.sandbox.is_ready()
                && self.containers.iter().any(is_of_before)
    }

    /// Whether the pod's containers may be started: the pod is wanted, and has no scheduling gate.
    pub(super) fn may_run(&self) -> bool {
        self.is_active() && self.removal.is_wanted() && !self.pod.is_gated()
    }

    /// Whether the run of a container is being replaced by the next one. Nobody is shown the moment in between: a kubelet
    /// ends a run and starts the next one in one go. A run that waits for an init container or a sidecar has ended.
    pub fn is_replacing_a_run(&self) -> bool {
        let is_between = |container: &ContainerState| container.is_between_runs();
        let is_awaited = |container: &ContainerState| container.role().is_init() && !is_complete(container);
        self.may_run()
            && self.sandbox.is_ready()
            && self.containers.iter().any(is_between)
            && !self.containers.iter().any(|container| is_awaited(container) && !is_between(container))
    }

    /// Whether this agent has created nothing for the pod yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_active() && self.sandbox.is_absent() && !self.any_alive()
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.removal.is_dropped()
    }

    pub(crate) fn demand(&self) -> Demand {
        self.removal.demand()
    }

    /// The number of container starts and sandbox creations in flight.
    pub(crate) fn starts_in_flight(&self) -> usize {
        self.containers.starts_in_flight() + usize::from(self.sandbox.is_creating())
    }

    /// Whether the start of a container is under way, for which the starts of the others wait.
    #[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "the tests of this crate use all of it"))]
    pub(crate) fn is_starting_container(&self) -> bool {
        self.sandbox.is_creating() || self.containers.iter().any(ContainerState::is_starting)
    }

    /// Whether something of the pod is being written or removed.
    pub(crate) fn is_being_written(&self) -> bool {
        self.journal.is_in_flight() || matches!(self.stage, Stage::Forgetting { .. })
    }

    /// The number of exec probes in flight.
    pub(crate) fn exec_probes_in_flight(&self) -> usize {
        self.containers.exec_probes_in_flight()
    }

    /// When an exec probe of this pod began last; the beginning of time if none did.
    pub(crate) fn last_exec_probe(&self) -> Instant {
        self.last_exec_probe
    }

    /// Whether this probe, an exec probe, is in flight.
    pub(crate) fn is_exec_probe_in_flight(&self, container: ContainerIndex, kind: ProbeKind) -> bool {
        self.containers.get(container).is_some_and(|container| container.probes.is_exec_in_flight(kind))
    }

    /// The exec probe of this pod that has been due for longest, unless as many are in flight as a pod may have.
    pub(crate) fn oldest_exec_probe(&self) -> Option<(Instant, ContainerIndex, ProbeKind)> {
        let may_have_more = self.exec_probes_in_flight() < EXEC_PROBES_OF_A_POD;
        may_have_more.then(|| probe::oldest_exec_probe(&self.containers)).flatten()
    }

    /// Whether a process of a container may be alive: of a run that has not ended, or that was lost with its
    /// sandbox.
    pub(crate) fn any_alive(&self) -> bool {
        self.containers.any_alive() || self.sandbox.may_have_processes()
    }

    /// The restart policy of a pod whose containers are restarted.
    pub(super) fn restart_policy_if_active(&self) -> Option<RestartPolicy> {
        self.is_active().then(|| self.policy())
    }

    pub(super) fn policy(&self) -> RestartPolicy {
        self.pod.spec.restart_policy
    }
}
