//! The supervisor itself: one thread, one poll, no timer while nothing starts.
//!
//! All it knows is in [`Process`]; what an agent has not been told yet is seen
//! from that, so there is no queue of news. Whatever is slow or may die is done
//! in a forked helper.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::attempt::{Attempt, State, Told, User, pipe};
use super::config::{ContainerConfig, SandboxConfig};
use super::enter::{self, Enter, Exec, ExecState};
use super::exit::{self, ExitRecord};
use super::log::{Log, Partial, Stream};
use super::protocol::{self, Message, Name, News, Request, VERSION, cut};
use super::sandbox::{self, Made, Namespaces};
use super::start::{Start, Status};
use super::sys::{self, Parent};
use crate::time::Instant;

/// Attempts that are remembered until the agent forgets them: a pod's containers,
/// each with some runs that an absent agent has not asked for yet.
const MAX_ATTEMPTS: usize = 256;

/// Processes that may be executed at once beside the containers' own, those of
/// which an absent agent has not heard the end included.
const MAX_EXECS: usize = 64;

/// How long a start may take before it is given up: the kubelet's runtimeRequestTimeout.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Read from a container at once.
const BUFFER: usize = 16 * 1024;

/// What the pod's containers share.
enum Sandbox {
    Absent,
    Making { answer: OwnedFd, config: Box<SandboxConfig> },
    Ready { namespaces: Box<Namespaces>, at: Instant, pause: Option<Pid>, host_link: Option<String> },
    Failed { message: Message },
}

/// The connected agent.
struct Agent {
    socket: OwnedFd,
    /// Nothing is told before it has greeted.
    greeted: bool,
    sandbox_told: bool,
}

/// All that a supervisor knows.
struct Process {
    dir: PathBuf,
    listener: OwnedFd,
    /// Locked: no other supervisor has a pod of this name for as long as it is open.
    _lock: OwnedFd,
    signals: SignalFd,
    agent: Option<Agent>,
    sandbox: Sandbox,
    attempts: Vec<Attempt>,
    /// Processes beside the containers' own.
    execs: Vec<Exec>,
    /// EROFS layers by name, for as long as a container runs on them.
    layers: BTreeMap<String, OwnedFd>,
    /// `End` was asked for.
    ending: bool,
    buffer: Vec<u8>,
}

/// The main function of `nodlet supervisor DIR LISTENER LOCK [CGROUP...]`: the
/// pod's directory, descriptors of the listening socket and of the locked file,
/// and the cgroups that are the supervisors' own.
pub fn run(args: impl Iterator<Item = std::ffi::OsString>) -> ! {
    let mut args = args;
    let dir = args.next().map(PathBuf::from);
    let mut descriptor = || args.next()?.to_str()?.parse::<RawFd>().ok().filter(|fd| *fd > 2);
    let (Some(dir), Some(listener), Some(lock)) = (dir, descriptor(), descriptor()) else {
        eprintln!("nodlet supervisor: it is started by the agent, for one pod");
        std::process::exit(2);
    };
    sys::set_name(c"nodlet:super");
    for cgroup in args.map(PathBuf::from) {
        // One thread: `tasks` does what `cgroup.procs` does, without waiting.
        let tasks = cgroup.join("tasks");
        let file = if tasks.exists() { tasks } else { cgroup.join("cgroup.procs") };
        let _ = fs::write(file, "0");
    }
    sys::close_all_but(&[listener, lock]);
    hush_panics(dir.clone());
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    for fd in [listener, lock] {
        let flags = nix::fcntl::FdFlag::FD_CLOEXEC;
        if nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFD(flags)).is_err() {
            eprintln!("nodlet supervisor: it is started by the agent, which passes a socket and a lock");
            std::process::exit(2);
        }
    }
    // SAFETY: they were just seen to be open, and nobody else owns them.
    let (listener, lock) = unsafe { (OwnedFd::from_raw_fd(listener), OwnedFd::from_raw_fd(lock)) };
    match Process::new(dir, listener, lock).and_then(|mut process| process.serve()) {
        Ok(()) => std::process::exit(0),
        Err(_) => std::process::exit(1),
    }
}

/// A helper that panics must not abort: the C library would send SIGABRT to the
/// thread it remembers, which is the supervisor's. And stderr may be a container's.
fn hush_panics(dir: PathBuf) {
    let supervisor = std::process::id();
    std::panic::set_hook(Box::new(move |panic| {
        let _ = fs::write(dir.join("panic"), format!("pid {}: {panic}\n", std::process::id()));
        if std::process::id() != supervisor {
            sys::exit_now(101);
        }
    }));
}

/// What a descriptor in the poll is.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Signals,
    Agent,
    Sandbox,
    Status(usize),
    ExecStatus(usize),
    Output(usize, Stream),
    Events,
}

impl Process {
    fn new(dir: PathBuf, listener: OwnedFd, lock: OwnedFd) -> io::Result<Process> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        fs::create_dir_all(dir.join("mnt"))?;
        Ok(Process {
            dir,
            listener,
            _lock: lock,
            signals,
            agent: None,
            sandbox: Sandbox::Absent,
            attempts: Vec::new(),
            execs: Vec::new(),
            layers: BTreeMap::new(),
            ending: false,
            buffer: vec![0; BUFFER],
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.reap();
            self.settle();
            self.tell();
            // What has been told of need not be kept.
            self.settle();
            if self.ending && self.attempts.iter().all(Attempt::is_over) {
                self.take_down();
                return Ok(());
            }
            for (source, events) in self.wait()? {
                self.handle(source, events);
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Listener, Source::Signals];
        let mut fds = vec![
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        let mut add = |source, fd, events| {
            sources.push(source);
            fds.push(PollFd::new(fd, events));
        };
        if let Some(agent) = &self.agent {
            let mut events = PollFlags::POLLIN;
            if agent.greeted && self.has_news() {
                events |= PollFlags::POLLOUT;
            }
            add(Source::Agent, agent.socket.as_fd(), events);
        }
        if let Sandbox::Making { answer, .. } = &self.sandbox {
            add(Source::Sandbox, answer.as_fd(), PollFlags::POLLIN);
        }
        let mut deadline: Option<Instant> = None;
        for (at, attempt) in self.attempts.iter().enumerate() {
            if let State::Starting { status, deadline: end, .. } = &attempt.state {
                add(Source::Status(at), status.as_fd(), PollFlags::POLLIN);
                deadline = Some(deadline.map_or(*end, |other| other.min(*end)));
            }
            if let Some(stdout) = &attempt.stdout {
                add(Source::Output(at, Stream::Stdout), stdout.as_fd(), PollFlags::POLLIN);
            }
            if let Some(stderr) = &attempt.stderr {
                add(Source::Output(at, Stream::Stderr), stderr.as_fd(), PollFlags::POLLIN);
            }
            if let (true, Some(events)) = (attempt.is_emptying(), &attempt.events) {
                add(Source::Events, events.as_fd(), PollFlags::POLLPRI);
            }
        }
        for (at, exec) in self.execs.iter().enumerate() {
            if let ExecState::Starting { status, .. } = &exec.state {
                add(Source::ExecStatus(at), status.as_fd(), PollFlags::POLLIN);
            }
            if let (true, Some(events)) = (exec.has_ended(), &exec.events) {
                add(Source::Events, events.as_fd(), PollFlags::POLLPRI);
            }
        }
        let timeout = match deadline {
            Some(deadline) => {
                let left = deadline.since(Instant::now()).as_millis() + 1;
                PollTimeout::try_from(i32::try_from(left).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = sources.into_iter().zip(&fds).filter_map(|(source, fd)| {
            let events = fd.revents().filter(|events| !events.is_empty())?;
            Some((source, events))
        });
        Ok(ready.collect())
    }

    fn handle(&mut self, source: Source, events: PollFlags) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => while let Ok(Some(_)) = self.signals.read_signal() {},
            Source::Agent
                if events.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) =>
            {
                self.hear();
            }
            // Something can be told again, which the loop does.
            Source::Agent => {}
            Source::Sandbox => self.sandbox_answered(),
            Source::Status(at) => self.status(at),
            Source::ExecStatus(at) => self.exec_status(at),
            Source::Output(at, stream) => self.attempts[at].read(stream, &mut self.buffer, false),
            // The loop looks at every cgroup that is emptying.
            Source::Events => {}
        }
    }

    /// A new agent replaces the old one, which is dead or about to be.
    fn accept(&mut self) {
        // What it said before it died still counts.
        while self.hear() {}
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        if let Ok(fd) = socket::accept4(self.listener.as_raw_fd(), flags) {
            // SAFETY: the call returned a new descriptor that nobody else owns.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            self.agent = Some(Agent { socket, greeted: false, sandbox_told: false });
        }
    }

    /// Carries out one request; `false` if there is none.
    fn hear(&mut self) -> bool {
        let Some(agent) = &self.agent else { return false };
        match protocol::receive::<Request>(agent.socket.as_fd()) {
            Ok(Some((request, descriptors))) => {
                self.obey(request, descriptors);
                return true;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // Gone, or not to be understood: the next agent will ask again.
            Ok(None) | Err(_) => self.agent = None,
        }
        false
    }

    fn obey(&mut self, request: Request, mut descriptors: Vec<OwnedFd>) {
        match request {
            Request::Hello { version } => self.greet(version),
            Request::CreateSandbox => {
                if let Some(config) = descriptors.pop() {
                    self.create_sandbox(config);
                }
            }
            Request::Start { container, number } => {
                if !descriptors.is_empty() {
                    let config = descriptors.remove(0);
                    self.start(container, number, config, descriptors);
                }
            }
            Request::Exec { id, container, number, stdio } => {
                self.exec(id, &container, number, stdio, descriptors)
            }
            Request::Reexec => {}
            Request::Forget { container, number } => {
                if let Some(at) = self.attempts.iter().position(|attempt| attempt.is(&container, number))
                    && self.attempts[at].is_over()
                {
                    self.attempts.remove(at);
                    exit::remove(&self.dir, &container, number);
                }
            }
            Request::End => self.ending = true,
        }
    }

    /// Forgets what the last agent was told, so that this one is told all.
    fn greet(&mut self, version: u32) {
        let pid = std::process::id() as i32;
        if let Some(agent) = &mut self.agent {
            (agent.greeted, agent.sandbox_told) = (version == VERSION, false);
        }
        if !self.say(&News::Hello { version: VERSION, pid }, &[]) || version != VERSION {
            return;
        }
        for attempt in &mut self.attempts {
            attempt.told = Told::default();
        }
        for exec in &mut self.execs {
            (exec.started_told, exec.ended_told) = (false, false);
        }
        let layers: Vec<String> = self.layers.keys().cloned().collect();
        for name in layers {
            let layer = self.layers[&name].try_clone();
            if let Ok(layer) = layer {
                self.say(&News::Layer { name: cut(&name) }, &[layer.as_fd()]);
            }
        }
        self.tell();
        self.say(&News::HelloEnd, &[]);
    }

    /// Sends one frame; `false` if the agent cannot take it now.
    fn say(&mut self, news: &News, descriptors: &[BorrowedFd]) -> bool {
        let Some(agent) = &self.agent else { return false };
        match protocol::send(agent.socket.as_fd(), news, descriptors) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.agent = None;
                false
            }
        }
    }

    fn has_news(&self) -> bool {
        let sandbox = match &self.sandbox {
            Sandbox::Ready { .. } | Sandbox::Failed { .. } => {
                self.agent.as_ref().is_some_and(|a| !a.sandbox_told)
            }
            Sandbox::Absent | Sandbox::Making { .. } => false,
        };
        sandbox
            || self.attempts.iter().any(|attempt| news_of(attempt).is_some())
            || self.execs.iter().any(|exec| news_of_exec(exec).is_some())
    }

    /// Tells the agent what it does not know, as far as it takes it.
    fn tell(&mut self) {
        if !self.agent.as_ref().is_some_and(|agent| agent.greeted) {
            return;
        }
        if self.agent.as_ref().is_some_and(|agent| !agent.sandbox_told) {
            let news = match &self.sandbox {
                Sandbox::Ready { at, .. } => Some(News::SandboxReady { at: *at }),
                Sandbox::Failed { message } => Some(News::SandboxFailed { message: message.clone() }),
                Sandbox::Absent | Sandbox::Making { .. } => None,
            };
            if let Some(news) = news {
                if !self.say(&news, &[]) {
                    return;
                }
                if let Some(agent) = &mut self.agent {
                    agent.sandbox_told = true;
                }
            }
        }
        for at in 0..self.attempts.len() {
            while let Some(news) = news_of(&self.attempts[at]) {
                let pidfd = match (&news, &self.attempts[at].state) {
                    (News::Started { .. }, State::Running { pidfd, .. }) => pidfd.try_clone().ok(),
                    _ => None,
                };
                let descriptors: Vec<BorrowedFd> = pidfd.iter().map(|fd| fd.as_fd()).collect();
                if !self.say(&news, &descriptors) {
                    return;
                }
                let told = &mut self.attempts[at].told;
                match news {
                    News::Started { .. } => told.started = true,
                    _ => told.ended = true,
                }
            }
        }
        self.tell_of_execs();
    }

    /// Tells of executed processes.
    fn tell_of_execs(&mut self) {
        for at in 0..self.execs.len() {
            while let Some(news) = news_of_exec(&self.execs[at]) {
                let terminal = match &self.execs[at].state {
                    ExecState::Running { terminal: Some(terminal), .. } => terminal.try_clone().ok(),
                    _ => None,
                };
                let descriptors: Vec<BorrowedFd> = terminal.iter().map(|fd| fd.as_fd()).collect();
                if !self.say(&news, &descriptors) {
                    return;
                }
                let exec = &mut self.execs[at];
                match news {
                    News::ExecStarted { .. } => exec.started_told = true,
                    _ => exec.ended_told = true,
                }
                if let ExecState::Running { terminal, .. } = &mut exec.state {
                    // It is the agent's now: whoever has a copy keeps the terminal from hanging up.
                    *terminal = None;
                }
            }
        }
    }

    fn create_sandbox(&mut self, config: OwnedFd) {
        match &self.sandbox {
            Sandbox::Absent | Sandbox::Failed { .. } => {}
            Sandbox::Making { .. } | Sandbox::Ready { .. } => return,
        }
        if let Some(agent) = &mut self.agent {
            agent.sandbox_told = false;
        }
        self.sandbox = match self.fork_sandbox(config) {
            Ok(making) => making,
            Err(error) => Sandbox::Failed { message: cut(&format!("start the sandbox helper: {error}")) },
        };
    }

    fn fork_sandbox(&self, config: OwnedFd) -> io::Result<Sandbox> {
        let parsed: SandboxConfig = protocol::read_memfd(config.as_fd())?;
        let (ours, theirs) = status_pair()?;
        // SAFETY: the supervisor has one thread.
        match unsafe { sys::fork(Parent::Caller, None) }? {
            None => sandbox::run(config.as_fd(), theirs, &self.scratch()),
            Some(_) => Ok(Sandbox::Making { answer: ours, config: Box::new(parsed) }),
        }
    }

    /// Where helpers mount, each in a mount namespace of its own.
    fn scratch(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn sandbox_answered(&mut self) {
        let Sandbox::Making { answer, config } = &self.sandbox else { return };
        let made = match protocol::receive::<Made>(answer.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(Some((Made::Namespaces { pause }, descriptors))) => namespaces(config, descriptors)
                .map(|namespaces| (namespaces, pause.map(Pid::from_raw)))
                .ok_or_else(|| cut("make namespaces: descriptors are missing")),
            Ok(Some((Made::Failed { message }, _))) => Err(message),
            Ok(None) => Err(cut("make namespaces: the sandbox helper died")),
            Err(error) => Err(cut(&format!("hear the sandbox helper: {error}"))),
        };
        let host_link = config.network.as_ref().map(|network| network.host_link.clone());
        self.sandbox = match made {
            Ok((namespaces, pause)) => {
                Sandbox::Ready { namespaces: Box::new(namespaces), at: Instant::now(), pause, host_link }
            }
            Err(message) => Sandbox::Failed { message },
        };
    }

    fn start(&mut self, container: Name, number: u32, config: OwnedFd, layers: Vec<OwnedFd>) {
        if self.attempts.iter().any(|attempt| attempt.is(&container, number)) {
            return;
        }
        let refused = match self.refusal(&container) {
            None => match self.fork_start(&container, number, config, layers) {
                Ok(attempt) => {
                    self.attempts.push(attempt);
                    return;
                }
                Err(error) => cut(&error),
            },
            Some(reason) => cut(reason),
        };
        let news = News::StartFailed { container, number, run: false, message: refused };
        // Nothing remembers it, so it is heard now, or the agent asks for all there is.
        if !self.say(&news, &[]) {
            self.agent = None;
        }
    }

    fn refusal(&self, container: &Name) -> Option<&'static str> {
        if self.ending {
            return Some("start it: the sandbox is ending");
        }
        if self.attempts.len() >= MAX_ATTEMPTS {
            return Some("start it: too many attempts are not yet forgotten");
        }
        // Never two attempts of one container, whatever an agent asks for.
        let alive = self.attempts.iter().any(|attempt| attempt.container == *container && !attempt.is_over());
        if alive {
            return Some("start it: the attempt before is not over");
        }
        None
    }

    fn fork_start(
        &mut self,
        container: &Name,
        number: u32,
        memfd: OwnedFd,
        layers: Vec<OwnedFd>,
    ) -> Result<Attempt, String> {
        let Sandbox::Ready { namespaces, .. } = &self.sandbox else {
            return Err("start it: there is no sandbox".to_owned());
        };
        let config: ContainerConfig = protocol::read_memfd(memfd.as_fd())
            .map_err(|error| format!("read the container's configuration: {error}"))?;
        if config.layers.len() != layers.len() || layers.is_empty() {
            return Err(format!("find the layers: {} of {} came", layers.len(), config.layers.len()));
        }
        let text = |step: &'static str| move |error: io::Error| format!("{step}: {error}");
        let leaf = File::open(&config.cgroup.unified).map_err(text("open the container's cgroup"))?;
        let (stdout, their_stdout) = pipe().map_err(text("make a pipe"))?;
        let (stderr, their_stderr) = pipe().map_err(text("make a pipe"))?;
        let (status, their_status) = status_pair().map_err(text("make a socket"))?;
        // SAFETY: the supervisor has one thread.
        let forked = unsafe { sys::fork(Parent::Caller, Some(leaf.as_fd())) };
        let helper = match forked.map_err(text("start the start helper"))? {
            Some(helper) => helper,
            None => Start {
                config: memfd.as_fd(),
                layers: layers.iter().map(|layer| layer.as_fd()).collect(),
                namespaces,
                status: their_status.as_fd(),
                stdout: their_stdout,
                stderr: their_stderr,
                scratch: &self.scratch(),
            }
            .run(),
        };
        for (name, layer) in config.layers.iter().zip(layers) {
            self.layers.entry(name.clone()).or_insert(layer);
        }
        let deadline = Instant::now() + START_TIMEOUT;
        Ok(Attempt {
            container: container.clone(),
            number,
            config: memfd,
            leaf: config.cgroup.unified,
            events: None,
            user: User::default(),
            state: State::Starting { helper: Some(helper), status, init: None, deadline },
            log: Log::open(config.log, Partial::default()),
            stdout: Some(stdout),
            stderr: Some(stderr),
            termination_message: config.termination_message,
            layers: config.layers,
            told: Told::default(),
        })
    }

    /// Hears a start helper, or the process it made.
    fn status(&mut self, at: usize) {
        let attempt = &mut self.attempts[at];
        while let State::Starting { status, init, .. } = &mut attempt.state {
            match protocol::receive::<Status>(status.as_fd()) {
                Ok(Some((Status::User { uid, gid, groups, home }, _))) => {
                    attempt.user = User { uid, gid, groups, home: home.as_str().to_owned() };
                }
                Ok(Some((Status::Created { pid }, _))) => *init = Some(Pid::from_raw(pid)),
                Ok(Some((Status::Failed { run, message }, _))) => attempt.fail(run, message),
                Ok(None) => {
                    // Every copy is closed: the process was executed, or all of them are dead.
                    let pidfd = init.and_then(|init| Some((init, sys::pidfd_open(init).ok()?)));
                    match pidfd {
                        Some((init, pidfd)) => {
                            attempt.state = State::Running { init, pidfd, at: Instant::now() }
                        }
                        None => attempt.fail(false, cut("create the container: the start helper died")),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => attempt.fail(false, cut(&format!("hear the start helper: {error}"))),
            }
        }
    }

    fn exec(&mut self, id: u32, container: &Name, number: u32, given: [bool; 3], descriptors: Vec<OwnedFd>) {
        let exec = self.fork_exec(id, container, number, given, descriptors).unwrap_or_else(|message| Exec {
            id,
            cgroup: PathBuf::new(),
            events: None,
            state: ExecState::Failed { message: cut(&message) },
            started_told: false,
            ended_told: false,
        });
        self.execs.push(exec);
    }

    fn fork_exec(
        &self,
        id: u32,
        container: &Name,
        number: u32,
        given: [bool; 3],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Exec, String> {
        if self.execs.len() >= MAX_EXECS {
            return Err(format!("exec: {MAX_EXECS} processes are being executed in this pod"));
        }
        let attempt = self.attempts.iter().find(|attempt| attempt.is(container, number));
        let Some((attempt, State::Running { pidfd, .. })) = attempt.map(|attempt| (attempt, &attempt.state))
        else {
            return Err(format!("exec: container {container} is not running"));
        };
        let mut descriptors = descriptors.iter().map(|fd| fd.as_fd());
        let config = descriptors.next().ok_or("exec: its configuration did not come")?;
        let stdio = given.map(|given| if given { descriptors.next() } else { None });
        let text = |step: &'static str| move |error: io::Error| format!("exec: {step}: {error}");
        let cgroup = enter::cgroup(&attempt.leaf, id);
        fs::create_dir(&cgroup).map_err(text("make its cgroup"))?;
        let forked = (|| -> io::Result<(Pid, OwnedFd)> {
            let directory = File::open(&cgroup)?;
            let (status, theirs) = status_pair()?;
            // SAFETY: the supervisor has one thread.
            match unsafe { sys::fork(Parent::Caller, Some(directory.as_fd())) }? {
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
            Ok((helper, status)) => Ok(Exec {
                id,
                cgroup,
                events: None,
                state: ExecState::Starting { helper: Some(helper), status, pid: None, terminal: None },
                started_told: false,
                ended_told: false,
            }),
            Err(error) => {
                let _ = fs::remove_dir(&cgroup);
                Err(format!("exec: start its helper: {error}"))
            }
        }
    }

    /// Hears an exec helper, or the process it made.
    fn exec_status(&mut self, at: usize) {
        let exec = &mut self.execs[at];
        while let ExecState::Starting { status, pid, terminal, .. } = &mut exec.state {
            match protocol::receive::<Status>(status.as_fd()) {
                Ok(Some((Status::Created { pid: created }, descriptors))) => {
                    *pid = Some(Pid::from_raw(created));
                    *terminal = descriptors.into_iter().next();
                }
                Ok(Some((Status::Failed { message, .. }, _))) => exec.fail(message),
                Ok(Some((Status::User { .. }, _))) => {}
                Ok(None) => match *pid {
                    Some(pid) => exec.state = ExecState::Running { pid, terminal: terminal.take() },
                    None => exec.fail(cut("exec: its helper died")),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => exec.fail(cut(&format!("exec: hear its helper: {error}"))),
            }
        }
    }

    /// Looks at every child that has ended. Each is seen before it is reaped, so
    /// that a container's record is written while its process can still be found.
    fn reap(&mut self) {
        loop {
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            let status = match waitid(Id::All, flags) {
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(status) => status,
            };
            let Some(pid) = status.pid() else { return };
            // What a helper said before it ended, or before its child did.
            for at in 0..self.attempts.len() {
                self.status(at);
            }
            for at in 0..self.execs.len() {
                self.exec_status(at);
            }
            if !self.exec_ended(pid, &status) {
                return;
            }
            let owner = self.attempts.iter_mut().find(|attempt| match &attempt.state {
                State::Starting { helper, init, .. } => *helper == Some(pid) || *init == Some(pid),
                State::Running { init, .. } => *init == pid,
                State::Exited { .. } | State::Over { .. } | State::Failing { .. } | State::Failed { .. } => {
                    false
                }
            });
            if let Some(attempt) = owner {
                let failed = !matches!(status, WaitStatus::Exited(_, 0));
                match &mut attempt.state {
                    State::Starting { helper, .. } if *helper == Some(pid) => {
                        *helper = None;
                        if failed {
                            // Its container waits for ever to be told to execute.
                            attempt.fail(false, cut("create the container: the start helper was killed"));
                        }
                    }
                    // The helper still holds the socket: it ends at once, and this child is next then.
                    State::Starting { helper: Some(_), .. } => return,
                    State::Starting { .. } => {}
                    State::Running { init, at, .. } => {
                        let (init, at) = (*init, *at);
                        attempt.drain(&mut self.buffer);
                        record(&self.dir, attempt, status, at);
                        attempt.state = State::Exited { init, at };
                    }
                    State::Exited { .. }
                    | State::Over { .. }
                    | State::Failing { .. }
                    | State::Failed { .. } => {}
                }
            }
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
        }
    }

    /// A child ended that may be an executed process; `false` if it must wait.
    fn exec_ended(&mut self, ended: Pid, status: &WaitStatus) -> bool {
        for exec in &mut self.execs {
            match &mut exec.state {
                ExecState::Starting { helper, .. } if *helper == Some(ended) => {
                    *helper = None;
                    if !matches!(status, WaitStatus::Exited(_, 0)) {
                        exec.fail(cut("exec: its helper was killed"));
                    }
                }
                // Its helper still holds the socket: it ends at once, and this child is next then.
                ExecState::Starting { helper: Some(_), pid, .. } if *pid == Some(ended) => return false,
                ExecState::Running { pid, .. } if *pid == ended => {
                    let code = match status {
                        WaitStatus::Exited(_, code) => *code,
                        WaitStatus::Signaled(_, signal, _) => 128 + *signal as i32,
                        // Not asked for.
                        _ => 255,
                    };
                    exec.state = ExecState::Ended { pid: ended, code };
                }
                ExecState::Starting { .. }
                | ExecState::Running { .. }
                | ExecState::Ended { .. }
                | ExecState::Failed { .. } => {}
            }
        }
        true
    }

    /// Ends attempts whose last process is gone, and gives up starts that hang.
    fn settle(&mut self) {
        let now = Instant::now();
        for attempt in &mut self.attempts {
            if let State::Starting { deadline, .. } = &attempt.state
                && *deadline <= now
            {
                attempt.fail(false, cut("create the container: it took longer than two minutes"));
            }
            if attempt.is_emptying() {
                // With a PID namespace of its own, nobody outlives the first process.
                if attempt.is_populated() {
                    attempt.kill();
                }
                if !attempt.is_populated() {
                    attempt.end(&mut self.buffer);
                }
            }
        }
        self.execs.retain_mut(|exec| {
            if !exec.has_ended() || sys::is_populated(&exec.cgroup, &mut exec.events) {
                return true;
            }
            let _ = fs::remove_dir(&exec.cgroup);
            exec.events = None;
            !exec.ended_told
        });
        let attempts = &self.attempts;
        self.layers.retain(|name, _| attempts.iter().any(|attempt| attempt.layers.contains(name)));
    }

    /// The last thing done. What the kernel undoes later is undone now, so that
    /// who follows finds the names free.
    fn take_down(&mut self) {
        if let Sandbox::Ready { pause, host_link, .. } = &self.sandbox {
            if let Some(pause) = pause {
                let _ = kill(*pause, Signal::SIGKILL);
                let _ = waitid(Id::Pid(*pause), WaitPidFlag::WEXITED);
            }
            if let (Some(link), Ok(mut netlink)) = (host_link, crate::network::netlink::Netlink::open()) {
                let _ = netlink.remove_link(link);
            }
        }
        self.sandbox = Sandbox::Absent;
    }
}

/// The next thing that the agent does not know of an attempt.
fn news_of(attempt: &Attempt) -> Option<News> {
    let (container, number) = (attempt.container.clone(), attempt.number);
    let started = |init: &Pid, at: &Instant| News::Started {
        container: container.clone(),
        number,
        pid: init.as_raw(),
        at: *at,
        uid: attempt.user.uid,
        gid: attempt.user.gid,
        groups: attempt.user.groups.clone(),
    };
    match &attempt.state {
        State::Starting { .. } | State::Failing { .. } => None,
        State::Running { init, at, .. } | State::Exited { init, at } => {
            (!attempt.told.started).then(|| started(init, at))
        }
        State::Over { init, at } if !attempt.told.started => Some(started(init, at)),
        State::Over { .. } => (!attempt.told.ended).then_some(News::Exited { container, number }),
        State::Failed { run, message } => {
            let message = message.clone();
            (!attempt.told.ended).then_some(News::StartFailed { container, number, run: *run, message })
        }
    }
}

/// The next thing that the agent does not know of an executed process.
fn news_of_exec(exec: &Exec) -> Option<News> {
    let id = exec.id;
    match &exec.state {
        ExecState::Starting { .. } => None,
        ExecState::Running { pid, .. } | ExecState::Ended { pid, .. } if !exec.started_told => {
            Some(News::ExecStarted { id, pid: pid.as_raw() })
        }
        ExecState::Running { .. } => None,
        ExecState::Ended { code, .. } => (!exec.ended_told).then_some(News::ExecExited { id, code: *code }),
        ExecState::Failed { message } => {
            (!exec.ended_told).then(|| News::ExecFailed { id, message: message.clone() })
        }
    }
}

/// Writes the exit record of an attempt whose first process has ended.
fn record(dir: &Path, attempt: &Attempt, status: WaitStatus, started_at: Instant) {
    let (code, signal) = match status {
        WaitStatus::Exited(_, code) => (code, None),
        WaitStatus::Signaled(_, signal, _) => (128 + signal as i32, Some(signal as i32)),
        // Not asked for.
        _ => (255, None),
    };
    let message = exit::termination_message(attempt.termination_message.as_ref(), code, &attempt.log);
    let record = ExitRecord { code, signal, started_at, finished_at: Instant::now(), message };
    // On tmpfs; the agent calls an exit without a record unknown.
    let _ = record.write(dir, &attempt.container, attempt.number);
}

fn namespaces(config: &SandboxConfig, descriptors: Vec<OwnedFd>) -> Option<Namespaces> {
    let mut descriptors = descriptors.into_iter();
    let mnt = descriptors.next()?;
    let mut next = |wanted: bool| -> Option<Option<OwnedFd>> {
        if wanted { descriptors.next().map(Some) } else { Some(None) }
    };
    Some(Namespaces {
        mnt,
        net: next(config.network.is_some())?,
        ipc: next(!config.host_ipc)?,
        uts: next(config.network.is_some())?,
        pid: next(config.share_process_namespace)?,
        host_pid: config.host_pid,
        host_ipc: config.host_ipc,
    })
}

/// A socket on which a helper reports; the first end does not block.
fn status_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}
