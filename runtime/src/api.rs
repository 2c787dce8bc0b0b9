//! The local Kubernetes API: a subset of Kubernetes' own, over HTTP on a unix
//! socket. kubectl is a client of it, and so are nodlet's own verbs.
//!
//! The API serves the objects in [`Objects`], and passes every change to the engine as a [`Request`]; it
//! decides nothing about pods and stores nothing. The API runs on the engine's thread, so that no function
//! may block: reads of files are bounded, and data is read only as fast as the client receives it. The
//! socket's mode is the only access control, and members of its group have the rights of root. Read next:
//! `api/route.rs` (the meaning of a URL), `api/read.rs` (get, list), `api/watch.rs`, `api/write.rs`,
//! `api/log.rs`, `api/ring.rs`, `api/fixed.rs` (what depends on no object); for the kubelet's server, `api/kubelet.rs`; for connections that leave HTTP, `api/upgrade.rs` (`exec`, `attach`,
//! `portforward`); `api/place.rs` (limits of clients and memory).

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::AsyncReadExt;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Response};
use smol::lock::{Semaphore, SemaphoreGuardArc};
use smol::{Async, LocalExecutor};
use smol_hyper::rt::{FuturesIo, SmolTimer};

use crate::ring::SharedRing;
use crate::storage_thread::Storage;
use nodlet_host::watches::Watches;
use nodlet_kernel::durable::discard;
use nodlet_kube::kinds::Kind;
use nodlet_registry::objects::Objects;
pub(crate) use nodlet_registry::{
    Accepted, Applied, Change, FieldValidation, Part, PatchKind, Preconditions, Status,
};
use nodlet_wire::timeout::within;

mod accept;
mod answer;
mod body;
mod channels;
mod container;
mod discovery;
mod exec;
mod fixed;
mod kubelet;
mod log;
mod options;
mod place;
mod portforward;
pub mod push;
mod read;
mod request;
mod ring;
mod route;
mod select;
mod stats;
mod streams;
mod table;
mod upgrade;
mod watch;
mod write;

use accept::Form;
use answer::Answer;
use body::Body;
use container::Verb;
pub(crate) use place::{Place, Places};
pub(crate) use request::{EphemeralRequest, ExecExit, ExecSession, Family, Reply, Request};
use route::{Query, Target};

/// The maximum number of clients at a time, by default.
pub const CONNECTIONS: usize = 64;

/// The maximum size of a request's line and headers in bytes: an exec has its command there.
const HEADER_BYTES: usize = 64 * 1024;

/// The maximum size of a request's body in bytes: a manifest has some thousands.
const BODY_BYTES: usize = 1024 * 1024;

/// The time limit for the headers of a request, and between two requests on one connection.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);

/// The time for which a request for the Node waits until the node is measured.
const MEASURED_WITHIN: Duration = Duration::from_millis(500);

/// Why an eviction is rejected. `kubectl drain` ignores 404 and repeats an eviction after 429; after any other error it ends.
const NO_EVICTION: &str = "a board has no evictions at its own API: `nodlet delete pod NAME` ends a pod, and a Node of a \
                           cluster is drained at the API server of the cluster";

/// The time for which the rest of a client's request is received after the last response.
const REST_WITHIN: Duration = Duration::from_secs(2);

/// The data that the API needs to serve requests.
#[derive(Debug)]
pub(crate) struct Api {
    /// The objects to serve.
    pub objects: Rc<Objects>,
    /// The engine's queue of requests.
    pub requests: async_channel::Sender<Request>,
    /// `--root`, below which logs are read.
    pub root: PathBuf,
    /// The thread for reads that may have to wait for flash.
    pub storage: Storage,
    /// The name of the node.
    pub node_name: String,
    /// The instance of inotify with which logs are followed.
    pub watches: Watches,
    /// The latest observations and actions of the core.
    pub ring: Rc<SharedRing>,
    /// The places of the clients.
    pub places: Places,
}

/// The path of the socket below the root.
pub fn socket_path(root: &Path) -> PathBuf {
    root.join("run/nodlet/api.sock")
}

/// Listens on [`socket_path`], with mode 0660 and the group `nodlet` if it exists. What is in its place, such as the
/// socket of an earlier agent, is replaced unless it is a directory; the caller must ensure that no other agent runs.
pub(crate) fn listen(root: &Path) -> io::Result<Async<UnixListener>> {
    let path = socket_path(root);
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    }
    // The socket is made beside its place and renamed, so that it never exists there with another mode.
    let new = path.with_extension("sock.new");
    for path in [&path, &new] {
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
            let message = format!("{}: it is a directory: remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::IsADirectory, message));
        }
    }
    discard(&new)?;
    let listener = UnixListener::bind(&new)?;
    if let Ok(Some(group)) = nix::unistd::Group::from_name("nodlet") {
        nix::unistd::chown(&new, None, Some(group.gid))?;
    }
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o660))?;
    std::fs::rename(&new, &path)?;
    Async::new(listener)
}

/// Serves requests until the future is dropped.
pub(crate) async fn serve(api: Api, listener: Async<UnixListener>) -> io::Result<()> {
    let api = Rc::new(api);
    let free = Arc::new(Semaphore::new(api.places.most()));
    let connections = LocalExecutor::new();
    connections
        .run(async {
            // Logged once, because an agent without descriptors would fill its log otherwise.
            let mut refused = false;
            loop {
                let (stream, _) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    // The client is gone already, or there are no descriptors left: someone will close one.
                    Err(error) => {
                        if !refused {
                            ::log::warn!("api: failed to accept connections: {error}");
                        }
                        refused = true;
                        smol::Timer::after(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                refused = false;
                let free = place_for_one(&api.places, &free, CHECK_INTERVAL).await;
                let api = api.clone();
                connections
                    .spawn(async move {
                        let place = api.places.take();
                        connection(api, place, stream, None).await;
                        drop(free);
                    })
                    .detach();
            }
        })
        .await
}

/// Decides whether requests of a remote client are served.
pub(crate) trait Authorization {
    /// Whether the client may send a request with this method, path and headers.
    fn check<'a>(
        &'a self,
        method: &'a Method,
        path: &'a str,
        headers: &'a hyper::HeaderMap,
    ) -> Pin<Box<dyn Future<Output = Result<(), Status>> + 'a>>;
}

/// Waits for a place, and checks at this interval for a client that hangs and can be disconnected.
pub(crate) async fn place_for_one(
    places: &Places,
    free: &Arc<Semaphore>,
    look: Duration,
) -> SemaphoreGuardArc {
    loop {
        if let Some(place) = free.try_acquire_arc() {
            return place;
        }
        places.disconnect_hanging(Instant::now());
        if let Some(place) = within(look, free.acquire_arc()).await {
            return place;
        }
    }
}

/// The interval of the checks for a client that hangs, while another client waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The continuation of a connection after its last response, `101 Switching Protocols`.
type Afterwards = Rc<RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>>;

/// A request of a client, and what belongs to its connection.
struct Exchange<'a> {
    api: &'a Rc<Api>,
    request: hyper::Request<Incoming>,
    /// The query of the URL, once the path is known.
    query: Query,
    afterwards: &'a Afterwards,
    place: &'a Rc<Place>,
}

/// The response to a request, or the reason why it is rejected.
type Answered = Result<Response<Body>, Status>;

/// Serves the requests of one client, until its connection has ended. A remote client is one of the kubelet's server.
pub(crate) async fn connection(
    api: Rc<Api>,
    place: Rc<Place>,
    stream: Async<UnixStream>,
    remote: Option<Rc<dyn Authorization>>,
) {
    let afterwards = Afterwards::default();
    let rest = stream.get_ref().try_clone();
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (api, afterwards, place) = (api.clone(), afterwards.clone(), place.clone());
        let remote = remote.clone();
        place.mark_request(request.body().is_end_stream());
        async move { Ok::<_, Infallible>(respond(&api, request, &afterwards, &place, remote).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(SmolTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(FuturesIo::new(stream), service)
        .with_upgrades();
    let disconnected = async {
        place.disconnected().await;
        None
    };
    let all = async {
        let served = served.await;
        place.mark_served();
        let afterwards = afterwards.borrow_mut().take();
        match (afterwards, rest) {
            (Some(afterwards), _) => afterwards.await,
            (None, Ok(rest)) => receive_rest(rest).await,
            (None, Err(_)) => {}
        }
        Some(served)
    };
    match smol::future::or(all, disconnected).await {
        Some(Ok(())) => {}
        // A client that disconnects or sends an invalid request is not an error of the agent.
        Some(Err(error)) => ::log::debug!("api: {error}"),
        None => ::log::debug!("api: disconnected a client that hangs, to serve another one"),
    }
}

/// Receives what a client still sends after the last response, such as the body of a request that was rejected by its
/// headers. Otherwise the kernel would tell the client of a broken connection, before it has read the response.
async fn receive_rest(rest: UnixStream) {
    let Ok(mut rest) = Async::new(rest) else { return };
    let _ = rest.get_ref().shutdown(Shutdown::Write);
    let all = async {
        let (mut buffer, mut received) = ([0; 1024], 0);
        while let Ok(count @ 1..) = rest.read(&mut buffer).await {
            received += count;
            if received > BODY_BYTES {
                break;
            }
        }
    };
    within(REST_WITHIN, all).await;
}

async fn respond(
    api: &Rc<Api>,
    request: hyper::Request<Incoming>,
    afterwards: &Afterwards,
    place: &Rc<Place>,
    remote: Option<Rc<dyn Authorization>>,
) -> Response<Answer> {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let answered = async {
        // A change that was made is never answered with 429: clients repeat it.
        let is_change = !matches!(method, Method::GET | Method::HEAD);
        let room = if is_change { Some(api.places.hold(1)?) } else { None };
        let exchange = Exchange { api, request, query: Query::default(), afterwards, place };
        let response = match &remote {
            None => answer(exchange).await?,
            Some(remote) => {
                remote.check(&method, uri.path(), exchange.request.headers()).await?;
                kubelet::answer(exchange).await?
            }
        };
        let held = match response.body() {
            Body::Whole(Some(bytes)) if room.is_some() => Some(api.places.hold_beyond(bytes.len())),
            Body::Whole(Some(bytes)) => Some(api.places.hold(bytes.len())?),
            Body::Whole(None) | Body::Stream(_) => None,
        };
        Ok((response, held))
    };
    let answered: Result<_, Status> = answered.await;
    let (response, held) = answered.unwrap_or_else(|status| {
        ::log::debug!("api: {method} {uri}: {} {status}", status.code);
        // The API server makes a `Status` of the kubelet's text.
        (if remote.is_some() { kubelet::refuse(status) } else { body::refuse(&status) }, None)
    });
    response.map(|body| Answer::new(body, place.clone(), held))
}

async fn answer(mut exchange: Exchange<'_>) -> Answered {
    let (api, uri) = (exchange.api, exchange.request.uri());
    let method = exchange.request.method().clone();
    if let Some(fixed) = fixed::find(&method, uri.path(), &api.node_name) {
        return fixed;
    }
    let target = route::parse(uri.path())?;
    exchange.query = Query::parse(uri.query().unwrap_or(""))?;
    let query = &exchange.query;
    let watches = query.flag("watch");
    if watches || query.flag("follow") || route::stays(&target) {
        api.places.stay(exchange.place, Instant::now())?;
    }
    let target = match target {
        Target::Objects(target) => target,
        Target::Ring { node } if method == Method::GET => return ring::show(api, &node, query),
        Target::Cluster if method == Method::POST => {
            return write::follow_cluster(api, query.flag("sync")).await;
        }
        Target::Push if method == Method::GET => return push::push(exchange),
        Target::Healthy if api.storage.hangs(nodlet_host::clock::instant()) => {
            return Err(Status::internal(
                "the agent's storage thread hangs: the agent can neither start pods nor keep their state",
            ));
        }
        fixed if method == Method::GET || method == Method::HEAD => return discovery::show(&fixed),
        _ => return Err(not_allowed(&method)),
    };
    let route::Objects { row, namespace, name, subresource } = target;
    if row.kind == Kind::Node && method == Method::GET {
        // As far as the card responds: a client must not wait for it.
        within(MEASURED_WITHIN, write::ask(api, |reply| Request::Measure { reply })).await;
    }
    // The other subresources are no objects.
    let form = match subresource.as_deref() {
        None | Some("status" | "resize" | "ephemeralcontainers") => {
            Form::of(exchange.request.headers(), query)?
        }
        Some(_) => Form::Whole,
    };
    if !watches {
        form.require(name.is_none() && method != Method::POST, row)?;
    }
    let namespace = namespace.as_deref();
    let Some(name) = name else {
        // Objects of all namespaces are only read.
        let one = namespace.or((!row.namespaced).then_some(""));
        let one = one.ok_or_else(|| not_allowed_of(row.kind, &method));
        let response = match method {
            Method::GET if watches => return watch::watch(&exchange, row, namespace, form),
            Method::GET => return read::list(api, row, namespace, query, form),
            Method::POST if row.allows("create") => write::create(exchange, row, one?).await,
            Method::DELETE if row.allows("deletecollection") => {
                write::delete_collection(exchange, row, one?).await
            }
            _ => Err(not_allowed_of(row.kind, &method)),
        };
        return Ok(form.apply(row, response?));
    };
    let key = route::key(row, namespace, &name)?;
    let response = match (row.kind, subresource.as_deref().unwrap_or_default(), &method) {
        (_, "", &Method::GET) => read::get(api, row, &key, query),
        (_, "", &Method::PUT) if row.allows("update") => write::apply(exchange, row, &key).await,
        (_, "", &Method::DELETE) if row.allows("delete") => write::delete(exchange, row, &key).await,
        (_, "", &Method::PATCH) if row.allows("patch") => {
            write::update(exchange, row, &key, Part::Whole).await
        }
        (_, "", &Method::PATCH) if row.allows("update") => Err(Status::unsupported_media_type(format!(
            "nodlet does not support patches of {}: replace the object with `nodlet apply -f` or `kubectl replace -f`",
            row.plural
        ))),
        (_, "", _) => Err(not_allowed_of(row.kind, &method)),
        (Kind::Pod, "status" | "resize" | "ephemeralcontainers", &Method::GET) => {
            read::get(api, row, &key, query)
        }
        (Kind::Pod, "resize", &(Method::PUT | Method::PATCH)) => {
            write::update(exchange, row, &key, Part::Resize).await
        }
        (Kind::Pod, "status", &(Method::PUT | Method::PATCH)) => {
            write::update(exchange, row, &key, Part::Status).await
        }
        (Kind::Pod, "ephemeralcontainers", &(Method::PUT | Method::PATCH)) => {
            write::ephemeral(exchange, row, &key).await
        }
        // Not a subresource of Kubernetes, and therefore in no discovery document.
        (Kind::Pod, "restart", &Method::POST) => write::restart(api, &key, query).await,
        (Kind::Pod, "log", &Method::GET) => log::log(api, &key, query, None).await,
        (Kind::Pod, "exec", &(Method::GET | Method::POST)) => exec::connect(exchange, &key, Verb::Exec),
        (Kind::Pod, "attach", &(Method::GET | Method::POST)) => exec::connect(exchange, &key, Verb::Attach),
        (Kind::Pod, "portforward", &(Method::GET | Method::POST)) => portforward::portforward(exchange, &key),
        (Kind::Pod, "eviction", _) => Err(Status::method_not_allowed(NO_EVICTION)),
        (_, subresource, _) if row.subresource(subresource).is_some() => {
            Err(not_allowed_of(row.kind, &method))
        }
        _ => Err(Status::no_such_path()),
    };
    Ok(form.apply(row, response?))
}

/// The rejection of a method that objects of a kind do not support.
fn not_allowed_of(kind: Kind, method: &Method) -> Status {
    let status = not_allowed(method);
    let is_write = [Method::POST, Method::PUT, Method::DELETE, Method::PATCH].contains(method);
    let why = match kind {
        Kind::Namespace if is_write => {
            "namespaces need no object: one exists as long as it has objects, which name it in metadata.namespace"
        }
        Kind::Endpoints if is_write => {
            "only the agent writes Endpoints: write an EndpointSlice, with the label kubernetes.io/service-name"
        }
        Kind::Node if is_write => {
            "only its agent writes a Node: `nodlet agent --node-labels` sets labels, and a board has no cordon, drain or taint"
        }
        _ => return status,
    };
    Status { message: why.to_owned(), ..status }
}

fn not_allowed(method: &Method) -> Status {
    match *method {
        Method::POST | Method::PUT | Method::DELETE | Method::PATCH | Method::GET => {
            Status::method_not_allowed("the server does not allow this method on the requested resource")
        }
        _ => Status::method_not_allowed(format!("method {method} is not supported")),
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
