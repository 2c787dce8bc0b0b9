//! The decisions for one pod.
//!
//! ```text
//!  Active ──unwanted, deadline, shutdown──► Stopping ──last process gone──┐
//!     │                                                                   ▼
//!     └──────────────every container done for good────────────────────► Stopped
//!                                                                         │ record saved,
//!                       Forgetting ◄──unwanted── Finished ◄───────────────┘ sandbox gone
//!                         │    ▲
//!                         ▼    │ retry
//!                       ForgetFailed
//! ```
//!
//! Stages are never left backwards. A pod that is wanted again while it is being removed becomes a new pod
//! when this one is forgotten.
//!
//! Each part of a pod's state has one owner, with private fields and its own rules: `acceptance.rs`,
//! `removal.rs`, `sandbox.rs`, `volume_files.rs`, `finished_volumes.rs`, `containers.rs`, `restart_all.rs`, `phase.rs`,
//! `conditions.rs`, `journal.rs`, and for one container `container.rs`. Rules that concern single parts have only these as
//! arguments: `init.rs`, the order of the starts; `hook.rs`, the hooks at both ends of a run; `probe.rs`, when
//! containers are probed; `shutdown.rs`, which pods run again. Rules that need the whole pod extend [`PodState`]:
//! `start.rs` and `termination.rs`, how sandbox and containers start and end; `update.rs` and `resize.rs`, changes of
//! the spec; `local_storage.rs`, the limits of disk space; `record.rs` and `handover.rs`, what a later agent restores;
//! `view.rs`, the questions about a pod that change nothing.

mod acceptance;
mod backoff;
mod conditions;
pub(crate) mod container;
mod containers;
mod fence;
mod finished_volumes;
mod handover;
mod hook;
mod hooks;
mod init;
mod journal;
mod local_storage;
mod new_image;
mod phase;
mod probe;
pub(crate) mod probes;
mod pull;
mod record;
mod removal;
pub(crate) mod resize;
mod restart_all;
mod sandbox;
mod shutdown;
mod stage;
mod start;
mod termination;
mod update;
mod view;
mod volume_files;

use std::rc::Rc;
use std::time::Duration;

use crate::facts::{
    Attempt, Draft, Events, Exit, Fence, FoundPod, PodIndex, PodObservation, ProbeResult, Record,
    SandboxFailure, StatusHandover, Wake,
};
use crate::spec::Quantity;
use crate::spec::{ContainerIndex, HookKind, Pod, ProbeKind};
use crate::time::Instant;

use crate::facts::TerminalPhase;
use acceptance::Acceptance;
use conditions::Facts;
pub(crate) use conditions::{Condition, Conditions, closed_readiness_gates};
pub(crate) use container::{ContainerState, Shown};
use containers::Containers;
use finished_volumes::FinishedVolumes;
use init::is_initialized;
use journal::Journal;
use local_storage::LocalStorage;
use phase::Outcome;
pub(crate) use phase::{EVICTED, NODE_LOW, TERMINATED};
use probes::ProbeEffect;
pub(crate) use removal::Demand;
use removal::Removal;
use resize::Resize;
use restart_all::RestartAll;
use sandbox::Sandbox;
pub(crate) use stage::{NodeContext, Stage};
use volume_files::VolumeFiles;

/// How the message of a pod begins that was not admitted (`rejectPod` of `pkg/kubelet/kubelet.go`).
pub const REJECTED: &str = "Pod was rejected: ";

/// Interval between two tries to create a sandbox or start a container, which may work soon: a missing disk
/// or link may appear at any time. The kubelet's fixed interval is the same.
const SYNC_RETRY: Duration = Duration::from_secs(10);

/// The shortest time between the signal and the kill, even at the end of the grace period.
const MIN_WINDOW: Duration = Duration::from_secs(2);

/// A pod with all that the core knows of it.
#[derive(Debug)]
pub struct PodState {
    index: PodIndex,
    /// The pod as it was admitted, with its changes in place, and with the amounts of cpu and memory that are
    /// allocated to it.
    pod: Rc<Pod>,
    stage: Stage,
    acceptance: Acceptance,
    removal: Removal,
    sandbox: Sandbox,
    volume_files: VolumeFiles,
    finished_volumes: FinishedVolumes,
    containers: Containers,
    outcome: Outcome,
    restart_all: RestartAll,
    journal: Journal,
    resize: Resize,
    local_storage: LocalStorage,
    conditions: Conditions,
    fence: Fence,
    /// When an exec probe of this pod began last.
    last_exec_probe: Instant,
    /// Whether the published status may differ since it was last asked for.
    changed: bool,
}

impl PodState {
    /// A pod that a source wants, and of which nothing runs.
    pub(crate) fn wanted(
        index: PodIndex,
        pod: Rc<Pod>,
        record: Option<Box<Record>>,
        status: &StatusHandover,
        now: Instant,
    ) -> Self {
        let mut state = PodState::blank(index, pod, Demand::Wanted, now);
        match &status.state {
            Some(left) => state.restore_handover(status, left, record, false, now),
            None => {
                if let Some(record) = record {
                    state.restore(record, now);
                }
            }
        }
        state.settle(now);
        state
    }

    /// A pod that the agent found when it started.
    pub(crate) fn recovered(index: PodIndex, found: FoundPod, demand: Demand, now: Instant) -> Self {
        let mut state = PodState::blank(index, found.pod, demand, now);
        state.set_admission_decided();
        let status = found.status;
        if let Some(left) = &status.state {
            state.restore_handover(&status, left, found.record, found.sandbox.is_some(), now);
            state.sandbox.adopt(found.sandbox.as_ref(), found.processes);
            state.apply_supervisor_state(left, found.sandbox, found.attempts, now);
            state.settle(now);
            return state;
        }
        // An agent of an earlier version left less.
        if let Some(record) = found.record {
            state.restore(record, now);
        }
        state.restore_acceptance(&status, now);
        state.sandbox.adopt(found.sandbox.as_ref(), found.processes);
        state.adopt(found.sandbox, found.attempts, now);
        state.settle(now);
        state.conditions.restore_transitions(&status.conditions);
        state
    }

    /// Records that the node has admitted or rejected the pod, which happens once.
    pub(crate) fn set_admission_decided(&mut self) {
        self.acceptance.decide();
    }

    /// Rejects the pod: it never ran here, and never will.
    pub(crate) fn reject(&mut self, reason: &str, message: &str, now: Instant) {
        self.containers.clear();
        self.outcome.decide(TerminalPhase::failed(reason, format!("{REJECTED}{message}")));
        self.stage.end();
        self.touch();
        self.settle(now);
    }

    fn blank(index: PodIndex, pod: Rc<Pod>, demand: Demand, now: Instant) -> Self {
        let containers = Containers::new(&pod.spec);
        PodState {
            index,
            pod,
            stage: Stage::Active,
            acceptance: Acceptance::new(now),
            removal: Removal::new(demand),
            sandbox: Sandbox::absent(),
            volume_files: VolumeFiles::default(),
            finished_volumes: FinishedVolumes::default(),
            containers,
            outcome: Outcome::pending(),
            restart_all: RestartAll::default(),
            journal: Journal::default(),
            last_exec_probe: Instant::default(),
            resize: Resize::default(),
            local_storage: LocalStorage::default(),
            conditions: Conditions::new(now),
            fence: Fence::Open,
            changed: true,
        }
    }

    /// Records that the pod was deleted by force.
    pub(crate) fn hide(&mut self) {
        if self.removal.hide() {
            self.touch();
        }
    }

    /// Records that the pod is admitted, and that preempted pods have to end before it starts.
    pub(crate) fn wait_for_room(&mut self) {
        self.acceptance.wait_for_room();
    }

    /// Marks the pod as interrupted by a shutdown of the machine: neither it nor its containers have
    /// finished.
    pub(crate) fn interrupt(&mut self) {
        self.outcome.interrupt();
        shutdown::mark_interrupted(&mut self.containers);
    }

    /// Records that the shutdown was cancelled: an interrupted pod starts again.
    pub(crate) fn resume(&mut self) {
        self.changed |= self.outcome.resume();
    }

    /// Takes the record with which the pod starts again.
    pub(crate) fn take_record_to_resume(&mut self) -> Option<Box<Record>> {
        if self.outcome.resumes && self.removal.is_wanted() { self.journal.take() } else { None }
    }

    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn take_successor(&mut self) -> Option<Rc<Pod>> {
        self.removal.take_successor()
    }

    /// Adds an exec probe to the plan.
    pub(crate) fn plan_exec_probe(
        &mut self,
        now: Instant,
        index: ContainerIndex,
        kind: ProbeKind,
        draft: &mut Draft,
    ) {
        self.last_exec_probe = now;
        if let Some(container) = self.containers.get_mut(index) {
            probe::plan_exec_probe(self.index, (index, container), kind, draft);
        }
    }

    /// Records that a source wants the pod (again), possibly with added ephemeral containers. If its spec
    /// differs in more than what may change in place, the pod is removed, and the wanted one follows under
    /// the same uid.
    pub(crate) fn want(&mut self, now: Instant, pod: Rc<Pod>) {
        if self.is_unwanted() {
            self.removal.restore_demand(&pod);
        } else if pod.is_update_of(&self.pod) {
            self.removal.want();
            let pod = self.want_amounts(now, pod);
            if *self.pod != *pod {
                self.containers.add_ephemeral(pod.spec.container_count());
                self.update(now, pod);
            }
        } else {
            self.unwant(now, None);
            self.removal.restore_demand(&pod);
        }
    }

    /// Records that no source wants the pod any more.
    pub(crate) fn unwant(&mut self, now: Instant, grace: Option<Duration>) {
        self.removal.begin();
        self.outcome.clear_interruption();
        self.stop(now, grace);
        self.touch();
        self.settle(now);
    }

    /// Records that images were added.
    pub(crate) fn images_changed(&mut self, now: Instant) {
        self.containers.images_changed(now);
    }

    /// Records an observation. An old or repeated one does not fit the state, and changes nothing.
    pub(crate) fn observe(&mut self, now: Instant, seen: PodObservation, events: &mut Events) {
        let container_news = matches!(seen, PodObservation::Started { .. } | PodObservation::Exited { .. });
        match seen {
            PodObservation::SandboxReady { ip, at: _ } => {
                if self.sandbox.created(ip) {
                    self.touch();
                }
            }
            PodObservation::SandboxFailed { reason, remains, message } => {
                let (event, message) = match reason {
                    SandboxFailure::Mount | SandboxFailure::ObjectNotFound => ("FailedMount", message),
                    SandboxFailure::Sandbox | SandboxFailure::DeviceNotFound | SandboxFailure::SetAside => {
                        ("FailedCreatePodSandBox", format!("Failed to create pod sandbox: {message}").into())
                    }
                };
                let retry_at = match reason {
                    // The object may have appeared since it was looked for.
                    SandboxFailure::ObjectNotFound if self.volume_files.is_outdated() => Some(now),
                    SandboxFailure::ObjectNotFound
                    | SandboxFailure::DeviceNotFound
                    | SandboxFailure::SetAside => None,
                    SandboxFailure::Mount | SandboxFailure::Sandbox => Some(now + SYNC_RETRY),
                };
                if self.sandbox.creation_failed(&message, remains, retry_at) {
                    events.warn(self.index, None, event, message);
                    self.touch();
                }
            }
            PodObservation::ObjectsChanged => {
                self.volume_files.mark_outdated(&self.pod.spec);
                self.sandbox.retry_creation(now);
                self.containers.objects_changed(now);
            }
            PodObservation::VolumesUpdated => self.volume_files.updated(),
            PodObservation::VolumesUpdateFailed { reason, message } => {
                let waits_for_object =
                    matches!(reason, SandboxFailure::ObjectNotFound | SandboxFailure::SetAside);
                if self.volume_files.update_failed(now, waits_for_object) {
                    events.warn(self.index, None, "FailedMount", message);
                }
            }
            PodObservation::Resized { generation, failure } => {
                self.resize_written(now, generation, failure, events);
            }
            PodObservation::StorageMeasured(usage) => self.storage_measured(now, &usage, events),
            PodObservation::SandboxLost { processes } => {
                if self.sandbox.lost(processes) {
                    self.sandbox_lost(now, events);
                }
            }
            PodObservation::SandboxRemoved => {
                self.changed |= self.sandbox.removed();
            }
            PodObservation::SandboxRemoveFailed { message } => {
                if self.sandbox.removal_failed(now) {
                    let message = format!("error killing pod: {message}").into();
                    events.warn(self.index, None, "FailedKillPod", message);
                    self.touch();
                }
            }
            PodObservation::VolumesRemoved => self.finished_volumes.removed(),
            PodObservation::VolumesRemoveFailed { message } => {
                if self.finished_volumes.removal_failed(now) {
                    let message = format!("error killing pod: {message}").into();
                    events.warn(self.index, None, "FailedKillPod", message);
                }
            }
            PodObservation::Started { attempt, container } => self.started(attempt, container, events),
            PodObservation::StartFailed { attempt, failure, created } => {
                self.start_failed(now, attempt, &failure, created, events)
            }
            PodObservation::ImageChecked { attempt, failure } => {
                self.image_checked(now, attempt, failure, events);
            }
            PodObservation::ImagePulled { attempt, result } => {
                self.image_pulled(now, attempt, result, events)
            }
            PodObservation::Exited { attempt, exit } => self.exited(now, attempt, &exit, events),
            PodObservation::Probed { attempt, kind, result } => {
                self.probed(now, attempt, kind, &result, events);
            }
            PodObservation::Hooked { attempt, kind, failure } => {
                self.hooked(now, attempt, kind, failure, events);
            }
            PodObservation::StopFailed { attempt, message } => {
                self.stop_failed(now, attempt, &message, events)
            }
            PodObservation::Saved { generation } => {
                self.changed |= self.journal.saved(now, generation);
            }
            PodObservation::SaveFailed { message } => {
                if self.journal.failed(now) {
                    let message = format!("Error: failed to write the record of the pod: {message}").into();
                    events.warn(self.index, None, "Failed", message);
                }
            }
            PodObservation::Forgotten => {
                if matches!(self.stage, Stage::Forgetting { .. } | Stage::ForgetFailed { .. }) {
                    self.removal.drop_pod();
                }
            }
            PodObservation::ForgetFailed { message } => {
                self.forget_failed(now, &message, events);
            }
            PodObservation::ClientConditions { conditions } => {
                if self.conditions.set_of_clients(conditions) {
                    self.touch();
                }
            }
            PodObservation::Fence(fence) => self.set_fence(fence, events),
        }
        if container_news {
            probe::ask_readiness_again(&mut self.containers, now);
        }
        self.settle(now);
    }

    /// Plans the actions that are due now. A change whose action does not fit into `draft` is not made.
    pub(crate) fn plan(
        &mut self,
        now: Instant,
        draft: &mut Draft,
        events: &mut Events,
        context: NodeContext,
    ) {
        for end in [context.end, self.fence_end()].into_iter().flatten() {
            self.end(now, end);
        }
        self.check_deadline(now, events);
        self.containers.plan_discards(self.index, draft);
        // A found pod that no source has claimed yet only keeps running.
        if self.is_active() {
            let spec = &self.pod.spec;
            if hook::plan_post_start(self.index, spec, &mut self.containers, now, draft, events) {
                self.touch();
            }
        }
        if self.may_run() {
            if self.sandbox.is_ready()
                && self.restart_all.plan(now, self.index, &mut self.containers, draft, events)
            {
                self.touch();
            }
            self.plan_active(now, draft, events, context.may_begin);
        }
        self.plan_image_checks(now, draft);
        self.plan_pulls(draft, events);
        self.mark_redefined_runs();
        self.plan_resize(now, draft, events);
        self.plan_measurement(now, draft);
        self.plan_kills(now, draft, events);
        probe::plan_probes(self.index, &mut self.containers, now, draft);
        self.advance_stop(context.shutdown);
        self.plan_save(now, draft, context.shutdown.is_some() || self.outcome.is_interrupted());
        self.plan_removal(now, draft, context.shutdown);
        self.settle(now);
    }

    /// Records the times at which this pod has something to do next.
    pub(crate) fn wake(&self, wake: &mut Wake, context: NodeContext) {
        match self.stage {
            Stage::Active if self.may_run() => {
                self.wake_active(wake, context.may_begin);
                self.restart_all.wake(wake);
            }
            Stage::Stopping { grace_end, .. } if self.containers.any_waits_to_be_stopped() => {
                wake.note(grace_end)
            }
            Stage::Active
            | Stage::Stopping { .. }
            | Stage::Stopped
            | Stage::Finished
            | Stage::Forgetting { .. } => {}
            Stage::ForgetFailed { retry } => wake.note(retry.at),
        }
        self.sandbox.wake_removal(wake);
        self.wake_resize(wake);
        self.finished_volumes.wake(wake);
        self.wake_measurement(wake);
        self.containers.wake(wake, self.stage.grace_end());
        self.journal.wake(wake);
    }

    fn exited(&mut self, now: Instant, attempt: Attempt, exit: &Exit, events: &mut Events) {
        let policy = self.restart_policy_if_active();
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        if container.is_alive() {
            if exit.oom_killed {
                let limit = &self.pod.spec.container(attempt.container).resources.memory_limit;
                events.warn(self.index, Some(attempt.container), "OOMKilled", out_of_memory(limit.as_ref()));
            }
            let ended = container.ended_as(exit);
            let by_itself = container.ended_by_itself();
            let failure = container.hooks.take_failure();
            container.has_ended(ended);
            if let Some(message) = failure {
                container.wait_to_restart(policy, hook::POST_START_HOOK_ERROR, message);
            }
            self.touch();
            if by_itself {
                self.judge_exit(now, attempt);
            }
        }
    }

    /// Derives phase and conditions again. This is done after each change and not only for display, so that
    /// no decision depends on when the status was read.
    fn settle(&mut self, now: Instant) {
        self.mark_redefined_runs();
        let before = self.phase();
        let is_recorded =
            self.journal.has_terminal() || self.is_unwanted() && self.journal.has_failed_write();
        self.outcome.settle(self.stage, is_recorded, &self.containers);
        let is_over = self.phase().is_terminal();
        if !is_over && self.is_replacing_a_run() {
            self.changed |= self.phase() != before;
            return;
        }
        let spec = &self.pod.spec;
        let facts = Facts {
            start_time: self.start_time(),
            is_gated: self.pod.is_gated(),
            has_init_containers: !spec.init_containers.is_empty(),
            has_sandbox: self.sandbox.is_ready(),
            is_initialized: is_initialized(&self.containers),
            are_containers_ready: !is_over && self.containers.are_ready(),
            is_disrupted: is_over && self.outcome.is_disrupted(),
            restarts_all: !is_over && self.restart_all.is_under_way(),
        };
        let conditions_differ = self.conditions.settle(now, &facts, &spec.readiness_gates);
        self.changed |= conditions_differ || self.phase() != before;
    }

    /// Judges the exit of a run: it may restart all containers.
    fn judge_exit(&mut self, now: Instant, attempt: Attempt) {
        if self.is_active() && self.restart_all.judge_exit(now, attempt, &mut self.containers) {
            self.touch();
        }
    }

    /// Records the result of a probe.
    fn probed(
        &mut self,
        now: Instant,
        attempt: Attempt,
        kind: ProbeKind,
        result: &ProbeResult,
        events: &mut Events,
    ) {
        let index = attempt.container;
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        let effect = container.probed(self.pod.spec.container(index), now, kind, result);
        match effect {
            ProbeEffect::NotAsked => {}
            ProbeEffect::Nothing => probe::report((self.index, index), container, kind, result, events),
            ProbeEffect::HealthChanged | ProbeEffect::Fatal => {
                probe::report((self.index, index), container, kind, result, events);
                self.touch();
                probe::ask_readiness_again(&mut self.containers, now);
            }
        }
    }

    /// Records the result of a hook.
    fn hooked(
        &mut self,
        now: Instant,
        attempt: Attempt,
        kind: HookKind,
        failure: Option<Box<str>>,
        events: &mut Events,
    ) {
        let has_failed = failure.is_some();
        let policy = self.restart_policy_if_active();
        let (is_expected, is_present) = match self.containers.of_attempt(attempt) {
            Some(container) => (container.hooked(now, kind, failure, policy), true),
            // A preStop hook that outlasts its grace period fails when the run is killed. Its result may
            // arrive after the next run has begun.
            None => (kind == HookKind::PreStop && self.containers.has_begun_anew_since(attempt), false),
        };
        if is_expected && has_failed {
            hook::report_failure(self.index, attempt.container, kind, events);
        }
        if is_expected && is_present {
            self.touch();
        }
    }

    /// Records a change that the status or the record may show.
    fn touch(&mut self) {
        self.changed = true;
        self.journal.mark_stale();
    }
}
/// The message of the event about a container of which the kernel killed a process for lack of memory.
fn out_of_memory(limit: Option<&Quantity>) -> Box<str> {
    let limit = limit.map_or("no memory limit".into(), |limit| format!("a memory limit of {limit}"));
    format!("The kernel killed a process of the container, which has {limit}, for lack of memory").into()
}
