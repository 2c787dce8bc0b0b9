//! Writes the files of volumes that show ConfigMaps, Secrets and fields of the pod, and measures what pods use of the disk.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use super::{Shell, this_node};
use crate::pod_files::PodFiles;
use crate::{container_config, volume_files};
use nodlet_core::facts::{SandboxFailure, StorageScope, StorageUsage};
use nodlet_host::usage::Unit;
use nodlet_host::{log_files, volume};
use nodlet_registry::{ConfigObjects, Wanted};

/// The reason why the files of a volume could not be written.
pub(super) struct WriteFailure {
    pub(super) reason: SandboxFailure,
    /// The text of the event `FailedMount`.
    pub(super) message: String,
}

impl WriteFailure {
    /// The pod is not tried, for this reason.
    pub(super) fn set_aside(message: String) -> WriteFailure {
        WriteFailure { reason: SandboxFailure::SetAside, message }
    }
}

/// Writes the files of all volumes of a pod, where they have changed. A volume that cannot be written keeps no other one
/// back.
///
/// # Errors
/// The first volume that could not be written.
pub(super) async fn write_files(
    shell: Rc<Shell>,
    wanted: Rc<Wanted>,
    objects: ConfigObjects,
) -> Result<(), WriteFailure> {
    let pod = &wanted.pod;
    let allocatable = this_node::info(&shell.config, &shell.machine).allocatable;
    let request = volume::Request::new(pod, &shell.paths, &[]);
    let limit = nodlet_host::cgroup::memory_of(pod).filter(|limit| *limit > 0);
    let mut room = volume_files::Room::new(limit);
    let mut missing = None;
    let mut failed = None;
    for (name, projection) in pod.spec.projections() {
        let files = match volume_files::of(pod, projection, &objects, &allocatable, &mut room) {
            Ok(files) => files,
            Err(cause) => {
                missing.get_or_insert(volume::set_up_failed(name, &cause));
                continue;
            }
        };
        let (request, name) = (request.clone(), name.to_owned());
        let written = shell.stores.storage.run(move || volume::write_projected(&request, &name, &files));
        if let Err(error) = written.await {
            failed.get_or_insert_with(|| nodlet_host::error::causes(&error));
        }
    }
    match (failed, missing) {
        (Some(message), _) => Err(WriteFailure { reason: SandboxFailure::Mount, message }),
        (None, Some(message)) => Err(WriteFailure { reason: SandboxFailure::ObjectNotFound, message }),
        (None, None) => Ok(()),
    }
}

/// The volumes and writable layers of a pod could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("failed to remove its volumes")]
pub(super) struct RemoveError(#[source] io::Error);

/// Removes the volumes and writable layers of a pod, and its logs if `logs` is set.
///
/// # Errors
/// A file could not be removed.
pub(super) fn remove(
    shell: &Shell,
    wanted: &Wanted,
    logs: bool,
) -> impl Future<Output = Result<(), RemoveError>> + use<> {
    let (paths, pod) = (shell.paths.clone(), &wanted.pod);
    let removed = shell.stores.remove_tree(paths.pod(&pod.uid.0));
    let (namespace, name, uid) = (pod.namespace.to_string(), pod.name.to_string(), pod.uid.0.to_string());
    let logs = logs
        .then(|| shell.stores.storage.run(move || log_files::remove_pod(&paths, &namespace, &name, &uid)));
    async move {
        removed.await.map_err(RemoveError)?;
        match logs {
            Some(logs) => logs.await.map_err(RemoveError),
            None => Ok(()),
        }
    }
}

/// Measures the bytes of memory that the files of volumes have which nodlet writes for a pod. They are on tmpfs and belong
/// to no cgroup of the pod, since its containers did not write them.
pub(super) async fn memory_of_files(shell: &Shell, wanted: &Wanted) -> u64 {
    let directory = volume::written_files(&shell.paths, &wanted.pod.uid.0);
    let mut measurement = nodlet_host::usage::Measurement::new([(0, directory)], 1, Unit::Bytes);
    shell.stores.storage.run_in_parts(move || measurement.part()).await.into_iter().sum()
}

/// The directories of the volumes that are measured, each with the place of its volume in the spec.
pub(super) fn measured(
    shell: &Shell,
    wanted: &Wanted,
    scope: StorageScope,
) -> impl Iterator<Item = (usize, PathBuf)> {
    let directory = shell.paths.pod(&wanted.pod.uid.0);
    let volumes = wanted.pod.spec.volumes.iter().enumerate();
    let volumes = volumes.filter(move |(_, volume)| scope.has_volume(&volume.source));
    volumes.map(move |(place, volume)| (place, volume::empty_dir_path(&directory, &volume.name)))
}

/// Whether the volumes of a pod may be measured by a project quota. Where root of a container is root of the host, it can
/// give its files to another project.
pub(super) fn may_have_quota(wanted: &Wanted) -> bool {
    !wanted.pod.spec.host_users
}

/// Measures the local storage that a pod uses: the bytes or the inodes of each container, with its writable layer and its
/// logs, and those of each volume. What is not in the scope counts as 0. Files that all containers can write count after the volumes.
pub(super) async fn measure(
    shell: Rc<Shell>,
    wanted: Rc<Wanted>,
    scope: StorageScope,
    unit: Unit,
) -> StorageUsage {
    let pod = &wanted.pod;
    let (paths, uid) = (&shell.paths, &pod.uid.0);
    let logs = paths.pod_logs(&pod.namespace, &pod.name, uid);
    let runs = container_config::run_files::runs_directory(paths, uid);
    let directory = paths.pod(uid);
    let (mut directories, mut projects) = (Vec::new(), Vec::new());
    let mut count = 0;
    for container in pod.spec.all_containers() {
        if scope == StorageScope::Pod {
            let of_container = [runs.join(&container.name), logs.join(&container.name)];
            directories.extend(of_container.map(|path| (count, path)));
        }
        count += 1;
    }
    let found = if may_have_quota(&wanted) { &mut projects } else { &mut directories };
    found.extend(measured(&shell, &wanted, scope).map(|(place, path)| (count + place, path)));
    let places = count + pod.spec.volumes.len();
    let mut measurement = nodlet_host::usage::Measurement::new(directories, places, unit);
    for (place, directory) in projects {
        measurement.add_project(place, directory);
    }
    let written = (scope == StorageScope::Pod && unit == Unit::Bytes).then_some(directory);
    let mut containers = shell
        .stores
        .storage
        .run_in_parts(move || {
            let mut used = measurement.part()?;
            used.extend(written.iter().map(|directory| PodFiles::usage(directory)));
            Some(used)
        })
        .await;
    let volumes = containers.split_off(count);
    StorageUsage { containers, volumes }
}
