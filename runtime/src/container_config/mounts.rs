//! The mounts and block devices of a container: its volumes, and the agent's files that no volume covers.

use std::path::{Component, Path, PathBuf};

use super::environment::{self, Variables};
use super::{Facts, config_error};
use crate::pod_files;
use nodlet_core::facts::StartFailure;
use nodlet_core::spec::volume::{MountPropagation, VolumeDevice, VolumeMount};
use nodlet_core::spec::{Container, Pod, VolumeSource};
use nodlet_host::launch::{DeviceNode, MountConfig, MountSource, Propagation};
use nodlet_host::paths::Paths;
use nodlet_host::volume::Volumes;

/// Returns the mounts of a container: volumes, and the agent's files that no volume covers.
pub(super) fn mounts(
    pod: &Pod,
    container: &Container,
    paths: &Paths,
    facts: &Facts<'_>,
    variables: &Variables,
) -> Result<Vec<MountConfig>, StartFailure> {
    let mut mounts = Vec::new();
    for mount in &container.volume_mounts {
        if let Some(MountSource::Device { .. }) = facts.volumes.get(&mount.name) {
            let message = "has volumeMode Block, but is specified in volumeMounts";
            return Err(config_error(format!("volume {} {message}", mount.name)));
        }
        let image = facts.image_volumes.iter().position(|(name, _)| *name == mount.name);
        let source = image.map(MountSource::Image).or_else(|| facts.volumes.get(&mount.name).cloned());
        let (volume, name) = (&mount.name, &container.name);
        let missing = || format!("cannot find volume \"{volume}\" to mount into container \"{name}\"");
        let source = source.ok_or_else(|| config_error(missing()))?;
        // Files that the agent writes are read-only for containers, as under a kubelet.
        let is_projected = pod.spec.projections().any(|(name, _)| name == mount.name);
        mounts.push(MountConfig {
            source,
            sub_path: sub_path(mount, variables)?,
            sub_path_shown: mount
                .sub_path_expr
                .as_deref()
                .filter(|text| variables.hides(text))
                .map(Box::from),
            destination: absolute(&mount.mount_path),
            recursive_read_only: mount.recursive_read_only,
            read_only: mount.read_only || is_projected || image.is_some() || is_read_only(pod, &mount.name),
            propagation: match mount.propagation {
                // A mount in there would hide the files from the agent.
                _ if is_projected => Propagation::Private,
                MountPropagation::None => Propagation::Private,
                MountPropagation::HostToContainer => Propagation::Slave,
                MountPropagation::Bidirectional => Propagation::Shared,
            },
        });
    }
    let directory = paths.pod(&pod.uid.0);
    for (file, destination) in [
        (pod_files::ETC_HOSTS, "/etc/hosts"),
        (pod_files::ETC_RESOLV_CONF, "/etc/resolv.conf"),
        (pod_files::ETC_HOSTNAME, "/etc/hostname"),
    ] {
        if !mounts.iter().any(|mount| mount.destination == Path::new(destination)) {
            mounts.push(MountConfig {
                source: MountSource::Host(directory.join(file)),
                sub_path: None,
                sub_path_shown: None,
                destination: destination.into(),
                recursive_read_only: false,
                // The kubelet makes the first of them and leaves it writable; containerd makes the others.
                read_only: file != pod_files::ETC_HOSTS
                    && container.security_context.read_only_root_filesystem,
                propagation: Propagation::Private,
            });
        }
    }
    // A mount below another one comes after it.
    mounts.sort_by(|a, b| a.destination.cmp(&b.destination));
    Ok(mounts)
}

/// Returns the nodes of the block devices of a container (`volumeDevices`).
///
/// # Errors
/// A volume has files.
pub(crate) fn block_devices(
    pod: &Pod,
    container: &Container,
    volumes: &Volumes,
) -> Result<Vec<DeviceNode>, StartFailure> {
    let device = |device: &VolumeDevice| match volumes.get(&device.name) {
        Some(MountSource::Device { major, minor }) => Ok(DeviceNode {
            path: absolute(&device.path),
            block: true,
            major: *major,
            minor: *minor,
            readable: true,
            writable: !is_read_only(pod, &device.name),
            mode: Some(0o660),
            uid: None,
            gid: None,
        }),
        Some(_) | None => Err(config_error(format!(
            "volume {} has volumeMode Filesystem, but is specified in volumeDevices",
            device.name
        ))),
    };
    container.volume_devices.iter().map(device).collect()
}

/// Whether the pod uses the claim of a volume for reading only.
pub(crate) fn is_read_only(pod: &Pod, volume: &str) -> bool {
    let is_read_only = |source: &VolumeSource| matches!(source, VolumeSource::Claim { read_only: true, .. });
    pod.spec.volumes.iter().any(|one| one.name == volume && is_read_only(&one.source))
}

/// Checks that no volume covers a device, or would get its node.
pub(super) fn check_devices(devices: &[DeviceNode], mounts: &[MountConfig]) -> Result<(), StartFailure> {
    for DeviceNode { path, .. } in devices {
        let covers = |mount: &&MountConfig| {
            path.starts_with(&mount.destination) || mount.destination.starts_with(path)
        };
        if let Some(mount) = mounts.iter().find(covers) {
            return Err(config_error(format!(
                "the volume mounted at {} covers the device at {}",
                mount.destination.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

/// Returns `subPath`, or `subPathExpr` with its variables expanded (kubelet: `ExpandContainerVolumeMounts`).
fn sub_path(mount: &VolumeMount, variables: &Variables) -> Result<Option<PathBuf>, StartFailure> {
    let Some(expression) = &mount.sub_path_expr else {
        return Ok(mount.sub_path.as_ref().filter(|path| !path.is_empty()).map(PathBuf::from));
    };
    let path = environment::expand_path(expression, variables)?;
    let shown = if variables.hides(expression) { expression } else { &path };
    let wrong = |why: &str| Err(config_error(format!("unable to provision SubPath `{shown}`: {why}")));
    if path.starts_with('/') {
        return Err(config_error(format!("error SubPath `{shown}` must not be an absolute path")));
    }
    if path.split('/').any(|component| component == "..") {
        return wrong("must not contain '..'");
    }
    if path.len() >= PATH_MAX {
        return wrong("it is longer than any path");
    }
    Ok(Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty()))
}

/// Maximum size of a path in bytes, including the final NUL.
const PATH_MAX: usize = 4096;

/// Normalizes a path without following links: absolute, without `.` and `..`.
pub(super) fn absolute(path: &str) -> PathBuf {
    let mut absolute = PathBuf::from("/");
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => absolute.push(name),
            Component::ParentDir => drop(absolute.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    absolute
}
