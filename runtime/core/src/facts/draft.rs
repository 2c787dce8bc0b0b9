//! A plan while it is made, the events that wait for a place in one, and the
//! search for the next time at which something is due.

use super::{Action, Event, MAX_ACTIONS, PodIndex};
use crate::spec::ContainerIndex;
use crate::time::Instant;

/// Events that wait for a plan. They are for people: when there are more, the
/// oldest are lost and counted, as a kubelet drops what its queue cannot hold.
const MAX_EVENTS: usize = 128;

/// A plan in the making.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) actions: heapless::Vec<(PodIndex, Action), MAX_ACTIONS>,
    /// Starts and sandboxes that may still be begun.
    starts: usize,
    /// The same of what waits for flash.
    writes: usize,
    /// The first pod whose start found no place.
    held_up: Option<PodIndex>,
    full: bool,
}

impl Draft {
    pub(crate) fn new(starts: usize, writes: usize) -> Self {
        Draft { actions: heapless::Vec::new(), starts, writes, held_up: None, full: false }
    }

    /// Whether `action` found room. If not nothing may be changed: it comes with the next plan.
    #[must_use]
    pub(crate) fn push(&mut self, pod: PodIndex, action: Action) -> bool {
        let pushed = self.actions.push((pod, action)).is_ok();
        self.full |= !pushed;
        pushed
    }

    /// The same, of what the node begins only so many of at once. The answer to
    /// one of those in flight makes room, so nothing wakes up for it.
    #[must_use]
    pub(crate) fn push_start(&mut self, pod: PodIndex, action: Action) -> bool {
        if self.starts == 0 {
            self.held_up.get_or_insert(pod);
            return false;
        }
        if !self.push(pod, action) {
            return false;
        }
        self.starts -= 1;
        true
    }

    /// The same of what waits for flash.
    #[must_use]
    pub(crate) fn push_write(&mut self, pod: PodIndex, action: Action) -> bool {
        if self.writes == 0 || !self.push(pod, action) {
            return false;
        }
        self.writes -= 1;
        true
    }

    /// Whose start found no place, the first of those: its turn is next.
    pub(crate) fn held_up(&self) -> Option<PodIndex> {
        self.held_up
    }

    /// Something did not fit.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }
}

/// Events on their way into a plan.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: heapless::Deque<(PodIndex, Event), MAX_EVENTS>,
    lost: u64,
}

impl Events {
    /// A `Normal` event.
    pub(crate) fn note(
        &mut self,
        pod: PodIndex,
        container: Option<ContainerIndex>,
        reason: &'static str,
        message: Box<str>,
    ) {
        self.add(pod, Event { warning: false, reason, message, container });
    }

    /// A `Warning` event.
    pub(crate) fn warn(
        &mut self,
        pod: PodIndex,
        container: Option<ContainerIndex>,
        reason: &'static str,
        message: Box<str>,
    ) {
        self.add(pod, Event { warning: true, reason, message, container });
    }

    /// Moves what has room into the plan.
    pub(crate) fn plan(&mut self, draft: &mut Draft) {
        while let Some((pod, event)) = self.waiting.front() {
            if !draft.push(*pod, Action::Emit(event.clone())) {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// How many found no place.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn add(&mut self, pod: PodIndex, event: Event) {
        if self.waiting.is_full() {
            self.waiting.pop_front();
            self.lost += 1;
        }
        let added = self.waiting.push_back((pod, event));
        debug_assert!(added.is_ok(), "room was made");
    }
}

/// The search for the next time at which something is due. What is due already
/// and was not planned waits for an answer, which will be observed.
#[derive(Debug)]
pub(crate) struct Wake {
    pub(crate) now: Instant,
    pub(crate) at: Option<Instant>,
    /// One more exec probe may run: the due times of those count.
    pub(crate) exec_probe_has_place: bool,
}

impl Wake {
    pub(crate) fn new(now: Instant, exec_probe_has_place: bool) -> Self {
        Wake { now, at: None, exec_probe_has_place }
    }

    /// Something is due at `at`.
    pub(crate) fn note(&mut self, at: Instant) {
        if at > self.now && self.at.is_none_or(|earlier| at < earlier) {
            self.at = Some(at);
        }
    }
}
