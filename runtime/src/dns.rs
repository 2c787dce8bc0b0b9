//! The name server of the pods, on the bridge's addresses and nowhere else. What it answers is decided in
//! [`nodlet_services::dns`]; here are the sockets.
//!
//! A query by UDP stays in the socket's buffer until it is answered, and one that is forwarded in a journal. Sockets
//! and journal outlive the agent: each supervisor has duplicates, so that an agent that is killed or replaced loses
//! no such query ([`Sockets`]). A client by TCP is disconnected with the agent, and asks again.
//!
//! Without queries nothing here runs. Read next: `dns/serve.rs` (clients), `dns/forward.rs` (other name servers).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::time::Duration;

use async_channel::Sender;
use nodlet_services::catalog::Catalog;
use nodlet_services::dns::cache::Cache;
use nodlet_services::dns::fairness::Fairness;
use nodlet_services::dns::message::{self, ErrorCode, Query, Response, TCP, Unanswerable};
use nodlet_services::dns::names::{Answer, Record, Zone};
use nodlet_services::dns::repeats::Repeats;
use nodlet_services::dns::upstream::{FlightId, Forwarder};
use smol::{LocalExecutor, Task};

mod forward;
mod journal;
mod serve;
mod sockets;

pub(crate) use sockets::Sockets;

/// The port of name servers.
pub(crate) const PORT: u16 = 53;

/// Longest message in bytes that is read by UDP, and longest query by TCP.
const MESSAGE: usize = 4096;

/// What does not change while a name server runs.
pub(crate) struct Settings {
    /// The domain of the names of Services and pods, such as `cluster.local`.
    pub(crate) domain: String,
    /// The ranges of the pods' addresses, each with the length of its prefix. Nobody else is answered, except the
    /// board itself.
    pub(crate) pod_ranges: Vec<(IpAddr, u8)>,
}

/// A name server that answers as long as its future is polled.
pub(crate) struct Resolver {
    server: Rc<Server>,
}

/// The state that the tasks of the name server share, on one thread.
struct Server {
    sockets: Sockets,
    pod_ranges: Vec<(IpAddr, u8)>,
    zone: RefCell<Zone>,
    cache: RefCell<Cache>,
    forwarder: RefCell<Forwarder<Client>>,
    fairness: RefCell<Fairness>,
    repeats: RefCell<Repeats>,
    /// The tasks of the sockets of each forwarded query.
    flights: RefCell<BTreeMap<FlightId, Vec<Task<()>>>>,
    /// Clients by TCP at present.
    tcp_clients: RefCell<Vec<IpAddr>>,
    /// What the next message is read into.
    buffer: RefCell<Box<[u8]>>,
    executor: Weak<LocalExecutor<'static>>,
    /// Whether a failure to receive was logged.
    is_failing: Cell<bool>,
}

/// A client that waits for an answer.
struct Client {
    query: Query,
    /// The names of type CNAME that led to the forwarded one.
    chain: Vec<Record>,
    reply: Reply,
}

/// Where an answer goes.
enum Reply {
    /// From the UDP socket with this number to the client, whose query is in this slot of the journal if it is
    /// forwarded.
    Udp { socket: usize, to: SocketAddr, slot: Option<usize> },
    /// To the task of a client by TCP.
    Tcp(Sender<Vec<u8>>, IpAddr),
}

impl Resolver {
    /// Begins to answer, first what an earlier agent was forwarding. The future ends when it is dropped. Call
    /// [`Self::update`] and [`Self::set_upstreams`] before it is polled: until then queries wait, and are not denied.
    pub(crate) fn begin(
        sockets: Sockets,
        settings: Settings,
    ) -> (Resolver, impl Future<Output = ()> + 'static) {
        let executor = Rc::new(LocalExecutor::new());
        let server = Rc::new(Server {
            zone: RefCell::new(Zone::new(&settings.domain, sockets.addresses())),
            sockets,
            pod_ranges: settings.pod_ranges,
            cache: RefCell::default(),
            forwarder: RefCell::new(Forwarder::new(forward::bound())),
            fairness: RefCell::default(),
            repeats: RefCell::default(),
            flights: RefCell::default(),
            tcp_clients: RefCell::default(),
            buffer: RefCell::new(vec![0; MESSAGE].into()),
            executor: Rc::downgrade(&executor),
            is_failing: Cell::new(false),
        });
        let resolver = Resolver { server: server.clone() };
        let run = async move {
            serve::begin(&server, &executor);
            drop(server);
            // After each task the others of the agent have their turn, which a flood must not keep from them.
            loop {
                executor.tick().await;
                smol::future::yield_now().await;
            }
        };
        (resolver, run)
    }

    /// Replaces what is answered from: the Services, and the addresses of all pods with their namespaces.
    pub(crate) fn update(&self, catalog: Rc<Catalog>, pods: BTreeSet<(IpAddr, Box<str>)>) {
        self.server.zone.borrow_mut().update(catalog, pods);
    }

    /// Replaces the name servers of the board, of which an empty list means none. What they answered before is
    /// forgotten, and so is that they did not.
    pub(crate) fn set_upstreams(&self, mut servers: Vec<SocketAddr>) {
        let own = self.server.sockets.addresses();
        servers.retain(|server| !own.contains(&server.ip()));
        self.server.cache.borrow_mut().clear();
        self.server.forwarder.borrow_mut().set_servers(servers);
    }

    /// Whether it listens at this address.
    pub(crate) fn is_at(&self, address: IpAddr) -> bool {
        self.server.sockets.number_of(address).is_some()
    }

    /// Duplicates of everything that supervisors keep for the next agent.
    ///
    /// # Errors
    /// The process may open no more files.
    pub(crate) fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.server.sockets.descriptors()
    }
}

impl Server {
    /// Answers a message of a client, or forwards it; then the answer follows.
    fn handle(self: &Rc<Self>, bytes: &[u8], reply: Reply) {
        let query = match Query::read(bytes) {
            Ok(query) => query,
            Err(Unanswerable::Ignored) => return self.drop_query(reply),
            Err(Unanswerable::Rejected(answer)) => return self.send(reply, &answer),
        };
        let key = query.key();
        let answer = self.zone.borrow().answer(&key.labels(), query.kind());
        let (chain, target) = match answer {
            Answer::Forward => (vec![], query.clone()),
            Answer::Follow { chain, target } => match query.with_name(&target) {
                Some(target) => (chain, target),
                None => return self.send(reply, &query.fail(ErrorCode::Server)),
            },
            answer => {
                let bytes = query.answer(&answer, reply.limit(&query));
                return self.send(reply, &bytes.unwrap_or_else(|| query.fail(ErrorCode::Server)));
            }
        };
        let client = Client { query, chain, reply };
        let now = now();
        let kept = self.cache.borrow_mut().get(now, &target.key()).map(|(kept, age)| (kept.clone(), age));
        match kept {
            Some((response, age)) => self.deliver(client, Some(&response), age),
            None => self.forward(now, &target, client),
        }
    }

    /// Answers a client with what another name server answered, or with a failure.
    fn deliver(&self, client: Client, response: Option<&Response>, age: u32) {
        let Client { query, chain, reply } = client;
        let limit = reply.limit(&query);
        let bytes = match response {
            None if self.is_repeated(&query, &reply) => query.truncated(),
            None => query.fail(ErrorCode::Server),
            Some(response) if chain.is_empty() => response.answer(&query, age, limit),
            Some(response) => message::follow(&query, &chain, response, age, limit),
        };
        self.send(reply, &bytes);
    }

    /// Whether a query by UDP that fails has just failed before.
    fn is_repeated(&self, query: &Query, reply: &Reply) -> bool {
        match reply {
            Reply::Udp { to, .. } => self.repeats.borrow_mut().fail(now(), *to, query.id()),
            Reply::Tcp(..) => false,
        }
    }

    fn send(&self, reply: Reply, bytes: &[u8]) {
        match &reply {
            // A client that cannot be reached asks again, if it exists.
            Reply::Udp { socket, to, .. } => drop(self.sockets.udp(*socket).get_ref().send_to(bytes, *to)),
            // The channel has space for the one answer, or the client is gone.
            Reply::Tcp(sender, _) => drop(sender.try_send(bytes.to_vec())),
        }
        self.drop_query(reply);
    }

    /// Forgets a query that was answered, or gets no answer.
    fn drop_query(&self, reply: Reply) {
        if let Reply::Udp { slot: Some(slot), .. } = reply {
            self.sockets.journal().clear(slot);
        }
    }

    fn is_client(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_pod = |(range, length): &(IpAddr, u8)| is_in(address, *range, *length);
        self.pod_ranges.iter().any(is_pod) || self.sockets.addresses().contains(&address)
    }
}

impl Reply {
    /// Maximum size in bytes of the answer.
    fn limit(&self, query: &Query) -> u16 {
        match self {
            Reply::Udp { .. } => query.udp_limit(),
            Reply::Tcp(..) => TCP,
        }
    }

    fn source(&self) -> IpAddr {
        match self {
            Reply::Udp { to, .. } => to.ip(),
            Reply::Tcp(_, address) => *address,
        }
    }
}

/// Whether an address is in a range with this length of its prefix.
fn is_in(address: IpAddr, range: IpAddr, length: u8) -> bool {
    match (address, range) {
        (IpAddr::V4(address), IpAddr::V4(range)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            (u32::from(address) ^ u32::from(range)) & mask == 0
        }
        (IpAddr::V6(address), IpAddr::V6(range)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            (u128::from(address) ^ u128::from(range)) & mask == 0
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// The time of a clock that does not jump.
fn now() -> Duration {
    Duration::from_nanos(nodlet_host::clock::instant().0)
}

#[cfg(test)]
mod tests;
