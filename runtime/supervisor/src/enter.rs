//! Executes a process in a running container: with the container's user, groups, capabilities, environment
//! and working directory, in the same namespaces, and in its own cgroup below the container's.
//!
//! A helper enters the namespaces by the container's pidfd, takes the container's identity, and forks the
//! process as the supervisor's child, because only the children of a process that enters a PID namespace are
//! in it. A process in there with CAP_SYS_PTRACE can read, write and control that child. Therefore the child
//! shares no memory with the helper, and has no capability, descriptor or mount that the container does not
//! have. A process that hangs or times out is ended, with its descendants, by one `cgroup.kill` of its
//! cgroup.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use nix::unistd::{Gid, Uid};
use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};
use serde::{Deserialize, Serialize};

use super::device;
use super::error::{self, StepError};
use super::execute::{Execute, capability_bits};
use super::protocol::{self, Status};
use super::saved;
use super::sys::{self, Parent};
use super::user::User;
use nodlet_host::launch::{CgroupPaths, ExecConfig, ProcessConfig};

/// The cgroup of an executed process, below the container's leaf.
pub(super) fn cgroup(leaf: &Path, id: u32) -> PathBuf {
    leaf.join(format!("{PREFIX}{id}"))
}

/// Prefix of the names of cgroups of executed processes.
pub(super) const PREFIX: &str = "exec-";

/// The input of the exec helper. All descriptors are inherited.
pub(super) struct Enter<'a> {
    /// A [`nodlet_host::launch::ContainerConfig`].
    pub(super) container: BorrowedFd<'a>,
    /// An [`ExecConfig`].
    pub(super) config: BorrowedFd<'a>,
    /// The pidfd of the container's first process.
    pub(super) pidfd: BorrowedFd<'a>,
    pub(super) user: &'a User,
    pub(super) status: BorrowedFd<'a>,
    pub(super) stdio: [Option<BorrowedFd<'a>>; 3],
}

impl Enter<'_> {
    /// Runs the helper; never returns.
    pub(super) fn run(self) -> ! {
        sys::set_name(c"nodlet:exec");
        let mut keep = vec![
            self.container.as_raw_fd(),
            self.config.as_raw_fd(),
            self.pidfd.as_raw_fd(),
            self.status.as_raw_fd(),
        ];
        keep.extend(self.stdio.iter().flatten().map(|stream| stream.as_raw_fd()));
        sys::close_all_but(&keep);
        match self.enter() {
            Ok(()) => sys::exit_now(0),
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&self, error: &StepError) -> ! {
        let failed = Status::Failed { run: true, message: error::message(error) };
        let _ = protocol::send(self.status, &failed, &[]);
        sys::exit_now(1)
    }

    fn enter(&self) -> Result<(), StepError> {
        let container: ContainerToEnter = protocol::read_memfd(self.container)
            .map_err(StepError::at("exec: read the container's configuration"))?;
        let config: ExecConfig =
            protocol::read_memfd(self.config).map_err(StepError::at("exec: read the configuration"))?;
        sys::join_tasks(&container.cgroup.v1_tasks)
            .map_err(StepError::at("exec: join the container's cgroup"))?;
        let _ = fs::write("/proc/self/oom_score_adj", container.oom_score_adj.to_string());
        sys::allow_real_time(container.rtprio).map_err(StepError::at("exec: allow real-time priorities"))?;
        sys::raise_open_files(container.process.open_files)
            .map_err(StepError::at("exec: raise the limit of open files"))?;
        sys::new_session_keyring().map_err(StepError::at("exec: make a session keyring"))?;
        if let Some(profile) = &container.process.app_armor {
            // Here, where /proc is the host's. The process that this one forks inherits it up to its first program.
            sys::set_app_armor_profile(profile).map_err(|source| {
                StepError::new(format!("exec: apply the AppArmor profile {profile}"), source)
            })?;
        }
        sys::set_dumpable(false);
        let first = container.first_id.unwrap_or(0);
        if let Some(change) = &config.devices {
            setns(self.pidfd, CloneFlags::CLONE_NEWNS)
                .map_err(io::Error::from)
                .map_err(StepError::at("exec: enter the container"))?;
            let owner = User { uid: first + self.user.uid, gid: first + self.user.gid, ..self.user.clone() };
            device::apply(change, &owner, first).map_err(|(path, source)| {
                StepError::new(format!("change the device {}", path.display()), source)
            })?;
        }
        let mut all = CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWCGROUP;
        if container.first_id.is_some() {
            all |= CloneFlags::CLONE_NEWUSER;
            // It could not open its own streams again if they belonged to a user that it does not have.
            for stream in self.stdio.iter().flatten() {
                let (uid, gid) = (Uid::from_raw(first + self.user.uid), Gid::from_raw(first + self.user.gid));
                let _ = nix::unistd::fchown(stream.as_raw_fd(), Some(uid), Some(gid));
            }
        }
        setns(self.pidfd, all)
            .map_err(io::Error::from)
            .map_err(StepError::at("exec: enter the container"))?;
        if container.first_id.is_some() {
            let (uid, gid) = (Uid::from_raw(0), Gid::from_raw(0));
            nix::unistd::setresgid(gid, gid, gid)
                .and_then(|()| nix::unistd::setresuid(uid, uid, uid))
                .map_err(io::Error::from)
                .map_err(StepError::at("exec: become root of the container's user namespace"))?;
        }
        let terminal = if config.tty {
            Some(
                open_terminal(Some(self.user), config.size)
                    .map_err(StepError::at("exec: open a terminal"))?,
            )
        } else {
            None
        };
        let (master, slave) = terminal.unzip();
        if slave.is_none() {
            for (number, stream) in (0..).zip(self.stdio) {
                if let Some(stream) = stream {
                    nix::unistd::dup2(stream.as_raw_fd(), number)
                        .map_err(io::Error::from)
                        .map_err(StepError::at("exec: pass on stdio"))?;
                }
            }
        }
        let process = container.process;
        // As of the container's first process.
        let has_terminal = config.tty || container.tty;
        let execute = Execute::with_args(&process, &config.args, &self.user.home, has_terminal);
        change_directory(&process.cwd)
            .map_err(|source| StepError::new(format!("exec: chdir to {}", process.cwd.display()), source))?;
        // From here on, nothing is opened, and the filter of a pod may forbid the call.
        sys::set_open_files(process.open_files)
            .map_err(StepError::at("exec: set the limit of open files"))?;
        self.apply_identity(&process).map_err(StepError::at("exec: become the container's user"))?;
        let mut keep = vec![self.status.as_raw_fd()];
        keep.extend(master.iter().chain(&slave).map(|end| end.as_raw_fd()));
        sys::close_all_but(&keep);

        // Only from here on: a process in the container's PID namespace must never have more than the
        // container has.
        let Some(pid) = sys::clone(Parent::CallersParent, None).map_err(StepError::at("exec: fork"))? else {
            drop(master);
            if config.devices.is_some() {
                sys::exit_now(0);
            }
            if let Err(error) = start_session(slave.as_ref()) {
                self.fail(&StepError::new("exec: take its terminal", error));
            }
            // As late as possible, because nodlet's own calls are filtered too.
            if let Some(filter) = process.seccomp.as_ref().filter(|_| process.no_new_privileges)
                && let Err(error) = sys::install_filter(filter)
            {
                self.fail(&StepError::new("exec: install the seccomp filter", error));
            }
            self.fail(&execute.run().into())
        };
        let master: Vec<BorrowedFd> = master.iter().map(|master| master.as_fd()).collect();
        protocol::send(self.status, &Status::Created { pid: pid.as_raw() }, &master)
            .map_err(StepError::at("exec: report the process"))
    }

    fn apply_identity(&self, process: &ProcessConfig) -> io::Result<()> {
        let wanted = capability_bits(&process.capabilities);
        // To install a filter.
        let permitted = sys::own_capabilities(wanted | capability_bits(&["CAP_SYS_ADMIN"]))?;
        let wanted = permitted & wanted;
        for number in (0..64).filter(|number| wanted & (1 << number) == 0) {
            match sys::drop_from_bounding_set(number) {
                Ok(()) => {}
                Err(nix::Error::EINVAL) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let groups: Vec<Gid> = self.user.groups.iter().copied().map(Gid::from_raw).collect();
        nix::unistd::setgroups(&groups)?;
        let _ = rustix::thread::set_keep_capabilities(true);
        let (uid, gid) = (Uid::from_raw(self.user.uid), Gid::from_raw(self.user.gid));
        nix::unistd::setresgid(gid, gid, gid)?;
        nix::unistd::setresuid(uid, uid, uid)?;
        if process.no_new_privileges {
            let _ = rustix::thread::set_no_new_privs(true);
        }
        if let Some(filter) = process.seccomp.as_ref().filter(|_| !process.no_new_privileges) {
            // Installing a filter without no_new_privs needs CAP_SYS_ADMIN.
            sys::set_capabilities(permitted)?;
            sys::install_filter(filter)?;
        }
        Ok(sys::set_capabilities(wanted)?)
    }
}

/// Changes to the container's working directory. The container may have put a link there, which the helper,
/// with all capabilities, can follow through `/proc/N/root` of processes that the container sees. For a
/// directory outside of the container's root, the kernel has no path.
fn change_directory(path: &Path) -> io::Result<()> {
    std::env::set_current_dir(path)?;
    match std::env::current_dir() {
        Ok(reached) if reached.is_absolute() => Ok(()),
        Ok(_) | Err(_) => Err(io::Error::other("it leads out of the container's root")),
    }
}

/// The fields of a [`nodlet_host::launch::ContainerConfig`] that the helper needs; others are ignored.
#[derive(Deserialize)]
struct ContainerToEnter {
    process: ProcessConfig,
    cgroup: CgroupPaths,
    oom_score_adj: i32,
    #[serde(default)]
    tty: bool,
    #[serde(default)]
    rtprio: u32,
    #[serde(default)]
    first_id: Option<u32>,
}

/// Makes the calling process a session leader with this terminal, if there is one.
pub(super) fn start_session(terminal: Option<&OwnedFd>) -> io::Result<()> {
    let _ = nix::unistd::setsid();
    terminal.map_or(Ok(()), |slave| attach_terminal(slave.as_fd()))
}

/// Opens a terminal of the container's own /dev/pts and returns master and slave. The slave belongs to
/// `user`, or to the caller without one.
pub(super) fn open_terminal(user: Option<&User>, size: Option<(u16, u16)>) -> io::Result<(OwnedFd, OwnedFd)> {
    // A file that the container has put there instead must not block this call.
    let flags = libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let master = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/pts/ptmx")?;
    let magic = nix::sys::statfs::fstatfs(&master)?.filesystem_type();
    if magic != DEVPTS {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the container's /dev/pts is not a devpts"));
    }
    if let Some((ws_col, ws_row)) = size {
        tcsetwinsize(&master, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?;
    }
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    if let Some(user) = user {
        nix::unistd::fchown(slave.as_raw_fd(), Some(Uid::from_raw(user.uid)), None)?;
    }
    Ok((master.into(), slave))
}

/// Makes `slave` the three standard streams of the calling process, which leads a session, and the terminal
/// of that session.
pub(super) fn attach_terminal(slave: BorrowedFd) -> io::Result<()> {
    for number in 0..3 {
        nix::unistd::dup2(slave.as_raw_fd(), number)?;
    }
    Ok(rustix::process::ioctl_tiocsctty(slave)?)
}

/// The file system type of terminals.
pub(super) const DEVPTS: nix::sys::statfs::FsType = nix::sys::statfs::FsType(0x1cd1);

/// A process that was executed in a container, as the supervisor knows it.
#[derive(Serialize, Deserialize)]
pub(super) struct Exec {
    pub(super) id: u32,
    pub(super) cgroup: PathBuf,
    /// `cgroup.events` of the process's cgroup.
    #[serde(skip)]
    pub(super) events: Option<File>,
    pub(super) state: ExecState,
    /// Whether the connected agent knows that the process runs.
    #[serde(skip)]
    pub(super) started_reported: bool,
    /// Whether the connected agent knows how the process ended.
    #[serde(skip)]
    pub(super) ended_reported: bool,
    /// Its cgroup is gone.
    #[serde(skip)]
    pub(super) removed: bool,
    /// How often its remaining descendants were moved to the container's cgroup, at most [`MAX_MOVES`].
    #[serde(skip)]
    pub(super) moves: u8,
}

/// The limit of [`Exec::moves`]: moving costs the kernel's time, and processes that fork without end are not
/// moved.
pub(super) const MAX_MOVES: u8 = 3;

/// The state of an executed process.
#[expect(clippy::large_enum_variant, reason = "a failure is rare, short-lived and of fixed capacity")]
#[derive(Serialize, Deserialize)]
pub(super) enum ExecState {
    #[serde(skip)]
    Starting {
        helper: Option<nix::unistd::Pid>,
        status: OwnedFd,
        pid: Option<nix::unistd::Pid>,
        terminal: Option<OwnedFd>,
    },
    Running {
        #[serde(with = "saved")]
        pid: nix::unistd::Pid,
        #[serde(default, with = "saved")]
        terminal: Option<OwnedFd>,
    },
    Ended {
        #[serde(with = "saved")]
        pid: nix::unistd::Pid,
        code: i32,
        /// The terminal, kept until the agent has it, because it still contains the last output.
        #[serde(default, with = "saved")]
        terminal: Option<OwnedFd>,
    },
    Failed {
        message: protocol::Message,
    },
}

impl Exec {
    /// A process in this state, of which no agent knows anything.
    pub(super) fn new(id: u32, cgroup: PathBuf, state: ExecState) -> Exec {
        let (started_reported, ended_reported) = (false, false);
        Exec { id, cgroup, events: None, state, started_reported, ended_reported, removed: false, moves: 0 }
    }

    /// Whether the process has ended; its descendants may still be in its cgroup.
    pub(super) fn has_ended(&self) -> bool {
        match &self.state {
            ExecState::Starting { .. } | ExecState::Running { .. } => false,
            ExecState::Ended { .. } | ExecState::Failed { .. } => true,
        }
    }

    /// The terminal of the process, as long as the agent has not taken it.
    pub(super) fn terminal(&self) -> Option<&OwnedFd> {
        match &self.state {
            ExecState::Running { terminal, .. } | ExecState::Ended { terminal, .. } => terminal.as_ref(),
            ExecState::Starting { .. } | ExecState::Failed { .. } => None,
        }
    }

    /// Ends a failed start.
    pub(super) fn fail(&mut self, message: protocol::Message) {
        let _ = sys::kill_cgroup(&self.cgroup);
        self.state = ExecState::Failed { message };
    }
}
