//! The last steps in the container, before and with the execution of its process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::sched::{CloneFlags, setns};
use nix::unistd::Gid;
use nodlet_host::launch::ContainerConfig;

use crate::enter;
use crate::error::{self, StepError};
use crate::execute::{self, Execute};
use crate::path::describe_link;
use crate::protocol::{self, Status};
use crate::sys::{self, Parent, Resolve};

use super::CONSOLE;

/// A volume that the container's process attaches before it executes its program: it must be over what libcontainer mounts
/// and makes, or reach the host.
pub(crate) struct LateVolume {
    /// The detached mount.
    pub(crate) mount: OwnedFd,
    /// The mount point, if it is in another late volume.
    pub(crate) point: Option<File>,
    /// The path of the mount point without links, used if `point` is `None`.
    pub(crate) place: PathBuf,
}

impl LateVolume {
    /// Attaches the volume; called by the container's process, in the container's root.
    fn attach(&self) -> io::Result<()> {
        if let Some(point) = &self.point {
            return Ok(sys::attach_mount_at(&self.mount, point)?);
        }
        let root = sys::open_path(Path::new("/"))?;
        let relative = self.place.strip_prefix("/").unwrap_or(&self.place);
        let point =
            sys::open_in(root.as_fd(), relative, libc::O_PATH, Resolve::NoLinks).map_err(describe_link)?;
        Ok(sys::attach_mount_at(&self.mount, point)?)
    }
}

/// Runs in the container in place of libcontainer's own executor.
#[derive(Clone)]
pub(super) struct ReportingExecutor {
    pub(super) config: Arc<ContainerConfig>,
    pub(super) execute: Execute,
    /// The status socket, which the kernel closes when the process is executed.
    pub(super) status: RawFd,
    /// The PID namespace that the container shares with others.
    pub(super) pid_namespace: Option<RawFd>,
    /// Whether the terminal is also `/dev/console`.
    pub(super) console: bool,
    /// The volumes that are attached first. libcontainer leaves their descriptors open.
    pub(super) volumes: Arc<Vec<LateVolume>>,
    /// The groups of the process, if libcontainer did not set them.
    pub(super) groups: Option<Vec<Gid>>,
}

impl ReportingExecutor {
    fn open_terminal(&self, status: BorrowedFd) -> io::Result<OwnedFd> {
        let (master, slave) = enter::open_terminal(None, None)?;
        if self.console {
            let terminal = sys::clone_mount(Some(slave.as_fd()), c"", false)?;
            sys::attach_mount(terminal.as_fd(), Path::new(CONSOLE))?;
        }
        protocol::send(status, &Status::Terminal { stdin: self.config.stdin }, &[master.as_fd()])?;
        Ok(slave)
    }

    /// Continues in the PID namespace that the container shares, in a new child of the supervisor, after the
    /// supervisor has read its name: a run without a named process would not be counted. The calling process
    /// ends. A process in the namespace with CAP_SYS_PTRACE can take over that child, so it has no more
    /// capabilities, descriptors and mounts than the container will have.
    fn enter_pid_namespace(
        &self,
        pid: BorrowedFd,
        status: BorrowedFd,
        slave: Option<&OwnedFd>,
    ) -> io::Result<()> {
        setns(pid, CloneFlags::CLONE_NEWPID)?;
        let mut keep = vec![status.as_raw_fd()];
        keep.extend(slave.iter().map(|slave| slave.as_raw_fd()));
        sys::close_all_but(&keep);
        sys::set_dumpable(false);
        if !self.installs_late() {
            self.install_filter()?;
        }
        let capabilities = execute::capability_bits(&self.config.process.capabilities);
        sys::set_capabilities(sys::own_capabilities(capabilities)?)?;
        match sys::clone(Parent::CallersParent, None)? {
            None => match protocol::wait_for_continue(status) {
                Ok(()) => Ok(()),
                Err(_) => sys::exit_now(1),
            },
            Some(pid) => {
                let reported = protocol::send(status, &Status::Created { pid: pid.as_raw() }, &[]);
                sys::exit_now(if reported.is_ok() { 0 } else { 1 })
            }
        }
    }

    /// Executes the process; returns only on failure, with the reason.
    fn execute(&self, status: BorrowedFd) -> StepError {
        match self.prepare(status) {
            // Its terminal stays open, because the filter may forbid to close it.
            Ok(_terminal) => self.execute.run().into(),
            Err(error) => error,
        }
    }

    /// Does what is left until the process can be executed. Returns the terminal.
    fn prepare(&self, status: BorrowedFd) -> Result<Option<OwnedFd>, StepError> {
        for late in self.volumes.iter() {
            let step = || format!("mount the volume at {}", late.place.display());
            late.attach().map_err(|source| StepError::new(step(), source))?;
        }
        if let Some(groups) = &self.groups {
            nix::unistd::setgroups(groups).map_err(StepError::at("set its groups"))?;
        }
        let terminal = self.config.tty.then(|| self.open_terminal(status)).transpose();
        let slave = terminal.map_err(StepError::at("open a terminal"))?;
        // From here on, nothing is opened, and the filter of a pod may forbid the call.
        sys::set_open_files(self.config.process.open_files)
            .map_err(StepError::at("set the limit of open files"))?;
        if let Some(pid) = self.pid_namespace {
            // libcontainer marks it close-on-exec and leaves it open, as the next one.
            self.enter_pid_namespace(sys::kept(pid), status, slave.as_ref())
                .map_err(StepError::at("enter the PID namespace that the container shares"))?;
        }
        enter::start_session(slave.as_ref()).map_err(StepError::at("take its terminal"))?;
        // As late as possible, because nodlet's own calls are filtered too.
        if self.installs_late() {
            self.install_filter().map_err(StepError::at("install the seccomp filter"))?;
        }
        Ok(slave)
    }

    /// Whether the filter can be installed as the last step. In a shared PID namespace, that needs no_new_privs, because
    /// the process has no CAP_SYS_ADMIN there.
    fn installs_late(&self) -> bool {
        self.pid_namespace.is_none() || self.config.process.no_new_privileges
    }

    fn install_filter(&self) -> io::Result<()> {
        self.config.process.seccomp.as_ref().map_or(Ok(()), sys::install_filter)
    }
}

impl Executor for ReportingExecutor {
    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let status = sys::kept(self.status);
        let failed = self.execute(status);
        let _ = protocol::send(status, &Status::Failed { run: true, message: error::message(&failed) }, &[]);
        sys::exit_now(128)
    }

    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }

    fn setup_envs(&self, _: std::collections::HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
