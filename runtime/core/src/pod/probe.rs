//! When the probes of a run are due, and what their results mean.
//!
//! Each probe of a run starts `initialDelaySeconds` after the container (a kubelet would add up to one
//! period, the phase of its ticker), and then keeps its period. The other probes wait until the startup probe
//! has succeeded. After a liveness failure, and after any decision of the startup probe, that probe stops
//! until the next run. As with a kubelet's workers, the count of equal results in a row continues from run to
//! run; the decision does not.
//!
//! Whenever the state of a pod changes, the readiness probes of its unready containers run at once, and their
//! periods start again.
//!
//! The probes of adopted runs are spread over their first period, by a hash of the pod's uid and so the same
//! each time. The probes of runs that this agent started are spread by their starts.

use crate::facts::{Action, Attempt, Draft, Events, ProbeResult};
use crate::spec::{ContainerIndex, ProbeKind};
use crate::time::Instant;

use super::container::Run;
use super::probes::ProbeEffect;
use super::{ContainerState, PodState};

/// The kubelet's word for a kind of probe in events.
pub(crate) fn word(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Startup => "Startup",
    }
}

impl PodState {
    /// The exec probe of this pod that has been due for longest.
    pub(crate) fn oldest_exec_probe(&self) -> Option<(Instant, ContainerIndex, ProbeKind)> {
        let of = |(index, container): (ContainerIndex, &ContainerState)| {
            let due = container.probes.due().filter(|(_, exec, _)| *exec);
            due.map(move |(kind, _, due)| (due, index, kind)).min()
        };
        self.containers().filter(|(_, container)| asks_probes(container)).filter_map(of).min()
    }

    /// Adds an exec probe to the plan.
    pub(crate) fn plan_exec_probe(&mut self, container: ContainerIndex, kind: ProbeKind, draft: &mut Draft) {
        let state = &mut self.containers[usize::from(container.0)];
        if draft.push(self.index, Action::Probe(state.attempt(container), kind)) {
            state.probes.asked(kind);
        }
    }

    pub(super) fn plan_probes(&mut self, now: Instant, draft: &mut Draft) {
        for (index, container) in self.pod.spec.container_indexes().zip(&mut self.containers) {
            if !asks_probes(container) {
                continue;
            }
            let due: heapless::Vec<ProbeKind, 3> = container
                .probes
                .due()
                .filter_map(|(kind, exec, due)| (!exec && due <= now).then_some(kind))
                .collect();
            for kind in due {
                if !draft.push(self.index, Action::Probe(container.attempt(index), kind)) {
                    return;
                }
                container.probes.asked(kind);
            }
        }
    }

    pub(super) fn probed(
        &mut self,
        now: Instant,
        attempt: Attempt,
        kind: ProbeKind,
        result: &ProbeResult,
        events: &mut Events,
    ) {
        let pod = self.pod.clone();
        let index = self.index;
        let Some(container) = self.container_of(attempt) else { return };
        if !container.is_running() {
            return;
        }
        let spec = pod.spec.container(attempt.container);
        let at = Some(attempt.container);
        let meaning = container.probes.answered(spec, now, kind, result);
        if meaning == ProbeEffect::NotAsked {
            return;
        }
        match result {
            ProbeResult::Success => {}
            ProbeResult::Warning(text) => {
                events.warn(
                    index,
                    at,
                    "ProbeWarning",
                    format!("{} probe warning: {text}", word(kind)).into(),
                );
            }
            ProbeResult::Failure(text) => {
                events.warn(index, at, "Unhealthy", format!("{} probe failed: {text}", word(kind)).into());
            }
            ProbeResult::Error(text) => {
                if container.probes.gave_up(kind) {
                    let state = container.probes.state_name(kind);
                    let text =
                        format!("{} probe errored and resulted in {state} state: {text}", word(kind)).into();
                    events.warn(index, at, "Unhealthy", text);
                }
            }
        }
        match meaning {
            ProbeEffect::NotAsked | ProbeEffect::Nothing => {}
            ProbeEffect::HealthChanged => {
                self.touch();
                self.ask_readiness_again(now);
            }
            ProbeEffect::Fatal => {
                container.failed_probe = Some(kind);
                self.touch();
                self.ask_readiness_again(now);
            }
        }
    }

    /// Probes the readiness of unready containers at once. This is a kubelet's manual trigger: it does so
    /// whenever it generates the status of a pod.
    pub(super) fn ask_readiness_again(&mut self, now: Instant) {
        for container in self.containers.iter_mut().filter(|container| container.is_running()) {
            container.probes.ask_readiness_again(now);
        }
    }
}

/// Whether the container is probed: it runs, its postStart hook has finished, and it is not being killed.
pub(super) fn asks_probes(container: &ContainerState) -> bool {
    match container.run {
        Run::Running | Run::Terminating { .. } => !container.hooks.is_starting(),
        Run::Waiting | Run::Recording | Run::Starting { .. } => false,
        Run::StartFailed { .. } | Run::Killing { .. } | Run::Exited => false,
    }
}

#[cfg(test)]
mod tests;
