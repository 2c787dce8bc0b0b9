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
//! After [`UNANSWERED`] queries in sequence without any answer the servers are asked for the name servers of the root,
//! which a living one knows: nobody answers for some names, and a pod can ask for such names only. If that probe has
//! no answer either, the board counts as offline: clients get a failure at once, and each [`TRY_AGAIN`] a query and a
//! probe are tried. A query that cannot be sent says nothing about the servers, and fails at once anyway.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::message::{Key, Query, Response};

/// Name servers that are asked (`MAXNS` of resolvers).
const SERVERS: usize = 3;

/// Times a query is sent, to all servers together.
const ATTEMPTS: u32 = 3;

/// Time without an answer after which the query is sent to the next server. An answer to an earlier one still counts.
pub const PATIENCE: Duration = Duration::from_millis(1200);

/// Queries that are forwarded at the same time, each with up to [`ATTEMPTS`] sockets.
const IN_FLIGHT: usize = 64;

/// Clients that wait for an answer that another client has asked for: of all pods, and of one.
const WAITING: usize = 1024;
const WAITING_OF_ONE: usize = 256;

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
        /// What the answer can be kept by.
        key: Key,
        /// Those who wait for it.
        clients: Vec<C>,
        /// The answer.
        response: Option<Response>,
    },
}

/// Why a query is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The board has no name server.
    NoServer,
    /// No server answered lately.
    Offline,
    /// Too many queries are forwarded, and no pod has more of them than this one.
    TooMany,
}

/// Forwarded queries of clients of the type `C`.
#[derive(Debug)]
pub struct Forwarder<C> {
    servers: Vec<SocketAddr>,
    flights: BTreeMap<FlightId, Flight<C>>,
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
    /// The pod that began it.
    source: IpAddr,
    /// Those who wait, each with its pod.
    clients: Vec<(IpAddr, C)>,
    is_probe: bool,
    /// Whether a message that was sent had no answer in time.
    is_late: bool,
    attempts: u32,
    /// The ID and server of each message that was sent and whose socket did not report its end.
    sent: Vec<(u16, SocketAddr, Transport)>,
    /// The best that a server said so far.
    best: Option<Response>,
}

impl<C> Default for Forwarder<C> {
    fn default() -> Self {
        Forwarder { servers: vec![], flights: BTreeMap::new(), next: 0, unanswered: 0, try_at: None }
    }
}

impl<C> Forwarder<C> {
    /// Replaces the name servers, of which the first [`SERVERS`] are used. The board counts as online again.
    pub fn set_servers(&mut self, servers: Vec<SocketAddr>) {
        self.servers = servers;
        self.servers.truncate(SERVERS);
        (self.unanswered, self.try_at) = (0, None);
    }

    /// Forwards the query of a client of the pod with the address `source`. `id` is random. A client that is refused
    /// gets a failure; the actions that come with that are to be done all the same.
    pub fn ask(&mut self, now: Duration, query: &Query, source: IpAddr, client: C, id: u16) -> Asked<C> {
        let key = query.key();
        if self.servers.is_empty() {
            return Asked::refused(Refusal::NoServer, client);
        }
        let is_offline = self.try_at.is_some();
        let waiting = self.flights.values().flat_map(|flight| flight.clients.iter().skip(1));
        let waiting: Vec<IpAddr> = waiting.map(|(source, _)| *source).collect();
        if !is_offline && let Some(flight) = self.flights.values_mut().find(|flight| flight.key == key) {
            let of_one = waiting.iter().filter(|of| **of == source).count();
            if waiting.len() >= WAITING || of_one >= WAITING_OF_ONE {
                return Asked::refused(Refusal::TooMany, client);
            }
            flight.clients.push((source, client));
            return Asked { actions: vec![], refused: None };
        }
        if self.try_at.is_some_and(|at| now < at) {
            return Asked::refused(Refusal::Offline, client);
        }
        let mut actions = Vec::new();
        if self.flights.len() >= IN_FLIGHT {
            let Some(displaced) = self.displaced_by(source) else {
                return Asked::refused(Refusal::TooMany, client);
            };
            actions.extend(self.deliver(displaced, None));
        }
        // The client of a try gets its failure at once: it is not to wait for servers that hardly answer.
        let (clients, refused) = match &mut self.try_at {
            Some(at) => {
                *at = now + TRY_AGAIN;
                (vec![], Some((Refusal::Offline, client)))
            }
            None => (vec![(source, client)], None),
        };
        actions.extend(self.begin(query.clone(), source, clients, false, id));
        if refused.is_some() {
            actions.extend(self.probe(id));
        }
        Asked { actions, refused }
    }

    fn begin(
        &mut self,
        query: Query,
        source: IpAddr,
        clients: Vec<(IpAddr, C)>,
        is_probe: bool,
        id: u16,
    ) -> Option<Action<C>> {
        self.next += 1;
        let flight = FlightId(self.next);
        let key = query.key();
        let (sent, best) = (vec![], None);
        let new = Flight { query, key, source, clients, is_probe, is_late: false, attempts: 0, sent, best };
        self.flights.insert(flight, new);
        self.send(flight, id)
    }

    /// Sends a probe, unless one is on its way.
    fn probe(&mut self, id: u16) -> Option<Action<C>> {
        if self.servers.is_empty() || self.flights.values().any(|flight| flight.is_probe) {
            return None;
        }
        let query = Query::read(PROBE).ok()?;
        self.begin(query, Ipv4Addr::UNSPECIFIED.into(), vec![], true, id)
    }

    /// Reports bytes that came to the socket of `id`. Those that are no answer to its query are ignored.
    pub fn received(&mut self, flight: FlightId, id: u16, bytes: &[u8], random: u16) -> Vec<Action<C>> {
        let Some(entry) = self.flights.get_mut(&flight) else { return vec![] };
        let Some(response) = Response::read(bytes, &entry.key, id) else { return vec![] };
        let Some(at) = entry.sent.iter().position(|(sent, ..)| *sent == id) else { return vec![] };
        let (_, server, transport) = entry.sent.swap_remove(at);
        (self.unanswered, self.try_at) = (0, None);
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
        let is_unanswered = entry.attempts >= ATTEMPTS && entry.best.is_none() && entry.is_late;
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
        let Flight { key, clients, .. } = self.flights.remove(&flight)?;
        let clients = clients.into_iter().map(|(_, client)| client).collect();
        Some(Action::Deliver { flight, key, clients, response })
    }

    /// The oldest query of the pod with the most of them, if that has more than the pod at `source`.
    fn displaced_by(&self, source: IpAddr) -> Option<FlightId> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for flight in self.flights.values() {
            *counts.entry(flight.source).or_default() += 1;
        }
        let own = counts.get(&source).copied().unwrap_or(0);
        let (most, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let mut of_most = self.flights.iter().filter(|(_, flight)| flight.source == most);
        (count > own + 1).then(|| of_most.next().map(|(flight, _)| *flight)).flatten()
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
