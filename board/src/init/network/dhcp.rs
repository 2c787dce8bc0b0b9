//! A DHCPv4 client (RFC 2131) as a state machine that knows no clock, socket or link.
//!
//! ```text
//!                 carrier                 offer                    ack
//!   Off ───────────────────► Selecting ───────────► Requesting ───────────► Bound ◄────────┐
//!    │                           ▲  ▲                   │ nak, silence        │ T1         │ ack
//!    │ carrier, a lease is left  │  └───────────────────┘                     ▼            │
//!    └─────────► Rebooting ──────┘ nak, silence                           Renewing ────────┤
//!                    │ ack                                                    │ T2         │
//!                    └────────────────────────────────────────────► Bound     ▼            │
//!                                                     nak, end of lease ◄ Rebinding ───────┘
//! ```
//!
//! Without carrier every state becomes `Off`. The lease is kept apart from the state: unplugging a cable for
//! a minute does not remove the address, and an address lasts no longer than its lease, whatever the state.
//! Times are of one clock that never steps back. Next: `wire.rs`, the messages.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::random::Random;
use super::time::Time;
use super::wire::{self, Kind, Reply, Request};

/// The delay after the first unanswered message; each further delay is twice as long.
const FIRST_DELAY: Duration = Duration::from_secs(4);

/// The longest delay between two messages, without a lease (RFC 2131, 4.1).
const LONGEST_DELAY: Duration = Duration::from_secs(64);

/// The least delay between two messages that renew a lease (RFC 2131, 4.4.5).
const RENEWAL_DELAY: Duration = Duration::from_secs(60);

/// The most requests for an offered address, and for the address of a lease after the carrier was lost.
const REQUESTS: u32 = 3;

/// The shortest lease. A shorter lease counts as this long, because a server must not keep the board busy.
const SHORTEST_LEASE: Duration = Duration::from_secs(30);

/// A lease that a server granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
    pub(super) gateway: Option<Ipv4Addr>,
    pub(super) dns: Vec<Ipv4Addr>,
    pub(super) domain: Option<String>,
    pub(super) ntp: Vec<Ipv4Addr>,
    pub(super) server: Ipv4Addr,
    /// When the lease expires; `None` for never.
    pub(super) expires: Option<Time>,
    renew: Option<Time>,
    rebind: Option<Time>,
}

/// The state of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The link has no carrier.
    Off,
    /// Requests offers.
    Selecting,
    /// Requests the offered address.
    Requesting { address: Ipv4Addr, server: Ipv4Addr },
    /// Asks whether the lease from before the loss of carrier is still valid.
    Rebooting,
    /// Has a lease; nothing is due before its renewal.
    Bound,
    /// Asks the server of the lease to extend it.
    Renewing,
    /// Asks all servers to extend the lease.
    Rebinding,
}

/// A message to send: to one server, or by broadcast if `to` is `None`.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) to: Option<Ipv4Addr>,
    pub(super) bytes: Vec<u8>,
}

/// The DHCP client of one link.
pub(super) struct Client {
    hardware: [u8; 6],
    host_name: String,
    random: Random,
    state: State,
    lease: Option<Lease>,
    /// The transaction number of this state's messages.
    transaction: u32,
    /// When the first message of this exchange was sent.
    begun: Time,
    /// Number of messages sent in this state.
    sent: u32,
    /// Number of DHCPNAKs since the last lease.
    refusals: u32,
    /// When something is due in this state.
    next: Option<Time>,
}

impl Client {
    /// A client of a link without carrier.
    pub(super) fn new(hardware: [u8; 6], host_name: &str, seed: u64) -> Client {
        Client {
            hardware,
            host_name: host_name.to_owned(),
            random: Random::new(seed),
            state: State::Off,
            lease: None,
            transaction: 0,
            begun: Time::ZERO,
            sent: 0,
            refusals: 0,
            next: None,
        }
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Reports that the link's carrier came or went.
    pub(super) fn carrier(&mut self, now: Time, up: bool) {
        self.expire(now);
        match (up, self.state) {
            (false, _) => {
                self.state = State::Off;
                self.next = None;
            }
            (true, State::Off) => {
                self.refusals = 0;
                self.enter(if self.lease.is_some() { State::Rebooting } else { State::Selecting }, now);
            }
            (true, _) => {}
        }
    }

    /// When [`Client::poll`] must be called next.
    pub(super) fn wake_at(&self) -> Option<Time> {
        let expires = self.lease.as_ref().and_then(|lease| lease.expires);
        self.next.into_iter().chain(expires).min()
    }

    /// Ends an expired lease, and returns the message that is due, if one is.
    pub(super) fn poll(&mut self, now: Time) -> Option<Message> {
        self.expire(now);
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        let lease = self.lease.as_ref();
        match self.state {
            State::Requesting { .. } | State::Rebooting if self.sent == REQUESTS => {
                self.enter(State::Selecting, now);
            }
            State::Bound => self.enter(State::Renewing, now),
            State::Renewing if lease.and_then(|lease| lease.rebind).is_some_and(|rebind| rebind <= now) => {
                self.enter(State::Rebinding, now);
            }
            State::Off
            | State::Selecting
            | State::Requesting { .. }
            | State::Rebooting
            | State::Renewing
            | State::Rebinding => {}
        }
        self.sent = self.sent.saturating_add(1);
        self.next = Some(self.retry_at(now));
        self.message(now)
    }

    /// Processes a datagram received on the link. Ignores anything that does not respond to the last message.
    pub(super) fn receive(&mut self, now: Time, bytes: &[u8]) {
        self.expire(now);
        let Some(reply) = wire::read(bytes, self.transaction, self.hardware) else { return };
        match (reply.kind, self.state) {
            (Kind::Offer, State::Selecting) => {
                let Some(address) = reply.address else { return };
                let transaction = self.transaction;
                self.enter(State::Requesting { address, server: reply.server }, now);
                self.transaction = transaction;
            }
            (Kind::Ack, State::Requesting { address, server })
                if reply.address == Some(address) && reply.server == server =>
            {
                self.bind(now, &reply);
            }
            (Kind::Ack, State::Rebooting | State::Renewing | State::Rebinding)
                if reply.address == self.lease.as_ref().map(|lease| lease.address) =>
            {
                self.bind(now, &reply);
            }
            (Kind::Nak, State::Requesting { server, .. }) if reply.server == server => self.refuse(now),
            (Kind::Nak, State::Rebooting | State::Renewing | State::Rebinding) => self.refuse(now),
            (Kind::Offer | Kind::Ack | Kind::Nak, _) => {}
        }
    }

    fn bind(&mut self, now: Time, reply: &Reply) {
        let (Some(address), Some(seconds)) = (reply.address, reply.lease) else { return };
        let prefix = reply.prefix.unwrap_or_else(|| prefix_of_class(address));
        let duration = Duration::from_secs(seconds.into()).max(SHORTEST_LEASE);
        let for_ever = seconds == u32::MAX;
        // The times that the server sent are used if they are plausible.
        let given = |seconds: Option<u32>| seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let rebind = given(reply.rebind).filter(|rebind| *rebind < duration && *rebind >= SHORTEST_LEASE / 2);
        let rebind = rebind.unwrap_or(duration * 7 / 8);
        let renew = given(reply.renew).filter(|renew| *renew < rebind && *renew >= SHORTEST_LEASE / 4);
        let renew = renew.unwrap_or(duration / 2).min(rebind);
        let at = |after: Duration| (!for_ever).then_some(now + after);
        self.lease = Some(Lease {
            address,
            prefix,
            gateway: reply.router,
            dns: reply.dns.clone(),
            domain: reply.domain.clone(),
            ntp: reply.ntp.clone(),
            server: reply.server,
            expires: at(duration),
            renew: at(renew),
            rebind: at(rebind),
        });
        self.refusals = 0;
        self.enter(State::Bound, now);
    }

    /// Handles a DHCPNAK: the server denies the board this address.
    fn refuse(&mut self, now: Time) {
        self.lease = None;
        self.enter(State::Selecting, now);
        // Delay requests to a server that offers and rejects without end.
        if self.refusals > 0 {
            self.next = Some(now + self.delay(self.refusals));
        }
        self.refusals = self.refusals.saturating_add(1);
    }

    fn expire(&mut self, now: Time) {
        let Some(lease) = &self.lease else { return };
        if lease.expires.is_none_or(|expires| expires > now) {
            return;
        }
        self.lease = None;
        match self.state {
            State::Rebooting | State::Bound | State::Renewing | State::Rebinding => {
                self.enter(State::Selecting, now);
            }
            State::Off | State::Selecting | State::Requesting { .. } => {}
        }
    }

    fn enter(&mut self, state: State, now: Time) {
        self.state = state;
        self.sent = 0;
        self.next = Some(now);
        if state == State::Bound {
            self.next = self.lease.as_ref().and_then(|lease| lease.renew);
        } else {
            self.transaction = self.random.next() as u32;
            self.begun = now;
        }
    }

    /// When to repeat the message that is being sent.
    fn retry_at(&mut self, now: Time) -> Time {
        let lease = self.lease.as_ref();
        let end = match self.state {
            State::Renewing => lease.and_then(|lease| lease.rebind),
            State::Rebinding => lease.and_then(|lease| lease.expires),
            State::Off | State::Selecting | State::Requesting { .. } | State::Rebooting | State::Bound => {
                return now + self.delay(self.sent);
            }
        };
        let end = end.unwrap_or(now + LONGEST_DELAY);
        (now + (end.saturating_sub(now) / 2).max(RENEWAL_DELAY)).min(end)
    }

    /// The delay after the `sent`-th message: 4, 8, 16, 32 or 64 s, give or take up to one second.
    fn delay(&mut self, sent: u32) -> Duration {
        let delay = (FIRST_DELAY * (1 << sent.saturating_sub(1).min(4))).min(LONGEST_DELAY);
        delay - Duration::from_secs(1) + Duration::from_millis(self.random.next() % 2001)
    }

    fn message(&self, now: Time) -> Option<Message> {
        let leased = self.lease.as_ref().map(|lease| lease.address);
        let mut request = Request {
            discover: false,
            transaction: self.transaction,
            seconds: u16::try_from(now.saturating_sub(self.begun).as_secs()).unwrap_or(u16::MAX),
            hardware: self.hardware,
            address: None,
            requested: None,
            server: None,
            host_name: &self.host_name,
        };
        let mut to = None;
        match self.state {
            State::Off | State::Bound => return None,
            State::Selecting => {
                request.discover = true;
                request.requested = leased;
            }
            State::Requesting { address, server } => {
                request.requested = Some(address);
                request.server = Some(server);
            }
            State::Rebooting => request.requested = leased,
            State::Renewing => {
                request.address = leased;
                to = self.lease.as_ref().map(|lease| lease.server);
            }
            State::Rebinding => request.address = leased,
        }
        Some(Message { to, bytes: wire::write(&request) })
    }
}

/// The prefix length of an address, by its class, if the server sends none.
fn prefix_of_class(address: Ipv4Addr) -> u8 {
    match address.octets()[0] {
        ..128 => 8,
        128..192 => 16,
        _ => 24,
    }
}

#[cfg(test)]
mod tests;
