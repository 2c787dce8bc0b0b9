//! Ends the pods of the cluster when the Lease could not be renewed for the fencing period (`--fencing-period`). What
//! to do when is decided in `nodlet-cluster`; this file has the clock, and what outlives an agent.
//!
//! A timer of its own closes the fence: requests to the API server may take their time.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;
use nodlet_cluster::fencing::Fencing;
use nodlet_core::facts::{Fence, Observation, PodIndex, PodObservation};
use nodlet_core::sorted::SortedSet;
use nodlet_host::paths::Paths;
use nodlet_kernel::durable;
use nodlet_registry::Owner;
use smol::Async;

use super::message::Message;
use super::{Engine, EngineError, Shell};

/// The fence of the cluster's pods.
pub(super) struct Fences {
    decision: RefCell<Fencing>,
    /// Wakes the timer when the fence was opened.
    opened: (Sender<()>, Receiver<()>),
}

/// The time since the boot, with that of a suspended machine.
fn now() -> Duration {
    clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .expect("CLOCK_BOOTTIME exists since Linux 2.6.39")
        .into()
}

impl Fences {
    /// Continues where an earlier agent of this boot ended.
    pub(super) fn begin(period: Duration, paths: &Paths) -> Fences {
        let stored = nodlet_kernel::own_file::read_to_string(&paths.fencing()).ok();
        let stored = stored.and_then(|nanos| nanos.trim().parse().ok()).map(Duration::from_nanos);
        let decision = RefCell::new(Fencing::new(period, stored, now()));
        Fences { decision, opened: async_channel::bounded(1) }
    }

    /// Whether no pod may begin before the cluster has listed the pods again.
    pub(super) fn needs_list(&self) -> bool {
        self.decision.borrow().to_store().is_none()
    }
}

impl Shell {
    /// The time of a renewal of the Lease that begins now, if there is a fencing period.
    pub(super) fn renewal_begins(&self) -> Option<Duration> {
        self.fences.is_some().then(now)
    }

    /// Records a renewal of the Lease that began at `sent`.
    pub(super) fn lease_renewed(&self, sent: Option<Duration>) {
        if let (Some(fences), Some(sent)) = (&self.fences, sent)
            && fences.decision.borrow_mut().renewed(sent)
        {
            self.store_renewal(fences);
        }
    }

    /// Writes the last renewal for the next agent. Without it, pods end earlier, not later.
    fn store_renewal(&self, fences: &Fences) {
        let path = self.paths.fencing();
        let written = match fences.decision.borrow().to_store() {
            Some(renewed) => durable::replace_in_memory(&path, renewed.as_nanos().to_string()),
            None => durable::discard(&path),
        };
        if let Err(error) = written {
            log::warn!("failed to write {}: {error}", path.display());
        }
    }
}

/// Closes the fence in time, for as long as the agent runs.
///
/// # Errors
/// The kernel has no timer.
pub(super) fn watch(shell: &Rc<Shell>) -> Result<(), EngineError> {
    if shell.fences.is_none() {
        return Ok(());
    }
    let failed = |source| EngineError::Kernel { what: "a timerfd", source };
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
        .map_err(|errno| failed(errno.into()))?;
    let readable = timer.as_fd().try_clone_to_owned().and_then(Async::new_nonblocking).map_err(failed)?;
    let of_task = shell.clone();
    shell.tasks.spawn(async move {
        let Some(fences) = &of_task.fences else { return };
        loop {
            let wake_at = fences.decision.borrow().wake_at();
            match wake_at {
                None => drop(fences.opened.1.recv().await),
                Some(at) => {
                    let at = Expiration::OneShot(TimeSpec::from_duration(at));
                    let armed = timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME).map_err(io::Error::from);
                    if let Err(error) = armed.and(readable.readable().await) {
                        log::error!(
                            "failed to wait for the fencing period: {error}; the pods of the cluster end"
                        );
                        fences.decision.borrow_mut().close(Duration::MAX);
                    }
                    let (done, is_done) = async_channel::bounded::<()>(1);
                    of_task.tasks.send(Message::CloseFence(done)).await;
                    let _ = is_done.recv().await;
                }
            }
        }
    });
    Ok(())
}

impl Engine {
    /// Closes the fence, if it is time to.
    pub(super) fn close_fence(&mut self) {
        let Some(fences) = &self.shell.fences else { return };
        if fences.decision.borrow_mut().close(now()) {
            log::warn!(
                "the Lease in the cluster was not renewed for most of the fencing period: the pods of the cluster end"
            );
            self.shell.store_renewal(fences);
            self.report_fence();
        }
    }

    /// Records that the cluster has listed the pods of this node, after a renewal of the Lease. All pods but those with
    /// these UIDs stay as they are until they end: their manifests may still exist for a while.
    pub(super) fn confirm_pods(&mut self, confirmed: &SortedSet<String>) {
        let Some(fences) = &self.shell.fences else { return };
        let has_opened = fences.decision.borrow_mut().listed();
        self.shell.store_renewal(fences);
        if has_opened {
            let _ = fences.opened.0.try_send(());
            self.report_fence_to(|uid| confirmed.contains(uid));
            self.publish_changed();
        }
    }

    /// Reports the fence to all pods of the cluster.
    pub(super) fn report_fence(&mut self) {
        self.report_fence_to(|_| true);
    }

    fn report_fence_to(&mut self, is_one: impl Fn(&str) -> bool) {
        if self.shell.fences.is_some() {
            let pods = self.node.pods().filter(|pod| is_one(&pod.pod().uid.0));
            let pods: Vec<PodIndex> = pods.map(nodlet_core::pod::PodState::index).collect();
            pods.into_iter().for_each(|pod| self.fence_pod(pod));
        }
    }

    /// Reports the fence to a pod, if it is one of the cluster.
    pub(super) fn fence_pod(&mut self, pod: PodIndex) {
        let Some(fences) = &self.shell.fences else { return };
        let fence = fences.decision.borrow().fence(now());
        let wanted = self.shell.pods.wanted(pod);
        let is_of_cluster =
            wanted.is_some_and(|wanted| self.registry.owner_of(&wanted) == Some(Owner::Cluster));
        let is_open = self.node.pod(pod).is_none_or(|state| state.fence() == Fence::Open);
        if is_of_cluster && !(is_open && fence == Fence::Open) {
            self.observe(Observation::Of(pod, PodObservation::Fence(fence)));
        }
    }
}
