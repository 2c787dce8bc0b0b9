//! Which objects are set aside, because agents died while they handled them.
//!
//! A process that dies cannot say why, but a mark on memory that outlives it says what it handled. The agent's shell keeps
//! the marks, and knows how the last agent died; this module counts deaths and decides. Deaths of all objects that were
//! handled at once are counted, and one of these is guilty. So an object with a death is handled alone from then on, and
//! only the guilty one reaches [`DEATHS`].

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Wanted;

/// The number of deaths after which an object is set aside.
pub const DEATHS: u32 = 2;

/// The maximum number of suspects. Of more, those with the fewest deaths are forgotten first, and the oldest of these.
const SUSPECTS: usize = 64;

/// An object with its content, as numbers that a mark has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handled {
    /// Identifies the object, whatever its content.
    pub object: u64,
    /// Identifies its content.
    pub content: u64,
}

/// How an object is to be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Together with others.
    Handle,
    /// While no other object is handled: an agent died while it handled this one.
    HandleAlone,
    /// Not at all.
    SetAside,
}

/// The objects in whose handling agents died since the board booted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Suspects {
    /// The oldest first.
    list: Vec<Suspect>,
}

/// An object in whose handling an agent died.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Suspect {
    #[serde(flatten)]
    handled: Handled,
    deaths: u32,
}

impl Handled {
    /// A manifest file with these contents, while it is parsed and its objects are admitted.
    pub fn file(path: &Path, bytes: &[u8]) -> Handled {
        Handled { object: Handled::object_of(path), content: hash(bytes) }
    }

    /// The number of a manifest file, whatever its contents.
    pub fn object_of(path: &Path) -> u64 {
        hash(path)
    }

    /// A pod, while its sandbox, its volumes and its containers are made.
    pub fn pod(wanted: &Wanted) -> Handled {
        Handled { object: Handled::object_of_pod(&wanted.pod.uid.0), content: hash(wanted.object.get()) }
    }

    /// The number of the pod with this UID, whatever its content.
    pub fn object_of_pod(uid: &str) -> u64 {
        hash(OsStr::new(uid))
    }
}

impl Suspects {
    /// Counts the death of an agent that handled these objects. What the loop itself did is taken for the cause; tasks
    /// only waited meanwhile.
    pub fn died(&mut self, in_loop: Option<Handled>, in_tasks: &[Handled]) {
        let one;
        let handled = match in_loop {
            Some(handled) => {
                one = [handled];
                &one[..]
            }
            None => in_tasks,
        };
        for &handled in handled {
            let known = self.list.iter().position(|known| known.handled.object == handled.object);
            let before = known.map(|place| self.list.remove(place));
            let deaths = before.filter(|before| before.handled == handled).map_or(0, |before| before.deaths);
            self.list.push(Suspect { handled, deaths: deaths + 1 });
        }
        while self.list.len() > SUSPECTS {
            let fewest = self.list.iter().map(|known| known.deaths).min();
            if let Some(place) = self.list.iter().position(|known| Some(known.deaths) == fewest) {
                self.list.remove(place);
            }
        }
    }

    /// How to handle an object. One that has changed is no suspect.
    pub fn verdict(&self, handled: Handled) -> Verdict {
        match self.list.iter().find(|known| known.handled == handled) {
            None => Verdict::Handle,
            Some(known) if known.deaths < DEATHS => Verdict::HandleAlone,
            Some(_) => Verdict::SetAside,
        }
    }

    /// Forgets the deaths in the handling of an object, whatever its content. Returns whether there were any.
    pub fn release(&mut self, object: u64) -> bool {
        let before = self.list.len();
        self.list.retain(|known| known.handled.object != object);
        self.list.len() < before
    }
}

/// The number of a text or of a name, by which it is recognised; never zero, which marks nothing.
pub(crate) fn hash<T: Hash + ?Sized>(of: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> Handled {
        Handled::file(Path::new(name), text.as_bytes())
    }

    #[test]
    fn an_object_is_set_aside_after_two_deaths_until_it_changes_or_is_released() {
        let mut suspects = Suspects::default();
        let (bad, changed, other) = (file("a.yaml", "bad"), file("a.yaml", "good"), file("b.yaml", "bad"));
        assert_eq!(suspects.verdict(bad), Verdict::Handle);
        suspects.died(None, &[bad]);
        assert_eq!(suspects.verdict(bad), Verdict::HandleAlone);
        suspects.died(None, &[]);
        assert_eq!(suspects.verdict(bad), Verdict::HandleAlone);
        suspects.died(None, &[bad]);
        assert_eq!(suspects.verdict(bad), Verdict::SetAside);
        assert_eq!(suspects.verdict(changed), Verdict::Handle);
        assert_eq!(suspects.verdict(other), Verdict::Handle);
        assert!(!suspects.release(other.object));
        assert!(suspects.release(changed.object));
        assert_eq!(suspects.verdict(bad), Verdict::Handle);
    }

    #[test]
    fn deaths_of_another_content_do_not_count() {
        let mut suspects = Suspects::default();
        suspects.died(None, &[file("a.yaml", "one")]);
        suspects.died(None, &[file("a.yaml", "two")]);
        assert_eq!(suspects.verdict(file("a.yaml", "two")), Verdict::HandleAlone);
        assert_eq!(suspects.verdict(file("a.yaml", "one")), Verdict::Handle);
    }

    #[test]
    fn of_objects_that_were_handled_at_once_only_the_one_in_which_an_agent_dies_again_is_set_aside() {
        let mut suspects = Suspects::default();
        let all: Vec<Handled> = ["a", "b", "c"].map(|name| file(name, "")).into();
        suspects.died(None, &all);
        assert!(all.iter().all(|&one| suspects.verdict(one) == Verdict::HandleAlone));
        suspects.died(None, &all[1..2]);
        let verdicts: Vec<Verdict> = all.iter().map(|&one| suspects.verdict(one)).collect();
        assert_eq!(verdicts, [Verdict::HandleAlone, Verdict::SetAside, Verdict::HandleAlone]);
    }

    #[test]
    fn what_waits_in_tasks_is_no_suspect_if_the_loop_handled_something() {
        let mut suspects = Suspects::default();
        let (bad, waiting) = (file("bad", ""), file("waiting", ""));
        suspects.died(Some(bad), &[waiting]);
        assert_eq!(suspects.verdict(bad), Verdict::HandleAlone);
        assert_eq!(suspects.verdict(waiting), Verdict::Handle);
    }

    #[test]
    fn what_is_set_aside_is_kept_longer_than_what_one_agent_died_of() {
        let mut suspects = Suspects::default();
        let bad = file("bad", "");
        suspects.died(None, &[bad]);
        suspects.died(None, &[bad]);
        let others: Vec<Handled> = (0..SUSPECTS).map(|number| file(&number.to_string(), "")).collect();
        suspects.died(None, &others);
        assert_eq!(suspects.list.len(), SUSPECTS);
        assert_eq!(suspects.verdict(bad), Verdict::SetAside);
        assert_eq!(suspects.verdict(others[0]), Verdict::Handle, "the oldest");
        assert_eq!(suspects.verdict(others[1]), Verdict::HandleAlone);
    }

    #[test]
    fn what_was_counted_is_the_same_after_it_was_written_and_read() {
        let mut suspects = Suspects::default();
        suspects.died(None, &[file("a", "")]);
        suspects.died(None, &[file("a", "")]);
        let read: Suspects = serde_json::from_str(&serde_json::to_string(&suspects).unwrap()).unwrap();
        assert_eq!(read.verdict(file("a", "")), Verdict::SetAside);
    }
}
