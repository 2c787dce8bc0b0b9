//! The use of libcontainer: everything that calls it, and everything that works around it. No other code of the product
//! names the crate or its types.
//!
//! # What it does
//!
//! In two processes that it forks from the start helper: it joins the pod's network, IPC, UTS and user namespaces, makes
//! the container's mount namespace and, if it has one of its own, its PID namespace; mounts /proc, /sys and /dev/mqueue,
//! makes devices and links in /dev, enters the root file system by `pivot_root`; masks paths and makes others, or the root,
//! read-only; sets user, groups, umask, `no_new_privs`, capabilities and working directory; passes on the streams; and waits
//! for the start, upon which [`executor`] continues in the container.
//!
//! # What it must not see
//!
//! * The supervisor's process, and any process with threads.
//! * The machine's cgroups ([`cgroups`]).
//! * The paths of volumes: other processes change what is behind them.
//! * A PID namespace with processes, while it has more rights than they.
//! * The environment of the container, with its secrets: `config.json` does not have it.
//! * In a user namespace, the directories and devices of the host.
//!
//! # Workarounds
//!
//! Each with the fault of libcontainer 0.7.0, and the condition under which it goes. "Upstream" is a report in
//! `docs/upstream`.
//!
//! | Workaround | Fault | Goes when |
//! |---|---|---|
//! | a helper is forked for each start and ends with it (`start.rs`) | after `clone3` the child allocates and reads the environment: with threads, it hangs; a failed build leaves descriptors and zombies behind; the caller is not dumpable afterwards | it executes a program for its processes, and cleans up |
//! | the supervisor reaps children that it does not know (`process/children.rs`) | the process between helper and container becomes a sibling, too, and nobody is told its PID | it reaps that process |
//! | bundle and state are in a private tmpfs of the helper ([`Container::run`]) | the specification is read from a file alone; the state has a PID without its start time | the builder accepts a specification, and needs no state |
//! | [`cgroups`] | cgroups cannot be switched off: it would move the processes, enable all controllers from the root on, kill all processes of the path after a failure, and look for a dozen v1 controllers | the builder can leave cgroups alone |
//! | `with_systemd(false)` | it uses systemd's cgroups by default | with the one above |
//! | a /dev of its own, checked afterwards ([`root`]); `assemble::check_dev` | it makes links in /dev by joining paths on the host's side (like CVE-2026-41579) | upstream "links in dev" is accepted |
//! | /proc, /sys and /dev are made directories before ([`root`]) | it mounts on no link, and does not report the reason | its errors have causes |
//! | the root is mounted writable (`start.rs`) | it makes mount points in the root before that is read-only | never: a runtime does that |
//! | volumes are attached before, by descriptor (`start/volume.rs`) | it resolves the paths of mounts again, and a container could have replaced them | mounts by descriptor |
//! | [`LateVolume`]: some volumes are attached by the container's process | it mounts and makes its own ones after those of the helper, and gives the container a copy of these | with the one above |
//! | devices are made before in a user namespace ([`dev`]) | it mounts the host's nodes there, which belong to nobody | it makes nodes before it joins |
//! | the helper's tmpfs becomes its root ([`Container::run`]) | as root of the user namespace it opens the root file system by its path, and may not search the host's directories | it opens it before it joins |
//! | namespaces are `/proc/self/fd/N` ([`spec`]) | with a user namespace, it may not open those below the supervisor's PID | namespaces by descriptor |
//! | a shared PID namespace is entered last, and its /proc attached before ([`executor`], [`root`]) | its process is in it with all capabilities and the host's mounts (`docs/decisions/0007`) | it enters that namespace last |
//! | the helper has no groups (`start.rs`) | it keeps the caller's groups if a container has none | it sets an empty list, too |
//! | groups are set by [`executor`] in a user namespace with a shared /proc | it reads /proc/self, which a /proc of another PID namespace does not have | it needs no /proc for that |
//! | `HOME` is in the specification ([`spec`]) | it looks it up in an /etc/passwd that a volume may have replaced | it leaves `HOME` to the executor |
//! | more capabilities until the program is executed ([`spec`]) | it drops capabilities before the executor, which mounts, enters namespaces and installs filters | the executor runs before |
//! | the seccomp filter is installed by [`executor`] | it needs libseccomp, with which a static binary becomes a dynamic one | it accepts compiled filters |
//! | the AppArmor profile is set by the helper (`start.rs`) | it is set by way of the container's /proc, in which a container can put files | it is set before `pivot_root` |
//! | OOM score and limits of open files and real-time priorities are set by the helper ([`Container::run`]) | a score that may not be lowered ends the start, and limits apply to its own processes | scores and limits are best effort, and set last |
//! | the streams belong to the container's user (`start.rs`) | it does not change their owner, and the process could not open its own /dev/stdout | it does |
//! | terminals are opened by [`executor`] | its console socket needs a process of the host that answers it | never: nodlet's way is shorter |
//! | an executor of its own ([`executor`]) | its own looks for the program in the wrong `PATH`, and nobody learns why it failed | it reports errors after the start |
//! | [`failure`] | errors name steps of its code, and those of its innermost process lose their cause on the way | errors are passed on as data |
//! | exec is nodlet's own (`enter.rs`) | it ignores user, directory, limits and filter of the container, leaves a socket behind each time, and the zombie of a failed exec keeps a container from ending | all of it |
//! | its messages are compiled out (`tracing`, `board/Cargo.toml`) | they go to the container's stderr | they go to a descriptor of the caller |
//! | the crate is patched (`xtask/patches`, `build.rs`) | ids of 16 bits and a type of musl on 32-bit processors | upstream "ids of 16 bits" and "type of f_type" are accepted |
//! | `regex` is replaced by a smaller crate (`runtime/supervisor/regex`) | it is linked for Intel RDT alone, and takes 0.95 MB | that is optional |

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::error::LibcontainerError;
use libcontainer::syscall::syscall::SyscallType;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::Gid;
use nodlet_host::launch::{ContainerConfig, DeviceNode};
use nodlet_kernel::own_file;

use super::error::StepError;
use super::execute::Execute;
use super::protocol::{self, Status};
use super::sandbox::Namespaces;
use super::sys;
use super::user::User;

mod cgroups;
pub(crate) mod dev;
mod executor;
mod failure;
pub(crate) mod root;
mod spec;

pub(super) use executor::LateVolume;
use executor::ReportingExecutor;

/// The path under which a container with a terminal may find it.
pub(super) const CONSOLE: &str = "/dev/console";

/// A container whose root file system, devices and volumes the start helper has prepared.
pub(super) struct Container<'a> {
    pub(super) config: ContainerConfig,
    pub(super) namespaces: &'a Namespaces,
    /// The PID namespace that the container shares with others, which its process enters last. Its /proc is attached;
    /// without one, libcontainer mounts /proc of the container's own PID namespace, or of the host's.
    pub(super) pid_namespace: Option<BorrowedFd<'a>>,
    pub(super) user: &'a User,
    /// Devices that libcontainer makes in addition to those that every container has.
    pub(super) devices: Vec<DeviceNode>,
    pub(super) late: Vec<LateVolume>,
    /// Whether the container's terminal is also `/dev/console`.
    pub(super) has_console: bool,
    pub(super) status: BorrowedFd<'a>,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Where libcontainer finds what was prepared for it.
struct Paths {
    root: PathBuf,
    bundle: PathBuf,
    state: PathBuf,
    /// What is mounted at the container's /sys/fs/cgroup.
    cgroup: Option<PathBuf>,
    /// A file that the terminal will replace.
    console: Option<PathBuf>,
}

impl Container<'_> {
    /// Starts the container, whose root file system is at `root` in the private tmpfs `scratch` of the calling helper.
    pub(super) fn run(self, scratch: &Path, root: PathBuf) -> Result<(), StepError> {
        let paths = self.paths(scratch, root)?;
        let spec =
            serde_json::to_vec(&spec::make(&self, &paths)).map_err(StepError::at("write the bundle"))?;
        own_file::write(&paths.bundle.join("config.json"), spec)
            .map_err(StepError::at("write the bundle"))?;
        // The container inherits it. Without CAP_SYS_RESOURCE it cannot be lowered; a container that is killed too early is
        // better than none.
        let _ = fs::write("/proc/self/oom_score_adj", self.config.oom_score_adj.to_string());
        sys::allow_real_time(self.config.rtprio)
            .map_err(StepError::at("allow real-time priorities (rtprio.nodlet.dev)"))?;
        sys::raise_open_files(self.config.process.open_files)
            .map_err(StepError::at("set the limit of open files (io.podman.annotations.ulimit)"))?;
        self.create(&paths)
    }

    /// Makes what libcontainer needs besides the root file system, and hides what it must not see.
    fn paths(&self, scratch: &Path, root: PathBuf) -> Result<Paths, StepError> {
        let failed = || StepError::at("mount a private tmpfs");
        let directory = |name: &str| -> Result<PathBuf, StepError> {
            let path = scratch.join(name);
            fs::create_dir(&path).map_err(failed())?;
            Ok(path)
        };
        let cgroup = cgroups::hide(&self.config.cgroup, &directory("cgroup")?)
            .map_err(StepError::at("join the container's cgroup"))?;
        let console = self.has_console.then(|| scratch.join("bundle/console"));
        let mut paths =
            Paths { root, bundle: directory("bundle")?, state: directory("state")?, cgroup, console };
        if let Some(console) = &paths.console {
            own_file::write(console, "").map_err(StepError::at("write the bundle"))?;
        }
        if self.has_users() {
            leave_host(scratch).map_err(failed())?;
            let Paths { root, bundle, state, cgroup, console } = &mut paths;
            for path in [root, bundle, state].into_iter().chain(cgroup).chain(console) {
                *path = Path::new("/").join(path.strip_prefix(scratch).unwrap_or(path));
            }
        }
        Ok(paths)
    }

    fn create(self, paths: &Paths) -> Result<(), StepError> {
        let groups = self.user.groups.iter().copied().map(Gid::from_raw).collect();
        let groups = self.sets_groups_late().then_some(groups);
        let config = Arc::new(self.config);
        let executor = ReportingExecutor {
            execute: Execute::new(&config.process, &self.user.home, config.tty),
            status: self.status.as_raw_fd(),
            pid_namespace: self.pid_namespace.map(|pid| pid.as_raw_fd()),
            console: self.has_console,
            volumes: Arc::new(self.late),
            groups,
            config: config.clone(),
        };
        let failed = |error: LibcontainerError| {
            StepError::from(format!(
                "create the container: {}",
                failure::explain(&error, &config.process.cwd)
            ))
        };
        let mut builder = ContainerBuilder::new(config.id.clone(), SyscallType::Linux)
            .with_executor(executor)
            .with_stdout(self.stdout)
            .with_stderr(self.stderr);
        if let Some(stdin) = self.stdin {
            builder = builder.with_stdin(stdin);
        }
        let mut container = builder
            .with_root_path(&paths.state)
            .map_err(failed)?
            .as_init(&paths.bundle)
            .with_systemd(false)
            .as_sibling(true)
            .build()
            .map_err(failed)?;
        let pid = container.pid().map_or(0, |pid| pid.as_raw());
        protocol::send(self.status, &Status::Created { pid }, &[])
            .map_err(StepError::at("report the container's process"))?;
        // At once: until then, the container's process has copies of all descriptors.
        container.start().map_err(failed)
    }

    /// Whether the pod has a user namespace of its own.
    fn has_users(&self) -> bool {
        self.namespaces.user.is_some()
    }

    /// Whether [`executor`] sets the groups of the process.
    fn sets_groups_late(&self) -> bool {
        self.has_users() && self.pid_namespace.is_some()
    }

    /// Whether [`executor`] has to mount or enter something before it executes the program.
    fn needs_setup_inside(&self) -> bool {
        self.has_console || !self.late.is_empty() || self.pid_namespace.is_some()
    }
}

/// Makes the private tmpfs the root of the helper's mount namespace, with the kernel's file systems in it.
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
