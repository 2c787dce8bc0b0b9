//! A container's volumes: found on the host, copied as detached mounts before the helper leaves the host's
//! mount namespace, and attached at their places in the root.
//!
//! A container can replace every directory of a volume that it can write to, at any time and between its
//! runs. So a mount point inside a volume is opened below that volume's own mount and through no link. Links
//! of the image are followed once, before anything is attached ([`find_places`]); no container can change
//! them.
//!
//! libcontainer binds no volume, since it would resolve the paths again. Volumes that must come after its own
//! mounts and devices are attached by the container's process, before it executes its program
//! ([`LateVolume`]).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use libc::{
    MOUNT_ATTR_NODEV as NODEV, MOUNT_ATTR_NOEXEC as NOEXEC, MOUNT_ATTR_NOSUID as NOSUID,
    MOUNT_ATTR_NOSYMFOLLOW as NOSYMFOLLOW, MOUNT_ATTR_RDONLY as RDONLY,
};
use nodlet_rootfs::assemble;

use super::{StartError, within};
use crate::container::LateVolume;
use crate::container::dev::{self, DEV};
use crate::path::{make_directories, mount_point, open_sub_path, place};
use crate::sandbox::{MEMORY_VOLUMES, Namespaces, SHM};
use crate::sys::{self, MountAttributes};
use nodlet_host::launch::{ContainerConfig, MountConfig, MountSource, Propagation};
use nodlet_host::mounts::mount_of;

/// A volume, as a detached mount that is ready to be attached.
pub(super) struct Volume {
    mount: OwnedFd,
    is_directory: bool,
    /// The path in the manifest.
    destination: PathBuf,
    /// The path to which `destination` leads by the links of the image; no component of it is a link there.
    place: PathBuf,
    read_only: bool,
    /// Whether the mounts below it are read-only, too.
    recursive: bool,
    /// Whether nothing in it can be executed or opened as a device: an image.
    restricted: bool,
    /// Whether the agent writes its files.
    projected: bool,
    /// Whether mount points of other volumes are made in it although it is read-only: a volume of the agent's files, whose
    /// directory no file of the machine is in.
    makes_points: bool,
    shared: bool,
}

/// All bits of the policy about access times; without any of them, it is `relatime`.
const ACCESS_TIMES: u64 = libc::MOUNT_ATTR__ATIME;

impl Volume {
    /// The path of the volume in the container.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Sets the restrictions of the mount in the container.
    fn set_attributes(&self) -> io::Result<()> {
        let mut set = if self.read_only { RDONLY } else { 0 };
        if self.projected {
            return set_own_attributes(self.mount.as_fd(), set);
        }
        if self.restricted || self.place == Path::new("/dev/shm") {
            set |= NOSUID | NODEV | NOEXEC;
        }
        if set == 0 {
            return Ok(());
        }
        let attributes = MountAttributes { set, ..Default::default() };
        Ok(sys::set_mount_attributes(self.mount.as_fd(), &attributes, self.recursive)?)
    }

    /// Whether the volume must be attached after libcontainer has made its mounts and devices. `devices` are
    /// those devices that differ between containers.
    fn must_be_late(&self, devices: &[PathBuf]) -> bool {
        let overlaps = |node: &Path| node.starts_with(&self.place) || self.place.starts_with(node);
        self.shared
            || self.place == Path::new(DEV)
            || ["/proc", "/sys"].iter().any(|other| self.place.starts_with(other))
            || self.place.starts_with(DEV)
                && (dev::OWN.iter().map(Path::new).any(overlaps)
                    || devices.iter().map(PathBuf::as_path).any(overlaps))
    }

    fn failed(&self, source: io::Error) -> StartError {
        StartError::Volume { destination: self.destination.clone(), source }
    }
}

/// Finds all volumes of a container, including /dev/shm.
pub(super) fn resolve(config: &ContainerConfig, namespaces: &Namespaces) -> Result<Vec<Volume>, StartError> {
    let mut volumes = Vec::new();
    let of_host = |path: &Path, destination: &Path| MountConfig {
        source: MountSource::Host(path.to_owned()),
        sub_path: None,
        sub_path_shown: None,
        destination: destination.to_owned(),
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    };
    let shm = of_host(Path::new("/dev/shm"), Path::new("/dev/shm"));
    let shm_path = (!namespaces.host_ipc).then(|| Path::new(SHM));
    volumes.push(volume(&shm, shm_path, namespaces, config)?);
    for mount in &config.mounts {
        // Its users could mount and unmount on the host.
        if config.first_id.is_some() && mount.propagation == Propagation::Shared {
            let why = "with hostUsers: false, mountPropagation cannot be Bidirectional: use HostToContainer";
            let source = io::Error::other(why);
            return Err(StartError::Volume { destination: mount.destination.clone(), source });
        }
        let memory = match &mount.source {
            MountSource::Image(_) | MountSource::Device { .. } => continue,
            MountSource::Host(_) | MountSource::Projected(_) => None,
            MountSource::Memory(name) => Some(Path::new(MEMORY_VOLUMES).join(name)),
        };
        volumes.push(volume(mount, memory.as_deref(), namespaces, config)?);
    }
    if let Some(message) = &config.termination_message
        && config.mounts.iter().all(|mount| mount.destination != message.path)
    {
        let mount = of_host(&message.file, &message.path);
        volumes.push(volume(&mount, None, namespaces, config)?);
    }
    Ok(volumes)
}

fn volume(
    mount: &MountConfig,
    memory: Option<&Path>,
    pod: &Namespaces,
    config: &ContainerConfig,
) -> Result<Volume, StartError> {
    let failed = |source| StartError::Volume { destination: mount.destination.clone(), source };
    match (memory, config.first_id) {
        (Some(path), None) => within(pod.mnt.as_fd(), || copy(mount, path, None)).map_err(failed)?,
        // Its files have the IDs of the host, of which nobody but the pod knows.
        (Some(path), Some(first)) => {
            sys::set_file_owner(first).map_err(failed)?;
            let copied = within(pod.mnt.as_fd(), || copy(mount, path, None)).map_err(failed)?;
            sys::set_file_owner(0).map_err(failed)?;
            copied
        }
        (None, _) => match &mount.source {
            MountSource::Host(path) | MountSource::Projected(path) => {
                copy(mount, path, pod.user.as_ref().map(|user| user.as_fd()))
            }
            MountSource::Memory(_) | MountSource::Image(_) | MountSource::Device { .. } => {
                unreachable!("a volume in memory or of an image has a path of its own")
            }
        },
    }
}

/// Mounts the images of a container's volumes, below `scratch` in the helper's own mount namespace.
pub(super) fn images(
    config: &ContainerConfig,
    mut layers: &[BorrowedFd],
    scratch: &Path,
    volumes: &mut Vec<Volume>,
    own: &impl Fn(&Path) -> io::Result<()>,
) -> Result<(), StartError> {
    for (place, count) in config.image_volumes.iter().enumerate() {
        let (of_image, rest) = layers.split_at_checked(*count).unwrap_or((layers, &[]));
        layers = rest;
        let at = scratch.join(format!("image-{place}"));
        let [root, upper, work] = ["root", "upper", "work"].map(|name| at.join(name));
        [&root, &upper, &work].into_iter().try_for_each(fs::create_dir_all).map_err(StartError::Scratch)?;
        own(&upper).map_err(StartError::Scratch)?;
        assemble::mount_root(of_image, &upper, &work, &root, true).map_err(StartError::Image)?;
        for mount in config.mounts.iter().filter(|mount| mount.source == MountSource::Image(place)) {
            volumes.push(copy(mount, &root, None)?);
        }
    }
    Ok(())
}

/// Makes a detached copy of a mount's source, with its IDs mapped by the user namespace `users`.
fn copy(mount: &MountConfig, path: &Path, users: Option<BorrowedFd>) -> Result<Volume, StartError> {
    let failed = |source| StartError::Volume { destination: mount.destination.clone(), source };
    let mut base = sys::open_path(path).map_err(failed)?;
    if let Some(sub_path) = &mount.sub_path {
        base = open_sub_path(base.as_fd(), sub_path).map_err(|source| StartError::SubPath {
            destination: mount.destination.clone(),
            sub_path: mount.sub_path_shown.as_deref().map_or_else(|| sub_path.clone(), PathBuf::from),
            source,
        })?;
    }
    if let MountSource::Host(_) = mount.source {
        check_propagation(mount.propagation, path, base.as_fd()).map_err(failed)?;
    }
    let is_directory = base.metadata().map_err(failed)?.is_dir();
    let copy = sys::clone_mount(Some(base.as_fd()), c"", true).map_err(|error| failed(error.into()))?;
    if let Some(users) = users {
        sys::map_ids(copy.as_fd(), users, true).map_err(failed)?;
    }
    let propagation = match mount.propagation {
        Propagation::Private => Some(libc::MS_PRIVATE),
        Propagation::Slave => Some(libc::MS_SLAVE),
        // The copy stays in the host's peer group: the host sees what the container mounts there.
        Propagation::Shared => None,
    };
    if let Some(propagation) = propagation {
        // The constant has 32 bits on 32-bit ARM.
        #[allow(clippy::unnecessary_cast)]
        let propagation = propagation as u64;
        let attributes = MountAttributes { propagation, ..Default::default() };
        sys::set_mount_attributes(copy.as_fd(), &attributes, true).map_err(|error| failed(error.into()))?;
    }
    Ok(Volume {
        mount: copy,
        is_directory,
        destination: mount.destination.clone(),
        place: mount.destination.clone(),
        read_only: mount.read_only,
        recursive: mount.recursive_read_only,
        restricted: matches!(mount.source, MountSource::Image(_)),
        projected: matches!(mount.source, MountSource::Projected(_)),
        // A directory of its files is replaced with them.
        makes_points: matches!(mount.source, MountSource::Projected(_)) && mount.sub_path.is_none(),
        shared: mount.propagation == Propagation::Shared,
    })
}

/// Sets the attributes of a mount of the agent's files: its own ones, and none of the file system that holds them, which
/// systems mount `noexec`. `set` are further ones.
fn set_own_attributes(mount: BorrowedFd, set: u64) -> io::Result<()> {
    let set = set | NOSUID | NODEV;
    let own = MountAttributes { set, clear: NOEXEC | NOSYMFOLLOW | ACCESS_TIMES, ..Default::default() };
    let set = match sys::set_mount_attributes(mount, &own, false) {
        // nodlet runs in a user namespace whose mounts are locked: nothing of the volume can be executed then.
        Err(nix::Error::EPERM) => {
            sys::set_mount_attributes(mount, &MountAttributes { set, ..Default::default() }, false)
        }
        set => set,
    };
    Ok(set?)
}

/// Tries whether files in `directory` could be executed in a volume of the agent's files, whatever attributes the mount of
/// the directory has. Nothing is attached, and nothing changes.
///
/// # Errors
/// The kernel refuses it.
pub fn try_to_execute_files_of_the_agent(directory: &Path) -> io::Result<()> {
    let opened = sys::open_path(directory)?;
    let copy = sys::clone_mount(Some(opened.as_fd()), c"", false)?;
    let attributes = MountAttributes { clear: NOEXEC, ..Default::default() };
    Ok(sys::set_mount_attributes(copy.as_fd(), &attributes, false)?)
}

/// Checks the propagation: mounts reach host and container only if the host shares them (containerd:
/// `ensureShared`).
fn check_propagation(wanted: Propagation, path: &Path, opened: BorrowedFd) -> io::Result<()> {
    let kind = match wanted {
        Propagation::Private => return Ok(()),
        Propagation::Slave => "shared or slave",
        Propagation::Shared => "shared",
    };
    let Some(mount) = mount_of(&opened)? else { return Ok(()) };
    if mount.is_shared || mount.is_slave && wanted == Propagation::Slave {
        return Ok(());
    }
    let on = mount.point;
    Err(io::Error::other(format!(
        "path \"{}\" is mounted on \"{on}\" but it is not a {kind} mount; \
         `mount --make-rshared {on}` on the node makes it one",
        path.display()
    )))
}

/// Finds the places of the volumes, following the links of the image, and sorts outer volumes before inner
/// ones, as containerd does. Rejects places that a container needs for itself.
pub(super) fn find_places(volumes: &mut [Volume], root: BorrowedFd) -> Result<(), StartError> {
    for volume in volumes.iter_mut() {
        let plain = without_dots(&volume.destination);
        volume.place = if plain.starts_with(DEV) {
            // What the image has there is not in the container, whose directory of devices is its own.
            plain
        } else {
            place(root, &volume.destination).map_err(|error| {
                volume.failed(match error.raw_os_error() {
                    Some(libc::ENOTDIR) => {
                        io::Error::other("the image has a file where a directory of that path should be")
                    }
                    _ => error,
                })
            })?
        };
        let refused = |why: &str| {
            let led = if volume.place == volume.destination {
                String::new()
            } else {
                format!("a link in the image leads to {}: ", volume.place.display())
            };
            Err(volume.failed(io::Error::other(format!("{led}{why}"))))
        };
        if [Path::new("/"), Path::new("/proc")].contains(&volume.place.as_path()) {
            return refused("a container needs its own there; mount the volume elsewhere");
        }
        if dev::LINKS.iter().any(|link| volume.place.starts_with(link)) {
            return refused("a container has a link of its own there; mount the volume elsewhere");
        }
    }
    sort(volumes);
    Ok(())
}

/// An absolute path with its `.` and `..` resolved, without a look at links.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => drop(plain.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    plain
}

/// Adds the volumes of the image that stay writable in a read-only root. Each is a further mount of its directory in the
/// container's own root, which libcontainer does not make read-only: it has the content of the image, what is written there
/// goes to the container's writable layer, and both live and are counted together. A directory that is in a volume of the
/// pod, or in a file system of the kernel, is not among them.
pub(super) fn add_writable_paths(
    config: &ContainerConfig,
    root: BorrowedFd,
    volumes: &mut Vec<Volume>,
) -> Result<(), StartError> {
    for destination in &config.writable_paths {
        let failed = |source| StartError::Volume { destination: destination.clone(), source };
        let place = place(root, destination).map_err(failed)?;
        let is_covered = ["/proc", "/sys", DEV].iter().any(|own| place.starts_with(own))
            || volumes.iter().any(|volume| place.starts_with(&volume.place));
        if is_covered || place == Path::new("/") {
            continue;
        }
        let directory =
            make_directories(root, place.strip_prefix("/").unwrap_or(&place)).map_err(|error| {
                failed(match error.raw_os_error() {
                    Some(libc::ENOTDIR) => {
                        io::Error::other("the image declares a volume there, and has a file at this path")
                    }
                    _ => error,
                })
            })?;
        volumes.push(Volume {
            mount: sys::clone_mount(Some(directory.as_fd()), c"", false)
                .map_err(|error| failed(error.into()))?,
            is_directory: true,
            destination: destination.clone(),
            place,
            read_only: false,
            recursive: false,
            restricted: false,
            projected: false,
            makes_points: false,
            shared: false,
        });
    }
    sort(volumes);
    Ok(())
}

/// Sorts outer volumes before inner ones.
fn sort(volumes: &mut [Volume]) {
    volumes.sort_by_key(|volume| volume.place.components().count());
}

/// Attaches the volumes in the root, except for the late ones, which it returns. `devices` are the paths of
/// the devices that libcontainer will make besides the usual ones.
///
/// In a user namespace (`has_users`), a late volume is an error: the kernel does not lock the flags of a mount that is
/// attached in a mount namespace of the container's users, so that they could make it writable.
pub(super) fn attach(
    volumes: Vec<Volume>,
    root: BorrowedFd,
    devices: &[PathBuf],
    has_users: bool,
) -> Result<Vec<LateVolume>, StartError> {
    let mut late = vec![false; volumes.len()];
    let mut points = Vec::new();
    for (at, volume) in volumes.iter().enumerate() {
        // The innermost earlier volume that contains this one: the volumes are sorted by depth.
        let below = volumes[..at].iter().rposition(|other| volume.place.starts_with(&other.place));
        late[at] = below.is_some_and(|below| late[below]) || volume.must_be_late(devices);
        if late[at] && has_users {
            let why = "with hostUsers: false, no volume can be in /proc, in /sys or at a device; mount it elsewhere";
            return Err(volume.failed(io::Error::other(why)));
        }
        let relative = |base: &Path| volume.place.strip_prefix(base).unwrap_or(&volume.place).to_owned();
        let refused = |what: &str, there: &str| {
            let whose = if below.is_some() { "another volume" } else { "the image" };
            Err(volume.failed(io::Error::other(format!("{what}, and {whose} has a {there} there"))))
        };
        let open = |base: BorrowedFd, path: &Path| -> Result<File, StartError> {
            let point = mount_point(base, path, volume.is_directory).map_err(|error| match below {
                Some(below) if error.raw_os_error() == Some(libc::EROFS) => {
                    let above = volumes[below].destination.display();
                    let what = if volume.is_directory { "directory" } else { "file" };
                    volume.failed(io::Error::other(format!(
                        "the volume at {above}, in which it is mounted, is read-only for the container and has no such \
                         {what}; make the {what} in that volume, or mount this volume elsewhere"
                    )))
                }
                _ => volume.failed(error),
            })?;
            let metadata = point.metadata().map_err(|error| volume.failed(error))?;
            match (metadata.is_dir(), volume.is_directory) {
                (true, false) => refused("it is a file", "directory"),
                (false, true) => refused("it is a directory", "file"),
                (true, true) | (false, false) => Ok(point),
            }
        };
        let point = match below.map(|below| &volumes[below]) {
            Some(below) => Some(open(below.mount.as_fd(), &relative(&below.place))?),
            // The kernel's file systems are not mounted yet, and libcontainer makes devices itself.
            None if ["/proc", "/sys"].iter().any(|kernel| volume.place.starts_with(kernel)) => None,
            None if devices.contains(&volume.place) => None,
            None if [DEV].iter().chain(dev::OWN).any(|own| volume.place == Path::new(own)) => None,
            None => {
                let point = open(root, &relative(Path::new("/")))?;
                // libcontainer copies the mounts of the root for the container.
                (!late[at]).then_some(point)
            }
        };
        if !late[at] {
            let point = point.as_ref().expect("a volume that is not late has its mount point now");
            let set = if volume.makes_points { Ok(()) } else { volume.set_attributes() };
            set.and_then(|()| Ok(sys::attach_mount_at(&volume.mount, point)?))
                .map_err(|error| volume.failed(error))?;
        }
        points.push(point);
    }
    // Only now: mount points of other volumes were made in them.
    for (volume, _) in volumes.iter().zip(&late).filter(|(volume, late)| volume.makes_points && !**late) {
        volume.set_attributes().map_err(|error| volume.failed(error))?;
    }
    let volumes = volumes.into_iter().zip(points).zip(late);
    let late = volumes.filter(|(_, late)| *late).map(|((volume, point), _)| {
        // Only now: mount points of other volumes were made in it.
        volume.set_attributes().map_err(|error| volume.failed(error))?;
        Ok(LateVolume { mount: volume.mount, point, place: volume.place })
    });
    late.collect()
}

/// Makes the working directory if it is missing: in the volume that contains it, or in the root.
pub(super) fn make_working_directory(
    config: &ContainerConfig,
    root: BorrowedFd,
    volumes: &[Volume],
) -> io::Result<()> {
    let cwd = place(root, &config.process.cwd)?;
    let volume = volumes
        .iter()
        .filter(|volume| volume.is_directory && cwd.starts_with(&volume.place))
        .max_by_key(|volume| volume.place.components().count());
    let (base, path) = match volume {
        Some(volume) if volume.read_only => return Ok(()),
        Some(volume) => (volume.mount.as_fd(), cwd.strip_prefix(&volume.place).unwrap_or(Path::new(""))),
        // Nothing is made in a directory of the image that is covered later.
        None if ["/proc", "/sys", DEV].iter().any(|covered| cwd.starts_with(covered)) => return Ok(()),
        None => (root, cwd.strip_prefix("/").unwrap_or(&cwd)),
    };
    match make_directories(base, path) {
        // A link in a volume leads where the container wants; the kernel follows it in the container.
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => Ok(()),
        made => made.map(drop),
    }
}
