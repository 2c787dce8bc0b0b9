//! PersistentVolumeClaims of pods: binds them, saves the bindings, and takes and releases their volumes. The registry decides
//! who gets which volume (`registry/src/claims.rs`).
//!
//! A pod has its volumes from the moment at which its sandbox is being made to that at which the sandbox is removed, which
//! needs that its last process is gone. `pod.json` beside its supervisor names them for a later agent, which finds all pods
//! of an earlier one before it starts any. A lock of the machine (`host/src/volume/lock.rs`) stays with the pod's processes,
//! whatever becomes of agent, supervisor and files.

use nodlet_core::facts::{Observation, PodIndex, PodObservation};
use nodlet_core::spec::volume::ClaimedVolume;
use nodlet_host::volume::set_up_failed;
use nodlet_registry::{DefinitionName, Wanted};

use super::{Engine, this_node};

/// The most bytes of saved bindings: far more than there are objects in manifests.
const MAX_BYTES: u64 = 4 << 20;

impl Engine {
    /// Reads the bindings that an earlier agent saved.
    pub(super) fn read_bindings(&mut self) {
        let path = self.shell.paths.bindings();
        let is_file = |path| {
            let found = std::fs::symlink_metadata(path)?;
            if !found.is_file() {
                // Reading a pipe would never end.
                Err(std::io::Error::other("it is not a file"))
            } else if found.len() > MAX_BYTES {
                Err(std::io::Error::other(format!("it has more than {MAX_BYTES} bytes")))
            } else {
                Ok(())
            }
        };
        let read = match is_file(&path).and_then(|()| nodlet_kernel::own_file::read(&path)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => self.registry.restore_bindings(Err(&error.to_string())),
            Ok(bytes) => self.registry.restore_bindings(Ok(&bytes)),
        };
        if let Err(message) = read {
            log::error!("no claim will be bound: failed to read {}: {message}", path.display());
        }
    }

    /// Binds claims to volumes. Returns the claims that have changed.
    pub(super) fn bind_claims(&mut self) -> Vec<DefinitionName> {
        let now = self.shell.machine.timestamp(nodlet_host::clock::instant());
        let labels = this_node::info(&self.shell.config, &self.shell.machine).labels;
        let changed = self.registry.bind_claims(&now, &labels);
        if let Some(bytes) = self.registry.unsaved_bindings() {
            self.shell.stores.set_bindings(bytes);
            let shell = self.shell.clone();
            let saved = async move { shell.stores.save_bindings(&shell.paths).await };
            self.shell.tasks.log_failure(saved, |error| {
                format!("failed to save which claims are bound: {error}; no pod that uses one will start")
            });
        }
        changed
    }

    /// Takes the volumes behind the claims of a pod whose sandbox is to be made.
    ///
    /// # Errors
    /// The text of the event `FailedMount`.
    pub(super) fn take_claims(
        &mut self,
        pod: PodIndex,
        wanted: &Wanted,
    ) -> Result<Vec<ClaimedVolume>, String> {
        if wanted.pod.claims().next().is_none() {
            return Ok(Vec::new());
        }
        let labels = this_node::info(&self.shell.config, &self.shell.machine).labels;
        let taken = self.registry.take_volumes(pod, &wanted.pod, &labels);
        taken.map_err(|(volume, why)| set_up_failed(&volume, &why))
    }

    /// Takes over the volumes of a pod of an earlier agent, and their lock.
    pub(super) fn adopt_claims(&mut self, pod: PodIndex, uid: &str, claims: Vec<ClaimedVolume>) {
        if claims.is_empty() {
            return;
        }
        self.shell.volumes.adopt_lock(pod, uid);
        self.registry.adopt_volumes(pod, claims);
    }

    /// Gives the volumes of a pod back whose sandbox is gone, and wakes pods that may wait for them.
    pub(super) fn release_claims(&mut self, pod: PodIndex) {
        self.shell.volumes.release_lock(pod);
        let pods = self.node.pods().map(|other| (other.index(), &**other.pod()));
        for other in self.registry.release_volumes(pod, pods) {
            self.observe(Observation::Of(other, PodObservation::ObjectsChanged));
        }
    }
}
