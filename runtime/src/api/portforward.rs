//! `pods/portforward`: TCP connections into a pod, any number of them in one connection of SPDY, with or without a
//! WebSocket around it.
//!
//! A client opens two streams for each connection: `error`, on which a failure is reported, and `data`
//! (`wire/src/spdy.rs`). The socket is made in the pod's network namespace, so that programs that listen on
//! 127.0.0.1 there are reachable, too. Each connection has a small, fixed amount of memory: a reader that is
//! too slow blocks its sender, and on one WebSocket all of its connections, as under a kubelet.
//!
//! A client is connected to one pod, and not to a later pod of that name: when the pod has ended, the
//! WebSocket is closed, and kubectl reports that it lost the connection to the pod.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use nix::sys::socket::SockaddrStorage;
use nodlet_core::sorted::SortedMap;
use smol::{Async, LocalExecutor};

use super::read::parse;
use super::request::Family;
use super::upgrade::{self, Carrier, Client, upgrade};
use super::{Answered, Api, Exchange, Request, Status, write};
use nodlet_registry::objects::Key;
use nodlet_wire::spdy::{self, Frame};
use nodlet_wire::timeout::within;
use nodlet_wire::websocket::{self, Opcode};

/// The number of bytes that are read from a connection at a time, and sent as one message.
const PIECE: usize = 32 * 1024;

/// The maximum number of pieces that wait for the client to read them, for all of its connections.
const FRAMES: usize = 8;

/// The maximum number of pieces that wait to be written to a connection.
const PIECES: usize = 4;

/// The maximum number of connections of one client at a time; further ones are rejected.
const MAX_CONNECTIONS: usize = 128;

/// The time for the client to read the last messages.
const GOODBYE: Duration = Duration::from_secs(1);

pub(super) fn portforward(exchange: Exchange<'_>, key: &Key) -> Answered {
    let api = exchange.api;
    let object = api.objects.get(key).ok_or_else(|| Status::not_found("pods", &key.name))?;
    let pod = parse(&object.json);
    let phase = pod["status"]["phase"].as_str().unwrap_or("Unknown");
    if phase != "Running" {
        return Err(Status::bad_request(format!(
            "unable to forward port because pod is not running. Current status={phase}"
        )));
    }
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let pod = Rc::new(Pod { api: api.clone(), key: key.clone(), uid });
    upgrade(exchange, &upgrade::CONNECTIONS, |client, carrier| Session::run(pod, client, carrier))
}

/// The pod that a client forwards connections to.
struct Pod {
    api: Rc<Api>,
    key: Key,
    /// The UID, which another pod of this name does not have.
    uid: String,
}

impl Pod {
    /// Waits until the pod is no longer running.
    async fn ended(&self) {
        let mut seen = None;
        loop {
            let version = self.api.objects.version();
            let Some(object) = self.api.objects.get(&self.key) else { return };
            if seen != Some(object.version) {
                seen = Some(object.version);
                let pod = parse(&object.json);
                if pod["metadata"]["uid"] != *self.uid || pod["status"]["phase"] != "Running" {
                    return;
                }
            }
            self.api.objects.changed_since(version).await;
        }
    }
}

/// The session of one client.
struct Session {
    pod: Rc<Pod>,
    client: Rc<Client>,
    output: Output,
    encoder: spdy::Encoder,
    /// Error streams that wait for their data streams, by `requestID`.
    errors: SortedMap<String, u32>,
    /// The connections by the number of their data stream.
    connections: SortedMap<u32, Connection>,
    tasks: Rc<LocalExecutor<'static>>,
}

/// Where frames for the client go.
#[derive(Clone)]
struct Output {
    frames: Sender<Vec<u8>>,
    /// Whether SPDY is inside of a WebSocket.
    is_wrapped: bool,
}

impl Output {
    async fn send(&self, frame: Vec<u8>) {
        let wrap = |frame: Vec<u8>| websocket::encode(Opcode::Binary, &[&frame], None);
        let _ = self.frames.send(if self.is_wrapped { wrap(frame) } else { frame }).await;
    }
}

/// The session's part of a connection; the rest belongs to its task.
struct Connection {
    /// The input of the connection; dropping it means that the client sends no more.
    input: Option<Sender<Vec<u8>>>,
    /// Dropping this sender closes the connection.
    _cut: Sender<()>,
    /// This receiver is closed when the task has ended.
    ended: Receiver<()>,
}

impl Session {
    /// Runs the session until the client or the pod is gone, and ends its connections.
    async fn run(pod: Rc<Pod>, client: Client, mut carrier: Carrier) {
        let (frames, to_send) = async_channel::bounded::<Vec<u8>>(FRAMES);
        let (tasks, client) = (Rc::new(LocalExecutor::new()), Rc::new(client));
        let is_wrapped = matches!(carrier, Carrier::WebSocket { .. });
        let mut session = Session {
            pod: pod.clone(),
            client: client.clone(),
            output: Output { frames: frames.clone(), is_wrapped },
            encoder: spdy::Encoder::default(),
            errors: SortedMap::new(),
            connections: SortedMap::new(),
            tasks: tasks.clone(),
        };
        let send = client.send_all(&to_send);
        let receive = async {
            let mut decoder = spdy::Decoder::default();
            let mut piece = vec![0; PIECE];
            loop {
                if let Err(error) = session.receive(&mut carrier, &mut decoder).await {
                    return ::log::debug!("api: portforward: {error}");
                }
                match client.read(&mut piece).await {
                    Ok(0) | Err(_) => return,
                    Ok(read) => carrier.push(&piece[..read]),
                }
            }
        };
        let run = async {
            smol::future::or(receive, pod.ended()).await;
            let closed = async {
                if is_wrapped {
                    let normal = websocket::encode(Opcode::Close, &[&1000u16.to_be_bytes()], None);
                    let _ = frames.send(normal).await;
                }
                // Queued frames are sent, and no others.
                frames.close();
                smol::future::pending::<()>().await;
            };
            within(GOODBYE, closed).await;
        };
        tasks.run(smol::future::or(send, run)).await;
    }

    /// Handles all complete messages. An error ends the session.
    async fn receive(&mut self, carrier: &mut Carrier, decoder: &mut spdy::Decoder) -> Result<(), String> {
        let messages = match carrier {
            Carrier::WebSocket { messages, .. } => messages,
            Carrier::Spdy(bytes) => {
                decoder.push(&std::mem::take(bytes));
                return self.frames(decoder).await;
            }
        };
        while let Some(message) = messages.message().map_err(|error| error.to_string())? {
            match message.opcode {
                Opcode::Binary => decoder.push(&message.payload),
                Opcode::Ping => {
                    let pong = websocket::encode(Opcode::Pong, &[&message.payload], None);
                    let _ = self.output.frames.send(pong).await;
                }
                Opcode::Close => return Err("the client has closed".into()),
                Opcode::Text | Opcode::Pong => {}
            }
            self.frames(decoder).await?;
        }
        Ok(())
    }

    async fn frames(&mut self, decoder: &mut spdy::Decoder) -> Result<(), String> {
        while let Some(frame) = decoder.frame().map_err(|error| error.to_string())? {
            self.handle(frame).await?;
        }
        Ok(())
    }

    /// Handles a frame. An error ends the session.
    async fn handle(&mut self, frame: Frame) -> Result<(), String> {
        match frame {
            Frame::Open { stream, headers, .. } => self.open(stream, &headers).await,
            Frame::Data { stream, bytes, fin } => {
                let Some(connection) = self.connections.get_mut(&stream) else { return Ok(()) };
                if let (Some(input), false) = (&connection.input, bytes.is_empty()) {
                    // This waits for the connection; a connection that has ended discards its input.
                    let sent = self.client.unless_gone(input.send(bytes)).await;
                    let _ = sent.ok_or("the client is gone")?;
                }
                if fin {
                    connection.input = None;
                }
            }
            Frame::Reset { stream } => {
                self.connections.remove(&stream);
                self.errors.retain(|_, error| *error != stream);
            }
            Frame::Ping { id } => self.output.send(spdy::pong(id)).await,
            // The client waits for its connections, and then closes the WebSocket.
            Frame::GoAway | Frame::Other => {}
        }
        Ok(())
    }

    /// Opens a stream: an error stream is stored, and a data stream is connected.
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
                self.output.send(reply).await;
            }
            (Some("data"), Some(port)) if !full => {
                let reply = self.encoder.reply(stream);
                self.output.send(reply).await;
                let (input, pieces) = async_channel::bounded(PIECES);
                let (cut, is_cut) = async_channel::bounded::<()>(1);
                let (running, ended) = async_channel::bounded::<()>(1);
                self.connections.insert(stream, Connection { input: Some(input), _cut: cut, ended });
                let forward = Forward {
                    pod: self.pod.clone(),
                    port,
                    data: stream,
                    error: self.errors.remove(&request),
                    output: self.output.clone(),
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
            // The stream is of an unknown kind, or exceeds the limit.
            _ => self.output.send(spdy::refuse(stream)).await,
        }
    }
}

/// The task of one connection.
struct Forward {
    pod: Rc<Pod>,
    port: u16,
    data: u32,
    error: Option<u32>,
    output: Output,
}

impl Forward {
    async fn run(&self, input: Receiver<Vec<u8>>) -> Result<(), String> {
        let socket = self.connect().await?;
        let (mut reader, mut writer) = (&socket, &socket);
        let up = async move {
            while let Ok(piece) = input.recv().await {
                if writer.write_all(&piece).await.is_err() {
                    // The session has ended; remaining input is dropped with the channel.
                    return;
                }
            }
            let _ = writer.get_ref().shutdown(Shutdown::Write);
        };
        let down = async {
            let mut piece = vec![0; PIECE];
            loop {
                match reader.read(&mut piece).await {
                    Ok(0) | Err(_) => return self.send(self.data, &[], true).await,
                    Ok(read) => self.send(self.data, &piece[..read], false).await,
                }
            }
        };
        smol::future::zip(up, down).await;
        Ok(())
    }

    /// Reports the reason of a failure, and ends the streams.
    async fn end(&self, result: Result<(), String>) {
        if let Err(why) = &result {
            if let Some(error) = self.error {
                let why = format!("error forwarding port {} to pod {}: {why}", self.port, self.pod.key.name);
                self.send(error, why.as_bytes(), true).await;
            }
            self.send(self.data, &[], true).await;
        } else if let Some(error) = self.error {
            self.send(error, &[], true).await;
        }
    }

    async fn send(&self, stream: u32, bytes: &[u8], fin: bool) {
        self.output.send(spdy::data(stream, bytes, fin)).await;
    }

    /// Connects to 127.0.0.1 in the pod, or to ::1 if no program listens there.
    async fn connect(&self) -> Result<Async<TcpStream>, String> {
        match self.connect_to(Family::V4, Ipv4Addr::LOCALHOST.into()).await {
            Ok(socket) => Ok(socket),
            Err(why) => self.connect_to(Family::V6, Ipv6Addr::LOCALHOST.into()).await.map_err(|_| why),
        }
    }

    async fn connect_to(&self, family: Family, ip: IpAddr) -> Result<Async<TcpStream>, String> {
        let Pod { api, key, uid } = &*self.pod;
        let (namespace, pod, uid) = (key.namespace.to_string(), key.name.to_string(), uid.clone());
        let socket = write::ask(api, |reply| Request::Socket { namespace, pod, uid, family, reply });
        let socket = socket.await.map_err(|status| status.message)?;
        let address = SocketAddr::new(ip, self.port);
        let failed = |error: io::Error| format!("failed to connect to {address} inside the pod: {error}");
        // The socket does not block.
        match nix::sys::socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
            Ok(()) | Err(nix::Error::EINPROGRESS) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let socket = Async::new(TcpStream::from(socket)).map_err(failed)?;
        socket.writable().await.map_err(failed)?;
        match socket.get_ref().take_error() {
            Ok(None) => Ok(socket),
            Ok(Some(error)) | Err(error) => Err(failed(error)),
        }
    }
}
