//! The published objects, and the events among them, which also go to the log. Which events are published, and as what,
//! is decided in the registry (`registry/src/events.rs`).

use std::cell::RefCell;
use std::rc::Rc;

use nodlet_core::facts::Event;
use nodlet_host::clock::instant;
use nodlet_registry::objects::Objects;
use nodlet_registry::{Admitted, Events, NodeEvent, Problem, Refusal, Wanted};

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
        let level = if event.warning { log::Level::Warn } else { log::Level::Info };
        let pod = &wanted.pod;
        let container = event.container.map_or("", |index| &*pod.spec.container(index).name);
        let slash = if container.is_empty() { "" } else { "/" };
        let (reason, message) = (&event.reason, one_line(&event.message));
        log::log!(level, "{}/{}{slash}{container}: {reason} {message}", pod.namespace, pod.name);
        self.events.borrow_mut().emit(wanted, event, instant(), self.machine.anchor());
    }

    /// Reports the problem of an admitted pod, if it has one. Returns the pod.
    pub(super) fn admitted(&self, admitted: Admitted) -> Rc<Wanted> {
        let Admitted { wanted, problem } = admitted;
        match problem {
            Some(Problem::Lost(why)) => log::error!("{why}"),
            Some(Problem::Conflict(event)) => self.emit(&wanted, &event),
            None => {}
        }
        wanted
    }

    /// Publishes an event of this node, and logs a warning.
    pub(super) fn emit_of_node(&self, event: NodeEvent<'_>) {
        let emitted = self.events.borrow_mut().emit_of_node(event, instant(), self.machine.anchor());
        if let Some((reason, message)) = emitted {
            log::warn!("{reason}: {}", one_line(&message));
        }
    }

    /// Publishes an event for each rejected manifest that was not rejected before. `refusals` are all of them.
    pub(super) fn refused(&self, refusals: &[Refusal]) {
        self.events.borrow_mut().refused(refusals, instant(), self.machine.anchor());
    }

    /// Records that the cluster has all events up to this version of the objects. Returns how many events were dropped
    /// unsent since the last call.
    pub(super) fn events_sent(&self, version: u64) -> u32 {
        self.events.borrow_mut().acknowledge(version)
    }

    /// Publishes the events again with times by the clock that was set.
    pub(super) fn clock_was_set(&self) {
        self.events.borrow().clock_was_set(self.machine.anchor());
    }
}

/// Escapes control characters for the log: text of a container must not start a log line of its own, nor control the
/// terminal that shows it.
fn one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, letter| {
        if letter.is_control() {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
        line
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_container_output_are_escaped_in_the_agents_log() {
        assert_eq!(one_line("no \"disk\" – Größe 3"), "no \"disk\" – Größe 3");
        assert_eq!(
            one_line("sick\r\nERROR all is lost\u{1b}[2J\n"),
            "sick\\r\\nERROR all is lost\\u{1b}[2J\\n"
        );
    }
}
