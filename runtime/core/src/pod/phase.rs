//! The phase of a pod and how it ends, derived from its containers. Until the init containers have succeeded, the
//! phase is `Pending`; an init container that fails for good fails the pod. The exits of sidecars do not
//! count, and ephemeral containers do not count at all.

use crate::facts::{PodPhase, TerminalPhase};
use crate::pressure::StarvedResource;
use crate::spec::Role;

use super::container::{ContainerState, Shown};
use super::containers::Containers;
use super::init::was_initialized;
use super::stage::Stage;

/// `reason` of a pod that was preempted for a critical one, and of the event.
pub(super) const PREEMPTING: &str = "Preempting";
/// The beginning of the message about an eviction under pressure.
pub(crate) const NODE_LOW: &str = "The node was low on resource: ";
pub(crate) use crate::facts::EVICTED;
/// `reason` of a pod that a shutdown of the machine ended.
pub(crate) const TERMINATED: &str = "Terminated";
/// `reason` of a pod whose node could not renew its Lease, as the node controller of Kubernetes names it.
pub(crate) const NODE_LOST: &str = "NodeLost";

impl TerminalPhase {
    /// The terminal phase that follows from the exits. A container without an exit counts as lost.
    pub(super) fn of_exits(containers: &Containers) -> Self {
        let mut regular = containers.iter().filter(|container| container.role() == Role::Regular);
        let succeeded = regular.all(|container| container.ended().is_some_and(|ended| ended.code == 0));
        let phase = if succeeded { PodPhase::Succeeded } else { PodPhase::Failed };
        TerminalPhase { phase, reason: None, message: None }
    }

    /// The terminal phase of a pod that the node fails.
    pub(super) fn failed(reason: &str, message: impl Into<Box<str>>) -> Self {
        TerminalPhase { phase: PodPhase::Failed, reason: Some(reason.into()), message: Some(message.into()) }
    }
}

/// The phase of a pod, and its end: what was decided, and whether it is final.
///
/// A shown terminal phase never changes, except that a pod is opened again whose processes turn out to run
/// still.
#[derive(Debug)]
pub(super) struct Outcome {
    phase: PodPhase,
    terminal: Option<TerminalPhase>,
    /// The phase from before a shutdown of the machine that ended or rejected the pod. Such a pod has not
    /// finished.
    interrupted: Option<PodPhase>,
    /// Whether the pod starts again after it has ended.
    pub(super) resumes: bool,
    /// Whether the node evicted the pod when its terminal phase was decided already.
    pub(super) hastened: bool,
}

impl Outcome {
    /// A pod that has not begun.
    pub(super) fn pending() -> Self {
        Outcome {
            phase: PodPhase::Pending,
            terminal: None,
            interrupted: None,
            resumes: false,
            hastened: false,
        }
    }

    /// `status.phase`.
    pub(super) fn phase(&self) -> PodPhase {
        self.phase
    }

    pub(super) fn terminal(&self) -> Option<&TerminalPhase> {
        self.terminal.as_ref()
    }

    /// The terminal phase, once it is shown.
    pub(super) fn shown_terminal_phase(&self) -> Option<&TerminalPhase> {
        self.terminal().filter(|_| self.phase.is_terminal())
    }

    /// The terminal phase of a pod that has finished, or is to finish. A pod that was interrupted by a shutdown of
    /// the machine has not: it starts again under an agent that does not know of the shutdown.
    pub(super) fn final_phase(&self) -> Option<&TerminalPhase> {
        self.terminal().filter(|_| !self.is_interrupted())
    }

    /// The phase apart from the decision on the end: that from before the shutdown, if one interrupted the pod.
    pub(super) fn uninterrupted_phase(&self) -> PodPhase {
        self.interrupted.unwrap_or(self.phase)
    }

    /// Decides how the pod ends. The phase is shown when the pod has ended.
    pub(super) fn decide(&mut self, terminal: TerminalPhase) {
        self.terminal = Some(terminal);
    }

    /// Whether the node ends, or has ended, the pod for a reason of the node: preemption, pressure, shutdown or fencing.
    /// The condition is published with the terminal phase, since a client may reuse what the pod has left.
    pub(super) fn is_disrupted(&self) -> bool {
        [PREEMPTING, TERMINATED, NODE_LOST].iter().any(|reason| self.has_reason(reason))
            || self.is_evicted_by_pressure()
    }

    /// Whether the pod ends, or has ended, for a critical pod.
    pub(super) fn is_preempted(&self) -> bool {
        self.has_reason(PREEMPTING)
    }

    /// Whether the pod is evicted: the node has too little of a resource, or the pod exceeds a limit.
    pub(super) fn is_evicted(&self) -> bool {
        self.has_reason(EVICTED)
    }

    /// Whether the pod is evicted because the node has too little of a resource, and not because the pod exceeds a limit.
    fn is_evicted_by_pressure(&self) -> bool {
        let message = self.terminal().and_then(|terminal| terminal.message.as_deref());
        self.has_reason(EVICTED) && message.is_some_and(|message| message.starts_with(NODE_LOW))
    }

    /// Whether the pod is evicted because the node has too little disk space or too few inodes.
    pub(super) fn is_evicted_for_disk_space(&self) -> bool {
        let message = self.terminal().and_then(|terminal| terminal.message.as_deref());
        let missing = message.and_then(|message| message.strip_prefix(NODE_LOW)).unwrap_or_default();
        let kinds = [StarvedResource::EphemeralStorage, StarvedResource::Inodes];
        self.has_reason(EVICTED)
            && kinds
                .iter()
                .any(|kind| missing.strip_prefix(kind.name()).is_some_and(|rest| rest.starts_with('.')))
    }

    fn has_reason(&self, reason: &str) -> bool {
        self.terminal().is_some_and(|terminal| terminal.reason.as_deref() == Some(reason))
    }

    /// Restores the phase, and the decision on the end, that a previous agent left.
    pub(super) fn restore(&mut self, phase: PodPhase, terminal: Option<TerminalPhase>) {
        (self.phase, self.terminal) = (phase, terminal);
    }

    /// Shows the terminal phase of a pod that had finished before.
    pub(super) fn show(&mut self) {
        self.phase = self.terminal().map_or(PodPhase::Failed, |terminal| terminal.phase);
    }

    /// Opens the phase again, because some processes of the pod still run.
    pub(super) fn reopen(&mut self, containers: &Containers) {
        self.phase = derive_phase(containers);
    }

    /// Marks the pod as interrupted by a shutdown of the machine: it has not finished, whatever the API shows
    /// and whatever the exit codes are.
    pub(super) fn interrupt(&mut self) {
        self.interrupted = Some(self.phase).filter(|phase| !phase.is_terminal()).or(Some(PodPhase::Pending));
    }

    /// Records that an interrupted pod finishes after all, because no source wants it.
    pub(super) fn clear_interruption(&mut self) {
        self.interrupted = None;
    }

    /// Whether the pod ended, or is to end, with the machine, and so has not finished.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    /// Records that the shutdown was cancelled: an interrupted pod starts again. Returns whether this is one.
    pub(super) fn resume(&mut self) -> bool {
        self.resumes = self.is_interrupted();
        self.resumes
    }

    /// Whether the phase is terminal for good.
    pub(super) fn has_terminal_phase(&self) -> bool {
        self.phase.is_terminal() && !self.is_interrupted()
    }

    /// Derives the phase again. The terminal phase is shown when the pod has ended and `is_recorded` or
    /// interrupted: until then a power cut could undo it.
    pub(super) fn settle(&mut self, stage: Stage, is_recorded: bool, containers: &Containers) {
        if self.phase.is_terminal() {
            return;
        }
        match (stage, &self.terminal) {
            (Stage::Active, _) => self.phase = derive_phase(containers),
            (_, Some(terminal)) if stage.has_ended() && (is_recorded || self.interrupted.is_some()) => {
                self.phase = terminal.phase;
            }
            (_, Some(_) | None) => {}
        }
    }
}

/// Adds an exit to each container that has started, or should have: the exit of a run that was not observed
/// is unknown. A container that was never to start, because of an init container before it, keeps waiting for
/// ever.
pub(super) fn set_unknown_exits(containers: &mut Containers) {
    let initialized = was_initialized(containers);
    let init = containers.iter().filter(|container| container.role().is_init()).enumerate();
    let begun = init.filter(|(_, container)| container.ended().is_some()).map(|(place, _)| place);
    let begun = begun.last().unwrap_or(0);
    let mut place = 0..;
    for container in containers {
        let counts = match container.role() {
            Role::Regular => initialized,
            Role::Init | Role::Sidecar => place.next().is_some_and(|place| place <= begun),
            // An ephemeral container that has not started need not have.
            Role::Ephemeral => false,
        };
        container.pod_ended(counts);
    }
}

/// Derives the phase of an active pod.
fn derive_phase(containers: &Containers) -> PodPhase {
    let mut sum = ContainerCounts::default();
    for container in containers.iter() {
        sum.add(container);
    }
    sum.phase()
}

/// The containers of an unfinished pod, counted as a kubelet does. A kubelet's other counts matter only to a
/// pod without regular containers, which does not exist.
#[derive(Default)]
struct ContainerCounts {
    /// Whether an init container runs, or has not ended once.
    init: bool,
    /// Whether a sidecar or regular container never ran.
    waiting: bool,
}

impl ContainerCounts {
    fn add(&mut self, container: &ContainerState) {
        match (container.role(), container.shown()) {
            (Role::Init, (Shown::Running { .. }, _)) => self.init = true,
            (Role::Init, (Shown::NotYet | Shown::Waiting { .. }, None)) => self.init = true,
            (Role::Init, (Shown::NotYet | Shown::Waiting { .. }, Some(_))) => {}
            (Role::Sidecar | Role::Regular, (Shown::NotYet | Shown::Waiting { .. }, None)) => {
                self.waiting = true;
            }
            (Role::Sidecar | Role::Regular, (Shown::NotYet | Shown::Waiting { .. }, Some(_))) => {}
            (Role::Sidecar | Role::Regular, (Shown::Running { .. }, _)) => {}
            (_, (Shown::Terminated(_), _)) | (Role::Ephemeral, _) => {}
        }
    }

    fn phase(&self) -> PodPhase {
        if self.init || self.waiting { PodPhase::Pending } else { PodPhase::Running }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::*;
    use crate::spec::RestartPolicy;

    fn outcome() -> (Outcome, Containers) {
        let pod = pod(RestartPolicy::Never).with([container("app")]);
        (Outcome::pending(), Containers::new(&pod.spec))
    }

    #[test]
    fn a_terminal_phase_is_shown_when_the_pod_has_ended_and_the_record_has_it() {
        let (mut outcome, containers) = outcome();
        outcome.decide(TerminalPhase::failed("Why", "because"));
        for (stage, is_recorded) in [(Stage::Active, true), (Stage::Stopped, false)] {
            outcome.settle(stage, is_recorded, &containers);
            assert!(outcome.shown_terminal_phase().is_none() && !outcome.has_terminal_phase());
        }
        outcome.settle(Stage::Stopped, true, &containers);
        assert!(outcome.shown_terminal_phase().is_some() && outcome.has_terminal_phase());
        outcome.settle(Stage::Active, false, &containers);
        assert_eq!(outcome.phase(), PodPhase::Failed);
        outcome.reopen(&containers);
        assert_eq!(outcome.phase(), PodPhase::Pending);
    }

    #[test]
    fn an_interrupted_pod_is_shown_as_failed_and_has_not_finished() {
        let (mut outcome, containers) = outcome();
        assert!(!outcome.resume());
        outcome.interrupt();
        outcome.decide(TerminalPhase::failed(TERMINATED, "shutdown"));
        outcome.settle(Stage::Stopped, false, &containers);
        assert_eq!((outcome.phase(), outcome.uninterrupted_phase()), (PodPhase::Failed, PodPhase::Pending));
        assert!(outcome.is_disrupted() && !outcome.is_preempted());
        assert!(!outcome.has_terminal_phase() && outcome.final_phase().is_none() && outcome.resume());
        outcome.clear_interruption();
        assert!(outcome.has_terminal_phase() && outcome.final_phase().is_some());
    }
}
