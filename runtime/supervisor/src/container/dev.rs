//! The container's /dev: what libcontainer makes there, and the devices that a container has besides.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nodlet_host::launch::{ContainerConfig, DeviceNode};

use crate::device;
use crate::error::StepError;
use crate::user::User;

/// The directory of a container's devices.
pub(crate) const DEV: &str = "/dev";

/// Links that libcontainer makes in a container's /dev.
pub(crate) const LINKS: &[&str] =
    &["/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/ptmx", "/dev/kcore"];

/// Devices that libcontainer makes in every container's /dev, and mounts in it.
pub(crate) const OWN: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/pts",
    "/dev/mqueue",
];

/// Upper bound of the host devices that a privileged container gets, for a /dev full of them.
const MAX_DEVICES: usize = 1024;

/// The error of the container's own directory `path`, for `map_err`.
pub(super) fn failed_at(path: &'static str) -> impl FnOnce(io::Error) -> StepError {
    move |source| StepError::new(format!("make the container's own {path}"), source)
}

/// The devices of a container besides those that every container has.
pub(crate) struct Devices {
    pub(crate) paths: Vec<PathBuf>,
    /// Those of them that libcontainer makes.
    pub(crate) nodes: Vec<DeviceNode>,
}

/// Finds the devices of a container. In a user namespace, makes them in `dev`, because libcontainer would mount the host's
/// nodes of the same paths, which belong to nobody there.
pub(crate) fn devices(config: &ContainerConfig, dev: &File, user: &User) -> Result<Devices, StepError> {
    let first = config.first_id.unwrap_or(0);
    let has_users = config.first_id.is_some();
    let mut nodes = if config.privileged { host_devices() } else { Vec::new() };
    if has_users {
        nodes.retain(|device| !OWN.iter().any(|own| device.path == Path::new(own)));
    }
    for device in &config.devices {
        nodes.retain(|other| other.path != device.path);
        nodes.push(own_device(device, user, first));
    }
    let paths = nodes.iter().map(|device| device.path.clone()).collect();
    if has_users {
        device::make_all(dev, &std::mem::take(&mut nodes), &User::default()).map_err(failed_at(DEV))?;
    }
    Ok(Devices { paths, nodes })
}

/// A device that the container asks for. Its node belongs to the container's user unless it names an owner. `first` is
/// the ID of the host that is ID 0 of the container; an ID that the container does not have becomes its last one.
fn own_device(device: &DeviceNode, user: &User, first: u32) -> DeviceNode {
    let host = |id: u32| if first == 0 { id } else { first + id.min(0xffff) };
    DeviceNode {
        mode: Some(device.permissions()),
        uid: Some(host(device.uid.unwrap_or(user.uid))),
        gid: Some(host(device.gid.unwrap_or(user.gid))),
        ..device.clone()
    }
}

/// Device nodes of the host's /dev.
fn host_devices() -> Vec<DeviceNode> {
    let mut devices = Vec::new();
    let mut directories = vec![PathBuf::from("/dev")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else { continue };
            let kind = metadata.file_type();
            if kind.is_dir() {
                // The container has its own ones of these.
                if !["/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fd"]
                    .iter()
                    .any(|own| path == Path::new(own))
                {
                    directories.push(path);
                }
            } else if (kind.is_char_device() || kind.is_block_device())
                && devices.len() < MAX_DEVICES
                && path != Path::new("/dev/ptmx")
                && path != Path::new("/dev/console")
            {
                let number = metadata.rdev();
                devices.push(DeviceNode {
                    path,
                    block: kind.is_block_device(),
                    major: libc::major(number),
                    minor: libc::minor(number),
                    readable: true,
                    writable: true,
                    mode: Some(metadata.mode() & 0o7777),
                    uid: Some(metadata.uid()),
                    gid: Some(metadata.gid()),
                });
            }
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_belongs_to_an_id_that_its_container_has() {
        let text = r#"{"path": "/dev/led", "block": false, "major": 1, "minor": 3, "readable": true, "writable": true}"#;
        let device: DeviceNode = serde_json::from_str(text).expect("it is a device");
        let user = User { uid: 7, gid: 8, ..User::default() };
        let owner = |first: u32, uid: Option<u32>| {
            let own = own_device(&DeviceNode { uid, gid: uid, ..device.clone() }, &user, first);
            (own.uid.expect("it is set"), own.gid.expect("it is set"))
        };
        assert_eq!(owner(0, None), (7, 8));
        assert_eq!(owner(0, Some(70_000)), (70_000, 70_000));
        assert_eq!(owner(0x20_0000, None), (0x20_0007, 0x20_0008));
        assert_eq!(owner(0x20_0000, Some(65_535)), (0x20_ffff, 0x20_ffff));
        // The IDs from 65536 on belong to the next pod.
        assert_eq!(owner(0x20_0000, Some(65_536)), (0x20_ffff, 0x20_ffff));
        assert_eq!(owner(0x20_0000, Some(u32::MAX)), (0x20_ffff, 0x20_ffff));
    }
}
