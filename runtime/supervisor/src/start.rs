//! Starts a container: the short-lived helper that the supervisor forks for each start. Only this file and those of
//! its folder use libcontainer.
//!
//! The helper starts in the container's cgroup, makes a mount namespace and builds everything below a private
//! tmpfs there: root, volumes, bundle, libcontainer's state. So the host never sees any of it, and all of it
//! is gone with the container, whatever dies. libcontainer leaves zombies, descriptors and settings behind in
//! its caller; here its caller exits.
//!
//! The helper reports on a socket that is closed automatically when the container's process is executed:
//! [`Status`] frames, then the end. Read next: `volume.rs` and `spec.rs` for the parts that are built,
//! `executor.rs` and `execute.rs` for the last steps in the container.

use std::error::Error;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nodlet_kernel::own_file;
use nodlet_rootfs::assemble::{self, AssembleError, UserError};

use super::device;
use super::error;
use super::execute::{self, Execute};
use super::protocol::{self, MAX_GROUPS, Message, Status, cut};
use super::sandbox::{self, Namespaces};
use super::sys::{self, Resolve, lacking, used_up};
use nodlet_host::launch::{ContainerConfig, UserConfig};

mod executor;
mod failure;
mod path;
mod root;
mod spec;
mod volume;

use executor::ReportingExecutor;
pub use volume::try_to_execute_files_of_the_agent;
use volume::{LateVolume, Volume};

/// The path under which a container with a terminal may find it.
const CONSOLE: &str = "/dev/console";

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
    #[error("make the container's own {path}")]
    Own { path: &'static str, source: io::Error },
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
    #[error("write the bundle")]
    Bundle(#[source] io::Error),
    #[error("allow real-time priorities (rtprio.nodlet.dev)")]
    RealTime(#[source] io::Error),
    #[error("set the limit of open files (io.podman.annotations.ulimit)")]
    OpenFiles(#[source] io::Error),
    #[error("create the container: {0}")]
    Create(String),
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
        let copy = protocol::copy_memfd(self.config).map_err(StartError::ReadConfig)?;
        protocol::send(self.status, &Status::Config, &[copy.as_fd()]).map_err(StartError::ReadConfig)?;
        drop(copy);
        let config: ContainerConfig = protocol::read_memfd(self.config).map_err(StartError::ReadConfig)?;
        sys::new_session_keyring().map_err(StartError::Keyring)?;
        if let Some(profile) = &config.process.app_armor {
            // Here, where /proc is the host's. The processes that this one forks inherit it up to their first program.
            sys::set_app_armor_profile(profile)
                .map_err(|source| StartError::AppArmor { profile: profile.clone(), source })?;
        }
        // libcontainer keeps the caller's groups if a container has none.
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
        let scratch = self.private_tmpfs()?;
        let root = scratch.join("root");
        let directory = |name: &str| -> Result<PathBuf, StartError> {
            let path = scratch.join(name);
            fs::create_dir(&path).map_err(StartError::Scratch)?;
            Ok(path)
        };
        directory("root")?;
        empty(&config.upper_dir).and_then(|()| empty(&config.work_dir)).map_err(StartError::Root)?;
        let own = |path: &Path| match users {
            Some(_) => std::os::unix::fs::chown(path, Some(first), Some(first)),
            None => Ok(()),
        };
        own(&config.upper_dir).map_err(StartError::Root)?;
        let layers: Vec<BorrowedFd> = layers.iter().map(|layer| layer.as_fd()).collect();
        let of_volumes: usize = config.image_volumes.iter().sum();
        let (layers, of_volumes) = layers.split_at(layers.len().saturating_sub(of_volumes));
        volume::images(&config, of_volumes, &scratch, &mut volumes, &own)?;
        // Never read-only: libcontainer first makes mount points in it.
        assemble::mount_root(layers, &config.upper_dir, &config.work_dir, &root, false)
            .map_err(StartError::Image)?;
        // libcontainer makes links in /dev by joining paths on the host's side: with a link there, an image
        // could have them made anywhere (like CVE-2026-41579).
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
        if user.groups.len() > MAX_GROUPS {
            return Err(StartError::TooManyGroups(user.groups.len()));
        }
        let reported = Status::User {
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.iter().copied().collect(),
            home: cut(&user.home),
        };
        protocol::send(self.status, &reported, &[]).map_err(StartError::Bundle)?;
        // A process that is not root could not open its own /dev/stdout again.
        for stream in self.stdin.iter().chain([&self.stdout, &self.stderr]) {
            let (uid, gid) = (first + user.uid, first + user.gid);
            let (uid, gid) = (nix::unistd::Uid::from_raw(uid), nix::unistd::Gid::from_raw(gid));
            let _ = nix::unistd::fchown(stream.as_raw_fd(), Some(uid), Some(gid));
        }

        volume::find_places(&mut volumes, root_fd.as_fd())?;
        volume::add_writable_paths(&config, root_fd.as_fd(), &mut volumes)?;
        volume::make_working_directory(&config, root_fd.as_fd(), &volumes)
            .map_err(|source| StartError::WorkingDirectory { path: config.process.cwd.clone(), source })?;
        let dev = root::prepare_root(root_fd.as_fd(), first)?;
        if let Some(proc) = &proc {
            root::attach_proc(proc.as_fd(), root_fd.as_fd())?;
        }
        // The place for the container's terminal, unless a volume covers it.
        let covered = |volume: &Volume| ["/dev", CONSOLE].map(Path::new).contains(&volume.place());
        let has_console = config.tty && !volumes.iter().any(covered);
        let mut devices = if config.privileged { spec::host_devices() } else { Vec::new() };
        if users.is_some() {
            // libcontainer mounts the host's nodes of these.
            devices.retain(|device| !volume::DEV_OWN.iter().any(|own| device.path == Path::new(own)));
        }
        for device in &config.devices {
            devices.retain(|other| other.path != device.path);
            devices.push(spec::own_device(device, &user, first));
        }
        let paths: Vec<PathBuf> = devices.iter().map(|device| device.path.clone()).collect();
        if users.is_some() {
            // libcontainer could only mount the host's node of the same path, which belongs to nobody.
            device::make_all(&dev, &std::mem::take(&mut devices), &crate::user::User::default())
                .map_err(|source| StartError::Own { path: "/dev", source })?;
        }
        let late = volume::attach(volumes, root_fd.as_fd(), &paths, users.is_some())?;
        root::check_prepared(root_fd.as_fd(), &dev, proc.as_ref().map(|proc| proc.as_fd()))?;
        if users.is_some() {
            sys::set_file_owner(0).map_err(StartError::Root)?;
        }
        let mut cgroup = hide_cgroups(&config, &directory("cgroup")?).map_err(StartError::JoinCgroup)?;

        let (mut bundle, mut state) = (directory("bundle")?, directory("state")?);
        let mut root = root;
        if users.is_some() {
            leave_host(&scratch).map_err(StartError::Scratch)?;
            for path in [&mut root, &mut bundle, &mut state].into_iter().chain(&mut cgroup) {
                *path = Path::new("/").join(path.strip_prefix(&scratch).unwrap_or(path));
            }
        }
        let console = has_console.then(|| bundle.join("console"));
        if let Some(console) = &console {
            own_file::write(console, "").map_err(StartError::Bundle)?;
        }
        let sets_groups_late = users.is_some() && proc.is_some();
        let groups =
            sets_groups_late.then(|| user.groups.iter().copied().map(nix::unistd::Gid::from_raw).collect());
        let spec = spec::make(
            &config,
            &spec::Made {
                root: &root,
                namespaces: self.namespaces,
                user: &user,
                devices,
                mounts_proc: proc.is_none(),
                sets_groups_late,
                needs_setup_in_container: has_console || !late.is_empty() || proc.is_some(),
                cgroup: cgroup.as_deref(),
                console: console.as_deref(),
            },
        );
        let bytes = serde_json::to_vec(&spec).map_err(|error| StartError::Bundle(error.into()))?;
        own_file::write(&bundle.join("config.json"), bytes).map_err(StartError::Bundle)?;
        set_oom_score(config.oom_score_adj);
        sys::allow_real_time(config.rtprio).map_err(StartError::RealTime)?;
        sys::raise_open_files(config.process.open_files).map_err(StartError::OpenFiles)?;
        let mut process = config.process.clone();
        if config.tty && !process.env.iter().any(|pair| pair.starts_with("TERM=")) {
            process.env.push("TERM=xterm".to_owned());
        }
        let execute = Execute::new(&process, &user.home);
        drop((root_fd, layers, dev));
        self.create(&config, &bundle, &state, execute, has_console, late, groups)
    }

    /// The /proc of a PID namespace that the container shares: a copy of a mount that was made in it. `None`
    /// if libcontainer mounts it.
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
    fn private_tmpfs(&self) -> Result<PathBuf, StartError> {
        unshare(CloneFlags::CLONE_NEWNS).map_err(|error| StartError::NewNamespace(used_up(error.into())))?;
        // Slave, not private: later mounts of the host must reach `HostToContainer` volumes.
        let made = mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
            .and_then(|()| {
                let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
                mount(Some("nodlet"), self.scratch, Some("tmpfs"), flags, Some("mode=0711,size=4m"))
            });
        made.map_err(|error| StartError::Scratch(lacking(error, libc::ENODEV, "CONFIG_TMPFS")))?;
        Ok(self.scratch.to_owned())
    }

    #[expect(clippy::too_many_arguments, reason = "called once")]
    fn create(
        self,
        config: &ContainerConfig,
        bundle: &Path,
        state: &Path,
        execute: Execute,
        console: bool,
        late: Vec<LateVolume>,
        groups: Option<Vec<nix::unistd::Gid>>,
    ) -> Result<(), StartError> {
        let failed = |error: &(dyn Error + 'static)| {
            StartError::Create(failure::explain(&nodlet_host::error::chain(error), &config.process.cwd))
        };
        let pid = self.namespaces.pid.as_ref().map(|pid| pid.as_fd());
        let pid = pid.or(self.target.map(|target| target.pid.as_fd()));
        let executor = ReportingExecutor {
            execute,
            status: self.status.as_raw_fd(),
            pid_namespace: pid.map(|pid| pid.as_raw_fd()),
            capabilities: execute::capability_bits(&config.process.capabilities),
            seccomp: config.process.seccomp.clone().map(Arc::new),
            no_new_privileges: config.process.no_new_privileges,
            open_files: config.process.open_files,
            tty: config.tty,
            console,
            stdin: config.stdin,
            volumes: Arc::new(late),
            groups,
        };
        let mut builder = ContainerBuilder::new(config.id.clone(), SyscallType::Linux)
            .with_executor(executor)
            .with_stdout(self.stdout)
            .with_stderr(self.stderr);
        if let Some(stdin) = self.stdin {
            builder = builder.with_stdin(stdin);
        }
        let mut container = builder
            .with_root_path(state)
            .map_err(|error| failed(&error))?
            .as_init(bundle)
            .with_systemd(false)
            .as_sibling(true)
            .build()
            .map_err(|error| failed(&error))?;
        let pid = container.pid().map_or(0, |pid| pid.as_raw());
        protocol::send(self.status, &Status::Created { pid }, &[]).map_err(StartError::Bundle)?;
        container.start().map_err(|error| failed(&error))
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

/// User and groups of a process.
struct User {
    uid: u32,
    gid: u32,
    /// The primary group first, as in containerd.
    groups: Vec<u32>,
    home: String,
}

/// Finds the user: the manifest's numbers take precedence over the image's user; the groups of both are used.
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
    Ok(User { uid: found.uid, gid, groups, home: found.home })
}

/// Hides the machine's cgroups from libcontainer, which would work on all that it finds. It finds only the
/// container's own cgroup, in which it is already, and its writes there go to files of `view`. If it found
/// none, it would look for each of a dozen v1 controllers, which is a third of the time of a start. On a host
/// with v2 alone, a view of the container's own cgroup is made for its /sys/fs/cgroup; returns its path.
fn hide_cgroups(config: &ContainerConfig, view: &Path) -> io::Result<Option<PathBuf>> {
    const CGROUPS: &str = "/sys/fs/cgroup";
    let made = |name: &str| -> io::Result<PathBuf> {
        let directory = view.join(name);
        fs::create_dir(&directory)?;
        Ok(directory)
    };
    let unified =
        nix::sys::statfs::statfs(CGROUPS)?.filesystem_type() == nix::sys::statfs::CGROUP2_SUPER_MAGIC;
    let mut own = None;
    if unified && config.cgroup.v1_tasks.is_empty() {
        // The helper is in the container's leaf, which thus becomes the root of the view.
        unshare(CloneFlags::CLONE_NEWCGROUP).map_err(|error| used_up(error.into()))?;
        let directory = made("own")?;
        mount(Some("cgroup"), &directory, Some("cgroup2"), MsFlags::empty(), None::<&str>)?;
        own = Some(directory);
    }
    let leaf = CString::new(config.cgroup.unified.as_os_str().as_bytes())?;
    let found = sys::clone_mount(None, &leaf, false)?;
    umount2(CGROUPS, MntFlags::MNT_DETACH)?;
    sys::attach_mount(found.as_fd(), Path::new(CGROUPS))?;
    for name in ["cgroup.procs", "cgroup.kill"] {
        let nowhere = view.join(name);
        File::create(&nowhere)?;
        let file = Path::new(CGROUPS).join(name);
        mount(Some(&nowhere), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    }
    Ok(own)
}

/// Makes the private tmpfs the root of the helper's mount namespace, with the kernel's file systems in it: root of the
/// container's user namespace, as which libcontainer goes on, may not search the host's directories.
fn leave_host(scratch: &Path) -> io::Result<()> {
    for (path, name) in [(c"/dev", "dev"), (c"/sys", "sys")] {
        let mount = sys::clone_mount(None, path, true)?;
        let place = scratch.join(name);
        fs::create_dir(&place)?;
        sys::attach_mount(mount.as_fd(), &place)?;
    }
    // Not the host's: where a part of that is covered, the kernel lets no user namespace mount another.
    let proc = scratch.join("proc");
    fs::create_dir(&proc)?;
    mount(Some("proc"), &proc, Some("proc"), MsFlags::empty(), None::<&str>)?;
    std::env::set_current_dir(scratch)?;
    nix::unistd::pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    std::env::set_current_dir("/")
}

/// Sets the OOM score adjustment, which the container inherits. Without CAP_SYS_RESOURCE it cannot be
/// lowered; a container that is killed too early is better than none.
fn set_oom_score(score: i32) {
    let _ = fs::write("/proc/self/oom_score_adj", score.to_string());
}

/// Calls `act` in the mount namespace `other`, and returns to the present one.
fn within<T>(other: BorrowedFd, act: impl FnOnce() -> T) -> io::Result<T> {
    let own = File::open("/proc/self/ns/mnt")?;
    setns(other, CloneFlags::CLONE_NEWNS)?;
    let result = act();
    setns(own, CloneFlags::CLONE_NEWNS)?;
    Ok(result)
}

fn open_in_root(root: BorrowedFd, path: &Path, flags: i32) -> io::Result<File> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    sys::open_in(root, relative, flags, Resolve::InRoot)
}
