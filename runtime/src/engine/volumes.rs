//! Writes the files of volumes that show ConfigMaps, Secrets and fields of the pod.

use std::rc::Rc;

use super::{Shell, this_node};
use crate::volume_files;
use nodlet_core::facts::SandboxFailure;
use nodlet_host::volume;
use nodlet_registry::{ConfigObjects, Wanted};

/// Writes the files of all volumes of a pod, where they have changed.
///
/// # Errors
/// The first volume that could not be written, with the text of the event `FailedMount`.
pub(super) async fn write_files(
    shell: Rc<Shell>,
    wanted: Rc<Wanted>,
    objects: ConfigObjects,
) -> Result<(), (SandboxFailure, String)> {
    let pod = &wanted.pod;
    if pod.spec.projections().next().is_none() {
        return Ok(());
    }
    let allocatable = this_node::info(&shell.config, &shell.machine).allocatable;
    let mut volumes = Vec::new();
    for (name, projection) in pod.spec.projections() {
        let files = volume_files::of(pod, projection, &objects, &allocatable);
        let files =
            files.map_err(|cause| (SandboxFailure::ObjectNotFound, volume::set_up_failed(name, &cause)))?;
        volumes.push((name.to_owned(), files));
    }
    let request = volume::Request::new(pod, &shell.paths);
    let written = shell.stores.storage.run(move || {
        volumes.iter().try_for_each(|(name, files)| volume::write_projected(&request, name, files).map(drop))
    });
    written.await.map_err(|message| (SandboxFailure::Mount, message))
}
