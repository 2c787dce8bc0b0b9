//! A container's volumes: found on the host, copied as detached mounts before the
//! helper leaves the host's mount namespace, attached where they belong in the root.
//!
//! libcontainer would do that for us, at eight times the system calls. To it is left
//! what must come after its own mounts, and what the host is to see of the container's.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::{StartError, open_in_root, within};
use crate::supervisor::config::{ContainerConfig, MountConfig, MountSource, Propagation};
use crate::supervisor::sandbox::{MEMORY_VOLUMES, Namespaces, SHM};
use crate::supervisor::sys::{self, MountAttributes, Resolve};

/// Where a container's devices are.
const DEV: &str = "/dev";

/// A volume that is found.
pub(super) struct Volume {
    mount: OwnedFd,
    is_directory: bool,
    destination: PathBuf,
    /// Where that leads in the image, by whatever links.
    place: PathBuf,
    read_only: bool,
    shared: bool,
}

/// A volume for libcontainer to bind: it is attached at `source` and belongs at `destination`.
pub(super) struct Left {
    pub(super) source: PathBuf,
    pub(super) destination: PathBuf,
    pub(super) read_only: bool,
    pub(super) shared: bool,
}

impl Volume {
    /// Where it comes to lie in the container.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// What a mount in the container does not allow.
    fn set_attributes(&self) -> io::Result<()> {
        const RDONLY: u64 = 0x1;
        const NOSUID: u64 = 0x2;
        const NODEV: u64 = 0x4;
        const NOEXEC: u64 = 0x8;
        let mut set = if self.read_only { RDONLY } else { 0 };
        if self.place == Path::new("/dev/shm") {
            set |= NOSUID | NODEV | NOEXEC;
        }
        if set == 0 {
            return Ok(());
        }
        let attributes = MountAttributes { set, ..Default::default() };
        sys::set_mount_attributes(self.mount.as_fd(), &attributes, false)
    }

    /// Where libcontainer mounts file systems of its own first.
    fn lies_below_others(&self) -> bool {
        lies_below_others(&self.place)
    }
}

fn lies_below_others(place: &Path) -> bool {
    ["/proc", "/sys"].iter().any(|other| place.starts_with(other))
}

/// Finds all volumes of a container, /dev/shm included.
pub(super) fn resolve(config: &ContainerConfig, namespaces: &Namespaces) -> Result<Vec<Volume>, StartError> {
    let mut volumes = Vec::new();
    let shm = MountConfig {
        source: MountSource::Host("/dev/shm".into()),
        sub_path: None,
        destination: "/dev/shm".into(),
        read_only: false,
        propagation: Propagation::Private,
    };
    let shm_path = (!namespaces.host_ipc).then(|| Path::new(SHM));
    volumes.push(volume(&shm, shm_path, namespaces.mnt.as_fd())?);
    for mount in &config.mounts {
        let memory = match &mount.source {
            MountSource::Host(_) => None,
            MountSource::Memory(name) => Some(Path::new(MEMORY_VOLUMES).join(name)),
        };
        volumes.push(volume(mount, memory.as_deref(), namespaces.mnt.as_fd())?);
    }
    if let Some(message) = &config.termination_message
        && config.mounts.iter().all(|mount| mount.destination != message.path)
    {
        let mount = MountConfig {
            source: MountSource::Host(message.file.clone()),
            sub_path: None,
            destination: message.path.clone(),
            read_only: false,
            propagation: Propagation::Private,
        };
        volumes.push(volume(&mount, None, namespaces.mnt.as_fd())?);
    }
    Ok(volumes)
}

fn volume(mount: &MountConfig, memory: Option<&Path>, pod: BorrowedFd) -> Result<Volume, StartError> {
    let failed = |source| StartError::Volume { destination: mount.destination.clone(), source };
    match memory {
        Some(path) => within(pod, || copy(mount, path)).map_err(failed)?,
        None => match &mount.source {
            MountSource::Host(path) => copy(mount, path),
            MountSource::Memory(name) => {
                unreachable!("the volume {name} has a path in the pod's mount namespace")
            }
        },
    }
}

/// A detached copy of what is to be mounted.
fn copy(mount: &MountConfig, path: &Path) -> Result<Volume, StartError> {
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
    let propagation = match mount.propagation {
        Propagation::Private => Some(libc::MS_PRIVATE),
        Propagation::Slave => Some(libc::MS_SLAVE),
        // It stays in the host's peer group: what the container mounts there is seen on the host.
        Propagation::Shared => None,
    };
    if let Some(propagation) = propagation {
        let attributes = MountAttributes { propagation, ..Default::default() };
        sys::set_mount_attributes(copy.as_fd(), &attributes, true).map_err(failed)?;
    }
    Ok(Volume {
        mount: copy,
        is_directory,
        destination: mount.destination.clone(),
        place: mount.destination.clone(),
        read_only: mount.read_only,
        shared: mount.propagation == Propagation::Shared,
    })
}

/// Mounts pass between host and container only where the host shares them (containerd: `ensureShared`).
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

/// Opens `path` below a volume without leaving it. What is missing is made, as
/// directories with the mode of the volume's root. Links that lead out are
/// refused, not reinterpreted: somebody meant another file.
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
        // Always from the volume's root: a link may go up, as long as it stays inside.
        let next = match sys::open_in(volume, &reached, libc::O_PATH, Resolve::Beneath).map_err(leaves) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = reached.file_name().expect("a component was pushed");
                let name = CString::new(name.as_encoded_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
                // SAFETY: a C string that outlives the call. A link there is EEXIST, not followed.
                if unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), mode) } < 0 {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
                // Not by its path in /proc: among the mounts of a pod, where volumes in memory are,
                // there is none.
                let flags = libc::O_RDONLY | libc::O_DIRECTORY;
                let made = sys::open_in(volume, &reached, flags, Resolve::Beneath).map_err(leaves)?;
                // The umask is not the volume's.
                made.set_permissions(fs::Permissions::from_mode(mode))?;
                made
            }
            other => other?,
        };
        directory = next;
    }
    Ok(directory)
}

/// What becomes of volumes that are not attached in the root at once.
#[derive(Default)]
pub(super) struct Attached {
    /// For libcontainer to bind.
    pub(super) left: Vec<Left>,
    /// To be attached by the container's process before it executes anything: libcontainer would
    /// make its devices and links in a /dev of the host.
    pub(super) late: Vec<(OwnedFd, PathBuf)>,
}

/// Finds where the volumes come to lie: an image may have a link where one belongs, and that may
/// lead to its /dev.
pub(super) fn find_places(volumes: &mut [Volume], root: BorrowedFd) -> Result<(), StartError> {
    for volume in volumes {
        volume.place = place(root, &volume.destination)
            .map_err(|source| StartError::Volume { destination: volume.destination.clone(), source })?;
    }
    Ok(())
}

/// Attaches the volumes in the root, in their order. From the first on that must be left to
/// libcontainer, all are: a later one may lie in it. Those wait below `directory`.
pub(super) fn attach(
    volumes: Vec<Volume>,
    root: BorrowedFd,
    directory: &Path,
) -> Result<Attached, StartError> {
    let failed = |volume: &Volume| {
        let destination = volume.destination.clone();
        move |source| StartError::Volume { destination, source }
    };
    let has_dev = volumes.iter().any(|volume| volume.place == Path::new(DEV));
    let (late, now): (Vec<Volume>, Vec<Volume>) =
        volumes.into_iter().partition(|volume| has_dev && volume.place.starts_with(DEV));
    let is_left = |volume: &Volume| volume.shared || volume.lies_below_others();
    let (here, left) = now.split_at(now.iter().position(is_left).unwrap_or(now.len()));
    for volume in here {
        let point = mount_point(root, &volume.destination, volume.is_directory).map_err(failed(volume))?;
        // A volume that is there by now may have such a link, too, and whoever can write to it
        // may put one there at any time.
        let led = path_below(root, &point).map_err(failed(volume))?;
        if led == Path::new(DEV) || lies_below_others(&led) {
            let problem = format!("a link in another volume leads to {}", led.display());
            return Err(failed(volume)(io::Error::new(io::ErrorKind::PermissionDenied, problem)));
        }
        volume.set_attributes().map_err(failed(volume))?;
        sys::attach_mount_at(volume.mount.as_fd(), point.as_fd()).map_err(failed(volume))?;
    }
    let mut attached = Attached::default();
    for (number, volume) in left.iter().enumerate() {
        let source = directory.join(number.to_string());
        let made =
            if volume.is_directory { fs::create_dir(&source) } else { File::create(&source).map(drop) };
        made.and_then(|()| sys::attach_mount(volume.mount.as_fd(), &source)).map_err(failed(volume))?;
        attached.left.push(Left {
            source,
            destination: volume.place.clone(),
            read_only: volume.read_only,
            shared: volume.shared,
        });
    }
    // What is mounted below it needs a place in it, while it can be written to and by who may.
    let dev = late.iter().find(|volume| volume.place == Path::new(DEV));
    for volume in &late {
        if let (Some(dev), Ok(below)) = (dev, volume.place.strip_prefix(DEV))
            && !below.as_os_str().is_empty()
        {
            mount_point(dev.mount.as_fd(), below, volume.is_directory).map_err(failed(volume))?;
        }
    }
    for volume in late {
        volume.set_attributes().map_err(failed(&volume))?;
        attached.late.push((volume.mount, volume.place));
    }
    // The volume of /dev itself before what belongs into it.
    attached.late.sort_by_key(|(_, destination)| destination.components().count());
    Ok(attached)
}

/// Where a path leads in the root, as far as there is something; the rest as it is written.
fn place(root: BorrowedFd, path: &Path) -> io::Result<PathBuf> {
    let (mut known, mut missing) = (path, Vec::new());
    loop {
        match open_in_root(root, known, libc::O_PATH) {
            Ok(found) => {
                let mut place = path_below(root, &found)?;
                place.extend(missing.iter().rev());
                return Ok(place);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (Some(above), Some(name)) = (known.parent(), known.file_name()) else {
                    return Err(error);
                };
                missing.push(name);
                known = above;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The path of what is open, in the root.
fn path_below(root: BorrowedFd, open: &File) -> io::Result<PathBuf> {
    let path_of = |descriptor: i32| fs::read_link(format!("/proc/self/fd/{descriptor}"));
    let (root, path) = (path_of(root.as_raw_fd())?, path_of(open.as_raw_fd())?);
    let below = path.strip_prefix(&root).map_err(|_| io::Error::other("it leads out of the root"))?;
    Ok(Path::new("/").join(below))
}

/// What a volume is mounted on; made where it is missing, with the directories above it.
fn mount_point(root: BorrowedFd, path: &Path, is_directory: bool) -> io::Result<File> {
    match open_in_root(root, path, libc::O_PATH) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    if is_directory {
        make_directories(root, path)?;
    } else {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        make_directories(root, above)?;
        let above = open_in_root(root, above, libc::O_PATH | libc::O_DIRECTORY)?;
        let name = CString::new(name.as_encoded_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a C string that outlives the call. A link there that leads nowhere is EEXIST.
        if unsafe { libc::mknodat(above.as_raw_fd(), name.as_ptr(), libc::S_IFREG | 0o644, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    open_in_root(root, path, libc::O_PATH)
}

/// The container's /dev, where libcontainer makes devices and links, and the directories on which
/// it mounts.
pub(super) fn prepare_root(root: BorrowedFd) -> Result<(), StartError> {
    let own = |path: &'static str| move |source: io::Error| StartError::Own { path, source };
    for directory in ["/proc", "/sys", DEV] {
        make_directories(root, Path::new(directory)).map_err(own(directory))?;
    }
    // libcontainer mounts these on no link, and does not say why it failed.
    for directory in ["/proc", "/sys"] {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        open_in_root(root, Path::new(directory), flags).map_err(own(directory))?;
    }
    let on = |path: &str, kind: &str, flags: MsFlags, options: &str| -> io::Result<()> {
        let point = open_in_root(root, Path::new(path), libc::O_PATH | libc::O_DIRECTORY)?;
        let point = PathBuf::from(format!("/proc/self/fd/{}", point.as_raw_fd()));
        Ok(mount(Some(kind), &point, Some(kind), flags, Some(options))?)
    };
    on(DEV, "tmpfs", MsFlags::MS_NOSUID | MsFlags::MS_STRICTATIME, "mode=755,size=65536k")
        .map_err(own(DEV))?;
    for directory in ["/dev/pts", "/dev/mqueue"] {
        make_directories(root, Path::new(directory)).map_err(own(directory))?;
    }
    let options = "newinstance,ptmxmode=0666,mode=0620,gid=5";
    on("/dev/pts", "devpts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, options).map_err(own("/dev/pts"))
}

/// Refuses, and says why, what cannot be mounted.
pub(super) fn check_mount_points(volumes: &[Volume], root: BorrowedFd) -> Result<(), StartError> {
    for volume in volumes {
        let destination = &volume.destination;
        let refused = |why: &str| {
            Err(StartError::Volume { destination: destination.clone(), source: io::Error::other(why) })
        };
        if [Path::new("/"), Path::new("/proc")].contains(&destination.as_path()) {
            return refused("a container needs its own there; mount the volume elsewhere");
        }
        let is_covered = ["/proc", "/sys", "/dev"].iter().any(|covered| destination.starts_with(covered))
            || volumes.iter().any(|other| {
                destination != &other.destination && destination.starts_with(&other.destination)
            });
        if is_covered {
            continue;
        }
        let there = open_in_root(root, destination, libc::O_PATH).and_then(|file| file.metadata());
        match (there.map(|there| there.is_dir()), volume.is_directory) {
            (Ok(true), false) => return refused("it is a file, and the image has a directory there"),
            (Ok(false), true) => return refused("it is a directory, and the image has a file there"),
            (Err(error), _) if error.raw_os_error() == Some(libc::ENOTDIR) => {
                return refused("the image has a file where a directory of that path should be");
            }
            // What is missing is made.
            (Ok(_) | Err(_), _) => {}
        }
    }
    Ok(())
}

/// Makes the working directory where it is missing: in the volume it lies in, or in the root.
pub(super) fn make_working_directory(
    config: &ContainerConfig,
    root: BorrowedFd,
    volumes: &[Volume],
) -> io::Result<()> {
    let cwd = &config.process.cwd;
    let volume = volumes
        .iter()
        .filter(|volume| volume.is_directory && cwd.starts_with(&volume.destination))
        .max_by_key(|volume| volume.destination.components().count());
    match volume {
        Some(volume) if volume.read_only => Ok(()),
        Some(volume) => {
            let below = cwd.strip_prefix(&volume.destination).unwrap_or(Path::new(""));
            make_directories(volume.mount.as_fd(), below)
        }
        // Nothing is made in what is mounted later over the image.
        None if ["/proc", "/sys", "/dev"].iter().any(|covered| cwd.starts_with(covered)) => Ok(()),
        None => make_directories(root, cwd),
    }
}

fn make_directories(root: BorrowedFd, path: &Path) -> io::Result<()> {
    let mut directory = open_in_root(root, Path::new("."), libc::O_PATH)?;
    let mut reached = PathBuf::new();
    for component in path.components() {
        let Component::Normal(name) = component else { continue };
        reached.push(name);
        let name = CString::new(name.as_encoded_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
        directory = match open_in_root(root, &reached, libc::O_PATH | libc::O_DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // SAFETY: a C string that outlives the call.
                if unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), 0o755) } < 0 {
                    return Err(io::Error::last_os_error());
                }
                open_in_root(root, &reached, libc::O_PATH | libc::O_DIRECTORY)?
            }
            other => other?,
        };
    }
    Ok(())
}
