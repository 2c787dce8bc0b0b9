//! Pods that end because the machine shuts down. The API shows such a pod as a kubelet does, `Failed` with
//! the reason `Terminated`, but it has not finished: its record says that it runs again after the reboot, as
//! after a power cut. Only a pod that must not run twice is finished by the shutdown.

use crate::facts::{EndRequest, PodPhase, Record, ShutdownScope};
use crate::spec::{RestartPolicy, Role};
use crate::time::Instant;

use super::{PodState, Stage, Verdict};

/// Reason of a pod that a shutdown of the machine ended.
pub(crate) const TERMINATED: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

impl PodState {
    /// Ends the pod as part of a shutdown.
    pub(super) fn end(&mut self, now: Instant, end: EndRequest) {
        if self.is_active() && end.scope == ShutdownScope::Machine && self.verdict.is_none() {
            self.verdict = Some(Verdict {
                phase: PodPhase::Failed,
                reason: Some(TERMINATED.into()),
                message: Some(MESSAGE.into()),
            });
            let has_begun = self.containers.iter().any(|container| container.started_count() > 0);
            if self.policy() != RestartPolicy::Never || !has_begun {
                self.interrupt();
            }
        }
        self.stop(now, end.grace);
    }

    /// Marks the pod as interrupted: neither it nor its containers have finished, whatever the API shows and
    /// whatever the exit codes are.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted = Some(self.phase).filter(|phase| !phase.is_terminal()).or(Some(PodPhase::Pending));
        for container in &mut self.containers {
            container.redefined |= container.role == Role::Regular && container.is_alive();
        }
    }

    /// Whether the pod ended, or is to end, with the machine, and so has not finished.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    /// Records that the shutdown was cancelled: an interrupted pod starts again.
    pub(crate) fn resume(&mut self) {
        self.resumes = self.interrupted.is_some();
        self.changed |= self.resumes;
    }

    /// Takes the record with which the pod starts again.
    pub(crate) fn take_record_to_resume(&mut self) -> Option<Box<Record>> {
        if self.resumes && self.removal.is_wanted() { self.journal.take() } else { None }
    }

    /// Whether the phase is terminal for good.
    pub fn is_over(&self) -> bool {
        self.phase.is_terminal() && !self.is_interrupted()
    }

    /// Whether the phase is terminal and the sandbox is gone, so that the pod is only shown.
    pub fn has_finished(&self) -> bool {
        matches!(self.stage, Stage::Finished) && self.is_over()
    }

    /// Whether no process of the pod is left, and none will start.
    pub(crate) fn has_ended(&self) -> bool {
        match self.stage {
            Stage::Active | Stage::Stopping { .. } => false,
            Stage::Stopped | Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => true,
        }
    }

    /// Whether no process of the pod is left, and its record is written or could not be written.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.has_ended() && (self.journal.is_clean() || self.journal.gave_up())
    }
}
