//! The supervisor itself: one thread, one poll, no timer while nothing starts.
//!
//! All it knows is in [`Process`]; what an agent has not been told yet is seen
//! from that, so there is no queue of news. Whatever is slow or may die is done
//! in a forked helper. Read next: `process/children.rs`, `process/tell.rs`, and
//! `process/handover.rs` for how it replaces itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::attempt::{Attempt, State, Told, User, pipe};
use super::config::{ContainerConfig, SandboxConfig};
use super::console::{self, Console};
use super::enter::{self, Enter, Exec, ExecState};
use super::exit;
use super::log::{Log, Partial, Stream};
use super::protocol::{self, Message, Name, News, Request, cut};
use super::sandbox::{self, Made, Namespaces};
use super::start::Start;
use super::sys::{self, Parent};
use crate::time::Instant;

mod children;
mod handover;
mod tell;

/// Attempts that are remembered until the agent forgets them: a pod's containers,
/// each with some runs that an absent agent has not asked for yet.
const MAX_ATTEMPTS: usize = 256;

/// Processes that may be executed at once beside the containers' own, those of
/// which an absent agent has not heard the end included.
const MAX_EXECS: usize = 64;

/// How long a start may take before it is given up: the kubelet's runtimeRequestTimeout.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Read from a container at once: what a pipe holds. Pages of it that no container has
/// filled yet are none.
const BUFFER: usize = 64 * 1024;

/// Where helpers mount, in the pod's directory.
const SCRATCH: &str = "mnt";

/// What the pod's containers share.
#[expect(clippy::large_enum_variant, reason = "there is one")]
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
    lock: OwnedFd,
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
/// and the cgroups that are the supervisors' own. What follows `nodlet supervisor`
/// otherwise is said in `handover.rs`.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ! {
    sys::set_name(c"nodlet:super");
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let descriptor =
        |arg: Option<OsString>| arg?.to_str()?.parse::<RawFd>().ok().filter(|fd| *fd > 2 && is_open(*fd));
    let first = args.next().unwrap_or_default();
    let process = if first == handover::PARSE {
        descriptor(args.next()).map(|memfd| handover::parse(memfd))
    } else if first == handover::RESUME {
        // SAFETY: it was just seen to be open, and nobody else owns it.
        descriptor(args.next()).map(|memfd| Process::resume(unsafe { OwnedFd::from_raw_fd(memfd) }))
    } else {
        let inherited = descriptor(args.next()).zip(descriptor(args.next()));
        inherited
            .map(|(listener, lock)| Process::begin(first.into(), listener, lock, args.map(PathBuf::from)))
    };
    let Some(process) = process else {
        eprintln!("nodlet supervisor: it is started by the agent, for one pod");
        std::process::exit(2);
    };
    match process.and_then(|mut process| process.serve()) {
        Ok(()) => std::process::exit(0),
        Err(_) => std::process::exit(1),
    }
}

fn is_open(fd: RawFd) -> bool {
    let flags = nix::fcntl::FdFlag::FD_CLOEXEC;
    nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFD(flags)).is_ok()
}

/// SIGCHLD, as a descriptor.
fn blocked_signals() -> io::Result<SignalFd> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
    Ok(SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
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
    Console(usize),
    Events,
}

impl Process {
    fn begin(
        dir: PathBuf,
        listener: RawFd,
        lock: RawFd,
        cgroups: impl Iterator<Item = PathBuf>,
    ) -> io::Result<Process> {
        for cgroup in cgroups {
            // One thread: `tasks` does what `cgroup.procs` does, without waiting.
            let tasks = cgroup.join("tasks");
            let file = if tasks.exists() { tasks } else { cgroup.join("cgroup.procs") };
            let _ = fs::write(file, "0");
        }
        sys::close_all_but(&[listener, lock]);
        fs::create_dir_all(dir.join(SCRATCH))?;
        // SAFETY: they were seen to be open, and nobody else owns them.
        let (listener, lock) = unsafe { (OwnedFd::from_raw_fd(listener), OwnedFd::from_raw_fd(lock)) };
        Ok(Process {
            dir,
            listener,
            lock,
            signals: blocked_signals()?,
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
        hush_panics(self.dir.clone());
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
            let mut ready = self.wait()?;
            // What an agent asks for may remove attempts, and with them the places of all others.
            ready.sort_by_key(|(source, _)| matches!(source, Source::Listener | Source::Agent));
            for (source, events) in ready {
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
            attempt.console.poll(|fd, events| add(Source::Console(at), fd, events));
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
            Source::Console(at) => self.attempts[at].console.pump(),
            Source::Output(at, stream) => {
                self.attempts[at].read(stream, &mut self.buffer);
            }
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
                    && self.attempts[at].is_over()
                {
                    self.attempts.remove(at);
                    exit::remove(&self.dir, &container, number);
                }
            }
            Request::End => self.ending = true,
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
        self.dir.join(SCRATCH)
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
        let input = if config.stdin && !config.tty {
            Some(console::input_pipe().map_err(text("make a pipe"))?)
        } else {
            None
        };
        let (their_stdin, stdin) = input.unzip();
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
            console: Console::new(stdin, config.stdin_once, config.tty),
            termination_message: config.termination_message,
            layers: config.layers,
            told: Told::default(),
        })
    }

    /// Answered at once: nothing of it can take time.
    fn attach(&mut self, id: u32, container: &Name, number: u32, given: [bool; 3], fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let [stdin, stdout, stderr] = given.map(|given| if given { fds.next() } else { None });
        let attempt = self.attempts.iter_mut().find(|attempt| attempt.is(container, number));
        let attached = match attempt {
            Some(attempt) if matches!(attempt.state, State::Running { .. }) => {
                attempt.attach(stdin, [stdout, stderr]).map(|()| {
                    let terminal = attempt.stdout.as_ref().filter(|_| attempt.console.is_tty());
                    terminal.and_then(|terminal| terminal.try_clone().ok())
                })
            }
            Some(_) | None => Err(format!("attach: container {container} is not running")),
        };
        let told = match &attached {
            Ok(terminal) => {
                let terminal: Vec<_> = terminal.iter().map(|fd| fd.as_fd()).collect();
                self.say(&News::Attached { id }, &terminal)
            }
            Err(message) => self.say(&News::AttachFailed { id, message: cut(message) }, &[]),
        };
        // Nothing remembers it, so it is heard now, or the agent asks for all there is.
        if !told {
            self.agent = None;
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
