//! The record of a pod on flash: its content, when it is written, and how it is restored.
//!
//! Flash wears out, so a record is written only if it differs, and then ([`Urgency`]):
//! * at once, if something waits for it: a terminal phase; the start of a run of a `Never` pod or of an
//!   ephemeral container; a container that is done for good; a run of a `Never` pod that did not start
//!   after all and now waits for an image, perhaps for weeks; a pod that was admitted with presets or a
//!   priority, which may differ after a power cut; the amounts that are allocated to a pod that is resized;
//! * soon, at most once in ten seconds: a readiness gate that was opened or closed;
//! * otherwise (restart counts, exits) later, at most once in five minutes, however often containers crash.

use std::time::Duration;

use crate::facts::{Draft, FoundAttempt, FoundSandbox, LastShown, Record};
use crate::spec::{RestartPolicy, Role};
use crate::time::{Instant, Moment};

use super::conditions::closed_readiness_gates;
use super::container::{Run, StartRetry};
use super::init::initialized_since;
use super::journal::Urgency;
use super::probes::Probes;
use super::{Condition, PodState, Stage, TerminalPhase};
use crate::facts::ConditionType;

impl PodState {
    /// Plans a write of the record if it is due.
    pub(super) fn plan_save(&mut self, now: Instant, draft: &mut Draft, shutdown: bool) {
        match self.stage {
            // Nothing is kept of a pod that was rejected because of a shutdown.
            Stage::Stopped if self.is_interrupted() && self.is_rejected() => {
                self.journal.settle();
                return;
            }
            Stage::Active | Stage::Stopping { .. } | Stage::Stopped => {}
            // Conditions that clients set on a finished pod are kept as well.
            Stage::Finished if self.removal.is_wanted() => {}
            Stage::Finished | Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => return,
        }
        let Some(since) = self.journal.differs_since(now, shutdown) else { return };
        let mut record = self.record(now);
        self.keep_started_count(&mut record);
        let allocates = self.is_allocation_due(&record.allocated);
        let is_same = |on_flash: &Record| on_flash.equals_in_progress(&record);
        if !allocates && self.journal.on_flash().is_some_and(is_same) {
            self.journal.settle();
            return;
        }
        let urgency = if shutdown || allocates || self.is_urgent(&record) {
            Urgency::AtOnce
        } else if self.moves_a_gate(&record) {
            Urgency::Soon
        } else {
            Urgency::Later
        };
        if self.journal.is_due(now, since, urgency) {
            self.journal.plan_write(record, self.index, draft);
        }
    }

    /// Whether something waits for this record to be on flash.
    fn is_urgent(&self, record: &Record) -> bool {
        if record.phase.is_terminal() || self.journal.on_flash().is_none() && self.pod.is_admitted_for_good()
        {
            return true;
        }
        // The record was written while the pod waited for admission, and the pod is admitted now.
        if self
            .journal
            .on_flash()
            .is_some_and(|old| !old.is_admission_decided() && record.is_admission_decided())
        {
            return true;
        }
        let policy = self.policy();
        let on_flash = |index: usize| self.journal.on_flash().and_then(|old| old.containers.get(index));
        self.containers.iter().zip(&record.containers).enumerate().any(|(index, (container, new))| {
            let old = on_flash(index);
            // A reboot falls back to this image as long as the new one is missing.
            if container.images.missing().is_some() && old.is_none_or(|old| old.image != new.image) {
                return true;
            }
            match *container.run() {
                Run::Recording => true,
                Run::StartFailed {
                    retry: StartRetry::WhenImagesChange { .. } | StartRetry::WhenObjectsChange,
                } => container.runs_once(policy) && old.is_some_and(|old| old.attempts > new.attempts),
                Run::Exited => {
                    self.is_active()
                        && container.role() == Role::Regular
                        && container.is_done(policy)
                        && old.is_none_or(|old| old.last_exit != new.last_exit)
                }
                Run::Waiting | Run::Starting { .. } | Run::StartFailed { .. } => false,
                Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
            }
        })
    }

    /// Keeps the count of a run whose start failed and is retried soon. Otherwise two containers that run
    /// once would each undo, every ten seconds, what the other has recorded.
    fn keep_started_count(&self, record: &mut Record) {
        let Some(on_flash) = self.journal.on_flash().filter(|_| self.is_active()) else { return };
        let policy = self.policy();
        let containers = self.containers.iter().zip(&mut record.containers).zip(&on_flash.containers);
        for ((container, new), old) in containers {
            let is_tried_again = matches!(
                container.run(),
                Run::StartFailed { retry: StartRetry::At(_) | StartRetry::Pull { .. } }
            );
            let is_same_run = old.decided == new.decided && old.attempts == new.attempts + 1;
            if is_tried_again && container.runs_once(policy) && is_same_run {
                new.attempts = old.attempts;
            }
        }
    }

    /// Whether a readiness gate is closed that was open on flash, or the other way round.
    fn moves_a_gate(&self, record: &Record) -> bool {
        let gates = &self.pod.spec.readiness_gates;
        let before = self.journal.on_flash().map_or(&[][..], |record| &record.client_conditions);
        closed_readiness_gates(gates, before) != closed_readiness_gates(gates, &record.client_conditions)
    }

    /// The record as it would be written now.
    fn record(&self, now: Instant) -> Record {
        let terminal = self.outcome.final_phase();
        let phase = terminal.map_or(self.outcome.uninterrupted_phase(), |terminal| terminal.phase);
        Record {
            phase,
            reason: terminal.and_then(|terminal| terminal.reason.as_deref()).map(str::to_owned),
            message: terminal.and_then(|terminal| terminal.message.as_deref()).map(str::to_owned),
            // A gated pod is not accepted yet. The next agent decides again on the admission of a pod that
            // waits for preempted pods, since flash does not store whether those still have to end.
            start_time: Some(self.start_time())
                .filter(|_| self.acceptance.is_decided() && !self.pod.is_gated()),
            containers: self
                .containers()
                .map(|(index, container)| {
                    let name = &self.pod.spec.container(index).name;
                    container.record(name, phase.is_terminal())
                })
                .collect(),
            deletion_grace_period_seconds: self.deletion_grace().map(|grace| grace.as_secs()),
            client_conditions: self.client_conditions().to_vec(),
            allocated: if phase.is_terminal() || !self.acceptance.is_decided() || self.pod.is_gated() {
                Vec::new()
            } else {
                self.pod.allocation()
            },
            last: phase.is_terminal().then(|| {
                let conditions = self.conditions.to_last_shown(now, self.outcome.is_disrupted());
                Box::new(LastShown { conditions, ip: self.ip() })
            }),
        }
    }

    /// Restores the pod from its record, after a reboot or a restart of the agent.
    pub(super) fn restore(&mut self, mut record: Box<Record>, now: Instant) {
        record.put_in_order(&self.pod.spec);
        if let Some(start_time) = record.start_time {
            self.acceptance.restore_start_time(start_time, now);
        }
        for (container, record) in self.containers.iter_mut().zip(&record.containers) {
            container.restore_record(record);
        }
        if record.phase.is_terminal() {
            if record.containers.is_empty() {
                self.containers.clear();
            }
            self.outcome.decide(TerminalPhase {
                phase: record.phase,
                reason: record.reason.as_deref().map(Into::into),
                message: record.message.as_deref().map(Into::into),
            });
            if let Some(last) = &record.last {
                self.conditions.restore_found(&last.conditions);
                self.sandbox.restore(last.ip, None);
            }
        }
        self.conditions.set_of_clients(record.client_conditions.as_slice().into());
        self.restore_allocation(&record.allocated, None, now);
        let deletion_grace = record.deletion_grace_period_seconds;
        let terminal = record.phase.is_terminal();
        self.journal.adopt(record);
        if terminal {
            self.stopped(true);
            self.outcome.show();
            self.journal.settle();
        }
        if let Some(grace) = deletion_grace {
            self.resume_deletion(now, Duration::from_secs(grace));
        }
    }

    /// Adopts the runs of an earlier supervisor, and the state of its sandbox, without a handover.
    pub(super) fn adopt(&mut self, sandbox: Option<FoundSandbox>, attempts: Vec<FoundAttempt>, now: Instant) {
        // Objects may have changed while no agent ran.
        self.volume_files.mark_outdated(&self.pod.spec);
        if let Some(sandbox) = sandbox {
            let since = Moment::ThisBoot(sandbox.at.min(now));
            let ready = Condition { status: true, since };
            self.conditions.restore(ConditionType::PodReadyToStartContainers, ready);
            if self.policy() == RestartPolicy::Never && self.outcome.terminal().is_none() {
                // The record may be ahead: the supervisor knows which runs really started.
                for container in &mut self.containers {
                    container.reset();
                }
            }
            // The record of an ephemeral container may be ahead too, unless that ran in an earlier
            // sandbox.
            for container in &mut self.containers {
                let here = matches!(container.decided(), Some(Moment::ThisBoot(at)) if at >= sandbox.at);
                if here && container.role() == Role::Ephemeral {
                    container.reset();
                }
            }
        }
        let is_over = matches!(self.stage, Stage::Stopped);
        for found in attempts {
            let index = found.attempt.container;
            let Some(container) = self.containers.get_mut(index) else { continue };
            // If the pod ended before all containers restarted, the shown result of a run that does not count
            // stays.
            let counts = found.exit.is_none() && sandbox.is_some() || !container.was_superseded();
            if is_over && !counts {
                container.restore_superseded();
                continue;
            }
            if container.started().is_some() && found.attempt.number <= container.number() {
                continue;
            }
            let health = found.health;
            let probes = Probes::adopted(&self.pod, index, found.container.at, now, health);
            container.adopt_recorded(found.attempt.number, Box::new(found.container), probes, health);
            if found.exit.is_some() || sandbox.is_none() {
                container.adopt_end(found.exit.as_ref(), now);
            }
            container.restore_health(health, sandbox.is_some());
        }
        if self.is_active() {
            self.restart_all.resume(now, &mut self.containers);
        }
        self.conditions.restore(ConditionType::Initialized, initialized_since(&self.containers, now));
        match self.stage {
            // The pod was decided to be finished, but some of its processes still run.
            Stage::Stopped if self.containers.any_alive() => {
                self.stage.reopen();
                self.outcome.reopen(&self.containers);
                self.stop(now, None);
            }
            Stage::Stopping { .. } => self.containers.stop_probes(),
            Stage::Active | Stage::Stopped | Stage::Finished => {}
            Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => {}
        }
        self.touch();
    }
}
