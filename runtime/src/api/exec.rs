//! `pods/exec`: a command in a running container, its streams over one WebSocket.
//!
//! The engine starts the process with pipes or a terminal of ours; bytes go to and fro
//! in `api/streams.rs`. A client that goes away drops the [`ExecSession`], which ends the
//! process.

use std::rc::Rc;

use hyper::Response;
use hyper::body::Incoming;

use super::body::Body;
use super::container::{self, Verb};
use super::place::Place;
use super::request::ExecSession;
use super::streams::{self, Pipes, Streams};
use super::upgrade::{self, upgrade};
use super::{Afterwards, Api, Query, Request, Status, write};
use nodlet_registry::objects::Key;

/// Arguments of a command, as Linux would refuse still more of them.
const MAX_ARGUMENTS: usize = 256;

pub(super) fn exec(
    api: &Rc<Api>,
    key: &Key,
    query: &Query,
    request: hyper::Request<Incoming>,
    afterwards: &Afterwards,
    place: &Rc<Place>,
) -> Result<Response<Body>, Status> {
    let asked = Asked::parse(query)?;
    let container = container::running(api, key, asked.container.as_deref(), Verb::Exec)?;
    let (api, key) = (api.clone(), key.clone());
    // The process is started when the client can be told on the error channel why there is none.
    upgrade(request, &upgrade::STREAMS, afterwards, place, |client, mut decoder| async move {
        let mut early = Vec::new();
        // The process is to see the size of its terminal from the start.
        let size = match asked.tty {
            true => streams::first_size(&client, &mut decoder, &mut early).await,
            false => None,
        };
        match start(&api, &key, &container, &asked, size).await {
            Ok((streams, session)) => streams::talk(client, decoder, early, streams, Some(session)).await,
            Err(status) => streams::refuse(&client, &status).await,
        }
    })
}

/// Has the engine start the process.
async fn start(
    api: &Rc<Api>,
    key: &Key,
    container: &str,
    asked: &Asked,
    size: Option<(u16, u16)>,
) -> Result<(Streams, ExecSession), Status> {
    let failed = |error: &dyn std::fmt::Display| Status::internal(format!("failed to make a pipe: {error}"));
    let Pipes { ours, theirs } =
        Pipes::new([asked.stdin, asked.stdout, asked.stderr].map(|wanted| wanted && !asked.tty))
            .map_err(|error| failed(&error))?;
    let session = write::ask(api, |reply| Request::Exec {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        container: container.to_owned(),
        command: asked.command.clone(),
        tty: asked.tty,
        size,
        stdio: theirs,
        reply,
    })
    .await?;
    let streams = Streams::executed(ours, session.terminal.as_ref(), [asked.stdin, asked.stdout])
        .map_err(|error| failed(&error))?;
    Ok((streams, session))
}

/// `PodExecOptions`, and without a command `PodAttachOptions`.
pub(super) struct Asked {
    pub(super) container: Option<String>,
    command: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

impl Asked {
    fn parse(query: &Query) -> Result<Asked, Status> {
        let asked =
            Asked { command: query.all("command").map(Into::into).collect(), ..Asked::streams(query)? };
        if asked.command.first().is_none_or(String::is_empty) {
            return Err(Status::bad_request("command: Required value: what is to be executed"));
        }
        if asked.command.len() > MAX_ARGUMENTS || asked.command.iter().any(|argument| argument.contains('\0'))
        {
            return Err(Status::bad_request(format!(
                "command: Invalid value: must have at most {MAX_ARGUMENTS} arguments, none with a NUL byte"
            )));
        }
        Ok(asked)
    }

    /// All but the command.
    pub(super) fn streams(query: &Query) -> Result<Asked, Status> {
        let asked = Asked {
            container: query.get("container").filter(|name| !name.is_empty()).map(Into::into),
            command: Vec::new(),
            stdin: query.flag("stdin"),
            stdout: query.flag("stdout"),
            // A terminal has one output.
            stderr: query.flag("stderr") && !query.flag("tty"),
            tty: query.flag("tty"),
        };
        if !asked.stdin && !asked.stdout && !asked.stderr {
            return Err(Status::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests;
