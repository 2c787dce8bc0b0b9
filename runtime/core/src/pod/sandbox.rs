//! The sandbox, which the containers of a pod share: its state, why there is none, and its address.

use std::net::Ipv4Addr;

use crate::facts::{FoundSandbox, Wake};
use crate::time::Instant;

use super::backoff::Retry;

/// The sandbox of a pod.
#[derive(Debug)]
pub(super) struct Sandbox {
    state: State,
    /// Why the latest try to create the sandbox failed.
    failure: Option<Box<str>>,
    /// The address of the pod; after the sandbox is gone, the last known one.
    ip: Option<Ipv4Addr>,
}

/// The state of a sandbox.
///
/// ```text
///  Absent ──► Creating ──► Ready ──► Removing ──► Absent, or Failed after a failed creation
///    ▲          │   │        │        ▲    │
///    │ retry    ▼   ▼        ▼        │    ▼ retry
///    └─────── Failed └────► Lost ─────┴─ RemoveFailed
/// ```
#[derive(Clone, Copy, Debug)]
enum State {
    /// There is no sandbox, and nothing of one.
    Absent,
    /// `CreateSandbox` is in flight.
    Creating,
    /// The sandbox could not be created, and nothing of it is left.
    Failed(CreationRetry),
    /// Containers can run in the sandbox.
    Ready,
    /// The supervisor died, or the sandbox could not be created; parts of the sandbox still exist.
    Lost(Remains),
    /// `RemoveSandbox` is in flight.
    Removing {
        remains: Remains,
        /// The retry that is in flight, unless it is the first try.
        earlier: Option<Retry>,
    },
    /// Part of the sandbox still exists.
    RemoveFailed {
        remains: Remains,
        /// When to retry.
        retry: Retry,
    },
}

/// When a failed creation is retried; `None` if that has to wait for a change of the objects that the pod refers to.
type CreationRetry = Option<Instant>;

/// Facts of a sandbox that is to be removed.
#[derive(Clone, Copy, Debug, Default)]
struct Remains {
    /// Whether processes of containers may be alive: they count as running until the sandbox is removed.
    processes: bool,
    /// The retry of the creation that failed, if that is why the sandbox is removed.
    creation: Option<CreationRetry>,
}

impl Sandbox {
    /// A pod that has no sandbox.
    pub(super) fn absent() -> Self {
        Sandbox { state: State::Absent, failure: None, ip: None }
    }

    /// Whether there is no sandbox, and nothing of one; a failure to create one is a state of its own.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self.state, State::Absent)
    }

    /// Whether `CreateSandbox` is in flight.
    pub(super) fn is_creating(&self) -> bool {
        matches!(self.state, State::Creating)
    }

    /// Whether containers can run in the sandbox.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether nothing of a sandbox is left, so that one may be created, perhaps later.
    pub(super) fn is_gone(&self) -> bool {
        match self.state {
            State::Absent | State::Failed(_) => true,
            State::Creating | State::Ready | State::Lost(_) => false,
            State::Removing { .. } | State::RemoveFailed { .. } => false,
        }
    }

    /// Whether processes of containers whose runs have ended may be alive, because the supervisor died.
    pub(super) fn may_have_processes(&self) -> bool {
        match self.state {
            State::Absent | State::Creating | State::Failed(_) | State::Ready => false,
            State::Lost(remains) | State::Removing { remains, .. } | State::RemoveFailed { remains, .. } => {
                remains.processes
            }
        }
    }

    /// Whether nothing prevents that the sandbox is created now.
    pub(super) fn may_be_created(&self, now: Instant) -> bool {
        match self.state {
            State::Absent => true,
            State::Failed(retry_at) => retry_at.is_some_and(|at| at <= now),
            State::Creating | State::Ready | State::Lost(_) => false,
            State::Removing { .. } | State::RemoveFailed { .. } => false,
        }
    }

    /// The address of the pod; after the sandbox is gone, the last known one.
    pub(super) fn ip(&self) -> Option<Ipv4Addr> {
        self.ip
    }

    /// Why there is no sandbox while creating one is retried.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Restores what a previous agent or the record knew, whatever has become of the sandbox.
    pub(super) fn restore(&mut self, ip: Option<Ipv4Addr>, failure: Option<Box<str>>) {
        (self.ip, self.failure) = (ip, failure);
    }

    /// Adopts the sandbox that the agent found; without one, its supervisor has died, and `processes` tells
    /// whether processes of the pod may be alive.
    pub(super) fn adopt(&mut self, found: Option<&FoundSandbox>, processes: bool) {
        match found {
            Some(found) => {
                self.state = State::Ready;
                self.restore(found.ip, None);
            }
            None => self.state = State::Lost(Remains { processes, creation: None }),
        }
    }

    /// Records that `CreateSandbox` is in flight.
    pub(super) fn create(&mut self) {
        self.state = State::Creating;
    }

    /// Records that the sandbox was created. Returns whether that was in flight, as the methods below do;
    /// otherwise nothing changes.
    pub(super) fn created(&mut self, ip: Option<Ipv4Addr>) -> bool {
        let is_expected = self.is_creating();
        if is_expected {
            self.state = State::Ready;
            self.restore(ip, None);
        }
        is_expected
    }

    /// Records that the sandbox could not be created, and whether parts of it have to be removed first. Without
    /// `retry_at` the next try waits for [`Sandbox::retry_creation`].
    pub(super) fn creation_failed(
        &mut self,
        message: &str,
        remains: bool,
        retry_at: Option<Instant>,
    ) -> bool {
        let is_expected = self.is_creating();
        if is_expected {
            self.state = if remains {
                State::Lost(Remains { processes: false, creation: Some(retry_at) })
            } else {
                State::Failed(retry_at)
            };
            self.failure = Some(message.into());
        }
        is_expected
    }

    /// Retries at once, or as soon as the remains are removed, a creation that waits for a change of the objects
    /// that the pod refers to.
    pub(super) fn retry_creation(&mut self, now: Instant) {
        let retry_at = match &mut self.state {
            State::Failed(retry_at) => Some(retry_at),
            State::Lost(remains) | State::Removing { remains, .. } | State::RemoveFailed { remains, .. } => {
                remains.creation.as_mut()
            }
            State::Absent | State::Creating | State::Ready => None,
        };
        if let Some(retry_at @ None) = retry_at {
            *retry_at = Some(now);
        }
    }

    /// Records that the supervisor died, and whether processes of the pod may be alive. Returns whether the
    /// sandbox was ready.
    pub(super) fn lost(&mut self, processes: bool) -> bool {
        let was_ready = self.is_ready();
        if was_ready {
            self.state = State::Lost(Remains { processes, creation: None });
        }
        was_ready
    }

    /// The removal that is due, with its earlier failure if it is a retry. A sandbox that is ready is removed
    /// only if it is not needed any more.
    pub(super) fn due_removal(&self, now: Instant, is_needed: bool) -> Option<Option<Retry>> {
        match self.state {
            State::Lost(_) => Some(None),
            State::RemoveFailed { retry, .. } => (retry.at <= now).then_some(Some(retry)),
            State::Ready => (!is_needed).then_some(None),
            State::Absent | State::Creating | State::Failed(_) | State::Removing { .. } => None,
        }
    }

    /// Records that `RemoveSandbox` is in flight.
    pub(super) fn remove(&mut self, earlier: Option<Retry>) {
        let remains = match self.state {
            State::Lost(remains) | State::Removing { remains, .. } | State::RemoveFailed { remains, .. } => {
                remains
            }
            State::Absent | State::Creating | State::Failed(_) | State::Ready => Remains::default(),
        };
        self.state = State::Removing { remains, earlier };
    }

    /// Records that the sandbox was removed.
    pub(super) fn removed(&mut self) -> bool {
        let (State::Removing { remains, .. } | State::RemoveFailed { remains, .. }) = self.state else {
            return false;
        };
        self.state = remains.creation.map_or(State::Absent, State::Failed);
        true
    }

    /// Records that part of the sandbox could not be removed.
    pub(super) fn removal_failed(&mut self, now: Instant) -> bool {
        let State::Removing { remains, earlier } = self.state else { return false };
        self.state = State::RemoveFailed { remains, retry: Retry::after(earlier, now) };
        true
    }

    /// Records when creating the sandbox is retried.
    pub(super) fn wake_creation(&self, wake: &mut Wake) {
        match self.state {
            State::Failed(Some(at)) => wake.note(at),
            State::Failed(None) => {}
            State::Absent | State::Creating | State::Ready => {}
            State::Lost(_) | State::Removing { .. } | State::RemoveFailed { .. } => {}
        }
    }

    /// Records when removing the sandbox is retried.
    pub(super) fn wake_removal(&self, wake: &mut Wake) {
        match self.state {
            State::RemoveFailed { retry, .. } => wake.note(retry.at),
            State::Absent | State::Creating | State::Failed(_) => {}
            State::Ready | State::Lost(_) | State::Removing { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::*;

    #[test]
    fn a_report_that_was_not_expected_changes_nothing() {
        let mut sandbox = Sandbox::absent();
        let ip = Some(Ipv4Addr::new(10, 0, 0, 1));
        assert!(!sandbox.created(ip) && !sandbox.creation_failed("no", true, Some(at(9))));
        assert!(!sandbox.lost(true) && !sandbox.may_have_processes());
        assert!(!sandbox.removed() && !sandbox.removal_failed(at(0)));
        assert!(sandbox.is_absent() && sandbox.ip().is_none() && sandbox.failure().is_none());
    }

    #[test]
    fn processes_may_outlive_a_lost_sandbox_until_its_remains_are_removed() {
        for processes in [true, false] {
            let mut sandbox = Sandbox::absent();
            sandbox.create();
            assert!(sandbox.created(None) && !sandbox.may_have_processes());
            assert!(sandbox.lost(processes) && sandbox.may_have_processes() == processes);
            sandbox.remove(None);
            assert_eq!(sandbox.may_have_processes(), processes);
            assert!(sandbox.removal_failed(at(1)) && sandbox.may_have_processes() == processes);
            sandbox.remove(None);
            assert!(sandbox.removed() && !sandbox.may_have_processes());
        }
    }

    #[test]
    fn a_failure_is_known_until_the_sandbox_is_ready_and_the_address_for_ever() {
        let mut sandbox = Sandbox::absent();
        sandbox.create();
        assert!(sandbox.creation_failed("no disk", false, Some(at(10))) && sandbox.is_gone());
        assert!(!sandbox.may_be_created(at(9)) && sandbox.may_be_created(at(10)));
        sandbox.create();
        assert_eq!(sandbox.failure(), Some("no disk"));
        let ip = Some(Ipv4Addr::new(10, 0, 0, 1));
        assert!(sandbox.created(ip) && sandbox.failure().is_none());
        assert!(sandbox.due_removal(at(20), true).is_none() && sandbox.due_removal(at(20), false).is_some());
        sandbox.remove(None);
        assert!(sandbox.removal_failed(at(20)) && sandbox.due_removal(at(20), false).is_none());
        assert!(sandbox.removed() && sandbox.is_absent());
        assert_eq!(sandbox.ip(), ip);
    }

    #[test]
    fn after_a_failed_creation_the_remains_go_first_and_the_next_try_keeps_its_time() {
        let mut sandbox = Sandbox::absent();
        sandbox.create();
        assert!(sandbox.creation_failed("no disk", true, Some(at(10))) && !sandbox.is_gone());
        assert!(!sandbox.may_be_created(at(10)) && sandbox.due_removal(at(0), true).is_some());
        sandbox.remove(None);
        assert!(sandbox.removal_failed(at(1)) && !sandbox.may_be_created(at(10)) && !sandbox.is_gone());
        sandbox.remove(None);
        assert!(sandbox.removed() && sandbox.is_gone() && !sandbox.may_be_created(at(9)));
        assert!(sandbox.may_be_created(at(10)) && !sandbox.is_absent());
        assert_eq!(sandbox.failure(), Some("no disk"));
    }

    #[test]
    fn a_change_of_an_object_counts_while_the_remains_are_removed() {
        let steps: [fn(&mut Sandbox); 3] = [
            |_| {},
            |sandbox| sandbox.remove(None),
            |sandbox| {
                sandbox.remove(None);
                sandbox.removal_failed(at(0));
            },
        ];
        for step in steps {
            let mut sandbox = Sandbox::absent();
            sandbox.create();
            assert!(sandbox.creation_failed("no object", true, None));
            step(&mut sandbox);
            sandbox.retry_creation(at(5));
            sandbox.remove(None);
            assert!(sandbox.removed() && !sandbox.may_be_created(at(4)) && sandbox.may_be_created(at(5)));
        }
    }
}
