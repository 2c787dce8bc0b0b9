//! When the ConfigMaps and Secrets of pods are read and watched. Pure.
//!
//! As a kubelet does, the node watches each object by its name: it may read no others. An object is read by a list of
//! its name, whose version is new enough for a watch, and watched from there on. A watch that is idle costs no bytes, and
//! a change reaches the pods at once.
//!
//! ```text
//! Unread ─► Read ─► Watch ─► events ... ─► ended, resumed from the last version ─► Watch
//!    ▲                                 └─► 410 Gone ─► Unread
//!    └── 403: the cluster learns of a new pod a moment later
//! ```

use std::time::{Duration, Instant};

use nodlet_core::sorted::{SortedMap, SortedSet};

use crate::backoff::Backoff;
use crate::followed::Reference;

/// Watches at a time. An API server allows 100 over one connection. Further objects are read again each minute.
const MAX_WATCHES: usize = 64;

/// The interval at which an object is read again that is not watched.
const READ_EVERY: Duration = Duration::from_secs(60);

/// Something to do for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Read it.
    Read(Reference),
    /// Watch it from this version on.
    Watch(Reference, String),
    /// Stop its watch, and remove it from the board: no pod refers to it.
    Stop(Reference),
}

#[derive(Debug)]
struct Known {
    /// The version up to which the object is known; `None` if it must be read.
    version: Option<String>,
    /// The begin of its watch.
    watched: Option<Instant>,
    /// When it may be read or watched.
    at: Instant,
    backoff: Backoff,
    is_wanted: bool,
}

/// The objects that pods of this node refer to.
#[derive(Debug, Default)]
pub struct Objects {
    known: SortedMap<Reference, Known>,
}

impl Objects {
    /// Sets the objects that pods refer to.
    pub fn want(&mut self, wanted: &SortedSet<Reference>, now: Instant) {
        for (reference, known) in self.known.iter_mut() {
            known.is_wanted = wanted.contains(reference);
        }
        for reference in wanted {
            if !self.known.contains_key(reference) {
                self.add(reference.clone(), None, now);
            }
        }
    }

    fn add(&mut self, reference: Reference, version: Option<String>, now: Instant) {
        let known = Known { version, watched: None, at: now, backoff: Backoff::default(), is_wanted: true };
        self.known.insert(reference, known);
    }

    /// Whether an object is known as the cluster has it, so that a new pod needs not wait for it.
    pub fn is_current(&self, reference: &Reference) -> bool {
        self.known.get(reference).is_some_and(|known| known.watched.is_some())
    }

    fn watches(&self) -> usize {
        self.known.values().filter(|known| known.watched.is_some()).count()
    }

    /// The next requests; `can_watch` is whether the server allows many watches over one connection.
    pub fn next(&self, can_watch: bool, now: Instant) -> Option<Need> {
        for (reference, known) in self.known.iter() {
            if !known.is_wanted {
                return Some(Need::Stop(reference.clone()));
            }
            if known.watched.is_some() || now < known.at {
                continue;
            }
            match &known.version {
                Some(version) if can_watch && self.watches() < MAX_WATCHES => {
                    return Some(Need::Watch(reference.clone(), version.clone()));
                }
                _ => return Some(Need::Read(reference.clone())),
            }
        }
        None
    }

    /// When there is something to do, if nothing is observed before.
    pub fn wake_at(&self) -> Option<Instant> {
        self.known.values().filter(|known| known.watched.is_none()).map(|known| known.at).min()
    }

    /// Records that an object was read, at this version of the list. `can_watch` as in [`Objects::next`].
    pub fn read(&mut self, reference: &Reference, version: &str, can_watch: bool, now: Instant) {
        let may_watch = can_watch && self.watches() < MAX_WATCHES;
        if !self.known.contains_key(reference) {
            self.add(reference.clone(), None, now);
        }
        if let Some(known) = self.known.get_mut(reference) {
            known.version = Some(version.to_owned());
            known.at = if may_watch { now } else { now + READ_EVERY };
        }
    }

    /// Records that the cluster allows no access to an object yet, or that its watch is of no use: it is read again.
    pub fn rejected(&mut self, reference: &Reference, now: Instant, random: u16) {
        if !self.known.contains_key(reference) {
            self.add(reference.clone(), None, now);
        }
        if let Some(known) = self.known.get_mut(reference) {
            let lasted = known.watched.take().map_or(Duration::ZERO, |since| now - since);
            known.version = None;
            known.at = now + known.backoff.ended(lasted, random);
        }
    }

    /// Records that the watch of an object has begun.
    pub fn watched(&mut self, reference: &Reference, now: Instant) {
        if let Some(known) = self.known.get_mut(reference) {
            known.watched = Some(now);
        }
    }

    /// Records an event of a watch. Returns whether a pod refers to the object.
    pub fn changed(&mut self, reference: &Reference, version: Option<&str>) -> bool {
        let Some(known) = self.known.get_mut(reference) else { return false };
        if let Some(version) = version {
            known.version = Some(version.to_owned());
        }
        known.is_wanted
    }

    /// Records that a watch has ended.
    pub fn ended(&mut self, reference: &Reference, now: Instant, random: u16) {
        if let Some(known) = self.known.get_mut(reference)
            && let Some(since) = known.watched.take()
        {
            known.at = now + known.backoff.ended(now - since, random);
        }
    }

    /// Records that a watch was stopped.
    pub fn stopped(&mut self, reference: &Reference) {
        self.known.remove(reference);
    }

    /// All objects are to be read: a short visit watches none.
    pub fn unread(&mut self) {
        for (_, known) in self.known.iter_mut() {
            known.version = None;
        }
    }

    /// Records that the connection is gone, and with it all watches.
    pub fn disconnected(&mut self, now: Instant) {
        for (_, known) in self.known.iter_mut() {
            (known.watched, known.at) = (None, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(name: &str) -> Reference {
        ("configmaps", "shop".to_owned(), name.to_owned())
    }

    fn wanted(names: &[&str]) -> SortedSet<Reference> {
        let mut all = SortedSet::new();
        for name in names {
            all.insert(reference(name));
        }
        all
    }

    /// Does all there is to do now, successfully. Returns what it was.
    fn perform(objects: &mut Objects, can_watch: bool, now: Instant) -> String {
        let mut done = String::new();
        while let Some(need) = objects.next(can_watch, now) {
            match need {
                Need::Read(reference) => {
                    done += &format!("read {} ", reference.2);
                    objects.read(&reference, "5", can_watch, now);
                }
                Need::Watch(reference, version) => {
                    done += &format!("watch {} {version} ", reference.2);
                    objects.watched(&reference, now);
                }
                Need::Stop(reference) => {
                    done += &format!("stop {} ", reference.2);
                    objects.stopped(&reference);
                }
            }
        }
        done
    }

    #[test]
    fn an_object_is_read_and_watched_until_no_pod_refers_to_it() {
        let (mut objects, now) = (Objects::default(), Instant::now());
        objects.want(&wanted(&["a", "b"]), now);
        assert_eq!(perform(&mut objects, true, now), "read a watch a 5 read b watch b 5 ");
        assert!(objects.is_current(&reference("a")));
        assert_eq!(objects.wake_at(), None, "an idle watch wakes nobody");
        assert!(objects.changed(&reference("a"), Some("9")));
        objects.ended(&reference("a"), now, 0);
        assert_eq!(perform(&mut objects, true, now), "");
        let later = objects.wake_at().expect("it is watched again");
        assert_eq!(perform(&mut objects, true, later), "watch a 9 ");
        objects.want(&wanted(&["b"]), later);
        assert!(!objects.changed(&reference("a"), None), "no pod refers to it");
        assert_eq!(perform(&mut objects, true, later), "stop a ");
        assert_eq!(perform(&mut objects, true, later), "");
    }

    #[test]
    fn an_object_whose_versions_are_gone_is_read_again_and_a_rejected_one_later_and_later() {
        let (mut objects, mut now) = (Objects::default(), Instant::now());
        objects.want(&wanted(&["a"]), now);
        let mut waits = Vec::new();
        for _ in 0..3 {
            objects.rejected(&reference("a"), now, 0);
            assert_eq!(perform(&mut objects, true, now), "");
            let next = objects.wake_at().expect("it is read again");
            waits.push((next - now).as_millis());
            now = next;
            assert_eq!(objects.next(true, now), Some(Need::Read(reference("a"))));
        }
        assert_eq!(waits, [800, 1600, 3200]);
        // A watch that lasted was a success.
        assert_eq!(perform(&mut objects, true, now), "read a watch a 5 ");
        now += Duration::from_secs(60);
        objects.rejected(&reference("a"), now, 0);
        now += Duration::from_millis(800);
        assert_eq!(perform(&mut objects, true, now), "read a watch a 5 ");
    }

    #[test]
    fn objects_that_cannot_be_watched_are_read_each_minute() {
        let (mut objects, now) = (Objects::default(), Instant::now());
        let names: Vec<String> = (0..=MAX_WATCHES).map(|number| format!("{number:03}")).collect();
        objects.want(&wanted(&names.iter().map(String::as_str).collect::<Vec<_>>()), now);
        let done = perform(&mut objects, true, now);
        assert_eq!((done.matches("read").count(), done.matches("watch").count()), (65, 64));
        assert_eq!(objects.wake_at(), Some(now + READ_EVERY));
        assert_eq!(perform(&mut objects, true, now + READ_EVERY), "read 064 ");
        // A server with HTTP/1.1 only.
        let mut objects = Objects::default();
        objects.want(&wanted(&["a"]), now);
        assert_eq!(perform(&mut objects, false, now), "read a ");
        assert_eq!(perform(&mut objects, false, now + READ_EVERY), "read a ");
    }

    #[test]
    fn a_new_connection_resumes_all_watches_at_once() {
        let (mut objects, now) = (Objects::default(), Instant::now());
        objects.want(&wanted(&["a", "b"]), now);
        perform(&mut objects, true, now);
        objects.want(&wanted(&["b"]), now);
        objects.disconnected(now);
        assert_eq!(perform(&mut objects, true, now), "stop a watch b 5 ");
        // A visit.
        objects.disconnected(now);
        objects.unread();
        assert_eq!(perform(&mut objects, false, now), "read b ");
        assert_eq!(objects.next(false, now), None);
    }
}
