//! Volumes of a pod: set up before its sandbox, kept through every restart, and removed when the pod is gone
//! for good. One file for each kind.
//!
//! Paths come from manifests, which are untrusted: removing never follows a link.

mod empty_dir;
mod host_path;
mod lock;
mod ownership;
mod projected;
pub mod quota;
mod remove;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::launch::MountSource;
use crate::paths::Paths;
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::volume::{
    ClaimedVolume, HostPathType, MountPropagation, ProjectionKind, VOLUME_IN_USE,
};
use nodlet_core::spec::{Pod, VolumeSource};

pub use empty_dir::{memory_volumes, path as empty_dir_path};
pub use lock::{LockRequest, VolumeLock};
pub use projected::{ProjectedFile, ProjectedFiles};

/// The directory of the volumes whose files the agent writes, in that of their pod on tmpfs.
const WRITTEN: &str = "volumes";

/// The sources of mounts for the containers of a pod, by the name of the volume.
pub type Volumes = SortedMap<String, MountSource>;

/// The devices of volumes of the mode `Block`: the name of each volume, and its major and minor number.
pub type BlockDevices = Vec<(String, (u32, u32))>;

/// The input for setting up a pod's volumes, as plain values, because that is done on the storage thread.
#[derive(Clone, Debug)]
pub struct Request {
    directory: PathBuf,
    /// The pod's directory on tmpfs.
    pod_files: PathBuf,
    fs_group: Option<u32>,
    fs_group_always: bool,
    volumes: Vec<(String, Kind)>,
    /// The names of the volumes that are PersistentVolumes, and of those that no other pod may use.
    claimed: Vec<String>,
    exclusive: Vec<String>,
    lock: Option<LockRequest>,
}

#[derive(Clone, Debug)]
enum Kind {
    EmptyDir {
        /// Whether a project quota measures it, where the file system has quotas.
        is_accounted: bool,
        /// Whether mounts in it reach other containers, or theirs reach it (`mountPropagation`).
        is_shared: bool,
    },
    Memory,
    HostPath {
        path: PathBuf,
        kind: HostPathType,
    },
    /// A PersistentVolume of the source `local`, with its name.
    Local {
        path: PathBuf,
        persistent_volume: String,
        is_read_only: bool,
    },
    /// A PersistentVolume of the mode `Block`, with its name, and its device once that was found.
    Block {
        path: PathBuf,
        persistent_volume: String,
        device: Option<(u32, u32)>,
    },
    Projected {
        plugin: &'static str,
    },
}

/// The characters of a path in a volume that an error shows.
const PATH_SHOWN: usize = 512;

/// Why a volume could not be set up: the text of the event `FailedMount`.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The path is of another type than `hostPath.type` requires.
    #[error("hostPath type check failed: {path} is not {wanted}")]
    HostPathType {
        /// `hostPath.path`.
        path: PathBuf,
        /// The required type, in the kubelet's words.
        wanted: &'static str,
    },
    /// The files of a volume could not be given to the pod's `fsGroup`.
    #[error("give {} to fsGroup", shortened(.path))]
    Group {
        /// The file, or the root of the volume.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another pod uses the PersistentVolume, and one of the two needs it alone.
    #[error("{VOLUME_IN_USE}")]
    InUse,
    /// The PersistentVolume could not be locked.
    #[error("lock the volume")]
    Lock {
        /// The cause.
        source: io::Error,
    },
    /// The path of a local PersistentVolume does not exist.
    #[error("path {:?} does not exist", .path.display().to_string())]
    Missing {
        /// `local.path`.
        path: PathBuf,
    },
    /// The directory of an emptyDir, or the path that hostPath should create, could not be created.
    #[error("create {path}")]
    Create {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A path in quotes, cut after [`PATH_SHOWN`] characters: a container chooses the names, which may be as long as the list
/// of files that wait.
fn shortened(path: &Path) -> String {
    let path = path.display().to_string();
    match path.char_indices().nth(PATH_SHOWN) {
        Some((end, _)) => format!("{:?}…", &path[..end]),
        None => format!("{path:?}"),
    }
}

/// A volume that could not be set up: the event `FailedMount`, in the kubelet's words.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// The volume could not be created, or its path is not acceptable.
    #[error("{}", set_up_of(.volume))]
    Volume {
        /// The name of the volume, or of its PersistentVolume.
        volume: String,
        /// The cause.
        source: VolumeError,
    },
    /// The files of the volume could not be written.
    #[error("{}", set_up_of(.volume))]
    Write {
        /// The name of the volume.
        volume: String,
        /// The cause.
        source: io::Error,
    },
}

impl Request {
    /// The request for the volumes of `pod`, with the PersistentVolumes behind its claims. A volume whose claim is not
    /// among `claimed` is left out.
    pub fn new(pod: &Pod, paths: &Paths, claimed: &[ClaimedVolume]) -> Request {
        let volumes = pod.spec.volumes.iter().filter_map(|volume| {
            let kind = match &volume.source {
                // The start of a container mounts it.
                VolumeSource::Image { .. } => return None,
                VolumeSource::Claim { read_only, .. } => {
                    of_claim(claimed.iter().find(|claimed| claimed.volume == volume.name)?, *read_only)
                }
                VolumeSource::EmptyDir { memory: false, size_limit } => Kind::EmptyDir {
                    is_accounted: size_limit.is_some() && !pod.spec.host_users,
                    is_shared: propagates(pod, &volume.name),
                },
                VolumeSource::EmptyDir { memory: true, .. } | VolumeSource::HugePages { .. } => Kind::Memory,
                VolumeSource::HostPath { path, kind } => Kind::HostPath { path: path.into(), kind: *kind },
                VolumeSource::Projected(projection) => Kind::Projected { plugin: plugin(projection.kind) },
            };
            Some((volume.name.clone(), kind))
        });
        Request {
            directory: paths.pod(&pod.uid.0),
            pod_files: paths.run_pod(&pod.uid.0),
            fs_group: pod.spec.security_context.fs_group,
            fs_group_always: pod.spec.security_context.fs_group_always,
            volumes: volumes.collect(),
            exclusive: claimed.iter().filter(|one| one.is_exclusive).map(|one| one.volume.clone()).collect(),
            claimed: claimed.iter().map(|one| one.volume.clone()).collect(),
            lock: None,
        }
    }

    /// The same request, of which [`check_host_paths`] locks the PersistentVolumes.
    #[must_use]
    pub fn locked(self, lock: LockRequest) -> Request {
        Request { lock: Some(lock), ..self }
    }

    /// Locks the PersistentVolumes, if the request has a lock.
    fn take_lock(&self) -> Result<Option<VolumeLock>, SetUpError> {
        let Some(lock) = &self.lock else { return Ok(None) };
        let volumes = self.volumes.iter().filter(|(name, _)| self.claimed.contains(name));
        let volumes = volumes.filter_map(|(name, kind)| match kind {
            Kind::HostPath { path, .. } | Kind::Local { path, .. } | Kind::Block { path, .. } => {
                Some(lock::Volume { name, path, is_exclusive: self.exclusive.contains(name) })
            }
            Kind::EmptyDir { .. } | Kind::Memory | Kind::Projected { .. } => None,
        });
        let taken = lock.take(&volumes.collect::<Vec<_>>());
        taken.map(Some).map_err(|error| match error {
            lock::LockError::InUse(name) => failed(&name, VolumeError::InUse),
            lock::LockError::Failed(name, source) => failed(&name, VolumeError::Lock { source }),
        })
    }

    /// Whether a volume is a path of the machine.
    pub fn has_host_paths(&self) -> bool {
        self.volumes
            .iter()
            .any(|(_, kind)| matches!(kind, Kind::HostPath { .. } | Kind::Local { .. } | Kind::Block { .. }))
    }

    fn empty_dir(&self, name: &str) -> PathBuf {
        empty_dir::path(&self.directory, name)
    }

    fn projected(&self, plugin: &str, name: &str) -> PathBuf {
        self.pod_files.join(projected_place(plugin, name))
    }
}

/// Whether a container mounts the volume with `mountPropagation`.
fn propagates(pod: &Pod, volume: &str) -> bool {
    let mut mounts = pod.spec.all_containers().flat_map(|container| &container.volume_mounts);
    mounts.any(|mount| mount.name == volume && mount.propagation != MountPropagation::None)
}

fn of_claim(claimed: &ClaimedVolume, is_read_only: bool) -> Kind {
    let path = PathBuf::from(&claimed.path);
    let persistent_volume = claimed.persistent_volume.clone();
    match claimed.host_path {
        _ if claimed.is_block => Kind::Block { path, persistent_volume, device: claimed.device },
        Some(kind) => Kind::HostPath { path, kind },
        None => Kind::Local { path, persistent_volume, is_read_only },
    }
}

/// The directory of all volumes of a pod whose files the agent writes. It is on tmpfs.
pub fn written_files(paths: &Paths, uid: &str) -> PathBuf {
    paths.run_pod(uid).join(WRITTEN)
}

/// The directory of a volume whose files the agent writes, in that of its pod on tmpfs.
fn projected_place(plugin: &str, name: &str) -> PathBuf {
    Path::new(WRITTEN).join(plugin).join(name)
}

/// The name of a volume's directory in that of its pod, from the name of the kubelet's plugin.
fn plugin(kind: ProjectionKind) -> &'static str {
    match kind {
        ProjectionKind::ConfigMap => "kubernetes.io~configmap",
        ProjectionKind::Secret => "kubernetes.io~secret",
        ProjectionKind::DownwardApi => "kubernetes.io~downward-api",
        ProjectionKind::Projected => "kubernetes.io~projected",
    }
}

/// Writes the files of a volume of [`VolumeSource::Projected`], unless it shows them already. Returns whether it changed.
///
/// # Errors
/// The files could not be written: the volume shows what it showed before.
pub fn write_projected(request: &Request, volume: &str, files: &ProjectedFiles) -> Result<bool, SetUpError> {
    let plugin = request.volumes.iter().find_map(|(name, kind)| match kind {
        Kind::Projected { plugin } if name == volume => Some(*plugin),
        Kind::Projected { .. } | Kind::EmptyDir { .. } | Kind::Memory => None,
        Kind::HostPath { .. } | Kind::Local { .. } | Kind::Block { .. } => None,
    });
    let place = projected_place(plugin.unwrap_or_default(), volume);
    // The time is for people: a clock that was set back must not make a name that was used before.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let time = crate::clock::timestamp().nanos().to_string();
    let name = format!(
        "..{}{}",
        time.trim_end_matches('Z').replace(['-', ':', 'T'], "_"),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    std::fs::create_dir_all(&request.pod_files)
        .and_then(|()| projected::write(&request.pod_files, &place, files, &name, request.fs_group))
        .map_err(|source| SetUpError::Write { volume: volume.to_owned(), source })
}

/// The text of the event `FailedMount` about a volume.
pub fn set_up_failed(volume: &str, cause: &str) -> String {
    format!("{}: {cause}", set_up_of(volume))
}

/// The beginning of [`set_up_failed`], with the space of the kubelet before the colon.
fn set_up_of(volume: &str) -> String {
    format!("MountVolume.SetUp failed for volume \"{volume}\" ")
}

/// Sets up every volume except those of [`check_host_paths`]; existing ones are not changed.
///
/// # Errors
/// The first volume that could not be set up.
pub fn set_up(request: &Request) -> Result<Volumes, SetUpError> {
    for (name, kind) in &request.volumes {
        let made = match kind {
            Kind::EmptyDir { is_accounted, is_shared } => {
                let directory = request.empty_dir(name);
                let made = empty_dir::set_up(&directory, request.fs_group, *is_shared);
                if *is_accounted {
                    quota::account(&directory);
                }
                made
            }
            Kind::Memory
            | Kind::HostPath { .. }
            | Kind::Local { .. }
            | Kind::Block { .. }
            | Kind::Projected { .. } => Ok(()),
        };
        made.map_err(|error| failed(name, error))?;
    }
    Ok(known(request))
}

/// Checks the type of every hostPath, and creates it if requested. May hang if a path is on a server that
/// does not answer, so it must run where nothing else waits.
///
/// Returns the names of volumes of the mode `Block`, with major and minor number of their devices, and the lock of the
/// PersistentVolumes.
///
/// # Errors
/// The first volume that could not be set up.
pub fn check_host_paths(request: &Request) -> Result<(BlockDevices, Option<VolumeLock>), SetUpError> {
    let mut devices = BlockDevices::new();
    for (name, kind) in &request.volumes {
        match kind {
            Kind::HostPath { path, kind } => {
                host_path::check(path, *kind).map_err(|error| failed(name, error))?;
            }
            Kind::Local { path, persistent_volume, .. } => {
                host_path::check_local(path, None).map_err(|error| failed(persistent_volume, error))?;
            }
            Kind::Block { path, persistent_volume, .. } => {
                let device = host_path::block_device(path);
                devices.push((name.clone(), device.map_err(|error| failed(persistent_volume, error))?));
            }
            Kind::EmptyDir { .. } | Kind::Memory | Kind::Projected { .. } => {}
        }
    }
    let lock = request.take_lock()?;
    // Only now: the files may belong to another pod's group.
    for (_, kind) in &request.volumes {
        if let Kind::Local { path, persistent_volume, is_read_only: false } = kind
            && let Some(group) = request.fs_group
        {
            let group = Some((group, request.fs_group_always));
            host_path::check_local(path, group).map_err(|error| failed(persistent_volume, error))?;
        }
    }
    Ok((devices, lock))
}

fn failed(volume: &str, source: VolumeError) -> SetUpError {
    SetUpError::Volume { volume: volume.to_owned(), source }
}

/// The volumes of a pod that an earlier agent has set up.
pub fn known(request: &Request) -> Volumes {
    let source = |(name, kind): &(String, Kind)| {
        let source = match kind {
            Kind::EmptyDir { .. } => MountSource::Host(request.empty_dir(name)),
            Kind::Memory => MountSource::Memory(name.clone()),
            Kind::HostPath { path, .. } | Kind::Local { path, .. } => MountSource::Host(path.clone()),
            Kind::Block { device, .. } => {
                let (major, minor) = device.unwrap_or_default();
                MountSource::Device { major, minor }
            }
            Kind::Projected { plugin } => MountSource::Projected(request.projected(plugin, name)),
        };
        (name.clone(), source)
    };
    request.volumes.iter().map(source).collect()
}

/// Removes a pod's directory with all files that its containers left there. Can be interrupted and repeated.
///
/// # Errors
/// A file or directory could not be removed.
pub fn tear_down(directory: &Path) -> io::Result<()> {
    remove::tree(directory)
}

pub use remove::Removal;

/// Removes `name` in a directory, like [`tear_down`]. Because another process may keep creating files there,
/// at most `most` of them are removed.
///
/// # Errors
/// A file or directory could not be removed, or there are more than `most` (`EBUSY`).
pub(crate) fn remove_in(directory: &impl std::os::fd::AsFd, name: &OsStr, most: usize) -> io::Result<()> {
    remove::in_directory(directory, name, most)
}

#[cfg(test)]
mod tests;
