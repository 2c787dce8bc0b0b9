//! What a later agent restores of a container: from the record on flash, from the handover of the agent before it, and
//! from the supervisor.

use std::rc::Rc;

use crate::facts::{
    ContainerRecord, Ended, Exit, HandedOverContainer, Health, RecordedExit, RunIdentity, StartedContainer,
};
use crate::pod::hooks::Hooks;
use crate::pod::probes::Probes;
use crate::time::Instant;

use super::run::CurrentRun;
use super::{ContainerState, Run, StartRetry};

impl ContainerState {
    /// The record of this container with the given name; `is_over` if the phase of the pod is terminal.
    pub(in crate::pod) fn record(&self, name: &str, is_over: bool) -> ContainerRecord {
        // An image that ran may run again; that of a run that could not be executed is only shown.
        let identity = if is_over { self.identity() } else { self.history.executed() };
        let previous = self.history.previous().filter(|_| is_over);
        // A run that was about to start when the pod ended does not start any more.
        let attempts = match self.run() {
            Run::Recording if is_over => self.number(),
            _ => self.started_count(),
        };
        ContainerRecord {
            name: name.to_owned(),
            attempts,
            last_exit: self.ended().and_then(|ended| {
                let is_newest = ended.number + 1 == attempts;
                // The ID of a run that was executed is `container_id`, unless nobody has seen the run start.
                let id = match &ended.id {
                    Some(id) => Some(&**id).filter(|_| ended.failed_to_start()),
                    None => Some("").filter(|_| is_newest && identity.is_some() && !ended.failed_to_start()),
                };
                ended.to_recorded(id)
            }),
            previous_exit: previous.and_then(|ended| ended.to_recorded(ended.id.as_deref())),
            image: identity.as_ref().map(|identity| identity.image.to_string()),
            image_id: identity.as_ref().map(|identity| identity.image_id.to_string()),
            container_id: identity.as_ref().map(|identity| identity.id.to_string()),
            process: identity.filter(|_| is_over).and_then(|identity| identity.process),
            decided: self.decided().filter(|_| attempts > 0),
            redefined: self.restarts.redefined,
            superseded: self.was_superseded(),
        }
    }

    /// Restores a container that has not run under this agent from its record.
    pub(in crate::pod) fn restore_record(&mut self, record: &ContainerRecord) {
        let Some(newest) = record.attempts.checked_sub(1) else { return };
        let text = |text: &Option<String>| -> Rc<str> { text.as_deref().unwrap_or_default().into() };
        let id = record.container_id.as_deref().map(Rc::from);
        self.current = CurrentRun::restored(Run::Exited, newest, newest, record.decided);
        self.restarts.restore(record.superseded, record.redefined, false);
        if let Some(id) = &id {
            let (image, image_id) = (text(&record.image), text(&record.image_id));
            let process = record.process.clone();
            let recorded = RunIdentity { id: Rc::clone(id), image, image_id, process };
            self.history.other = Some(Box::new(recorded));
        }
        if record.superseded {
            return self.history.restore_ends(Some(Ended::superseded(newest)), None);
        }
        let seen = record.last_exit.as_ref().map(|exit| {
            let ended = Ended::from(exit);
            if ended.failed_to_start() || exit.id.is_some() {
                ended
            } else {
                Ended { id: id.clone().filter(|_| exit.number == newest), ..ended }
            }
        });
        match seen {
            Some(ended) if ended.number == newest => {
                self.history.restore_ends(Some(ended), record.previous_exit.as_ref().map(Ended::from));
            }
            earlier => self.history.restore_ends(Some(Ended::unobserved(newest, id)), earlier),
        }
    }

    /// The state of this container for the next agent.
    pub(in crate::pod) fn handed_over(&self) -> HandedOverContainer {
        let is_followed = match self.run() {
            Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => true,
            Run::Waiting | Run::Running | Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => {
                false
            }
        };
        let history = &self.history;
        HandedOverContainer {
            attempts: if is_followed { self.number() } else { self.started_count() },
            is_running: self.is_running(),
            is_followed,
            started: history.started().map(|started| Box::new(started.clone())),
            not_executed: history.other().filter(|_| history.started().is_some()).cloned().map(Box::new),
            recorded: history.other().filter(|_| history.started().is_none()).cloned().map(Box::new),
            ended: history.ended().cloned(),
            previous: history.previous().cloned(),
            waiting: history
                .waiting()
                .map(|waiting| (waiting.reason.as_ref().into(), waiting.message.clone())),
            failed_probe: self.failed_probe(),
            ran_in_sandbox: self.ran_in_sandbox(),
            decided: self.decided(),
            post_start: self.hooks.post_start().filter(|_| self.is_running()),
            missing_image: self.images.missing().map(|missing| Box::new(missing.clone())),
            health: self.health(),
        }
    }

    /// Restores a container that has not run under this agent from the handover. The manifest may name another image
    /// by now: `image`.
    pub(in crate::pod) fn restore_handover(&mut self, left: &HandedOverContainer, image: &str, now: Instant) {
        let newest = left.attempts.saturating_sub(1);
        let (run, number) = match (left.attempts, left.is_running, left.is_followed) {
            (0, _, _) => (Run::Waiting, 0),
            (_, true, _) => (Run::Running, newest),
            (attempts, false, true) => (Run::StartFailed { retry: StartRetry::At(now) }, attempts),
            (_, false, false) => (Run::Exited, newest),
        };
        self.current = CurrentRun::restored(run, number, newest, left.decided);
        self.history.started.clone_from(&left.started);
        // Earlier versions hand over both a run of this boot and one before it.
        let recorded = left.recorded.as_ref().filter(|_| left.started.is_none());
        if let Some(newest) = left.not_executed.as_ref().or(recorded) {
            self.history.other = Some(newest.clone());
        }
        self.history.restore_ends(left.ended.clone(), left.previous.clone());
        if let Some((reason, message)) = &left.waiting {
            self.history.wait(reason.to_string(), message.clone());
        }
        self.restarts.failed_probe = left.failed_probe;
        self.restarts.restore(left.health.superseded, left.health.redefined, left.ran_in_sandbox);
        self.images.restore_missing(left.missing_image.as_deref(), image);
    }

    /// Adopts the run with this number, which the supervisor reports and the record may know. Its end follows, if the
    /// supervisor knows it.
    pub(in crate::pod) fn adopt_recorded(
        &mut self,
        number: u32,
        started: Box<StartedContainer>,
        probes: Probes,
        health: Health,
    ) {
        let is_first = self.started().is_none();
        if is_first {
            // The record could not know how this run would end.
            self.history.forget_end_since(number);
        }
        // The previous agent may have died while it discarded the run before this one.
        self.current.adopt(number, is_first);
        self.has_started(started, probes, Hooks::adopted(health));
    }

    /// Restores from the supervisor why the run that was adopted is to end.
    pub(in crate::pod) fn restore_health(&mut self, health: Health, has_sandbox: bool) {
        let superseded = has_sandbox && health.superseded;
        let ran_in_sandbox = has_sandbox && (self.is_alive() || !superseded);
        self.restarts.restore(superseded, health.redefined, ran_in_sandbox);
    }

    /// Records that the newest run that the supervisor knows does not count, because all containers were to restart.
    pub(in crate::pod) fn restore_superseded(&mut self) {
        self.restarts.superseded = true;
        self.restarts.ran_in_sandbox = false;
    }

    /// Adopts the run with this number, which the supervisor reports and the handover may know.
    pub(in crate::pod) fn adopt(
        &mut self,
        number: u32,
        started: Box<StartedContainer>,
        probes: Probes,
        hooks: Hooks,
        image: &str,
    ) {
        let is_new = self.started_count().checked_sub(1) != Some(number);
        if is_new {
            // This is the run that was to follow.
            self.restarts.redefined = false;
            self.restarts.begin();
        }
        self.current.adopt(number, is_new);
        self.has_started(started, probes, hooks);
        let is_outdated = self.is_outdated(image);
        self.images.keep_missing_if(is_outdated);
    }

    /// Records the end of an adopted run: its exit, or `None` if it was not observed.
    pub(in crate::pod) fn adopt_end(&mut self, exit: Option<&Exit>, now: Instant) {
        let ended = match exit {
            Some(exit) => self.ended_as(exit),
            None => self.unobserved_end(now),
        };
        self.has_ended(ended);
    }

    /// Discards all that is known of the container, because the supervisor knows better.
    pub(in crate::pod) fn reset(&mut self) {
        *self = ContainerState::new(self.role, self.restarts.own.take());
    }
}

impl Ended {
    fn to_recorded(&self, id: Option<&str>) -> Option<RecordedExit> {
        Some(RecordedExit {
            number: self.number,
            code: self.code,
            reason: self.reason.to_string(),
            message: self.message.to_string(),
            started_at: self.started_at?,
            finished_at: self.finished_at?,
            id: id.map(str::to_owned),
        })
    }
}
