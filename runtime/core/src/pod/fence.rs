//! Pods that end because their node could not renew its Lease for the fencing period: the cluster may then start them
//! elsewhere. Unlike a finished pod, such a pod starts again once the cluster has confirmed that it is still here,
//! except one that must not run twice.

use crate::facts::{EndCause, EndRequest, Events, Fence, TerminalPhase};
use crate::spec::RestartPolicy;

use super::PodState;
use super::phase::NODE_LOST;

/// `message` of a pod that a closed fence ended.
const MESSAGE: &str = "Pod was terminated because the node could not renew its Lease for the fencing period.";

/// The terminal phase of a pod that a closed fence ends.
pub(super) fn terminal_phase() -> TerminalPhase {
    TerminalPhase::failed(NODE_LOST, MESSAGE)
}

/// Whether a closed fence only interrupts a pod. A report that it has failed must not be taken back, so that this
/// depends on nothing but the spec.
pub(super) fn may_run_again(policy: RestartPolicy) -> bool {
    policy != RestartPolicy::Never
}

impl PodState {
    /// Closes or opens the fence.
    pub(super) fn set_fence(&mut self, fence: Fence, events: &mut Events) {
        let (was_closed, is_closed) = (self.is_fenced(), matches!(fence, Fence::Closed { .. }));
        self.fence = fence;
        if is_closed && !was_closed && self.has_to_end() {
            events.warn(self.index, None, NODE_LOST, MESSAGE.into());
        } else if was_closed && !is_closed {
            self.resume();
        }
        if is_closed {
            self.outcome.resumes = false;
        }
    }

    /// The fence, which a pod that follows this one under its UID inherits.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Gives a pod the fence of the one that it follows.
    pub(crate) fn inherit_fence(&mut self, fence: Fence) {
        self.fence = fence;
    }

    fn is_fenced(&self) -> bool {
        matches!(self.fence, Fence::Closed { .. })
    }

    /// Whether anything of the pod may run. A pod without a sandbox needs only wait.
    fn has_to_end(&self) -> bool {
        !self.has_ended() && (!self.sandbox.is_gone() || self.any_alive())
    }

    /// The request to end of a closed fence.
    pub(super) fn fence_end(&self) -> Option<EndRequest> {
        let Fence::Closed { grace } = self.fence else { return None };
        let grace = Some(grace.min(self.pod.spec.termination_grace_period));
        self.has_to_end().then_some(EndRequest { cause: EndCause::Fence, grace })
    }
}
