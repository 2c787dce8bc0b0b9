//! The tasks of the agent, on its one thread, and how they report to the loop.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_channel::Sender;
use smol::LocalExecutor;

use nodlet_core::facts::{PodIndex, PodObservation};

use super::Engine;

/// The number of messages that may wait for the loop. A task that sends more waits.
pub(super) const MESSAGES: usize = 256;

/// A report of a task to the loop.
pub(super) enum Message {
    /// A fact about a pod.
    Seen(PodIndex, PodObservation),
    /// Images were added to the store, or removed.
    ImagesChanged,
    /// The clock was set.
    ClockSet,
    /// SIGTERM or SIGINT: the agent ends, and leaves the pods.
    Terminate,
    /// A task has finished; this continues in the loop.
    Then(Box<dyn FnOnce(&mut Engine)>),
}

/// The executor of all tasks, and the channel to the loop. The loop ends before its tasks only when the
/// process does, so that failed sends need no handling.
pub(super) struct Tasks {
    pub(super) executor: LocalExecutor<'static>,
    pub(super) messages: Sender<Message>,
}

impl Tasks {
    pub(super) fn new(messages: Sender<Message>) -> Tasks {
        Tasks { executor: LocalExecutor::new(), messages }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        // Boxed, so that all tasks are of one type: each other one would be a kilobyte of code.
        let task: Pin<Box<dyn Future<Output = ()>>> = Box::pin(task);
        self.executor.spawn(task).detach();
    }

    /// Carries out an action in a task, and reports its result.
    pub(super) fn answer<T: 'static>(
        &self,
        pod: PodIndex,
        action: impl Future<Output = T> + 'static,
        seen: impl FnOnce(T) -> Option<PodObservation> + 'static,
    ) {
        let messages = self.messages.clone();
        self.spawn(async move {
            if let Some(seen) = seen(action.await) {
                let _ = messages.send(Message::Seen(pod, seen)).await;
            }
        });
    }

    /// Calls `go_on` in the loop after a while.
    pub(super) fn later(&self, after: Duration, go_on: impl FnOnce(&mut Engine) + 'static) {
        let messages = self.messages.clone();
        self.spawn(async move {
            smol::Timer::after(after).await;
            let _ = messages.send(Message::Then(Box::new(go_on))).await;
        });
    }

    /// Waits for `value` in a task, then calls `go_on` with it in the loop.
    pub(super) fn then<T: 'static>(
        &self,
        value: impl Future<Output = T> + 'static,
        go_on: impl FnOnce(&mut Engine, T) + 'static,
    ) {
        let messages = self.messages.clone();
        self.spawn(async move {
            let value = value.await;
            let _ = messages.send(Message::Then(Box::new(move |engine| go_on(engine, value)))).await;
        });
    }

    /// Reports a fact about a pod; waits if the loop is behind.
    pub(super) async fn report(&self, pod: PodIndex, seen: PodObservation) {
        let _ = self.messages.send(Message::Seen(pod, seen)).await;
    }

    /// Calls `go_on` in the loop; waits if the loop is behind.
    pub(super) async fn then_loop(&self, go_on: impl FnOnce(&mut Engine) + 'static) {
        let _ = self.messages.send(Message::Then(Box::new(go_on))).await;
    }
}
