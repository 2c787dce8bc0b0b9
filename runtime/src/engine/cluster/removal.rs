//! The end of a pod that the cluster has deleted: its manifest goes from flash, and then the pod stops.

use super::super::message::{ClusterPodEnd, PodEnd};
use super::Engine;

impl Engine {
    /// Ends a pod of the cluster: removes its manifest, and then stops it. A removal that fails is repeated while the pod
    /// is wanted by that manifest.
    pub(in crate::engine) fn end_cluster_pod(&mut self, end: ClusterPodEnd) {
        self.remove_pod(end.uid.clone(), end.path.clone(), PodEnd::OfCluster(end));
    }
}
