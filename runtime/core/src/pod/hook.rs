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
//! An agent executes each hook of a run only once: a shortened grace period does not execute it again. An agent that
//! adopts a run treats its postStart hook as finished, unless the handover says that it sleeps or has failed.
//! Such an agent executes the preStop hook again only if it had not finished.

use crate::facts::{Action, Draft, Events, PodIndex, StartFailureReason};
use crate::spec::probe::PortOrName;
use crate::spec::{ContainerIndex, Hook, HookKind, PodSpec, ProbeAction, RestartPolicy};
use crate::time::Instant;

use super::SYNC_RETRY;
use super::container::{ContainerState, reason_name};
use super::containers::Containers;
use super::hooks::PostStart;

/// `state.waiting.reason` of a container whose postStart hook has failed, until the status names its
/// back-off.
pub(super) const POST_START_HOOK_ERROR: &str = "PostStartHookError";

/// Plans the postStart hooks of a pod, and ends those that are sleeps. Returns whether the pod has changed.
pub(super) fn plan_post_start(
    pod: PodIndex,
    spec: &PodSpec,
    containers: &mut Containers,
    now: Instant,
    draft: &mut Draft,
    events: &mut Events,
) -> bool {
    let mut changed = false;
    for (index, container) in containers.indexed_mut() {
        let hook = &spec.container(index).lifecycle.post_start;
        match hook.as_ref().filter(|_| container.hooks.post_start == PostStart::Due) {
            None => {}
            Some(Hook::Sleeps(time)) => container.hooks.post_start = PostStart::Sleeps { until: now + *time },
            Some(Hook::Asks(action @ ProbeAction::TcpSocket { .. })) => {
                report_failure(pod, index, HookKind::PostStart, events);
                changed = true;
                container.hooks.post_start = PostStart::Failed { message: no_handler(action) };
            }
            Some(Hook::Asks(_)) => {
                if !draft.push(pod, Action::Hook(container.attempt(index), HookKind::PostStart)) {
                    break;
                }
                container.hooks.post_start = PostStart::InFlight;
            }
        }
        let is_over = |hook: &PostStart| matches!(hook, PostStart::Sleeps { until } if *until <= now);
        if container.hooks.end_post_start(is_over) {
            container.mark_started(now);
            changed = true;
        }
    }
    changed
}

/// Reports failed postStart hooks for those that ran when the pod was stopped.
pub(super) fn report_abandoned_post_starts(pod: PodIndex, containers: &mut Containers, events: &mut Events) {
    for (index, container) in containers.indexed_mut() {
        if container.hooks.end_post_start(|hook| *hook == PostStart::GivenUp) {
            report_failure(pod, index, HookKind::PostStart, events);
        }
    }
}

/// Reports that a hook failed. A run whose preStop hook failed is asked to end nevertheless.
pub(super) fn report_failure(pod: PodIndex, container: ContainerIndex, kind: HookKind, events: &mut Events) {
    let (reason, message) = match kind {
        HookKind::PostStart => ("FailedPostStartHook", "PostStartHook failed"),
        HookKind::PreStop => ("FailedPreStopHook", "PreStopHook failed"),
    };
    events.warn(pod, Some(container), reason, message.into());
}

impl ContainerState {
    /// Records the result of a hook of the present run; `policy` is the restart policy of a pod whose
    /// containers are restarted. Returns whether the hook was running; otherwise nothing changes.
    pub(super) fn hooked(
        &mut self,
        now: Instant,
        kind: HookKind,
        failure: Option<Box<str>>,
        policy: Option<RestartPolicy>,
    ) -> bool {
        match kind {
            HookKind::PostStart => {
                if !self.hooks.end_post_start(|hook| *hook == PostStart::InFlight) {
                    return false;
                }
                match failure {
                    None => self.mark_started(now),
                    Some(message) if self.is_running() => {
                        self.hooks.post_start = PostStart::Failed { message };
                    }
                    Some(message) => self.wait_to_restart(policy, POST_START_HOOK_ERROR, message),
                }
                true
            }
            HookKind::PreStop => self.hooks.pre_stop_ended(),
        }
    }

    /// Whether the status still shows why the run could not start completely: its process could not be
    /// executed, or its postStart hook failed.
    pub(super) fn shows_start_failure(&self) -> bool {
        let words = [POST_START_HOOK_ERROR, reason_name(StartFailureReason::RunContainerError)];
        self.waiting().is_some_and(|waiting| words.contains(&&*waiting.reason))
    }

    /// Whether the status does not name the back-off yet, and may do so now. The reason of a failed start is
    /// shown as long as a kubelet would need until its next sync.
    pub(super) fn back_off_not_shown(&self, now: Instant) -> bool {
        let is_due = || self.finished_this_boot().is_none_or(|finished| finished + SYNC_RETRY <= now);
        self.waiting().is_none() || (self.shows_start_failure() && is_due())
    }
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
