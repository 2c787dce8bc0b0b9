//! Which pod uses which PersistentVolumes: a pod that has a volume alone (`ReadWriteOncePod`) excludes all others from it.
//!
//! This decides between the pods that this agent knows, and wakes those that wait. What holds without the agent, for other
//! agents and for other paths to the same directory is the lock in `host/src/volume/lock.rs`.

use nodlet_core::facts::PodIndex;
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::Pod;
use nodlet_core::spec::volume::{ClaimedVolume, VOLUME_IN_USE};

use super::Registry;

/// The volumes behind the claims of pods whose sandbox may exist.
#[derive(Debug, Default)]
pub(super) struct VolumesInUse {
    by_pod: SortedMap<PodIndex, Vec<ClaimedVolume>>,
}

impl Registry {
    /// Gives a pod the volumes behind its claims. The pod has them until [`Registry::release_volumes`].
    ///
    /// # Errors
    /// A claim is missing or not bound, the node cannot have its volume, or the volume is in use and either pod has it
    /// alone (`ReadWriteOncePod`): the name of the pod's volume, and a text of Kubernetes' scheduler.
    pub fn take_volumes(
        &mut self,
        index: PodIndex,
        pod: &Pod,
        labels: &SortedMap<String, String>,
    ) -> Result<Vec<ClaimedVolume>, (String, String)> {
        let volumes = self.claimed_volumes(pod, labels)?;
        if volumes.is_empty() {
            return Ok(volumes);
        }
        let others = self.volumes_in_use.by_pod.iter().filter(|(other, _)| **other != index);
        let others = others.flat_map(|(_, theirs)| theirs);
        if let Some(mine) = volumes.iter().find(|mine| others.clone().any(|other| excludes(mine, other))) {
            return Err((mine.volume.clone(), VOLUME_IN_USE.to_owned()));
        }
        self.volumes_in_use.by_pod.insert(index, volumes.clone());
        Ok(volumes)
    }

    /// Records the volumes of a pod whose sandbox an earlier agent made.
    pub fn adopt_volumes(&mut self, index: PodIndex, volumes: Vec<ClaimedVolume>) {
        if !volumes.is_empty() {
            self.volumes_in_use.by_pod.insert(index, volumes);
        }
    }

    /// Releases the volumes of a pod whose sandbox is gone. Returns which of `pods` may wait for one of them: a volume may
    /// have another claim by now, so that this is every pod with a claim.
    pub fn release_volumes<'a>(
        &mut self,
        index: PodIndex,
        pods: impl Iterator<Item = (PodIndex, &'a Pod)>,
    ) -> Vec<PodIndex> {
        if self.volumes_in_use.by_pod.remove(&index).is_none() {
            return Vec::new();
        }
        let waiting = pods.filter(|(other, pod)| *other != index && pod.claims().next().is_some());
        waiting.map(|(other, _)| other).collect()
    }
}

/// Whether one pod cannot have a volume while another pod has the other one. A volume that was deleted and created again
/// may have the same directory.
fn excludes(one: &ClaimedVolume, other: &ClaimedVolume) -> bool {
    let is_same = one.persistent_volume == other.persistent_volume || one.path == other.path;
    is_same && (one.is_exclusive || other.is_exclusive)
}
