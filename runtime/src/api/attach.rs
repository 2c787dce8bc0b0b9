//! `pods/attach`: the streams of a container's own process, over one connection.
//!
//! Bytes are transferred as for `exec` (`api/streams.rs`), but the other ends of the pipes belong to the
//! supervisor, which keeps the container's streams and lets no client block the container
//! (`supervisor/src/console.rs`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use hyper::Response;
use hyper::body::Incoming;
use nix::fcntl::{FcntlArg, fcntl};

use super::body::Body;
use super::channels::Channels;
use super::container::{self, Verb};
use super::exec::ExecOptions;
use super::place::Place;
use super::streams::{self, Pipes, Streams};
use super::upgrade::{self, upgrade};
use super::{Afterwards, Api, Query, Request, Status, write};
use nodlet_registry::objects::Key;

/// The number of bytes of output by which a client may lag behind before it misses output.
const LAG: libc::c_int = 256 * 1024;

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
    let failed = |error: &dyn std::fmt::Display| Status::internal(format!("failed to make a pipe: {error}"));
    let Pipes { ours, theirs } =
        Pipes::new([options.stdin, true, options.stderr]).map_err(|error| failed(&error))?;
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
    Streams::attached(options.stdout, ours, terminal).map_err(|error| failed(&error))
}
