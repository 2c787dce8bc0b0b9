//! Reports that the loop runs: to the service manager, and to process 1 of a board.

use std::rc::Rc;

use super::Engine;
use super::message::{Heartbeat, Message};
use crate::progress::Progress;
use crate::service::Service;

impl Engine {
    /// Reports to the service manager that the API answers, and from then on that the loop runs.
    pub(super) fn report_to_service(&self) -> Option<Rc<Service>> {
        let service = Rc::new(Service::of_this_process().filter(|_| !self.shell.config.down)?);
        service.is_ready();
        if let Some(every) = service.every() {
            let (service, tasks) = (service.clone(), self.shell.tasks.clone());
            self.shell.tasks.spawn(async move {
                loop {
                    smol::Timer::after(every).await;
                    tasks.send(Message::Beat(Heartbeat::Service(service.clone()))).await;
                }
            });
        }
        Some(service)
    }

    /// Reports to process 1 of a board that the loop runs, if that process started this agent.
    pub(super) fn report_progress(&self) {
        let progress = match Progress::of_this_process() {
            Ok(Some(progress)) if !self.shell.config.down => progress,
            Ok(_) => return,
            Err(error) => return log::error!("failed to report progress to process 1: {error}"),
        };
        progress.store(nodlet_host::clock::instant());
        let (progress, tasks) = (Rc::new(progress), self.shell.tasks.clone());
        self.shell.tasks.spawn(async move {
            loop {
                smol::Timer::after(progress.until_next(nodlet_host::clock::instant())).await;
                tasks.send(Message::Beat(Heartbeat::Progress(progress.clone()))).await;
            }
        });
    }
}
