//! Starting a pod: first its sandbox, then its containers one after another in the order of the spec, init
//! containers first, and again when they end. Ephemeral containers do not wait for their turn.

use crate::facts::{
    Action, Attempt, Draft, Events, PodIndex, StartFailure, StartFailureReason, StartedContainer, Wake,
};
use crate::spec::{ContainerIndex, Pod, PodSpec, Role};
use crate::time::{Instant, Moment};

use super::backoff::go_duration;
use super::container::{Run, StartRetry, WaitingReason, finished_this_boot, reason_name};
use super::containers::Containers;
use super::hooks::Hooks;
use super::init::StartOrder;
use super::{PodState, SYNC_RETRY};

impl PodState {
    /// Plans what an active pod needs next.
    pub(super) fn plan_active(
        &mut self,
        now: Instant,
        draft: &mut Draft,
        events: &mut Events,
        may_begin: bool,
    ) {
        if back_off_pulls(self.index, &self.pod.spec, &mut self.containers, now, events) {
            self.touch();
        }
        if self.is_done() {
            self.completed(now);
            return;
        }
        if self.sandbox.may_be_created(now) {
            self.plan_sandbox(draft, may_begin);
        } else if self.sandbox.is_ready() && !self.restarts_all() {
            self.volume_files.plan(self.index, now, draft);
            if report_back_offs(self.index, &self.pod, &mut self.containers, now, events) {
                self.touch();
            }
            self.plan_start(now, draft);
        }
    }

    /// Records the times at which an active pod has something to do next.
    pub(super) fn wake_active(&self, wake: &mut Wake, may_begin: bool) {
        if let Some(deadline) = self.acceptance.deadline(self.pod.spec.active_deadline) {
            wake.note(deadline);
        }
        if may_begin {
            self.sandbox.wake_creation(wake);
        }
        if self.sandbox.is_ready() {
            self.volume_files.wake(wake);
        }
        let order = StartOrder::of(&self.containers);
        for (index, container) in self.containers() {
            if let Some(at) = container.new_image.retry_at() {
                wake.note(at);
            }
            match container.run {
                Run::StartFailed { retry: StartRetry::At(at) } => wake.note(at),
                Run::StartFailed { retry: StartRetry::WhenImagesChange { back_off_at, pull_at } } => {
                    back_off_at.into_iter().chain(pull_at).for_each(|at| wake.note(at));
                }
                Run::StartFailed { retry: StartRetry::Pull { .. } } => {}
                Run::Exited => {
                    if let (true, Some(finished)) = (self.sandbox.is_ready(), finished_this_boot(container))
                        && container.restarts(self.policy())
                        && order.allows(container.role, index)
                        && let Err(held) = container.backoff.check(wake.now, finished)
                    {
                        wake.note(held.until);
                        if container.shows_start_failure() {
                            wake.note(finished + SYNC_RETRY);
                        }
                    }
                }
                Run::StartFailed { retry: StartRetry::WhenObjectsChange } => {}
                Run::Waiting | Run::Recording | Run::Starting { .. } => {}
                Run::Running | Run::Terminating { .. } | Run::Killing { .. } => {}
            }
        }
    }

    fn plan_sandbox(&mut self, draft: &mut Draft, may_begin: bool) {
        if may_begin && draft.push_start(self.index, Action::CreateSandbox) {
            self.sandbox.create();
            self.volume_files.begin_creation();
            if self.acceptance.begin() {
                self.touch();
            }
        }
    }

    /// Plans one start at a time; a container whose start has to wait does not delay the others.
    fn plan_start(&mut self, now: Instant, draft: &mut Draft) {
        let (policy, order) = (self.policy(), StartOrder::of(&self.containers));
        if let Some((index, container)) = self.containers.indexed_mut().find(|(_, one)| one.is_starting()) {
            let recorded = match container.run {
                Run::Recording => self.journal.has_begun(index, container.number, container.decided),
                Run::Waiting | Run::Starting { .. } | Run::StartFailed { .. } | Run::Running => false,
                Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => false,
            };
            if recorded
                && draft.push_start(
                    self.index,
                    Action::Start {
                        attempt: container.attempt(index),
                        fallback: container.fallback(&self.pod.spec.container(index).image),
                    },
                )
            {
                container.run = Run::Starting { inputs_changed: false };
            }
            return;
        }
        let spec = &self.pod.spec;
        let in_turn = spec.ephemeral_indexes().chain(spec.init_indexes()).chain(spec.regular_indexes());
        for index in in_turn {
            let Some(container) = self.containers.get_mut(index) else { continue };
            if !order.allows(container.role, index) {
                continue;
            }
            let may_begin = match container.run {
                Run::Waiting => true,
                Run::StartFailed { retry: StartRetry::At(at) } => at <= now,
                Run::StartFailed { retry: StartRetry::WhenImagesChange { pull_at, .. } } => {
                    pull_at.is_some_and(|at| at <= now)
                }
                Run::StartFailed { retry: StartRetry::Pull { .. } } => false,
                Run::StartFailed { retry: StartRetry::WhenObjectsChange } => false,
                Run::Exited if container.restarts(policy) => finished_this_boot(container)
                    .is_none_or(|finished| container.backoff.check(now, finished).is_ok()),
                Run::Exited | Run::Recording | Run::Starting { .. } => false,
                Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
            };
            if !may_begin {
                continue;
            }
            // The start may be on flash already if it is a retry: nothing would be written, and so no answer
            // would come. Later runs of a sidecar need not be recorded first.
            let recorded = self.journal.has_begun(index, 0, container.decided);
            match container.runs_once(policy) {
                true if !recorded => {
                    container.decided = (container.role == Role::Ephemeral).then_some(Moment::ThisBoot(now));
                    container.begin(Run::Recording);
                }
                true | false => {
                    let number = match container.run {
                        Run::Exited => container.number + 1,
                        Run::Waiting | Run::Recording | Run::Starting { .. } => container.number,
                        Run::StartFailed { .. } | Run::Running => container.number,
                        Run::Terminating { .. } | Run::Killing { .. } => container.number,
                    };
                    let start = Action::Start {
                        attempt: Attempt { container: index, number },
                        fallback: container.fallback(&spec.container(index).image),
                    };
                    if !draft.push_start(self.index, start) {
                        return;
                    }
                    // An exit of an earlier boot delays nothing, but counts for the back-off.
                    if container.ended.is_some() && !container.superseded {
                        let finished = finished_this_boot(container).unwrap_or(now);
                        container.backoff.advance(now, finished);
                    }
                    container.begin(Run::Starting { inputs_changed: false });
                }
            }
            self.touch();
            return;
        }
    }

    /// Records that a container's process was executed.
    pub(super) fn started(&mut self, attempt: Attempt, started: Box<StartedContainer>, events: &mut Events) {
        let (pod, index) = (&self.pod, self.index);
        let is_interrupted = self.is_interrupted();
        let stopping = (!self.is_active()).then(|| self.stage.grace_end().unwrap_or(started.at));
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        match container.run {
            Run::Starting { .. } | Run::StartFailed { .. } => {}
            Run::Waiting | Run::Recording | Run::Running => return,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => return,
        }
        let spec = pod.spec.container(attempt.container);
        let mut probes = container.probes.renewed(spec, started.at);
        let mut hooks = Hooks::of(spec);
        if let Some(grace_end) = stopping {
            // A kubelet keeps probing sidecars.
            if container.role == Role::Regular {
                probes.stop();
            }
            hooks.stop(grace_end);
        }
        container.has_started(started, probes, hooks);
        // This is the run that was to follow, unless the pod was interrupted.
        container.redefined = is_interrupted && container.role == Role::Regular;
        let is_outdated = container.is_outdated(&spec.image);
        container.new_image.run_began(is_outdated);
        container.missing_image.take_if(|_| !is_outdated);
        let at = Some(attempt.container);
        let image = container.started.as_ref().map_or("", |started| &started.spec_image);
        let image = if image.is_empty() { &spec.image } else { image };
        if !container.pulls.run_began() {
            events.note(index, at, "Pulled", pulled(image));
        }
        events.note(index, at, "Created", "Container created".into());
        events.note(index, at, "Started", "Container started".into());
        self.touch();
    }

    /// Records that a start failed.
    pub(super) fn start_failed(
        &mut self,
        now: Instant,
        attempt: Attempt,
        failure: &StartFailure,
        events: &mut Events,
    ) {
        let (pod, index) = (&self.pod, self.index);
        let (active, policy) = (self.is_active(), self.policy());
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        let inputs_changed = match container.run {
            Run::Starting { inputs_changed } => inputs_changed,
            Run::Waiting | Run::Recording | Run::StartFailed { .. } | Run::Running => return,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => return,
        };
        let at = Some(attempt.container);
        let spec = pod.spec.container(attempt.container);
        let word = reason_name(failure.reason);
        let mut message = failure.message.clone();
        let retry = match failure.reason {
            StartFailureReason::InvalidImageName => {
                warn_of_image(index, at, &spec.image, failure, events);
                StartRetry::WhenImagesChange { back_off_at: None, pull_at: None }
            }
            StartFailureReason::ErrImageNeverPull => {
                message = never_pulled(failure.image.as_deref().unwrap_or(&spec.image));
                warn_of_image(index, at, &spec.image, failure, events);
                StartRetry::WhenImagesChange { back_off_at: None, pull_at: None }
            }
            StartFailureReason::ErrImagePull => {
                warn_of_image(index, at, &spec.image, failure, events);
                StartRetry::WhenImagesChange { back_off_at: Some(now + SYNC_RETRY), pull_at: None }
            }
            StartFailureReason::ImageToPull if container.pulls.is_pulled() => {
                warn_of_image(index, at, &spec.image, failure, events);
                container.pull_failed(now)
            }
            StartFailureReason::ImageToPull => {
                // The status stays as it is until the pull has failed.
                container.run = Run::StartFailed { retry: StartRetry::Pull { is_in_flight: false } };
                container.awaited_volume.clone_from(&failure.image);
                return;
            }
            StartFailureReason::ImageInspectError => {
                warn_of_image(index, at, &spec.image, failure, events);
                StartRetry::At(now + SYNC_RETRY)
            }
            StartFailureReason::CreateContainerConfigError
            | StartFailureReason::ObjectNotFound
            | StartFailureReason::CreateContainerError => {
                events.note(index, at, "Pulled", pulled(&spec.image));
                events.warn(index, at, "Failed", format!("Error: {message}").into());
                match failure.reason {
                    StartFailureReason::ObjectNotFound => StartRetry::WhenObjectsChange,
                    _ => StartRetry::At(now + SYNC_RETRY),
                }
            }
            StartFailureReason::RunContainerError => {
                events.note(index, at, "Pulled", pulled(&spec.image));
                events.note(index, at, "Created", "Container created".into());
                events.warn(index, at, "Failed", format!("Error: {message}").into());
                let ended = container.failed_start_end(now, failure);
                // The run that was to follow has taken place.
                container.redefined = false;
                container.has_ended(ended);
                if active && container.restarts(policy) {
                    container.waiting = Some(WaitingReason { reason: word.into(), message });
                }
                self.touch();
                return;
            }
        };
        // A failed restart is still a restart: its back-off applies too.
        let retry = match (retry, finished_this_boot(container)) {
            (StartRetry::At(at), Some(finished)) => match container.backoff.check(at, finished) {
                Ok(()) => retry,
                Err(held) => StartRetry::At(held.until),
            },
            (StartRetry::At(_), None) => retry,
            (StartRetry::WhenImagesChange { .. } | StartRetry::WhenObjectsChange, _) => retry,
            (StartRetry::Pull { .. }, _) => retry,
        };
        // Images or objects were added while this start looked for one: it may have looked too early.
        let retry = match retry {
            StartRetry::WhenImagesChange { .. } | StartRetry::WhenObjectsChange if inputs_changed => {
                StartRetry::At(now)
            }
            StartRetry::WhenImagesChange { .. } | StartRetry::WhenObjectsChange => retry,
            StartRetry::At(_) | StartRetry::Pull { .. } => retry,
        };
        container.run = Run::StartFailed { retry };
        container.awaited_volume.clone_from(&failure.image);
        container.waiting = Some(WaitingReason { reason: word.into(), message });
        self.touch();
    }

    /// Whether the pod needs a sandbox that it does not have.
    pub(crate) fn asks_for_sandbox(&self) -> bool {
        self.may_run() && self.sandbox.is_gone()
    }
}

/// Reports the back-off of each container that waits for it. Returns whether there is a new one.
fn report_back_offs(
    index: PodIndex,
    pod: &Pod,
    containers: &mut Containers,
    now: Instant,
    events: &mut Events,
) -> bool {
    let (policy, order) = (pod.spec.restart_policy, StartOrder::of(containers));
    let mut held_back = false;
    for (at, container) in containers.indexed_mut() {
        let waits = match container.run {
            Run::Exited => {
                container.back_off_not_shown(now)
                    && container.restarts(policy)
                    && order.allows(container.role, at)
            }
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
        };
        let Some(finished) = finished_this_boot(container).filter(|_| waits) else { continue };
        if let Err(held) = container.backoff.check(now, finished) {
            let name = &pod.spec.container(at).name;
            let pod = format!("{}_{}({})", pod.name, pod.namespace, pod.uid);
            let failed =
                format!("back-off {} restarting failed container={name} pod={pod}", go_duration(held.delay));
            container.waiting =
                Some(WaitingReason { reason: "CrashLoopBackOff".into(), message: failed.into() });
            let text = format!("Back-off restarting failed container {name} in pod {pod}");
            events.warn(index, Some(at), "BackOff", text.into());
            held_back = true;
        }
    }
    held_back
}

/// Turns failed pulls into back-offs, as a kubelet does at its next sync. Returns whether there was one.
fn back_off_pulls(
    index: PodIndex,
    spec: &PodSpec,
    containers: &mut Containers,
    now: Instant,
    events: &mut Events,
) -> bool {
    let mut passed = false;
    for (at, container) in containers.indexed_mut() {
        let Run::StartFailed { retry: StartRetry::WhenImagesChange { back_off_at, .. } } = &mut container.run
        else {
            continue;
        };
        if back_off_at.is_none_or(|at| now < at) {
            continue;
        }
        *back_off_at = None;
        let image = container.awaited_volume.as_deref().unwrap_or(&spec.container(at).image);
        let text = format!("Back-off pulling image \"{image}\"");
        let message = match &container.waiting {
            Some(waiting) => format!("{text}: ErrImagePull: {}", waiting.message),
            None => text.clone(),
        };
        container.waiting =
            Some(WaitingReason { reason: "ImagePullBackOff".into(), message: message.into() });
        events.note(index, Some(at), "BackOff", text.into());
        events.warn(index, Some(at), "Failed", "Error: ImagePullBackOff".into());
        passed = true;
    }
    passed
}

/// Emits the events for an image that cannot be started, in a kubelet's words.
pub(super) fn warn_of_image(
    pod: PodIndex,
    container: Option<ContainerIndex>,
    image: &str,
    failure: &StartFailure,
    events: &mut Events,
) {
    let (word, message) = (reason_name(failure.reason), &failure.message);
    let image = failure.image.as_deref().unwrap_or(image);
    let (reason, text) = match failure.reason {
        StartFailureReason::InvalidImageName => ("InspectFailed", message.clone()),
        StartFailureReason::ErrImageNeverPull => (word, never_pulled(image)),
        StartFailureReason::ErrImagePull | StartFailureReason::ImageToPull => {
            ("Failed", format!("Failed to pull image \"{image}\": {message}").into())
        }
        StartFailureReason::ImageInspectError => {
            ("Failed", format!("Failed to inspect image \"{image}\": {message}").into())
        }
        StartFailureReason::CreateContainerConfigError
        | StartFailureReason::ObjectNotFound
        | StartFailureReason::CreateContainerError
        | StartFailureReason::RunContainerError => ("Failed", message.clone()),
    };
    events.warn(pod, container, reason, text);
    events.warn(pod, container, "Failed", format!("Error: {word}").into());
}

pub(super) fn never_pulled(image: &str) -> Box<str> {
    format!("Container image \"{image}\" is not present with pull policy of Never").into()
}

fn pulled(image: &str) -> Box<str> {
    format!("Container image \"{image}\" already present on machine and can be accessed by the pod").into()
}
