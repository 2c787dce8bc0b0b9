//! `pods/exec`: a command in a running container, its streams over one connection.
//!
//! The engine starts the process with the API's pipes or terminal, and `api/streams.rs` transfers the bytes.
//! When the client disconnects, its [`ExecSession`] is dropped, which ends the process.

use std::rc::Rc;

use hyper::Response;
use hyper::body::Incoming;

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
    let failed = |error: &dyn std::fmt::Display| Status::internal(format!("failed to make a pipe: {error}"));
    let Pipes { ours, theirs } =
        Pipes::new([options.stdin, options.stdout, options.stderr].map(|wanted| wanted && !options.tty))
            .map_err(|error| failed(&error))?;
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
        .map_err(|error| failed(&error))?;
    Ok((streams, session))
}

/// The options of a request: `PodExecOptions`, or `PodAttachOptions` without a command.
pub(super) struct ExecOptions {
    pub(super) container: Option<String>,
    command: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
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
    pub(super) fn channels(&self) -> usize {
        [self.stdin, self.stdout, self.stderr, self.tty].iter().filter(|wanted| **wanted).count()
    }

    /// Parses all options except the command.
    pub(super) fn streams(query: &Query) -> Result<ExecOptions, Status> {
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
