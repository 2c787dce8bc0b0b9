//! Pods that end because the machine shuts down. The API shows such a pod as a kubelet does, `Failed` with
//! the reason `Terminated`, but it has not finished: its record says that it runs again after the reboot, as
//! after a power cut. Only a pod that must not run twice is finished by the shutdown.

use crate::facts::TerminalPhase;
use crate::spec::RestartPolicy;

use super::containers::Containers;
use super::phase::TERMINATED;

/// `message` of a pod that a shutdown of the machine ended.
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// The terminal phase of a pod that a shutdown of the machine ends.
pub(super) fn terminal_phase() -> TerminalPhase {
    TerminalPhase::failed(TERMINATED, MESSAGE)
}

/// Whether a shutdown only interrupts the pod, so that it may run again after the reboot.
pub(super) fn may_run_again(policy: RestartPolicy, containers: &Containers) -> bool {
    policy != RestartPolicy::Never || containers.iter().all(|container| container.started_count() == 0)
}

/// Marks the containers of an interrupted pod: those that run now have not finished, whatever their exit
/// codes are.
pub(super) fn mark_interrupted(containers: &mut Containers) {
    for container in containers {
        container.interrupt();
    }
}
