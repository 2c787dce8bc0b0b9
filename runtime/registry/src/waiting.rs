//! Tasks of one thread that wait for a condition: watchers of [`crate::objects`], readers of the agent's
//! ring. A task that is woken or gives up leaves nothing behind, however long nothing changes.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use nodlet_core::sorted::SortedMap;

/// The waiting tasks.
#[derive(Debug, Default)]
pub struct Waiting {
    wakers: RefCell<SortedMap<u64, Waker>>,
    next: Cell<u64>,
}

impl Waiting {
    /// Wakes all tasks, so that they check their conditions again.
    pub fn wake(&self) {
        self.wakers.take().into_values().for_each(Waker::wake);
    }

    /// Waits until `condition` returns true; it is called at once, and after each [`Waiting::wake`].
    pub fn until<F: Fn() -> bool>(&self, condition: F) -> Until<'_, F> {
        self.next.set(self.next.get() + 1);
        Until { waiting: self, condition, number: self.next.get() }
    }
}

/// The future of [`Waiting::until`].
pub struct Until<'a, F> {
    waiting: &'a Waiting,
    condition: F,
    number: u64,
}

impl<F: Fn() -> bool> Future for Until<'_, F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if (self.condition)() {
            return Poll::Ready(());
        }
        // The previous waker is dropped after the borrow ends, because its drop may run any code.
        let _before = self.waiting.wakers.borrow_mut().insert(self.number, context.waker().clone());
        Poll::Pending
    }
}

impl<F> Drop for Until<'_, F> {
    fn drop(&mut self) {
        let _waker = self.waiting.wakers.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_is_woken_once_and_a_dropped_waiter_is_removed() {
        let (waiting, open) = (Waiting::default(), Cell::new(false));
        let waiters = || waiting.wakers.borrow().len();
        smol::block_on(async {
            let mut patient = Box::pin(waiting.until(|| open.get()));
            let mut other = Box::pin(waiting.until(|| false));
            for _ in 0..3 {
                assert!(smol::future::poll_once(&mut patient).await.is_none());
                assert!(smol::future::poll_once(&mut other).await.is_none());
            }
            assert_eq!(waiters(), 2);
            drop(other);
            assert_eq!(waiters(), 1, "a waiter that is gone is kept");
            open.set(true);
            waiting.wake();
            assert_eq!(waiters(), 0);
            patient.await;
        });
    }
}
