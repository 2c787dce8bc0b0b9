//! Evicts pods that write more to an emptyDir on disk than its `sizeLimit`. The kernel does not report it, so volumes with
//! a limit are measured at a fixed rate, as by a kubelet; a pod without such a volume costs nothing.

use std::rc::{Rc, Weak};
use std::time::Duration;

use nodlet_core::facts::{PodIndex, PodObservation};
use nodlet_core::spec::VolumeSource;
use nodlet_host::launch::MountSource;
use nodlet_host::volume::Usage;
use nodlet_registry::Wanted;

use super::Shell;
use super::handles::Sandbox;

/// Time between two measurements of a volume: the kubelet's `volumeStatsAggPeriod`.
const MEASURED_EVERY: Duration = Duration::from_secs(60);

/// Measures the volumes of a pod as long as its sandbox exists, if they have limits.
pub(super) fn watch(shell: &Rc<Shell>, pod: PodIndex, wanted: &Wanted, sandbox: &Rc<Sandbox>) {
    let limits = wanted.pod.spec.volumes.iter().filter_map(|volume| {
        let VolumeSource::EmptyDir { memory: false, size_limit: Some(limit) } = &volume.source else {
            return None;
        };
        Some((volume.name.clone(), limit.clone()))
    });
    let limits: Vec<_> = limits.collect();
    if limits.is_empty() {
        return;
    }
    let (shell, sandbox): (Rc<Shell>, Weak<Sandbox>) = (shell.clone(), Rc::downgrade(sandbox));
    let task = shell.clone();
    task.tasks.spawn(async move {
        loop {
            for (name, limit) in &limits {
                let Some(sandbox) = sandbox.upgrade().filter(|sandbox| !sandbox.ending.get()) else { return };
                let Some(MountSource::Host(path)) = sandbox.volumes.get(name) else { continue };
                let most = u64::try_from(limit.value()).unwrap_or_default();
                let mut usage = Usage::new(path.clone(), most);
                drop(sandbox);
                if shell.stores.storage.run_in_parts(move || usage.part()).await > most {
                    let message =
                        format!("Usage of EmptyDir volume {name:?} exceeds the limit \"{limit}\". ");
                    shell.tasks.report(pod, PodObservation::Evicted { message: message.into() }).await;
                    return;
                }
            }
            smol::Timer::after(MEASURED_EVERY).await;
        }
    });
}
