//! `pods/exec`: a command in a running container, and `pods/attach`: the streams of a container's own process. Each has
//! its streams over one connection.
//!
//! The engine starts a process with the API's pipes or terminal, and `api/streams.rs` transfers the bytes.
//! When the client disconnects, its [`ExecSession`] is dropped, which ends the process. Of a client that is attached, the
//! other ends of the pipes belong to the supervisor, which keeps the container's streams and lets no client block the
//! container (`supervisor/src/console.rs`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use hyper::Response;
use hyper::body::Incoming;
use nix::fcntl::{FcntlArg, fcntl};

use super::body::Body;
use super::channels::Channels;
use super::container::{self, Verb};
use super::place::Place;
use super::request::ExecSession;
use super::streams::{self, Pipes, Streams};
use super::upgrade::{self, upgrade};
use super::{Afterwards, Api, Query, Request, Status, write};
use nodlet_registry::objects::Key;

/// The maximum number of arguments of a command; Linux has a higher limit.
const MAX_ARGUMENTS: usize = 256;

/// The number of bytes of output by which a client may lag behind before it misses output.
const LAG: libc::c_int = 256 * 1024;

pub(super) fn exec(
    api: &Rc<Api>,
    key: &Key,
    query: &Query,
    request: hyper::Request<Incoming>,
    afterwards: &Afterwards,
    place: &Rc<Place>,
) -> Result<Response<Body>, Status> {
    let options = ExecOptions::parse(query)?;
    let container = container::running(api, key, options.container.as_deref(), Verb::Exec)?;
    let (api, key) = (api.clone(), key.clone());
    // The process is started after the handshake, so that the error channel can report why a start fails.
    upgrade(request, &upgrade::STREAMS, afterwards, place, |client, carrier| async move {
        let mut channels = Channels::new(carrier);
        let Some(framing) = channels.open(&client, options.channels()).await else { return };
        let mut early = Vec::new();
        // The process must know the size of its terminal from the start.
        let size =
            if options.tty { streams::first_size(&client, &mut channels, &mut early).await } else { None };
        match start(&api, &key, &container, &options, size).await {
            Ok((streams, session)) => {
                streams::talk(client, channels, framing, early, streams, Some(session)).await;
            }
            Err(status) => streams::refuse(&client, framing, &status).await,
        }
    })
}

/// Requests the start of the process from the engine.
async fn start(
    api: &Rc<Api>,
    key: &Key,
    container: &str,
    options: &ExecOptions,
    size: Option<(u16, u16)>,
) -> Result<(Streams, ExecSession), Status> {
    let Pipes { ours, theirs } =
        Pipes::new([options.stdin, options.stdout, options.stderr].map(|wanted| wanted && !options.tty))
            .map_err(no_pipe)?;
    let session = write::ask(api, |reply| Request::Exec {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        container: container.to_owned(),
        command: options.command.clone(),
        tty: options.tty,
        size,
        stdio: theirs,
        reply,
    })
    .await?;
    let streams = Streams::executed(ours, session.terminal.as_ref(), [options.stdin, options.stdout])
        .map_err(no_pipe)?;
    Ok((streams, session))
}

pub(super) fn attach(
    api: &Rc<Api>,
    key: &Key,
    query: &Query,
    request: hyper::Request<Incoming>,
    afterwards: &Afterwards,
    place: &Rc<Place>,
) -> Result<Response<Body>, Status> {
    let options = ExecOptions::streams(query)?;
    let container = container::running(api, key, options.container.as_deref(), Verb::Attach)?;
    let (api, key) = (api.clone(), key.clone());
    upgrade(request, &upgrade::STREAMS, afterwards, place, |client, carrier| async move {
        let mut channels = Channels::new(carrier);
        let Some(framing) = channels.open(&client, options.channels()).await else { return };
        match begin(&api, &key, &container, &options).await {
            Ok(streams) => streams::talk(client, channels, framing, Vec::new(), streams, None).await,
            Err(status) => streams::refuse(&client, framing, &status).await,
        }
    })
}

/// Passes the other ends of the pipes to the supervisor.
async fn begin(api: &Rc<Api>, key: &Key, container: &str, options: &ExecOptions) -> Result<Streams, Status> {
    let Pipes { ours, theirs } = Pipes::new([options.stdin, true, options.stderr]).map_err(no_pipe)?;
    for output in theirs[1..].iter().flatten() {
        // If this fails, the pipe keeps its size, and less lag is allowed.
        let _ = fcntl(output.as_raw_fd(), FcntlArg::F_SETPIPE_SZ(LAG));
    }
    let terminal: Option<OwnedFd> = write::ask(api, |reply| Request::Attach {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        container: container.to_owned(),
        stdio: theirs,
        reply,
    })
    .await?;
    Streams::attached(options.stdout, ours, terminal).map_err(no_pipe)
}

fn no_pipe(error: io::Error) -> Status {
    Status::internal(format!("failed to make a pipe: {error}"))
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
    fn parse(query: &Query) -> Result<ExecOptions, Status> {
        let options = ExecOptions {
            command: query.all("command").map(Into::into).collect(),
            ..ExecOptions::streams(query)?
        };
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

    /// Parses all options except the command.
    fn streams(query: &Query) -> Result<ExecOptions, Status> {
        let options = ExecOptions {
            container: query.get("container").filter(|name| !name.is_empty()).map(Into::into),
            command: Vec::new(),
            stdin: query.flag("stdin"),
            stdout: query.flag("stdout"),
            // A terminal has one output.
            stderr: query.flag("stderr") && !query.flag("tty"),
            tty: query.flag("tty"),
        };
        if !options.stdin && !options.stdout && !options.stderr {
            return Err(Status::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests;
