//! Starting a pod: first its sandbox, then its containers one after another in the order of the spec, init
//! containers first, and again when they end. Ephemeral containers do not wait for their turn.

use crate::facts::{
    Action, Attempt, Draft, Events, PodIndex, RunIdentity, StartFailure, StartFailureReason,
    StartedContainer, Wake,
};
use crate::spec::{ContainerIndex, Pod, PodSpec};
use crate::time::Instant;

use super::backoff::go_duration;
use super::container::{Run, StartRetry, WaitingReason, reason_name};
use super::containers::Containers;
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
            if let Some(at) = container.images.new_image().retry_at() {
                wake.note(at);
            }
            match *container.run() {
                Run::StartFailed { retry: StartRetry::At(at) } => wake.note(at),
                Run::StartFailed { retry: StartRetry::WhenImagesChange { back_off_at, pull_at } } => {
                    back_off_at.into_iter().chain(pull_at).for_each(|at| wake.note(at));
                }
                Run::StartFailed { retry: StartRetry::Pull { .. } } => {}
                Run::Exited => {
                    if let (true, Some(finished)) = (self.sandbox.is_ready(), container.finished_this_boot())
                        && container.restarts(self.policy())
                        && order.allows(container.role(), index)
                        && let Some(held) = container.restart_delay(wake.now)
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
            let recorded = match container.run() {
                Run::Recording => self.journal.has_begun(index, container.number(), container.decided()),
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
                container.current.start_recorded();
            }
            return;
        }
        let spec = &self.pod.spec;
        let in_turn = spec.ephemeral_indexes().chain(spec.init_indexes()).chain(spec.regular_indexes());
        for index in in_turn {
            let Some(container) = self.containers.get_mut(index) else { continue };
            if !order.allows(container.role(), index) {
                continue;
            }
            let may_begin = match *container.run() {
                Run::Waiting => true,
                Run::StartFailed { retry: StartRetry::At(at) } => at <= now,
                Run::StartFailed { retry: StartRetry::WhenImagesChange { pull_at, .. } } => {
                    pull_at.is_some_and(|at| at <= now)
                }
                Run::StartFailed { retry: StartRetry::Pull { .. } } => false,
                Run::StartFailed { retry: StartRetry::WhenObjectsChange } => false,
                Run::Exited if container.restarts(policy) => container.restart_delay(now).is_none(),
                Run::Exited | Run::Recording | Run::Starting { .. } => false,
                Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
            };
            if !may_begin {
                continue;
            }
            // The start may be on flash already if it is a retry: nothing would be written, and so no answer
            // would come. Later runs of a sidecar need not be recorded first.
            let recorded = self.journal.has_begun(index, 0, container.decided());
            if container.runs_once(policy) && !recorded {
                container.begin_recording(now);
            } else {
                let start = Action::Start {
                    attempt: container.next_attempt(index),
                    fallback: container.fallback(&spec.container(index).image),
                };
                if !draft.push_start(self.index, start) {
                    return;
                }
                container.begin_start(now);
            }
            self.touch();
            return;
        }
    }

    /// Records that a container's process was executed.
    pub(super) fn started(&mut self, attempt: Attempt, started: Box<StartedContainer>, events: &mut Events) {
        let (pod, index) = (&self.pod, self.index);
        let is_interrupted = self.is_interrupted();
        let stop_by = (!self.is_active()).then(|| self.stage.grace_end().unwrap_or(started.at));
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        match container.run() {
            Run::Starting { .. } | Run::StartFailed { .. } => {}
            Run::Waiting | Run::Recording | Run::Running => return,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => return,
        }
        let spec = pod.spec.container(attempt.container);
        let was_pulled = container.run_began(spec, started, stop_by, is_interrupted);
        let at = Some(attempt.container);
        let image = container.started().map_or("", |started| &started.spec_image);
        let image = if image.is_empty() { &spec.image } else { image };
        if !was_pulled {
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
        created: Option<Box<RunIdentity>>,
        events: &mut Events,
    ) {
        let (pod, index) = (&self.pod, self.index);
        let policy = self.restart_policy_if_active();
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        let inputs_changed = match *container.run() {
            Run::Starting { inputs_changed, .. } => inputs_changed,
            Run::Waiting | Run::Recording | Run::StartFailed { .. } | Run::Running => return,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => return,
        };
        let is_given_up = container.current.gives_up_at(None).is_some();
        let at = Some(attempt.container);
        let spec = pod.spec.container(attempt.container);
        let word = reason_name(failure.reason);
        let mut message = failure.message.clone();
        if is_given_up && failure.reason == StartFailureReason::CreateContainerError {
            // The failure is a consequence of the kill.
            message = "the start was given up at the end of the grace period".into();
        }
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
            StartFailureReason::ImageToPull if container.images.is_pulled() => {
                warn_of_image(index, at, &spec.image, failure, events);
                container.pull_failed(now)
            }
            StartFailureReason::ImageToPull => {
                container.await_pull(failure);
                return;
            }
            StartFailureReason::ImageInspectError => {
                warn_of_image(index, at, &spec.image, failure, events);
                StartRetry::At(now + SYNC_RETRY)
            }
            StartFailureReason::CreateContainerConfigError
            | StartFailureReason::ObjectNotFound
            | StartFailureReason::CreateContainerError => {
                if !failure.before_image {
                    events.note(index, at, "Pulled", pulled(&spec.image));
                }
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
                container.could_not_execute(now, failure, created);
                container.wait_to_restart(policy, word, message);
                self.touch();
                return;
            }
        };
        // A failed restart is still a restart: its back-off applies too.
        let retry = match retry {
            StartRetry::At(at) => {
                container.restart_delay(at).map_or(retry, |held| StartRetry::At(held.until))
            }
            StartRetry::WhenImagesChange { .. } | StartRetry::WhenObjectsChange => retry,
            StartRetry::Pull { .. } => retry,
        };
        // Images or objects were added while this start looked for one: it may have looked too early.
        let retry = match retry {
            StartRetry::WhenImagesChange { .. } | StartRetry::WhenObjectsChange if inputs_changed => {
                StartRetry::At(now)
            }
            StartRetry::WhenImagesChange { .. } | StartRetry::WhenObjectsChange => retry,
            StartRetry::At(_) | StartRetry::Pull { .. } => retry,
        };
        container.start_failed(retry, failure, WaitingReason { reason: word.into(), message });
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
        let waits = match container.run() {
            Run::Exited => {
                container.back_off_not_shown(now)
                    && container.restarts(policy)
                    && order.allows(container.role(), at)
            }
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => false,
        };
        if waits && let Some(held) = container.restart_delay(now) {
            let name = &pod.spec.container(at).name;
            let pod = format!("{}_{}({})", pod.name, pod.namespace, pod.uid);
            let failed =
                format!("back-off {} restarting failed container={name} pod={pod}", go_duration(held.delay));
            container.wait("CrashLoopBackOff", failed.into());
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
        if !container.current.back_off_pull(now) {
            continue;
        }
        let image = container.images.awaited_volume().unwrap_or(&spec.container(at).image);
        let text = format!("Back-off pulling image \"{image}\"");
        let message = match container.waiting() {
            Some(waiting) => format!("{text}: ErrImagePull: {}", waiting.message),
            None => text.clone(),
        };
        container.wait("ImagePullBackOff", message.into());
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
