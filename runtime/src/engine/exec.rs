//! Processes in a container besides its first one, which API requests and exec probes execute, and clients that
//! attach to the first process. The supervisor runs them; this file has only the tasks that wait for each.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use nodlet_core::sorted::SortedMap;
use smol::Async;
use smol::io::AsyncReadExt;

use crate::container_config::{bytes_of, probe_command};
use crate::prober;
use nodlet_core::facts::{Attempt, PodIndex, ProbeResult};
use nodlet_core::spec::{Container, ProbeAction, ProbeKind};
use nodlet_host::launch::ExecConfig;
use nodlet_registry::Wanted;
use nodlet_supervisor::client::SupervisorError;

use super::Shell;
use super::machine::Machine;
use super::pods::Pods;
use super::turns::{Turn, Turns};

/// Bytes of a probe's output that are kept (kubelet: `maxReadLength`).
const PROBE_OUTPUT: usize = 10 * 1024;

/// A report about one process. There are at most three for each, so that sending never waits.
#[derive(Debug)]
pub(super) enum ExecNews {
    Started { terminal: Option<OwnedFd> },
    Failed(String),
    Exited(i32),
}

/// The reason why a process could not be run, or a client not be attached.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("the pod does not run")]
    NoPod,
    #[error("the container does not run")]
    NoContainer,
    /// The container ended meanwhile.
    #[error("the container is gone")]
    Gone,
    /// The pod's supervisor could not be asked.
    #[error(transparent)]
    Supervisor(SupervisorError),
    /// The failure that the pod's supervisor reports.
    #[error("{0}")]
    Failed(String),
    /// The command of a probe or hook is longer than the kernel accepts; the message says so.
    #[error("{0}")]
    Command(String),
    #[error("failed to make a pipe")]
    MakePipe(#[source] nix::errno::Errno),
    #[error("failed to read a pipe")]
    ReadPipe(#[source] io::Error),
}

impl ExecError {
    /// The text for clients, events and the log.
    pub(super) fn message(&self) -> String {
        match self {
            ExecError::ReadPipe(_) => nodlet_host::error::causes(self),
            _ => nodlet_host::error::chain(self),
        }
    }
}

/// The tasks that wait for processes and attachments.
pub(super) struct Execs {
    next: Cell<u32>,
    waiting: RefCell<SortedMap<u32, Waiting>>,
    /// Commands of probes and hooks, until the processes run. Starts have turns of their own: a process that is not
    /// executed in time holds up no container.
    turns: Turns,
}

/// A task that waits for one process or attachment.
struct Waiting {
    pod: PodIndex,
    /// A client attaches. A supervisor does not report an attachment again when it is asked for its whole state.
    attaches: bool,
    news: Sender<ExecNews>,
}

impl Default for Execs {
    /// IDs do not start where those of an earlier agent did, whose processes may still run.
    fn default() -> Self {
        Execs {
            next: Cell::new((nodlet_host::clock::instant().0 >> 20) as u32),
            waiting: RefCell::default(),
            turns: Turns::default(),
        }
    }
}

impl Execs {
    fn begin(&self, pod: PodIndex, attaches: bool) -> (u32, Receiver<ExecNews>) {
        let (news, receiver) = async_channel::bounded(3);
        let id = self.next.get().wrapping_add(1);
        self.next.set(id);
        self.waiting.borrow_mut().insert(id, Waiting { pod, attaches, news });
        (id, receiver)
    }

    pub(super) fn started(&self, pod: PodIndex, id: u32, terminal: Option<OwnedFd>) {
        self.pass(pod, id, ExecNews::Started { terminal }, false);
    }

    pub(super) fn failed(&self, pod: PodIndex, id: u32, message: String) {
        self.pass(pod, id, ExecNews::Failed(message), true);
    }

    pub(super) fn exited(&self, pod: PodIndex, id: u32, code: i32) {
        self.pass(pod, id, ExecNews::Exited(code), true);
    }

    /// Reports to all that wait for processes of this pod that these are lost, by dropping the senders.
    pub(super) fn lost(&self, pod: PodIndex) {
        self.waiting.borrow_mut().retain(|_, waiting| waiting.pod != pod);
    }

    /// The IDs of attachments to this pod that were requested and not answered yet.
    pub(super) fn attaching(&self, pod: PodIndex) -> Vec<u32> {
        let waiting = self.waiting.borrow();
        let attach = waiting.iter().filter(|(_, waiting)| waiting.pod == pod && waiting.attaches);
        attach.map(|(id, _)| *id).collect()
    }

    fn pass(&self, pod: PodIndex, id: u32, news: ExecNews, last: bool) {
        let mut all = self.waiting.borrow_mut();
        if let Some(waiting) = all.get_mut(&id)
            && waiting.pod == pod
        {
            // It is answered.
            waiting.attaches = false;
            // Nobody listening is no error: a client may hang up first.
            let _ = waiting.news.try_send(news);
        }
        if last {
            all.remove(&id);
        }
    }
}

/// A process that was requested.
pub(super) struct Exec {
    pub(super) id: u32,
    pub(super) news: Receiver<ExecNews>,
    pod: PodIndex,
    container: String,
    number: u32,
    turn: Cell<Option<Turn>>,
}

impl Exec {
    /// Ends its turn when it runs, or is dropped.
    pub(super) fn in_turn(self, turn: Option<Turn>) -> Exec {
        self.turn.set(turn);
        self
    }

    /// Waits for the process to end, and returns its exit code.
    ///
    /// # Errors
    /// The process could not be started, or its container is gone.
    pub(super) async fn ended(&self) -> Result<Option<i32>, ExecError> {
        loop {
            match self.news.recv().await {
                Ok(ExecNews::Started { .. }) => self.turn.set(None),
                Ok(ExecNews::Exited(code)) => return Ok(Some(code)),
                Ok(ExecNews::Failed(message)) => return Err(ExecError::Failed(message)),
                Err(_) => return Err(ExecError::Gone),
            }
        }
    }

    /// Kills the process and all its descendants.
    pub(super) fn kill(&self, pods: &Pods) {
        let Some(sandbox) = pods.sandbox(self.pod) else { return };
        let runs = sandbox.runs.borrow();
        let Some(run) = runs.get(&(self.container.clone(), self.number)) else { return };
        if let Err(error) = run.leaf.kill_exec(self.id) {
            log::warn!("failed to kill a process in {}: {error}", self.container);
        }
    }
}

impl Execs {
    /// Builds the command of a probe or hook, whose variables may make it large.
    ///
    /// # Errors
    /// It is longer than the kernel accepts.
    pub(super) async fn command(
        &self,
        container: &Container,
        command: &[String],
    ) -> Result<(ExecConfig, Option<Turn>), ExecError> {
        let build = || probe_command(container, command).map_err(ExecError::Command);
        let (args, turn) = self.turns.take(build, |words| bytes_of(words)).await?;
        Ok((ExecConfig { args, tty: false, size: None, devices: None }, turn))
    }

    /// Requests a process in a container from the pod's supervisor.
    ///
    /// # Errors
    /// The container does not run, or the supervisor cannot be asked.
    pub(super) fn exec(
        &self,
        pods: &Pods,
        pod: PodIndex,
        container: &str,
        number: u32,
        config: &ExecConfig,
        stdio: [Option<BorrowedFd<'_>>; 3],
    ) -> Result<Exec, ExecError> {
        let sandbox = pods.sandbox(pod).ok_or(ExecError::NoPod)?;
        if !sandbox.runs.borrow().contains_key(&(container.to_owned(), number)) {
            return Err(ExecError::NoContainer);
        }
        let (id, news) = self.begin(pod, false);
        let asked = sandbox.supervisor.exec(id, container, number, config, stdio);
        if let Err(error) = asked {
            self.failed(pod, id, String::new());
            return Err(ExecError::Supervisor(error));
        }
        Ok(Exec { id, news, pod, container: container.to_owned(), number, turn: Cell::new(None) })
    }

    /// Requests the pod's supervisor to attach a client, with these ends of its pipes. The answer is reported as the
    /// start or failure of a process; nothing more is reported.
    ///
    /// # Errors
    /// The container does not run, or the supervisor cannot be asked.
    pub(super) fn attach(
        &self,
        pods: &Pods,
        pod: PodIndex,
        container: &str,
        number: u32,
        stdio: [Option<BorrowedFd<'_>>; 3],
    ) -> Result<Attaching<'_>, ExecError> {
        let sandbox = pods.sandbox(pod).ok_or(ExecError::NoPod)?;
        let (id, news) = self.begin(pod, true);
        let attaching = Attaching { execs: self, pod, id, news };
        sandbox.supervisor.attach(id, container, number, stdio).map_err(ExecError::Supervisor)?;
        Ok(attaching)
    }
}

/// An attachment that was requested and not answered yet.
pub(super) struct Attaching<'a> {
    execs: &'a Execs,
    pod: PodIndex,
    id: u32,
    news: Receiver<ExecNews>,
}

impl Attaching<'_> {
    /// Waits until the client is attached, and returns the container's terminal, if it has one.
    ///
    /// # Errors
    /// The client could not be attached.
    pub(super) async fn answer(&self) -> Result<Option<OwnedFd>, ExecError> {
        match self.news.recv().await {
            Ok(ExecNews::Started { terminal }) => Ok(terminal),
            Ok(ExecNews::Failed(message)) => Err(ExecError::Failed(message)),
            Ok(ExecNews::Exited(_)) | Err(_) => Err(ExecError::Gone),
        }
    }
}

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        self.execs.failed(self.pod, self.id, String::new());
    }
}

/// Runs a probe once; returns after the probe's timeout at the latest.
pub(super) async fn probe(
    shell: Rc<Shell>,
    pod: PodIndex,
    wanted: Rc<Wanted>,
    attempt: Attempt,
    kind: ProbeKind,
) -> ProbeResult {
    let shell = &shell;
    let container = wanted.pod.spec.container(attempt.container);
    let Some(probe) = container.probe(kind) else {
        return ProbeResult::Error("there is no such probe".into());
    };
    let ip = || address(&shell.pods, &shell.machine, pod);
    match &probe.action {
        ProbeAction::Exec(command) => {
            exec_probe(shell, pod, container, attempt.number, command, probe.timeout).await
        }
        ProbeAction::HttpGet { secure, host, port, path, headers } => {
            let host = host.as_deref();
            let get = prober::HttpGet { secure: *secure, host, port, path, headers };
            prober::http(ip(), &container.ports, &get, probe.timeout).await
        }
        ProbeAction::Grpc { port, service } => prober::grpc(ip(), *port, service, probe.timeout).await,
        ProbeAction::TcpSocket { host, port } => {
            prober::tcp(ip(), host.as_deref(), port, &container.ports, probe.timeout).await
        }
    }
}

/// The address to probe if the probe names no host.
pub(super) fn address(pods: &Pods, machine: &Machine, pod: PodIndex) -> IpAddr {
    let ip = pods.sandbox(pod).and_then(|sandbox| sandbox.ip).or_else(|| machine.network.borrow().host_ip());
    IpAddr::V4(ip.unwrap_or(std::net::Ipv4Addr::LOCALHOST))
}

async fn exec_probe(
    shell: &Rc<Shell>,
    pod: PodIndex,
    container: &Container,
    number: u32,
    command: &[String],
    timeout: Duration,
) -> ProbeResult {
    let error = |error: ExecError| ProbeResult::Error(error.message().into());
    // While the process runs, nothing keeps its command.
    let timed_out = || prober::exec_timed_out(&shown_command(container, command), timeout);
    let mut late = smol::Timer::after(timeout);
    let made = async { Some(shell.execs.command(container, command).await) };
    let no_turn = async {
        (&mut late).await;
        None
    };
    let (config, turn) = match smol::future::or(made, no_turn).await {
        Some(Ok(made)) => made,
        Some(Err(failed)) => return error(failed),
        None => return timed_out(),
    };
    // Its writing end blocks: a program that writes much waits until it is read, and gets no EAGAIN.
    let pipe = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC);
    let (output, input) = match pipe {
        Ok(pipe) => pipe,
        Err(errno) => return error(ExecError::MakePipe(errno)),
    };
    // Before there is a process that nobody would end.
    let mut output = match Output::new(output) {
        Ok(output) => output,
        Err(failed) => return error(failed),
    };
    let exec = match shell.execs.exec(
        &shell.pods,
        pod,
        &container.name,
        number,
        &config,
        [None, Some(input.as_fd()), Some(input.as_fd())],
    ) {
        Ok(exec) => exec.in_turn(turn),
        Err(failed) => return error(failed),
    };
    drop((input, config));
    let ended = {
        let ended = exec.ended();
        let late = async {
            late.await;
            Ok(None)
        };
        let read = output.read();
        smol::future::or(smol::future::or(ended, late), read).await
    };
    match ended {
        Ok(Some(code)) => prober::exec_result(code, &output.all()),
        Ok(None) => {
            exec.kill(&shell.pods);
            timed_out()
        }
        Err(failed) => error(failed),
    }
}

/// The command of a probe or hook, as a message shows it: no longer than its output.
pub(super) fn shown_command(container: &Container, command: &[String]) -> String {
    let mut shown = probe_command(container, command).unwrap_or_default().join(" ");
    if shown.len() > PROBE_OUTPUT {
        shown.truncate(shown.floor_char_boundary(PROBE_OUTPUT));
        shown.shrink_to_fit();
    }
    shown
}

/// The output of a process of a probe or hook. The first bytes are kept and the rest is discarded, so that the
/// process does not block on a full pipe.
pub(super) struct Output {
    pipe: Async<File>,
    kept: Vec<u8>,
}

impl Output {
    /// # Errors
    /// `pipe` cannot be polled.
    pub(super) fn new(pipe: OwnedFd) -> Result<Self, ExecError> {
        let pipe = Async::new(File::from(pipe)).map_err(ExecError::ReadPipe)?;
        Ok(Self { pipe, kept: Vec::new() })
    }

    /// Reads the output. Never returns, and may be dropped at any time.
    pub(super) async fn read(&mut self) -> Result<Option<i32>, ExecError> {
        let mut buffer = [0; 1024];
        loop {
            match self.pipe.read(&mut buffer).await {
                Ok(0) => break,
                Ok(count) => self.keep(&buffer[..count]),
                Err(error) => {
                    log::debug!("failed to read the output of a probe or hook: {error}");
                    break;
                }
            }
            // One that writes as fast as it is read would never be waited for, nor its time be over.
            smol::future::yield_now().await;
        }
        smol::future::pending().await
    }

    /// The whole output that is kept of a process that has ended. Its last bytes may not have been read before.
    pub(super) fn all(mut self) -> Vec<u8> {
        let mut buffer = [0; 1024];
        // What it has left behind may go on writing.
        while self.kept.len() < PROBE_OUTPUT {
            match io::Read::read(&mut self.pipe.get_ref(), &mut buffer) {
                Ok(count @ 1..) => self.keep(&buffer[..count]),
                Ok(0) | Err(_) => break,
            }
        }
        self.kept
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = PROBE_OUTPUT.saturating_sub(self.kept.len()).min(bytes.len());
        self.kept.extend_from_slice(&bytes[..room]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_that_are_not_attached_yet_are_listed_as_attaching() {
        let execs = Execs::default();
        let (pod, other) = (PodIndex(1), PodIndex(2));
        let (executed, _kept) = execs.begin(pod, false);
        let (attached, _kept) = execs.begin(pod, true);
        let (attaching, news) = execs.begin(pod, true);
        let (elsewhere, _kept) = execs.begin(other, true);
        execs.started(pod, executed, None);
        execs.started(pod, attached, None);
        assert_eq!(execs.attaching(pod), [attaching]);
        assert_eq!(execs.attaching(other), [elsewhere]);
        execs.failed(pod, attaching, "ask again".into());
        assert!(matches!(news.try_recv(), Ok(ExecNews::Failed(why)) if why == "ask again"));
        assert_eq!(execs.attaching(pod), [0; 0]);
    }

    #[test]
    fn no_output_of_a_short_lived_process_is_lost() {
        for read_before in [false, true] {
            let (output, input) = nix::unistd::pipe().expect("a pipe");
            nix::unistd::write(&input, b"why").expect("there is room");
            let mut output = Output::new(output).expect("it can be waited for");
            if read_before {
                // It is dropped in the midst of it, as where the news of the end comes first.
                let once = smol::block_on(smol::future::poll_once(output.read()));
                assert!(once.is_none());
                nix::unistd::write(&input, b" not").expect("there is room");
            }
            let kept = output.all();
            assert_eq!(kept, if read_before { &b"why not"[..] } else { b"why" });
        }
        let (output, input) = nix::unistd::pipe().expect("a pipe");
        for _ in 0..15 {
            nix::unistd::write(&input, &[b'x'; 1000]).expect("there is room");
        }
        assert_eq!(Output::new(output).expect("it can be waited for").all().len(), PROBE_OUTPUT);
    }
}
