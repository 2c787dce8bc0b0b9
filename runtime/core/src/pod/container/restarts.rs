//! Whether another run of a container follows, and when.

use std::rc::Rc;

use crate::pod::backoff::CrashBackoff;
use crate::spec::{OwnRestart, ProbeKind, RestartAction, RestartPolicy, Role};

use super::{ContainerState, Run};

/// The state on which the restart of a container depends.
#[derive(Clone, Debug, Default)]
pub(super) struct Restarts {
    /// The container's own restart policy and rules.
    pub(super) own: Option<Rc<OwnRestart>>,
    pub(super) backoff: CrashBackoff,
    /// The probe that has failed: the run is to be killed, and another run follows whatever the exit code.
    pub(super) failed_probe: Option<ProbeKind>,
    /// Whether a run of the container has started in the present sandbox.
    pub(super) ran_in_sandbox: bool,
    /// Whether all containers restart, so that the newest run is to end and does not count.
    pub(super) superseded: bool,
    /// Whether the current run is to end, for another image, a resize, a user or a shutdown, and another run follows
    /// whatever the exit code.
    pub(super) redefined: bool,
}

impl Restarts {
    /// Records that the next run begins.
    pub(super) fn begin(&mut self) {
        self.failed_probe = None;
        self.superseded = false;
    }

    /// Restores what an earlier agent or the supervisor knew.
    pub(super) fn restore(&mut self, superseded: bool, redefined: bool, ran_in_sandbox: bool) {
        (self.superseded, self.redefined, self.ran_in_sandbox) = (superseded, redefined, ran_in_sandbox);
    }
}

impl ContainerState {
    /// The restart policy of this container: its own, or the pod's.
    pub(in crate::pod) fn own_policy(&self, of_pod: RestartPolicy) -> RestartPolicy {
        self.restarts.own.as_ref().map_or(of_pod, |own| own.policy)
    }

    /// Whether the newest run has ended and no other follows.
    pub(in crate::pod) fn is_done(&self, policy: RestartPolicy) -> bool {
        match self.run() {
            Run::Exited => !self.restarts(policy),
            Run::Waiting
            | Run::Recording
            | Run::Starting { .. }
            | Run::StartFailed { .. }
            | Run::Running
            | Run::Terminating { .. }
            | Run::Killing { .. } => false,
        }
    }

    /// Whether the newest run, which has ended, is followed by another.
    pub(crate) fn restarts(&self, policy: RestartPolicy) -> bool {
        let Restarts { own, failed_probe, ran_in_sandbox, superseded, redefined, .. } = &self.restarts;
        if *superseded || *redefined {
            return true;
        }
        let rule = self.rule();
        match (self.role, self.own_policy(policy)) {
            (Role::Sidecar, _) | (Role::Regular, RestartPolicy::Always) => true,
            // The result of an init container in an earlier sandbox does not count.
            (Role::Init, _) if !ran_in_sandbox => true,
            (Role::Init, _) if rule.is_some() => self.init_failed(),
            (Role::Init, RestartPolicy::Always | RestartPolicy::OnFailure) => self.init_failed(),
            (Role::Regular, _) if rule.is_some() => true,
            // A pod that restarts gets a new sandbox, in which every container starts that need not succeed
            // first.
            (Role::Regular, RestartPolicy::Never) if own.is_some() && !ran_in_sandbox => true,
            (Role::Regular, RestartPolicy::OnFailure) => {
                failed_probe.is_some() || self.ended().is_none_or(|ended| ended.code != 0)
            }
            (Role::Init | Role::Regular, RestartPolicy::Never) | (Role::Ephemeral, _) => false,
        }
    }

    /// Whether this is an init container that has failed for good, and the pod with it.
    pub(crate) fn failed_for_good(&self, policy: RestartPolicy) -> bool {
        self.role == Role::Init && self.is_done(policy) && self.init_failed()
    }

    /// Whether the container runs only once, so that the start must be on flash before it takes place.
    pub(in crate::pod) fn runs_once(&self, policy: RestartPolicy) -> bool {
        policy == RestartPolicy::Never || self.role == Role::Ephemeral
    }

    /// Whether the run that has just ended did so without being stopped. A postStart hook that failed because
    /// the run ended is reported first, before anything has killed the run.
    pub(in crate::pod) fn ended_by_itself(&self) -> bool {
        let untouched = match self.run() {
            Run::Running => self.hooks.grace_over().is_none(),
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => false,
        };
        untouched && self.restarts.failed_probe.is_none()
    }

    /// Whether the container restarts together with all others. An ephemeral container keeps running.
    pub(in crate::pod) fn restarts_with_all(&self) -> bool {
        match self.role {
            Role::Init | Role::Sidecar | Role::Regular => true,
            Role::Ephemeral => false,
        }
    }

    /// Whether the exit of the newest run is to restart all containers.
    pub(in crate::pod) fn asks_to_restart_all(&self) -> bool {
        !self.restarts.superseded && self.rule() == Some(RestartAction::RestartAllContainers)
    }

    /// Whether an init container has failed.
    pub(super) fn init_failed(&self) -> bool {
        self.ended().is_none_or(|ended| ended.failed_init())
    }

    /// The action of the container's own rules for the exit of its newest run. No rule applies to a kill
    /// after a failed probe.
    fn rule(&self) -> Option<RestartAction> {
        let ended = self.ended().filter(|_| self.restarts.failed_probe.is_none())?;
        self.restarts.own.as_ref()?.action(ended.code)
    }
}
