//! When the hooks of a run are due, and what follows from their results.
//!
//! ```text
//!  Due ──► InFlight / Sleeps ──► Done          NotBegun ──► Runs ──► Over ──► it is asked to end
//!                  │  failed                                 │ its grace is over  ▲
//!                  └────────► Failed: the run is killed      └────────────────────┘
//! ```
//!
//! A container does not count as started until its postStart hook has finished: no later container starts, no
//! probe runs, and the status does not change, as with a kubelet, whose sync waits for the hook. A preStop
//! hook runs within the grace period; whatever is left of it, at least [`super::termination`]'s window
//! remains between the signal and the kill.
//!
//! One agent runs each hook once a run: a shortened grace period does not start it again. An agent that
//! adopts a run takes its postStart hook as finished, unless the handover says that it sleeps or has failed.
//! The agent runs a preStop hook again only if it had not finished.

use crate::facts::{
    Action, Attempt, Draft, Events, HandedOverPostStart, Health, PodIndex, StartFailureReason, Wake,
};
use crate::spec::probe::PortOrName;
use crate::spec::{Container, ContainerIndex, Hook, HookKind, ProbeAction};
use crate::time::Instant;

use super::container::{Run, WaitingReason, reason_name};
use super::start::finished_this_boot;
use super::{ContainerState, PodState, SYNC_RETRY};

/// `state.waiting.reason` of a container whose postStart hook has failed, until the status names its
/// back-off.
pub(super) const POST_START_HOOK_ERROR: &str = "PostStartHookError";

/// The state of the hooks of the present run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    post_start: PostStart,
    pre_stop: PreStop,
}

#[derive(Clone, Debug, Default)]
enum PostStart {
    /// There is no hook, or it has finished.
    #[default]
    Done,
    /// The hook is to be run.
    Due,
    /// The hook is running.
    InFlight,
    /// The hook is a sleep.
    Sleeps { until: Instant },
    /// The hook failed, and the run is to be killed for it.
    Failed { message: Box<str> },
    /// The pod was stopped while the hook ran: the hook counts as failed, and is not waited for.
    GivenUp,
}

#[derive(Clone, Copy, Debug, Default)]
enum PreStop {
    #[default]
    NotBegun,
    /// The hook is running. The run is asked to end when the hook has finished, or at the end of the grace
    /// period.
    Runs {
        until: Instant,
        /// If the hook is a sleep: when it ends.
        asleep: Option<Instant>,
    },
    /// The hook is not waited for any more.
    Over {
        /// When the grace period that began with the hook ends; unknown if an earlier agent ran the hook.
        until: Option<Instant>,
        /// Whether the hook may still report a failure.
        awaited: bool,
    },
}

/// The next step towards the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Run the hook.
    Hook,
    /// Report that the hook failed, since it cannot work.
    Fails,
    /// Wait for the hook.
    Wait,
    /// Nothing: ask the run to end.
    Nothing,
}

impl Hooks {
    /// The hooks of a run that has just started.
    pub(super) fn of(container: &Container) -> Self {
        let post_start = match container.lifecycle.post_start {
            Some(_) => PostStart::Due,
            None => PostStart::Done,
        };
        Hooks { post_start, pre_stop: PreStop::NotBegun }
    }

    /// The hooks of a run that a previous agent started.
    pub(super) fn adopted(health: Health) -> Self {
        let pre_stop = match health.pre_stopped {
            true => PreStop::Over { until: None, awaited: false },
            false => PreStop::NotBegun,
        };
        Hooks { post_start: PostStart::Done, pre_stop }
    }

    /// Continues the postStart hook of a previous agent.
    pub(super) fn resume(&mut self, left: HandedOverPostStart) {
        self.post_start = match left {
            HandedOverPostStart::Sleeps { until } => PostStart::Sleeps { until },
            HandedOverPostStart::Failed { message } => PostStart::Failed { message },
        };
    }

    /// The state of the postStart hook to hand over to a later agent. The result of an executed hook cannot
    /// reach that agent.
    pub(super) fn post_start(&self) -> Option<HandedOverPostStart> {
        match &self.post_start {
            PostStart::Sleeps { until } => Some(HandedOverPostStart::Sleeps { until: *until }),
            PostStart::Failed { message } => Some(HandedOverPostStart::Failed { message: message.clone() }),
            PostStart::Done | PostStart::Due | PostStart::InFlight | PostStart::GivenUp => None,
        }
    }

    /// Whether the postStart hook keeps the run from counting as started.
    pub(super) fn is_starting(&self) -> bool {
        match self.post_start {
            PostStart::Due | PostStart::InFlight | PostStart::Sleeps { .. } | PostStart::Failed { .. } => {
                true
            }
            PostStart::Done | PostStart::GivenUp => false,
        }
    }

    /// Whether the run is to be killed because its postStart hook failed.
    pub(super) fn start_failed(&self) -> bool {
        match self.post_start {
            PostStart::Failed { .. } => true,
            PostStart::Done | PostStart::Due | PostStart::InFlight => false,
            PostStart::Sleeps { .. } | PostStart::GivenUp => false,
        }
    }

    /// Takes the message of the failed postStart hook for which the run was killed.
    pub(super) fn take_failure(&mut self) -> Option<Box<str>> {
        match &mut self.post_start {
            PostStart::Failed { message } => {
                let message = std::mem::take(message);
                self.post_start = PostStart::Done;
                Some(message)
            }
            PostStart::Done | PostStart::Due | PostStart::InFlight => None,
            PostStart::Sleeps { .. } | PostStart::GivenUp => None,
        }
    }

    /// Records that the pod is being stopped: the start is not waited for, and the preStop hook has until
    /// `grace_over` at most.
    pub(super) fn stop(&mut self, grace_over: Instant) {
        match self.post_start {
            PostStart::InFlight | PostStart::Sleeps { .. } => self.post_start = PostStart::GivenUp,
            PostStart::Due | PostStart::Failed { .. } => self.post_start = PostStart::Done,
            PostStart::Done | PostStart::GivenUp => {}
        }
        match &mut self.pre_stop {
            PreStop::Runs { until, .. } | PreStop::Over { until: Some(until), .. } => {
                *until = grace_over.min(*until);
            }
            PreStop::NotBegun | PreStop::Over { until: None, .. } => {}
        }
    }

    /// Whether the preStop hook of this run has finished or was given up.
    pub(super) fn pre_stopped(&self) -> bool {
        match self.pre_stop {
            PreStop::Over { .. } => true,
            PreStop::NotBegun | PreStop::Runs { .. } => false,
        }
    }

    /// When the grace period of the preStop hook ends, if the hook was run.
    pub(super) fn grace_over(&self) -> Option<Instant> {
        match self.pre_stop {
            PreStop::Runs { until, .. } => Some(until),
            PreStop::Over { until, .. } => until,
            PreStop::NotBegun => None,
        }
    }

    /// The next step towards the end of a run with this hook, whose grace period ends at `until`.
    pub(super) fn before_end(&mut self, hook: Option<&Hook>, now: Instant, until: Instant) -> Before {
        if let PreStop::NotBegun = self.pre_stop {
            match hook {
                Some(Hook::Sleeps(time)) if now < until => {
                    self.pre_stop = PreStop::Runs { until, asleep: Some(now + *time) };
                }
                Some(Hook::Asks(ProbeAction::TcpSocket { .. })) if now < until => {
                    self.pre_stop = PreStop::Over { until: Some(until), awaited: false };
                    return Before::Fails;
                }
                Some(Hook::Asks(_)) if now < until => return Before::Hook,
                // Without a grace period there is no time for a hook.
                Some(_) | None => return Before::Nothing,
            }
        }
        match self.pre_stop {
            PreStop::Runs { until, asleep } => {
                if asleep.is_none_or(|asleep| now < asleep) && now < until {
                    return Before::Wait;
                }
                self.pre_stop = PreStop::Over { until: Some(until), awaited: asleep.is_none() };
                Before::Nothing
            }
            PreStop::NotBegun | PreStop::Over { .. } => Before::Nothing,
        }
    }

    /// Records that the preStop hook is running.
    pub(super) fn begin_end(&mut self, until: Instant) {
        self.pre_stop = PreStop::Runs { until, asleep: None };
    }

    /// Records the times at which a hook has something to do next.
    pub(super) fn wake(&self, wake: &mut Wake) {
        if let PostStart::Sleeps { until } = self.post_start {
            wake.note(until);
        }
        if let PreStop::Runs { until, asleep } = self.pre_stop {
            wake.note(until);
            if let Some(asleep) = asleep {
                wake.note(asleep);
            }
        }
    }
}

impl PodState {
    /// Plans postStart hooks, and ends those that are sleeps.
    pub(super) fn plan_post_start(&mut self, now: Instant, draft: &mut Draft, events: &mut Events) {
        let pod = self.pod.clone();
        let mut changed = false;
        for (index, container) in pod.spec.container_indexes().zip(&mut self.containers) {
            if let PostStart::Due = container.hooks.post_start {
                container.hooks.post_start = match &pod.spec.container(index).lifecycle.post_start {
                    None => PostStart::Done,
                    Some(Hook::Sleeps(time)) => PostStart::Sleeps { until: now + *time },
                    Some(Hook::Asks(action @ ProbeAction::TcpSocket { .. })) => {
                        fail_post_start(self.index, index, events);
                        changed = true;
                        PostStart::Failed { message: no_handler(action) }
                    }
                    Some(Hook::Asks(_)) => {
                        let hook = Action::Hook(container.attempt(index), HookKind::PostStart);
                        if !draft.push(self.index, hook) {
                            break;
                        }
                        PostStart::InFlight
                    }
                };
            }
            match container.hooks.post_start {
                PostStart::Sleeps { until } if until <= now => {
                    container.hooks.post_start = PostStart::Done;
                    container.mark_started(now);
                    changed = true;
                }
                PostStart::Done | PostStart::Due | PostStart::InFlight => {}
                PostStart::Sleeps { .. } | PostStart::Failed { .. } | PostStart::GivenUp => {}
            }
        }
        if changed {
            self.touch();
        }
    }

    /// Reports failed postStart hooks for those that ran when the pod was stopped.
    pub(super) fn report_abandoned_post_starts(&mut self, events: &mut Events) {
        for (index, container) in self.pod.spec.container_indexes().zip(&mut self.containers) {
            if let PostStart::GivenUp = container.hooks.post_start {
                container.hooks.post_start = PostStart::Done;
                fail_post_start(self.index, index, events);
            }
        }
    }

    /// Records the result of a hook.
    pub(super) fn hooked(
        &mut self,
        now: Instant,
        attempt: Attempt,
        kind: HookKind,
        failure: Option<Box<str>>,
        events: &mut Events,
    ) {
        let (index, policy, active) = (self.index, self.policy(), self.is_active());
        let Some(container) = self.container_of(attempt) else { return };
        match (kind, &mut container.hooks) {
            (HookKind::PostStart, Hooks { post_start: post_start @ PostStart::InFlight, .. }) => {
                *post_start = PostStart::Done;
                match failure {
                    None => container.mark_started(now),
                    Some(message) => {
                        fail_post_start(index, attempt.container, events);
                        if container.is_running() {
                            container.hooks.post_start = PostStart::Failed { message };
                        } else if active && container.restarts(policy) {
                            container.waiting =
                                Some(WaitingReason { reason: POST_START_HOOK_ERROR.into(), message });
                        }
                    }
                }
            }
            (HookKind::PreStop, Hooks { pre_stop, .. }) => {
                match *pre_stop {
                    PreStop::Runs { until, asleep: None } => {
                        *pre_stop = PreStop::Over { until: Some(until), awaited: false };
                    }
                    PreStop::Over { until, awaited: true } => {
                        *pre_stop = PreStop::Over { until, awaited: false };
                    }
                    PreStop::NotBegun | PreStop::Runs { .. } | PreStop::Over { .. } => return,
                }
                if failure.is_some() {
                    fail_pre_stop(index, attempt.container, events);
                }
            }
            (HookKind::PostStart, _) => return,
        }
        self.touch();
    }
}

impl ContainerState {
    /// Whether the status still shows why the run could not start completely: its process could not be
    /// executed, or its postStart hook failed.
    pub(super) fn shows_start_failure(&self) -> bool {
        let words = [POST_START_HOOK_ERROR, reason_name(StartFailureReason::RunContainerError)];
        self.waiting.as_ref().is_some_and(|waiting| words.contains(&&*waiting.reason))
    }

    /// Whether the status does not name the back-off yet, and may do so now. The reason of a failed start is
    /// shown as long as a kubelet would need until its next sync.
    pub(super) fn back_off_not_shown(&self, now: Instant) -> bool {
        let told = || finished_this_boot(self).is_none_or(|finished| finished + SYNC_RETRY <= now);
        self.waiting.is_none() || (self.shows_start_failure() && told())
    }

    /// Records that the container counts as started.
    fn mark_started(&mut self, now: Instant) {
        match self.run {
            Run::Running | Run::Terminating { .. } | Run::Killing { .. } => {
                self.waiting = None;
                self.probes.not_before(now);
            }
            Run::Waiting | Run::Recording | Run::Starting { .. } => {}
            Run::StartFailed { .. } | Run::Exited => {}
        }
    }
}

fn fail_post_start(pod: PodIndex, container: ContainerIndex, events: &mut Events) {
    events.warn(pod, Some(container), "FailedPostStartHook", "PostStartHook failed".into());
}

/// Reports that a preStop hook failed; its run is asked to end nevertheless.
pub(super) fn fail_pre_stop(pod: PodIndex, container: ContainerIndex, events: &mut Events) {
    events.warn(pod, Some(container), "FailedPreStopHook", "PreStopHook failed".into());
}

/// The message for a handler that a kubelet does not know, in Go's print format.
fn no_handler(action: &ProbeAction) -> Box<str> {
    let (port, host) = match action {
        ProbeAction::TcpSocket { host, port } => {
            let port = match port {
                PortOrName::Port(port) => format!("{{0 {port} }}"),
                PortOrName::Name(name) => format!("{{1 0 {name}}}"),
            };
            (port, host.as_deref().unwrap_or_default())
        }
        ProbeAction::Exec(_) | ProbeAction::HttpGet { .. } | ProbeAction::Grpc { .. } => (String::new(), ""),
    };
    format!(
        "Cannot run handler: invalid handler: &LifecycleHandler{{Exec:nil,HTTPGet:nil,\
         TCPSocket:&TCPSocketAction{{Port:{port},Host:{host},}},Sleep:nil,}}"
    )
    .into()
}
