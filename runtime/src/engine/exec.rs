//! Processes in a container besides its first one, which API requests, exec probes and lifecycle hooks execute, and
//! clients that attach to the first process. The supervisor runs them; this file has only the tasks that wait for each.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use nodlet_core::sorted::SortedMap;
use smol::Async;
use smol::io::AsyncReadExt;

use crate::api::{ExecExit, ExecSession, Reply, Status};
use crate::container_config::{bytes_of, probe_command};
use crate::prober::COMMAND_OUTPUT;
use nodlet_core::facts::PodIndex;
use nodlet_core::spec::Container;
use nodlet_host::error::{causes, chain};
use nodlet_host::launch::ExecConfig;
use nodlet_supervisor::client::SupervisorError;

use super::pods::Pods;
use super::turns::{Turn, Turns};

/// A report about one process. There are at most three for each, so that sending never waits.
#[derive(Debug)]
enum ExecNews {
    Started { terminal: Option<OwnedFd> },
    Exited(i32),
}

/// The reports about one process; the last one may be the reason why it was not run.
type News = Receiver<Result<ExecNews, ExecError>>;

/// Waits for the next report about a process.
///
/// # Errors
/// The process could not be started, or its container is gone.
async fn next(news: &News) -> Result<ExecNews, ExecError> {
    news.recv().await.unwrap_or(Err(ExecError::Gone))
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
            ExecError::ReadPipe(_) => causes(self),
            _ => chain(self),
        }
    }
}

/// The tasks that wait for processes and attachments.
pub(super) struct Execs {
    pods: Rc<Pods>,
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
    news: Sender<Result<ExecNews, ExecError>>,
}

impl Execs {
    /// IDs do not start where those of an earlier agent did, whose processes may still run.
    pub(super) fn new(pods: Rc<Pods>) -> Execs {
        Execs {
            pods,
            next: Cell::new((nodlet_host::clock::instant().0 >> 20) as u32),
            waiting: RefCell::default(),
            turns: Turns::default(),
        }
    }

    fn begin(&self, pod: PodIndex, attaches: bool) -> (u32, News) {
        let (news, receiver) = async_channel::bounded(3);
        let id = self.next.get().wrapping_add(1);
        self.next.set(id);
        self.waiting.borrow_mut().insert(id, Waiting { pod, attaches, news });
        (id, receiver)
    }

    pub(super) fn started(&self, pod: PodIndex, id: u32, terminal: Option<OwnedFd>) {
        self.pass(pod, id, Ok(ExecNews::Started { terminal }), false);
    }

    pub(super) fn failed(&self, pod: PodIndex, id: u32, message: String) {
        self.pass(pod, id, Err(ExecError::Failed(message)), true);
    }

    pub(super) fn exited(&self, pod: PodIndex, id: u32, code: i32) {
        self.pass(pod, id, Ok(ExecNews::Exited(code)), true);
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

    fn pass(&self, pod: PodIndex, id: u32, news: Result<ExecNews, ExecError>, last: bool) {
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
    id: u32,
    news: News,
    pods: Rc<Pods>,
    pod: PodIndex,
    container: String,
    number: u32,
    /// Ends when the process runs.
    turn: Cell<Option<Turn>>,
}

/// The end of a command of a probe or hook.
pub(super) struct CommandEnd {
    /// The exit code; `None` if the time was over, at which the command was killed. The error of a command whose end is
    /// unknown.
    pub(super) code: Result<Option<i32>, ExecError>,
    /// The beginning of the standard output, and of the errors if these are not separate.
    pub(super) output: Vec<u8>,
    /// The beginning of the standard error, if that is separate.
    pub(super) errors: Vec<u8>,
}

/// How long a command runs, and where its standard error goes.
#[derive(Clone, Copy)]
pub(super) enum CommandKind {
    /// The command of a probe ends after this time at the latest, and both streams are one output.
    Probe(Duration),
    /// The command of a hook ends with its container at the latest, and has separate streams.
    Hook,
}

impl Exec {
    /// Waits for the process to end, and returns its exit code.
    ///
    /// # Errors
    /// The process could not be started, or its container is gone.
    pub(super) async fn ended(&self) -> Result<i32, ExecError> {
        loop {
            match next(&self.news).await? {
                ExecNews::Started { .. } => self.turn.set(None),
                ExecNews::Exited(code) => return Ok(code),
            }
        }
    }

    /// Reports the start and the end of the process to a client; kills the process when the client is gone.
    pub(super) async fn serve(self, reply: Reply<ExecSession>) {
        let (exit, receiver) = async_channel::bounded(1);
        let session = |terminal| Ok(ExecSession { terminal, exit: receiver });
        match next(&self.news).await {
            Ok(ExecNews::Started { terminal }) => drop(reply.send(session(terminal)).await),
            Ok(ExecNews::Exited(code)) => {
                let _ = exit.try_send(ExecExit::Code(code));
                return drop(reply.send(session(None)).await);
            }
            Err(error) => return drop(reply.send(Err(Status::internal(error.message()))).await),
        }
        let ended = async { Some(self.ended().await) };
        // At once if the reply did not reach the client.
        let abandoned = async {
            exit.closed().await;
            None
        };
        match smol::future::or(ended, abandoned).await {
            Some(Ok(code)) => drop(exit.try_send(ExecExit::Code(code))),
            Some(Err(error)) => drop(exit.try_send(ExecExit::Failed(error.message()))),
            None => self.kill(),
        }
    }

    /// Kills the process and all its descendants.
    pub(super) fn kill(&self) {
        let Some(sandbox) = self.pods.sandbox(self.pod) else { return };
        let runs = sandbox.runs.borrow();
        let Some(run) = runs.get(&(self.container.clone(), self.number)) else { return };
        if let Err(error) = run.leaf.kill_exec(self.id) {
            log::warn!("failed to kill a process in {}: {error}", self.container);
        }
    }
}

impl Execs {
    /// Runs the command of a probe or hook in a container until it ends.
    ///
    /// # Errors
    /// The command could not be started.
    pub(super) async fn run(
        &self,
        pod: PodIndex,
        (container, number): (&Container, u32),
        command: &[String],
        kind: CommandKind,
    ) -> Result<CommandEnd, ExecError> {
        let (mut late, has_errors) = match kind {
            CommandKind::Probe(timeout) => (smol::Timer::after(timeout), false),
            CommandKind::Hook => (smol::Timer::never(), true),
        };
        // Its variables may make it large.
        let build = || probe_command(container, command).map_err(ExecError::Command);
        let built = async { self.turns.take(build, |words| bytes_of(words)).await.map(Some) };
        let no_turn = async {
            (&mut late).await;
            Ok(None)
        };
        let Some((args, turn)) = smol::future::or(built, no_turn).await? else {
            return Ok(CommandEnd { code: Ok(None), output: Vec::new(), errors: Vec::new() });
        };
        // Before there is a process that nobody would end.
        let (mut output, to_output) = Output::pipe()?;
        let (mut errors, to_errors) = if has_errors { Some(Output::pipe()?).unzip() } else { (None, None) };
        let config = ExecConfig { args, tty: false, size: None, devices: None };
        let stdio = [None, Some(to_output.as_fd()), Some(to_errors.as_ref().unwrap_or(&to_output).as_fd())];
        let exec = self.exec(pod, &container.name, number, &config, stdio)?;
        exec.turn.set(turn);
        // While the process runs, nothing keeps its command.
        drop((to_output, to_errors, config));
        let code = {
            let late = async {
                late.await;
                Ok(None)
            };
            let read_errors = async {
                match &mut errors {
                    Some(errors) => errors.read().await,
                    None => smol::future::pending().await,
                }
            };
            let read = smol::future::or(output.read(), read_errors);
            smol::future::or(smol::future::or(async { exec.ended().await.map(Some) }, late), read).await
        };
        if matches!(code, Ok(None)) {
            exec.kill();
        }
        Ok(CommandEnd { code, output: output.all(), errors: errors.map(Output::all).unwrap_or_default() })
    }

    /// Requests a process in a container from the pod's supervisor.
    ///
    /// # Errors
    /// The container does not run, or the supervisor cannot be asked.
    pub(super) fn exec(
        &self,
        pod: PodIndex,
        container: &str,
        number: u32,
        config: &ExecConfig,
        stdio: [Option<BorrowedFd<'_>>; 3],
    ) -> Result<Exec, ExecError> {
        let sandbox = self.pods.sandbox(pod).ok_or(ExecError::NoPod)?;
        if !sandbox.runs.borrow().contains_key(&(container.to_owned(), number)) {
            return Err(ExecError::NoContainer);
        }
        let (id, news) = self.begin(pod, false);
        let asked = sandbox.supervisor.exec(id, container, number, config, stdio);
        if let Err(error) = asked {
            self.waiting.borrow_mut().remove(&id);
            return Err(ExecError::Supervisor(error));
        }
        let (pods, container) = (self.pods.clone(), container.to_owned());
        Ok(Exec { id, news, pods, pod, container, number, turn: Cell::new(None) })
    }

    /// Has the pod's supervisor attach a client, with these ends of its pipes. Returns the container's terminal, if it
    /// has one.
    ///
    /// # Errors
    /// The container does not run, or the client could not be attached.
    pub(super) async fn attach(
        &self,
        pod: PodIndex,
        container: &str,
        number: u32,
        stdio: [Option<BorrowedFd<'_>>; 3],
    ) -> Result<Option<OwnedFd>, ExecError> {
        let (id, news) = self.begin(pod, true);
        let asked = self.pods.sandbox(pod).ok_or(ExecError::NoPod).and_then(|sandbox| {
            sandbox.supervisor.attach(id, container, number, stdio).map_err(ExecError::Supervisor)
        });
        let answer = match asked {
            Ok(()) => next(&news).await,
            Err(error) => Err(error),
        };
        self.waiting.borrow_mut().remove(&id);
        match answer? {
            ExecNews::Started { terminal } => Ok(terminal),
            ExecNews::Exited(_) => Err(ExecError::Gone),
        }
    }
}

/// The output of a process of a probe or hook. The first bytes are kept and the rest is discarded, so that the
/// process does not block on a full pipe.
struct Output {
    pipe: Async<File>,
    kept: Vec<u8>,
}

impl Output {
    /// The output, and the writing end of its pipe. That blocks: a program that writes much waits until it is read, and
    /// gets no EAGAIN.
    fn pipe() -> Result<(Self, OwnedFd), ExecError> {
        let (output, input) =
            nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(ExecError::MakePipe)?;
        Ok((Self::new(output)?, input))
    }

    /// # Errors
    /// `pipe` cannot be polled.
    fn new(pipe: OwnedFd) -> Result<Self, ExecError> {
        let pipe = Async::new(File::from(pipe)).map_err(ExecError::ReadPipe)?;
        Ok(Self { pipe, kept: Vec::new() })
    }

    /// Reads the output. Never returns, and may be dropped at any time.
    async fn read(&mut self) -> Result<Option<i32>, ExecError> {
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
    fn all(mut self) -> Vec<u8> {
        let mut buffer = [0; 1024];
        // What it has left behind may go on writing.
        while self.kept.len() < COMMAND_OUTPUT {
            match io::Read::read(&mut self.pipe.get_ref(), &mut buffer) {
                Ok(count @ 1..) => self.keep(&buffer[..count]),
                Ok(0) | Err(_) => break,
            }
        }
        self.kept
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = COMMAND_OUTPUT.saturating_sub(self.kept.len()).min(bytes.len());
        self.kept.extend_from_slice(&bytes[..room]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_that_are_not_attached_yet_are_listed_as_attaching() {
        let execs = Execs::new(Rc::default());
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
        assert!(matches!(news.try_recv(), Ok(Err(ExecError::Failed(why))) if why == "ask again"));
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
        assert_eq!(Output::new(output).expect("it can be waited for").all().len(), COMMAND_OUTPUT);
    }
}
