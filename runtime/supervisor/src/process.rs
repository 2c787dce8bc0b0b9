//! The supervisor process: one thread, one poll, and no timer unless something is starting.
//!
//! The supervisor's whole state is in [`Process`]. Reports to the agent are derived from that state, so there
//! is no queue. Forked helpers do everything that is slow or may die. Read next: `process/requests.rs`,
//! `process/children.rs`, `process/reports.rs`, and `process/handover.rs` for how the supervisor replaces
//! itself.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use nodlet_core::sorted::SortedMap;
use nodlet_kernel::{durable, own_file};
use rustix::net::SocketFlags;
use serde::{Deserialize, Serialize};

use super::attempt::{Attempt, State};
use super::enter::{Exec, ExecState};
use super::execute;
use super::log::Stream;
use super::protocol::{self, Message, Request};
use super::sandbox::{self, Namespaces};
use super::saved;
use super::sys;
use super::{END_REASON_FILE, RENAMED_FILE};
use nodlet_core::time::Instant;
use nodlet_host::launch::SandboxConfig;
use nodlet_host::netlink::Netlink;

use self::reports::Agent;

mod children;
mod handover;
mod reports;
mod requests;

/// Upper bound of the attempts that are remembered until the agent forgets them: a pod's containers, each
/// with some runs that an absent agent has not asked for yet.
const MAX_ATTEMPTS: usize = 256;

/// Upper bound of the processes that are executed in containers at the same time, including those whose end
/// was not reported yet because no agent is connected.
const MAX_EXECS: usize = 64;

/// Upper bound of the descriptors that are kept for the next agent: sockets of a name server with two addresses of each
/// family, and one more file.
const MAX_SOCKETS: usize = 16;

/// How long a start may take before it is given up: the kubelet's runtimeRequestTimeout.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How much is read from a container at once: the capacity of a pipe. Pages of the buffer that were never
/// used take no memory.
const BUFFER: usize = 64 * 1024;

/// The directory on which helpers mount, in the pod's directory.
const SCRATCH: &str = "mnt";

/// The sandbox: what the pod's containers share.
#[derive(Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "there is one")]
enum Sandbox {
    Absent,
    #[serde(skip)]
    Making {
        answer: OwnedFd,
        config: Box<SandboxConfig>,
    },
    Ready {
        #[serde(flatten)]
        namespaces: Box<Namespaces>,
        at: Instant,
        #[serde(with = "saved")]
        pause: Option<Pid>,
        host_link: Option<String>,
        /// Whether the pod has interfaces of the host.
        #[serde(default)]
        interfaces: bool,
    },
    Failed {
        message: Message,
    },
}

/// The whole state of a supervisor. What is not skipped is handed over to the supervisor's next binary; a later version
/// may add fields, never change these.
#[derive(Serialize, Deserialize)]
struct Process {
    dir: PathBuf,
    #[serde(with = "saved")]
    listener: OwnedFd,
    /// The locked file: as long as it is open, no other supervisor has a pod of this name.
    #[serde(with = "saved")]
    lock: OwnedFd,
    /// Always there, except before the state is restored.
    #[serde(skip)]
    signals: Option<SignalFd>,
    #[serde(with = "saved")]
    agent: Option<Agent>,
    sandbox: Sandbox,
    attempts: Vec<Attempt>,
    /// Processes that were executed in the containers.
    execs: Vec<Exec>,
    /// Helpers that have not been reaped. Their start may be over: its process can be executed before its helper ends.
    #[serde(skip)]
    helpers: Vec<Pid>,
    /// EROFS layers by name, kept as long as a container runs on them.
    #[serde(with = "saved")]
    layers: SortedMap<String, OwnedFd>,
    /// Sockets of the agent, which are to outlive it.
    #[serde(with = "saved", default, skip_serializing_if = "Vec::is_empty")]
    sockets: Vec<OwnedFd>,
    /// Whether `End` was requested, or the sandbox is lost.
    ending: bool,
    #[serde(skip)]
    buffer: Vec<u8>,
}

/// The main function of `nodlet supervisor DIR LISTENER LOCK [CGROUP...]`: the pod's directory, descriptors
/// of the listening socket and of the locked file, and the cgroups for the supervisor. The other forms of the
/// command line are in `handover.rs`.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ! {
    sys::set_name(c"nodlet:super");
    execute::reset_ignored_signals();
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let descriptor =
        |arg: Option<OsString>| arg?.to_str()?.parse::<RawFd>().ok().filter(|fd| *fd > 2 && is_open(*fd));
    let first = args.next().unwrap_or_default();
    let process = if first == handover::PARSE {
        descriptor(args.next()).map(|memfd| handover::parse(memfd))
    } else if first == handover::RESUME {
        descriptor(args.next()).map(|memfd| Process::resume(sys::inherited(memfd)))
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

/// A descriptor that reports SIGCHLD.
fn blocked_signals() -> io::Result<SignalFd> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
    Ok(SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Installs a panic hook, since a helper that panics must not abort: the C library would send SIGABRT to the
/// thread that it remembers, which is the supervisor's. And stderr may be a container's.
fn install_panic_hook(dir: PathBuf) {
    let supervisor = std::process::id();
    std::panic::set_hook(Box::new(move |panic| {
        let text = format!("pid {} contradicted itself: {panic}\n", std::process::id());
        let _ = own_file::write(&dir.join(END_REASON_FILE), text);
        if std::process::id() != supervisor {
            sys::exit_now(101);
        }
    }));
}

/// The meaning of a descriptor in the poll.
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
            // The process has one thread: writing `tasks` has the effect of `cgroup.procs`, without waiting.
            let tasks = cgroup.join("tasks");
            let file = if tasks.exists() { tasks } else { cgroup.join("cgroup.procs") };
            let _ = fs::write(file, "0");
        }
        sys::close_all_but(&[listener, lock]);
        fs::create_dir_all(dir.join(SCRATCH))?;
        let (listener, lock) = (sys::inherited(listener), sys::inherited(lock));
        Ok(Process {
            dir,
            listener,
            lock,
            signals: Some(blocked_signals()?),
            agent: None,
            sandbox: Sandbox::Absent,
            attempts: Vec::new(),
            execs: Vec::new(),
            helpers: Vec::new(),
            layers: SortedMap::new(),
            sockets: Vec::new(),
            ending: false,
            buffer: vec![0; BUFFER],
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        install_panic_hook(self.dir.clone());
        self.run_loop()
            .inspect_err(|error| self.write_end_reason(&format!("it cannot wait any more: {error}")))
    }

    /// Writes the reason of the supervisor's end to a file, for the agent's log.
    fn write_end_reason(&self, why: &str) {
        let _ = own_file::write(&self.dir.join(END_REASON_FILE), why);
    }

    fn run_loop(&mut self) -> io::Result<()> {
        loop {
            self.reap();
            self.settle();
            self.send_reports();
            // State that has been reported need not be kept.
            self.settle();
            // A sandbox helper that undoes its steps reports that, so the supervisor waits for it.
            let making = matches!(self.sandbox, Sandbox::Making { .. });
            if self.ending && !making && self.attempts.iter().all(Attempt::has_ended) {
                self.take_down();
                return Ok(());
            }
            let mut ready = self.wait()?;
            // Requests are handled last: they may remove attempts, which changes the indexes in the other
            // sources.
            ready.sort_by_key(|(source, _)| matches!(source, Source::Listener | Source::Agent));
            for (source, events) in ready {
                self.handle(source, events);
            }
        }
    }

    /// Waits until there is something to do, and returns the ready sources.
    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Listener];
        let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        let mut add = |source, fd, events| {
            sources.push(source);
            fds.push(PollFd::new(fd, events));
        };
        if let Some(signals) = &self.signals {
            add(Source::Signals, signals.as_fd(), PollFlags::POLLIN);
        }
        if let Some(agent) = &self.agent {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, agent.may_ask());
            events.set(PollFlags::POLLOUT, self.has_report());
            add(Source::Agent, agent.socket(), events);
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
            for (stream, output) in [(Stream::Stdout, &attempt.stdout), (Stream::Stderr, &attempt.stderr)] {
                output.iter().for_each(|fd| add(Source::Output(at, stream), fd.as_fd(), PollFlags::POLLIN));
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
                let timeout = deadline.since(nodlet_host::clock::instant()).as_millis() + 1;
                PollTimeout::try_from(i32::try_from(timeout).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
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
            Source::Signals => {
                while let Some(Ok(Some(_))) = self.signals.as_ref().map(SignalFd::read_signal) {}
            }
            // The agent has hung up: its earlier requests still count.
            Source::Agent if events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) => {
                self.drain_requests();
            }
            Source::Agent if events.contains(PollFlags::POLLIN) => drop(self.read_request()),
            // The socket accepts more reports, which the loop sends.
            Source::Agent => {}
            Source::Sandbox => self.sandbox_answered(),
            Source::Status(at) => self.status(at),
            Source::ExecStatus(at) => self.exec_status(at),
            Source::Console(at) => self.attempts[at].console.pump(),
            Source::Output(at, stream) => {
                self.attempts[at].read(stream, &mut self.buffer);
            }
            // The loop checks every cgroup that is emptying.
            Source::Events => {}
        }
    }

    /// Accepts a new agent, which replaces the old one: that is dead, or about to be.
    fn accept(&mut self) {
        self.drain_requests();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
            self.agent = Some(Agent::new(socket));
        }
    }

    /// Carries out the remaining requests of an agent that is gone, and drops the answers.
    fn drain_requests(&mut self) {
        while self.read_request() {
            if let Some(agent) = &mut self.agent {
                agent.forget_answer();
            }
        }
    }

    /// Carries out one request; `false` if there is none.
    fn read_request(&mut self) -> bool {
        let Some(agent) = &self.agent else { return false };
        match protocol::receive::<Request>(agent.socket()) {
            Ok(Some((request, descriptors))) => {
                self.handle_request(request, descriptors);
                return true;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // The agent is gone, or its request is invalid: the next agent will ask again.
            Ok(None) | Err(_) => self.agent = None,
        }
        false
    }

    /// Moves the pod's interfaces back to the host. No container is left, and this process ends next, so it may
    /// enter the pod's network namespace. If it is killed before, the kernel moves hardware back. A file tells the agent
    /// which interface has another name or other settings than before, or did not come back.
    fn give_back_interfaces(&self, net: &OwnedFd) {
        let taken = own_file::read_to_string(&self.dir.join(sandbox::INTERFACES)).unwrap_or_default();
        let report = give_back(&taken, net).unwrap_or_else(|error| {
            let names = taken.lines().filter_map(|line| line.split_once(' '));
            names.map(|(name, _)| format!("{name} lost {error}\n")).collect()
        });
        if !report.is_empty() {
            let _ = durable::replace_in_memory(&self.dir.join(RENAMED_FILE), report);
        }
    }

    /// Removes the sandbox, as the supervisor's last step. What the kernel would remove later is removed now,
    /// so that a successor finds the names free.
    fn take_down(&mut self) {
        if let Sandbox::Ready { pause, host_link, namespaces, interfaces, .. } = &self.sandbox {
            if let Some(pause) = pause {
                let _ = kill(*pause, Signal::SIGKILL);
                sys::wait_for(*pause);
            }
            if *interfaces && let Some(net) = &namespaces.net {
                self.give_back_interfaces(net);
            }
            if let (Some(link), Ok(mut netlink)) = (host_link, Netlink::open()) {
                let _ = netlink.remove_link(link);
            }
        }
        self.sandbox = Sandbox::Absent;
    }
}

/// Moves interfaces out of the network namespace `net` to that of the caller. Returns the report.
fn give_back(taken: &str, net: &OwnedFd) -> io::Result<String> {
    let host = fs::File::open("/proc/self/ns/net")?;
    let mut netlink = Netlink::open()?;
    let enter = |namespace: BorrowedFd| nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET);
    enter(net.as_fd())?;
    let report = sandbox::give_back_interfaces(taken, &mut netlink, &host);
    enter(host.as_fd())?;
    Ok(report)
}
