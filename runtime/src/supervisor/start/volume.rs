//! A container's volumes: found on the host, copied as detached mounts before
//! the helper leaves the host's mount namespace, attached below its private tmpfs.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use super::{StartError, open_in_root, within};
use crate::supervisor::config::{ContainerConfig, MountConfig, MountSource, Propagation};
use crate::supervisor::sandbox::{MEMORY_VOLUMES, Namespaces, SHM};
use crate::supervisor::sys::{self, MountAttributes, Resolve};

/// A volume that is found.
pub(super) struct Volume {
    mount: OwnedFd,
    is_directory: bool,
    destination: PathBuf,
    read_only: bool,
    shared: bool,
}

/// A volume that is attached at `source` and belongs at `destination`.
pub(super) struct Mounted {
    pub(super) source: PathBuf,
    pub(super) destination: PathBuf,
    pub(super) read_only: bool,
    pub(super) shared: bool,
    is_directory: bool,
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
                let made = sys::open_in(volume, &reached, libc::O_PATH, Resolve::Beneath).map_err(leaves)?;
                // The umask is not the volume's.
                fs::set_permissions(
                    format!("/proc/self/fd/{}", made.as_raw_fd()),
                    fs::Permissions::from_mode(mode),
                )?;
                made
            }
            other => other?,
        };
        directory = next;
    }
    Ok(directory)
}

/// Attaches each volume in `directory`, from where libcontainer binds it.
pub(super) fn attach(volumes: &[Volume], directory: &Path) -> Result<Vec<Mounted>, StartError> {
    let mut mounted = Vec::new();
    for (number, volume) in volumes.iter().enumerate() {
        let source = directory.join(number.to_string());
        let made =
            if volume.is_directory { fs::create_dir(&source) } else { File::create(&source).map(drop) };
        made.and_then(|()| sys::attach_mount(volume.mount.as_fd(), &source))
            .map_err(|error| StartError::Volume { destination: volume.destination.clone(), source: error })?;
        mounted.push(Mounted {
            source,
            destination: volume.destination.clone(),
            read_only: volume.read_only,
            shared: volume.shared,
            is_directory: volume.is_directory,
        });
    }
    Ok(mounted)
}

/// Refuses what libcontainer would fail to mount without saying why.
pub(super) fn check_mount_points(mounted: &[Mounted], root: BorrowedFd) -> Result<(), StartError> {
    for volume in mounted {
        let destination = &volume.destination;
        let refused = |why: &str| {
            Err(StartError::Volume { destination: destination.clone(), source: io::Error::other(why) })
        };
        if [Path::new("/"), Path::new("/proc")].contains(&destination.as_path()) {
            return refused("a container needs its own there; mount the volume elsewhere");
        }
        let is_covered = ["/proc", "/sys", "/dev"].iter().any(|covered| destination.starts_with(covered))
            || mounted.iter().any(|other| {
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
    mounted: &[Mounted],
) -> io::Result<()> {
    let cwd = &config.process.cwd;
    let volume = mounted
        .iter()
        .filter(|volume| volume.is_directory && cwd.starts_with(&volume.destination))
        .max_by_key(|volume| volume.destination.components().count());
    match volume {
        Some(volume) if volume.read_only => Ok(()),
        Some(volume) => {
            let below = cwd.strip_prefix(&volume.destination).unwrap_or(Path::new(""));
            make_directories(sys::open_path(&volume.source)?.as_fd(), below)
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
