//! The clients: pods by UDP and TCP.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use nodlet_wire::timeout::within;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::{Async, LocalExecutor};

use super::{MESSAGE, Reply, Server};

/// Queries that are answered before other tasks of the agent have their turn.
const BATCH: usize = 32;

/// Clients by TCP at a time, of all pods and of one.
const TCP_CLIENTS: usize = 32;
const TCP_CLIENTS_OF_ONE: usize = 8;

/// Time in which a client by TCP has to send its next query, or to read an answer.
pub(super) const TCP_TIME: Duration = Duration::from_secs(5);

/// Time until a socket that failed is read again.
const PAUSE: Duration = Duration::from_secs(1);

/// Spawns the tasks that serve, after what an earlier agent was forwarding.
pub(super) fn begin(server: &Rc<Server>, executor: &LocalExecutor<'static>) {
    for entry in server.sockets.journal().entries() {
        if let Some(socket) = server.sockets.number_of(entry.asked) {
            let reply = Reply::Udp { socket, to: entry.client, slot: Some(entry.slot) };
            server.handle(&entry.query, reply);
        } else {
            server.sockets.journal().clear(entry.slot);
        }
    }
    for number in 0..server.sockets.count() {
        executor.spawn(serve_udp(server.clone(), number)).detach();
        executor.spawn(serve_tcp(server.clone(), number)).detach();
    }
}

async fn serve_udp(server: Rc<Server>, number: usize) {
    let socket = server.sockets.udp(number);
    loop {
        let failed = match socket.readable().await {
            Ok(()) => (0..BATCH).find_map(|_| server.answer_next(number).err()),
            Err(error) => Some(error),
        };
        match failed {
            None => smol::future::yield_now().await,
            Some(error) if error.kind() == io::ErrorKind::WouldBlock => server.fairness.borrow_mut().reset(),
            Some(error) => {
                server.report(&error);
                smol::Timer::after(PAUSE).await;
            }
        }
    }
}

async fn serve_tcp(server: Rc<Server>, number: usize) {
    loop {
        match server.sockets.tcp(number).accept().await {
            Ok((stream, peer)) => {
                let address = peer.ip();
                if server.is_client(address) && server.enter(address) {
                    let (task, server) = (server.clone(), server.clone());
                    let client = async move {
                        // A client that hangs up or is slow has only itself to blame.
                        let _ = serve_stream(&task, stream, address).await;
                        task.leave(address);
                    };
                    if let Some(executor) = server.executor.upgrade() {
                        executor.spawn(client).detach();
                    }
                }
                smol::future::yield_now().await;
            }
            Err(error) => {
                server.report(&error);
                smol::Timer::after(PAUSE).await;
            }
        }
    }
}

async fn serve_stream(server: &Rc<Server>, mut stream: Async<TcpStream>, address: IpAddr) -> io::Result<()> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    loop {
        let mut length = [0; 2];
        within(TCP_TIME, stream.read_exact(&mut length)).await.ok_or_else(late)??;
        let length = usize::from(u16::from_be_bytes(length));
        if length > MESSAGE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut query = vec![0; length];
        within(TCP_TIME, stream.read_exact(&mut query)).await.ok_or_else(late)??;
        let (sender, answer) = async_channel::bounded(1);
        server.handle(&query, Reply::Tcp(sender, address));
        // Without an answer the sender is gone: the message was no query.
        let answer = answer.recv().await.map_err(io::Error::other)?;
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let message = [&length.to_be_bytes()[..], &answer].concat();
        within(TCP_TIME, stream.write_all(&message)).await.ok_or_else(late)??;
    }
}

impl Server {
    /// Answers the next query by UDP. It stays in the socket until it is answered, or in the journal: an agent that
    /// is killed between answers it again.
    fn answer_next(self: &Rc<Self>, number: usize) -> io::Result<()> {
        let socket = self.sockets.udp(number).get_ref();
        let mut buffer = self.buffer.take();
        let peeked = socket.peek_from(&mut buffer);
        if let Ok((length, from)) = peeked {
            let client = from.ip();
            if self.is_client(client) && self.fairness.borrow_mut().admits(client) {
                self.handle(&buffer[..length], Reply::Udp { socket: number, to: from, slot: None });
            }
            drop(socket.recv_from(&mut [0; 1]));
            self.is_failing.set(false);
        }
        self.buffer.replace(buffer);
        peeked.map(drop)
    }

    fn report(&self, error: &io::Error) {
        if !self.is_failing.replace(true) {
            log::warn!("failed to receive queries of pods to the name server: {error}");
        }
    }

    /// Counts a client by TCP; `false` if there are too many.
    fn enter(&self, address: IpAddr) -> bool {
        let mut clients = self.tcp_clients.borrow_mut();
        let of_one = clients.iter().filter(|client| **client == address).count();
        let may = clients.len() < TCP_CLIENTS && of_one < TCP_CLIENTS_OF_ONE;
        if may {
            clients.push(address);
        }
        may
    }

    fn leave(&self, address: IpAddr) {
        let mut clients = self.tcp_clients.borrow_mut();
        if let Some(at) = clients.iter().position(|client| *client == address) {
            clients.swap_remove(at);
        }
    }
}
