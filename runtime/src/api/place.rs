//! The places that clients take: what each is doing, who makes room when all are
//! taken, and how much of what nobody has read yet may be held for them.
//!
//! A client that hangs is nobody's business as long as there is room for others:
//! a pager that shows the log of an hour ago holds one place and one block. It is
//! the one to go when somebody else wants in. Next: `api.rs`, which gives them out.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::Status;

/// Bytes of answers that are held until their clients have read them, of all clients
/// together: a list of all pods of a full board for each of a dozen. One alone may be larger.
const UNREAD: usize = 4 * 1024 * 1024;

/// Bytes of the objects that clients have sent and that wait for the agent, of all clients together.
/// One alone may be larger.
const OBJECTS: usize = 4 * 1024 * 1024;

/// How long a client may leave an answer unread, or say nothing, before it has to make
/// room for another one.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a client is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It asks for nothing, since then.
    Silent(Instant),
    /// It is being answered, or has taken all that there is to say until now.
    Served,
    /// It has not taken what there is for it, since then.
    Unread(Instant),
}

/// All places.
#[derive(Debug)]
pub(crate) struct Places {
    /// Clients at a time: people, and the odd tool that watches. The next one waits until one of
    /// them hangs; those after it wait in the socket's backlog.
    most: usize,
    taken: RefCell<Vec<Weak<Place>>>,
    /// Bytes that are held for all clients.
    unread: Rc<Cell<usize>>,
    /// Bytes of objects that wait.
    objects: Rc<Cell<usize>>,
}

/// The place of one client.
#[derive(Debug)]
pub(super) struct Place {
    standing: Cell<Standing>,
    /// What it asked for has no end of its own.
    stays: Cell<bool>,
    /// Closed when the client has to go.
    going: (async_channel::Sender<Infallible>, async_channel::Receiver<Infallible>),
}

impl Places {
    /// Places for so many clients at a time.
    pub(crate) fn new(most: usize) -> Places {
        let (unread, objects) = (Rc::default(), Rc::default());
        Places { most, taken: RefCell::default(), unread, objects }
    }

    /// How many clients there may be at a time.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Clients at a time that stay: that watch, follow a log, have a process executed. The other
    /// places are for those that ask and go. The next one to stay is refused unless one of them hangs.
    fn staying(&self) -> usize {
        self.most - self.most / 4
    }

    /// A place for a client that has just come.
    pub(super) fn take(&self) -> Rc<Place> {
        let place = Rc::new(Place {
            standing: Cell::new(Standing::Silent(Instant::now())),
            stays: Cell::new(false),
            going: async_channel::bounded(1),
        });
        let mut taken = self.taken.borrow_mut();
        taken.retain(|place| place.strong_count() > 0);
        taken.push(Rc::downgrade(&place));
        place
    }

    /// Sends the client away that has hung for longest. `false` if none has hung for [`PATIENCE`].
    pub(super) fn make_room(&self, now: Instant) -> bool {
        make_room(self.there(), now)
    }

    /// Lets a client stay, if not too many do that read what there is for them.
    pub(super) fn stay(&self, place: &Place, now: Instant) -> Result<(), Status> {
        let staying = || self.there().filter(|place| place.stays.get());
        if staying().count() >= self.staying() && !make_room(staying(), now) {
            return Err(Status::too_many_requests(format!(
                "{} clients watch, follow logs, execute, attach or forward already: end one of them",
                self.staying()
            )));
        }
        place.stays.set(true);
        Ok(())
    }

    /// Those that are there and have not been sent away.
    fn there(&self) -> impl Iterator<Item = Rc<Place>> {
        let there: Vec<Rc<Place>> = self.taken.borrow().iter().filter_map(Weak::upgrade).collect();
        there.into_iter().filter(|place| !place.going.0.is_closed())
    }

    /// Room for an answer of so many bytes, until what is returned is dropped.
    pub(super) fn hold(&self, bytes: usize) -> Result<Held, Status> {
        Held::among(&self.unread, bytes, UNREAD).ok_or_else(|| {
            self.make_room(Instant::now());
            Status::too_many_requests("other clients have not read their answers yet: try again in a moment")
        })
    }

    /// Room for the answer to a change that was made, even beyond the limit.
    pub(super) fn hold_beyond(&self, bytes: usize) -> Held {
        Held::new(&self.unread, bytes)
    }

    /// Room for `more` bytes besides those of `held`.
    pub(super) fn hold_more(&self, held: Held, more: usize) -> Result<Held, Status> {
        let bytes = held.bytes + more;
        drop(held);
        self.hold_object(bytes)
    }

    /// Room for an object of so many bytes that a client has sent.
    pub(super) fn hold_object(&self, bytes: usize) -> Result<Held, Status> {
        Held::among(&self.objects, bytes, OBJECTS).ok_or_else(|| {
            Status::too_many_requests(
                "objects of other clients have to be looked at first: try again in a moment",
            )
        })
    }
}

/// Sends the one of them away that has hung for longest, if it has for [`PATIENCE`].
fn make_room(of: impl Iterator<Item = Rc<Place>>, now: Instant) -> bool {
    let longest = of.filter_map(|place| Some((place.hung_since()?, place))).min_by_key(|(since, _)| *since);
    match longest {
        Some((since, place)) if now.saturating_duration_since(since) >= PATIENCE => place.going.0.close(),
        Some(_) | None => false,
    }
}

impl Place {
    /// Ends when the client has to make room.
    pub(super) fn sent_away(&self) -> impl Future<Output = ()> {
        let going = self.going.1.clone();
        // It is never sent anything: this ends when it is closed.
        async move {
            let _ = going.recv().await;
        }
    }

    /// It has asked for something; `whole` if all of the request is there. A body that has yet
    /// to come is the client's turn still.
    pub(super) fn asks(&self, whole: bool) {
        self.stays.set(false);
        self.standing.set(if whole { Standing::Served } else { Standing::Silent(Instant::now()) });
    }

    /// Records that the client has read everything that it was sent, or that its connection has been upgraded.
    pub(super) fn is_served(&self) {
        self.standing.set(Standing::Served);
    }

    /// Records that there is something for the client that it has not read yet.
    pub(super) fn is_sent_something(&self) {
        self.standing.set(Standing::Unread(Instant::now()));
    }

    /// Records that an answer has ended. The last piece may still be on its way; it is the client's turn all the same.
    pub(super) fn is_answered(&self) {
        self.standing.set(Standing::Silent(Instant::now()));
    }

    fn hung_since(&self) -> Option<Instant> {
        match self.standing.get() {
            Standing::Silent(since) | Standing::Unread(since) => Some(since),
            Standing::Served => None,
        }
    }
}

/// Bytes that are held for a client.
#[derive(Debug)]
pub(super) struct Held {
    bytes: usize,
    all: Rc<Cell<usize>>,
}

impl Held {
    /// `None` if that is more than the limit together with what is held already.
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
    fn the_client_that_hangs_for_longest_makes_room_and_none_that_is_served() {
        let places = Places::new(64);
        let start = Instant::now();
        let (silent, slow, served) = (places.take(), places.take(), places.take());
        slow.standing.set(Standing::Unread(start));
        silent.standing.set(Standing::Silent(start + Duration::from_secs(1)));
        served.asks(true);
        assert!(!places.make_room(start + PATIENCE / 2), "nobody has hung for long");
        let late = start + PATIENCE + Duration::from_secs(1);
        for (place, what) in [(&slow, "slow"), (&silent, "silent")] {
            assert!(places.make_room(late));
            assert!(place.going.0.is_closed(), "{what}");
        }
        assert!(!places.make_room(late), "the last is served");
        assert!(!served.going.0.is_closed());
    }

    #[test]
    fn one_more_may_stay_only_in_the_place_of_one_that_hangs() {
        let places = Places::new(64);
        let start = Instant::now();
        let staying: Vec<Rc<Place>> = (0..places.staying()).map(|_| places.take()).collect();
        for place in &staying {
            place.asks(true);
            places.stay(place, start).expect("there is room");
        }
        let late = start + PATIENCE + Duration::from_secs(60);
        // Hangs, too, but it is not what there are too many of.
        let silent = places.take();
        silent.standing.set(Standing::Silent(start));
        let next = places.take();
        next.asks(true);
        assert_eq!(places.stay(&next, late).map_err(|status| status.code), Err(429));
        staying[7].is_sent_something();
        assert_eq!(
            places.stay(&next, Instant::now()).map_err(|status| status.code),
            Err(429),
            "not for long"
        );
        staying[7].is_served();
        assert!(places.stay(&next, late).is_err(), "it has read it");
        staying[7].is_sent_something();
        places.stay(&next, late).expect("one of them hangs");
        assert!(staying[7].going.0.is_closed() && !silent.going.0.is_closed());
        let another = places.take();
        another.asks(true);
        assert!(places.stay(&another, late).is_err(), "only one of them hung");
    }

    #[test]
    fn what_is_unread_is_bounded_for_all_together() {
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
}
