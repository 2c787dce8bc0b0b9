//! One container of a pod, over all its runs.
//!
//! Each part of its state has one owner with private fields: the current run (`run.rs`), what started and ended before
//! (`history.rs`), whether and when another run follows (`restarts.rs`), the images that it waits for (`images.rs`), the
//! probes (`pod/probes.rs`) and the hooks (`pod/hooks.rs`) of the run. This file has the questions that concern several
//! parts; the changes are in `starting.rs` and `ending.rs`, and what a later agent restores is in `restored.rs`.

mod ending;
mod history;
mod images;
mod restarts;
mod restored;
mod run;
mod starting;

use std::rc::Rc;

use crate::facts::{Attempt, Ended, Health, ProbeResult, RunIdentity, StartedContainer};
use crate::spec::{Container, ContainerIndex, OwnRestart, ProbeKind, Role};
use crate::time::{Instant, Moment};

use super::backoff::RestartDelay;
use super::hooks::Hooks;
use super::probes::{ProbeEffect, Probes};

use history::RunHistory;
pub(crate) use history::WaitingReason;
use images::Images;
use restarts::Restarts;
use run::CurrentRun;
pub(crate) use run::{Run, StartRetry};
pub(crate) use starting::reason_name;

/// `state` of a container status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    /// The container has not run, and nothing prevents its first run.
    NotYet,
    Waiting {
        reason: &'a str,
        message: &'a str,
    },
    Running {
        at: Instant,
    },
    Terminated(&'a Ended),
}

/// The state of one container of a pod.
#[derive(Clone, Debug)]
pub(crate) struct ContainerState {
    role: Role,
    pub(super) current: CurrentRun,
    history: RunHistory,
    restarts: Restarts,
    pub(super) images: Images,
    pub(super) probes: Probes,
    pub(super) hooks: Hooks,
}

impl ContainerState {
    /// A container that never ran.
    pub(crate) fn new(role: Role, own: Option<Rc<OwnRestart>>) -> Self {
        ContainerState {
            role,
            current: CurrentRun::first(),
            history: RunHistory::default(),
            restarts: Restarts { own, ..Restarts::default() },
            images: Images::default(),
            probes: Probes::default(),
            hooks: Hooks::default(),
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// The state of the current or next run.
    pub(super) fn run(&self) -> &Run {
        self.current.state()
    }

    /// The number of the run that [`Self::run`] describes.
    pub(super) fn number(&self) -> u32 {
        self.current.number()
    }

    /// When the one run of an ephemeral container was decided.
    pub(super) fn decided(&self) -> Option<Moment> {
        self.current.decided()
    }

    /// The newest run that started in this boot.
    pub(crate) fn started(&self) -> Option<&StartedContainer> {
        self.history.started()
    }

    /// The newest run that has ended.
    pub(super) fn ended(&self) -> Option<&Ended> {
        self.history.ended()
    }

    /// Whether the newest run that has ended, or the one before it, has succeeded.
    pub(super) fn has_ever_succeeded(&self) -> bool {
        [self.history.ended(), self.history.previous()].into_iter().flatten().any(|ended| ended.code == 0)
    }

    /// The reason why the container waits, if `state.waiting` names it.
    pub(super) fn waiting(&self) -> Option<&WaitingReason> {
        self.history.waiting()
    }

    /// The probe for whose failure the run is to be killed.
    pub(super) fn failed_probe(&self) -> Option<ProbeKind> {
        self.restarts.failed_probe
    }

    /// Whether a run of the container has started in the present sandbox.
    pub(super) fn ran_in_sandbox(&self) -> bool {
        self.restarts.ran_in_sandbox
    }

    /// Whether all containers restart, so that the newest run is to end and does not count.
    pub(super) fn is_superseded(&self) -> bool {
        self.restarts.superseded
    }

    /// Whether the current run is to end because the spec changed, and another run follows whatever the exit code.
    pub(super) fn is_redefined(&self) -> bool {
        self.restarts.redefined
    }

    /// Whether a run has ended because the spec changed or a user restarts the container, and the next one is on its way.
    pub(super) fn is_between_runs(&self) -> bool {
        let is_between = match self.run() {
            Run::Exited | Run::Recording | Run::Starting { .. } => true,
            Run::Waiting | Run::StartFailed { .. } => false,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
        };
        is_between && self.is_redefined() && self.ran_in_sandbox() && self.waiting().is_none()
    }

    /// Whether another run follows the newest one whatever its exit code, because a shutdown interrupted it or its spec
    /// changed, and has not begun in the sandbox of this boot.
    pub(crate) fn awaits_next_run(&self) -> bool {
        let has_ended = match self.run() {
            Run::Exited | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => true,
            Run::Waiting | Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
        };
        has_ended && self.is_redefined() && !self.ran_in_sandbox()
    }

    /// Whether a process of the container may exist.
    pub(crate) fn is_alive(&self) -> bool {
        self.current.is_alive()
    }

    /// Whether the container's process was executed and its end was not observed.
    pub(crate) fn is_running(&self) -> bool {
        self.current.is_running()
    }

    /// Whether a start is under way, for which the starts of later containers wait.
    pub(crate) fn is_starting(&self) -> bool {
        match self.run() {
            Run::Recording | Run::Starting { .. } => true,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => {
                self.hooks.is_starting()
            }
            Run::Waiting | Run::StartFailed { .. } => false,
        }
    }

    /// Whether the container's process was executed, and the container counts as started.
    fn has_begun(&self) -> bool {
        self.is_running() && !self.hooks.is_starting()
    }

    /// Whether this is an init container whose newest run has succeeded.
    pub(crate) fn has_initialised(&self) -> bool {
        match self.run() {
            Run::Exited => self.role == Role::Init && !self.init_failed(),
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
        }
    }

    /// Whether the container is probed: it runs, its postStart hook has finished, and it is not being killed.
    pub(super) fn is_probed(&self) -> bool {
        match self.run() {
            Run::Running | Run::Terminating { .. } => !self.hooks.is_starting(),
            Run::Waiting | Run::Recording | Run::Starting { .. } => false,
            Run::StartFailed { .. } | Run::Killing { .. } | Run::Exited => false,
        }
    }

    /// Whether the newest run ended and does not count, because all containers were to restart.
    pub(super) fn was_superseded(&self) -> bool {
        self.ended().is_some_and(Ended::is_superseded)
    }

    /// The attempt that [`Self::run`] describes.
    pub(crate) fn attempt(&self, container: ContainerIndex) -> Attempt {
        Attempt { container, number: self.number() }
    }

    /// The attempt that starts next.
    pub(super) fn next_attempt(&self, container: ContainerIndex) -> Attempt {
        Attempt { container, number: self.current.next_number() }
    }

    /// The number of runs that have started, as the record counts them.
    pub(crate) fn started_count(&self) -> u32 {
        self.current.started_count()
    }

    /// `restartCount`: the number of the newest run, or of the next one if all containers restart.
    pub(crate) fn restart_count(&self) -> u32 {
        let of_ended = || self.ended().map_or(0, |ended| ended.number + u32::from(ended.is_superseded()));
        match self.run() {
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => of_ended(),
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } if !self.has_begun() => of_ended(),
            // This also holds after the sandbox was lost in which all containers were to restart.
            Run::Exited if self.is_superseded() && !self.ran_in_sandbox() || self.was_superseded() => {
                self.number() + 1
            }
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => self.number(),
        }
    }

    /// `started` and `ready`.
    pub(crate) fn health(&self) -> Health {
        let health = if self.has_begun() { self.probes.health() } else { Health::default() };
        let health = Health {
            pre_stopped: self.is_running() && self.hooks.pre_stopped(),
            superseded: self.is_superseded(),
            redefined: self.is_redefined(),
            ..health
        };
        match (self.role, self.shown().0) {
            (Role::Regular | Role::Sidecar, _) => health,
            (Role::Ephemeral, _) => Health { started: false, ready: false, ..health },
            (Role::Init, Shown::Terminated(ended)) => Health { ready: ended.code == 0, ..health },
            (Role::Init, Shown::NotYet | Shown::Waiting { .. } | Shown::Running { .. }) => {
                Health { ready: false, ..health }
            }
        }
    }

    /// `state` and `lastState.terminated`.
    pub(crate) fn shown(&self) -> (Shown<'_>, Option<&Ended>) {
        if let (true, Some(started)) = (self.has_begun(), self.started()) {
            return (Shown::Running { at: started.at }, self.ended());
        }
        match (self.waiting(), self.ended()) {
            (Some(waiting), ended) => {
                (Shown::Waiting { reason: &waiting.reason, message: &waiting.message }, ended)
            }
            (None, Some(ended)) => (Shown::Terminated(ended), self.history.previous()),
            (None, None) => (Shown::NotYet, None),
        }
    }

    /// The image and container ID of the newest run.
    pub(crate) fn identity(&self) -> Option<RunIdentity> {
        self.history.identity()
    }

    /// Whether a process of the container was executed: in this boot, or by the newest run of an earlier one.
    pub(super) fn has_run(&self) -> bool {
        let only_failed = || self.ended().is_some_and(Ended::failed_to_start);
        self.started().is_some() || self.history.other().is_some() && !only_failed()
    }

    /// The image that ran before, if the spec names another by now: it is started if the new one is not on
    /// the board.
    pub(super) fn fallback(&self, image: &str) -> Option<Rc<str>> {
        self.history.spec_image().filter(|before| !before.is_empty() && ***before != *image).cloned()
    }

    /// Whether the container runs, and was started for another image.
    pub(super) fn is_outdated(&self, image: &str) -> bool {
        let runs = match self.run() {
            Run::Running => true,
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => false,
        };
        let may_end = match self.role {
            Role::Regular => true,
            // A sidecar that has not started is not replaced, because later containers wait for it.
            Role::Sidecar => self.health().started,
            Role::Init | Role::Ephemeral => false,
        };
        let started_for = self.started().map_or("", |started| &started.spec_image);
        runs && may_end && !started_for.is_empty() && started_for != image
    }

    /// When the newest run ended, if that was in this boot: an earlier exit delays nothing.
    pub(super) fn finished_this_boot(&self) -> Option<Instant> {
        match self.ended()?.finished_at? {
            Moment::ThisBoot(at) => Some(at),
            Moment::Earlier(_) => None,
        }
    }

    /// Why the container, whose newest run has ended, may not start again at `now`.
    pub(super) fn restart_delay(&self, now: Instant) -> Option<RestartDelay> {
        self.restarts.backoff.check(now, self.finished_this_boot()?).err()
    }

    /// Records the result of a probe of the current run.
    pub(super) fn probed(
        &mut self,
        spec: &Container,
        now: Instant,
        kind: ProbeKind,
        result: &ProbeResult,
    ) -> ProbeEffect {
        if !self.is_running() {
            return ProbeEffect::NotAsked;
        }
        let effect = self.probes.answered(spec, now, kind, result);
        if effect == ProbeEffect::Fatal {
            self.restarts.failed_probe = Some(kind);
        }
        effect
    }
}
