//! Removes finished pods when there are too many, as the pod garbage collector of a control plane does, as soon as
//! there is one too many.

use nodlet_core::facts::PodIndex;

use nodlet_core::pod::PodState;
use nodlet_registry::Stop;

use super::Engine;
use super::pods::ManifestRemoval;

impl Engine {
    /// Removes the finished pods that exceed the number that is kept, of those that the registry allows to remove.
    pub(super) fn collect_terminated(&mut self) {
        let Some(kept) = self.shell.config.terminated_pod_gc_threshold else { return };
        if self.shell.config.down {
            return;
        }
        let may_go = |pod: &PodState| {
            let pods = self.shell.pods.borrow();
            pods.get(&pod.index()).is_some_and(|entry| self.registry.may_collect(&entry.wanted))
        };
        for index in self.node.terminated_beyond(kept, may_go) {
            self.collect(index);
        }
    }

    /// Removes the manifest of a finished pod. A failure is only logged, and no action of the core, because it concerns
    /// the desired state: the next change of a finished pod chooses again which pods are too many.
    fn collect(&mut self, index: PodIndex) {
        let wanted = {
            let mut pods = self.shell.pods.borrow_mut();
            let Some(entry) = pods.get_mut(&index).filter(|entry| entry.manifest.removal.is_none()) else {
                return;
            };
            entry.manifest.set(ManifestRemoval::Collected, true);
            entry.wanted.clone()
        };
        let (namespace, name) = (wanted.pod.namespace.clone(), wanted.pod.name.clone());
        log::info!("{namespace}/{name}: removed: too many finished pods");
        let removed = self.shell.stores.remove(wanted.source.clone());
        self.shell.tasks.then(removed, move |engine, removed| match removed {
            Ok(()) => engine.read_sources_then(move |engine| {
                // Without a manifest it goes by itself; nothing of it runs that would need a grace.
                let _ = engine.stop(index, &name, Stop::FORCED);
            }),
            Err(error) => {
                log::error!("failed to remove {}: {error}", wanted.source.display());
                if let Some(entry) = engine.shell.pods.borrow_mut().get_mut(&index) {
                    entry.manifest.set(ManifestRemoval::Collected, false);
                }
            }
        });
    }
}
