//! The sockets to other name servers: each message has one of its own, so that its port is random, too.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nodlet_services::dns::message::Query;
use nodlet_services::dns::upstream::{Action, FlightId, PATIENCE, Transport, WAITING};
use nodlet_wire::random;
use nodlet_wire::timeout::within;
use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use super::{Client, Reply, Server, now};

/// Time for an answer by TCP, with the connection.
const TCP_TIME: Duration = Duration::from_secs(3);

/// Files that the agent may have open for each client that waits: it has up to three sockets to name servers, and
/// pods and clients of the API need files, too.
const FILES: u64 = 16;

/// The number of clients that wait at the same time at most.
pub(super) fn bound() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(limit, _)| limit);
    usize::try_from(limit / FILES).unwrap_or(WAITING).min(WAITING)
}

impl Server {
    /// Forwards `query` for a client, whose own query may have another name.
    pub(super) fn forward(self: &Rc<Self>, now: Duration, query: &Query, mut client: Client) {
        if let Reply::Udp { socket, to, slot: slot @ None } = &mut client.reply {
            *slot = self.sockets.journal().write(self.sockets.address(*socket), *to, &client.query);
        }
        let source = client.reply.source();
        let asked = self.forwarder.borrow_mut().ask(now, query, source, client, random_id());
        if let Some((_, client)) = asked.refused {
            self.deliver(client, None, 0);
        }
        self.perform(asked.actions);
    }

    fn perform(self: &Rc<Self>, actions: Vec<Action<Client>>) {
        for action in actions {
            match action {
                Action::Send { flight, id, server, transport, message } => {
                    let Some(executor) = self.executor.upgrade() else { return };
                    let this = self.clone();
                    let task = executor.spawn(async move {
                        let ended = match transport {
                            Transport::Udp => this.ask_by_udp(flight, id, server, &message).await,
                            Transport::Tcp => this.ask_by_tcp(flight, id, server, &message).await,
                        };
                        if ended.is_err() {
                            let actions =
                                this.forwarder.borrow_mut().unreachable(now(), flight, id, random_id());
                            this.perform(actions);
                        }
                    });
                    self.flights.borrow_mut().entry(flight).or_default().push(task);
                }
                Action::Deliver { flight, key, clients, response } => {
                    // One of these tasks may be the running one, which ends then.
                    let tasks = self.flights.borrow_mut().remove(&flight);
                    if let Some((key, response)) = key.zip(response.as_ref()) {
                        self.cache.borrow_mut().insert(now(), key, response.clone());
                    }
                    for client in clients {
                        self.deliver(client, response.as_ref(), 0);
                    }
                    drop(tasks);
                }
                Action::Fail(client) => self.deliver(client, None, 0),
            }
        }
    }

    /// Sends a message and reports what comes, until the flight ends.
    ///
    /// # Errors
    /// The server cannot be reached.
    async fn ask_by_udp(
        self: &Rc<Self>,
        flight: FlightId,
        id: u16,
        server: SocketAddr,
        message: &[u8],
    ) -> io::Result<()> {
        let any: IpAddr =
            if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        // The kernel drops what comes from others, and reports a server that cannot be reached.
        socket.connect(server)?;
        let socket = Async::new(socket)?;
        socket.send(message).await?;
        let receive = async {
            loop {
                socket.readable().await?;
                let mut buffer = self.buffer.take();
                let received = socket.get_ref().recv(&mut buffer);
                let actions = match &received {
                    Ok(length) => {
                        self.forwarder.borrow_mut().received(flight, id, &buffer[..*length], random_id())
                    }
                    Err(_) => vec![],
                };
                self.buffer.replace(buffer);
                self.perform(actions);
                match received {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                    Ok(_) | Err(_) => {}
                }
            }
        };
        let mut receive = std::pin::pin!(receive);
        match within(PATIENCE, receive.as_mut()).await {
            Some(ended) => ended,
            None => {
                let actions = self.forwarder.borrow_mut().timed_out(now(), flight, id, random_id());
                self.perform(actions);
                receive.await
            }
        }
    }

    /// # Errors
    /// There is no answer by TCP.
    async fn ask_by_tcp(
        self: &Rc<Self>,
        flight: FlightId,
        id: u16,
        server: SocketAddr,
        message: &[u8],
    ) -> io::Result<()> {
        let ask = async {
            let mut stream = Async::<TcpStream>::connect(server).await?;
            let length = u16::try_from(message.len()).map_err(io::Error::other)?;
            stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await?;
            let mut length = [0; 2];
            stream.read_exact(&mut length).await?;
            let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut answer).await?;
            Ok(answer)
        };
        let answer: io::Result<Vec<u8>> =
            within(TCP_TIME, ask).await.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        let answer = answer?;
        let actions = self.forwarder.borrow_mut().received(flight, id, &answer, random_id());
        let is_answer = !actions.is_empty();
        self.perform(actions);
        if is_answer { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

/// A random ID of a message. Early after power-on a board may not have bytes that nobody can guess: its port is
/// another guess.
fn random_id() -> u16 {
    let mut bytes = [0; 2];
    if random::secret(&mut bytes).is_err() {
        // It always succeeds; otherwise the ID is 0.
        let _ = random::unique(&mut bytes);
    }
    u16::from_ne_bytes(bytes)
}
