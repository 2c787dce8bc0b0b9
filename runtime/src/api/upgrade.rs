//! Connections that leave HTTP: the handshake of `exec`, `attach` and `portforward`, for a WebSocket or SPDY/3.1, and
//! the client after the handshake.
//!
//! A client may send without a pause, read nothing, or disappear without notice; this must not affect other
//! clients. Read next: `api/streams.rs` and `api/portforward.rs`, on the protocols after the handshake;
//! `wire/src/websocket.rs`, on the frames.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use smol::Async;
use smol_hyper::rt::FuturesIo;

use super::body::Body;
use super::place::Place;
use super::{Afterwards, Status};
use nodlet_wire::spdy;
use nodlet_wire::websocket::{self, Decoder, PROTOCOLS, Role};

/// The protocols of a connection after its handshake.
pub(super) struct Spoken {
    /// The subprotocols of a WebSocket, the preferred one first.
    protocols: &'static [&'static str],
    /// The protocol inside of SPDY (`X-Stream-Protocol-Version`).
    spdy: &'static str,
}

/// The protocols for the streams of a process.
pub(super) const STREAMS: Spoken = Spoken { protocols: &PROTOCOLS, spdy: "v4.channel.k8s.io" };

/// The protocols for forwarded connections.
pub(super) const CONNECTIONS: Spoken = Spoken { protocols: &[spdy::PROTOCOL], spdy: "portforward.k8s.io" };

/// The transport of a client's bytes after the handshake.
pub(super) enum Carrier {
    /// Messages of a WebSocket.
    WebSocket {
        messages: Decoder,
        /// The subprotocol.
        protocol: &'static str,
    },
    /// The bytes themselves, of SPDY.
    Spdy(Vec<u8>),
}

impl Carrier {
    /// Adds received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self {
            Carrier::WebSocket { messages, .. } => messages.push(bytes),
            Carrier::Spdy(received) => received.extend_from_slice(bytes),
        }
    }
}

/// Replies that the connection changes its protocol, and continues it with `talk`.
///
/// Call this last: when a handshake is rejected, kubectl retries with SPDY, and shows the reply to the retry.
pub(super) fn upgrade<Talk: Future<Output = ()> + 'static>(
    request: hyper::Request<Incoming>,
    spoken: &Spoken,
    afterwards: &Afterwards,
    place: &Rc<Place>,
    talk: impl FnOnce(Client, Carrier) -> Talk + 'static,
) -> Result<Response<Body>, Status> {
    let handshake = Handshake::of(&request, spoken)?;
    let mut carrier = match handshake.accept {
        Some(_) => Carrier::WebSocket { messages: Decoder::new(Role::Server), protocol: handshake.protocol },
        None => Carrier::Spdy(Vec::new()),
    };
    let response = handshake.response();
    let (upgrade, place) = (hyper::upgrade::on(request), place.clone());
    *afterwards.borrow_mut() = Some(Box::pin(async move {
        let connection = match upgrade.await {
            Ok(connection) => connection,
            Err(error) => return ::log::debug!("api: failed to upgrade a connection: {error}"),
        };
        if let Ok(parts) = connection.downcast::<FuturesIo<Async<UnixStream>>>() {
            // The bytes after the request are the client's first frames.
            carrier.push(&parts.read_buf);
            talk(Client { stream: parts.io.into_inner(), place }, carrier).await;
        }
    }));
    Ok(response)
}

/// The client of a connection that has left HTTP.
pub(super) struct Client {
    stream: Async<UnixStream>,
    place: Rc<Place>,
}

impl Client {
    /// Reads the available bytes. Returns 0 if the client has ended.
    pub(super) async fn read(&self, piece: &mut [u8]) -> io::Result<usize> {
        // Without this, a client that sends as fast as it is read would keep other clients from being served.
        smol::future::yield_now().await;
        (&self.stream).read(piece).await
    }

    /// Sends all bytes. In the meantime, a client that does not read counts as hanging.
    pub(super) async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.place.mark_unread();
        let sent = (&self.stream).write_all(bytes).await;
        self.place.mark_served();
        sent
    }

    /// Waits until the client is gone, without reading from it: unread data precedes the end of the stream.
    pub(super) async fn gone(&self) {
        let watch = || -> io::Result<Async<OwnedFd>> {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            epoll.add(self.stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLRDHUP, 0))?;
            Async::new(epoll.0)
        };
        match watch() {
            Ok(watched) if watched.readable().await.is_ok() => {}
            // Then the next read reports the end.
            Ok(_) | Err(_) => smol::future::pending().await,
        }
    }
}

/// SPDY in `Upgrade`.
const SPDY: &str = "SPDY/3.1";

/// The header with the protocols inside of SPDY.
const SPDY_PROTOCOL: &str = "x-stream-protocol-version";

/// The client's side of the upgrade.
struct Handshake {
    /// The response to the key of a WebSocket; none for SPDY.
    accept: Option<String>,
    protocol: &'static str,
}

impl Handshake {
    fn of(request: &hyper::Request<Incoming>, spoken: &Spoken) -> Result<Handshake, Status> {
        let text = |name| {
            request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or("")
        };
        let upgrade = text(header::UPGRADE);
        if upgrade.eq_ignore_ascii_case(SPDY) {
            let offered = request.headers().get_all(SPDY_PROTOCOL);
            let mut offered = offered.iter().filter_map(|value| value.to_str().ok());
            if !offered.any(|value| value.split(',').any(|offered| offered.trim() == spoken.spdy)) {
                return Err(Status::bad_request(format!("{SPDY_PROTOCOL} must contain {}", spoken.spdy)));
            }
            return Ok(Handshake { accept: None, protocol: spoken.spdy });
        }
        if !upgrade.eq_ignore_ascii_case("websocket") {
            return Err(Status::bad_request("Upgrade request required"));
        }
        let key = text(header::SEC_WEBSOCKET_KEY);
        if key.is_empty() || text(header::SEC_WEBSOCKET_VERSION) != "13" {
            return Err(Status::bad_request("a WebSocket of version 13 with a key is required"));
        }
        let offered = text(header::SEC_WEBSOCKET_PROTOCOL);
        let protocol = spoken
            .protocols
            .iter()
            .copied()
            .find(|known| offered.split(',').any(|offered| offered.trim() == *known))
            .ok_or_else(|| {
                Status::bad_request(format!(
                    "none of the subprotocols {offered:?} is supported: use {}",
                    spoken.protocols.join(", ")
                ))
            })?;
        Ok(Handshake { accept: Some(websocket::accept_key(key)), protocol })
    }

    fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::Whole(None));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        let protocol = HeaderValue::from_static(self.protocol);
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        match self.accept {
            None => {
                headers.insert(header::UPGRADE, HeaderValue::from_static(SPDY));
                headers.insert(SPDY_PROTOCOL, protocol);
            }
            Some(accept) => {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
                if let Ok(accept) = HeaderValue::from_str(&accept) {
                    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
                }
            }
        }
        response
    }
}
