//! The tasks of the agent, on its one thread, and how they report to the loop.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_channel::Sender;
use smol::{LocalExecutor, Task};

use nodlet_core::facts::{PodIndex, PodObservation};

use super::message::Message;

/// The number of messages that may wait for the loop. A task that sends more waits.
pub(super) const MESSAGES: usize = 256;

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
        self.start(task).detach();
    }

    /// Spawns a task that ends when the returned value is dropped.
    pub(super) fn start(&self, task: impl Future<Output = ()> + 'static) -> Task<()> {
        // Boxed, so that all tasks are of one type: each other one would be a kilobyte of code.
        let task: Pin<Box<dyn Future<Output = ()>>> = Box::pin(task);
        self.executor.spawn(task)
    }

    /// Runs a job in a task. A failure is only logged, with the text that `message` makes of it.
    pub(super) fn log_failure<E: 'static>(
        &self,
        job: impl Future<Output = Result<(), E>> + 'static,
        message: impl FnOnce(E) -> String + 'static,
    ) {
        self.spawn(async move {
            if let Err(error) = job.await {
                log::error!("{}", message(error));
            }
        });
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

    /// Sends a message to the loop after a while.
    pub(super) fn later(&self, after: Duration, message: Message) {
        self.then(smol::Timer::after(after), |_| message);
    }

    /// Waits for `value` in a task, then sends the loop the message that it makes.
    pub(super) fn then<T: 'static>(
        &self,
        value: impl Future<Output = T> + 'static,
        message: impl FnOnce(T) -> Message + 'static,
    ) {
        let messages = self.messages.clone();
        self.spawn(async move {
            let _ = messages.send(message(value.await)).await;
        });
    }

    /// Reports a fact about a pod; waits if the loop is behind.
    pub(super) async fn report(&self, pod: PodIndex, seen: PodObservation) {
        self.send(Message::Seen(pod, seen)).await;
    }

    /// Sends a message to the loop; waits if the loop is behind.
    pub(super) async fn send(&self, message: Message) {
        let _ = self.messages.send(message).await;
    }
}
