//! The last steps in the container, before and with the execution of its process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::sched::{CloneFlags, setns};
use nodlet_host::launch::{OpenFilesConfig, SeccompConfig};

use super::CONSOLE;
use super::volume::{self, LateVolume};
use crate::enter;
use crate::error::{self, StepError};
use crate::execute::Execute;
use crate::protocol::{self, Status};
use crate::sys::{self, Parent};

/// Runs in the container in place of libcontainer's own executor, which looks for files with the wrong `PATH`
/// and does not report its errors.
#[derive(Clone)]
pub(super) struct ReportingExecutor {
    pub(super) execute: Execute,
    /// The status socket, which the kernel closes when the process is executed.
    pub(super) status: std::os::fd::RawFd,
    /// The PID namespace that the container shares with others.
    pub(super) pid_namespace: Option<std::os::fd::RawFd>,
    /// The capabilities of the container, as bits.
    pub(super) capabilities: u64,
    /// The filter of the container's system calls.
    pub(super) seccomp: Option<Arc<SeccompConfig>>,
    pub(super) no_new_privileges: bool,
    pub(super) open_files: Option<OpenFilesConfig>,
    /// Whether to open a terminal of the container, as its own user.
    pub(super) tty: bool,
    /// Whether the terminal is also `/dev/console`.
    pub(super) console: bool,
    /// Whether input of clients goes to the terminal.
    pub(super) stdin: bool,
    /// The volumes that are attached first. libcontainer leaves their descriptors open.
    pub(super) volumes: Arc<Vec<LateVolume>>,
    /// The groups of the process, if libcontainer did not set them.
    pub(super) groups: Option<Vec<nix::unistd::Gid>>,
}

impl ReportingExecutor {
    fn attach_volumes(&self) -> Result<(), StepError> {
        for late in self.volumes.iter() {
            let point = late.point.as_ref().map(|point| point.as_fd());
            volume::attach_late(late.mount.as_fd(), point, &late.place).map_err(|source| {
                StepError::new(format!("mount the volume at {}", late.place.display()), source)
            })?;
        }
        Ok(())
    }

    fn open_terminal(&self, status: BorrowedFd) -> io::Result<OwnedFd> {
        let (master, slave) = enter::open_terminal(None, None)?;
        if self.console {
            let terminal = sys::clone_mount(Some(slave.as_fd()), c"", false)?;
            sys::attach_mount(terminal.as_fd(), Path::new(CONSOLE))?;
        }
        protocol::send(status, &Status::Terminal { stdin: self.stdin }, &[master.as_fd()])?;
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
        sys::set_capabilities(sys::own_capabilities(self.capabilities)?)?;
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
        if let Err(error) = self.attach_volumes() {
            return error;
        }
        if let Some(Err(error)) = self.groups.as_deref().map(nix::unistd::setgroups) {
            return StepError::new("set its groups", error.into());
        }
        let slave = match self.tty.then(|| self.open_terminal(status)).transpose() {
            Ok(slave) => slave,
            Err(error) => return StepError::new("open a terminal", error),
        };
        // From here on, nothing is opened, and the filter of a pod may forbid the call.
        if let Err(error) = sys::set_open_files(self.open_files) {
            return StepError::new("set the limit of open files", error);
        }
        if let Some(pid) = self.pid_namespace {
            // libcontainer marks it close-on-exec and leaves it open, as the next one.
            if let Err(error) = self.enter_pid_namespace(sys::kept(pid), status, slave.as_ref()) {
                return StepError::new("enter the PID namespace that the container shares", error);
            }
        }
        if let Err(error) = enter::start_session(slave.as_ref()) {
            return StepError::new("take its terminal", error);
        }
        // As late as possible, because nodlet's own calls are filtered too.
        if self.installs_late()
            && let Err(error) = self.install_filter()
        {
            return StepError::new("install the seccomp filter", error);
        }
        self.execute.run().into()
    }

    /// Whether the filter can be installed as the last step. In a shared PID namespace, that needs no_new_privs, because
    /// the process has no CAP_SYS_ADMIN there.
    fn installs_late(&self) -> bool {
        self.pid_namespace.is_none() || self.no_new_privileges
    }

    fn install_filter(&self) -> io::Result<()> {
        self.seccomp.as_ref().map_or(Ok(()), |filter| sys::install_filter(filter))
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
