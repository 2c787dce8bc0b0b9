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

use async_channel::Receiver;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use smol::Async;
use smol_hyper::rt::FuturesIo;

use super::body::Body;
use super::place::Place;
use super::{Answered, Exchange, Status};
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
    exchange: Exchange<'_>,
    spoken: &Spoken,
    talk: impl FnOnce(Client, Carrier) -> Talk + 'static,
) -> Answered {
    let Handshake { accept, protocol } = Handshake::of(&exchange.request, spoken)?;
    let (mut carrier, headers) = match accept {
        Some(accept) => (
            Carrier::WebSocket { messages: Decoder::new(Role::Server), protocol },
            vec![
                (header::UPGRADE, "websocket".to_owned()),
                (header::SEC_WEBSOCKET_PROTOCOL, protocol.to_owned()),
                (header::SEC_WEBSOCKET_ACCEPT, accept),
            ],
        ),
        None => {
            let protocol = (HeaderName::from_static(SPDY_PROTOCOL), protocol.to_owned());
            (Carrier::Spdy(Vec::new()), vec![(header::UPGRADE, SPDY.to_owned()), protocol])
        }
    };
    let place = exchange.place.clone();
    Ok(switch(exchange, headers, |stream, read| async move {
        // The bytes after the request are the client's first frames.
        carrier.push(&read);
        talk(Client { stream, place }, carrier).await;
    }))
}

/// Replies with these headers that the connection changes its protocol, and continues it with `talk`, which also gets the
/// bytes that were read after the request.
pub(super) fn switch<Talk: Future<Output = ()> + 'static>(
    exchange: Exchange<'_>,
    headers: Vec<(HeaderName, String)>,
    talk: impl FnOnce(Async<UnixStream>, Bytes) -> Talk + 'static,
) -> Response<Body> {
    let upgrade = hyper::upgrade::on(exchange.request);
    *exchange.afterwards.borrow_mut() = Some(Box::pin(async move {
        let connection = match upgrade.await {
            Ok(connection) => connection,
            Err(error) => return ::log::debug!("api: failed to upgrade a connection: {error}"),
        };
        if let Ok(parts) = connection.downcast::<FuturesIo<Async<UnixStream>>>() {
            talk(parts.io.into_inner(), parts.read_buf).await;
        }
    }));
    let mut response = Response::new(Body::Whole(None));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let headers = headers.into_iter().filter_map(|(name, text)| Some((name, text.try_into().ok()?)));
    response.headers_mut().extend(headers);
    response
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

    /// Sends frames until there are no more, or the client is gone. Then no task waits for a place in their queue.
    pub(super) async fn send_all(&self, frames: &Receiver<Vec<u8>>) {
        while let Ok(frame) = frames.recv().await {
            if self.write_all(&frame).await.is_err() {
                break;
            }
        }
        frames.close();
    }

    /// Returns the result of `wait`, or nothing if the client disconnects in the meantime.
    pub(super) async fn unless_gone<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let gone = async {
            self.gone().await;
            None
        };
        smol::future::or(async { Some(wait.await) }, gone).await
    }

    /// Waits until the client is gone, without reading from it: unread data precedes the end of the stream.
    async fn gone(&self) {
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
}
