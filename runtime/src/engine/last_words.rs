//! What the core was told and asked for last, printed when it contradicts itself.
//!
//! A panic ends the agent, and its pods are found again by the next one; what led
//! to it would be gone. The ring hangs on the loop's thread, where the panic finds it.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;

use crate::node::Ring;

thread_local! {
    static RING: RefCell<Option<Rc<RefCell<Ring>>>> = const { RefCell::new(None) };
}

/// A new ring of this thread; from now on a panic of the thread prints it.
pub(super) fn begin() -> Rc<RefCell<Ring>> {
    let ring = Rc::new(RefCell::new(Ring::default()));
    RING.set(Some(ring.clone()));
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        // A console that is gone is no reason to fail at failing.
        let _ = write!(std::io::stderr(), "{}", text());
    }));
    ring
}

/// The ring of this thread; empty where there is none, or where it is being written.
fn text() -> String {
    RING.with(|ring| match ring.try_borrow().as_deref() {
        Ok(Some(ring)) => ring.try_borrow().map(|ring| ring.to_string()).unwrap_or_default(),
        Ok(None) | Err(_) => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Node, Observation};
    use crate::time::Instant;

    #[test]
    fn a_panic_finds_what_the_core_was_told_last() {
        let ring = Rc::new(RefCell::new(Ring::default()));
        RING.set(Some(ring.clone()));
        ring.borrow_mut().observed(Instant(5), &Node::new(), &Observation::Shutdown);
        assert!(text().contains("Shutdown"), "{}", text());
        let _writing = ring.borrow_mut();
        assert_eq!(text(), "");
    }
}
