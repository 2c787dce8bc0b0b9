//! Removes finished pods when there are too many, as the pod garbage collector of a control plane does, as soon as
//! there is one too many.

use nodlet_core::facts::PodIndex;

use nodlet_core::pod::PodState;

use super::Engine;
use super::changes::Change;
use super::message::PodEnd;

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
            self.changes.push(Change::Collection(index));
        }
    }

    /// Removes the manifest of a finished pod. A failure is only logged, and no action of the core, because it concerns
    /// the desired state: the next change of a finished pod chooses again which pods are too many.
    pub(super) fn collect(&mut self, index: PodIndex) {
        let Some(wanted) = self.shell.pods.wanted(index) else { return self.changes.end_collection(index) };
        let (namespace, name) = (&wanted.pod.namespace, wanted.pod.name.to_string());
        log::info!("{namespace}/{name}: removed: too many finished pods");
        self.remove_pod(wanted.pod.uid.clone(), wanted.source.clone(), PodEnd::Collected { index, name });
    }
}
