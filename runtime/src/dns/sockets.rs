//! The sockets of the name server, which outlive the agent: supervisors keep duplicates and hand them to the next one.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use smol::Async;

use super::PORT;
use super::journal::Journal;

/// Bytes of queries that wait by UDP: some thousand, as long as an agent is replaced. The kernel takes memory only
/// for those that wait.
const RECEIVE_BUFFER: usize = 1024 * 1024;

/// Clients by TCP that the kernel accepts while no agent does.
const BACKLOG: i32 = 128;

/// A UDP and a TCP socket at port 53 of each address of the bridge, with the journal.
pub(crate) struct Sockets {
    udp: Vec<Async<UdpSocket>>,
    tcp: Vec<Async<TcpListener>>,
    addresses: Vec<IpAddr>,
    journal: Journal,
}

impl Sockets {
    /// Uses those of `held` that are at these addresses, which come from the supervisors, and opens the others. The
    /// answers come from the address that was asked, since each socket has but one. An address that is not on the board
    /// is left out, as nobody can ask there, unless it is the last one.
    ///
    /// # Errors
    /// A socket cannot be opened, such as when another program uses the port, or no address is on the board.
    pub(crate) fn open(addresses: &[IpAddr], held: Vec<OwnedFd>) -> io::Result<Sockets> {
        Sockets::open_at(addresses, PORT, held)
    }

    pub(super) fn open_at(addresses: &[IpAddr], port: u16, held: Vec<OwnedFd>) -> io::Result<Sockets> {
        let (mut udp, mut tcp, mut journal, mut missing) = (Vec::new(), Vec::new(), None, None);
        let mut held: Vec<Held> = held.into_iter().filter_map(Held::of).collect();
        let mut open_at = Vec::new();
        for address in addresses {
            let local = SocketAddr::new(*address, port);
            let mut take = |kind: SocketType| {
                let at = held.iter().position(|held| held.is_at(kind, local))?;
                match held.swap_remove(at) {
                    Held::Socket(socket, ..) => Some(socket),
                    Held::Journal(_) => None,
                }
            };
            let socket = match take(SocketType::DGRAM).map_or_else(|| open(SocketType::DGRAM, local), Ok) {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && addresses.len() > 1 => {
                    missing = Some(error);
                    continue;
                }
                socket => socket?,
            };
            udp.push(Async::new(UdpSocket::from(socket))?);
            let socket = take(SocketType::STREAM).map_or_else(|| open(SocketType::STREAM, local), Ok)?;
            tcp.push(Async::new(TcpListener::from(socket))?);
            open_at.push(*address);
        }
        if let Some(error) = missing.filter(|_| open_at.is_empty()) {
            return Err(error);
        }
        for held in held {
            if let Held::Journal(file) = held {
                journal = Some(Journal::resume(file));
            }
        }
        let journal = journal.map_or_else(Journal::new, Ok)?;
        Ok(Sockets { udp, tcp, addresses: open_at, journal })
    }

    /// Duplicates of everything, for the supervisors.
    pub(super) fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let udp = self.udp.iter().map(AsFd::as_fd);
        let all = udp.chain(self.tcp.iter().map(AsFd::as_fd)).chain([self.journal.descriptor()]);
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }

    /// Those that have sockets.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.addresses.clone()
    }

    pub(super) fn address(&self, number: usize) -> IpAddr {
        self.addresses[number]
    }

    /// The number of the sockets at an address.
    pub(super) fn number_of(&self, address: IpAddr) -> Option<usize> {
        self.addresses.iter().position(|at| *at == address)
    }

    pub(super) fn count(&self) -> usize {
        self.udp.len()
    }

    pub(super) fn udp(&self, number: usize) -> &Async<UdpSocket> {
        &self.udp[number]
    }

    pub(super) fn tcp(&self, number: usize) -> &Async<TcpListener> {
        &self.tcp[number]
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }
}

/// A descriptor that a supervisor kept.
enum Held {
    Socket(OwnedFd, SocketType, SocketAddr),
    Journal(OwnedFd),
}

impl Held {
    fn of(fd: OwnedFd) -> Option<Held> {
        match (sockopt::socket_type(&fd), rustix::net::getsockname(&fd)) {
            (Ok(kind), Ok(address)) => Some(Held::Socket(fd, kind, SocketAddr::try_from(address).ok()?)),
            _ => Journal::is_one(&fd).then_some(Held::Journal(fd)),
        }
    }

    fn is_at(&self, wanted: SocketType, at: SocketAddr) -> bool {
        match self {
            Held::Socket(_, kind, address) => *kind == wanted && *address == at,
            Held::Journal(_) => false,
        }
    }
}

fn open(kind: SocketType, at: SocketAddr) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if kind == SocketType::STREAM {
        // Connections of an earlier agent may still wait for their end.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    } else if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
        // Without CAP_NET_ADMIN, such as in tests.
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    }
    bind(&socket, &at)?;
    if kind == SocketType::STREAM {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}
