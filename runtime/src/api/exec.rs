//! `pods/exec`: a command in a running container, and `pods/attach`: the streams of a container's own process. Each has
//! its streams over one connection.
//!
//! The engine starts a process with the API's pipes or terminal, and `api/streams.rs` transfers the bytes.
//! When the client disconnects, its [`ExecSession`] is dropped, which ends the process. Of a client that is attached, the
//! other ends of the pipes belong to the supervisor, which keeps the container's streams and lets no client block the
//! container (`supervisor/src/console.rs`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use async_channel::Receiver;
use nix::fcntl::{FcntlArg, fcntl};

use super::channels::Channels;
use super::container::{self, Verb};
use super::request::{ExecExit, ExecSession};
use super::streams::{self, Pipes, Streams, no_pipe};
use super::upgrade::{self, upgrade};
use super::{Answered, Api, Exchange, Query, Request, Status, write};
use nodlet_registry::objects::Key;

/// The maximum number of arguments of a command; Linux has a higher limit.
const MAX_ARGUMENTS: usize = 256;

/// The number of bytes of output by which a client may lag behind before it misses output.
const LAG: libc::c_int = 256 * 1024;

/// Connects a client to a command that is executed for it, or to the container's own process.
pub(super) fn connect(exchange: Exchange<'_>, key: &Key, verb: Verb) -> Answered {
    let options = ExecOptions::parse(&exchange.query, verb)?;
    let container = container::running(exchange.api, key, options.container.as_deref(), verb)?;
    let (api, key) = (exchange.api.clone(), key.clone());
    // The process is started after the handshake, so that the error channel can report why a start fails.
    upgrade(exchange, &upgrade::STREAMS, move |client, carrier| async move {
        let mut channels = Channels::new(carrier);
        let Some(framing) = channels.open(&client, options.channels()).await else { return };
        let (mut early, wants_stdout) = (Vec::new(), options.stdout);
        let started = match verb {
            Verb::Exec => {
                // The process must know the size of its terminal from the start.
                let mut size = None;
                if options.tty {
                    size = streams::first_size(&client, &mut channels, &mut early).await;
                }
                start(&api, &key, container, options, size).await
            }
            Verb::Attach => attach(&api, &key, container, &options).await.map(|streams| (streams, None)),
        };
        match started {
            Ok((streams, exit)) => {
                streams::talk(client, channels, framing, early, streams, wants_stdout, exit).await;
            }
            Err(status) => streams::refuse(&client, framing, &status).await,
        }
    })
}

/// Requests the start of the process from the engine. Returns its streams and its exit.
async fn start(
    api: &Rc<Api>,
    key: &Key,
    container: String,
    options: ExecOptions,
    size: Option<(u16, u16)>,
) -> Result<(Streams, Option<Receiver<ExecExit>>), Status> {
    let ExecOptions { stdin, stdout, stderr, tty, command, .. } = options;
    let Pipes { mut ours, theirs } = Pipes::new([stdin, stdout, stderr].map(|wanted| wanted && !tty))?;
    let ExecSession { terminal, exit } = write::ask(api, |reply| Request::Exec {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        container,
        command,
        tty,
        size,
        stdio: theirs,
        reply,
    })
    .await?;
    if let Some(terminal) = &terminal {
        let clone = |wanted: bool| wanted.then(|| terminal.try_clone()).transpose().map_err(no_pipe);
        ours = [clone(stdin)?, clone(stdout)?, None];
    }
    Ok((Streams::new(ours, terminal)?, Some(exit)))
}

/// Passes the other ends of the pipes to the supervisor. There is always a stdout, whose end shows the end of the
/// container; the terminal is only resized.
async fn attach(
    api: &Rc<Api>,
    key: &Key,
    container: String,
    options: &ExecOptions,
) -> Result<Streams, Status> {
    let Pipes { ours, theirs } = Pipes::new([options.stdin, true, options.stderr])?;
    for output in theirs[1..].iter().flatten() {
        // If this fails, the pipe keeps its size, and less lag is allowed.
        let _ = fcntl(output.as_raw_fd(), FcntlArg::F_SETPIPE_SZ(LAG));
    }
    let (namespace, pod) = (key.namespace.to_string(), key.name.to_string());
    let terminal: Option<OwnedFd> =
        write::ask(api, |reply| Request::Attach { namespace, pod, container, stdio: theirs, reply }).await?;
    Streams::new(ours, terminal)
}

/// The options of a request: `PodExecOptions`, or `PodAttachOptions` without a command.
struct ExecOptions {
    container: Option<String>,
    command: Vec<String>,
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl ExecOptions {
    fn parse(query: &Query, verb: Verb) -> Result<ExecOptions, Status> {
        let tty = query.flag("tty");
        let options = ExecOptions {
            container: query.get("container").filter(|name| !name.is_empty()).map(Into::into),
            command: query.all("command").map(Into::into).collect(),
            stdin: query.flag("stdin"),
            stdout: query.flag("stdout"),
            // A terminal has one output.
            stderr: query.flag("stderr") && !tty,
            tty,
        };
        if !options.stdin && !options.stdout && !options.stderr {
            return Err(Status::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
        }
        if let Verb::Attach = verb {
            return Ok(options);
        }
        if options.command.first().is_none_or(String::is_empty) {
            return Err(Status::bad_request("command: Required value: the command to execute"));
        }
        if options.command.len() > MAX_ARGUMENTS
            || options.command.iter().any(|argument| argument.contains('\0'))
        {
            return Err(Status::bad_request(format!(
                "command: Invalid value: must have at most {MAX_ARGUMENTS} arguments, none with a NUL byte"
            )));
        }
        Ok(options)
    }

    /// The number of channels that a client of SPDY opens, besides that of errors.
    fn channels(&self) -> usize {
        [self.stdin, self.stdout, self.stderr, self.tty].iter().filter(|wanted| **wanted).count()
    }
}

#[cfg(test)]
mod tests;
