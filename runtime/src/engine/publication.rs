//! The published objects, and the events among them.

use std::cell::RefCell;
use std::rc::Rc;

use nodlet_core::facts::Event;
use nodlet_registry::objects::Objects;
use nodlet_registry::{Refusal, Wanted};

use super::events::Events;
use super::machine::Machine;

/// The published objects.
pub(super) struct Publication {
    pub(super) objects: Rc<Objects>,
    events: RefCell<Events>,
    machine: Rc<Machine>,
}

impl Publication {
    pub(super) fn new(objects: Rc<Objects>, events: Events, machine: Rc<Machine>) -> Publication {
        Publication { objects, events: RefCell::new(events), machine }
    }

    /// Publishes an event of a pod.
    pub(super) fn emit(&self, wanted: &Wanted, event: &Event) {
        self.events.borrow_mut().emit(wanted, event, self.machine.anchor());
    }

    /// Publishes a `Normal` event of this node.
    pub(super) fn emit_of_node(&self, reason: &str, message: &str) {
        self.events.borrow_mut().emit_of_node(false, reason, message, self.machine.anchor());
    }

    /// Publishes a `Warning` event of this node.
    pub(super) fn warn_of_node(&self, reason: &str, message: &str) {
        self.events.borrow_mut().emit_of_node(true, reason, message, self.machine.anchor());
    }

    /// Publishes an event for each rejected manifest that was not rejected before. `refusals` are all of them.
    pub(super) fn refused(&self, refusals: &[Refusal]) {
        self.events.borrow_mut().refused(refusals, self.machine.anchor());
    }

    /// Publishes the events again with times by the clock that was set.
    pub(super) fn clock_was_set(&self) {
        self.events.borrow().clock_was_set(self.machine.anchor());
    }
}
