//! The state of the hooks of one run. `hook.rs` plans them, and decides what follows from their results.

use crate::facts::{HandedOverPostStart, Health, Wake};
use crate::spec::{Container, Hook, ProbeAction};
use crate::time::Instant;

/// The state of the hooks of the present run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    pub(super) post_start: PostStart,
    pre_stop: PreStop,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum PostStart {
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
    Ended {
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
        let pre_stop = if health.pre_stopped {
            PreStop::Ended { until: None, awaited: false }
        } else {
            PreStop::NotBegun
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

    /// Ends the postStart hook, if it is in a state of which this is true. Returns whether it is.
    pub(super) fn end_post_start(&mut self, is_over: impl FnOnce(&PostStart) -> bool) -> bool {
        let ends = is_over(&self.post_start);
        if ends {
            self.post_start = PostStart::Done;
        }
        ends
    }

    /// Records that the preStop hook has finished or failed. Returns whether its result was expected.
    pub(super) fn pre_stop_ended(&mut self) -> bool {
        match self.pre_stop {
            PreStop::Runs { until, asleep: None } => {
                self.pre_stop = PreStop::Ended { until: Some(until), awaited: false };
                true
            }
            PreStop::Ended { until, awaited: true } => {
                self.pre_stop = PreStop::Ended { until, awaited: false };
                true
            }
            PreStop::NotBegun | PreStop::Runs { .. } | PreStop::Ended { .. } => false,
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
            PreStop::Runs { until, .. } | PreStop::Ended { until: Some(until), .. } => {
                *until = grace_over.min(*until);
            }
            PreStop::NotBegun | PreStop::Ended { until: None, .. } => {}
        }
    }

    /// Whether the preStop hook of this run has finished or was given up.
    pub(super) fn pre_stopped(&self) -> bool {
        match self.pre_stop {
            PreStop::Ended { .. } => true,
            PreStop::NotBegun | PreStop::Runs { .. } => false,
        }
    }

    /// When the grace period of the preStop hook ends, if the hook was run.
    pub(super) fn grace_over(&self) -> Option<Instant> {
        match self.pre_stop {
            PreStop::Runs { until, .. } => Some(until),
            PreStop::Ended { until, .. } => until,
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
                    self.pre_stop = PreStop::Ended { until: Some(until), awaited: false };
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
                self.pre_stop = PreStop::Ended { until: Some(until), awaited: asleep.is_none() };
                Before::Nothing
            }
            PreStop::NotBegun | PreStop::Ended { .. } => Before::Nothing,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{at, secs};
    use crate::spec::probe::PortOrName;

    #[test]
    fn a_pre_stop_hook_begins_only_within_the_grace_period() {
        let asks = Hook::Asks(ProbeAction::Exec(vec!["true".into()]));
        let connects = Hook::Asks(ProbeAction::TcpSocket { host: None, port: PortOrName::Port(80) });
        for (hook, within) in [
            (None, Before::Nothing),
            (Some(&Hook::Sleeps(secs(5))), Before::Wait),
            (Some(&asks), Before::Hook),
            (Some(&connects), Before::Fails),
        ] {
            assert_eq!(Hooks::default().before_end(hook, at(9), at(10)), within);
            assert_eq!(Hooks::default().before_end(hook, at(10), at(10)), Before::Nothing);
            assert_eq!(Hooks::default().before_end(hook, at(11), at(10)), Before::Nothing);
        }
    }
}
