//! `pods/attach`: the streams of a container's own process, over one WebSocket.
//!
//! Messages are those of `pods/exec`, and so is the way they go (`api/exec.rs`); but
//! the other ends of the pipes are the supervisor's, which keeps the container's
//! streams and lets no client hold it up (`supervisor/console.rs`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use hyper::Response;
use hyper::body::Incoming;
use nix::fcntl::{FcntlArg, fcntl};
use smol::Async;
use smol_hyper::rt::FuturesIo;

use super::body::Body;
use super::exec::{self, Asked, Handshake, Pipes, Streams};
use super::read::parse;
use super::websocket::{Decoder, PROTOCOLS, Role};
use super::{Afterwards, Api, Query, Request, Status, log, write};
use crate::objects::Key;

/// Bytes of output by which a client may lag behind before some are skipped for it.
const LAG: libc::c_int = 256 * 1024;

pub(super) fn attach(
    api: &Rc<Api>,
    key: &Key,
    query: &Query,
    request: hyper::Request<Incoming>,
    afterwards: &Afterwards,
) -> Result<Response<Body>, Status> {
    let asked = Asked::streams(query)?;
    let object = api.objects.get(key).ok_or_else(|| Status::not_found("pods", &key.name))?;
    let pod = parse(&object.json);
    let container = log::container(&pod, asked.container.as_deref())?;
    if !log::container_status(&pod, &container).is_some_and(|status| status["state"]["running"].is_object()) {
        return Err(Status::bad_request(format!(
            "container \"{container}\" in pod \"{}\" is not running: see `nodlet get pod {}`",
            key.name, key.name
        )));
    }
    let handshake = Handshake::of(&request, &PROTOCOLS)?;
    let (api, key) = (api.clone(), key.clone());
    let response = handshake.response();
    let upgrade = hyper::upgrade::on(request);
    *afterwards.borrow_mut() = Some(Box::pin(async move {
        let connection = match upgrade.await {
            Ok(connection) => connection,
            Err(error) => return ::log::debug!("api: attach: {error}"),
        };
        // What was read behind the request are the client's first frames.
        if let Ok(parts) = connection.downcast::<FuturesIo<Async<UnixStream>>>() {
            let mut decoder = Decoder::new(Role::Server);
            decoder.push(&parts.read_buf);
            let connection = parts.io.into_inner();
            match begin(&api, &key, &container, &asked).await {
                Ok(streams) => exec::talk(connection, decoder, Vec::new(), streams, None).await,
                Err(status) => exec::refuse(&connection, &status).await,
            }
        }
    }));
    Ok(response)
}

/// Has the supervisor take the other ends.
async fn begin(api: &Rc<Api>, key: &Key, container: &str, asked: &Asked) -> Result<Streams, Status> {
    let failed = |error: &dyn std::fmt::Display| Status::internal(format!("failed to make a pipe: {error}"));
    let Pipes { ours, theirs } =
        Pipes::new([asked.stdin, true, asked.stderr]).map_err(|error| failed(&error))?;
    for output in theirs[1..].iter().flatten() {
        // Refused, it is as large as it was: less lag is allowed.
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
    Streams::attached(asked.stdout, ours, terminal).map_err(|error| failed(&error))
}
