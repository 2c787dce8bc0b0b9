//! Ends the pods by their priorities when the machine shuts down. logind reports the shutdown, and delays it until
//! the pods have ended, or for its maximum delay.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::logind::{self, DelayLock, Logind};
use nodlet_core::facts::{Observation, Shutdown, ShutdownScope};
use nodlet_core::time::Instant;
use nodlet_registry::NodeEvent;

use super::Engine;
use super::message::Message;
use super::tasks::Tasks;

/// Time until a connection to a missing logind is tried again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Whether the machine is shutting down.
pub(super) struct ShutdownState {
    pub(super) goes_down: Cell<bool>,
    /// When `goes_down` last changed.
    pub(super) since: Cell<Instant>,
    lock: RefCell<Option<DelayLock>>,
}

impl ShutdownState {
    /// Whether the machine is shutting down.
    pub(super) fn goes_down(&self) -> bool {
        self.goes_down.get()
    }

    pub(super) fn new(since: Instant) -> ShutdownState {
        ShutdownState { goes_down: Cell::new(false), since: Cell::new(since), lock: RefCell::new(None) }
    }
}

/// Holds a delay lock of logind and reports shutdowns to the loop, as long as there is a logind. Pods may take `needed` to
/// end.
pub(super) async fn follow(needed: Duration, state: Rc<ShutdownState>, tasks: Rc<Tasks>) {
    let mut failure_logged = false;
    loop {
        let Err(error) = hold(needed, &state, &tasks).await else { continue };
        if !state.goes_down.get() {
            drop(state.lock.take());
            if !std::mem::replace(&mut failure_logged, true) {
                log::warn!("failed to watch logind for shutdowns: {error}; trying again every minute");
            }
        }
        smol::Timer::after(ASK_AGAIN).await;
    }
}

async fn hold(needed: Duration, state: &ShutdownState, tasks: &Tasks) -> io::Result<()> {
    let mut logind = Logind::connect(&logind::system_bus()).await?;
    let patience = logind.patience().await?;
    if patience < needed {
        log::warn!(
            "logind waits only {} s for pods to end when the machine goes down, and they may take {} s: set \
             InhibitDelayMaxSec={} in a file of /etc/systemd/logind.conf.d",
            patience.as_secs(),
            needed.as_secs(),
            needed.as_secs()
        );
    }
    loop {
        let lock = logind.delay().await?;
        *state.lock.borrow_mut() = Some(lock);
        // logind grants no lock during a shutdown.
        tasks.send(Message::GoesDown(false)).await;
        while !logind.prepares_for_shutdown().await? {}
        tasks.send(Message::GoesDown(true)).await;
        while logind.prepares_for_shutdown().await? {}
    }
}

impl Engine {
    pub(super) fn set_goes_down(&mut self, goes_down: bool) {
        if self.shell.machine.shutdown.goes_down.replace(goes_down) == goes_down {
            return;
        }
        self.shell.machine.shutdown.since.set(nodlet_host::clock::instant());
        let seen = if goes_down {
            self.shell.publication.emit_of_node(NodeEvent::Shutdown);
            let groups = self.shell.config.shutdown_groups.clone();
            Observation::Shutdown(Shutdown { scope: ShutdownScope::Machine, groups })
        } else {
            self.shell.publication.emit_of_node(NodeEvent::ShutdownCancelled);
            Observation::ShutdownCancelled
        };
        self.observe(seen);
        self.publish_node();
    }

    /// Releases the delay lock of a shutdown when no process of a pod is left and all is on flash.
    pub(super) fn release_shutdown(&self) {
        if self.shell.machine.shutdown.goes_down.get()
            && self.node.is_at_rest()
            && self.shell.machine.shutdown.lock.take().is_some()
        {
            log::info!("all pods have ended; the machine may go down");
        }
    }
}
