//! The agent's requests, and the helpers that are forked for them.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType};
use nix::unistd::Pid;
use serde::Deserialize;

use super::{MAX_ATTEMPTS, MAX_EXECS, MAX_SOCKETS, Process, SCRATCH, START_TIMEOUT, Sandbox};
use crate::attempt::{Attempt, Reported, State};
use crate::console::Console;
use crate::enter::{self, Enter, Exec, ExecState};
use crate::error::{self, StepError};
use crate::exit;
use crate::log::Log;
use crate::protocol::{self, Name, Report, Request, cut};
use crate::sandbox;
use crate::start::{Start, Target};
use crate::sys::{self, Parent};
use crate::user::User;
use nodlet_host::launch::{CgroupPaths, LogConfig, SandboxConfig, TerminationMessage};

/// The fields of a [`nodlet_host::launch::ContainerConfig`] that the supervisor itself needs. The process is
/// not among them: its environment may contain secrets of one container, and a copy of the supervisor's
/// memory enters PID namespaces of other containers before another program replaces it.
#[derive(Debug, Deserialize)]
struct SupervisedContainer {
    layers: Vec<String>,
    cgroup: CgroupPaths,
    #[serde(default)]
    stdin: bool,
    #[serde(default)]
    stdin_once: bool,
    #[serde(default)]
    tty: bool,
    #[serde(default)]
    target: Option<String>,
    log: LogConfig,
    termination_message: Option<TerminationMessage>,
}

impl Process {
    /// Carries out one request.
    pub(super) fn handle_request(&mut self, request: Request, mut descriptors: Vec<OwnedFd>) {
        match request {
            Request::Hello { version } => self.greet(version),
            Request::CreateSandbox => {
                if let Some(config) = descriptors.pop() {
                    self.create_sandbox(config);
                }
            }
            Request::Start { container, number } => self.start(container, number, descriptors),
            Request::Exec { id, container, number, stdio } => {
                self.exec(id, &container, number, stdio, descriptors)
            }
            Request::Attach { id, container, number, stdio } => {
                self.attach(id, &container, number, stdio, descriptors);
            }
            Request::Reexec => {
                if let Some(binary) = descriptors.pop() {
                    self.reexec(&binary);
                }
            }
            Request::Forget { container, number } => {
                if let Some(at) = self.attempts.iter().position(|attempt| attempt.is(&container, number))
                    && self.attempts[at].has_ended()
                {
                    self.attempts.remove(at);
                    exit::remove(&self.dir, &container, number);
                }
            }
            Request::End => self.ending = true,
            Request::HoldSockets => {
                descriptors.truncate(MAX_SOCKETS);
                self.sockets = descriptors;
            }
            Request::HeldSockets => {
                let copies = self.sockets.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>();
                // Without the copies, the agent opens others.
                self.answer_with(Report::HeldSockets, copies.unwrap_or_default());
            }
        }
    }

    fn create_sandbox(&mut self, config: OwnedFd) {
        match &self.sandbox {
            Sandbox::Absent | Sandbox::Failed { .. } => {}
            Sandbox::Making { .. } | Sandbox::Ready { .. } => return,
        }
        if let Some(agent) = &mut self.agent {
            agent.expect_sandbox();
        }
        self.sandbox = match self.fork_sandbox(config) {
            Ok(making) => making,
            Err(error) => {
                let failed = StepError::new("start the sandbox helper", error);
                Sandbox::Failed { message: error::message(&failed) }
            }
        };
    }

    fn fork_sandbox(&self, config: OwnedFd) -> io::Result<Sandbox> {
        let parsed: SandboxConfig = protocol::read_memfd(config.as_fd())?;
        let (ours, theirs) = status_pair()?;
        match sys::clone(Parent::Caller, None)? {
            None => sandbox::run(config.as_fd(), theirs, &self.scratch()),
            Some(_) => Ok(Sandbox::Making { answer: ours, config: Box::new(parsed) }),
        }
    }

    /// The directory on which helpers mount, each in its own mount namespace.
    fn scratch(&self) -> PathBuf {
        self.dir.join(SCRATCH)
    }

    fn start(&mut self, container: Name, number: u32, descriptors: Vec<OwnedFd>) {
        if self.attempts.iter().any(|attempt| attempt.is(&container, number)) {
            return;
        }
        let refused = match self.refusal(&container) {
            None => match self.fork_start(&container, number, descriptors) {
                Ok(attempt) => {
                    if let State::Starting { helper, .. } = &attempt.state {
                        self.helpers.extend(*helper);
                    }
                    self.attempts.push(attempt);
                    return;
                }
                Err(error) => error::message(&error),
            },
            Some(reason) => cut(reason),
        };
        self.answer(
            Report::StartFailed { container, number, run: false, message: refused, user: None },
            None,
        );
    }

    fn refusal(&self, container: &Name) -> Option<&'static str> {
        if self.ending {
            return Some("start it: the sandbox is ending");
        }
        if self.attempts.len() >= MAX_ATTEMPTS {
            return Some("start it: too many attempts are not yet forgotten");
        }
        // There are never two attempts of one container, whatever an agent requests.
        let alive =
            self.attempts.iter().any(|attempt| attempt.container == *container && !attempt.has_ended());
        if alive {
            return Some("start it: the previous attempt still runs");
        }
        None
    }

    fn fork_start(
        &mut self,
        container: &Name,
        number: u32,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Attempt, StepError> {
        let Sandbox::Ready { namespaces, .. } = &self.sandbox else {
            return Err("start it: there is no sandbox".into());
        };
        let mut descriptors = descriptors.into_iter();
        let memfd = descriptors.next().ok_or("read the container's configuration: it did not come")?;
        let layers: Vec<OwnedFd> = descriptors.collect();
        let config: SupervisedContainer = protocol::read_memfd(memfd.as_fd())
            .map_err(StepError::at("read the container's configuration"))?;
        if config.layers.len() != layers.len() || layers.is_empty() {
            return Err(format!("find the layers: {} of {} came", layers.len(), config.layers.len()).into());
        }
        let target = config.target.as_deref().map(|target| self.target(target)).transpose()?;
        let leaf =
            File::open(&config.cgroup.unified).map_err(StepError::at("open the container's cgroup"))?;
        let (stdout, their_stdout) = sys::pipe(false).map_err(StepError::at("make a pipe"))?;
        let (stderr, their_stderr) = sys::pipe(false).map_err(StepError::at("make a pipe"))?;
        let input = (config.stdin && !config.tty).then(|| sys::pipe(true)).transpose();
        let input = input.map_err(StepError::at("make a pipe"))?;
        let (their_stdin, stdin) = input.unzip();
        let (status, their_status) = status_pair().map_err(StepError::at("make a socket"))?;
        let forked = sys::clone(Parent::Caller, Some(leaf.as_fd()));
        let helper = match forked.map_err(StepError::at("start the start helper"))? {
            Some(helper) => helper,
            None => Start {
                config: memfd.as_fd(),
                v1_tasks: &config.cgroup.v1_tasks,
                layers: layers.iter().map(|layer| layer.as_fd()).collect(),
                namespaces,
                target: target.as_ref(),
                status: their_status.as_fd(),
                stdin: their_stdin,
                stdout: their_stdout,
                stderr: their_stderr,
                scratch: &self.scratch(),
            }
            .run(),
        };
        for (name, layer) in config.layers.iter().zip(layers) {
            self.layers.entry(name.clone()).or_insert(layer);
        }
        let deadline = nodlet_host::clock::instant() + START_TIMEOUT;
        Ok(Attempt {
            container: container.clone(),
            number,
            config: memfd,
            leaf: config.cgroup.unified,
            events: None,
            user: User::default(),
            state: State::Starting { helper: Some(helper), status, init: None, reporter: None, deadline },
            log: Log::open(config.log),
            stdout: Some(stdout),
            stderr: Some(stderr),
            console: Console::new(stdin, config.stdin_once, config.tty),
            termination_message: config.termination_message,
            layers: config.layers,
            reported: Reported::default(),
        })
    }

    /// The namespaces of a running container. Its first process is not reaped before the supervisor has
    /// handled its end, so its PID has not been reused.
    fn target(&self, target: &str) -> Result<Target, StepError> {
        let mut attempts = self.attempts.iter().filter(|attempt| attempt.container == target);
        let attempt = attempts.find_map(Attempt::running);
        // A PID namespace whose first process has ended accepts no new process.
        let (init, _) = attempt.filter(|(_, pidfd)| !has_ended(pidfd.as_fd())).ok_or_else(|| {
            format!("join the processes of container {target}: invalid target container: it is not running")
        })?;
        let open = |kind: &str| {
            File::open(format!("/proc/{init}/ns/{kind}")).map_err(|source| {
                StepError::new(format!("open the {kind} namespace of container {target}"), source)
            })
        };
        Ok(Target { pid: open("pid")?, mnt: open("mnt")? })
    }

    /// Attaches a client, and answers at once, since nothing here takes time.
    fn attach(&mut self, id: u32, container: &Name, number: u32, given: [bool; 3], fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let [stdin, stdout, stderr] = given.map(|given| if given { fds.next() } else { None });
        let attempt = self.attempts.iter_mut().find(|attempt| attempt.is(container, number));
        let attached = match attempt {
            Some(attempt) if attempt.running().is_some() => {
                attempt.attach(stdin, [stdout, stderr]).map(|()| {
                    let terminal = attempt.stdout.as_ref().filter(|_| attempt.console.is_tty());
                    terminal.and_then(|terminal| terminal.try_clone().ok())
                })
            }
            Some(_) | None => Err(format!("attach: container {container} is not running").into()),
        };
        match attached {
            Ok(terminal) => self.answer(Report::Attached { id }, terminal),
            Err(error) => self.answer(Report::AttachFailed { id, message: error::message(&error) }, None),
        }
    }

    fn exec(&mut self, id: u32, container: &Name, number: u32, given: [bool; 3], descriptors: Vec<OwnedFd>) {
        let exec = self.fork_exec(id, container, number, given, descriptors).unwrap_or_else(|error| {
            Exec::new(id, PathBuf::new(), ExecState::Failed { message: error::message(&error) })
        });
        if let ExecState::Starting { helper, .. } = &exec.state {
            self.helpers.extend(*helper);
        }
        self.execs.push(exec);
    }

    fn fork_exec(
        &self,
        id: u32,
        container: &Name,
        number: u32,
        given: [bool; 3],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Exec, StepError> {
        if self.execs.len() >= MAX_EXECS {
            return Err(format!("exec: {MAX_EXECS} processes are being executed in this pod").into());
        }
        let attempt = self.attempts.iter().find(|attempt| attempt.is(container, number));
        let running = attempt.and_then(|attempt| Some((attempt, attempt.running()?)));
        let Some((attempt, (_, pidfd))) = running else {
            return Err(format!("exec: container {container} is not running").into());
        };
        let mut descriptors = descriptors.iter().map(|fd| fd.as_fd());
        let config = descriptors.next().ok_or("exec: its configuration did not come")?;
        let stdio = given.map(|given| if given { descriptors.next() } else { None });
        let cgroup = enter::cgroup(&attempt.leaf, id);
        fs::create_dir(&cgroup).map_err(StepError::at("exec: make its cgroup"))?;
        let forked = (|| -> io::Result<(Pid, OwnedFd)> {
            let directory = File::open(&cgroup)?;
            let (status, theirs) = status_pair()?;
            match sys::clone(Parent::Caller, Some(directory.as_fd()))? {
                Some(helper) => Ok((helper, status)),
                None => Enter {
                    container: attempt.config.as_fd(),
                    config,
                    pidfd: pidfd.as_fd(),
                    user: &attempt.user,
                    status: theirs.as_fd(),
                    stdio,
                }
                .run(),
            }
        })();
        match forked {
            Ok((helper, status)) => {
                let state = ExecState::Starting { helper: Some(helper), status, pid: None, terminal: None };
                Ok(Exec::new(id, cgroup, state))
            }
            Err(error) => {
                let _ = fs::remove_dir(&cgroup);
                Err(StepError::new("exec: start its helper", error))
            }
        }
    }
}

/// Whether the process of a pidfd has ended.
fn has_ended(pidfd: BorrowedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// A pair of sockets for the reports of a helper. The kernel tells the first one the sender of each report.
fn status_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    protocol::enable_sender_credentials(ours.as_fd())?;
    Ok((ours, theirs))
}
