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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use nodlet_rootfs::assemble;

use super::{StartError, open_in_root, within};
use crate::sandbox::{MEMORY_VOLUMES, Namespaces, SHM};
use crate::sys::{self, MountAttributes, Resolve};
use nodlet_host::launch::{ContainerConfig, MountConfig, MountSource, Propagation};

/// The directory of a container's devices.
const DEV: &str = "/dev";

/// Links that libcontainer makes in a container's /dev.
const DEV_LINKS: &[&str] =
    &["/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/ptmx", "/dev/kcore"];

/// Devices and mounts that libcontainer makes in every container's /dev.
pub(super) const DEV_OWN: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/pts",
    "/dev/mqueue",
];

/// Upper bound of the links on one path, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

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
    shared: bool,
}

/// A volume that the container's process attaches before it executes its program.
pub(super) struct LateVolume {
    /// The detached mount.
    pub(super) mount: OwnedFd,
    /// The mount point, if it is in another late volume.
    pub(super) point: Option<File>,
    /// The path of the mount point without links, used if `point` is `None`.
    pub(super) place: PathBuf,
}

impl Volume {
    /// The path of the volume in the container.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Sets the restrictions of the mount in the container.
    fn set_attributes(&self) -> io::Result<()> {
        const RDONLY: u64 = 0x1;
        const NOSUID: u64 = 0x2;
        const NODEV: u64 = 0x4;
        const NOEXEC: u64 = 0x8;
        let mut set = if self.read_only { RDONLY } else { 0 };
        if self.restricted || self.place == Path::new("/dev/shm") {
            set |= NOSUID | NODEV | NOEXEC;
        }
        if set == 0 {
            return Ok(());
        }
        let attributes = MountAttributes { set, ..Default::default() };
        sys::set_mount_attributes(self.mount.as_fd(), &attributes, self.recursive)
    }

    /// Whether the volume must be attached after libcontainer has made its mounts and devices. `devices` are
    /// those devices that differ between containers.
    fn must_be_late(&self, devices: &[PathBuf]) -> bool {
        let is_made = |made: &Path| made.starts_with(&self.place) || self.place.starts_with(made);
        self.shared
            || self.place == Path::new(DEV)
            || ["/proc", "/sys"].iter().any(|other| self.place.starts_with(other))
            || self.place.starts_with(DEV)
                && (DEV_OWN.iter().map(Path::new).any(is_made)
                    || devices.iter().map(PathBuf::as_path).any(is_made))
    }

    fn failed(&self, source: io::Error) -> StartError {
        StartError::Volume { destination: self.destination.clone(), source }
    }
}

/// Finds all volumes of a container, including /dev/shm.
pub(super) fn resolve(config: &ContainerConfig, namespaces: &Namespaces) -> Result<Vec<Volume>, StartError> {
    let mut volumes = Vec::new();
    let shm = MountConfig {
        source: MountSource::Host("/dev/shm".into()),
        sub_path: None,
        destination: "/dev/shm".into(),
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    };
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
            MountSource::Host(_) => None,
            MountSource::Memory(name) => Some(Path::new(MEMORY_VOLUMES).join(name)),
        };
        volumes.push(volume(mount, memory.as_deref(), namespaces, config)?);
    }
    if let Some(message) = &config.termination_message
        && config.mounts.iter().all(|mount| mount.destination != message.path)
    {
        let mount = MountConfig {
            source: MountSource::Host(message.file.clone()),
            sub_path: None,
            destination: message.path.clone(),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
        };
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
            MountSource::Host(path) => copy(mount, path, pod.user.as_ref().map(|user| user.as_fd())),
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
            sub_path: sub_path.clone(),
            source,
        })?;
    }
    if let MountSource::Host(_) = mount.source {
        check_propagation(mount.propagation, path, base.as_fd()).map_err(failed)?;
    }
    let is_directory = base.metadata().map_err(failed)?.is_dir();
    let copy = sys::clone_mount(Some(base.as_fd()), c"", true).map_err(failed)?;
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
        sys::set_mount_attributes(copy.as_fd(), &attributes, true).map_err(failed)?;
    }
    Ok(Volume {
        mount: copy,
        is_directory,
        destination: mount.destination.clone(),
        place: mount.destination.clone(),
        read_only: mount.read_only,
        recursive: mount.recursive_read_only,
        restricted: matches!(mount.source, MountSource::Image(_)),
        shared: mount.propagation == Propagation::Shared,
    })
}

/// Checks the propagation: mounts reach host and container only if the host shares them (containerd:
/// `ensureShared`).
fn check_propagation(wanted: Propagation, path: &Path, opened: BorrowedFd) -> io::Result<()> {
    let (kind, enough): (&str, &[&str]) = match wanted {
        Propagation::Private => return Ok(()),
        Propagation::Slave => ("shared or slave", &["shared:", "master:"]),
        Propagation::Shared => ("shared", &["shared:"]),
    };
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()))?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    // ID, parent, device, root, mount point, options, optional fields up to a dash.
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let Some(mount) = mounts.find(|fields| fields.first().copied() == id) else { return Ok(()) };
    let mut optional = mount.iter().skip(6).take_while(|field| **field != "-");
    if optional.any(|field| enough.iter().any(|prefix| field.starts_with(prefix))) {
        return Ok(());
    }
    let on = mount.get(4).unwrap_or(&"/");
    Err(io::Error::other(format!(
        "path \"{}\" is mounted on \"{on}\" but it is not a {kind} mount; \
         `mount --make-rshared {on}` on the node makes it one",
        path.display()
    )))
}

/// Opens `path` below a volume without leaving it. Missing directories are made with the mode of the volume's
/// root; they inherit its setgid bit. A link that leads out is rejected, not reinterpreted, since it means
/// another file.
fn open_sub_path(volume: BorrowedFd, path: &Path) -> io::Result<File> {
    let leaves = |error: io::Error| match error.raw_os_error() {
        Some(libc::EXDEV) => io::Error::new(io::ErrorKind::PermissionDenied, "it leads out of the volume"),
        _ => error,
    };
    let mode = File::from(volume.try_clone_to_owned()?).metadata()?.permissions().mode() & 0o7777;
    let mut reached = PathBuf::new();
    let mut directory = sys::open_in(volume, Path::new("."), libc::O_PATH, Resolve::Beneath)?;
    for component in path.components() {
        match component {
            Component::Normal(name) => reached.push(name),
            Component::CurDir => continue,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it must be relative, without \"..\"",
                ));
            }
        }
        // Always from the volume's root: a link may lead up, as long as it stays inside.
        let next = match sys::open_in(volume, &reached, libc::O_PATH, Resolve::Beneath).map_err(leaves) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = reached.file_name().map(Path::new).unwrap_or(Path::new("."));
                let c_name = sys::c_path(name)?;
                // Made with its mode at once: a moment later a container may have put another directory
                // there. The umask does not apply to the volume.
                let umask = nix::sys::stat::umask(Mode::empty());
                // SAFETY: a C string that outlives the call. A link there is EEXIST, not followed.
                let made = unsafe { libc::mkdirat(directory.as_raw_fd(), c_name.as_ptr(), mode) };
                let error = io::Error::last_os_error();
                nix::sys::stat::umask(umask);
                if made < 0 && error.kind() != io::ErrorKind::AlreadyExists {
                    return Err(error);
                }
                sys::open_in(directory.as_fd(), name, libc::O_PATH, Resolve::NoLinks)
                    .map_err(describe_link)?
            }
            other => other?,
        };
        directory = next;
    }
    Ok(directory)
}

/// Finds the places of the volumes, following the links of the image, and sorts outer volumes before inner
/// ones, as containerd does. Rejects places that a container needs for itself.
pub(super) fn find_places(volumes: &mut [Volume], root: BorrowedFd) -> Result<(), StartError> {
    for volume in volumes.iter_mut() {
        volume.place = place(root, &volume.destination).map_err(|error| {
            volume.failed(match error.raw_os_error() {
                Some(libc::ENOTDIR) => {
                    io::Error::other("the image has a file where a directory of that path should be")
                }
                _ => error,
            })
        })?;
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
        if DEV_LINKS.iter().any(|link| volume.place.starts_with(link)) {
            return refused("a container has a link of its own there; mount the volume elsewhere");
        }
    }
    volumes.sort_by_key(|volume| volume.place.components().count());
    Ok(())
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
            let point = mount_point(base, path, volume.is_directory).map_err(|error| volume.failed(error))?;
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
            None if [DEV].iter().chain(DEV_OWN).any(|own| volume.place == Path::new(own)) => None,
            None => {
                let point = open(root, &relative(Path::new("/")))?;
                // libcontainer copies the mounts of the root for the container.
                (!late[at]).then_some(point)
            }
        };
        if !late[at] {
            let point = point.as_ref().expect("a volume that is not late has its mount point now");
            volume
                .set_attributes()
                .and_then(|()| sys::attach_mount_at(volume.mount.as_fd(), point.as_fd()))
                .map_err(|error| volume.failed(error))?;
        }
        points.push(point);
    }
    let volumes = volumes.into_iter().zip(points).zip(late);
    let late = volumes.filter(|(_, late)| *late).map(|((volume, point), _)| {
        // Only now: mount points of other volumes were made in it.
        volume.set_attributes().map_err(|error| volume.failed(error))?;
        Ok(LateVolume { mount: volume.mount, point, place: volume.place })
    });
    late.collect()
}

/// Attaches a late volume; called by the container's process, in the container's root.
pub(super) fn attach_late(mount: BorrowedFd, point: Option<BorrowedFd>, place: &Path) -> io::Result<()> {
    if let Some(point) = point {
        return sys::attach_mount_at(mount, point);
    }
    let root = sys::open_path(Path::new("/"))?;
    let relative = place.strip_prefix("/").unwrap_or(place);
    let point =
        sys::open_in(root.as_fd(), relative, libc::O_PATH, Resolve::NoLinks).map_err(describe_link)?;
    sys::attach_mount_at(mount, point.as_fd())
}

/// Resolves the links of a path in the root, as far as it exists; the rest stays as it is written.
fn place(root: BorrowedFd, path: &Path) -> io::Result<PathBuf> {
    let mut place = PathBuf::from("/");
    let mut left: Vec<PathBuf> = Vec::new();
    let push = |left: &mut Vec<PathBuf>, path: &Path| {
        left.extend(path.components().rev().map(|component| PathBuf::from(component.as_os_str())));
    };
    push(&mut left, path);
    let (mut links, mut missing) = (0, false);
    while let Some(name) = left.pop() {
        match name.components().next() {
            Some(Component::Normal(_)) => {}
            Some(Component::ParentDir) => {
                place.pop();
                continue;
            }
            Some(Component::RootDir) => {
                place = PathBuf::from("/");
                continue;
            }
            Some(Component::CurDir | Component::Prefix(_)) | None => continue,
        }
        place.push(&name);
        if missing {
            continue;
        }
        let relative = place.strip_prefix("/").unwrap_or(&place);
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        match sys::open_in(root, relative, flags, Resolve::NoLinks) {
            Ok(found) if found.metadata()?.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let leads = sys::read_link(found.as_fd())?;
                place.pop();
                push(&mut left, &leads);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing = true,
            Err(error) => return Err(error),
        }
    }
    Ok(place)
}

/// Opens a mount point below `base` and through no link; makes it if it is missing, with its parent
/// directories.
fn mount_point(base: BorrowedFd, path: &Path, is_directory: bool) -> io::Result<File> {
    let open = |directory: BorrowedFd, path: &Path| {
        sys::open_in(directory, path, libc::O_PATH, Resolve::NoLinks).map_err(describe_link)
    };
    if path.as_os_str().is_empty() {
        return open(base, Path::new("."));
    }
    match open(base, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    if is_directory {
        return make_directories(base, path);
    }
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let above = make_directories(base, above)?;
    let name = Path::new(name);
    let c_name = sys::c_path(name)?;
    // SAFETY: a C string that outlives the call. A link there is EEXIST, not followed.
    if unsafe { libc::mknodat(above.as_raw_fd(), c_name.as_ptr(), libc::S_IFREG | 0o644, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    open(above.as_fd(), name)
}

/// Explains `ELOOP` to the author of a manifest.
fn describe_link(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "there is a symbolic link on the way to it, and what a container can write to is not trusted \
             to lead to a mount point; mount the volume elsewhere",
        ),
        _ => error,
    }
}

/// Makes the container's /dev, in which libcontainer makes devices and links, and the directories on which it
/// mounts. `first` is the ID of the host that is ID 0 of the container. Returns /dev.
pub(super) fn prepare_root(root: BorrowedFd, first: u32) -> Result<File, StartError> {
    let own = |path: &'static str| move |source: io::Error| StartError::Own { path, source };
    for directory in ["/proc", "/sys", DEV] {
        // libcontainer mounts on no link, and does not report the reason.
        make_directories(root, Path::new(directory))
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ELOOP | libc::ENOTDIR) => {
                    io::Error::other("the image has something else there; it must be a directory or missing")
                }
                _ => error,
            })
            .map_err(own(directory))?;
    }
    let on = |path: &str, kind: &str, flags: MsFlags, options: &str| -> io::Result<()> {
        let point = open_in_root(root, Path::new(path), libc::O_PATH | libc::O_DIRECTORY)?;
        let point = PathBuf::from(format!("/proc/self/fd/{}", point.as_raw_fd()));
        Ok(mount(Some(kind), &point, Some(kind), flags, Some(options))?)
    };
    let options = format!("mode=755,size=65536k,uid={first},gid={first}");
    on(DEV, "tmpfs", MsFlags::MS_NOSUID | MsFlags::MS_STRICTATIME, &options).map_err(own(DEV))?;
    for directory in ["/dev/pts", "/dev/mqueue"] {
        make_directories(root, Path::new(directory)).map_err(own(directory))?;
    }
    let options = format!("newinstance,ptmxmode=0666,mode=0620,gid={}", first + 5);
    on("/dev/pts", "devpts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, &options).map_err(own("/dev/pts"))?;
    open_in_root(root, Path::new(DEV), libc::O_PATH | libc::O_DIRECTORY).map_err(own(DEV))
}

/// Attaches the /proc of a PID namespace that the container shares.
pub(super) fn attach_proc(proc: BorrowedFd, root: BorrowedFd) -> Result<(), StartError> {
    const NOSUID_NODEV_NOEXEC: u64 = 0x2 | 0x4 | 0x8;
    const RDONLY: u64 = 0x1;
    let attributes = MountAttributes { set: NOSUID_NODEV_NOEXEC, clear: RDONLY, ..Default::default() };
    sys::set_mount_attributes(proc, &attributes, false)
        .and_then(|()| sys::open_in(root, Path::new("proc"), libc::O_PATH, Resolve::NoLinks))
        .and_then(|point| sys::attach_mount_at(proc, point.as_fd()))
        .map_err(|source| StartError::Own { path: "/proc", source })
}

/// Checks, after all volumes are attached, that libcontainer will see what was prepared: its mount points are
/// directories of the image, and /dev and a shared /proc are those that were attached.
pub(super) fn check_prepared(
    root: BorrowedFd,
    dev: &File,
    proc: Option<BorrowedFd>,
) -> Result<(), StartError> {
    let device_of_root = sys::open_in(root, Path::new("."), libc::O_PATH, Resolve::NoLinks)
        .and_then(|root| root.metadata())
        .map_err(|source| StartError::Own { path: "/", source })?
        .dev();
    let is_prepared = |path: &str| -> io::Result<bool> {
        let relative = path.trim_start_matches('/');
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let found = sys::open_in(root, Path::new(relative), flags, Resolve::NoLinks)?.metadata()?;
        match (path, proc) {
            (DEV, _) => {
                let made = dev.metadata()?;
                Ok((found.dev(), found.ino()) == (made.dev(), made.ino()))
            }
            ("/proc", Some(proc)) => Ok(found.dev() == nix::sys::stat::fstat(proc.as_raw_fd())?.st_dev),
            _ => Ok(found.dev() == device_of_root),
        }
    };
    for path in ["/proc", "/sys", DEV] {
        match is_prepared(path) {
            Ok(true) => {}
            Ok(false) => {
                let source = io::Error::other("a volume covers it");
                return Err(StartError::Own { path, source });
            }
            Err(source) => return Err(StartError::Own { path, source: describe_link(source) }),
        }
    }
    Ok(())
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

/// Makes the missing directories of `path` below `base`, through no link, and returns the last one.
fn make_directories(base: BorrowedFd, path: &Path) -> io::Result<File> {
    let open = |directory: BorrowedFd, path: &Path| {
        sys::open_in(directory, path, libc::O_PATH | libc::O_DIRECTORY, Resolve::NoLinks)
    };
    let mut directory = open(base, Path::new("."))?;
    for component in path.components() {
        let Component::Normal(name) = component else { continue };
        let name = Path::new(name);
        directory = match open(directory.as_fd(), name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let c_name = sys::c_path(name)?;
                // SAFETY: a C string that outlives the call.
                if unsafe { libc::mkdirat(directory.as_raw_fd(), c_name.as_ptr(), 0o755) } < 0 {
                    let error = io::Error::last_os_error();
                    // Another container of the pod starts at the same time.
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
                open(directory.as_fd(), name)?
            }
            other => other?,
        };
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_link_that_is_swapped_meanwhile_leads_no_sub_path_out_of_its_volume() {
        let root = std::env::temp_dir().join(format!("nodlet-sub-path-{}", std::process::id()));
        let (volume, outside) = (root.join("volume"), root.join("outside"));
        fs::create_dir_all(volume.join("swapped/inner")).expect("it is new");
        fs::create_dir_all(outside.join("inner")).expect("it is new");
        std::os::unix::fs::symlink("../outside", volume.join("link")).expect("it is new");
        let [one, other] = ["swapped", "link"].map(|name| {
            CString::new(volume.join(name).into_os_string().into_encoded_bytes()).expect("it has no NUL")
        });
        let ends = AtomicBool::new(false);
        let identity = |path: &Path| fs::metadata(path).map(|found| found.ino()).expect("it is there");
        let (escape, escape_inner) = (identity(&outside), identity(&outside.join("inner")));
        let (mut opened, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let (here, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
                    // SAFETY: two C strings, which outlive the call.
                    unsafe {
                        libc::syscall(libc::SYS_renameat2, here, one.as_ptr(), here, other.as_ptr(), flags)
                    };
                }
            });
            let base = sys::open_path(&volume).expect("it is there");
            for round in 0..20_000 {
                let path = format!("swapped/inner/new-{}", round % 50);
                let path = if round % 2 == 0 { "swapped/inner" } else { &path };
                match open_sub_path(base.as_fd(), Path::new(path)) {
                    Ok(found) => {
                        let found = found.metadata().expect("it is open").ino();
                        assert!(found != escape && found != escape_inner, "round {round}");
                        opened += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
        let made = fs::read_dir(outside.join("inner")).expect("it is there").count();
        assert_eq!(made, 0, "nothing is made outside");
        assert!(opened > 100 && refused > 100, "it was a race: {opened} opened, {refused} refused");
        fs::remove_dir_all(&root).expect("it can be removed");
    }
}
