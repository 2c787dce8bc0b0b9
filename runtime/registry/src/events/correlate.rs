//! Decides which events are combined, as the `EventCorrelator` of client-go in a kubelet. Repeated events are
//! counted; events that differ only in their message are combined; and the rate of events about one object is
//! limited. Pure, but for its memory of earlier events.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use nodlet_core::time::Instant;

/// Number of different messages of one reason about one object from which on events are combined.
const SIMILAR: usize = 10;
/// Time without similar events after which an event counts as new.
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// Events about one object that are published before the rate is limited.
const BURST: f64 = 25.0;
/// Seconds for each further event of an object.
const ONE_IN: f64 = 300.0;
/// Entries of each memory. A kubelet has 4096, for more pods.
const REMEMBERED: usize = 512;

/// An event before correlation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occurrence<'a> {
    pub(super) about: About<'a>,
    pub(super) warning: bool,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

/// `involvedObject`.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct About<'a> {
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
    /// `fieldPath` of the container, if the event is about one.
    pub(super) field_path: Option<&'a str>,
}

/// An event to publish.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// The number of the combined event.
    pub(super) number: u64,
    pub(super) count: u32,
    pub(super) first: Instant,
    pub(super) message: String,
}

/// The memory of earlier events.
#[derive(Debug, Default)]
pub(super) struct Correlator {
    similar: Memory<Similar>,
    series: Memory<Series>,
    spoken: Memory<Bucket>,
    next: u64,
}

#[derive(Debug, Default)]
struct Similar {
    messages: VecDeque<u128>,
    last: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Series {
    number: u64,
    count: u32,
    first: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Correlator {
    /// Correlates an event. Returns the event to publish; `None` if the rate limit drops it.
    pub(super) fn correlate(&mut self, now: Instant, occurrence: &Occurrence<'_>) -> Option<Shown> {
        let About { kind, namespace, name, uid, field_path } = occurrence.about;
        let object = (kind, namespace, name, uid);
        let group = fingerprint(&("similar", object, occurrence.warning, occurrence.reason));
        let combined = self.combines(now, group, fingerprint(&occurrence.message));
        let (key, message) = if combined {
            (group, format!("(combined from similar events): {}", occurrence.message))
        } else {
            let one = ("one", object, field_path, occurrence.warning, occurrence.reason, occurrence.message);
            (fingerprint(&one), occurrence.message.to_owned())
        };
        let next = self.next + 1;
        let series = self.series.get_or(key, || Series { number: next, count: 0, first: now });
        series.count = series.count.saturating_add(1);
        let Series { number, count, first } = *series;
        self.next = self.next.max(number);
        // Dropped events are counted, too.
        let bucket = self.spoken.get_or(fingerprint(&("spoken", object, occurrence.warning)), || Bucket {
            tokens: BURST,
            at: now,
        });
        let refilled = now.since(bucket.at).as_secs_f64() / ONE_IN;
        *bucket = Bucket { tokens: (bucket.tokens + refilled).min(BURST), at: now };
        if bucket.tokens < 1.0 {
            return None;
        }
        bucket.tokens -= 1.0;
        Some(Shown { number, count, first, message })
    }

    /// Whether an event of this group is combined with the earlier ones.
    fn combines(&mut self, now: Instant, group: u128, message: u128) -> bool {
        let similar = self.similar.get_or(group, Similar::default);
        if similar.last.is_none_or(|last| now.since(last) > SIMILAR_WITHIN) {
            similar.messages.clear();
        }
        similar.last = Some(now);
        if !similar.messages.contains(&message) {
            similar.messages.push_back(message);
        }
        if similar.messages.len() < SIMILAR {
            return false;
        }
        similar.messages.pop_front();
        true
    }
}

/// A hash of a key with 128 bits, in which collisions are negligible.
fn fingerprint(key: &impl Hash) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        key.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// A map of the [`REMEMBERED`] entries that were used last.
#[derive(Debug)]
struct Memory<T> {
    /// The last used entry is the last one.
    known: VecDeque<(u128, T)>,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Memory { known: VecDeque::new() }
    }
}

impl<T> Memory<T> {
    fn get_or(&mut self, key: u128, new: impl FnOnce() -> T) -> &mut T {
        let place = self.known.iter().rposition(|(known, _)| *known == key);
        let value = match place.and_then(|place| self.known.remove(place)) {
            Some((_, value)) => value,
            None => new(),
        };
        if self.known.len() >= REMEMBERED {
            self.known.pop_front();
        }
        self.known.push_back((key, value));
        let newest = self.known.len() - 1;
        &mut self.known[newest].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence<'a>(name: &'a str, reason: &'a str, message: &'a str) -> Occurrence<'a> {
        let about = About {
            kind: "Pod",
            namespace: "default",
            name,
            uid: name,
            field_path: Some("spec.containers{app}"),
        };
        Occurrence { about, warning: true, reason, message }
    }

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn a_repeated_event_increments_its_count_and_keeps_its_first_time() {
        let mut correlator = Correlator::default();
        let first = correlator.correlate(at(0), &occurrence("web", "BackOff", "no")).expect("it is reported");
        assert_eq!((first.count, first.first), (1, at(0)));
        let again =
            correlator.correlate(at(10), &occurrence("web", "BackOff", "no")).expect("it is reported");
        assert_eq!((again.number, again.count, again.first), (first.number, 2, at(0)));
        let other =
            correlator.correlate(at(10), &occurrence("web", "BackOff", "otherwise")).expect("it is reported");
        assert_eq!((other.count, other.first), (1, at(10)));
        assert_ne!(other.number, first.number);
        let elsewhere =
            correlator.correlate(at(10), &occurrence("db", "BackOff", "no")).expect("it is reported");
        assert_eq!(elsewhere.count, 1);
        // The same words of another container are another event.
        let mut of_another = occurrence("web", "BackOff", "no");
        of_another.about.field_path = Some("spec.containers{helper}");
        assert_eq!(correlator.correlate(at(10), &of_another).expect("it is reported").count, 1);
    }

    #[test]
    fn the_tenth_message_of_one_reason_and_all_after_it_are_combined() {
        let mut correlator = Correlator::default();
        let mut correlate = |seconds: u64, number: u64| {
            let message = format!("probe {number}");
            correlator.correlate(at(seconds), &occurrence("web", "Unhealthy", &message))
        };
        for number in 0..9 {
            let shown = correlate(number, number).expect("it is reported");
            assert_eq!((shown.count, shown.message), (1, format!("probe {number}")));
        }
        let combined = correlate(9, 9).expect("it is reported");
        assert_eq!(combined.message, "(combined from similar events): probe 9");
        let more = correlate(10, 10).expect("it is reported");
        assert_eq!((more.number, more.count, more.first), (combined.number, 2, at(9)));
        assert_eq!(more.message, "(combined from similar events): probe 10");
        // After ten minutes of silence, each event is reported again.
        let later = correlate(10 + 601, 11).expect("it is reported");
        assert_eq!(later.message, "probe 11");
    }

    #[test]
    fn events_of_one_object_are_rate_limited() {
        let mut correlator = Correlator::default();
        let mut correlate =
            |seconds: u64| correlator.correlate(at(seconds), &occurrence("web", "BackOff", "no"));
        let counts: Vec<bool> = (0..30).map(|_| correlate(0).is_some()).collect();
        assert_eq!(counts.iter().filter(|is_shown| **is_shown).count(), 25);
        assert!(correlate(299).is_none());
        // What was not shown was counted.
        let shown = correlate(600).expect("one in five minutes");
        assert_eq!(shown.count, 32);
        assert!(correlate(601).is_some() && correlate(602).is_none(), "two had come together");
        let mut normal = occurrence("web", "Killing", "Stopping container app");
        normal.warning = false;
        assert!(correlator.correlate(at(602), &normal).is_some(), "another type has room of its own");
    }

    #[test]
    fn the_memory_of_the_event_correlator_is_limited() {
        let mut correlator = Correlator::default();
        for number in 0..3 * REMEMBERED {
            let name = format!("pod-{number}");
            assert!(correlator.correlate(at(0), &occurrence(&name, "Failed", "no")).is_some());
        }
        assert_eq!(correlator.series.known.len(), REMEMBERED);
        assert_eq!(correlator.similar.known.len(), REMEMBERED);
        assert_eq!(correlator.spoken.known.len(), REMEMBERED);
        // The first is long forgotten, the last is not.
        let last = format!("pod-{}", 3 * REMEMBERED - 1);
        assert_eq!(
            correlator.correlate(at(1), &occurrence(&last, "Failed", "no")).map(|shown| shown.count),
            Some(2)
        );
        assert_eq!(
            correlator.correlate(at(1), &occurrence("pod-0", "Failed", "no")).map(|shown| shown.count),
            Some(1)
        );
    }
}
