//! Starts a container: the short-lived helper that the supervisor forks for each start.
//!
//! The helper starts in the container's cgroup, makes a mount namespace and builds everything below a private
//! tmpfs there: root, volumes, and what libcontainer needs. So the host never sees any of it, and all of it is gone with
//! the container, whatever dies. It ends with the start.
//!
//! The helper reports on a socket that is closed automatically when the container's process is executed:
//! [`Status`] frames, then the end. Read next: `volume.rs`, then `container.rs`, which calls libcontainer.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid};
use nodlet_rootfs::assemble::{self, AssembleError, UserError};

use super::container::{self, CONSOLE, Container};
use super::error::{self, StepError};
use super::protocol::{self, MAX_GROUPS, Message, Status, cut};
use super::sandbox::{self, Namespaces};
use super::sys::{self, lacking, used_up};
use super::user::User;
use nodlet_host::launch::{ContainerConfig, UserConfig};

mod volume;

use volume::Volume;
pub use volume::try_to_execute_files_of_the_agent;

/// The input of a start helper. All descriptors are inherited.
pub(super) struct Start<'a> {
    /// A [`ContainerConfig`].
    pub(super) config: BorrowedFd<'a>,
    /// The files by which a task joins the container's cgroups v1.
    pub(super) v1_tasks: &'a [PathBuf],
    /// The layers, lowest first.
    pub(super) layers: Vec<BorrowedFd<'a>>,
    pub(super) namespaces: &'a Namespaces,
    /// Another container whose PID namespace the new one joins.
    pub(super) target: Option<&'a Target>,
    pub(super) status: BorrowedFd<'a>,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// A directory of the host on which the private tmpfs is mounted.
    pub(super) scratch: &'a Path,
}

/// The namespaces of a running container that another one joins: `kubectl debug --target`.
pub(super) struct Target {
    pub(super) pid: File,
    /// The mount namespace, which contains the container's /proc.
    pub(super) mnt: File,
}

/// A step of a start that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("read the container's configuration")]
    ReadConfig(#[source] io::Error),
    #[error("join the container's cgroup")]
    JoinCgroup(#[source] io::Error),
    #[error("make a mount namespace")]
    NewNamespace(#[source] io::Error),
    #[error("mount a private tmpfs")]
    Scratch(#[source] io::Error),
    #[error("make a session keyring")]
    Keyring(#[source] io::Error),
    #[error("apply the AppArmor profile {profile}")]
    AppArmor { profile: Box<str>, source: io::Error },
    #[error("find the /proc of the PID namespace that the container shares")]
    Proc(#[source] io::Error),
    #[error("mount the volume at {destination}")]
    Volume { destination: PathBuf, source: io::Error },
    #[error("mount the volume at {destination}: subPath {sub_path}")]
    SubPath { destination: PathBuf, sub_path: PathBuf, source: io::Error },
    #[error("mount the root file system")]
    Root(#[source] io::Error),
    #[error(transparent)]
    Image(AssembleError),
    #[error("map the IDs of the image's files")]
    MapLayers(#[source] io::Error),
    #[error(transparent)]
    User(UserError),
    #[error("use the ID {0}: with hostUsers: false, a pod has the IDs 0 to {max}", max = sandbox::IDS - 1)]
    UnmappedId(u32),
    #[error("set {0} supplemental groups: at most {MAX_GROUPS} are possible")]
    TooManyGroups(usize),
    #[error("make the working directory {path}")]
    WorkingDirectory { path: PathBuf, source: io::Error },
    #[error("report the container's user")]
    Report(#[source] io::Error),
    #[error(transparent)]
    Container(#[from] StepError),
}

impl StartError {
    /// The text for the agent.
    fn message(&self) -> Message {
        match self {
            // These are about files of the node, to which the advice applies.
            StartError::Image(_) | StartError::User(_) => cut(&nodlet_host::error::chain(self)),
            _ => error::message(self),
        }
    }
}

impl Start<'_> {
    /// Runs the helper; never returns.
    pub(super) fn run(self) -> ! {
        sys::set_name(c"nodlet:start");
        let mut keep = vec![
            self.config.as_raw_fd(),
            self.status.as_raw_fd(),
            self.stdout.as_raw_fd(),
            self.stderr.as_raw_fd(),
        ];
        keep.extend(self.stdin.iter().map(|stdin| stdin.as_raw_fd()));
        keep.extend(
            self.target.iter().flat_map(|target| [&target.pid, &target.mnt]).map(|fd| fd.as_raw_fd()),
        );
        keep.extend(self.layers.iter().map(|layer| layer.as_raw_fd()));
        keep.extend(self.namespaces.descriptors().map(|fd| fd.as_raw_fd()));
        sys::close_all_but(&keep);
        let status = self.status;
        if let Err(error) = self.start() {
            let failed = Status::Failed { run: false, message: error.message() };
            let _ = protocol::send(status, &failed, &[]);
            sys::exit_now(1);
        }
        sys::exit_now(0)
    }

    fn start(self) -> Result<(), StartError> {
        // First, so that all that this helper needs is memory of the container.
        sys::join_tasks(self.v1_tasks).map_err(StartError::JoinCgroup)?;
        let (config, copy): (ContainerConfig, _) =
            protocol::read_and_copy_memfd(self.config).map_err(StartError::ReadConfig)?;
        protocol::send(self.status, &Status::Config, &[copy.as_fd()]).map_err(StartError::ReadConfig)?;
        drop(copy);
        sys::new_session_keyring().map_err(StartError::Keyring)?;
        if let Some(profile) = &config.process.app_armor {
            // Here, where /proc is the host's. The processes that this one forks inherit it up to their first program.
            sys::set_app_armor_profile(profile)
                .map_err(|source| StartError::AppArmor { profile: profile.clone(), source })?;
        }
        // Otherwise a container without groups would keep those of the agent's caller.
        let _ = nix::unistd::setgroups(&[]);
        let users = self.namespaces.user.as_ref().map(|users| users.as_fd());
        // 0 in the host's user namespace, where the IDs are their own.
        let first = config.first_id.unwrap_or(0);
        if users.is_some() != config.first_id.is_some() {
            let source =
                io::Error::other("the sandbox of the pod was made without the user namespace that it needs");
            return Err(StartError::NewNamespace(source));
        }
        let mut volumes = volume::resolve(&config, self.namespaces)?;
        // Copy the layers now, from the host's mount namespace or from their own.
        let layers: Vec<OwnedFd> = self
            .layers
            .iter()
            .map(|layer| assemble::copy_layer(*layer))
            .collect::<Result<_, _>>()
            .map_err(StartError::Image)?;
        if let Some(users) = users {
            let mapped = layers.iter().try_for_each(|layer| sys::map_ids(layer.as_fd(), users, false));
            mapped.map_err(StartError::MapLayers)?;
        }

        let proc = self.find_proc().map_err(StartError::Proc)?;
        self.mount_private_tmpfs()?;
        let root = self.scratch.join("root");
        fs::create_dir(&root).map_err(StartError::Scratch)?;
        empty(&config.upper_dir).and_then(|()| empty(&config.work_dir)).map_err(StartError::Root)?;
        let own = |path: &Path| match users {
            Some(_) => std::os::unix::fs::chown(path, Some(first), Some(first)),
            None => Ok(()),
        };
        own(&config.upper_dir).map_err(StartError::Root)?;
        let layers: Vec<BorrowedFd> = layers.iter().map(|layer| layer.as_fd()).collect();
        let of_volumes: usize = config.image_volumes.iter().sum();
        let (layers, of_volumes) = layers.split_at(layers.len().saturating_sub(of_volumes));
        volume::images(&config, of_volumes, self.scratch, &mut volumes, &own)?;
        // Never read-only: mount points are made in it.
        assemble::mount_root(layers, &config.upper_dir, &config.work_dir, &root, false)
            .map_err(StartError::Image)?;
        // With a link there, an image could have links made anywhere on the host.
        assemble::check_dev(&root).map_err(StartError::Image)?;
        let root_fd = sys::open_path(&root).map_err(StartError::Root)?;

        let user = find_user(&config.process.user, &root)?;
        if users.is_some() {
            let unmapped = [user.uid, user.gid].into_iter().chain(user.groups.iter().copied());
            if let Some(id) = unmapped.into_iter().find(|id| *id >= sandbox::IDS) {
                return Err(StartError::UnmappedId(id));
            }
            // The container's own: mount points, working directory, /dev.
            sys::set_file_owner(first).map_err(StartError::Root)?;
        }
        let reported =
            Status::User { uid: user.uid, gid: user.gid, groups: user.groups.clone(), home: cut(&user.home) };
        protocol::send(self.status, &reported, &[]).map_err(StartError::Report)?;
        // A process that is not root could not open its own /dev/stdout again.
        for stream in self.stdin.iter().chain([&self.stdout, &self.stderr]) {
            let (uid, gid) = (Uid::from_raw(first + user.uid), Gid::from_raw(first + user.gid));
            let _ = nix::unistd::fchown(stream.as_raw_fd(), Some(uid), Some(gid));
        }

        volume::find_places(&mut volumes, root_fd.as_fd())?;
        volume::add_writable_paths(&config, root_fd.as_fd(), &mut volumes)?;
        volume::make_working_directory(&config, root_fd.as_fd(), &volumes)
            .map_err(|source| StartError::WorkingDirectory { path: config.process.cwd.clone(), source })?;
        let dev = container::root::prepare_root(root_fd.as_fd(), first)?;
        if let Some(proc) = &proc {
            container::root::attach_proc(proc.as_fd(), root_fd.as_fd())?;
        }
        // The place for the container's terminal, unless a volume covers it.
        let covered = |volume: &Volume| ["/dev", CONSOLE].map(Path::new).contains(&volume.place());
        let has_console = config.tty && !volumes.iter().any(covered);
        let devices = container::dev::devices(&config, &dev, &user)?;
        let late = volume::attach(volumes, root_fd.as_fd(), &devices.paths, users.is_some())?;
        container::root::check_prepared(root_fd.as_fd(), &dev, proc.as_ref().map(|proc| proc.as_fd()))?;
        if users.is_some() {
            sys::set_file_owner(0).map_err(StartError::Root)?;
        }
        drop((root_fd, dev));
        let pid_namespace = self.namespaces.pid.as_ref().map(|pid| pid.as_fd());
        let container = Container {
            config,
            namespaces: self.namespaces,
            pid_namespace: pid_namespace.or(self.target.map(|target| target.pid.as_fd())),
            user: &user,
            devices: devices.nodes,
            late,
            has_console,
            status: self.status,
            stdin: self.stdin,
            stdout: self.stdout,
            stderr: self.stderr,
        };
        Ok(container.run(self.scratch, root)?)
    }

    /// The /proc of a PID namespace that the container shares: a copy of a mount that was made in it. `None`
    /// if the container has a PID namespace of its own, or the host's.
    fn find_proc(&self) -> io::Result<Option<OwnedFd>> {
        let copy = |mnt: BorrowedFd| within(mnt, || Ok(sys::clone_mount(None, c"/proc", false)?))?;
        let proc = match (&self.namespaces.pid, self.target) {
            (Some(_), _) => copy(self.namespaces.mnt.as_fd()).map_err(|error: io::Error| match error.raw_os_error() {
                Some(libc::ENOENT) => io::Error::new(
                    io::ErrorKind::Unsupported,
                    "an earlier version of nodlet made this pod's sandbox; delete the pod and create it again",
                ),
                _ => error,
            })?,
            // A container with CAP_SYS_ADMIN may have replaced it.
            (None, Some(target)) => copy(target.mnt.as_fd())?,
            (None, None) => return Ok(None),
        };
        if nix::sys::statfs::fstatfs(&proc)?.filesystem_type() != nix::sys::statfs::PROC_SUPER_MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "what the target container has at /proc is not a proc file system",
            ));
        }
        Ok(Some(proc))
    }

    /// Leaves the host's mount namespace: the host sees none of the mounts from here on.
    fn mount_private_tmpfs(&self) -> Result<(), StartError> {
        unshare(CloneFlags::CLONE_NEWNS).map_err(|error| StartError::NewNamespace(used_up(error.into())))?;
        // Slave, not private: later mounts of the host must reach `HostToContainer` volumes.
        let mounted =
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
                .and_then(|()| {
                    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
                    mount(Some("nodlet"), self.scratch, Some("tmpfs"), flags, Some("mode=0711,size=4m"))
                });
        mounted.map_err(|error| StartError::Scratch(lacking(error, libc::ENODEV, "CONFIG_TMPFS")))
    }
}

/// Empties a directory. An earlier start of this number that failed may have left files, and if an overlay
/// was mounted `volatile` there, the kernel mounts no other (EINVAL).
fn empty(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Finds the user: the manifest's numbers take precedence over the image's user; the groups of both are used, the primary
/// group first, as in containerd.
fn find_user(wanted: &UserConfig, root: &Path) -> Result<User, StartError> {
    let name = wanted.run_as_user.map_or_else(|| wanted.image_user.clone(), |uid| uid.to_string());
    let found = assemble::user(root, &name).map_err(StartError::User)?;
    let gid = wanted.run_as_group.unwrap_or(found.gid);
    let mut groups = vec![gid];
    let of_image = if wanted.strict_groups { Vec::new() } else { found.additional_gids };
    for group in of_image.into_iter().chain(wanted.additional_gids.iter().copied()) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let groups = heapless::Vec::from_slice(&groups).map_err(|_| StartError::TooManyGroups(groups.len()))?;
    Ok(User { uid: found.uid, gid, groups, home: found.home })
}

/// Calls `act` in the mount namespace `other`, and returns to the present one.
fn within<T>(other: BorrowedFd, act: impl FnOnce() -> T) -> io::Result<T> {
    let own = File::open("/proc/self/ns/mnt")?;
    setns(other, CloneFlags::CLONE_NEWNS)?;
    let result = act();
    setns(own, CloneFlags::CLONE_NEWNS)?;
    Ok(result)
}
