//! A pod that ends because its machine goes down. It is shown as a kubelet shows it, `Failed` for
//! the reason `Terminated`, and is not over: what is on flash says that it runs again after the
//! reboot, as if the plug had been pulled. Only a pod that is never to run twice is over by it.

use crate::facts::{End, PodPhase, Record, Whole};
use crate::spec::{RestartPolicy, Role};
use crate::time::Instant;

use super::{PodState, Stage, Verdict, Wish};

/// Reason of such a pod, and of its condition `DisruptionTarget`.
pub(crate) const TERMINATED: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

impl PodState {
    /// It is its turn to end with all others, or was.
    pub(super) fn end(&mut self, now: Instant, end: End) {
        if self.is_active() && end.whole == Whole::Machine && self.verdict.is_none() {
            self.verdict = Some(Verdict {
                phase: PodPhase::Failed,
                reason: Some(TERMINATED.into()),
                message: Some(MESSAGE.into()),
            });
            let has_begun = self.containers.iter().any(|container| container.begun() > 0);
            if self.policy() != RestartPolicy::Never || !has_begun {
                self.interrupt();
            }
        }
        self.stop(now, end.grace);
    }

    /// It is not over, whatever is shown of it, and neither are its containers, whatever they end with.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted = Some(self.phase).filter(|phase| !phase.is_terminal()).or(Some(PodPhase::Pending));
        for container in &mut self.containers {
            container.redefined |= container.role == Role::Regular && container.is_alive();
        }
    }

    /// It ended, or is to end, with the machine, and is not over for it.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    /// The machine does not go down after all.
    pub(crate) fn resume(&mut self) {
        self.resumes = self.interrupted.is_some();
        self.changed |= self.resumes;
    }

    /// What it begins again with.
    pub(crate) fn take_record_to_resume(&mut self) -> Option<Box<Record>> {
        if self.resumes && self.wish == Wish::Wanted { self.journal.take() } else { None }
    }

    /// Its phase is terminal, and stays so.
    pub fn is_over(&self) -> bool {
        self.phase.is_terminal() && !self.is_interrupted()
    }

    /// Its phase is terminal and its sandbox is gone: it needs nothing any more but to be shown.
    pub fn has_finished(&self) -> bool {
        matches!(self.stage, Stage::Finished) && self.is_over()
    }

    /// No process of it is left, and none will begin.
    pub(crate) fn has_ended(&self) -> bool {
        match self.stage {
            Stage::Active | Stage::Stopping { .. } => false,
            Stage::Stopped | Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => true,
        }
    }

    /// The same, and what is to be kept of it is kept.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.has_ended() && (self.journal.is_clean() || self.journal.gave_up())
    }
}
