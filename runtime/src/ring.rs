//! The ring of the core's latest observations and actions, on the one thread of the agent: the engine writes
//! it, `nodlet ring` shows it, and a panic prints it.
//!
//! A panic ends the agent, and only the pods survive. To report what led to the panic, the ring is a
//! thread-local variable, which the panic hook can read. Read next: `replay.rs`.

use std::cell::RefCell;
use std::future::Future;
use std::io::Write;
use std::rc::Rc;

use serde::Serialize;
use serde_json::value::RawValue;

use nodlet_core::facts::{Observation, Plan};

use nodlet_core::node::{Entry, Node, Ring};
use nodlet_core::time::Instant;
use nodlet_registry::waiting::Waiting;

/// The ring, and the tasks that wait for its next entry.
#[derive(Debug, Default)]
pub(crate) struct SharedRing {
    ring: RefCell<Ring>,
    readers: Waiting,
}

thread_local! {
    static THREAD_RING: RefCell<Option<Rc<SharedRing>>> = const { RefCell::new(None) };
}

/// The format of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON object a line, as [`crate::replay`] reads them.
    Json,
}

/// An entry in JSON.
#[derive(Serialize)]
struct Numbered<'a> {
    number: u64,
    at: Instant,
    entry: &'a Entry,
}

impl SharedRing {
    /// Creates the ring of this thread. From now on a panic of the thread prints the ring.
    pub(crate) fn begin() -> Rc<SharedRing> {
        let ring = Rc::new(SharedRing::default());
        THREAD_RING.set(Some(ring.clone()));
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            usual(panic);
            // A console that is gone is no reason to fail at failing.
            let _ = write!(std::io::stderr(), "{}", ring_of_thread());
        }));
        ring
    }

    /// [`Ring::observed`].
    pub(crate) fn observed(
        &self,
        now: Instant,
        node: &Node,
        seen: &Observation,
        object: Option<&Rc<RawValue>>,
    ) {
        self.ring.borrow_mut().observed(now, node, seen, object);
        self.readers.wake();
    }

    /// [`Ring::planned`].
    pub(crate) fn planned(&self, now: Instant, node: &Node, plan: &Plan) {
        self.ring.borrow_mut().planned(now, node, plan);
        self.readers.wake();
    }

    /// At most `at_most` entries from `number` on, one a line, and the number of the entry after them.
    pub(crate) fn lines(&self, number: u64, at_most: usize, format: Format) -> (String, u64) {
        let (mut lines, mut next) = (String::new(), number);
        for (number, line) in self.ring.borrow().since(number).take(at_most) {
            if number > next && format == Format::Text {
                lines.push_str(&format!("({} older entries are lost)\n", number - next));
            }
            next = number + 1;
            lines.push_str(&match format {
                Format::Text => line.to_string(),
                Format::Json => {
                    let line = Numbered { number, at: line.at, entry: &line.entry };
                    serde_json::to_string(&line).expect("an entry has no maps with odd keys")
                }
            });
            lines.push('\n');
        }
        (lines, next)
    }

    /// Waits until the entry `number` exists.
    pub(crate) fn added(&self, number: u64) -> impl Future<Output = ()> {
        self.readers.until(move || self.ring.borrow().next() > number)
    }
}

/// The text of this thread's ring; empty if the thread has none, or while an entry is added.
fn ring_of_thread() -> String {
    THREAD_RING.with(|ring| match ring.try_borrow().as_deref() {
        Ok(Some(ring)) => ring.ring.try_borrow().map(|ring| ring.to_string()).unwrap_or_default(),
        Ok(None) | Err(_) => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_can_print_the_latest_entries_of_the_ring() {
        let ring = Rc::new(SharedRing::default());
        THREAD_RING.set(Some(ring.clone()));
        ring.observed(Instant(5), &Node::new(), &Observation::ShutdownCancelled, None);
        assert!(ring_of_thread().contains("Shutdown"), "{}", ring_of_thread());
        let _writing = ring.ring.borrow_mut();
        assert_eq!(ring_of_thread(), "");
    }

    #[test]
    fn a_slow_reader_of_the_ring_gets_the_number_of_lost_entries() {
        let ring = SharedRing::default();
        for _ in 0..nodlet_core::node::RING_ENTRIES + 2 {
            ring.observed(Instant(5), &Node::new(), &Observation::ImagesChanged, None);
        }
        let (lines, next) = ring.lines(0, 1, Format::Text);
        assert_eq!((lines.as_str(), next), ("(2 older entries are lost)\n      0.000 <- ImagesChanged\n", 3));
        let (lines, next) = ring.lines(next, 1, Format::Json);
        assert_eq!(
            (lines.as_str(), next),
            ("{\"number\":3,\"at\":5,\"entry\":{\"Observed\":\"ImagesChanged\"}}\n", 4)
        );
    }
}
