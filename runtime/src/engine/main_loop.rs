//! The loop: it waits for a message of a task, a request or a time, tells the core, and performs what the core plans.

use async_channel::Receiver;
use nodlet_core::facts::Observation;
use nodlet_core::time::Instant;

use super::Engine;
use super::message::Message;
use crate::api::Request;

impl Engine {
    /// Runs until the agent is to end.
    pub(super) async fn run_loop(&mut self) {
        loop {
            let wake_at = self.plan_and_perform();
            let wake_at = wake_at.into_iter().chain(self.watch_pressure()).min();
            if self.shell.config.down && self.node.is_empty() {
                return;
            }
            if !self.await_news(wake_at).await {
                return;
            }
        }
    }

    /// Plans and performs until there is nothing more to do now. Returns when there will be.
    fn plan_and_perform(&mut self) -> Option<Instant> {
        loop {
            if self.shell.stores.is_short.take() {
                self.read_again();
            }
            let now = nodlet_host::clock::instant();
            let plan = self.node.plan(now);
            self.ring.planned(now, &self.node, &plan);
            for (pod, action) in plan.actions {
                self.perform(pod, action);
            }
            self.publish_changed();
            self.release_shutdown();
            if !plan.more {
                return plan.wake_at;
            }
        }
    }

    /// Waits for something to observe. Returns `false` if the agent is to end.
    async fn await_news(&mut self, wake_at: Option<Instant>) -> bool {
        enum Woken {
            Message(Message),
            Request(Request),
            Due,
        }
        let message = async { Woken::Message(receive(&self.inbox).await) };
        let request = async {
            if self.changes.is_full() {
                smol::future::pending().await
            } else {
                Woken::Request(receive(&self.requests).await)
            }
        };
        let wait = wake_at.map(|at| at - nodlet_host::clock::instant());
        let due = async {
            wait.map_or_else(smol::Timer::never, smol::Timer::after).await;
            Woken::Due
        };
        let mut woken = smol::future::or(message, smol::future::or(request, due)).await;
        loop {
            match woken {
                Woken::Message(Message::Terminate) => return false,
                Woken::Message(message) => self.continue_with(message),
                Woken::Request(request) => self.answer(request),
                Woken::Due => {}
            }
            self.make_changes();
            woken = match (self.inbox.try_recv(), self.changes.is_full()) {
                (Ok(message), _) => Woken::Message(message),
                (Err(_), false) => match self.requests.try_recv() {
                    Ok(request) => Woken::Request(request),
                    Err(_) => return true,
                },
                (Err(_), true) => return true,
            };
        }
    }

    /// Continues with the report of a task.
    fn continue_with(&mut self, message: Message) {
        match message {
            Message::Seen(pod, seen) => self.observe(Observation::Of(pod, seen)),
            Message::ImagesChanged => {
                self.observe(Observation::ImagesChanged);
                self.images_changed();
                self.collect_images();
                self.list_images();
            }
            Message::ClockSet => self.clock_was_set(),
            Message::Images(news) => self.image_news(news),
            Message::ImagesLookedUp { look_up, present } => {
                self.images_looked_up(look_up, present);
            }
            Message::Manifests(news) => self.manifest_news(news),
            Message::Stored(change) => self.stored(*change),
            Message::ImagesReclaimed(check) => {
                self.images_checked(check);
                self.images_reclaimed();
            }
            Message::Pressure(news) => self.pressure_news(news),
            Message::Cluster(call) => self.cluster_call(call),
            Message::NodeChanged => self.observe_node(),
            Message::AddressesChanged => self.serve_services(),
            Message::CloseFence(_done) => self.close_fence(),
            Message::GoesDown(goes_down) => self.set_goes_down(goes_down),
            Message::Beat(heartbeat) => heartbeat.beat(),
            // The loop has ended.
            Message::Terminate => {}
        }
    }
}

/// Waits for the next message. A channel that is closed has none for ever: `down` opens no API.
async fn receive<T>(channel: &Receiver<T>) -> T {
    match channel.recv().await {
        Ok(message) => message,
        Err(_) => smol::future::pending().await,
    }
}
