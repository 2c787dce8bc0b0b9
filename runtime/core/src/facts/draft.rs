//! The draft of a plan, the queue of events that wait for a plan, and the search for the next wake-up time.

use super::{Action, Event, MAX_ACTIONS, PodIndex};
use crate::spec::ContainerIndex;
use crate::time::Instant;
use std::borrow::Cow;

/// Upper bound of the events that wait for a plan. Events are for people: when the queue is full, the oldest
/// event is dropped and counted, as a kubelet does.
const MAX_EVENTS: usize = 128;

/// A plan that is being made.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) actions: heapless::Vec<(PodIndex, Action), MAX_ACTIONS>,
    /// How many more starts and sandbox creations may be planned.
    starts: usize,
    /// How many more flash writes may be planned.
    writes: usize,
    /// The first pod whose start did not fit.
    first_deferred: Option<PodIndex>,
    full: bool,
}

impl Draft {
    pub(crate) fn new(starts: usize, writes: usize) -> Self {
        Draft { actions: heapless::Vec::new(), starts, writes, first_deferred: None, full: false }
    }

    /// Adds `action` and returns whether it fitted. If it did not, the caller must change no state: the
    /// action comes with the next plan.
    #[must_use]
    pub(crate) fn push(&mut self, pod: PodIndex, action: Action) -> bool {
        let pushed = self.actions.push((pod, action)).is_ok();
        self.full |= !pushed;
        pushed
    }

    /// Adds an action of which the node starts only a limited number at once, and returns whether it fitted.
    /// The answer to one in flight frees a place, so no wake-up is needed.
    #[must_use]
    pub(crate) fn push_start(&mut self, pod: PodIndex, action: Action) -> bool {
        if self.starts == 0 {
            self.first_deferred.get_or_insert(pod);
            return false;
        }
        if !self.push(pod, action) {
            return false;
        }
        self.starts -= 1;
        true
    }

    /// Adds an action that writes to flash, and returns whether it fitted.
    #[must_use]
    pub(crate) fn push_write(&mut self, pod: PodIndex, action: Action) -> bool {
        if self.writes == 0 || !self.push(pod, action) {
            return false;
        }
        self.writes -= 1;
        true
    }

    /// The first pod whose start did not fit: the next plan begins with it.
    pub(crate) fn first_deferred(&self) -> Option<PodIndex> {
        self.first_deferred
    }

    /// Whether an action did not fit.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }
}

/// The events that wait for a plan. When the queue is full, the oldest event is dropped.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: heapless::Deque<(PodIndex, Event), MAX_EVENTS>,
}

impl Events {
    /// Queues a `Normal` event.
    pub(crate) fn note(
        &mut self,
        pod: PodIndex,
        container: Option<ContainerIndex>,
        reason: &'static str,
        message: Box<str>,
    ) {
        self.add(pod, Event { warning: false, reason: reason.into(), message, container });
    }

    /// Queues a `Warning` event.
    pub(crate) fn warn(
        &mut self,
        pod: PodIndex,
        container: Option<ContainerIndex>,
        reason: impl Into<Cow<'static, str>>,
        message: Box<str>,
    ) {
        self.add(pod, Event { warning: true, reason: reason.into(), message, container });
    }

    /// Moves as many queued events into the plan as fit.
    pub(crate) fn plan(&mut self, draft: &mut Draft) {
        while let Some((pod, event)) = self.waiting.front() {
            if !draft.push(*pod, Action::Emit(event.clone())) {
                return;
            }
            self.waiting.pop_front();
        }
    }

    fn add(&mut self, pod: PodIndex, event: Event) {
        if self.waiting.is_full() {
            self.waiting.pop_front();
        }
        let added = self.waiting.push_back((pod, event));
        debug_assert!(added.is_ok(), "room was made");
    }
}

/// The search for the next time at which something is due. Anything that is due already and was not planned
/// waits for an answer, which will be observed.
#[derive(Debug)]
pub(crate) struct Wake {
    pub(crate) now: Instant,
    pub(crate) at: Option<Instant>,
    /// Whether one more exec probe may run, so that the due times of exec probes count.
    pub(crate) exec_probe_has_place: bool,
}

impl Wake {
    pub(crate) fn new(now: Instant, exec_probe_has_place: bool) -> Self {
        Wake { now, at: None, exec_probe_has_place }
    }

    /// Records that something is due at `at`.
    pub(crate) fn note(&mut self, at: Instant) {
        if at > self.now && self.at.is_none_or(|earlier| at < earlier) {
            self.at = Some(at);
        }
    }
}
