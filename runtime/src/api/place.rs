//! The limits for clients of the API: the number of connections, which connection is closed when all are in use, and
//! the memory for unread responses and received objects.
//!
//! A client that hangs is kept as long as other clients can connect: a pager that shows an old log occupies one
//! place and one block of memory. If a new client needs a place, the client that has hung for longest is
//! disconnected. Read next: `api.rs`, which assigns the places.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::Status;

/// Maximum size of unread responses of all clients together: enough for a dozen clients that each list all pods of a
/// full board. A single response may be larger.
const UNREAD: usize = 4 * 1024 * 1024;

/// Maximum size of received objects of all clients together that wait for the agent. A single object may be larger.
const OBJECTS: usize = 4 * 1024 * 1024;

/// Time after which a client that does not read or send counts as hanging, and may be disconnected for another one.
const PATIENCE: Duration = Duration::from_millis(500);

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    /// The client has sent no complete request since this instant.
    Silent(Instant),
    /// The client's request is being handled, or the client has read the whole response so far.
    Served,
    /// The client has not read pending data since this instant.
    Unread(Instant),
}

/// The places of all clients.
#[derive(Debug)]
pub(crate) struct Places {
    /// Maximum number of clients at a time. One further client waits until one of them hangs; later clients wait in
    /// the socket's backlog.
    most: usize,
    taken: RefCell<Vec<Weak<Place>>>,
    /// Bytes of unread responses of all clients.
    unread: Rc<Cell<usize>>,
    /// Bytes of received objects that wait for the agent.
    objects: Rc<Cell<usize>>,
}

/// The place of one client.
#[derive(Debug)]
pub(crate) struct Place {
    state: Cell<ClientState>,
    /// Whether the response has no end of its own, such as a watch.
    stays: Cell<bool>,
    /// Closed when the client must be disconnected.
    disconnect: (async_channel::Sender<Infallible>, async_channel::Receiver<Infallible>),
}

impl Places {
    /// Creates places for at most `most` clients at a time.
    pub(crate) fn new(most: usize) -> Places {
        let (unread, objects) = (Rc::default(), Rc::default());
        Places { most, taken: RefCell::default(), unread, objects }
    }

    /// Returns the maximum number of clients at a time.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Returns the maximum number of clients whose responses have no end: clients that watch, follow a log, execute,
    /// attach or forward. The other places are for short requests. A further such request is rejected unless one of
    /// these clients hangs.
    fn staying(&self) -> usize {
        self.most - self.most / 4
    }

    /// Returns a place for a new client.
    pub(crate) fn take(&self) -> Rc<Place> {
        let place = Rc::new(Place {
            state: Cell::new(ClientState::Silent(Instant::now())),
            stays: Cell::new(false),
            disconnect: async_channel::bounded(1),
        });
        let mut taken = self.taken.borrow_mut();
        taken.retain(|place| place.strong_count() > 0);
        taken.push(Rc::downgrade(&place));
        place
    }

    /// Disconnects the client that has hung for longest. Returns `false` if none has hung for [`PATIENCE`].
    pub(super) fn disconnect_hanging(&self, now: Instant) -> bool {
        disconnect_hanging(self.connected(), now)
    }

    /// Allows a request whose response has no end, if not too many are active and none of them hangs.
    pub(super) fn stay(&self, place: &Place, now: Instant) -> Result<(), Status> {
        let staying = || self.connected().filter(|place| place.stays.get());
        if staying().count() >= self.staying() && !disconnect_hanging(staying(), now) {
            return Err(Status::too_many_requests(format!(
                "{} clients watch, follow logs, execute, attach or forward already: end one of them",
                self.staying()
            )));
        }
        place.stays.set(true);
        Ok(())
    }

    /// Returns the connected clients, except those that must be disconnected.
    fn connected(&self) -> impl Iterator<Item = Rc<Place>> {
        let connected: Vec<Rc<Place>> = self.taken.borrow().iter().filter_map(Weak::upgrade).collect();
        connected.into_iter().filter(|place| !place.disconnect.0.is_closed())
    }

    /// Reserves memory for a response of this size until the returned value is dropped.
    pub(super) fn hold(&self, bytes: usize) -> Result<Held, Status> {
        Held::among(&self.unread, bytes, UNREAD).ok_or_else(|| {
            self.disconnect_hanging(Instant::now());
            Status::too_many_requests("other clients have not read their answers yet: try again in a moment")
        })
    }

    /// Reserves memory for the response to a performed change, even beyond the limit.
    pub(super) fn hold_beyond(&self, bytes: usize) -> Held {
        Held::new(&self.unread, bytes)
    }

    /// Reserves memory for `more` bytes in addition to `held`.
    pub(super) fn hold_more(&self, held: Held, more: usize) -> Result<Held, Status> {
        let bytes = held.bytes + more;
        drop(held);
        self.hold_object(bytes)
    }

    /// Reserves memory for a received object of this size.
    pub(super) fn hold_object(&self, bytes: usize) -> Result<Held, Status> {
        Held::among(&self.objects, bytes, OBJECTS).ok_or_else(|| {
            Status::too_many_requests(
                "the agent is still reading the requests of other clients: try again in a moment",
            )
        })
    }
}

/// Disconnects the client in `of` that has hung for longest, if it has hung for [`PATIENCE`].
fn disconnect_hanging(of: impl Iterator<Item = Rc<Place>>, now: Instant) -> bool {
    let longest = of.filter_map(|place| Some((place.hung_since()?, place))).min_by_key(|(since, _)| *since);
    match longest {
        Some((since, place)) if now.saturating_duration_since(since) >= PATIENCE => {
            place.disconnect.0.close()
        }
        Some(_) | None => false,
    }
}

impl Place {
    /// Completes when the client must be disconnected.
    pub(crate) fn disconnected(&self) -> impl Future<Output = ()> {
        let disconnect = self.disconnect.1.clone();
        // Nothing is ever sent on the channel: receiving ends when it is closed.
        async move {
            let _ = disconnect.recv().await;
        }
    }

    /// Records a new request; `whole` if it has arrived completely. Until the body has arrived, the client counts as
    /// silent.
    pub(super) fn mark_request(&self, whole: bool) {
        self.stays.set(false);
        self.state.set(if whole { ClientState::Served } else { ClientState::Silent(Instant::now()) });
    }

    /// Records that the client has read everything that it was sent, or that its connection has been upgraded.
    pub(super) fn mark_served(&self) {
        self.state.set(ClientState::Served);
    }

    /// Records that data for the client is pending, which it has not read yet.
    pub(super) fn mark_unread(&self) {
        self.state.set(ClientState::Unread(Instant::now()));
    }

    /// Records the end of a response. The client counts as silent, even if the last piece is not sent yet.
    pub(super) fn mark_silent(&self) {
        self.state.set(ClientState::Silent(Instant::now()));
    }

    fn hung_since(&self) -> Option<Instant> {
        match self.state.get() {
            ClientState::Silent(since) | ClientState::Unread(since) => Some(since),
            ClientState::Served => None,
        }
    }
}

/// A reservation of memory for a client.
#[derive(Debug)]
pub(super) struct Held {
    bytes: usize,
    all: Rc<Cell<usize>>,
}

impl Held {
    /// Reserves `bytes`; `None` if all reservations together would exceed the limit.
    fn among(all: &Rc<Cell<usize>>, bytes: usize, limit: usize) -> Option<Held> {
        let held = all.get();
        if held > 0 && bytes > 0 && held + bytes > limit {
            return None;
        }
        Some(Held::new(all, bytes))
    }

    fn new(all: &Rc<Cell<usize>>, bytes: usize) -> Held {
        all.set(all.get() + bytes);
        Held { bytes, all: all.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stalled_client_is_dropped_for_a_new_one() {
        let places = Places::new(64);
        let start = Instant::now();
        let (silent, slow, served) = (places.take(), places.take(), places.take());
        slow.state.set(ClientState::Unread(start));
        silent.state.set(ClientState::Silent(start + Duration::from_secs(1)));
        served.mark_request(true);
        assert!(!places.disconnect_hanging(start + PATIENCE / 2), "nobody has hung for long");
        let late = start + PATIENCE + Duration::from_secs(1);
        for (place, what) in [(&slow, "slow"), (&silent, "silent")] {
            assert!(places.disconnect_hanging(late));
            assert!(place.disconnect.0.is_closed(), "{what}");
        }
        assert!(!places.disconnect_hanging(late), "the last is served");
        assert!(!served.disconnect.0.is_closed());
    }

    #[test]
    fn beyond_the_limit_an_endless_response_only_replaces_a_hung_one() {
        let places = Places::new(64);
        let start = Instant::now();
        let staying: Vec<Rc<Place>> = (0..places.staying()).map(|_| places.take()).collect();
        for place in &staying {
            place.mark_request(true);
            places.stay(place, start).expect("there is room");
        }
        let late = start + PATIENCE + Duration::from_secs(60);
        // This client hangs, too, but its response is not endless.
        let silent = places.take();
        silent.state.set(ClientState::Silent(start));
        let next = places.take();
        next.mark_request(true);
        assert_eq!(places.stay(&next, late).map_err(|status| status.code), Err(429));
        staying[7].mark_unread();
        assert_eq!(
            places.stay(&next, Instant::now()).map_err(|status| status.code),
            Err(429),
            "not for long"
        );
        staying[7].mark_served();
        assert!(places.stay(&next, late).is_err(), "it has read it");
        staying[7].mark_unread();
        places.stay(&next, late).expect("one of them hangs");
        assert!(staying[7].disconnect.0.is_closed() && !silent.disconnect.0.is_closed());
        let another = places.take();
        another.mark_request(true);
        assert!(places.stay(&another, late).is_err(), "only one of them hung");
    }

    #[test]
    fn unread_responses_of_all_clients_share_one_limit() {
        let places = Places::new(64);
        let first = places.hold(UNREAD * 2).expect("one alone may be larger");
        assert_eq!(places.hold(1).map(|_| ()).map_err(|status| status.code), Err(429));
        drop(first);
        let many: Vec<Held> = (0..4).map(|_| places.hold(UNREAD / 4).expect("there is room")).collect();
        assert!(places.hold(1).is_err());
        drop(many);
        assert_eq!(places.unread.get(), 0);
    }

    #[test]
    fn an_object_that_waits_keeps_out_others_but_no_answer_and_no_empty_body() {
        let places = Places::new(64);
        let large = places.hold_object(OBJECTS * 2).expect("one alone may be larger");
        assert_eq!(places.hold_object(1).map(|_| ()).map_err(|status| status.code), Err(429));
        assert!(places.hold_object(0).is_ok() && places.hold(UNREAD).is_ok());
        drop(large);
        assert!(places.hold_object(OBJECTS).is_ok());
    }

    #[test]
    fn an_object_takes_its_room_until_the_agent_has_it_even_if_its_client_is_gone() {
        let places = Places::new(64);
        let room = places.hold_object(OBJECTS).expect("there is room");
        let (reply, answer) = crate::api::Reply::<()>::new();
        let reply = reply.with_room(Some(room));
        drop(answer);
        assert!(places.hold_object(1).is_err());
        drop(reply);
        assert!(places.hold_object(1).is_ok());
    }
}
