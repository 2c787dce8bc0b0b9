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

use crate::facts::{Action, Draft, Events, PodIndex, ProbeResult};
use crate::spec::{ContainerIndex, ProbeKind};
use crate::time::Instant;

use super::container::ContainerState;
use super::containers::Containers;

/// The kubelet's word for a kind of probe in events.
pub(crate) fn word(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Startup => "Startup",
    }
}

/// The exec probe that has been due for longest.
pub(super) fn oldest_exec_probe(containers: &Containers) -> Option<(Instant, ContainerIndex, ProbeKind)> {
    let of = |(index, container): (ContainerIndex, &ContainerState)| {
        let due = container.probes.due().filter(|(_, exec, _)| *exec);
        due.map(move |(kind, _, due)| (due, index, kind)).min()
    };
    containers.indexed().filter(|(_, container)| container.is_probed()).filter_map(of).min()
}

/// Adds an exec probe to the plan.
pub(super) fn plan_exec_probe(
    pod: PodIndex,
    container: (ContainerIndex, &mut ContainerState),
    kind: ProbeKind,
    draft: &mut Draft,
) {
    let (index, container) = container;
    if draft.push(pod, Action::Probe(container.attempt(index), kind)) {
        container.probes.mark_running(kind);
    }
}

/// Plans the probes that are due, except exec probes, of which the node allows only a few at once.
pub(super) fn plan_probes(pod: PodIndex, containers: &mut Containers, now: Instant, draft: &mut Draft) {
    for (index, container) in containers.indexed_mut().filter(|(_, container)| container.is_probed()) {
        let due: heapless::Vec<ProbeKind, 3> = container
            .probes
            .due()
            .filter_map(|(kind, exec, due)| (!exec && due <= now).then_some(kind))
            .collect();
        for kind in due {
            if !draft.push(pod, Action::Probe(container.attempt(index), kind)) {
                return;
            }
            container.probes.mark_running(kind);
        }
    }
}

/// Probes the readiness of unready containers at once. This is a kubelet's manual trigger: it does so
/// whenever it generates the status of a pod.
pub(super) fn ask_readiness_again(containers: &mut Containers, now: Instant) {
    for container in containers.iter_mut().filter(|container| container.is_running()) {
        container.probes.ask_readiness_again(now);
    }
}

/// Reports the result of a probe that did not succeed.
pub(super) fn report(
    at: (PodIndex, ContainerIndex),
    container: &ContainerState,
    kind: ProbeKind,
    result: &ProbeResult,
    events: &mut Events,
) {
    let word = word(kind);
    let (reason, text) = match result {
        ProbeResult::Success => return,
        ProbeResult::Warning(text) => ("ProbeWarning", format!("{word} probe warning: {text}")),
        ProbeResult::Failure(text) => ("Unhealthy", format!("{word} probe failed: {text}")),
        ProbeResult::Error(text) if container.probes.has_exhausted_retries(kind) => {
            let state = container.probes.state_name(kind);
            ("Unhealthy", format!("{word} probe errored and resulted in {state} state: {text}"))
        }
        ProbeResult::Error(_) => return,
    };
    events.warn(at.0, Some(at.1), reason, text.into());
}

#[cfg(test)]
mod tests;
