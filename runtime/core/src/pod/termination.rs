//! The end of runs, sandboxes and pods: signal, kill, remove, forget.
//!
//! Containers are stopped in parallel, each by its preStop hook, its stop signal and, at the end of the grace
//! period, by SIGKILL to all of its processes. A start under way is given up then. A grace period can only shrink. Only sidecars wait, within the
//! grace period: until no regular container is left, and then each for the sidecars after it. The sandbox is
//! removed after the last process, and a pod is dropped only when its sandbox is gone.

use std::time::Duration;

use crate::facts::{Action, Attempt, Draft, EndCause, EndRequest, Events, ShutdownScope, TerminalPhase};
use crate::spec::{HookKind, ProbeKind, RestartPolicy, Role};
use crate::time::Instant;

use super::container::Run;
use super::hook;
use super::hooks::Before;
use super::phase::{EVICTED, PREEMPTING, set_unknown_exits};
use super::{MIN_WINDOW, PodState, Stage, fence, shutdown};

/// The shortest grace period, whatever was requested.
const MIN_GRACE: Duration = Duration::from_secs(1);

/// The grace period of an evicted pod (`immediateEvictionGracePeriodSeconds`).
const EVICTION_GRACE: Duration = Duration::from_secs(1);

impl PodState {
    /// Stops the pod. A further call can only shorten the grace period; like containerd, it does not send the
    /// signal again.
    pub(crate) fn stop(&mut self, now: Instant, grace: Option<Duration>) {
        self.begin_stop(now, grace);
        self.removal.note_grace(self.stage);
    }

    /// Begins to stop the pod, or shortens the grace period.
    fn begin_stop(&mut self, now: Instant, grace: Option<Duration>) {
        let asked = grace.unwrap_or(self.pod.spec.termination_grace_period).max(MIN_GRACE);
        if !self.stage.stop(now, asked) {
            return;
        }
        self.restart_all.cancel();
        self.containers.stop_probes();
        for container in &mut self.containers {
            container.shorten_grace(now + asked, now + asked.max(MIN_WINDOW));
        }
        self.touch();
    }

    /// Fails the pod if `activeDeadlineSeconds` have passed.
    pub(super) fn check_deadline(&mut self, now: Instant, events: &mut Events) {
        let Some(deadline) = self.acceptance.deadline(self.pod.spec.active_deadline) else { return };
        if !self.is_active() || self.pod.is_gated() || now < deadline {
            return;
        }
        let message = "Pod was active on the node longer than the specified deadline";
        events.note(self.index, None, "DeadlineExceeded", message.into());
        self.outcome.decide(TerminalPhase::failed("DeadlineExceeded", message));
        self.stop(now, None);
    }

    /// Fails the pod, with its whole grace period, because a critical pod needs its room.
    pub(crate) fn preempt(&mut self, now: Instant, events: &mut Events) {
        let message = "Preempted in order to admit critical pod";
        events.warn(self.index, None, PREEMPTING, message.into());
        self.outcome.decide(TerminalPhase::failed(PREEMPTING, message));
        self.stop(now, None);
        self.settle(now);
    }

    /// Fails the pod, with the shortest grace period, because it uses more than it may, or more than the node has. If it
    /// is ending and its phase is decided, only its grace period becomes shorter.
    pub(crate) fn evict(&mut self, now: Instant, message: String, events: &mut Events) {
        events.warn(self.index, None, EVICTED, message.as_str().into());
        if self.outcome.terminal().is_some() {
            self.outcome.hastened = true;
        } else {
            self.outcome.decide(TerminalPhase::failed(EVICTED, message))
        }
        self.stop(now, Some(EVICTION_GRACE));
        self.settle(now);
    }

    /// Whether an eviction would end the pod, or end it earlier: it is not critical, and is neither ending within the
    /// grace period of an eviction nor over. A kubelet also evicts pods that are ending (`GetActivePods`).
    pub(crate) fn may_be_evicted(&self) -> bool {
        let goes_on = match self.stage {
            Stage::Active => true,
            Stage::Stopping { grace, .. } => grace > EVICTION_GRACE && !self.is_interrupted(),
            Stage::Stopped | Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => false,
        };
        goes_on && !self.pod.is_critical()
    }

    /// Whether the pod was evicted, or is being evicted.
    pub(crate) fn is_victim(&self) -> bool {
        // A pod that was rejected under pressure has the same reason, and no files.
        (self.outcome.is_evicted() || self.outcome.hastened) && !self.is_rejected()
    }

    /// Whether the pod was evicted, or is being evicted, and its volumes and writable layers still exist.
    pub(crate) fn has_files_of_victim(&self) -> bool {
        self.is_victim() && !self.finished_volumes.are_removed()
    }

    /// Ends the pod as part of a shutdown, or because its fence is closed.
    pub(super) fn end(&mut self, now: Instant, end: EndRequest) {
        let is_undecided = self.is_active() && self.outcome.terminal().is_none();
        let decided = match end.cause {
            EndCause::Shutdown(ShutdownScope::Agent | ShutdownScope::Machine) => {
                (shutdown::terminal_phase(), shutdown::may_run_again(self.policy(), &self.containers))
            }
            EndCause::Fence => (fence::terminal_phase(), fence::may_run_again(self.policy())),
        };
        if is_undecided {
            let (terminal, may_run_again) = decided;
            self.outcome.decide(terminal);
            if may_run_again {
                self.interrupt();
            }
        }
        self.stop(now, end.grace);
    }

    /// Resumes the deletion of the pod, with the whole grace period again. If the pod is wanted, it starts
    /// again afterwards.
    pub(super) fn resume_deletion(&mut self, now: Instant, grace: Duration) {
        self.removal.resume(&self.pod);
        self.stop(now, Some(grace));
    }

    /// Records that the regular containers have decided how the pod ended; remaining processes are stopped.
    pub(super) fn completed(&mut self, now: Instant) {
        if !self.any_alive() {
            self.stopped(true);
            return;
        }
        // Only sidecars and ephemeral containers are left, or processes of a lost sandbox.
        self.outcome.decide(TerminalPhase::of_exits(&self.containers));
        self.stop(now, None);
    }

    /// Records that every process has ended, and that none will start.
    pub(super) fn stopped(&mut self, is_terminal: bool) {
        self.stage.end();
        if is_terminal {
            if self.outcome.terminal().is_none() {
                self.outcome.decide(TerminalPhase::of_exits(&self.containers));
            }
            set_unknown_exits(&mut self.containers);
        }
        self.touch();
    }

    /// Plans the signals and kills of the runs that are to end, and repeats those that failed.
    pub(super) fn plan_kills(&mut self, now: Instant, draft: &mut Draft, events: &mut Events) {
        hook::report_abandoned_post_starts(self.index, &mut self.containers, events);
        let pod = &self.pod;
        let stop = self.stage.grace_end();
        let last = self.containers.last_to_wait_for();
        let is_resizing = self.resize_in_progress().is_some();
        let mut asked = false;
        for (index, container) in self.containers.indexed_mut() {
            let attempt = container.attempt(index);
            match *container.run() {
                Run::Running => {
                    let spec = pod.spec.container(index);
                    let whole = pod.spec.termination_grace_period;
                    let (grace_over, why) = match (stop, container.failed_probe()) {
                        (Some(grace_end), _) => (grace_end, format!("Stopping container {}", spec.name)),
                        (None, _) if container.is_redefined() && !container.hooks.is_starting() => {
                            let text = if container.is_outdated(&spec.image) {
                                redefined_text(&spec.name, container.role())
                            } else if is_resizing {
                                format!("Container {} resize requires restart", spec.name)
                            } else {
                                format!("Container {} was requested to restart", spec.name)
                            };
                            (now + whole, text)
                        }
                        (None, Some(kind)) => {
                            let grace = spec.probe_grace(kind).unwrap_or(whole);
                            let policy = container.own_policy(pod.spec.restart_policy);
                            let why = failed_probe_text(&spec.name, container.role(), kind, policy);
                            (now + grace, why)
                        }
                        (None, None) if container.hooks.start_failed() => {
                            (now + whole, "FailedPostStartHook".to_owned())
                        }
                        (None, None) => continue,
                    };
                    if container.current.take_killing_event() {
                        events.note(self.index, Some(index), "Killing", why.into());
                    }
                    match container.hooks.before_end(spec.lifecycle.pre_stop.as_ref(), now, grace_over) {
                        Before::Nothing => {}
                        Before::Wait => continue,
                        Before::Fails => hook::report_failure(self.index, index, HookKind::PreStop, events),
                        Before::Hook => {
                            if !draft.push(self.index, Action::Hook(attempt, HookKind::PreStop)) {
                                break;
                            }
                            container.hooks.begin_end(grace_over);
                            continue;
                        }
                    }
                    let waits = stop.is_some_and(|grace_end| now < grace_end)
                        && container.role() == Role::Sidecar
                        && last != Some(index);
                    if waits {
                        continue;
                    }
                    if !draft.push(self.index, Action::Terminate(attempt)) {
                        break;
                    }
                    let deadline = container.hooks.grace_over().unwrap_or(grace_over).max(now + MIN_WINDOW);
                    container.current.terminate(deadline);
                    asked = true;
                }
                Run::Terminating { deadline, .. } if deadline <= now => {
                    if !draft.push(self.index, Action::Kill(attempt)) {
                        break;
                    }
                    container.current.kill(now);
                }
                Run::Terminating { deadline, again: Some(again) } if again.at <= now => {
                    if !draft.push(self.index, Action::Terminate(attempt)) {
                        break;
                    }
                    container.current.terminate(deadline);
                }
                Run::Killing { again } if again.at <= now => {
                    if !draft.push(self.index, Action::Kill(attempt)) {
                        break;
                    }
                    container.current.kill(now);
                }
                // Nothing else ends a start that hangs: its process is not executed, and none is asked to end.
                Run::Starting { .. } if container.current.gives_up_at(stop).is_some_and(|at| at <= now) => {
                    if !draft.push(self.index, Action::Kill(attempt)) {
                        break;
                    }
                    container.current.kill(now);
                }
                Run::Terminating { .. } | Run::Killing { .. } => {}
                Run::Waiting | Run::Recording | Run::Starting { .. } => {}
                Run::StartFailed { .. } | Run::Exited => {}
            }
        }
        if asked {
            self.touch();
        }
    }

    /// Whether the pod keeps its record and its volumes, because it is to run again after a shutdown.
    fn is_kept(&self, shutdown: Option<ShutdownScope>) -> bool {
        (shutdown.is_some() || self.is_interrupted()) && !self.is_unwanted()
    }

    /// Whether the pod was removed before its scheduling gates were.
    fn was_withdrawn(&self) -> bool {
        self.pod.is_gated() && self.is_unwanted()
    }

    /// Moves a stopping pod to the next stage when its last process has ended.
    pub(super) fn advance_stop(&mut self, shutdown: Option<ShutdownScope>) {
        if let Stage::Stopping { .. } = self.stage
            && !self.any_alive()
            && !self.sandbox.is_creating()
        {
            let is_over = !self.is_kept(shutdown) && !self.was_withdrawn();
            self.stopped(is_over || self.outcome.terminal().is_some());
        }
    }

    /// Plans to remove the sandbox and the files that are not needed any more, and drops the pod when nothing
    /// is left.
    pub(super) fn plan_removal(&mut self, now: Instant, draft: &mut Draft, shutdown: Option<ShutdownScope>) {
        let (kept, with_agent) = (self.is_kept(shutdown), shutdown == Some(ShutdownScope::Agent));
        let is_saved = self.journal.is_at_rest();
        // The supervisor keeps the exits until the record has them.
        let is_over = matches!(self.stage, Stage::Stopped)
            && (kept && is_saved || self.is_unwanted() || self.journal.has_terminal());
        // An update of the volumes would make their directories again.
        if !self.volume_files.is_updating()
            && let Some(earlier) = self.sandbox.due_removal(now, !is_over)
            && draft.push(self.index, Action::RemoveSandbox)
        {
            self.sandbox.remove(earlier);
            self.changed = true;
        }
        if matches!(self.stage, Stage::Stopped) && self.is_gone() {
            // A full disk must not keep a pod that is to be forgotten anyway.
            let gave_up = self.is_unwanted() && self.journal.has_failed_write();
            // A pod that never ran has nothing to record.
            let withdrawn = self.was_withdrawn() && !self.journal.is_in_flight();
            if self.journal.has_terminal() || gave_up || withdrawn {
                self.stage.finish();
                self.changed = true;
                // The volumes of a pod that has finished now are removed in the same plan: nothing else wakes it.
                self.settle(now);
            } else if self.outcome.resumes && is_saved {
                self.removal.drop_for(self.pod.clone());
            } else if kept && with_agent && is_saved {
                // Without its record, a pod that has finished is the next agent's again: a broken card must not keep this
                // one.
                self.removal.drop_pod();
            }
        }
        let forget = match self.stage {
            // A write in flight would otherwise recreate the record after it was removed.
            Stage::Finished if self.is_unwanted() => {
                let is_at_rest = !self.journal.is_in_flight() && !self.finished_volumes.is_in_flight();
                is_at_rest.then_some(None)
            }
            // The next agent tries again.
            Stage::ForgetFailed { .. } if with_agent => {
                self.removal.drop_pod();
                None
            }
            Stage::ForgetFailed { retry } if retry.at <= now => Some(Some(retry)),
            Stage::Finished => {
                if kept && with_agent {
                    self.removal.drop_pod();
                } else if self.has_terminal_phase() {
                    let logs = self.outcome.is_evicted_for_disk_space();
                    self.finished_volumes.plan(self.index, now, logs, draft);
                }
                None
            }
            Stage::Active | Stage::Stopping { .. } | Stage::Stopped => None,
            Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => None,
        };
        if let Some(earlier) = forget
            && draft.push_write(self.index, Action::Forget)
        {
            self.stage.forget(earlier);
        }
    }

    /// Records that a signal or kill could not be delivered.
    pub(super) fn stop_failed(&mut self, now: Instant, attempt: Attempt, message: &str, events: &mut Events) {
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        if container.current.stop_failed(now) {
            let text = format!("error killing pod: {message}");
            events.warn(self.index, Some(attempt.container), "FailedKillPod", text.into());
        }
    }

    /// Records that the supervisor died: every run has ended, even if its processes may be alive until the sandbox
    /// is removed.
    pub(super) fn sandbox_lost(&mut self, now: Instant, events: &mut Events) {
        for container in &mut self.containers {
            container.sandbox_lost(now);
        }
        self.restart_all.forget(&mut self.containers);
        // A finished pod gets no other sandbox.
        if self.is_active() && !self.is_done() {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            events.note(self.index, None, "SandboxChanged", text.into());
        }
        self.touch();
    }

    /// Records that files of the pod could not be removed.
    pub(super) fn forget_failed(&mut self, now: Instant, message: &str, events: &mut Events) {
        if self.stage.forget_failed(now) {
            events.warn(self.index, None, "FailedKillPod", format!("error killing pod: {message}").into());
        }
    }
}

fn redefined_text(name: &str, role: Role) -> String {
    match role {
        Role::Init | Role::Sidecar => format!("Init container {name} definition changed"),
        Role::Regular | Role::Ephemeral => format!("Container {name} definition changed, will be restarted"),
    }
}

fn failed_probe_text(name: &str, role: Role, kind: ProbeKind, policy: RestartPolicy) -> String {
    let probe = match kind {
        ProbeKind::Liveness => "liveness",
        ProbeKind::Readiness => "readiness",
        ProbeKind::Startup => "startup",
    };
    // A kubelet also restarts init containers and sidecars, though its text does not say so.
    let (what, then) = match (role, policy) {
        (Role::Init | Role::Sidecar, _) => ("Init container", ""),
        (Role::Regular, RestartPolicy::Always | RestartPolicy::OnFailure) => {
            ("Container", ", will be restarted")
        }
        (Role::Regular, RestartPolicy::Never) | (Role::Ephemeral, _) => ("Container", ""),
    };
    format!("{what} {name} failed {probe} probe{then}")
}
