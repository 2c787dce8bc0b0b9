//! The agent's end of a supervisor: [`Supervisor::spawn`] starts one, and [`Supervisor::connect`] connects to
//! the one that an earlier agent has started.
//!
//! A supervisor is not a child of the agent: it is forked twice, so that its situation does not change when
//! the agent dies, and PID 1 reaps it. Its socket and its lock are made here and handed over, so there is no
//! moment at which it exists and cannot be found.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::Serialize;
use smol::Async;

use super::ExitRecord;
use super::protocol::{self, Report, ReportedUser, Request, VERSION, cut};
use nodlet_core::facts::User;
use nodlet_core::time::Instant;
use nodlet_host::launch::{ContainerConfig, ExecConfig, SandboxConfig};

mod spawn;

pub use spawn::remove_free_locks;
pub(super) use spawn::seal;
use spawn::{connect, execute, listen, lock};

/// A failure between agent and supervisor.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Another supervisor has a pod of this name.
    #[error("lock {name}: a supervisor of a pod of that name lives")]
    Locked {
        /// `<namespace>_<name>`.
        name: String,
    },
    /// The lock file cannot be opened.
    #[error("open the pod's lock")]
    Lock(#[source] io::Error),
    /// The socket cannot be made or reached.
    #[error("make or reach the supervisor's socket")]
    Socket(#[source] io::Error),
    /// The supervisor's queue of connections is full.
    #[error("reach the supervisor: it accepts no connection")]
    Occupied,
    /// The binary cannot be executed.
    #[error("execute the supervisor")]
    Execute(#[source] io::Error),
    /// A request could not be sent.
    #[error("send a request to the supervisor")]
    Send(#[source] io::Error),
    /// A report could not be received.
    #[error("receive from the supervisor")]
    Receive(#[source] io::Error),
    /// The supervisor is dead, and its containers with it.
    #[error("receive from the supervisor: it ended")]
    Died,
    /// The supervisor runs another version: call `reexec` first.
    #[error("talk to the supervisor: it speaks version {theirs}, this is {VERSION}")]
    Version {
        /// The supervisor's version.
        theirs: u32,
    },
    /// The supervisor is starting something, and cannot replace itself meanwhile.
    #[error("replace the supervisor: {}", protocol::BUSY)]
    Busy,
    /// The supervisor could not replace itself, and continues unchanged.
    #[error("replace the supervisor: {message}")]
    Reexec {
        /// The cause.
        message: String,
    },
}

impl SupervisorError {
    /// The shortage of this process or machine, if that is the only cause: the supervisor and its containers
    /// still work, and can be greeted again.
    ///
    /// # Errors
    /// The error itself, if its cause is not a shortage.
    pub fn shortage(self) -> Result<io::Error, SupervisorError> {
        match self {
            SupervisorError::Socket(source)
            | SupervisorError::Execute(source)
            | SupervisorError::Send(source)
            | SupervisorError::Receive(source)
                if nodlet_host::error::is_shortage(&source) =>
            {
                Ok(source)
            }
            error => Err(error),
        }
    }
}

/// The first process of a container.
#[derive(Debug)]
pub struct StartedProcess {
    /// The PID in the host's PID namespace.
    pub pid: i32,
    /// A descriptor to signal the process; `None` if it has ended since.
    pub pidfd: Option<OwnedFd>,
    /// When it was executed.
    pub at: Instant,
    /// User and groups of the process.
    pub user: User,
}

/// The step of a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFailedAt {
    /// Root file system, cgroup, mounts: `CreateContainerError`.
    Create,
    /// The process could not be executed: `RunContainerError`.
    Run,
}

/// An event that a supervisor reports.
#[derive(Debug)]
pub enum SupervisorEvent {
    /// The namespaces exist.
    SandboxReady {
        /// When they were made.
        at: Instant,
    },
    /// The namespaces could not be made, and nothing is left of them; `create_sandbox` may be called again.
    SandboxFailed {
        /// The cause; continues "failed to …".
        message: String,
    },
    /// A container's process was executed.
    Started {
        /// Name of the container.
        container: String,
        /// The number of the run.
        number: u32,
        /// The process.
        process: StartedProcess,
    },
    /// A start failed, and no process is left.
    StartFailed {
        /// Name of the container.
        container: String,
        /// The number of the run.
        number: u32,
        /// The step of the start that failed.
        at: StartFailedAt,
        /// The cause. Of `Create`: continues "failed to …". Of `Run`: in runc's words.
        message: String,
        /// User and groups of the process that could not be executed.
        user: Option<User>,
    },
    /// The attempt is over: no process of it is left.
    Exited {
        /// Name of the container.
        container: String,
        /// The number of the run.
        number: u32,
        /// The exit record; `None` if none could be written.
        exit: Option<ExitRecord>,
    },
    /// A process was executed in a container.
    ExecStarted {
        /// The ID that was passed to `exec`.
        id: u32,
        /// The PID in the host's PID namespace.
        pid: i32,
        /// Master of its terminal, if it has one.
        terminal: Option<OwnedFd>,
    },
    /// A process could not be executed in a container.
    ExecFailed {
        /// The ID that was passed to `exec`.
        id: u32,
        /// The cause, in runc's words.
        message: String,
    },
    /// A client is attached. The end of its session is seen from its pipes.
    Attached {
        /// The ID that was passed to `attach`.
        id: u32,
        /// Master of the container's terminal, if it has one.
        terminal: Option<OwnedFd>,
    },
    /// A client could not be attached.
    AttachFailed {
        /// The ID that was passed to `attach`.
        id: u32,
        /// The cause.
        message: String,
    },
    /// A process that was executed in a container has ended.
    ExecExited {
        /// The ID that was passed to `exec`.
        id: u32,
        /// The exit code, or 128 + the signal.
        code: i32,
    },
}

/// The state of a supervisor when it is greeted.
#[derive(Debug, Default)]
pub struct SupervisorState {
    /// The supervisor's PID.
    pub pid: i32,
    /// `SandboxReady` or `SandboxFailed`, if a sandbox was requested and that is decided; then `Started`,
    /// `StartFailed` and `Exited` of every attempt that is not forgotten, and `ExecStarted` of processes that
    /// are being executed.
    pub events: Vec<SupervisorEvent>,
    /// Attempts whose start is under way: `Started` or `StartFailed` follows.
    pub starting: Vec<(String, u32)>,
}

/// A connection to a supervisor.
pub struct Supervisor {
    dir: PathBuf,
    socket: Async<OwnedFd>,
    /// Events that arrived while something else was waited for.
    early: RefCell<VecDeque<SupervisorEvent>>,
    /// Whether it runs the binary of this agent. Another one of this version may know fewer requests.
    is_current: Cell<bool>,
}

impl Supervisor {
    /// Starts a supervisor with its files in `dir`, which exists, is used by it alone and lies at
    /// `<root>/run/nodlet/pods/<uid>`. `lock_name` is `<namespace>_<name>`; the supervisor moves itself into
    /// `cgroup_dirs`.
    pub fn spawn(
        dir: &Path,
        lock_name: &str,
        cgroup_dirs: &[PathBuf],
    ) -> Result<Supervisor, SupervisorError> {
        let lock = lock(dir, lock_name)?;
        let listener = listen(dir).map_err(SupervisorError::Socket)?;
        execute(dir, &listener, &lock, cgroup_dirs).map_err(SupervisorError::Execute)?;
        drop((listener, lock));
        let supervisor = Supervisor::connect(dir)?.ok_or(SupervisorError::Died)?;
        supervisor.set_current();
        Ok(supervisor)
    }

    /// Connects to the supervisor of `dir`; `None` if it is dead. The supervisor drops its connection to an
    /// earlier agent. If its queue of connections is full, the error is [`SupervisorError::Occupied`].
    pub fn connect(dir: &Path) -> Result<Option<Supervisor>, SupervisorError> {
        match connect(dir) {
            Ok(socket) => {
                let socket = Async::new(socket).map_err(SupervisorError::Socket)?;
                let (early, is_current) = Default::default();
                Ok(Some(Supervisor { dir: dir.to_owned(), socket, early, is_current }))
            }
            Err(nix::Error::ECONNREFUSED | nix::Error::ENOENT) => Ok(None),
            Err(nix::Error::EAGAIN) => Err(SupervisorError::Occupied),
            Err(error) => Err(SupervisorError::Socket(error.into())),
        }
    }

    /// Greets the supervisor, which reports nothing before that. Returns its state.
    pub async fn hello(&self) -> Result<SupervisorState, SupervisorError> {
        self.hello_with(&mut |_, _| {}).await
    }

    /// Greets the supervisor, and calls `layer` with name and descriptor of each layer on which containers
    /// run. The descriptors are used again because each mount of a layer has a page cache of its own.
    pub async fn hello_with(
        &self,
        layer: &mut dyn FnMut(&str, OwnedFd),
    ) -> Result<SupervisorState, SupervisorError> {
        self.send(&Request::Hello { version: VERSION }, &[])?;
        // The supervisor reports everything again.
        self.early.borrow_mut().clear();
        let mut state = SupervisorState::default();
        let mut greeted = false;
        loop {
            let (report, descriptors) = self.receive().await?;
            match report {
                Report::Hello { version, .. } if version != VERSION => {
                    return Err(SupervisorError::Version { theirs: version });
                }
                Report::Hello { pid, .. } => (state.pid, greeted) = (pid, true),
                Report::HelloEnd if greeted => return Ok(state),
                // The end of an earlier greeting that was not read completely.
                Report::HelloEnd => {}
                Report::Starting { container, number } => {
                    state.starting.push((container.as_str().to_owned(), number));
                }
                Report::Layer { name } => {
                    if let Some(mount) = descriptors.into_iter().next() {
                        layer(name.as_str(), mount);
                    }
                }
                report => {
                    // Reports from before the greeting are sent again.
                    if let (true, Some(event)) = (greeted, self.event(report, descriptors)?) {
                        state.events.push(event);
                    }
                }
            }
        }
    }

    /// Requests the namespaces; the answer is `SandboxReady` or `SandboxFailed`.
    pub fn create_sandbox(&self, config: &SandboxConfig) -> Result<(), SupervisorError> {
        self.send_with(&Request::CreateSandbox, config, &[])
    }

    /// Requests the start of a container; the answer is `Started` or `StartFailed`. `layers` are the
    /// descriptors of those that `config` names.
    pub fn start(
        &self,
        container: &str,
        number: u32,
        config: &ContainerConfig,
        layers: &[BorrowedFd],
    ) -> Result<(), SupervisorError> {
        self.send_with(&Request::Start { container: cut(container), number }, config, layers)
    }

    /// Requests a process in a container; the answer is `ExecStarted` or `ExecFailed`. Missing streams of
    /// `stdio` become /dev/null; with a terminal, `stdio` is not used.
    pub fn exec(
        &self,
        id: u32,
        container: &str,
        number: u32,
        config: &ExecConfig,
        stdio: [Option<BorrowedFd>; 3],
    ) -> Result<(), SupervisorError> {
        let (container, streams) = (cut(container), stdio.map(|stream| stream.is_some()));
        let given: Vec<BorrowedFd> = stdio.into_iter().flatten().collect();
        self.send_with(&Request::Exec { id, container, number, stdio: streams }, config, &given)
    }

    /// Requests a container's output, and that input is passed on; the answer is `Attached` or
    /// `AttachFailed`. The session ends when these ends of pipes are closed.
    pub fn attach(
        &self,
        id: u32,
        container: &str,
        number: u32,
        stdio: [Option<BorrowedFd>; 3],
    ) -> Result<(), SupervisorError> {
        let (container, streams) = (cut(container), stdio.map(|stream| stream.is_some()));
        let given: Vec<BorrowedFd> = stdio.into_iter().flatten().collect();
        self.send(&Request::Attach { id, container, number, stdio: streams }, &given)
    }

    /// Makes the supervisor forget an attempt that is over, and remove its exit record.
    pub fn forget(&self, container: &str, number: u32) -> Result<(), SupervisorError> {
        self.send(&Request::Forget { container: cut(container), number }, &[])
    }

    /// Records that the supervisor runs the binary of this agent, and knows all of its requests.
    pub fn set_current(&self) {
        self.is_current.set(true);
    }

    /// Makes the supervisor keep duplicates of these descriptors for the next agent, instead of those that it keeps. A
    /// supervisor that could not replace itself with the binary of this agent may not know the request, and is not
    /// asked.
    pub fn hold_sockets(&self, sockets: &[BorrowedFd]) -> Result<(), SupervisorError> {
        if !self.is_current.get() {
            return Ok(());
        }
        self.send(&Request::HoldSockets, sockets)
    }

    /// Returns duplicates of the descriptors of [`Self::hold_sockets`] that an earlier agent called; none if the
    /// supervisor runs another binary than this agent, or has none.
    pub async fn held_sockets(&self) -> Result<Vec<OwnedFd>, SupervisorError> {
        if !self.is_current.get() {
            return Ok(Vec::new());
        }
        self.send(&Request::HeldSockets, &[])?;
        loop {
            let (report, descriptors) = self.receive().await?;
            match report {
                Report::HeldSockets => return Ok(descriptors),
                report => {
                    let event = self.event(report, descriptors)?;
                    self.early.borrow_mut().extend(event);
                }
            }
        }
    }

    /// Makes the supervisor end when no container is left, and remove the sandbox.
    pub fn end(&self) -> Result<(), SupervisorError> {
        self.send(&Request::End, &[])
    }

    /// Makes the supervisor replace itself with the binary `exe`; call `hello` afterwards. Its containers,
    /// its PID and its lock stay. After an error it continues unchanged.
    pub async fn reexec(&self, exe: BorrowedFd<'_>) -> Result<(), SupervisorError> {
        self.send(&Request::Reexec, &[exe])?;
        loop {
            let (report, descriptors) = self.receive().await?;
            match report {
                Report::Hello { .. } => {
                    self.set_current();
                    return Ok(());
                }
                Report::ReexecFailed { message } if message == protocol::BUSY => {
                    return Err(SupervisorError::Busy);
                }
                Report::ReexecFailed { message } => {
                    return Err(SupervisorError::Reexec { message: message.as_str().to_owned() });
                }
                report => {
                    let event = self.event(report, descriptors)?;
                    self.early.borrow_mut().extend(event);
                }
            }
        }
    }

    /// The next event. The error is `Died` if there will be none.
    pub async fn next(&self) -> Result<SupervisorEvent, SupervisorError> {
        loop {
            if let Some(event) = self.early.borrow_mut().pop_front() {
                return Ok(event);
            }
            let event = match self.receive().await? {
                (Report::Exited { container, number }, _) => {
                    let exit = ExitRecord::read_in_time(&self.dir, &container, number).await;
                    Some(SupervisorEvent::Exited { container: container.as_str().to_owned(), number, exit })
                }
                (report, descriptors) => self.event(report, descriptors)?,
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    fn send(&self, request: &Request, descriptors: &[BorrowedFd]) -> Result<(), SupervisorError> {
        protocol::send(self.socket.as_fd(), request, descriptors).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => SupervisorError::Died,
            _ => SupervisorError::Send(error),
        })
    }

    /// Sends a request with `large` in a memfd before the other descriptors.
    fn send_with<T: Serialize>(
        &self,
        request: &Request,
        large: &T,
        descriptors: &[BorrowedFd],
    ) -> Result<(), SupervisorError> {
        let memfd = protocol::memfd(large).map_err(SupervisorError::Send)?;
        let mut all = vec![memfd.as_fd()];
        all.extend_from_slice(descriptors);
        self.send(request, &all)
    }

    async fn receive(&self) -> Result<(Report, Vec<OwnedFd>), SupervisorError> {
        match self.socket.read_with(|socket| protocol::receive(socket.as_fd())).await {
            Ok(Some(report)) => Ok(report),
            Ok(None) => Err(SupervisorError::Died),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(SupervisorError::Died),
            Err(error) => Err(SupervisorError::Receive(error)),
        }
    }

    fn event(
        &self,
        report: Report,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<SupervisorEvent>, SupervisorError> {
        let descriptor = descriptors.into_iter().next();
        let text = |message: protocol::Message| message.as_str().to_owned();
        let user =
            |ReportedUser { uid, gid, groups }| User { uid, gid, supplemental_groups: groups.to_vec() };
        Ok(Some(match report {
            Report::SandboxReady { at } => SupervisorEvent::SandboxReady { at },
            Report::SandboxFailed { message } => SupervisorEvent::SandboxFailed { message: text(message) },
            Report::Started { container, number, pid, at, uid, gid, groups } => {
                let user = user(ReportedUser { uid, gid, groups });
                let process = StartedProcess { pid, pidfd: descriptor, at, user };
                SupervisorEvent::Started { container: container.as_str().to_owned(), number, process }
            }
            Report::StartFailed { container, number, run, message, user: reported } => {
                SupervisorEvent::StartFailed {
                    container: container.as_str().to_owned(),
                    number,
                    at: if run { StartFailedAt::Run } else { StartFailedAt::Create },
                    message: text(message),
                    user: reported.map(user),
                }
            }
            Report::Exited { container, number } => {
                let exit = ExitRecord::read(&self.dir, &container, number);
                let exit = exit.map_err(SupervisorError::Receive)?;
                SupervisorEvent::Exited { container: container.as_str().to_owned(), number, exit }
            }
            Report::ExecStarted { id, pid } => SupervisorEvent::ExecStarted { id, pid, terminal: descriptor },
            Report::ExecFailed { id, message } => SupervisorEvent::ExecFailed { id, message: text(message) },
            Report::Attached { id } => SupervisorEvent::Attached { id, terminal: descriptor },
            Report::AttachFailed { id, message } => {
                SupervisorEvent::AttachFailed { id, message: text(message) }
            }
            Report::ExecExited { id, code } => SupervisorEvent::ExecExited { id, code },
            // Answers that are not waited for any more.
            Report::Hello { .. }
            | Report::HelloEnd
            | Report::Starting { .. }
            | Report::Layer { .. }
            | Report::HeldSockets
            | Report::ReexecFailed { .. } => return Ok(None),
        }))
    }
}

/// The cgroup of a process that was executed in the container with this leaf: one `cgroup.kill` ends the
/// process with its descendants.
pub fn exec_cgroup(leaf: &Path, id: u32) -> PathBuf {
    super::enter::cgroup(leaf, id)
}
