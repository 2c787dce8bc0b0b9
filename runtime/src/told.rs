//! What the core was told and asked for last, on the one thread of the agent: the
//! engine writes it, `nodlet ring` shows it, and a panic prints it.
//!
//! A panic ends the agent, and its pods are found again by the next one; what led
//! to it would be gone. So the ring hangs on the loop's thread, where the panic
//! finds it. Read next: `replay.rs`.

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

/// The ring, and who waits for its next entry.
#[derive(Debug, Default)]
pub struct Told {
    ring: RefCell<Ring>,
    readers: Waiting,
}

thread_local! {
    static TOLD: RefCell<Option<Rc<Told>>> = const { RefCell::new(None) };
}

/// How an entry is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line, which [`crate::replay`] reads.
    Json,
}

/// One entry, as it is written in JSON.
#[derive(Serialize)]
struct Numbered<'a> {
    number: u64,
    at: Instant,
    entry: &'a Entry,
}

impl Told {
    /// An empty one for this thread; from now on a panic of the thread prints it.
    pub fn begin() -> Rc<Told> {
        let told = Rc::new(Told::default());
        TOLD.set(Some(told.clone()));
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            usual(panic);
            // A console that is gone is no reason to fail at failing.
            let _ = write!(std::io::stderr(), "{}", last_words());
        }));
        told
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

    /// At most `at_most` entries from `number` on, a line each, and the number after the last.
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

    /// Ends when there is an entry `number`.
    pub(crate) fn added(&self, number: u64) -> impl Future<Output = ()> {
        self.readers.until(move || self.ring.borrow().next() > number)
    }
}

/// The ring of this thread; empty where there is none, or where it is being written.
fn last_words() -> String {
    TOLD.with(|told| match told.try_borrow().as_deref() {
        Ok(Some(told)) => told.ring.try_borrow().map(|ring| ring.to_string()).unwrap_or_default(),
        Ok(None) | Err(_) => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_finds_what_the_core_was_told_last() {
        let told = Rc::new(Told::default());
        TOLD.set(Some(told.clone()));
        told.observed(Instant(5), &Node::new(), &Observation::ShutdownCancelled, None);
        assert!(last_words().contains("Shutdown"), "{}", last_words());
        let _writing = told.ring.borrow_mut();
        assert_eq!(last_words(), "");
    }

    #[test]
    fn a_reader_that_is_behind_learns_what_it_missed() {
        let told = Told::default();
        for _ in 0..nodlet_core::node::RING_ENTRIES + 2 {
            told.observed(Instant(5), &Node::new(), &Observation::ImagesChanged, None);
        }
        let (lines, next) = told.lines(0, 1, Format::Text);
        assert_eq!((lines.as_str(), next), ("(2 older entries are lost)\n      0.000 <- ImagesChanged\n", 3));
        let (lines, next) = told.lines(next, 1, Format::Json);
        assert_eq!(
            (lines.as_str(), next),
            ("{\"number\":3,\"at\":5,\"entry\":{\"Observed\":\"ImagesChanged\"}}\n", 4)
        );
    }
}
