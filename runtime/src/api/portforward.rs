//! `pods/portforward`: TCP connections into a pod, any number of them in one WebSocket.
//!
//! A client opens two streams for each connection: `error`, on which the reason is
//! written if there is none, and `data` (`api/spdy.rs`). The socket is made in the
//! pod's network namespace, so that what listens on 127.0.0.1 there is reached, too.
//! Each connection has a few pieces of memory and no more: who does not read holds up
//! who sends, and on one WebSocket all of its connections, as under a kubelet.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use async_channel::{Receiver, Sender};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use hyper::Response;
use hyper::body::Incoming;
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike};
use smol::{Async, LocalExecutor};
use smol_hyper::rt::FuturesIo;

use super::body::Body;
use super::exec::Handshake;
use super::read::parse;
use super::request::Family;
use super::spdy::{self, Frame};
use super::websocket::{self, Opcode, Role};
use super::{Afterwards, Api, Request, Status, write};
use crate::objects::Key;

/// Read at a time from a connection, and sent as one message.
const PIECE: usize = 32 * 1024;

/// Pieces that wait for the client to read, of all its connections.
const FRAMES: usize = 8;

/// Pieces that wait for a connection to take them.
const PIECES: usize = 4;

/// Connections of one client at once; another one is refused.
const MAX_CONNECTIONS: usize = 128;

pub(super) fn portforward(
    api: &Rc<Api>,
    key: &Key,
    request: hyper::Request<Incoming>,
    afterwards: &Afterwards,
) -> Result<Response<Body>, Status> {
    let object = api.objects.get(key).ok_or_else(|| Status::not_found("pods", &key.name))?;
    let phase = parse(&object.json)["status"]["phase"].as_str().unwrap_or("Unknown").to_owned();
    if phase != "Running" {
        return Err(Status::bad_request(format!(
            "unable to forward port because pod is not running. Current status={phase}"
        )));
    }
    let handshake = Handshake::of(&request, &[spdy::PROTOCOL])?;
    let (api, key) = (api.clone(), key.clone());
    let response = handshake.response();
    let upgrade = hyper::upgrade::on(request);
    *afterwards.borrow_mut() = Some(Box::pin(async move {
        let connection = match upgrade.await {
            Ok(connection) => connection,
            Err(error) => return ::log::debug!("api: portforward: {error}"),
        };
        // What was read behind the request are the client's first frames.
        if let Ok(parts) = connection.downcast::<FuturesIo<Async<UnixStream>>>() {
            let mut decoder = websocket::Decoder::new(Role::Server);
            decoder.push(&parts.read_buf);
            Session::run(api, key, parts.io.into_inner(), decoder).await;
        }
    }));
    Ok(response)
}

/// One client.
struct Session {
    api: Rc<Api>,
    key: Key,
    encoder: spdy::Encoder,
    frames: Sender<Vec<u8>>,
    /// Streams for errors that wait for one for data, by `requestID`.
    errors: BTreeMap<String, u32>,
    /// By the number of their stream for data.
    connections: BTreeMap<u32, Connection>,
    tasks: Rc<LocalExecutor<'static>>,
}

/// What the session holds of a connection; the rest is its task's.
struct Connection {
    /// Dropped, the client sends no more.
    input: Option<Sender<Vec<u8>>>,
    /// Dropped, the connection is cut.
    _cut: Sender<()>,
    /// Closed when the task has ended.
    ended: Receiver<()>,
}

impl Session {
    /// Until the client is gone; its connections go with it.
    async fn run(api: Rc<Api>, key: Key, client: Async<UnixStream>, mut messages: websocket::Decoder) {
        let (frames, to_send) = async_channel::bounded::<Vec<u8>>(FRAMES);
        let tasks = Rc::new(LocalExecutor::new());
        let (mut reader, mut writer) = (&client, &client);
        let mut session = Session {
            api,
            key,
            encoder: spdy::Encoder::default(),
            frames,
            errors: BTreeMap::new(),
            connections: BTreeMap::new(),
            tasks: tasks.clone(),
        };
        let send = async {
            while let Ok(frame) = to_send.recv().await {
                if writer.write_all(&frame).await.is_err() {
                    break;
                }
            }
        };
        let receive = async {
            let mut decoder = spdy::Decoder::default();
            let mut piece = vec![0; PIECE];
            loop {
                if let Err(error) = session.obey(&mut messages, &mut decoder).await {
                    return ::log::debug!("api: portforward: {error}");
                }
                match reader.read(&mut piece).await {
                    Ok(0) | Err(_) => return,
                    Ok(read) => messages.push(&piece[..read]),
                }
            }
        };
        tasks.run(smol::future::or(send, receive)).await;
    }

    /// Does what has arrived whole. An error is the end.
    async fn obey(
        &mut self,
        messages: &mut websocket::Decoder,
        decoder: &mut spdy::Decoder,
    ) -> Result<(), String> {
        while let Some(message) = messages.message().map_err(|error| error.to_string())? {
            match message.opcode {
                Opcode::Binary => decoder.push(&message.payload),
                Opcode::Ping => {
                    let _ =
                        self.frames.send(websocket::encode(Opcode::Pong, &[&message.payload], None)).await;
                }
                Opcode::Close => {
                    let normal = websocket::encode(Opcode::Close, &[&1000u16.to_be_bytes()], None);
                    let _ = self.frames.send(normal).await;
                    return Err("the client has closed".into());
                }
                Opcode::Text | Opcode::Pong => {}
            }
            while let Some(frame) = decoder.frame().map_err(|error| error.to_string())? {
                self.hear(frame).await;
            }
        }
        Ok(())
    }

    async fn hear(&mut self, frame: Frame) {
        match frame {
            Frame::Open { stream, headers, .. } => self.open(stream, &headers).await,
            Frame::Data { stream, bytes, fin } => {
                let Some(connection) = self.connections.get_mut(&stream) else { return };
                if let (Some(input), false) = (&connection.input, bytes.is_empty()) {
                    // Held up by the connection; one that has ended takes all, and throws it away.
                    let _ = input.send(bytes).await;
                }
                if fin {
                    connection.input = None;
                }
            }
            Frame::Reset { stream } => drop(self.connections.remove(&stream)),
            Frame::Ping { id } => self.say(spdy::pong(id)).await,
            // It waits for its connections, and closes the WebSocket then.
            Frame::GoAway | Frame::Other => {}
        }
    }

    /// A stream for errors is remembered, and one for data connects.
    async fn open(&mut self, stream: u32, headers: &[(String, String)]) {
        let header = |name: &str| {
            headers.iter().rev().find_map(|(known, value)| (known == name).then_some(value.as_str()))
        };
        let request = header("requestid").unwrap_or_default().to_owned();
        self.connections.retain(|_, connection| !connection.ended.is_closed());
        let port = header("port").and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
        let full = self.connections.len() >= MAX_CONNECTIONS || self.errors.len() >= MAX_CONNECTIONS;
        match (header("streamtype"), port) {
            (Some("error"), Some(_)) if !full => {
                self.errors.insert(request, stream);
                let reply = self.encoder.reply(stream);
                self.say(reply).await;
            }
            (Some("data"), Some(port)) if !full => {
                let reply = self.encoder.reply(stream);
                self.say(reply).await;
                let (input, pieces) = async_channel::bounded(PIECES);
                let (cut, is_cut) = async_channel::bounded::<()>(1);
                let (running, ended) = async_channel::bounded::<()>(1);
                self.connections.insert(stream, Connection { input: Some(input), _cut: cut, ended });
                let forward = Forward {
                    api: self.api.clone(),
                    key: self.key.clone(),
                    port,
                    data: stream,
                    error: self.errors.remove(&request),
                    frames: self.frames.clone(),
                };
                self.tasks
                    .spawn(async move {
                        let _running = running;
                        let until_cut = async {
                            let _ = is_cut.recv().await;
                            Ok(())
                        };
                        let result = smol::future::or(until_cut, forward.run(pieces)).await;
                        forward.end(result).await;
                    })
                    .detach();
            }
            // Something else than is known, or one too many.
            _ => self.say(spdy::refuse(stream)).await,
        }
    }

    async fn say(&self, frame: Vec<u8>) {
        let _ = self.frames.send(websocket::encode(Opcode::Binary, &[&frame], None)).await;
    }
}

/// One connection.
struct Forward {
    api: Rc<Api>,
    key: Key,
    port: u16,
    data: u32,
    error: Option<u32>,
    frames: Sender<Vec<u8>>,
}

impl Forward {
    async fn run(&self, input: Receiver<Vec<u8>>) -> Result<(), String> {
        let socket = self.connect().await?;
        let (mut reader, mut writer) = (&socket, &socket);
        let up = async move {
            while let Ok(piece) = input.recv().await {
                if writer.write_all(&piece).await.is_err() {
                    // Nobody takes it any more; what comes is dropped with the channel.
                    return;
                }
            }
            let _ = writer.get_ref().shutdown(Shutdown::Write);
        };
        let down = async {
            let mut piece = vec![0; PIECE];
            loop {
                match reader.read(&mut piece).await {
                    Ok(0) | Err(_) => return self.say(self.data, &[], true).await,
                    Ok(read) => self.say(self.data, &piece[..read], false).await,
                }
            }
        };
        smol::future::zip(up, down).await;
        Ok(())
    }

    /// Says why there was no connection, and that nothing follows.
    async fn end(&self, result: Result<(), String>) {
        if let Err(why) = &result {
            if let Some(error) = self.error {
                let why = format!("error forwarding port {} to pod {}: {why}", self.port, self.key.name);
                self.say(error, why.as_bytes(), true).await;
            }
            self.say(self.data, &[], true).await;
        } else if let Some(error) = self.error {
            self.say(error, &[], true).await;
        }
    }

    async fn say(&self, stream: u32, bytes: &[u8], fin: bool) {
        let frame = spdy::data(stream, bytes, fin);
        let _ = self.frames.send(websocket::encode(Opcode::Binary, &[&frame], None)).await;
    }

    /// To 127.0.0.1 in the pod, and if nobody listens there to ::1.
    async fn connect(&self) -> Result<Async<TcpStream>, String> {
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, self.port));
        match self.connect_to(Family::V4, v4).await {
            Ok(socket) => Ok(socket),
            Err(why) => self.connect_to(Family::V6, v6).await.map_err(|_| why),
        }
    }

    async fn connect_to(&self, family: Family, address: SocketAddr) -> Result<Async<TcpStream>, String> {
        let socket = write::ask(&self.api, |reply| Request::Socket {
            namespace: self.key.namespace.to_string(),
            pod: self.key.name.to_string(),
            family,
            reply,
        })
        .await
        .map_err(|status| status.message)?;
        let failed = |error: io::Error| format!("failed to connect to {address} inside the pod: {error}");
        let begun = match address {
            SocketAddr::V4(address) => begin(socket.as_raw_fd(), &SockaddrIn::from(address)),
            SocketAddr::V6(address) => begin(socket.as_raw_fd(), &SockaddrIn6::from(address)),
        };
        begun.map_err(failed)?;
        let socket = Async::new(TcpStream::from(socket)).map_err(failed)?;
        socket.writable().await.map_err(failed)?;
        match socket.get_ref().take_error() {
            Ok(None) => Ok(socket),
            Ok(Some(error)) | Err(error) => Err(failed(error)),
        }
    }
}

/// Begins to connect a socket that does not block.
fn begin(socket: i32, address: &dyn SockaddrLike) -> io::Result<()> {
    match nix::sys::socket::connect(socket, address) {
        Ok(()) | Err(nix::Error::EINPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
