//! The volumes of pods on this machine: sets them up, writes the files that show ConfigMaps, Secrets and fields of the
//! pod, keeps the locks of PersistentVolumes, and measures what pods use of the disk.
//!
//! Host paths are checked, each pod's in a thread of its own, which ends with the result: a path on a server that is gone
//! does not answer, and neither the loop nor the storage thread may wait for it. There is at most one thread for each pod,
//! also if the check is repeated.

use std::cell::RefCell;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use super::flash::remove_tree;
use super::tasks::Tasks;
use crate::pod_files::PodFiles;
use crate::storage_thread::Storage;
use crate::{container_config, volume_files};
use nodlet_core::facts::{Amounts, PodIndex, SandboxFailure, StorageScope, StorageUsage};
use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_core::spec::Uid;
use nodlet_core::spec::volume::ClaimedVolume;
use nodlet_host::error::{causes, chain};
use nodlet_host::log_files;
use nodlet_host::paths::Paths;
use nodlet_host::usage::{Measurement, Unit};
use nodlet_host::volume::{self, LockRequest, VolumeLock};
use nodlet_registry::{ConfigObjects, Wanted};
use nodlet_wire::timeout::within;

/// Time within which the host paths of a pod must answer.
const WITHIN: Duration = Duration::from_secs(10);

/// Stack size of a thread that looks at host paths.
const STACK: usize = 256 * 1024;

/// The volumes of all pods.
pub(super) struct Volumes {
    paths: Paths,
    storage: Storage,
    host_paths: HostPaths,
    /// The locks of the PersistentVolumes of pods with a sandbox.
    locks: RefCell<SortedMap<PodIndex, VolumeLock>>,
}

/// The reason why the volumes of a pod could not be set up, or the files of one not be written.
pub(super) struct VolumeFailure {
    pub(super) reason: SandboxFailure,
    /// The text of the event `FailedMount`.
    pub(super) message: String,
}

impl VolumeFailure {
    /// The pod is not tried, for this reason.
    pub(super) fn set_aside(message: String) -> VolumeFailure {
        VolumeFailure { reason: SandboxFailure::SetAside, message }
    }

    pub(super) fn new(reason: SandboxFailure, error: &(dyn Error + 'static)) -> VolumeFailure {
        VolumeFailure { reason, message: chain(error) }
    }
}

/// The volumes and writable layers of a pod could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("failed to remove its volumes")]
pub(super) struct RemoveError(#[source] io::Error);

impl Volumes {
    pub(super) fn new(paths: Paths, storage: Storage) -> Volumes {
        Volumes { paths, storage, host_paths: HostPaths::default(), locks: RefCell::default() }
    }

    /// Sets up the volumes of a pod whose sandbox is being made. `lock` is the request for the lock of its
    /// PersistentVolumes, whose block devices are added to `claims`.
    ///
    /// # Errors
    /// The first volume that could not be set up.
    pub(super) async fn set_up(
        &self,
        tasks: &Tasks,
        (pod, wanted): (PodIndex, &Wanted),
        claims: &mut [ClaimedVolume],
        lock: impl FnOnce() -> Result<LockRequest, VolumeFailure>,
    ) -> Result<volume::Volumes, VolumeFailure> {
        let failed = |error: &(dyn Error + 'static)| VolumeFailure::new(SandboxFailure::Mount, error);
        let mut request = volume::Request::new(&wanted.pod, &self.paths, claims);
        if request.has_host_paths() {
            // The lock of an attempt that failed.
            self.locks.borrow_mut().remove(&pod);
            if !claims.is_empty() {
                request = request.locked(lock()?);
            }
            let checked = self.host_paths.check(tasks, &wanted.pod.uid, &request).await;
            let (devices, lock) = checked.map_err(|error| failed(&error))?;
            self.locks.borrow_mut().extend(lock.map(|lock| (pod, lock)));
            for (name, device) in devices {
                let of_volume = claims.iter_mut().filter(|claim| claim.volume == name);
                of_volume.for_each(|claim| claim.device = Some(device));
            }
            request = volume::Request::new(&wanted.pod, &self.paths, claims);
        }
        // A link in its place must not lead the volumes out of the directory of all pods.
        let own = self.paths.pod(&wanted.pod.uid.0);
        let made = self.storage.run(move || nodlet_kernel::own_file::make_directory(&own)).await;
        made.map_err(|error| failed(&error))?;
        // No container of the pod runs: existing writable layers are of an earlier sandbox.
        let layers = container_config::run_files::runs_directory(&self.paths, &wanted.pod.uid.0);
        remove_tree(&self.storage, layers.clone()).await.map_err(|error| {
            let message = format!("failed to remove {}: {error}", layers.display());
            VolumeFailure { reason: SandboxFailure::Mount, message }
        })?;
        let set_up = self.storage.run(move || volume::set_up(&request)).await;
        set_up.map_err(|error| failed(&error))
    }

    /// Takes over the lock of the PersistentVolumes of a pod of an earlier agent.
    pub(super) fn adopt_lock(&self, pod: PodIndex, uid: &str) {
        match VolumeLock::adopt(&self.paths, uid) {
            Ok(lock) => self.locks.borrow_mut().extend(lock.map(|lock| (pod, lock))),
            Err(error) => log::error!("failed to lock the volumes of {uid}: {error}"),
        }
    }

    /// Releases the lock of the PersistentVolumes of a pod without a sandbox.
    pub(super) fn release_lock(&self, pod: PodIndex) {
        let lock = self.locks.borrow_mut().remove(&pod);
        if let Some(Err(error)) = lock.map(VolumeLock::release) {
            log::warn!("failed to remove the lock of the volumes of a pod: {error}");
        }
    }

    /// Writes the files of all volumes of a pod, where they have changed. A volume that cannot be written keeps no other
    /// one back.
    ///
    /// # Errors
    /// The first volume that could not be written.
    pub(super) async fn write_files(
        &self,
        wanted: &Wanted,
        objects: ConfigObjects,
        allocatable: &Amounts,
    ) -> Result<(), VolumeFailure> {
        let pod = &wanted.pod;
        let request = volume::Request::new(pod, &self.paths, &[]);
        let limit = nodlet_host::cgroup::memory_of(pod).filter(|limit| *limit > 0);
        let mut room = volume_files::Room::new(limit);
        let (mut missing, mut failed) = (None, None);
        for (name, projection) in pod.spec.projections() {
            let files = match volume_files::of(pod, projection, &objects, allocatable, &mut room) {
                Ok(files) => files,
                Err(cause) => {
                    missing.get_or_insert(volume::set_up_failed(name, &cause));
                    continue;
                }
            };
            let (request, name) = (request.clone(), name.to_owned());
            let written = self.storage.run(move || volume::write_projected(&request, &name, &files));
            if let Err(error) = written.await {
                failed.get_or_insert_with(|| causes(&error));
            }
        }
        let (reason, message) = match (failed, missing) {
            (Some(message), _) => (SandboxFailure::Mount, message),
            (None, Some(message)) => (SandboxFailure::ObjectNotFound, message),
            (None, None) => return Ok(()),
        };
        Err(VolumeFailure { reason, message })
    }

    /// Removes the volumes and writable layers of a pod, and its logs if `logs` is set.
    ///
    /// # Errors
    /// A file could not be removed.
    pub(super) fn remove(
        &self,
        wanted: &Wanted,
        logs: bool,
    ) -> impl Future<Output = Result<(), RemoveError>> + use<> {
        let (paths, pod) = (self.paths.clone(), &wanted.pod);
        let removed = remove_tree(&self.storage, paths.pod(&pod.uid.0));
        let (namespace, name, uid) = (pod.namespace.to_string(), pod.name.to_string(), pod.uid.0.to_string());
        let logs =
            logs.then(|| self.storage.run(move || log_files::remove_pod(&paths, &namespace, &name, &uid)));
        async move {
            removed.await.map_err(RemoveError)?;
            match logs {
                Some(logs) => logs.await.map_err(RemoveError),
                None => Ok(()),
            }
        }
    }

    /// Measures the bytes of memory that the files of volumes have which nodlet writes for a pod. They are on tmpfs and
    /// belong to no cgroup of the pod, since its containers did not write them.
    pub(super) async fn memory_of_files(&self, wanted: &Wanted) -> u64 {
        let directory = volume::written_files(&self.paths, &wanted.pod.uid.0);
        let mut measurement = Measurement::new([(0, directory)], 1, Unit::Bytes);
        self.storage.run_in_parts(move || measurement.part()).await.into_iter().sum()
    }

    /// The directories of the volumes that are measured, each with the place of its volume in the spec.
    fn measured(&self, wanted: &Wanted, scope: StorageScope) -> impl Iterator<Item = (usize, PathBuf)> {
        let directory = self.paths.pod(&wanted.pod.uid.0);
        let volumes = wanted.pod.spec.volumes.iter().enumerate();
        let volumes = volumes.filter(move |(_, volume)| scope.has_volume(&volume.source));
        volumes.map(move |(place, volume)| (place, volume::empty_dir_path(&directory, &volume.name)))
    }

    /// The directories of the volumes of a pod that may be measured by a project quota. Where root of a container is root
    /// of the host, it can give its files to another project.
    pub(super) fn with_quota(&self, wanted: &Wanted) -> impl Iterator<Item = PathBuf> {
        let has_quota = may_have_quota(wanted);
        let measured = self.measured(wanted, StorageScope::Pod).filter(move |_| has_quota);
        measured.map(|(_, directory)| directory)
    }

    /// Measures the local storage that a pod uses: the bytes or the inodes of each container, with its writable layer and
    /// its logs, and those of each volume. What is not in the scope counts as 0. Files that all containers can write count
    /// after the volumes.
    pub(super) async fn measure(&self, wanted: &Wanted, scope: StorageScope, unit: Unit) -> StorageUsage {
        let (pod, paths) = (&wanted.pod, &self.paths);
        let uid = &pod.uid.0;
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
        let measured = if may_have_quota(wanted) { &mut projects } else { &mut directories };
        measured.extend(self.measured(wanted, scope).map(|(place, path)| (count + place, path)));
        let mut measurement = Measurement::new(directories, count + pod.spec.volumes.len(), unit);
        for (place, directory) in projects {
            measurement.add_project(place, directory);
        }
        let written = (scope == StorageScope::Pod && unit == Unit::Bytes).then_some(directory);
        let used = self.storage.run_in_parts(move || {
            let mut used = measurement.part()?;
            used.extend(written.iter().map(|directory| PodFiles::usage(directory)));
            Some(used)
        });
        let mut containers = used.await;
        let volumes = containers.split_off(count);
        StorageUsage { containers, volumes }
    }
}

/// The reason why the host paths of a pod are not acceptable.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostPathError {
    #[error("MountVolume.SetUp failed: a hostPath did not respond: its file server may be unreachable")]
    NoAnswer,
    #[error("MountVolume.SetUp failed: no thread to look at a hostPath")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Volume(volume::SetUpError),
}

/// The pods whose host paths have not answered yet.
#[derive(Default)]
struct HostPaths(Rc<RefCell<SortedSet<Uid>>>);

impl HostPaths {
    /// Checks the host paths that a pod names. Returns the block devices among them, and the lock of its PersistentVolumes.
    ///
    /// # Errors
    /// A path is not of the type that the pod requests, or does not answer.
    async fn check(
        &self,
        tasks: &Tasks,
        uid: &Uid,
        request: &volume::Request,
    ) -> Result<(volume::BlockDevices, Option<volume::VolumeLock>), HostPathError> {
        if self.0.borrow().contains(uid) {
            return Err(HostPathError::NoAnswer);
        }
        let ((check, checked), (done, answer)) = (async_channel::bounded(1), async_channel::bounded(1));
        let request = request.clone();
        let thread = std::thread::Builder::new().name("host-paths".into()).stack_size(STACK);
        let begun = thread.spawn(move || {
            let _ = check.try_send(volume::check_host_paths(&request));
        });
        begun.map_err(HostPathError::Thread)?;
        self.0.borrow_mut().insert(uid.clone());
        let (silent_pods, uid) = (self.0.clone(), uid.clone());
        tasks.spawn(async move {
            let checked = checked.recv().await;
            silent_pods.borrow_mut().remove(&uid);
            // After a timeout nobody waits for the result.
            let _ = checked.map(|checked| done.try_send(checked));
        });
        match within(WITHIN, answer.recv()).await {
            Some(Ok(checked)) => checked.map_err(HostPathError::Volume),
            Some(Err(_)) | None => Err(HostPathError::NoAnswer),
        }
    }
}

fn may_have_quota(wanted: &Wanted) -> bool {
    !wanted.pod.spec.host_users
}
