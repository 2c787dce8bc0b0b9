//! The end of a pod that the cluster has deleted: its manifest goes from flash, and then the pod stops.

use std::path::PathBuf;
use std::time::Duration;

use nodlet_cluster::api::random;
use nodlet_cluster::backoff::Backoff;
use nodlet_core::error::causes;
use nodlet_core::facts::Observation;
use nodlet_core::spec::Uid;

use super::Engine;

impl Engine {
    /// Ends a pod of the cluster: removes its manifest, and then stops it within `grace`. A removal that fails is repeated
    /// while the pod is wanted by that manifest, with the waits of `backoff`.
    pub(super) fn end_cluster_pod(
        &mut self,
        uid: Uid,
        path: PathBuf,
        grace: Option<Duration>,
        mut backoff: Backoff,
    ) {
        let again = (uid.clone(), path.clone());
        self.remove_pod_manifest(uid, path, move |engine, removed| {
            let (uid, path) = again;
            match removed {
                Ok(()) => {
                    engine.observe(Observation::Unwanted { uid, grace });
                    engine.publish_changed();
                }
                Err(error) => {
                    log::error!("{}", causes(&error));
                    if engine.registry.desires(&uid) {
                        let wait = backoff.failed(random());
                        let again =
                            move |engine: &mut Engine| engine.end_cluster_pod(uid, path, grace, backoff);
                        engine.shell.tasks.later(wait, again);
                    }
                }
            }
        });
    }
}
