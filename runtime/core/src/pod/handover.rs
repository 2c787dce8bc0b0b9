//! The handover of a pod from one agent to the next in the same boot ([`HandedOver`]): writing it, and
//! reading it.
//!
//! The previous agent knew what had been reported to it. The supervisor knows which runs started and how they
//! ended, reported or not. Therefore the supervisor's reports of runs, or of ends, that the previous agent
//! did not know are applied on top of the handover. Without a supervisor, flash may know of a run that was
//! about to start: if the container runs only once, that run counts as started.

use std::time::Duration;

use crate::facts::{
    ContainerRecord, FoundAttempt, FoundCondition, FoundSandbox, HandedOver, ORPHAN_GRACE, Record,
    StatusHandover,
};
use crate::spec::ContainerIndex;
use crate::time::{Instant, Moment};

use super::container::ContainerState;
use super::hook::POST_START_HOOK_ERROR;
use super::hooks::Hooks;
use super::probes::Probes;
use super::{Condition, PodState, Stage};
use crate::facts::ConditionType;

impl PodState {
    /// The handover of this pod to the next agent.
    pub fn handover(&self) -> StatusHandover {
        StatusHandover {
            conditions: self.conditions.to_found(),
            client_conditions: Some(self.client_conditions().to_vec()),
            state: Some(Box::new(self.handed_over())),
        }
    }

    fn handed_over(&self) -> HandedOver {
        HandedOver {
            phase: self.outcome.uninterrupted_phase(),
            terminal_phase: self.outcome.final_phase().cloned(),
            has_ended: self.has_ended() && !self.is_interrupted(),
            start_time: self.start_time(),
            active_since: self.acceptance.active_since(),
            is_admitted: self.acceptance.is_decided(),
            is_gated: self.pod.is_gated(),
            // A pod that is hidden from the API is an orphan to the next agent.
            deletion_grace_period_seconds: self.deletion_grace().map(|grace| {
                if self.is_hidden() { grace.min(ORPHAN_GRACE).as_secs() } else { grace.as_secs() }
            }),
            deletion: self.deletion(),
            is_hidden: self.is_hidden(),
            restarts_all: self.restarts_all(),
            ip: self.ip(),
            sandbox_failure: self.sandbox.failure().map(Into::into),
            saved_at: self.journal.saved_at(),
            allocated: self.pod.allocation(),
            resize: self.handed_over_resize(),
            containers: self.containers.iter().map(ContainerState::handed_over).collect(),
        }
    }

    /// Restores when a previous agent accepted the pod, and the conditions that clients set, even if those
    /// are not on flash yet. An agent of an earlier version handed over no more than this.
    pub(super) fn restore_acceptance(&mut self, found: &StatusHandover, now: Instant) {
        let is_accepted = |known: &&FoundCondition| known.kind == ConditionType::PodScheduled && known.status;
        let accepted = found.conditions.iter().find(is_accepted);
        if let Some(FoundCondition { since: since @ Moment::ThisBoot(_), .. }) = accepted {
            self.acceptance.restore_start_time(*since, now);
        }
        if let Some(client_conditions) = &found.client_conditions
            && self.conditions.set_of_clients(client_conditions.as_slice().into())
        {
            self.touch();
        }
    }

    /// Restores the handover of a previous agent of this boot, together with the record on flash.
    pub(super) fn restore_handover(
        &mut self,
        status: &StatusHandover,
        state: &HandedOver,
        on_flash: Option<Box<Record>>,
        has_sandbox: bool,
        now: Instant,
    ) {
        self.conditions.restore_found(&status.conditions);
        if let Some(client_conditions) = &status.client_conditions {
            self.conditions.set_of_clients(client_conditions.as_slice().into());
        }
        // A pod that has lost its gates since counts as accepted now.
        if state.is_gated == self.pod.is_gated() {
            self.acceptance.restore(state.start_time, state.active_since, now);
        }
        if state.is_admitted {
            self.acceptance.decide();
        }
        self.restore_allocation(&state.allocated, state.resize.as_deref(), now);
        self.outcome.restore(state.phase, state.terminal_phase.clone());
        self.removal.restore(state.deletion, state.is_hidden);
        self.sandbox.restore(state.ip, state.sandbox_failure.clone());
        if state.containers.is_empty() {
            self.containers.clear();
        }
        let recorded = on_flash.as_ref().map_or(&[][..], |record| &record.containers);
        let policy = self.policy();
        for (place, (container, left)) in self.containers.iter_mut().zip(&state.containers).enumerate() {
            let begins = |record: &&ContainerRecord| record.attempts > left.attempts && !has_sandbox;
            match recorded.get(place).filter(begins) {
                Some(record) if container.runs_once(policy) => container.restore_record(record),
                Some(_) | None => {
                    // The manifest may name yet another image by now.
                    let image = &self.pod.spec.container(ContainerIndex(place as u8)).image;
                    container.restore_handover(left, image, now);
                }
            }
        }
        self.journal.restore(on_flash, state.saved_at);
        self.restart_all.restore(state.restarts_all, now);
        if state.has_ended {
            self.stage.end();
        } else if self.outcome.terminal().is_some() {
            self.stop(now, None);
        }
        if let Some(grace) = state.deletion_grace_period_seconds {
            self.resume_deletion(now, Duration::from_secs(grace));
        }
    }

    /// Applies the state and the exits that the supervisor has, which the previous agent may not have known.
    pub(super) fn apply_supervisor_state(
        &mut self,
        state: &HandedOver,
        sandbox: Option<FoundSandbox>,
        attempts: Vec<FoundAttempt>,
        now: Instant,
    ) {
        // Objects may have changed while no agent ran.
        self.volume_files.mark_outdated(&self.pod.spec);
        if let Some(sandbox) = sandbox {
            let is_ready = self.conditions.get(ConditionType::PodReadyToStartContainers).status;
            if !is_ready {
                let since = Moment::ThisBoot(sandbox.at.min(now));
                let ready = Condition { status: true, since };
                self.conditions.restore(ConditionType::PodReadyToStartContainers, ready);
            }
        }
        let (pod, policy) = (&self.pod, self.restart_policy_if_active());
        let mut adopted = vec![false; self.containers.len()];
        let mut unheard = Vec::new();
        for found in attempts {
            let place = usize::from(found.attempt.container.0);
            let (Some(container), number) =
                (self.containers.get_mut(found.attempt.container), found.attempt.number)
            else {
                continue;
            };
            let newest = container.started_count().checked_sub(1);
            // The exit of such a run is known already.
            let is_known = match newest {
                Some(newest) if number == newest => !container.is_running(),
                Some(newest) => number < newest,
                None => false,
            };
            if is_known || adopted[place] && newest == Some(number) {
                continue;
            }
            let known = state.containers.get(place).filter(|left| left.is_running && newest == Some(number));
            let health = known.map(|left| left.health).unwrap_or_default();
            let probes = Probes::adopted(pod, found.attempt.container, found.container.at, now, health);
            let mut hooks = Hooks::adopted(health);
            if let Some(post_start) = known.and_then(|left| left.post_start.clone()) {
                hooks.resume(post_start);
            }
            let image = &pod.spec.container(found.attempt.container).image;
            container.adopt(number, Box::new(found.container), probes, hooks, image);
            adopted[place] = true;
            match found.exit {
                Some(exit) => {
                    let failure = container.hooks.take_failure();
                    container.adopt_end(Some(&exit), now);
                    match failure {
                        Some(message) => {
                            container.wait_to_restart(policy, POST_START_HOOK_ERROR, message);
                        }
                        None => unheard.push(found.attempt),
                    }
                }
                None if sandbox.is_none() => container.adopt_end(None, now),
                None => {}
            }
        }
        for (container, adopted) in self.containers.iter_mut().zip(adopted) {
            if container.is_running() && !adopted {
                container.adopt_end(None, now);
            }
            if sandbox.is_none() {
                container.forget_sandbox();
            }
        }
        if sandbox.is_none() {
            self.restart_all.forget(&mut self.containers);
        }
        for attempt in unheard {
            self.judge_exit(now, attempt);
        }
        match self.stage {
            // The pod was decided to be finished, but some of its processes still run.
            Stage::Stopped if self.containers.any_alive() => {
                self.stage.reopen();
                self.stop(now, None);
            }
            Stage::Stopping { .. } => self.containers.stop_probes(),
            Stage::Active | Stage::Stopped | Stage::Finished => {}
            Stage::Forgetting { .. } | Stage::ForgetFailed { .. } => {}
        }
        self.touch();
    }
}
