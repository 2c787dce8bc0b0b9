//! Forwards queries to the board's name servers: a state machine, to which the sockets report.
//!
//! A query goes to the servers in their order, by UDP from a port of its own with an ID of its own. A truncated
//! answer is asked for again by TCP. Equal queries of several clients are one.
//!
//! ```text
//! ask ──► Send ──► received ──────────────────────► Deliver
//!          ▲  └──► unreachable, timed_out ─┐
//!          └──────── next server ──────────┴─ none ► Deliver (failed)
//! ```
//!
//! The clients that wait have one bound, which a single pod may reach. At the bound, a client of another pod displaces
//! one of the pod with the most of them, until both have as many: the shares are equal only while they are contested.
//!
//! When the name servers change, queries on their way continue with the new ones. Their clients get the answer of an
//! earlier one, but it is not kept, no later client gets it, and it says nothing about the new ones.
//!
//! After [`UNANSWERED`] queries in sequence without any answer the servers are asked for the name servers of the root,
//! which a living one knows: nobody answers for some names, and a pod can ask for such names only. If that probe has
//! no answer either, the board counts as offline: clients get a failure at once, and each [`TRY_AGAIN`] a query and a
//! probe are tried. A query that cannot be sent says nothing about the servers, and fails at once anyway.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::message::{Key, Query, Response};

/// Name servers that are asked (`MAXNS` of resolvers).
const SERVERS: usize = 3;

/// Times a query is sent, to all servers together.
const ATTEMPTS: u32 = 3;

/// Time without an answer after which the query is sent to the next server. An answer to an earlier one still counts.
pub const PATIENCE: Duration = Duration::from_millis(1200);

/// Clients that wait at the same time at most. Each may have a query of its own, with up to [`ATTEMPTS`] sockets.
pub const WAITING: usize = 1024;

/// The query of a probe: the NS records of the root.
const PROBE: &[u8] = &[0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// Queries in sequence without an answer after which a probe is sent.
const UNANSWERED: u32 = 3;

/// Time between two tries while offline.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// Identifies a forwarded query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlightId(u64);

/// How a query is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In one packet.
    Udp,
    /// In a connection of its own.
    Tcp,
}

/// What the sockets have to do.
#[derive(Debug)]
pub enum Action<C> {
    /// Send `message` from a new socket, and report what becomes of it with `flight` and `id`.
    Send {
        /// The forwarded query.
        flight: FlightId,
        /// The ID of the message.
        id: u16,
        /// Where it goes.
        server: SocketAddr,
        /// How it goes.
        transport: Transport,
        /// The message, without the length that it has by TCP.
        message: Vec<u8>,
    },
    /// Answer these clients, and close the sockets of `flight`; with a failure if there is no answer.
    Deliver {
        /// The forwarded query, which is over.
        flight: FlightId,
        /// What the answer can be kept by; `None` if it is of an earlier name server.
        key: Option<Key>,
        /// Those who wait for it.
        clients: Vec<C>,
        /// The answer.
        response: Option<Response>,
    },
    /// Fail this client, whose query is forwarded on for others.
    Fail(C),
}

/// Why a query is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The board has no name server.
    NoServer,
    /// No server answered lately.
    Offline,
    /// Too many clients wait, and no pod has more of them than this one.
    TooMany,
}

/// Forwarded queries of clients of the type `C`.
#[derive(Debug)]
pub struct Forwarder<C> {
    servers: Vec<SocketAddr>,
    flights: BTreeMap<FlightId, Flight<C>>,
    /// The flights that further clients of the same query can join.
    by_key: BTreeMap<Key, FlightId>,
    /// The number of clients that wait, for each pod that has some.
    waiting: BTreeMap<IpAddr, usize>,
    /// The sum of `waiting`, and its bound.
    clients: usize,
    bound: usize,
    next: u64,
    /// Queries in sequence that no server answered.
    unanswered: u32,
    /// When the next query is tried, if offline.
    try_at: Option<Duration>,
}

#[derive(Debug)]
struct Flight<C> {
    query: Query,
    key: Key,
    /// Those who wait, each with its pod.
    clients: Vec<(IpAddr, C)>,
    is_probe: bool,
    /// Whether it began with other name servers than the present ones.
    is_of_earlier_servers: bool,
    /// Whether a message that was sent had no answer in time.
    is_late: bool,
    attempts: u32,
    /// The ID and server of each message that was sent and whose socket did not report its end.
    sent: Vec<(u16, SocketAddr, Transport)>,
    /// The best that a server said so far.
    best: Option<Response>,
}

impl<C> Forwarder<C> {
    /// Forwards nothing yet. At most `bound` clients will wait at the same time, and no more than [`WAITING`].
    pub fn new(bound: usize) -> Forwarder<C> {
        Forwarder {
            servers: vec![],
            flights: BTreeMap::new(),
            by_key: BTreeMap::new(),
            waiting: BTreeMap::new(),
            clients: 0,
            bound: bound.clamp(1, WAITING),
            next: 0,
            unanswered: 0,
            try_at: None,
        }
    }

    /// Replaces the name servers, of which the first [`SERVERS`] are used. The board counts as online again.
    pub fn set_servers(&mut self, mut servers: Vec<SocketAddr>) {
        servers.truncate(SERVERS);
        self.servers = servers;
        self.by_key.clear();
        self.flights.values_mut().for_each(|flight| flight.is_of_earlier_servers = true);
        (self.unanswered, self.try_at) = (0, None);
    }

    /// Forwards the query of a client of the pod with the address `source`. `id` is random. A client that is refused
    /// gets a failure; the actions that come with that are to be done all the same.
    pub fn ask(&mut self, now: Duration, query: &Query, source: IpAddr, client: C, id: u16) -> Asked<C> {
        if self.servers.is_empty() {
            return Asked::refused(Refusal::NoServer, client);
        }
        if let Some(at) = &mut self.try_at {
            if now < *at {
                return Asked::refused(Refusal::Offline, client);
            }
            // The client of a try gets its failure at once: it is not to wait for servers that hardly answer.
            *at = now + TRY_AGAIN;
            let actions =
                self.begin(query.clone(), None, false, id).into_iter().chain(self.probe(id)).collect();
            return Asked { actions, refused: Some((Refusal::Offline, client)) };
        }
        let mut actions = Vec::new();
        if self.clients >= self.bound {
            let Some(displaced) = self.displace_for(source) else {
                return Asked::refused(Refusal::TooMany, client);
            };
            actions.push(displaced);
        }
        self.clients += 1;
        *self.waiting.entry(source).or_default() += 1;
        let same = self.by_key.get(&query.key()).and_then(|flight| self.flights.get_mut(flight));
        match same {
            Some(flight) => flight.clients.push((source, client)),
            None => actions.extend(self.begin(query.clone(), Some((source, client)), false, id)),
        }
        Asked { actions, refused: None }
    }

    fn begin(
        &mut self,
        query: Query,
        client: Option<(IpAddr, C)>,
        is_probe: bool,
        id: u16,
    ) -> Option<Action<C>> {
        self.next += 1;
        let flight = FlightId(self.next);
        let key = query.key();
        // Nobody waits for a probe or a try.
        if client.is_some() {
            self.by_key.insert(key.clone(), flight);
        }
        let new = Flight {
            query,
            key,
            clients: client.into_iter().collect(),
            is_probe,
            is_of_earlier_servers: false,
            is_late: false,
            attempts: 0,
            sent: vec![],
            best: None,
        };
        self.flights.insert(flight, new);
        self.send(flight, id)
    }

    /// Sends a probe, unless one is on its way.
    fn probe(&mut self, id: u16) -> Option<Action<C>> {
        let is_probe = |flight: &Flight<C>| flight.is_probe && !flight.is_of_earlier_servers;
        if self.servers.is_empty() || self.flights.values().any(is_probe) {
            return None;
        }
        self.begin(Query::read(PROBE).ok()?, None, true, id)
    }

    /// Reports bytes that came to the socket of `id`. Those that are no answer to its query are ignored.
    pub fn received(&mut self, flight: FlightId, id: u16, bytes: &[u8], random: u16) -> Vec<Action<C>> {
        let Some(entry) = self.flights.get_mut(&flight) else { return vec![] };
        let Some(response) = Response::read(bytes, &entry.key, id) else { return vec![] };
        let Some(at) = entry.sent.iter().position(|(sent, ..)| *sent == id) else { return vec![] };
        let (_, server, transport) = entry.sent.swap_remove(at);
        if !entry.is_of_earlier_servers {
            (self.unanswered, self.try_at) = (0, None);
        }
        if response.is_truncated() && transport == Transport::Udp {
            let message = entry.query.forwarded(random);
            entry.sent.push((random, server, Transport::Tcp));
            entry.best = Some(response);
            return vec![Action::Send { flight, id: random, server, transport: Transport::Tcp, message }];
        }
        if response.is_failure() {
            entry.best.get_or_insert(response);
            return self.proceed(flight, random);
        }
        self.deliver(flight, Some(response)).into_iter().collect()
    }

    /// Reports that the server cannot be reached from the socket of `id`, which is closed.
    pub fn unreachable(&mut self, now: Duration, flight: FlightId, id: u16, random: u16) -> Vec<Action<C>> {
        let Some(entry) = self.flights.get_mut(&flight) else { return vec![] };
        entry.sent.retain(|(sent, ..)| *sent != id);
        self.next_or_fail(now, flight, random)
    }

    /// Reports that nothing came to the socket of `id` for [`PATIENCE`]. It stays open.
    pub fn timed_out(&mut self, now: Duration, flight: FlightId, id: u16, random: u16) -> Vec<Action<C>> {
        let Some(entry) = self.flights.get_mut(&flight) else { return vec![] };
        // Another message has been sent since.
        if entry.sent.last().is_none_or(|(sent, ..)| *sent != id) {
            return vec![];
        }
        entry.is_late = true;
        self.next_or_fail(now, flight, random)
    }

    fn next_or_fail(&mut self, now: Duration, flight: FlightId, random: u16) -> Vec<Action<C>> {
        let Some(entry) = self.flights.get(&flight) else { return vec![] };
        let is_over = entry.attempts >= ATTEMPTS && entry.best.is_none();
        let is_unanswered = is_over && entry.is_late && !entry.is_of_earlier_servers;
        let is_probe = entry.is_probe;
        if is_unanswered && !is_probe {
            self.unanswered = self.unanswered.saturating_add(1);
        }
        let is_suspect = is_unanswered && self.unanswered >= UNANSWERED && self.try_at.is_none();
        if is_suspect && is_probe {
            self.try_at = Some(now + TRY_AGAIN);
        }
        let mut actions = self.proceed(flight, random);
        if is_suspect && !is_probe {
            actions.extend(self.probe(random));
        }
        if self.try_at.is_some() {
            // Whoever still waits gets a failure now.
            let waiting = self.flights.iter().filter(|(_, flight)| !flight.clients.is_empty());
            let waiting: Vec<_> = waiting.map(|(flight, _)| *flight).collect();
            actions.extend(waiting.into_iter().filter_map(|flight| self.deliver(flight, None)));
        }
        actions
    }

    /// Sends the query to the next server, or delivers the best that was received.
    fn proceed(&mut self, flight: FlightId, random: u16) -> Vec<Action<C>> {
        let Some(entry) = self.flights.get_mut(&flight) else { return vec![] };
        let is_over = entry.attempts >= ATTEMPTS || self.servers.is_empty();
        match &entry.best {
            // A truncated answer without TCP is better than none.
            Some(best) if best.is_truncated() => {
                let best = entry.best.take();
                self.deliver(flight, best).into_iter().collect()
            }
            // Each server that failed has said so; the same one would again.
            Some(_) if is_over || entry.attempts as usize >= self.servers.len() => {
                let best = entry.best.take();
                self.deliver(flight, best).into_iter().collect()
            }
            _ if is_over => self.deliver(flight, None).into_iter().collect(),
            _ => self.send(flight, random).into_iter().collect(),
        }
    }

    fn send(&mut self, flight: FlightId, id: u16) -> Option<Action<C>> {
        let entry = self.flights.get_mut(&flight)?;
        let server = self.servers[entry.attempts as usize % self.servers.len()];
        entry.attempts += 1;
        entry.sent.push((id, server, Transport::Udp));
        let message = entry.query.forwarded(id);
        Some(Action::Send { flight, id, server, transport: Transport::Udp, message })
    }

    fn deliver(&mut self, flight: FlightId, response: Option<Response>) -> Option<Action<C>> {
        let Flight { key, clients, is_of_earlier_servers, .. } = self.flights.remove(&flight)?;
        if self.by_key.get(&key) == Some(&flight) {
            self.by_key.remove(&key);
        }
        clients.iter().for_each(|(source, _)| self.uncount(*source));
        let clients = clients.into_iter().map(|(_, client)| client).collect();
        let key = (!is_of_earlier_servers).then_some(key);
        Some(Action::Deliver { flight, key, clients, response })
    }

    /// Fails the oldest client of the pod with the most of them, if that has more than the pod at `source` would have.
    fn displace_for(&mut self, source: IpAddr) -> Option<Action<C>> {
        let own = self.waiting.get(&source).copied().unwrap_or(0);
        let (most, count) = self.waiting.iter().max_by_key(|(_, count)| **count)?;
        let most = (*count > own + 1).then_some(*most)?;
        let (flight, at) = self.flights.iter().find_map(|(id, flight)| {
            let at = flight.clients.iter().position(|(of, _)| *of == most)?;
            Some((*id, at))
        })?;
        let entry = self.flights.get_mut(&flight)?;
        if entry.clients.len() == 1 {
            return self.deliver(flight, None);
        }
        let (_, client) = entry.clients.remove(at);
        self.uncount(most);
        Some(Action::Fail(client))
    }

    /// Counts a client of this pod less.
    fn uncount(&mut self, source: IpAddr) {
        self.clients -= 1;
        if let Some(count) = self.waiting.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&source);
            }
        }
    }
}

/// The result of [`Forwarder::ask`].
#[derive(Debug)]
pub struct Asked<C> {
    /// What the sockets have to do.
    pub actions: Vec<Action<C>>,
    /// A client that gets a failure now, and why.
    pub refused: Option<(Refusal, C)>,
}

impl<C> Asked<C> {
    fn refused(refusal: Refusal, client: C) -> Asked<C> {
        Asked { actions: vec![], refused: Some((refusal, client)) }
    }
}

#[cfg(test)]
mod tests;
