//! `emptyDir`: a directory on disk, or a tmpfs or hugetlbfs that the supervisor holds.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use crate::launch::MemoryVolume;
use crate::mounts::mount_of;
use nodlet_core::spec::{Pod, Quantity, VolumeSource};

use super::VolumeError;

/// The directory of an emptyDir on disk, in that of its pod.
pub fn path(pod: &Path, name: &str) -> PathBuf {
    pod.join("volumes/kubernetes.io~empty-dir").join(name)
}

/// Makes the directory, world-writable as in Kubernetes, and owned by the pod's `fsGroup` if there is one. If it
/// `is_shared`, mounts in it reach all containers that mount it with `mountPropagation`.
pub(super) fn set_up(path: &Path, fs_group: Option<u32>, is_shared: bool) -> Result<(), VolumeError> {
    make(path, fs_group)?;
    if is_shared {
        share(path).map_err(|source| VolumeError::Create { path: path.to_owned(), source })
    } else {
        Ok(())
    }
}

/// Mounts the directory upon itself as a shared mount, unless it is in one. A kubelet does the same with the directory of
/// all pods, at each start. The mount is removed with the directory.
fn share(path: &Path) -> io::Result<()> {
    let directory = fs::File::open(path)?;
    if mount_of(&directory)?.is_none_or(|mount| mount.is_shared) {
        return Ok(());
    }
    let none = None::<&str>;
    mount(Some(path), path, none, MsFlags::MS_BIND, none)?;
    Ok(mount(none, path, none, MsFlags::MS_SHARED, none)?)
}

fn make(path: &Path, fs_group: Option<u32>) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Create { path: path.to_owned(), source };
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
    }
    // Created under another name and then renamed: an existing directory always has the right owner and mode.
    let new = path.with_extension("new");
    match fs::create_dir(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    let mode = if let Some(group) = fs_group {
        std::os::unix::fs::chown(&new, None, Some(group)).map_err(failed)?;
        0o2777
    } else {
        0o777
    };
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

/// The pod's volumes on tmpfs and hugetlbfs. The size of a tmpfs is the smallest of `sizeLimit`, the pod's memory limit,
/// which exists only if every container has one, and `of_all_pods`, the memory limit of all pods together in bytes
/// (kubelet: `calculateEmptyDirMemorySize`).
pub fn memory_volumes(pod: &Pod, of_all_pods: Option<u64>) -> Vec<MemoryVolume> {
    let pod_limit = crate::cgroup::memory_of(pod).filter(|limit| *limit > 0);
    let bytes = |size: &Quantity| {
        Some(size.value()).and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0)
    };
    let volumes = pod.spec.volumes.iter().filter_map(|volume| {
        let (size, page_size) = match &volume.source {
            VolumeSource::EmptyDir { memory: true, size_limit } => {
                let limits = size_limit.as_ref().and_then(bytes).into_iter().chain(pod_limit);
                (limits.chain(of_all_pods).min(), None)
            }
            VolumeSource::HugePages { page_size, size_limit } => {
                let containers = pod.spec.admitted_containers().map(|container| &container.resources);
                let mut all = containers.chain(pod.spec.resources.as_deref());
                let requested = all.find_map(|resources| Some(&*resources.huge_pages.first()?.0));
                let page_size = if page_size.is_empty() { requested? } else { page_size };
                (size_limit.as_ref().and_then(bytes), Some(bytes(&Quantity::parse(page_size).ok()?)?))
            }
            VolumeSource::EmptyDir { memory: false, .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Claim { .. }
            | VolumeSource::Image { .. }
            | VolumeSource::Projected(_) => return None,
        };
        let fs_group = pod.spec.security_context.fs_group;
        Some(MemoryVolume { name: volume.name.clone(), size, fs_group, page_size })
    });
    volumes.collect()
}
